//! Looking into a set without waiting on it, for a thread that polls its descriptor, or waits on a
//! set that it is in.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::registry::{Registry, Set};
use crate::readiness::source::{Source, Waker};

impl<S: Source> Registry<S> {
    /// The sets in this one are readable if something is ready in them, and not because something
    /// was. A wake for an event that was taken meanwhile is forgotten.
    pub(crate) fn peek_inside(&'static self, set: &'static Set<S>) {
        let inner = self.enter(set, |state| state.nested.clone()).unwrap_or_default();
        for epfd in inner {
            if !self.is_plain(epfd) {
                self.peek(epfd);
            }
        }
    }

    /// Whether a wait on this set would find something now. If not, everything is armed, so that
    /// the epoll descriptor turns readable when that changes: for a thread that is about to poll
    /// it.
    pub fn peek(&'static self, epfd: RawFd) -> bool {
        let Some(set) = self.get(epfd) else { return false };
        // An old ring would keep the epoll descriptor readable. What it was for is found below, and
        // woken again if it is still there: first the drain, then the look.
        self.enter(set, |state| {
            self.awaken(set, state);
            if let Some(waker) = state.waker {
                waker.drain();
            }
        });
        self.collect(set);
        self.enter(set, |state| {
            state.watched = true;
            let mut ready = false;
            for _ in 0..state.queue.len() {
                let Some(index) = state.queue.pop_front() else { break };
                if let Some(member) = state.get_mut(index) {
                    member.queued = false;
                    if member.warm {
                        continue;
                    }
                }
                if state.tempt(&self.source, index) {
                    state.enqueue(index);
                    ready = true;
                }
            }
            for i in 0..state.warm.len() {
                if let Some(index) = state.warm.get(i).copied() {
                    ready |= state.tempt(&self.source, index);
                }
            }
            if let (true, Some(waker)) = (ready, state.waker_id()) {
                self.source.wake(waker);
            }
            ready
        })
        .unwrap_or(false)
    }
}
