//! The receiving end of a channel: the one place that takes messages out, and that gives room back.
//!
//! What is taken is taken on a draft of the state: dropped before its commit, it was only looked
//! at. Giving room back is two stores, the credit ring's and the state's, in this order, as sending
//! is ([`super::sender`]). Must not know whose buffers they are, nor what the end of a stream
//! means. Entry point: [`Receiver`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::Broken;
use super::buffer_classes::{LARGE, SMALL, class_start, entry};
use super::state::RecvState;
use crate::direction::Direction;
use crate::layout::{self, DATA_RING, SEGMENTS};
use rsocket_host::copy::CopyHint;
use rsocket_sync::guarded::{Draft, Held};
use rsocket_wire::sge::Sge;
use rsocket_wire::word::{Ctrl, Message, Word};

/// A word of the message ring, read once: its sender may change it.
#[derive(Clone, Copy, Debug)]
pub struct Arrived(u32);

impl Arrived {
    /// Whether it announces bytes, as far as one can say before it is checked.
    #[inline(always)]
    #[must_use]
    pub fn is_bytes(self) -> bool {
        matches!(Word(self.0).message(), Ok(Message::Data(_)))
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So many bytes in a row, at least one.
    Bytes(u32),
    /// Nothing yet.
    Nothing,
    /// Nothing, now or ever: the sender said that the stream is over.
    End,
}

/// The first bytes that can be taken.
#[derive(Clone, Copy, Debug)]
pub enum First {
    /// They are of the current message.
    Here,
    /// They are announced by this word.
    Arrived(Arrived),
    /// There are none: nothing has come, or something else.
    Nothing,
}

/// The receiving end, of the thread that holds its state.
pub struct Receiver<'a> {
    state: Held<'a, RecvState>,
    from: &'a Direction,
}

impl<'a> Receiver<'a> {
    /// The end that has this state, of this direction.
    #[inline(always)]
    #[must_use]
    pub const fn new(state: Held<'a, RecvState>, from: &'a Direction) -> Self {
        Self { state, from }
    }

    /// What it knows.
    #[inline(always)]
    #[must_use]
    pub fn state(&self) -> &RecvState {
        self.state.view()
    }

    /// The word behind the current message, once it is there.
    #[inline(always)]
    #[must_use]
    pub fn arrived(&self) -> Option<Arrived> {
        self.from.poll_data(self.state().data_position).map(Arrived)
    }

    /// What can be taken without asking anything else.
    #[inline(always)]
    #[must_use]
    pub fn first(&self) -> First {
        let state = self.state();
        if state.ended != 0 {
            First::Nothing
        } else if state.readable() > 0 {
            First::Here
        } else {
            let word = self.from.poll_data(state.data_position).map(Arrived);
            word.filter(|word| word.is_bytes()).map_or(First::Nothing, First::Arrived)
        }
    }

    /// Begins to take messages.
    #[inline(always)]
    pub fn take(self) -> Taking<'a> {
        // What is done to it for messages in the small class is what `follow` can do again.
        let state = self.state.into_amended(RecvState::follow);
        let small = state.current as usize == SMALL;
        Taking { state, from: self.from, small }
    }

    /// How many bytes more lie right behind those of the current message, in whole messages that
    /// have come since; at most `most`. None behind a word before which `stops` says so.
    #[must_use]
    pub fn adjoining(&self, most: u32, stops: impl Fn() -> bool) -> u32 {
        let state = self.state();
        let most = most.min(state.reading().behind());
        let mut bytes = 0;
        for n in 0..DATA_RING {
            let Some(word) = self.from.poll_data(state.data_position.wrapping_add(n)) else {
                break;
            };
            // Behind the word: what was done before this message is seen by now.
            if stops() {
                break;
            }
            let Ok(Message::Data(len)) = Word(word).message() else { break };
            let class = u32::from(len & layout::LARGE_CLASS != 0);
            let len = len & !layout::LARGE_CLASS;
            if class != state.current || len > most - bytes {
                break;
            }
            bytes += len;
        }
        let all = (state.readable() + bytes) as usize;
        if self.from.payload(state.next_bytes(), all).is_some() { bytes } else { 0 }
    }

    /// Copies the first bytes of the current message, and of those [adjoining](Self::adjoining) it,
    /// and takes nothing.
    #[inline]
    pub fn look(&self, to: &mut [u8]) {
        if let Some(bytes) = self.from.bytes(self.state().next_bytes(), to.len()) {
            bytes.copy_to(to);
        }
    }

    /// Gives back what is due, buffers and credits, one step at a time: each is found whole by a
    /// receiver that comes after our death.
    #[inline(never)]
    pub fn give_back(&mut self) {
        while self.state().owes() {
            match self.give_one(|_| Ok::<_, core::convert::Infallible>(())) {
                Ok(true) => {}
                Ok(false) => return,
                Err(never) => match never {},
            }
        }
    }

    /// As [`Self::give_back`]. A model of a receiver that dies on the way has `step` fail there.
    ///
    /// # Errors
    /// That of `step`.
    #[cfg(shuttle)]
    pub fn give_back_in_steps<E>(
        &mut self,
        mut step: impl FnMut(Giving) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.state().owes() && self.give_one(&mut step)? {}
        Ok(())
    }

    /// The next update that the state owes the sender; false where there is none.
    #[inline(always)]
    pub(super) fn give_one<E>(
        &mut self,
        mut step: impl FnMut(Giving) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut state = self.state.draft();
        let Some((word, named)) = next_update(&mut state) else { return Ok(false) };
        let position = state.control_position;
        state.control_position = position.wrapping_add(1);
        let short = named.is_some_and(|(index, _)| index < SEGMENTS);
        state.owed = state.owed.saturating_add(if short { 1 } else { WAKE_AT });
        step(Giving::Written)?;
        // The entry first, then the word that announces it.
        if let Some((index, entry)) = named {
            self.from.post_entry(index, entry);
            step(Giving::Posted)?;
        }
        self.from.publish_control(position, word);
        step(Giving::Published)?;
        state.flip();
        Ok(true)
    }

    /// The sender is going to be woken for what was given back.
    pub fn told(&mut self) {
        let mut state = self.state.draft();
        state.owed = 0;
        state.flip();
    }
}

/// What has been given back when a sender that sleeps is woken, in segments of the small class. One
/// of the large class is as much, and so are credits, which are given back by half a class: poll
/// calls the connection writable then ([`SendState::hint`]).
pub const WAKE_AT: u32 = SEGMENTS as u32 / 2;

/// How far giving one thing back has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Giving {
    /// The spare copy is that of after it.
    Written,
    /// The entry is in the target table.
    Posted,
    /// The sender has been told.
    Published,
}

/// The word of the next update, and the entry that comes with it; the state counts it as said.
fn next_update(state: &mut RecvState) -> Option<(u32, Option<(usize, Sge)>)> {
    for class in [SMALL, LARGE] {
        let update = state.classes.get_mut(class).and_then(|half| half.next_update(false));
        let Some(update) = update else { continue };
        let word = update.word.0 | (class as u32 * layout::LARGE_CLASS);
        return Some(match update.entry {
            None => (word, None),
            Some((index, region)) => (
                word | layout::WITH_ENTRY,
                Some((class * SEGMENTS + index as usize, entry(class, region))),
            ),
        });
    }
    None
}

/// Messages that are being taken. Dropped, none was: what was copied is a copy.
#[must_use]
pub struct Taking<'a> {
    state: Draft<'a, RecvState>,
    from: &'a Direction,
    /// All was done in the small class.
    small: bool,
}

impl<'a> Taking<'a> {
    /// What the end knows when this is committed.
    #[inline(always)]
    #[must_use]
    pub fn state(&self) -> &RecvState {
        &self.state
    }

    /// The word behind the current message, once it is there.
    #[inline(always)]
    #[must_use]
    pub fn arrived(&self) -> Option<Arrived> {
        self.from.poll_data(self.state.data_position).map(Arrived)
    }

    /// Takes up the word that has [`arrived`](Self::arrived), when the current message is read.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline(always)]
    pub fn accept(&mut self, word: Arrived) -> Result<(), Broken> {
        self.state.data_position = self.state.data_position.wrapping_add(1);
        match Word(word.0).message() {
            Ok(Message::Data(len)) => {
                let large = len & layout::LARGE_CLASS != 0;
                self.state.current = u32::from(large);
                self.small &= !large;
                self.state.half().on_data(len & !layout::LARGE_CLASS).map_err(|_| Broken)
            }
            Ok(Message::Ctrl(Ctrl::Shutdown | Ctrl::Disconnect)) => {
                self.state.ended = 1;
                self.small = false;
                Ok(())
            }
            // `wire-protocol §4.1`: other words are no-ops; but only a broken peer sends them in
            // this ring.
            _ => Err(Broken),
        }
    }

    /// What comes next, after what was taken.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an iterator has no errors")]
    pub fn next(&mut self) -> Result<Next, Broken> {
        loop {
            match self.state.readable() {
                0 if self.state.ended != 0 => return Ok(Next::End),
                0 => {}
                n => return Ok(Next::Bytes(n)),
            }
            let Some(word) = self.arrived() else { return Ok(Next::Nothing) };
            self.accept(word)?;
        }
    }

    /// Takes the first `n` bytes of the current message, which has so many: copies them.
    ///
    /// # Errors
    /// [`Broken`], where the message lies outside the buffer.
    ///
    /// # Safety
    /// `to` is writable for `n` bytes and outside the arena.
    #[inline(always)]
    pub unsafe fn copy_out(&mut self, n: u32, to: *mut u8, hint: CopyHint) -> Result<(), Broken> {
        let start = class_start(self.state.current);
        let half = self.state.half();
        let offset = start + u64::from(half.next_read().offset);
        // SAFETY: our caller's promise.
        if !unsafe { self.from.read(offset, n as usize, to, hint) } {
            return Err(Broken);
        }
        half.on_read(n);
        Ok(())
    }

    /// Takes the first `n` bytes of the current message, which go nowhere, or went already.
    #[inline(always)]
    pub fn skip(&mut self, n: u32) {
        self.state.half().on_read(n);
    }

    /// Where the current message lies, all of it. The direction has the memory as long as its arena
    /// is mapped, and the sender may change it.
    ///
    /// # Errors
    /// [`Broken`], where it lies outside the buffer.
    #[inline]
    pub fn memory(&self) -> Result<*mut u8, Broken> {
        let (offset, n) = (self.state.next_bytes(), self.state.readable());
        self.from.payload(offset, n as usize).ok_or(Broken)
    }

    /// What was taken is taken. The state after it.
    #[inline(always)]
    pub fn commit(self) -> &'a RecvState {
        if self.small { self.state.flip_amended() } else { self.state.flip() }
    }
}
