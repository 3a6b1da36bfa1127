//! The software device between processes of one host: memory that both map, and a way to wake a
//! sleeper.
//!
//! An [`arena::Arena`] is one sealed memfd of one pair of processes. It holds many
//! [`arena::Channel`]s, one for each connection; a channel is two [`direction::Direction`]s, each
//! for the bytes that flow one way. [`layout`] says where everything lies, [`rsocket_host::copy`]
//! how bytes get in and out, [`places`] how they get into memory of the receiver's own choice.
//! [`park`] and [`waker`] say how a side that sleeps is woken, from wherever a thread may be
//! ([`netns`]). [`queue_pair`] makes of a channel what [`rsocket_device`] asks for. [`mailbox`] is
//! a ring of datagrams from one socket to another, in a memfd of its own. Nothing here knows
//! sockets, the protocol's state, or which process may connect to which. Each user of what the peer
//! can write reads it once and checks it.

// A panic in here kills a program that is not ours.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod arena;
pub mod channel;
pub mod direction;
pub mod layout;
pub mod mailbox;
pub mod netns;
pub mod park;
pub mod places;
pub mod queue_pair;
pub mod random;
mod stores;
mod waiter_slot;
pub mod waker;
