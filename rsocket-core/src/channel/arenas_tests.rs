//! Arenas that are idle, promised or a sibling's, in the fork group's memory.

use core::sync::atomic::Ordering;

use super::arenas::*;
use super::arenas_lock::lock;
use super::identity::Id;
use crate::conn::fork_group::{self, ForkGroup};

/// No process has this id.
const NOBODY: u32 = 0x7fff_fff0;

fn peer(name: u64) -> Peer {
    Peer { id: Id([name, name + 1]), pid: NOBODY, inode: 0 }
}

fn swept(group: &'static ForkGroup) {
    sweep(&lock(), group);
}

#[test]
fn what_is_promised_is_not_swept_away() {
    // Any socket makes the fork group.
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    assert!(fork_group::take(0, std::os::fd::AsRawFd::as_raw_fd(&socket)).is_some());
    let group = fork_group::get().unwrap();
    // Its peer has gone already: nothing else keeps it.
    let claim = claim(&peer(0x1234)).unwrap();
    let r = record(group, claim.record).unwrap();
    swept(group);
    assert!(mapped(r, claim.record), "between the claim and its use");
    settled(r, claim.channel);
    swept(group);
    assert!(!mapped(r, claim.record), "nobody wanted it");
}

/// A process that ended may have had our number.
#[test]
fn a_siblings_arena_is_not_ours_by_its_number() {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    assert!(fork_group::take(0, std::os::fd::AsRawFd::as_raw_fd(&socket)).is_some());
    let group = fork_group::get().unwrap();
    let claim = claim(&peer(0x8765)).unwrap();
    let r = record(group, claim.record).unwrap();
    set_own(claim.record, false);
    settled(r, claim.channel);
    swept(group);
    assert!(mapped(r, claim.record) && !own(r, claim.record), "left to others");
    set_own(claim.record, true);
    swept(group);
    assert!(!mapped(r, claim.record));
}

/// Who says another one's name is not let into that one's arena.
#[test]
fn a_name_alone_opens_nothing() {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    assert!(fork_group::take(0, std::os::fd::AsRawFd::as_raw_fd(&socket)).is_some());
    let group = fork_group::get().unwrap();
    let first = claim(&peer(0x9999)).unwrap();
    let same = claim(&peer(0x9999)).unwrap();
    let others = [
        Peer { pid: NOBODY - 1, ..peer(0x9999) },
        Peer { pid: 0, inode: 77, ..peer(0x9999) },
        Peer { inode: 77, ..peer(0x9999) },
    ]
    .map(|peer| claim(&peer).unwrap());
    assert_eq!(first.record, same.record);
    assert!(others.iter().all(|other| other.record != first.record && other.id != first.id));
    for claim in [first, same].iter().chain(&others) {
        settled(record(group, claim.record).unwrap(), claim.channel);
    }
    swept(group);
}

/// Another thread may attach until `exec` has ended it. What its peer has in an arena that is gone
/// would be lost.
#[test]
fn an_arena_that_comes_while_exec_begins_is_left_open() {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    assert!(fork_group::take(0, std::os::fd::AsRawFd::as_raw_fd(&socket)).is_some());
    let group = fork_group::get().unwrap();
    let closes = |claim: &Claim| {
        let fd = record(group, claim.record).unwrap().fd.load(Ordering::Relaxed);
        crate::sys::descriptor::closes_on_exec(fd).unwrap()
    };
    let before = claim(&peer(0x1111)).unwrap();
    assert!(closes(&before));
    keep_across_exec(true);
    let meanwhile = claim(&peer(0x2222)).unwrap();
    assert!(!closes(&before) && !closes(&meanwhile));
    // It has failed.
    keep_across_exec(false);
    let after = claim(&peer(0x3333)).unwrap();
    let all = [before, meanwhile, after];
    assert!(all.iter().all(closes));
    for claim in all {
        settled(record(group, claim.record).unwrap(), claim.channel);
    }
    swept(group);
}
