//! Every combination of flags that legal changes lead to, and no other.
//!
//! A change is judged by the rows that it touches ([`Row::allows`]). Here the same is found out in
//! another way: a word of flags is sound when every row of it stands.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use super::*;

fn is_sound(flags: u32) -> bool {
    TABLE.iter().all(|row| row.stands_among(flags))
}

fn with_life(life: Life) -> u32 {
    TABLE.iter().filter(|row| row.life == life).fold(0, |all, row| all | row.bit)
}

/// The flags with which slots begin: those of birth, with what they need.
fn births() -> BTreeSet<u32> {
    let needed = |flags: u32| {
        TABLE.iter().filter(|row| flags & row.bit != 0).fold(flags, |all, row| all | row.implies)
    };
    parts(with_life(Life::Born)).into_iter().map(needed).filter(|flags| is_sound(*flags)).collect()
}

/// Every part of a set of flags, the whole and nothing included.
fn parts(whole: u32) -> Vec<u32> {
    let mut found = vec![0];
    while *found.last().unwrap() != whole {
        found.push((found.last().unwrap() | !whole).wrapping_add(1) & whole);
    }
    found
}

/// The flags that are not of birth, in groups: no row has anything to do with two of them. What is
/// true of each group on its own is true of all together.
fn groups() -> Vec<u32> {
    let changing = ALL & !with_life(Life::Born);
    let mut groups: Vec<u32> = vec![];
    for row in TABLE.iter().filter(|row| row.bit & changing != 0) {
        let mut group = (row.bit | row.implies | row.excludes) & changing;
        groups.retain(|other| {
            let apart = other & group == 0;
            group |= if apart { 0 } else { *other };
            apart
        });
        groups.push(group);
    }
    groups
}

/// All that legal changes of a group's flags lead to, from a slot that begins so. A change may be
/// of any of them at a time.
fn reachable(birth: u32, group: u32) -> BTreeSet<u32> {
    let every: Vec<u32> = parts(group).into_iter().map(|part| birth & !group | part).collect();
    let mut found = BTreeSet::from([birth]);
    let mut new = vec![birth];
    while let Some(flags) = new.pop() {
        for next in every.iter().filter(|next| objection(flags, **next).is_none()) {
            if found.insert(*next) {
                new.push(*next);
            }
        }
    }
    found
}

/// Every combination of those flags that legal changes lead to, one group at a time.
pub(in crate::conn) fn legal() -> BTreeSet<u32> {
    let groups = groups();
    let of = |birth: u32| groups.iter().flat_map(move |group| reachable(birth, *group));
    births().into_iter().flat_map(of).collect()
}

#[test]
fn each_flag_has_a_row_and_a_bit_of_its_own() {
    assert_eq!(ALL.count_ones() as usize, TABLE.len());
    assert!(TABLE.iter().all(|row| row.bit.is_power_of_two()));
    assert!(TABLE.iter().is_sorted_by_key(|row| row.bit));
    let names: BTreeSet<_> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), TABLE.len());
}

#[test]
fn each_row_says_what_it_means_in_one_sentence() {
    for row in TABLE {
        let said = row.meaning.trim();
        assert!(said.ends_with('.') && !said.contains(". "), "{}: {said}", row.name);
        assert!(said.split_whitespace().count() <= 25, "{}: {said}", row.name);
    }
}

#[test]
fn no_row_contradicts_another() {
    for row in TABLE {
        assert_eq!(row.implies & row.excludes, 0, "{}", row.name);
        assert_eq!((row.implies | row.excludes) & row.bit, 0, "{}", row.name);
        let twice = TABLE.iter().find(|o| o.excludes & row.bit != 0 && row.excludes & o.bit != 0);
        assert!(twice.is_none(), "{} and {twice:?}: one of the two says it", row.name);
    }
    let mut reached = 0;
    for birth in births() {
        for group in groups() {
            reached |= reachable(birth, group).iter().fold(0, |all, flags| all | flags);
        }
    }
    assert_eq!(reached, ALL, "each can come to stand");
}

#[test]
fn legal_changes_lead_to_every_sound_combination_and_to_no_other() {
    for birth in births() {
        assert!(is_sound(birth));
        let mut groups_covered = 0;
        for group in groups() {
            assert_eq!(groups_covered & group, 0);
            groups_covered |= group;
            let every = parts(group).into_iter().map(|part| birth & !group | part);
            // What a flag of birth brings with it may not go, and so cannot be without.
            let sound: BTreeSet<u32> = every.filter(|flags| is_sound(*flags)).collect();
            assert_eq!(reachable(birth, group), sound, "birth {birth:#x}, group {group:#x}");
        }
        assert_eq!(groups_covered, ALL & !with_life(Life::Born));
    }
}

/// From every combination that is reachable, every change, legal or not.
#[test]
fn a_change_is_legal_when_its_result_is_sound_and_nothing_goes_that_stays() {
    let (born, stays) = (with_life(Life::Born), with_life(Life::Born) | with_life(Life::Once));
    let mut changes = 0_u32;
    for birth in births() {
        for group in groups() {
            let group = group | born;
            for old in reachable(birth, group & !born) {
                for new in parts(group).into_iter().map(|part| birth & !group | part) {
                    let (came, went) = (new & !old, old & !new);
                    let legal = is_sound(new) && came & born == 0 && went & stays == 0;
                    assert_eq!(objection(old, new).is_none(), legal, "{old:#x} to {new:#x}");
                    changes += 1;
                }
            }
        }
    }
    assert!(changes > 100_000, "{changes}");
}

/// What a connection is, or is about to be: one of these, whatever else is true of it.
#[test]
fn a_connection_is_one_thing_at_a_time() {
    let kinds = BRIDGED | PENDING | UNREACHED | BRIDGE_LISTENS | TCP_ANCHORED | LOST | DATAGRAM;
    let found: BTreeSet<u32> = legal().into_iter().map(|flags| flags & kinds).collect();
    let expected = [
        0, // TCP, or shared memory
        BRIDGED,
        BRIDGED | PENDING,
        BRIDGED | UNREACHED,
        BRIDGED | TCP_ANCHORED,
        BRIDGED | TCP_ANCHORED | LOST,
        BRIDGE_LISTENS,
        DATAGRAM,
    ];
    assert_eq!(found, BTreeSet::from(expected));
}

/// A thread is judged by what stood when its change was made, not by what it last read.
#[test]
fn changes_of_two_threads_are_each_judged_on_what_stood() {
    // Two that exclude each other: whichever comes second is the mistake.
    assert!(objection(0, UNREACHED | BRIDGED).is_none());
    assert!(objection(BRIDGED | UNREACHED, BRIDGED | UNREACHED | PENDING).is_some());
    // What does not concern the change is not blamed on it.
    assert!(objection(PENDING, PENDING | WAITED).is_none());
    // In two steps there is a moment at which both stand, or neither.
    assert!(objection(BRIDGED | PENDING, BRIDGED | PENDING | UNREACHED).is_some());
    assert!(objection(BRIDGED | PENDING, BRIDGED | UNREACHED).is_none());
}
