//! What the kernel says of this process and its host: filters, memory, counters, and of the
//! TCP socket underneath.
//!
//! Facts only: nothing here knows a connection, a device or a socket's state.

pub mod counters;
pub mod events;
pub mod filter;
mod find;
pub mod image;
pub mod interfaces;
pub mod kernel;
mod lengths;
pub mod loaded;
pub mod locking;
pub mod memory;
pub mod option_table;
pub mod raw;
pub mod runnable;
mod status;
pub mod tcp_state;
pub mod trial;
pub mod tuple;
pub mod whereabouts;
