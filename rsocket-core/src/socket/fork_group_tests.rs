//! Slots are taken and given up by threads while another looks for those of the dead.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::conn::fork_group::{self, Left};

#[test]
fn a_sweep_takes_nothing_from_the_living() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let group = fork_group::get_or_map().unwrap();
    let sweeper = std::thread::spawn(move || {
        while !OVER.load(Ordering::Relaxed) {
            fork_group::sweep(group);
        }
    });
    let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let mut lost = 0;
    while std::time::Instant::now() < until {
        let id = fork_group::take(0, -1).unwrap();
        let other = fork_group::take(0, -1).unwrap();
        assert_ne!(id, other);
        for id in [id, other] {
            let born = fork_group::slot(id).unwrap().generation.load(Ordering::Acquire);
            match fork_group::drop_descriptor(id, -1) {
                Left::Nobody
                    if fork_group::slot(id).unwrap().generation.load(Ordering::Acquire) == born =>
                {
                    fork_group::give_back(id);
                }
                _ => lost += 1,
            }
        }
    }
    OVER.store(true, Ordering::Relaxed);
    sweeper.join().unwrap();
    assert_eq!(lost, 0, "slots were taken from under their holder");
}
