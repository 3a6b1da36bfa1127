//! What two ends of one TCP connection know of each other's handshake, whatever stands between
//! them.
//!
//! The SYN of a connection carries a timestamp: a clock, and an offset that the kernel draws for
//! each connection. Address translation leaves it alone. The end that accepted reads it out of the
//! SYN ([`crate::conn::saved`]); the end that connected knows, to some milliseconds, what it must
//! have been ([`crate::conn::dialled`]). Neither asks `sock_diag`, and nothing is added to the
//! stream. How both prove it to each other is [`pake`]'s, and [`who`]'s.
//!
//! Must not know how two ends meet. Entry point: [`place::find_out`]; what a
//! connection remembers is [`crate::conn::handshake`]'s.

pub mod absent;
pub mod listing;
pub mod names;
pub mod offers;
pub mod pake;
pub mod place;
pub mod who;
