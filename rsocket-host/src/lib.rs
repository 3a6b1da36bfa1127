//! The library's own system calls, what it knows of the calling thread, and what the kernel says
//! of the process and its host. Nothing here has heard of connections, devices or hooks.
//!
//! From the bottom up:
//! - [`copy`] (how the processor moves bytes), [`failure`], [`environment`] (the variables),
//!   [`address`] (`sockaddr`)
//! - [`sys`] (system calls, and descriptors of the library's own)
//! - [`thread`] (which thread calls, and the sections in which signals wait) with [`signals`]
//! - [`migration`] (a thread goes to another CPU)
//! - [`stack`] (a stack of the library's own), [`array`] (one that is never allocated), [`living`]
//!   (whether a thread or process still lives)
//! - [`stdio`] (libc's streams), [`objects`] (what the dynamic linker has loaded), [`sigaction`]
//! - [`log`], [`probe`] (whether memory is there), [`given`] (pointers of a C caller's), [`facts`],
//!   [`seqpacket`] (a UNIX socket whose messages carry descriptors)

// A panic in here kills the program that uses the library.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod address;
pub mod array;
pub mod copy;
pub mod environment;
pub mod facts;
pub mod failure;
pub mod fnv;
pub mod given;
pub mod living;
pub mod log;
pub mod migration;
pub mod objects;
mod own;
pub mod probe;
pub mod reason;
pub mod seqpacket;
pub mod sigaction;
pub mod signals;
pub mod stack;
pub mod stats;
pub mod stdio;
pub mod sys;
pub mod thread;
