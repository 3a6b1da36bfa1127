//! What goes by the loopback connection under a channel, where no byte travels otherwise. A program
//! that has gone back to the kernel sends there, and a reader that has only the kernel receives
//! there.
//!
//! The marks say from which byte on ([`handover_state`]), as between two processes. One is the
//! program's end mark, behind which its bytes come from the kernel. The other says how many of the
//! channel's bytes the program had read when it asked for the rest by the kernel. Each direction is
//! one stream that way, and ends where the loopback connection does. Must not know queue pairs.
//! Entry point: [`Under`], for [`super::channel_port`] only.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::outgoing::Outgoing;
use crate::channel::handover_state;
use crate::copy::Bytes;
use crate::device::shm::channel::{Beyond, Broken, SendState, buffer_classes};
use crate::device::shm::direction::Direction;
use crate::failure::Failure;
use crate::host::kernel;
use crate::sys;

/// Bytes that are taken from the kernel at a time.
const CHUNK: usize = 16 * 1024;

/// Our end of the loopback connection, and what is on its way over it.
pub(super) struct Under {
    end: RawFd,
    /// What the program has sent so, and how much of it was taken on: nothing before the first
    /// byte.
    sent: Vec<u8>,
    taken: usize,
    /// The program sends no more.
    ended: bool,
    /// How many bytes of the channel's and the kernel's the program was given, once it has asked
    /// for them by the kernel.
    given: Option<u64>,
    /// The kernel takes no more just now.
    full: bool,
}

impl Default for Under {
    fn default() -> Self {
        Self::of(-1)
    }
}

impl Under {
    /// Over this end; -1 where the channel has no such connection.
    pub(super) fn of(end: RawFd) -> Self {
        // Reserved now, since a bridge runs in the program's calls, too.
        let sent = Vec::with_capacity(if end < 0 { 0 } else { CHUNK });
        Self { end, sent, taken: 0, ended: false, given: None, full: false }
    }

    /// Whether the program's direction has left the channel, all of which was taken: `total` bytes.
    fn is_next(&self, incoming: &Direction, total: u64) -> bool {
        self.end >= 0 && handover_state::end(incoming) == Some(total)
    }

    pub(super) fn goes_on(&self, incoming: &Direction, total: u64) -> bool {
        !self.ended && self.is_next(incoming, total)
    }

    /// Whether bytes were shown that [`Self::consumed`] has not had.
    pub(super) fn carries(&self) -> bool {
        self.taken < self.sent.len()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// What comes behind the channel's last byte.
    #[cold]
    fn behind(&mut self) -> Outgoing {
        if !self.carries() {
            self.sent.resize(CHUNK, 0);
            let to = [libc::iovec { iov_base: self.sent.as_mut_ptr().cast(), iov_len: CHUNK }];
            let came = kernel::receive(self.end, &to, CHUNK, libc::MSG_DONTWAIT);
            self.taken = 0;
            self.sent.truncate(came.unwrap_or(0));
            // A reset is the service thread's to hear of.
            self.ended |= came == Ok(0);
        }
        match self.sent.get(self.taken..) {
            _ if self.ended => Outgoing::End,
            Some(left) if !left.is_empty() => Outgoing::Bytes(left.len() as u32),
            _ => Outgoing::Nothing,
        }
    }

    pub(super) fn outgoing(&mut self, incoming: &Direction, total: u64) -> Outgoing {
        if self.is_next(incoming, total) { self.behind() } else { Outgoing::Nothing }
    }

    /// Copies the first of the bytes that were shown.
    pub(super) fn look(&self, to: &mut [u8]) {
        if let Some(left) = self.sent.get(self.taken..) {
            Bytes::from(left).copy_to(to);
        }
    }

    pub(super) fn consumed(&mut self, n: u32) {
        self.taken = self.taken.saturating_add(n as usize).min(self.sent.len());
    }

    /// Whether there is anything to take on, were it the end alone.
    #[cold]
    pub(super) fn has_outgoing(&self, incoming: &Direction, total: u64) -> bool {
        self.carries() || self.goes_on(incoming, total) && self.has_news()
    }

    fn has_news(&self) -> bool {
        let mut one =
            [libc::pollfd { fd: self.end, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let looked = sys::wait(&mut one, Some(&at_once), core::ptr::null()).is_ok();
        let [one] = one;
        looked && one.revents & libc::POLLIN != 0 && one.revents & libc::POLLERR == 0
    }

    /// Whether what comes for the program goes to the kernel.
    #[inline]
    pub(super) fn delivers(&self) -> bool {
        self.given.is_some()
    }

    /// Gives the kernel what the program has not read in the channel, if it asked for that; `state`
    /// is the sender's. False: the kernel takes no more now.
    #[inline]
    pub(super) fn hand_back(
        &mut self,
        state: &SendState,
        outgoing: &Direction,
    ) -> Result<bool, Broken> {
        if self.end < 0 || !handover_state::is_decided(outgoing) {
            Ok(true)
        } else {
            self.give(state, outgoing)
        }
    }

    #[cold]
    fn give(&mut self, state: &SendState, outgoing: &Direction) -> Result<bool, Broken> {
        let Some(wanted) = handover_state::return_wanted(outgoing) else { return Ok(true) };
        let mut at = *self.given.get_or_insert(wanted);
        if at > state.total() {
            return Err(Broken);
        }
        while at < state.total() {
            let (offset, len) =
                buffer_classes::locate(state, outgoing, at, Beyond::Bridge).ok_or(Broken)?;
            let n = self.deliver(outgoing.bytes(offset, len as usize).ok_or(Broken)?);
            if n == 0 {
                return Ok(false);
            }
            at += u64::from(n);
            self.given = Some(at);
        }
        Ok(true)
    }

    /// Gives the kernel the bytes, or the first of them; how many it took. What no process can read
    /// any more is gone, as bytes for a socket that was closed are.
    pub(super) fn deliver(&mut self, from: Bytes<'_>) -> u32 {
        let bytes = [libc::iovec { iov_base: from.at().cast_mut().cast(), iov_len: from.len() }];
        let given = kernel::send(self.end, &bytes, libc::MSG_DONTWAIT);
        self.full = given == Err(Failure::Blocked);
        match given {
            Ok(n) => n as u32,
            Err(Failure::Blocked | Failure::Interrupted) => 0,
            Err(_) => from.len() as u32,
        }
    }
}
