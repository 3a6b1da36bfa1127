//! What the library tells about itself: why connections are on TCP ([`reason`]) and what is counted
//! ([`counters`]). Also how a process shows its connections in a file ([`layout`]).
//!
//! Pure values, which a process that counts and a program that shows share. Must not know
//! connections, descriptors or files.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod counters;
pub mod layout;
pub mod reason;
