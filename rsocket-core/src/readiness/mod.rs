//! poll, select and epoll over sockets of both kinds. Those of one kind are wholly the kernel's.
//! Those of the other have a device beside their TCP connection (*on device*): the kernel alone can
//! no longer say what is ready.
//!
//! From the bottom up:
//!
//! - [`source`]: what this layer wants to know about a socket, as a trait, so that the tests can
//!   play one;
//! - `mixed`: one wait over any mixture of descriptors;
//! - [`poll`] and [`select`]: that wait in the program's spelling;
//! - [`epoll`]: the mirror of the kernel's epoll objects.
//!
//! It must not know how a device moves bytes, nor what hooks are. What is on plain TCP costs
//! nothing here. The callers come only when a socket is on device, and a set without such a member
//! is passed to the kernel untouched.

mod deadline;
pub mod epoll;
mod mixed;
pub mod poll;
mod scratch;
pub mod select;
pub mod source;
mod spin_polls;

use crate::conn::slot::SlotId;
use std::os::fd::RawFd;

/// The look-up from a descriptor number to the connection behind it, given by the preload library.
pub type Finder = fn(RawFd) -> Option<SlotId>;
