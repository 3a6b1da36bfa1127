//! The sending end of a channel: the one place that puts messages into a message ring.
//!
//! A message is reserved, filled and committed; a reservation that is dropped never was. Committing
//! is two stores, the ring's and the state's, in this order. A sender that dies between them has
//! told the receiver. The next sender finds the state after the message in the spare copy
//! (`life-of-a-connection §6`). Must not know whose bytes they are, nor who waits for them. Entry
//! point: [`Sender`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::Broken;
use super::buffer_classes::{LARGE, SMALL, offset_of};
use super::state::SendState;
use crate::direction::Direction;
use crate::layout;
use rsocket_host::copy::{Bytes, CopyHint};
use rsocket_sync::guarded::Held;
use rsocket_wire::sge::Sge;
use rsocket_wire::word::{Message, Word};

/// The most bytes of one message: small enough that the receiver starts while the rest is being
/// written.
pub const PIECE: usize = 64 * 1024;

/// Why there is no reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The receiver has promised no more buffer, or no more messages.
    Full,
    /// What it has promised lies nowhere.
    Broken,
}

/// The sending end, of the thread that holds its state.
pub struct Sender<'a> {
    state: Held<'a, SendState>,
    to: &'a Direction,
}

impl<'a> Sender<'a> {
    /// The end that has this state, of this direction.
    #[inline(always)]
    #[must_use]
    pub const fn new(state: Held<'a, SendState>, to: &'a Direction) -> Self {
        Self { state, to }
    }

    /// What it knows.
    #[inline(always)]
    #[must_use]
    pub fn state(&self) -> &SendState {
        self.state.view()
    }

    /// Room for a message of at most `wanted` bytes. Short ones go to the small class, long ones to
    /// the large, and either to the other when its own is full.
    ///
    /// # Errors
    /// There is none.
    #[inline]
    pub fn reserve(&mut self, wanted: u32) -> Result<Reservation<'_>, Refused> {
        let [small, large] = &self.state().classes;
        let in_small = || small.next_place(wanted).map(|place| (SMALL, place));
        let in_large = || large.next_place(wanted).map(|place| (LARGE, place));
        let found = if wanted as usize > layout::SMALL {
            in_large().or_else(in_small)
        } else {
            in_small().or_else(in_large)
        };
        let (class, place) = found.ok_or(Refused::Full)?;
        let position = self.state().data_position;
        self.reservation(class, position, place).ok_or(Refused::Broken)
    }

    /// Room for all `len` bytes of a short message in the small class. The message's lines are
    /// asked for at once, so that they come from the receiver's cache while the caller is still
    /// about to write them.
    #[inline(always)]
    pub fn reserve_short(&mut self, len: u32) -> Option<Reservation<'_>> {
        let state = self.state();
        let ([small, _], position) = (&state.classes, state.data_position);
        let place = small.whole_place(len)?;
        self.to.claim(position, place.addr, len as usize);
        self.reservation(SMALL, position, place)
    }

    #[inline(always)]
    fn reservation(&mut self, class: usize, position: u32, place: Sge) -> Option<Reservation<'_>> {
        let (offset, len) = (place.addr, place.len);
        let at = self.to.payload(offset, len as usize)?;
        let (state, to) = (self.state.reborrow(), self.to);
        Some(Reservation { state, to, position, class, offset, at, len, filled: 0 })
    }

    /// Before a message of `wanted` bytes: takes what the receiver gave back, if the class that
    /// suits the message has no room. So a chatty connection stays in its few pages.
    ///
    /// # Errors
    /// [`Broken`], of what was given back.
    #[inline]
    pub fn make_room(&mut self, wanted: usize) -> Result<(), Broken> {
        let suits = if wanted > layout::SMALL { LARGE } else { SMALL };
        let full = self.state().classes.get(suits).is_none_or(|half| half.room() == 0);
        if full { self.refresh() } else { Ok(()) }
    }

    /// Takes what the receiver gave back: credits and buffer.
    ///
    /// # Errors
    /// [`Broken`], and nothing was taken.
    #[inline(never)]
    pub fn refresh(&mut self) -> Result<(), Broken> {
        self.take_back(|| Ok::<_, Broken>(()))
    }

    /// As [`Self::refresh`]. A model of a sender that dies on the way has `step` fail there.
    ///
    /// # Errors
    /// As [`Self::refresh`], and that of `step`.
    #[cfg(shuttle)]
    pub fn refresh_in_steps<E: From<Broken>>(
        &mut self,
        step: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.take_back(step)
    }

    #[inline(always)]
    fn take_back<E: From<Broken>>(
        &mut self,
        mut step: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.draft();
        while let Some(word) = self.to.poll_control(state.control_position) {
            state.control_position = state.control_position.wrapping_add(1);
            step()?;
            given_back(&mut state, self.to, word)?;
        }
        step()?;
        state.flip();
        Ok(())
    }

    /// Says that this direction is over. False when that was said before.
    pub fn shut(&mut self) -> bool {
        let mut state = self.state.draft();
        let [small, large] = &mut state.classes;
        let word = small.shut();
        large.shut();
        let Some(word) = word else { return false };
        let position = state.data_position;
        state.data_position = position.wrapping_add(1);
        self.to.publish_data(position, word.0);
        state.flip();
        true
    }
}

/// Credits for more messages, and with them perhaps a buffer.
fn given_back(state: &mut SendState, to: &Direction, word: u32) -> Result<(), Broken> {
    let class = if word & layout::LARGE_CLASS != 0 { LARGE } else { SMALL };
    let plain = word & !(layout::LARGE_CLASS | layout::WITH_ENTRY);
    let Ok(Message::Sgl(limit)) = Word(plain).message() else { return Err(Broken) };
    let half = state.classes.get_mut(class).ok_or(Broken)?;
    if word & layout::WITH_ENTRY != 0 {
        // The word says that the entry is new, so that the entry need not be emptied. A sender that
        // dies here leaves word and entry to the next one.
        let index = half.expected_entry().ok_or(Broken)?;
        let entry = to.peek_entry(class * layout::SEGMENTS + index as usize);
        offset_of(&entry).ok_or(Broken)?;
        half.on_entry(index, entry).map_err(|_| Broken)?;
    }
    half.on_credit(u32::from(limit)).map_err(|_| Broken)
}

/// Room for one message. Dropped, it is as if there had been none: the receiver has not heard of
/// what was filled in.
#[must_use]
pub struct Reservation<'a> {
    state: Held<'a, SendState>,
    to: &'a Direction,
    /// Of its word, in the message ring.
    position: u32,
    class: usize,
    /// In the receive buffer, where it has `len` bytes.
    offset: u64,
    at: *mut u8,
    len: u32,
    filled: u32,
}

impl<'a> Reservation<'a> {
    /// How many bytes it has room for, at least one.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// How many messages there were before it, as far as a `u32` counts.
    #[inline(always)]
    #[must_use]
    pub const fn position(&self) -> u32 {
        self.position
    }

    /// Copies bytes behind those that it has. False, and nothing done, where they do not fit.
    ///
    /// # Safety
    /// `from` is readable for `n` bytes and outside the arena.
    #[must_use]
    #[inline(always)]
    pub unsafe fn fill(&mut self, from: *const u8, n: usize, hint: CopyHint) -> bool {
        if n > (self.len - self.filled) as usize {
            return false;
        }
        // SAFETY: filled + n is at most len, of which the buffer has as many bytes behind `at`; the
        // rest is our caller's promise.
        unsafe { self.to.fill(self.at.add(self.filled as usize), from, n, hint) };
        self.filled += n as u32;
        true
    }

    /// As [`Self::fill`], with bytes that a bridge has; false also where they are those of this
    /// very place.
    #[must_use]
    #[inline]
    pub fn fill_near(&mut self, from: Bytes<'_>) -> bool {
        let (at, to) = (from.at().addr(), self.at.addr());
        let apart = at.saturating_add(from.len()) <= to || to + self.len() <= at;
        // SAFETY: readable (Bytes), and not where they are written to.
        apart && unsafe { self.fill(from.at(), from.len(), CopyHint::Near) }
    }

    /// Has `fill` write into the memory itself, `len` bytes behind a pointer, and say how many it
    /// has; more than there are count as all. Replaces what was filled in before.
    #[inline]
    pub fn fill_by(&mut self, fill: impl FnOnce(*mut u8, usize) -> Option<usize>) -> Option<usize> {
        let n = fill(self.at, self.len())?.min(self.len());
        self.filled = n as u32;
        Some(n)
    }

    /// The message is the receiver's from here on, with as many bytes as were filled in, whatever
    /// becomes of this process. With none it is dropped. The state after it.
    #[inline(always)]
    pub fn commit(self) -> &'a SendState {
        match self.in_steps(|_| Ok::<_, core::convert::Infallible>(())) {
            Ok(state) => state,
            Err(never) => match never {},
        }
    }

    /// As [`Self::commit`], of a message by [`Sender::reserve_short`]. Asks for the lines of the
    /// messages that may follow if they are like it; the receiver has no use for these now.
    #[inline(always)]
    pub fn commit_before_others(self) -> &'a SendState {
        let (to, position) = (self.to, self.position);
        let (end, len) = (self.offset + u64::from(self.filled), self.filled as usize);
        let state = self.commit();
        to.claim_ahead(position, end, len);
        state
    }

    /// As [`Self::commit`]. A model of a sender that dies on the way has `step` fail there.
    ///
    /// # Errors
    /// That of `step`.
    #[cfg(shuttle)]
    pub fn commit_in_steps<E>(
        self,
        step: impl FnMut(Step) -> Result<(), E>,
    ) -> Result<&'a SendState, E> {
        self.in_steps(step)
    }

    #[inline(always)]
    pub(super) fn in_steps<E>(
        self,
        mut step: impl FnMut(Step) -> Result<(), E>,
    ) -> Result<&'a SendState, E> {
        let Self { state, to, position, class, filled, .. } = self;
        let small = class == SMALL;
        // What is done to it for a message in the small class is what `follow` can do again.
        let mut state = state.into_amended(SendState::follow);
        step(Step::Copied)?;
        let [in_small, in_large] = &mut state.classes;
        let half = if small { in_small } else { in_large };
        let word = if filled == 0 { None } else { half.placed(filled) };
        let Some(word) = word else { return Ok(state.unchanged()) };
        state.data_position = position.wrapping_add(1);
        step(Step::Written)?;
        // The spare copy is whole before the message is published (Release). So a sender that finds
        // the message published after our death can roll forward to that copy.
        to.publish_data(position, if small { word.0 } else { word.0 | layout::LARGE_CLASS });
        step(Step::Published)?;
        Ok(if small { state.flip_amended() } else { state.flip() })
    }
}

/// How far a commit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The spare copy is as the valid one.
    Copied,
    /// The spare copy is that of after the message.
    Written,
    /// The receiver has the message.
    Published,
}
