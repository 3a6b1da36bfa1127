//! TCP states, by the kernel's numbers.
#![forbid(unsafe_code)]

/// Both directions open.
pub const ESTABLISHED: u8 = 1;
/// It has sent FIN and waits for the acknowledgement.
pub const FIN_WAIT1: u8 = 4;
/// It has sent FIN, which is acknowledged; it may still receive.
pub const FIN_WAIT2: u8 = 5;
/// Both FINs are through; no process holds the socket.
pub const TIME_WAIT: u8 = 6;
/// No connection any more.
pub const CLOSE: u8 = 7;
/// It has received FIN; it may still send.
pub const CLOSE_WAIT: u8 = 8;
/// Received FIN, then sent its own.
pub const LAST_ACK: u8 = 9;
/// Listening.
pub const LISTEN: u8 = 10;
/// Both sent FIN at the same time.
pub const CLOSING: u8 = 11;
