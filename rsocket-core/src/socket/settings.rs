//! The settings of the process, and what is made by them before its first connection: the place to
//! meet other processes, and the packet tap.
//!
//! Must not know a connection. Entry point: [`resolve`].
#![forbid(unsafe_code)]

use core::ffi::CStr;

use crate::attach::meet::place;
use crate::config::policy::{self, Getenv};
use crate::conn::watchers;
use crate::host::filter;
use crate::host::trial::Seccomp;
use crate::sys::sandbox;

/// Reads the settings, once.
pub fn resolve(getenv: Getenv) {
    if policy::is_resolved() {
        return;
    }
    let first = policy::begins();
    if first {
        crate::log::init(getenv);
    }
    policy::read(getenv, first);
    // Not when the answer is needed: servers change their root directory before that. It is asked
    // as the settings' files are.
    let meet = getenv(c"RSOCKET_MEET").map(CStr::to_bytes);
    place::find_out(if may_attach() { meet } else { Some(b"") });
    if first && crate::tap::open(getenv) {
        watchers::watch(watchers::TAP);
    }
    policy::resolved();
}

/// Whether connections of this process may leave TCP, as far as its settings and filters say.
fn may_attach() -> bool {
    let seccomp = policy::seccomp();
    let refuses =
        sandbox::entered() || filter::may_be_deadly(seccomp) && seccomp == Seccomp::Refuse;
    !refuses && policy::shm_allowed()
}
