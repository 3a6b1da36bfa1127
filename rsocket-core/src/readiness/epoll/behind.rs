//! Edge triggering where the sender has gone back to TCP and the channel still has unread bytes.
//!
//! The member stays the device's, and has told that there is something to read; what comes by TCP
//! behind that is news all the same. So the kernel's entry asks for it beside the device, as it
//! does on the fallback. The count of what has come says whether what the kernel reports was told
//! before. It is needed, since an entry that is set anew reports what is there once more. Must not
//! know what a member reports. Entry points: [`arrived`], [`is_news`], [`State::ask_beside`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::kernel::{self, detector};
use super::set::{Entry, Member, State};
use crate::readiness::source::{Events, Progress, Source};

/// What has come by TCP so far; `None` where the device tells of everything. One that has sent its
/// end by the device has nothing more to send.
pub(super) fn arrived<S: Source>(
    source: &S,
    member: &Member,
    progress: Progress,
    wanted: Events,
) -> Option<u64> {
    if member.beside {
        // Nothing has come without a word of the entry's.
        let now = || source.arrived(member.slot, member.fd, false);
        return Some(if member.told { now() } else { member.arrived });
    }
    let new = progress.is_behind() && member.edge_triggered() && wanted.contains(Events::IN);
    (new && !progress.is_over()).then(|| source.arrived(member.slot, member.fd, false))
}

/// Whether more has come than the program was told of: on its way to the device it was told of all
/// that TCP had carried.
pub(super) fn is_news<S: Source>(source: &S, member: &Member, arrived: u64) -> bool {
    let told =
        if member.beside { member.arrived } else { source.arrived(member.slot, member.fd, true) };
    arrived != told
}

impl Member {
    /// What the kernel is asked for beside what it alone can say.
    pub(super) fn asked_beside(&self) -> Events {
        if self.beside { Events::IN } else { Events::empty() }
    }

    /// What the kernel is asked while the socket is wholly on its device.
    pub(super) fn detector(&self) -> u32 {
        detector(self.wanted()) | self.asked_beside().bits()
    }
}

impl<S: Source> State<S> {
    /// From here on the kernel is asked. It reports at once what has come since the count was
    /// taken. It also reports what the member could not tell (`due`) until the kernel has said so.
    #[cold]
    pub(super) fn ask_beside(&mut self, source: &S, index: u32, due: bool) {
        let token = self.token(index);
        let Some(member) = self.get_mut(index) else { return };
        if !due {
            member.arrived = source.arrived(member.slot, member.fd, true);
        }
        member.beside = true;
        // Where the other direction is the kernel's, that there is room is said again.
        member.echo = true;
        if member.entry == Entry::Between {
            self.set_between(source, index);
            return;
        }
        let events = member.detector() | kernel::EDGE;
        self.entry_news = true;
        if self.change(index, events, token).is_err() {
            self.drop_member(source, index);
        }
    }
}
