//! Arenas that are idle, promised or a relative's, in the family's memory.

use super::arenas::*;
use super::hello::Id;
use crate::conn::family::{self, Family};

/// No process has this id.
const NOBODY: u32 = 0x7fff_fff0;

fn swept(family: &'static Family) {
    let _held = lock();
    sweep(family);
}

#[test]
fn what_is_promised_is_not_swept_away() {
    // Any socket makes the family.
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    assert!(family::take(0, std::os::fd::AsRawFd::as_raw_fd(&socket)).is_some());
    let family = family::get().unwrap();
    // Its peer has gone already: nothing else keeps it.
    let claim = claim(Id([0x1234, 0x5678]), NOBODY).unwrap();
    let r = record(family, claim.record).unwrap();
    swept(family);
    assert!(mapped(r, claim.record), "between the claim and its use");
    settled(r, claim.window);
    swept(family);
    assert!(!mapped(r, claim.record), "nobody wanted it");
}

/// A process that ended may have had our number.
#[test]
fn a_relatives_arena_is_not_ours_by_its_number() {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    assert!(family::take(0, std::os::fd::AsRawFd::as_raw_fd(&socket)).is_some());
    let family = family::get().unwrap();
    let claim = claim(Id([0x8765, 0x4321]), NOBODY).unwrap();
    let r = record(family, claim.record).unwrap();
    set_own(claim.record, false);
    settled(r, claim.window);
    swept(family);
    assert!(mapped(r, claim.record) && !own(r, claim.record), "left to others");
    set_own(claim.record, true);
    swept(family);
    assert!(!mapped(r, claim.record));
}
