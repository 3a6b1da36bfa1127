//! The handover of one direction between TCP and the channel, back to TCP. How callers ask for it,
//! what becomes of what is unread, and descriptors that go elsewhere.
//!
//! The way to the device is a step of every call ([`crate::channel::switch`]). Must not know
//! sockets' calls. Entry points: [`back`], [`detach`].

pub mod awaited;
pub mod back;
pub mod detach;
pub mod fds_in_flight;
pub mod gone;
pub mod pipe;
pub(crate) mod stand_in;
