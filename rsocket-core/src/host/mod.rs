//! What the kernel says of this process and its host: filters, memory, counters.
//!
//! Facts only: nothing here knows a connection, a device or a socket's state.

pub mod filter;
pub mod memory;
mod status;
pub mod trial;
