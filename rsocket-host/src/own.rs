//! What a thread knows of itself: a variable that every call uses, found in two instructions.
//!
//! A `thread_local!` of a shared library is found by a call into the dynamic linker, since the
//! library might be loaded late. This variable lies in the block that every thread has from its
//! start. The linker has written down its distance from the thread pointer (the initial-exec model
//! of the ELF specification for thread-local storage). Rust cannot be told so in its stable
//! version, hence the assembly; elsewhere than on x86-64, and under Miri, it is a `thread_local!`.
//! A library with such a variable can still be loaded late. The C library keeps some room for such
//! variables in each block, and this one is 32 bytes.
//!
//! Zero in a new thread, and copied by a fork as all memory is. Must not know what is kept in it.
//! Entry point: [`with`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub(super) use found::with;

use core::cell::Cell;

/// Read by handlers that interrupt the thread, so each step is one store. All zero in a new thread.
#[repr(C, align(16))]
pub(super) struct Own {
    /// The kernel's id of the thread; 0 when it was not asked yet.
    pub(super) tid: Cell<u32>,
    /// Locks that it holds or is about to hold: see `lock::Kernel`.
    pub(super) held: Cell<u32>,
    /// Sections of other kinds (`thread::enter`).
    pub(super) entered: Cell<u32>,
    /// What there is to do at the end of the section: 0 nothing, else as [`super::signals`] says.
    pub(super) due: Cell<u32>,
    /// A vfork child runs in its place (`thread::as_guest`).
    pub(super) guest: Cell<bool>,
    /// It runs on a stack of the library's own (`super::stack`).
    pub(super) deep: Cell<bool>,
    /// Handlers that have run on it, with `SA_RESTART` and without ([`super::signals`]).
    pub(super) restarting: Cell<u32>,
    pub(super) breaking: Cell<u32>,
    /// When it last went to another CPU, and how often it has waited since ([`super::migration`]).
    pub(super) migrated: Cell<u32>,
}

/// Whether this thread is inside a section of any kind.
pub(super) fn inside() -> bool {
    with(|t| t.held.get() | t.entered.get() | u32::from(t.deep.get())) != 0
}

/// What is due at the end of the section.
pub(super) fn due() -> u32 {
    with(|t| t.due.get())
}

/// Sets that.
pub(super) fn set_due(due: u32) {
    with(|t| t.due.set(due));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod found {
    use super::Own;
    use core::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.rsocket_own,\"awT\",@nobits",
        ".hidden rsocket_own",
        ".globl rsocket_own",
        ".type rsocket_own,@object",
        ".size rsocket_own,32",
        ".balign 16",
        "rsocket_own:",
        ".zero 32",
        ".popsection",
    );

    const _: () = assert!(size_of::<Own>() == 32 && align_of::<Own>() <= 16);

    /// Lets `f` use the calling thread's.
    #[inline(always)]
    pub(crate) fn with<R>(f: impl FnOnce(&Own) -> R) -> R {
        let own: *const Own;
        // SAFETY: the first word at the thread pointer is its own address (the x86-64 supplement of
        // the ABI). The linker has put the variable's distance from it into the table that is read
        // here. Neither ever changes in a thread, so that the answer may be used again.
        unsafe {
            asm!(
                "mov {own}, qword ptr fs:[0]",
                "add {own}, qword ptr [rip + rsocket_own@GOTTPOFF]",
                own = out(reg) own,
                options(pure, nomem, nostack)
            );
        }
        // SAFETY: aligned bytes, zero at first, of this thread alone and for as long as it lives;
        // the reference ends with the call. Handlers that interrupt it are on the same thread, and
        // cells may change under a shared reference.
        f(unsafe { &*own })
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod found {
    use super::Own;
    use core::cell::Cell;

    thread_local! {
        static OWN: Own = const {
            Own {
                tid: Cell::new(0),
                held: Cell::new(0),
                entered: Cell::new(0),
                due: Cell::new(0),
                guest: Cell::new(false),
                deep: Cell::new(false),
                restarting: Cell::new(0),
                breaking: Cell::new(0),
                migrated: Cell::new(0),
            }
        };
    }

    /// Lets `f` use the calling thread's. Never panics: a variable without a destructor lives as
    /// long as its thread.
    #[inline]
    pub(crate) fn with<R>(f: impl FnOnce(&Own) -> R) -> R {
        OWN.with(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_and_finds_it_zero() {
        let before = with(|own| own.tid.replace(7));
        let other = std::thread::spawn(|| {
            let all = with(|own| [&own.tid, &own.held, &own.entered, &own.due].map(Cell::get));
            with(|own| own.tid.set(9));
            (all, with(|own| own.tid.get()), with(|own| core::ptr::from_ref(own) as usize))
        });
        let (at_first, then, at) = other.join().unwrap();
        assert_eq!((at_first, then), ([0; 4], 9));
        assert_ne!(at, with(|own| core::ptr::from_ref(own) as usize));
        assert_eq!(with(|own| own.tid.replace(before)), 7);
    }
}
