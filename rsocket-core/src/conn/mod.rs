//! A connection as data: what all the processes that hold it share, and what may follow what.
//!
//! State knows no behaviour: nothing here makes a step of a connection's life, and who wants to
//! hear of one registers a listener ([`listeners`]). Must not know devices' insides, the pairing or
//! the socket. Entry points: [`slot::Slot`], [`machine`].

pub mod listeners;
pub mod migration;
pub mod prefix;
pub mod tally;

use crate::fork_safe::machine as fork_mode;
use crate::socket::slot;
