//! Bytes on the network and the types they stand for. Pure: no fd, clock, lock or pointer.
//!
//! One module for each structure of the specification: [`word`] (`wire-protocol §4`), [`sge`]
//! (`§3.2`), [`iomap`] (`§3.3`), [`private_data`] (`§2.2` to `§2.4`), [`datagram`] (`§9.2`,
//! `§9.3`). Whatever a peer can send is a value or an error value here; nothing panics, and nothing
//! is believed that was not checked.
//!
//! Above them [`proto`]: the stream protocol as machines without I/O. A program on either side of
//! the wire can be built on these alone.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
// A panic in here kills the user's program.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

extern crate alloc;

pub mod datagram;
pub mod iomap;
pub mod private_data;
pub mod proto;
pub mod sge;
pub mod word;
