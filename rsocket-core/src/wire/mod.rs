//! Bytes on the network and the types they stand for. Pure: no fd, clock, lock or pointer.
//!
//! One module for each structure of the specification: [`word`] (`wire-protocol §4`), [`sge`] (`§3.2`),
//! [`iomap`] (`§3.3`), [`private_data`] (`§2.2` to `§2.4`), [`datagram`] (`§9.2`, `§9.3`). Whatever a peer
//! can send is a value or an error value here; nothing panics, and nothing is believed that was not
//! checked.
#![forbid(unsafe_code)]
pub mod datagram;
pub mod iomap;
pub mod private_data;
pub mod sge;
pub mod word;
