//! The channel of a connection over one window: messages one way, room for more the other.
//!
//! Knows the protocol's halves ([`crate::proto`]) and the memory of one [`direction`]; must not
//! know sockets, who waits, or why a connection has a channel. Entry points: [`fresh`],
//! [`SendState`], [`RecvState`].
//!
//! [`direction`]: super::direction

pub mod banks;
pub mod state;

pub use banks::{Beyond, LARGE, SMALL};
pub use state::{RecvState, SendState, fresh};
