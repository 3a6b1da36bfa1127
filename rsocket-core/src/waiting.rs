//! What a call does that waits: how long it may, how it spins and sleeps, and what becomes of it
//! when its descriptor is closed meanwhile.
//!
//! Must not know what is waited for. Entry points: [`patience::Patience`], one for each call;
//! [`spinning`], [`sleep`].

pub(crate) mod lent;
pub mod patience;
pub mod sleep;
pub mod spinning;
