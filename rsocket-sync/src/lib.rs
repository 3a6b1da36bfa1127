//! Atomics, locks and spinning. What lies here knows nothing of sockets, directions or descriptors.
//!
//! The algorithms are the lock here and the sleeper's handshake of rsocket-shm's `park`. They
//! are written over the traits of [`atom`], so that the model tests run the very same code over a
//! scheduler's atomics. Entry points: [`lock::OwnedLock`], [`mutex::Mutex`], [`guarded::Guarded`],
//! [`published::Published`], [`spin::Adaptive`], [`backoff::of`]. After a fork the child calls
//! [`rsocket_host::thread::forked`] before it takes any lock.
#![cfg_attr(not(test), no_std)]
// A panic in here kills the user's program.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod atom;
pub mod backoff;
pub mod guarded;
pub mod lock;
pub mod mutex;
pub mod published;
pub mod saturation;
pub mod spin;
