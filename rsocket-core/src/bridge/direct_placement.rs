//! Direct placement over a queue pair: our mappings, of which the peer is told, and the peer's,
//! into which the program writes (`wire-protocol §8`).
//!
//! The other part of [`Pump`]. The program's memory is registered with the device, and the peer's
//! device writes there: what comes in passes through no code here. What goes out lies in the ring
//! of the channel. The pump posts it before any message that was put into the channel after it. The
//! channel shows the program what the peer has mapped.
//!
//! Between two of ours `riounmap` breaks no connection, since a mapping that is taken back stays
//! registered. It does so until the peer has said that nothing is on its way to it any more
//! ([`Note`]). Must not know what rsocket(7) promises. Entry points: [`expose`], [`withdraw`],
//! [`withdraw_all`] for the program's calls; [`Pump`]'s own for the rest.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::channel_port::Broken;
use super::mappings::{Ours, Theirs};
use super::peer_control::Note;
use super::pump::Pump;
use super::{pump, service};
use crate::conn::slot::Slot;
use crate::device::shm::layout::PLACES;
use crate::device::{MemoryError, PostError, QueuePair};
use crate::failure::Failure;
use crate::proto::iomap::MapPost;
use crate::sys;
use crate::wire::iomap::Iomap;
use crate::wire::sge::{Endian, Sge};
use crate::wire::word::Word;

/// How long a mapping that was taken back waits for the peer's answer, in nanoseconds.
const ANSWER_NS: u64 = 1_000_000_000;

/// Why memory is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no connection (any more).
    NotConnected,
    /// The peer remembers no more mappings.
    Full,
    /// The device does not take the memory.
    Memory(MemoryError),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotConnected => Self::NotConnected,
            Refused::Full | Refused::Memory(MemoryError::Exhausted) => Self::NoMemory,
            Refused::Memory(MemoryError::Range) => Self::BadAddress,
        }
    }
}

impl<Q: QueuePair> Pump<Q> {
    /// Maps memory of the program's; its number.
    ///
    /// # Errors
    /// [`Refused`].
    ///
    /// # Safety
    /// As [`QueuePair::expose`]: until [`Self::forget`], or the end of the pump.
    pub unsafe fn expose(&mut self, at: *mut u8, len: u32, offset: u64) -> Result<u32, Refused> {
        if !self.stream.state().connected() {
            return Err(Refused::NotConnected);
        }
        let free = self.placements.ours.iter().position(|ours| *ours == Ours::Free);
        let index = free.and_then(|i| u16::try_from(i).ok()).ok_or(Refused::Full)?;
        // SAFETY: the caller's promise is the same.
        let target = unsafe { self.pair.expose(at, len) }.map_err(Refused::Memory)?;
        if let Some(ours) = self.placements.ours.get_mut(usize::from(index)) {
            *ours = Ours::Mapped(Iomap { offset, target });
        }
        self.placements.untold.push_back(index);
        Ok(index.into())
    }

    /// Takes a mapping back. It is done when [`Self::is_gone`] says so, or with [`Self::forget`].
    pub fn withdraw(&mut self, index: u32) {
        let placements = &mut self.placements;
        let Some(ours) = placements.ours.get_mut(index as usize) else { return };
        let Ours::Mapped(map) = *ours else { return };
        let before = placements.untold.len();
        placements.untold.retain(|other| u32::from(*other) != index);
        let told = placements.untold.len() == before;
        if !told || !self.stream.state().connected() {
            *ours = Ours::Free;
            self.pair.withdraw(map.target);
            return;
        }
        *ours = Ours::Leaving(map.target);
        placements.leaving.push_back(index as u16);
        if !self.stream.peer_answers() {
            self.forget(index);
        }
    }

    /// Whether nothing is written any more to a mapping that was taken back.
    #[must_use]
    pub fn is_gone(&self, index: u32) -> bool {
        let ours = self.placements.ours.get(index as usize);
        !self.stream.state().connected() || !matches!(ours, Some(Ours::Leaving(_)))
    }

    /// Nothing is written any more to a mapping that was taken back, whatever the peer may say.
    pub fn forget(&mut self, index: u32) {
        if let Some(ours) = self.placements.ours.get_mut(index as usize)
            && let Ours::Leaving(name) = *ours
        {
            *ours = Ours::Gone;
            self.pair.withdraw(name);
        }
    }

    /// All memory is the program's alone again, at once.
    pub fn forget_all(&mut self) {
        for ours in &mut self.placements.ours {
            match core::mem::replace(ours, Ours::Gone) {
                Ours::Mapped(Iomap { target, .. }) | Ours::Leaving(target) => {
                    self.pair.withdraw(target)
                }
                Ours::Free | Ours::Gone => {}
            }
        }
        self.placements.untold.clear();
    }

    /// The peer has written an entry of our table: what stands there now is what the program may
    /// write to.
    pub(super) fn learn(&mut self, index: u16) {
        let at = self.placements.table + u64::from(index) * Iomap::SIZE as u64;
        let mut bytes = [0; Iomap::SIZE];
        let placements = &mut self.placements;
        let Some(theirs) = placements.theirs.get_mut(usize::from(index)) else { return };
        if self.pair.load(at, &mut bytes).is_err() {
            return;
        }
        let map = Iomap::from_bytes(bytes, Endian::NATIVE);
        // One that runs past the end of memory is none.
        let whole = map.target.end().is_some();
        let target = if whole { map.target } else { Sge::default() };
        placements.generation = placements.generation.wrapping_add(2);
        *theirs = Theirs { target, generation: placements.generation };
        self.port.show_map(index.into(), placements.generation, map.offset, target.len);
    }

    /// Where the first of the peer's mappings is.
    #[cfg(test)]
    pub(super) fn first_theirs(&self) -> Option<Sge> {
        self.placements.theirs.iter().map(|theirs| theirs.target).find(|target| target.len > 0)
    }

    /// A note about a mapping. One that names none ends the connection.
    pub(super) fn noted(&mut self, note: Note) {
        let known = match note {
            Note::Unmapped(index) if usize::from(index) < self.placements.theirs.len() => {
                self.learn(index);
                if !self.placements.answers.contains(&index) {
                    self.placements.answers.push_back(index);
                }
                true
            }
            Note::Forgotten(index) => {
                self.placements.asked = false;
                self.forget(index.into());
                let ours = self.placements.ours.get_mut(usize::from(index));
                ours.is_some_and(|ours| {
                    if *ours == Ours::Gone {
                        *ours = Ours::Free;
                    }
                    true
                })
            }
            _ => false,
        };
        if !known {
            self.hang_up();
        }
    }

    /// Whether the peer was told of all mappings, of which it must hear before it gets bytes that
    /// follow them.
    pub(super) fn all_told(&self) -> bool {
        self.placements.untold.is_empty()
    }

    /// Posts what must go before any data that is still in the channel: new mappings, and what was
    /// written directly. Whether all of it went; `moved` if any did.
    ///
    /// # Errors
    /// [`Broken`]: the program's side of the channel is not to be believed.
    pub(super) fn before_data(&mut self, moved: &mut bool) -> Result<bool, Broken> {
        if !self.stream.state().writable() {
            // No receiver takes it any more.
            self.placements.untold.clear();
        }
        while let Some(index) = self.placements.untold.front().copied() {
            let Some(Ours::Mapped(map)) = self.placements.ours.get(usize::from(index)).copied()
            else {
                self.placements.untold.pop_front();
                continue;
            };
            if self.pair.staging_room() < Iomap::SIZE as u32 {
                return Ok(false);
            }
            let Some(post) = self.stream.next_iomap(index, map) else { return Ok(false) };
            self.placements.untold.pop_front();
            self.post_map(&post);
            *moved = true;
        }
        self.direct(moved)
    }

    /// Posts direct writes, as many as were in the ring when it began.
    fn direct(&mut self, moved: &mut bool) -> Result<bool, Broken> {
        let mut bytes = 0;
        while bytes < PLACES {
            let Some(piece) = self.port.place()? else { break };
            let theirs = self
                .placements
                .theirs
                .get(piece.header.index as usize)
                .copied()
                .unwrap_or_default();
            let stale = theirs.generation != piece.header.generation || theirs.target.len == 0;
            if stale || !self.stream.state().writable() {
                bytes += piece.len as usize;
                self.port.placed(piece.len);
                *moved = true;
                continue;
            }
            let (at, len) = (piece.header.at, piece.header.len);
            if at.checked_add(len).is_none_or(|end| end > theirs.target.len) {
                return Err(Broken);
            }
            let n = piece.len.min(self.pair.staging_room());
            if n == 0 {
                return Ok(false);
            }
            let Some(token) = self.stream.next_direct() else { return Ok(false) };
            let addr = theirs.target.addr + u64::from(at) + u64::from(piece.done);
            let target = Sge { addr, rkey: theirs.target.rkey, len: n };
            let port = &self.port;
            let fill =
                |to: &mut [u8]| port.look_at_place(to.get_mut(..n as usize).unwrap_or(&mut []));
            match self.pair.post_filled(target, None, token, fill) {
                Ok(()) => self.outstanding += 1,
                // Its end will be polled.
                Err(PostError::Ended) => {}
                Err(PostError::Full | PostError::Unsupported) => return Err(Broken),
            }
            bytes += n as usize;
            self.port.placed(n);
            *moved = true;
        }
        Ok(true)
    }

    /// Posts what needs no credit: that mappings are no more, and answers to that. Whether there
    /// was anything.
    pub(super) fn unmappings(&mut self) -> bool {
        let mut any = false;
        while let Some(index) = self.placements.leaving.front().copied()
            && !self.placements.asked
            && self.pair.staging_room() >= Iomap::SIZE as u32
        {
            let Some(post) =
                note_word(Note::Unmapped(index)).and_then(|w| self.stream.next_unmap(index, w))
            else {
                break;
            };
            self.placements.leaving.pop_front();
            self.post_map(&post);
            self.placements.asked = self.stream.peer_answers();
            if !self.placements.asked
                && let Some(ours) = self.placements.ours.get_mut(usize::from(index))
            {
                // Whatever is told next comes after it.
                *ours = Ours::Free;
            }
            any = true;
        }
        while let Some(index) = self.placements.answers.front().copied()
            && let Some(post) = note_word(Note::Forgotten(index)).and_then(|w| self.stream.say(w))
        {
            self.placements.answers.pop_front();
            self.post(&post);
            any = true;
        }
        any
    }

    fn post_map(&mut self, post: &MapPost) {
        let posted = match post.word {
            Some(word) => self.pair.post_message(&post.bytes, post.target, word, post.token),
            None => self.pair.post_write(&post.bytes, post.target, None, post.token),
        };
        match posted {
            Ok(()) => self.outstanding += 1,
            Err(PostError::Ended) => {}
            // As for any post: slots are counted so that this cannot be.
            Err(PostError::Full | PostError::Unsupported) => self.hang_up(),
        }
    }
}

/// The word of a note that has only one.
fn note_word(note: Note) -> Option<Word> {
    note.words().next()
}

/// Maps memory of the program's on a bridged connection; the mapping's number.
///
/// # Errors
/// As errno: [`Refused`], and `EOPNOTSUPP` when the bridge is a sibling's.
///
/// # Safety
/// The memory stays mapped in the process until [`withdraw`] or [`withdraw_all`].
pub unsafe fn expose(s: &Slot, at: *mut u8, len: u32, offset: u64) -> Result<u32, Failure> {
    if s.bridge_pid.load(core::sync::atomic::Ordering::Relaxed) != sys::pid() {
        return Err(Failure::Unsupported);
    }
    let bridge = super::of(s).ok_or(Failure::NotConnected)?;
    let exposed = bridge.with(|c| {
        let pump = c.as_mut().filter(|c| c.carries(s))?.pump_mut()?;
        // SAFETY: the caller's promise.
        let exposed = unsafe { pump.expose(at, len, offset) };
        pump.run();
        Some(exposed)
    });
    // Completions of what was posted are the service thread's to hear.
    service::nudge();
    match exposed {
        Some(Some(exposed)) => Ok(exposed?),
        Some(None) => Err(Failure::NotConnected),
        None => Err(Failure::Blocked),
    }
}

/// Works on the connection's pump, if it still has one.
fn with_pump<R>(
    s: &Slot,
    f: impl FnOnce(&mut Pump<crate::device::rdma::RdmaPair>) -> R,
) -> Option<R> {
    super::of(s)?.with(|c| c.as_mut().filter(|c| c.carries(s))?.pump_mut().map(f)).flatten()
}

/// Takes a mapping back, and waits until nothing is written to it any more.
pub fn withdraw(s: &Slot, index: u32) {
    if with_pump(s, |pump| pump.withdraw(index)).is_none() {
        return;
    }
    let end = sys::now_ns().saturating_add(ANSWER_NS);
    loop {
        pump(s);
        if with_pump(s, |pump| pump.is_gone(index)) != Some(false) {
            break;
        }
        if sys::now_ns() >= end {
            with_pump(s, |pump| pump.forget(index));
            break;
        }
        super::short_sleep();
    }
    service::nudge();
}

/// Takes all mappings back, at once: the program has closed.
pub fn withdraw_all(s: &Slot) {
    with_pump(s, Pump::forget_all);
}
