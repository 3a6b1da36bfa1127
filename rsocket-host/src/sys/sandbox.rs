//! Whether a hook saw this process enter a sandbox, or prepare for it (`life-of-a-connection §3`).
//!
//! Two facts, which every room asks before a system call of its own; [`crate::facts::filter`] finds
//! out more. Makes no system call. Entry points: [`inside`], [`entered`], [`entering_sandbox`],
//! [`inside_from_now_on`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

/// A hook saw the process enter a sandbox, or prepare for it. Never taken back; a child inherits
/// both the sandbox and this.
static ENTERING: AtomicBool = AtomicBool::new(false);
/// As `ENTERING`, and what had to be done before it has been done.
static INSIDE: AtomicBool = AtomicBool::new(false);

/// The hook on `prctl` is about to make the program's call: nothing attaches any more.
pub fn entering_sandbox() {
    ENTERING.store(true, Ordering::SeqCst);
}

/// From here on the process makes the program's own system calls and no others.
pub fn inside_from_now_on() {
    entering_sandbox();
    INSIDE.store(true, Ordering::SeqCst);
}

/// A hook saw the process enter a sandbox. Makes no system call, so it may be asked anywhere.
#[must_use]
pub fn entered() -> bool {
    ENTERING.load(Ordering::SeqCst)
}

/// Whether any system call of ours could be deadly. Relaxed: the thread that enters has stored it
/// itself, and threads that it makes come after it.
#[must_use]
#[inline]
pub fn inside() -> bool {
    INSIDE.load(Ordering::Relaxed)
}
