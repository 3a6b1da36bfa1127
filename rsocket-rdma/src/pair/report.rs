//! Completions: what the device says, put into the order and the words of the contract.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::mem::MaybeUninit;

use super::post::RECEIVE;
use super::{Life, RdmaPair, SLOT};
use crate::ffi;
use rsocket_device::Completion;
use rsocket_wire::word::Word;

/// Completions read by one call.
const BATCH: usize = 8;

/// Where completions are reported to.
struct Out<'a> {
    into: &'a mut [Completion],
    count: usize,
}

impl Out<'_> {
    const fn has_room(&self) -> bool {
        self.count < self.into.len()
    }
}

impl RdmaPair {
    /// Hands out what was found, and looks for more until the device has none or `into` is full.
    #[inline]
    pub(super) fn take(&mut self, into: &mut [Completion]) -> usize {
        let mut out = Out { into, count: 0 };
        while out.has_room()
            && let Some(found) = self.ready.pop_front()
        {
            self.hand_out(found, &mut out);
        }
        // A batch may hold nothing to report, and the next one something.
        while out.has_room() && self.gather(&mut out) {}
        out.count
    }

    /// Looks at what the device has done, and carries on with closing, without reporting anything.
    /// For a caller that drives a pair whose owner does not poll it any more.
    pub fn advance(&mut self) {
        while self.gather(&mut Out { into: &mut [], count: 0 }) {}
    }

    /// Reports what was found behind all that was found before.
    #[inline(always)]
    fn found(&mut self, found: Completion, out: &mut Out<'_>) {
        if self.ready.is_empty() && out.has_room() {
            self.hand_out(found, out);
        } else {
            self.ready.push_back(found);
        }
    }

    #[inline(always)]
    fn hand_out(&mut self, found: Completion, out: &mut Out<'_>) {
        match found {
            Completion::Sent { .. } | Completion::Failed { .. } => {
                self.unreported = self.unreported.saturating_sub(1);
            }
            Completion::Word(_) => self.reported += 1,
            Completion::Ended | Completion::None => {}
        }
        if let Some(place) = out.into.get_mut(out.count) {
            *place = found;
            out.count += 1;
        }
    }

    /// Reads one batch; whether there may be more.
    #[inline(always)]
    fn gather(&mut self, out: &mut Out<'_>) -> bool {
        if self.life == Life::Ended {
            return false;
        }
        let mut batch = [const { MaybeUninit::<ffi::ibv_wc>::uninit() }; BATCH];
        // SAFETY: the completion queue is alive.
        let found = match unsafe { ffi::poll(self.cq, &mut batch) } {
            Ok(found) => found,
            Err(()) => {
                self.life = Life::Broken;
                &[]
            }
        };
        // Fewer than there was room for: the queue was emptied (ibv_poll_cq(3)).
        let more = found.len() == BATCH;
        for completion in found {
            if completion.wr_id & RECEIVE != 0 {
                self.arrived(completion, out);
            } else {
                self.carried_out(completion, out);
            }
        }
        if !more && self.life != Life::Open {
            self.carry_on_ending(out);
        }
        more
    }

    /// A receive was used, or came back unused.
    #[inline]
    fn arrived(&mut self, completion: &ffi::ibv_wc, out: &mut Out<'_>) {
        if completion.status != ffi::ibv_wc_status::IBV_WC_SUCCESS {
            self.broke();
            return;
        }
        let word = if completion.wc_flags & ffi::WITH_IMMEDIATE != 0 {
            // SAFETY: with immediate data, this is the field of the union that counts; it is a
            // number.
            let immediate = unsafe { completion.imm_data_invalidated_rkey_union.imm_data };
            Some(Word::from_immediate(immediate.to_ne_bytes()))
        } else {
            self.slot_word(completion)
        };
        match word {
            Some(word) => self.found(Completion::Word(word), out),
            // A peer that sends anything else does not speak the protocol.
            None => self.broke(),
        }
    }

    /// The word in the slot of a receive; `None` unless exactly a word came.
    fn slot_word(&self, completion: &ffi::ibv_wc) -> Option<Word> {
        if completion.opcode != ffi::ibv_wc_opcode::IBV_WC_RECV || completion.byte_len != SLOT {
            return None;
        }
        let slot = u32::try_from(completion.wr_id & !RECEIVE).ok()?;
        let bytes = self.slots.as_ref()?.word(slot.checked_mul(SLOT)?).ok()?;
        Some(Word::from_native(bytes))
    }

    /// A post was carried out, or not. Those before it were carried out: nothing is sent after a
    /// failure.
    #[inline]
    fn carried_out(&mut self, completion: &ffi::ibv_wc, out: &mut Out<'_>) {
        let number = completion.wr_id;
        if number >= self.posted || number < self.completed {
            return;
        }
        let success = completion.status == ffi::ibv_wc_status::IBV_WC_SUCCESS;
        while self.completed <= number {
            self.complete(success || self.completed < number, out);
        }
        if !success {
            self.broke();
        }
    }

    /// Reports the oldest post that the device had.
    #[inline]
    fn complete(&mut self, success: bool, out: &mut Out<'_>) {
        let at = (self.completed % u64::from(self.send_queue)) as usize;
        self.completed += 1;
        let Some(done) = self.pending.get(at).copied() else { return };
        self.staging.give(done.piece);
        let token = done.token;
        self.found(
            if success { Completion::Sent { token } } else { Completion::Failed { token } },
            out,
        );
    }

    /// The queue pair has failed, or the peer broke a rule.
    fn broke(&mut self) {
        if self.life != Life::Ended {
            self.life = Life::Broken;
        }
    }

    /// With nothing left to read: the next step of the end, if there is one.
    #[cold]
    fn carry_on_ending(&mut self, out: &mut Out<'_>) {
        if self.life == Life::Closing && self.completed == self.posted {
            self.life = Life::Broken;
        }
        if self.life != Life::Broken {
            return;
        }
        self.disconnect();
        if !self.disconnected {
            return;
        }
        while self.completed < self.posted {
            self.complete(false, out);
        }
        self.life = Life::Ended;
        self.found(Completion::Ended, out);
    }
}
