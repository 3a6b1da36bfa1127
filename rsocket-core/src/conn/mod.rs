//! A connection as data: what all the processes that hold it share, and what may follow what.
//!
//! State knows no behaviour: nothing here makes a step of a connection's life, and code that wants
//! to hear of one registers a listener ([`listeners`]). Must not know devices' insides, the pairing
//! or the socket. Entry points: [`slot::Slot`], [`machine`].

pub mod arena_record;
pub mod cause;
pub mod conn_counters;
pub mod dialled;
pub mod fds_in_flight;
pub mod flag;
pub mod fork_group;
pub mod fork_mode;
pub mod guest;
pub mod handshake;
pub mod id;
pub mod invitation;
pub mod kind;
pub(crate) mod listener;
pub mod listeners;
pub mod look;
pub mod machine;
pub mod migration;
pub mod name;
pub mod offsets;
pub mod option_cache;
pub mod own_news;
pub mod owners;
pub mod pairing_lock;
pub mod pairing_state;
pub mod pending;
pub mod poll_backoff;
pub mod prefix;
pub mod progress;
pub mod saved;
pub mod slot;
pub mod timers;
pub mod waited;
pub mod watchers;
