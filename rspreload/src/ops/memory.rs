//! `mlockall`: what the program has locked is not to grow by memory of ours that is not in use.
//!
//! Must not know how that is done (`rsocket_host::facts::locking`). Its hook is its entry point.

use rsocket_edge::channel::arenas;
use rsocket_edge::conn::fork_group;
use rsocket_host::objects::Object;

use crate::edge::keeping_errno;

/// What of our memory is large and sparse: what the kernel gave the library zeroed, the fork group,
/// the arenas.
pub(crate) fn of_the_library(f: &mut dyn FnMut(usize, usize)) {
    keeping_errno(|| {
        if let Some((at, length)) = Object::this().zeroed() {
            f(at, length);
        }
        if let Some((at, length)) = fork_group::range() {
            f(at, length);
        }
        arenas::each_mapping(f);
    });
}
