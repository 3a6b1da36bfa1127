//! Threads whose first sockets come at the same time: each goes by what the administrator asked
//! for, not by defaults.

use std::ffi::CStr;
use std::sync::Barrier;
use std::time::Duration;

use rsocket_core::config::policy;
use rsocket_core::socket::settings;

/// An environment that takes its time.
fn slow(name: &CStr) -> Option<&'static CStr> {
    std::thread::sleep(Duration::from_millis(5));
    (name == c"RSOCKET_TRANSPORT").then_some(c"shm")
}

#[test]
fn every_thread_knows_the_policy_from_its_first_socket() {
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                settings::resolve(slow);
                assert!(policy::strict() && policy::shm_allowed() && !policy::rdma_allowed());
            });
        }
    });
}
