//! One socket is in two epoll sets of a process, and one ready bit speaks for both. A proxy has
//! this when its threads take idle connections over from one another.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use readiness_support::*;

/// The peer wakes one set first. It wakes the other set only while the first one looks which set
/// the bit is for. By then that look may have passed the other set.
#[test]
fn each_hears_however_the_peer_is_held_up() {
    for first in [0, 1] {
        let (a, b, c) = (Ep::new(), Ep::new(), Conn::settled());
        a.add(c.fd(), IN, 1);
        b.add(c.fd(), IN, 2);
        assert!(a.soon().is_empty() && b.soon().is_empty(), "both sleep, and are armed");
        c.deliver_in_two_steps(5, first);
        let (earlier, later) = if first == 0 { (&a, &b) } else { (&b, &a) };
        let (one, other) = if first == 0 { (1, 2) } else { (2, 1) };
        assert_eq!(earlier.told(), [(IN, one)]);
        // Where the other set was not looked at in between, the peer goes on now.
        if let Some(act) = MEANWHILE.lock().unwrap().take() {
            act();
        }
        assert_eq!(later.told(), [(IN, other)], "first {first}");
    }
}
