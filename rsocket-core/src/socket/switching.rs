//! What a thread looks for a moment before it sleeps, where TCP is excluded and its peer is about
//! to leave it.
//!
//! Both ends have the channel then, and each is awake or has just been woken. The one says that it
//! takes bytes, the other from where on it sends them, some microseconds later. A thread that slept
//! until then would cost both of them more than that. What such looks brought is learnt by the
//! process, since a connection has one of each. Must not know how a direction is moved, nor how a
//! thread waits ([`super::wait`]). Entry points: [`sender`], [`receiver`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::AtomicU32;

use crate::channel::handover_state;
use crate::channel::link::{self, Ends};
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::slot::{Slot, flag};

/// What the looks of this process have brought.
static SENDING: AtomicU32 = AtomicU32::new(0);
static RECEIVING: AtomicU32 = AtomicU32::new(0);

/// What the peer is about to write.
pub(super) struct Word {
    /// The channel.
    pub ends: Ends,
    /// What the looks have brought so far.
    pub learnt: &'static AtomicU32,
    cpu: fn(&Ends) -> u32,
    has_come: fn(&Ends) -> bool,
}

impl Word {
    /// Where the peer runs, as far as it has said.
    pub(super) fn cpu(&self) -> u32 {
        (self.cpu)(&self.ends)
    }

    /// Whether it has written it.
    pub(super) fn has_come(&self) -> bool {
        (self.has_come)(&self.ends)
    }

    /// A whole sleep is to find what was there before. It may be that only others can go on from
    /// there, and the caller must not look again and again.
    fn if_new(self) -> Option<Self> {
        if self.has_come() { None } else { Some(self) }
    }
}

/// The channel of a connection without TCP that has just attached over shared memory.
fn attached(s: &Slot) -> Option<Ends> {
    let waits = s.has(flag::STRICT)
        && !s.has(flag::BRIDGED | flag::PENDING | flag::RSOCKET)
        && s.phase() == Phase::Paired;
    if waits { link::ends(s) } else { None }
}

/// The peer has not acknowledged yet what this end sends.
pub(super) fn sender(s: &Slot) -> Option<Word> {
    let ends = attached(s).filter(|_| s.send_mode() == SendMode::Kernel)?;
    let (cpu, has_come) = (
        |ends: &Ends| handover_state::receiver_cpu(&ends.outgoing),
        |ends: &Ends| handover_state::acknowledged(&ends.outgoing),
    );
    Word { ends, learnt: &SENDING, cpu, has_come }.if_new()
}

/// The peer has not said yet at which byte it leaves TCP.
pub(super) fn receiver(s: &Slot) -> Option<Word> {
    let waits = matches!(s.receive_mode(), ReceiveMode::Asked | ReceiveMode::Acknowledged);
    let ends = attached(s).filter(|_| waits)?;
    let (cpu, has_come) = (
        |ends: &Ends| handover_state::sender_cpu(&ends.incoming),
        |ends: &Ends| handover_state::switch_offset(&ends.incoming).is_some(),
    );
    Word { ends, learnt: &RECEIVING, cpu, has_come }.if_new()
}
