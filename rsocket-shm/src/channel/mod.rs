//! The protocol of a connection over one channel: messages one way, room for more the other.
//!
//! Knows the protocol's halves ([`rsocket_wire::proto`]) and the memory of one [`direction`]; must
//! not know sockets, who waits, or why a connection has a channel. Entry points: [`Sender`],
//! [`Receiver`], [`fresh`].
//!
//! [`direction`]: super::direction

pub mod buffer_classes;
pub mod receiver;
pub mod sender;
pub mod state;
#[cfg(test)]
mod tests;

pub use buffer_classes::{Beyond, LARGE, SMALL};
pub use receiver::{Next, Receiver, Taking};
pub use sender::{Refused, Reservation, Sender};
pub use state::{AMPLE, RecvState, SendState, fresh};

/// The other end broke a rule of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;
