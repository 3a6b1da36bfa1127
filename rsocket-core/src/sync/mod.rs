//! Atomics, locks and spinning. What lies here knows nothing of sockets, directions or descriptors.
//!
//! The algorithms (the lock here, the sleeper's handshake in [`crate::device::shm::park`]) are
//! written over the traits of [`atom`], so that the model tests run the very same code over a
//! scheduler's atomics. Entry points: [`lock::OwnedLock`], [`guarded::Guarded`],
//! [`spin::Adaptive`], [`backoff::of`],
//! [`thread::tid`], [`thread::cpu`], [`living::process`], [`signals::arrived`], [`stack::on_own`].
//! After a fork the child calls [`thread::forked`] before it takes any lock.

pub mod atom;
pub mod backoff;
pub mod guarded;
pub mod lock;
pub mod spin;

pub use rsocket_host::sys::on_word;
pub use rsocket_host::{living, signals, stack, thread};
