//! A connection has one last owner, even when several descriptors are closed at the same time. The
//! cases are fork siblings that close at the same moment, and threads that close while other
//! threads duplicate.
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use rsocket_core::conn::fork_group::{self, Left};
use rsocket_core::conn::slot::SlotId;
use rsocket_core::sync::thread;

const CONNECTIONS: usize = 20_000;

/// Tests of one process share its fork group: a child of the one would be a holder of the other's
/// connection.
static ALONE: Mutex<()> = Mutex::new(());

/// Memory that the child of a fork shares.
#[repr(C)]
struct Shared {
    /// How far each of the two has come.
    at: [AtomicU32; 2],
    /// How many took themselves for the last owner.
    last: [AtomicU32; CONNECTIONS],
}

fn shared() -> &'static Shared {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, zeroed, never unmapped; it is only reached through atomics.
    unsafe {
        let p = mmap_anonymous(
            core::ptr::null_mut(),
            size_of::<Shared>(),
            protection,
            MapFlags::SHARED,
        );
        &*p.expect("memory").cast()
    }
}

/// Leaves one connection after the other, each at the same moment as the other process.
fn leave_all(shared: &Shared, me: usize, all: &[SlotId]) {
    for (i, id) in all.iter().enumerate() {
        shared.at[me].store(i as u32 + 1, Ordering::SeqCst);
        let mut looks = 0u32;
        while shared.at[me ^ 1].load(Ordering::SeqCst) < i as u32 + 1 {
            looks += 1;
            if looks.is_multiple_of(10_000) {
                std::thread::yield_now();
            }
        }
        if fork_group::drop_descriptor(*id, -1) == Left::Nobody {
            shared.last[i].fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn of_siblings_that_leave_together_one_is_the_last() {
    let _alone = ALONE.lock().expect("alone");
    let shared = shared();
    let all: Vec<SlotId> = (0..CONNECTIONS).filter_map(|_| fork_group::take(0, -1)).collect();
    assert_eq!(all.len(), CONNECTIONS);
    fork_group::fork_prepare();
    // SAFETY: the child only touches atomics and memory that is there, and ends by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        thread::forked();
        fork_group::fork_child();
        leave_all(shared, 1, &all);
        // SAFETY: no memory is passed.
        unsafe { libc::_exit(0) };
    }
    assert!(pid > 0);
    fork_group::fork_parent();
    leave_all(shared, 0, &all);
    // SAFETY: a child of ours, and no memory is passed.
    unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
    let counts = shared.last.iter().map(|n| n.load(Ordering::SeqCst));
    let wrong: Vec<_> = counts.enumerate().filter(|(_, n)| *n != 1).collect();
    assert!(wrong.is_empty(), "{} wrong, the first: {:?}", wrong.len(), wrong.first());
}

#[test]
fn duplicates_and_closes_of_threads_are_all_counted() {
    let _alone = ALONE.lock().expect("alone");
    let id = fork_group::take(0, -1).expect("a slot");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    fork_group::add_descriptor(id);
                    assert_eq!(fork_group::drop_descriptor(id, -1), Left::Here);
                }
            });
        }
    });
    assert_eq!(fork_group::drop_descriptor(id, -1), Left::Nobody);
}

/// One connection after the other, each left to a child that ends without closing it: as a server
/// does that forks for each.
#[test]
fn what_children_leave_is_taken_back_with_their_entries() {
    let _alone = ALONE.lock().expect("alone");
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..1500 {
        let id = fork_group::take(0, -1).expect("a slot");
        ids.insert(id.raw());
        fork_group::fork_prepare();
        // SAFETY: the child only touches atomics, and ends by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            thread::forked();
            fork_group::fork_child();
            // SAFETY: no memory is passed.
            unsafe { libc::_exit(0) };
        }
        assert!(pid > 0);
        fork_group::fork_parent();
        assert_eq!(fork_group::drop_descriptor(id, -1), Left::Elsewhere);
        // SAFETY: a child of ours, and no memory is passed.
        unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
    }
    assert!(ids.len() < 300, "{} slots were used for one connection at a time", ids.len());
}
