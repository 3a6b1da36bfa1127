//! What an administrator works with: `rsrun` ([`run`]) starts a program over rsockets, `rsstat`
//! ([`stat`]) shows what became of its connections.
//!
//! Ordinary programs: they run beside the data path, never in it, and know of the library what it
//! publishes: its settings (`rsocket_core::config`) and the layout of its files
//! (`rsocket_core::live::layout`).
#![forbid(unsafe_code)]

pub mod run;
pub mod stat;
