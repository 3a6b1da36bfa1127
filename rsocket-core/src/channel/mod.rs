//! A connection's channel through shared memory, once both ends have it:
//! - the arenas with the channels;
//! - both directions as seen from this side, and the two locks;
//! - the words by which the ends say where bytes travel, and residual bytes.
//!
//! Must not know how two ends find each other ([`crate::attach`]), what a call of the program's
//! does, nor bridges. Entry points: [`arenas`], then [`link`]; [`guard`], [`handover_state`].

pub mod arenas;
pub(crate) mod arenas_lock;
#[cfg(test)]
mod arenas_tests;
pub mod broken;
pub mod fd_stash;
pub mod guard;
pub mod handover_state;
pub mod identity;
pub mod link;
mod loan;
mod mapping;
pub mod ready_bitmap;
pub mod residual;
mod retired;
pub mod room;
pub mod said;
mod search;
pub mod spare;
pub(crate) mod switch;
pub(crate) mod unread;
pub mod waiters;
