//! A thread that goes on with the pairings of the process while there are any, whatever the program
//! does. A peer that sends must not wait until our program happens to make a call. The thread
//! sleeps when nothing is left to do, and is started with the first connection. Where it cannot be
//! started, and in a forked child before its own first connection, pairings go on in the program's
//! calls alone.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::socket::soon;
use crate::sys::background::start;
use crate::sys::{self, on_word};

/// The process whose thread runs; 0 before there is one. A child inherits the number and not the
/// thread.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Counts the connections that were begun; the thread sleeps on it.
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// A connection was begun: sees to it that the thread runs and looks.
pub(super) fn wanted() {
    // Release: pairs with the acquire in run(), so that the thread finds the slot as it was left.
    BEGUN.fetch_add(1, Ordering::Release);
    let (me, owner) = (sys::pid(), OWNER.load(Ordering::Relaxed));
    if owner == me {
        on_word::wake_one_in_process(&BEGUN);
    } else if OWNER.compare_exchange(owner, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        && !start("rsocket", run)
    {
        crate::log_warn!("no thread for pairings: they go on in the program's calls alone");
    }
}

pub(crate) fn run() {
    loop {
        let seen = BEGUN.load(Ordering::Acquire);
        on_word::sleep_in_process(&BEGUN, seen, soon::attaching());
    }
}
