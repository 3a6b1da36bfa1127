//! What a call does that waits: how long it may, and how it spins and sleeps, and where. Also what
//! becomes of it when its descriptor is closed meanwhile.
//!
//! Must not know what is waited for. Entry points: [`call_deadline::CallDeadline`], one for each
//! call; [`spinning`], [`sleep`].

pub mod call_deadline;
pub(crate) mod close_while_blocked;
mod migration;
pub mod sleep;
pub mod spinning;
