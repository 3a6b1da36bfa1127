//! A call that looks at what more than one carrier has. That is TCP's bytes before the switch
//! offset, the channel's, and TCP's again behind the channel's last one.
//!
//! It takes nothing, so each look begins with the first byte again, and unread bytes of TCP's hide
//! from poll(2) what comes behind them. Must not know who looks, or how long. Entry points:
//! [`behind_the_channel`], [`is_over`], [`nap`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::switch_offset::{all_here, bytes_ahead};
use crate::channel::guard::RecvGuard;
use crate::channel::unread::{in_channel, no_more_fits};
use crate::channel::{handover_state, link};
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{Slot, flag};
use crate::host::kernel;
use crate::sys::vectors::{Cursor, Rest};
use crate::sys::{self, sandbox};

/// How soon a sleeper that gets no wake for what it waits for looks again, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// Continues a look that has found TCP's bytes before the switch offset, and the channel's. It goes
/// on with what TCP has behind the channel's last byte: the sender has gone back already. `to` are
/// all the buffers, of which the cursor has used up what was found.
///
/// Stays a function: its lists are no part of the frame of every receive.
#[inline(never)]
pub(super) fn behind_the_channel(
    s: &Slot,
    fd: RawFd,
    to: &[libc::iovec],
    cursor: &mut Cursor<'_>,
    flags: i32,
) {
    if s.receive_mode() != ReceiveMode::Acknowledged || cursor.left() == 0 || sandbox::inside() {
        return;
    }
    let Some(ends) = link::ends(s).filter(|ends| handover_state::end(&ends.incoming).is_some())
    else {
        return;
    };
    let Some(guard) = RecvGuard::take(s, &ends) else { return };
    if let Some(ahead) = ahead_of_all(&guard, fd, cursor.done()) {
        let n = past(fd, to, ahead, cursor, flags);
        cursor.advance(n);
    }
}

/// How many bytes TCP has before the switch offset, if they and the channel's last ones are the
/// `found`.
fn ahead_of_all(guard: &RecvGuard<'_>, fd: RawFd, found: usize) -> Option<usize> {
    let (s, ends, state) = (guard.s, guard.ends, guard.view());
    let switch_offset = handover_state::switch_offset(&ends.incoming)
        .filter(|_| s.receive_mode() == ReceiveMode::Acknowledged)?;
    let here = in_channel(state, ends);
    let all = handover_state::end(&ends.incoming) == Some(state.total().wrapping_add(here as u64));
    let ahead = bytes_ahead(fd, ends, switch_offset).ok()??;
    (all && ahead.checked_add(here) == Some(found)).then_some(ahead)
}

/// Looks at TCP's bytes once more, the first `ahead` into the buffers where they are already, and
/// those behind them into what is left. How many of these there are.
fn past(fd: RawFd, to: &[libc::iovec], ahead: usize, cursor: &Cursor<'_>, flags: i32) -> usize {
    let none = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    let mut list = [none; Rest::MOST];
    let mut missing = ahead;
    let again = to.iter().map_while(|v| {
        let len = v.iov_len.min(missing);
        let more = missing > 0;
        missing -= len;
        more.then_some(libc::iovec { iov_base: v.iov_base, iov_len: len })
    });
    let rest = cursor.rest();
    let mut count = 0;
    for (into, v) in list.iter_mut().zip(again.chain(rest.list().iter().copied())) {
        *into = v;
        count += 1;
    }
    let list = list.get(..count).unwrap_or_default();
    let kept = libc::MSG_PEEK | libc::MSG_TRUNC;
    kernel::receive(fd, list, usize::MAX, flags & kept).map_or(0, |n| n.saturating_sub(ahead))
}

/// Whether nothing more will come before what is here is taken, or nothing that belongs to the same
/// call.
pub(super) fn is_over(s: &Slot, fd: RawFd) -> bool {
    if s.has(flag::LOST | flag::ENDED) {
        return true;
    }
    let mode = s.receive_mode();
    if matches!(mode, ReceiveMode::Acknowledged | ReceiveMode::Device) {
        let Some(ends) = link::ends(s) else { return true };
        let Some(guard) = RecvGuard::take(s, &ends) else { return true };
        let full = no_more_fits(guard.view(), &ends, link::beyond(s));
        drop(guard);
        let tcp_has_its_part = || {
            mode == ReceiveMode::Device
                || handover_state::switch_offset(&ends.incoming).is_some_and(|n| all_here(fd, n))
        };
        if full && tcp_has_its_part() {
            return true;
        }
    }
    // Beside TCP its FIN says nothing of what the device still brings.
    !s.has(flag::TCP_ANCHORED) && has_ended(fd)
}

/// Whether TCP has come to its end, or to an urgent byte, which no call reads past.
fn has_ended(fd: RawFd) -> bool {
    let mut one = [libc::pollfd { fd, events: libc::POLLRDHUP | libc::POLLPRI, revents: 0 }];
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(sys::wait(&mut one, Some(&at_once), core::ptr::null()), Ok(1..))
}

/// How soon a sleeper must look again, in nanoseconds, where the kernel has or may get a part of
/// what is waited for. The kernel does not say when that is enough to a sleeper that has looked at
/// some of it (`peeks`). Nor does it where `SO_RCVLOWAT` asks for more than a byte, which the
/// kernel takes for the measure of its own part.
pub(super) fn nap(s: &Slot, peeks: bool) -> Option<u64> {
    // Relaxed: a setting of the program; a call that races with it may see either.
    if !peeks && s.low_water.load(Ordering::Relaxed) <= 1 {
        return None;
    }
    let kernels = match s.receive_mode() {
        ReceiveMode::Device => {
            link::ends(s).is_some_and(|ends| handover_state::end(&ends.incoming).is_some())
        }
        // Where TCP is not used, what is waited for is the channel.
        ReceiveMode::Kernel => !s.has(flag::STRICT),
        ReceiveMode::Asked | ReceiveMode::Acknowledged | ReceiveMode::Returned => true,
    };
    kernels.then_some(LOOK_AGAIN_NS)
}
