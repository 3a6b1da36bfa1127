//! What a connection, or a listener, remembers of the handshake, in memory that siblings share.
//!
//! The kernel keeps the SYN of a connection if its listener was told to (`TCP_SAVE_SYN`), and gives
//! it away once. A program may use the same option: then it is the program's alone, and nothing is
//! known here. Where it does not, it sees neither that the option is set nor a SYN that was kept.
//! Entry points: [`Handshake::listens`], [`Handshake::accepted`], [`Handshake::dials`],
//! [`Handshake::has_dialled`]; then [`Handshake::accepted_timestamp`] and
//! [`Handshake::dialled_bounds`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::os::fd::RawFd;

use super::dialled::{self, Bounds, Span};
use super::offsets::{self, TCP_TIMESTAMP};
use super::saved;
use crate::config::policy;
use crate::host::{kernel, raw};
use crate::sys::{self, sandbox};

/// Options of tcp(7) that libc has no name for.
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;

/// Whether a program that asks for this option, or sets it, could see what is done here.
#[inline]
#[must_use]
pub fn concerns(level: i32, name: i32) -> bool {
    level == libc::IPPROTO_TCP && matches!(name, TCP_SAVE_SYN | TCP_SAVED_SYN)
}

/// Of a listener, and of what it gives: the option is as the kernel has it.
const UNSET: u32 = 0;
/// It was set here.
const OURS: u32 = 1;
/// It was set here, and the SYN has been taken.
const TAKEN: u32 = 2;
/// The program has set it.
const THEIRS: u32 = 3;
/// Of a listener: it could not be set yet for the sake of a filter.
const WANTED: u32 = 4;

/// The program has set an option of some socket, and lives.
static SETS_OPTIONS: AtomicBool = AtomicBool::new(false);

/// The program has set an option of some socket: no filter kills for the call.
pub fn sets_options() {
    SETS_OPTIONS.store(true, Ordering::Relaxed);
}

/// How often the kernel is asked for a timestamp before it says nothing.
const QUESTIONS: u32 = 3;

/// In `timestamp`: there is one, in the low half.
const KNOWN: u64 = 1 << 32;

/// See the module. Relaxed throughout: each word stands for itself, and a thread that has the
/// connection has it from the thread that wrote them.
#[repr(C)]
#[derive(Default)]
pub struct Handshake {
    saving: AtomicU32,
    _pad: AtomicU32,
    timestamp: AtomicU64,
    /// When `connect` was called, and when it came back; 0 before.
    from: AtomicU64,
    to: AtomicU64,
}

impl Handshake {
    /// As of a socket that has just been made.
    pub fn reset(&self) {
        self.saving.store(UNSET, Ordering::Relaxed);
        self.timestamp.store(0, Ordering::Relaxed);
        self.forget_dialling();
    }

    /// The socket is about to listen, or does already: from its next connection on SYNs are kept.
    pub fn listens(&self, fd: RawFd) {
        let saving = self.saving.load(Ordering::Relaxed);
        if !policy::shm_allowed() || !matches!(saving, UNSET | WANTED) || sandbox::entered() {
            return;
        }
        let filtered = policy::sandboxed();
        if filtered && !SETS_OPTIONS.load(Ordering::Relaxed) {
            self.saving.store(WANTED, Ordering::Relaxed);
            return;
        }
        // Under a filter that has not been tried nothing is asked; of a socket of this program's
        // own it is known.
        let unused = filtered || kernel::integer(fd, libc::IPPROTO_TCP, TCP_SAVE_SYN) == Some(0);
        if unused && raw::setsockopt_int(fd, libc::IPPROTO_TCP, TCP_SAVE_SYN, 1).is_ok() {
            self.saving.store(OURS, Ordering::Relaxed);
        }
    }

    /// Of a listener: the filter under which it began may have been tried since.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.saving.load(Ordering::Relaxed) == WANTED
    }

    /// A listener has given this connection.
    pub fn accepted(&self, listener: &Self) {
        let saving = listener.saving.load(Ordering::Relaxed);
        self.saving.store(if saving == WANTED { UNSET } else { saving }, Ordering::Relaxed);
    }

    /// The program is about to call `connect`, for the first time or after an attempt that failed.
    pub fn dials(&self) {
        if policy::shm_allowed() {
            self.from.store(sys::now_ns(), Ordering::Relaxed);
            self.to.store(0, Ordering::Relaxed);
        }
    }

    /// `connect` has come back, and the connection stands or is on its way: its SYN has been sent.
    pub fn has_dialled(&self) {
        if self.from.load(Ordering::Relaxed) != 0 && self.to.load(Ordering::Relaxed) == 0 {
            self.to.store(sys::now_ns(), Ordering::Relaxed);
        }
    }

    fn forget_dialling(&self) {
        self.from.store(0, Ordering::Relaxed);
        self.to.store(0, Ordering::Relaxed);
    }

    /// Where the timestamp of the SYN lies that this end has sent; `None` where other connections
    /// may have the same.
    #[must_use]
    pub fn dialled_bounds(&self, fd: RawFd) -> Option<Bounds> {
        let sent =
            Span { from: self.from.load(Ordering::Relaxed), to: self.to.load(Ordering::Relaxed) };
        if sent.from == 0 || sent.to == 0 || !offsets::are_each_ones_own(fd) {
            return None;
        }
        // A thread that is kept from its processor in between knows less than it could.
        (0..QUESTIONS).find_map(|_| {
            let from = sys::now_ns();
            let (now, _) = raw::getsockopt::<i32>(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP).ok()?;
            dialled::bounds(sent, now.cast_unsigned(), Span { from, to: sys::now_ns() })
        })
    }

    /// The timestamp of the SYN that this end was sent.
    #[must_use]
    pub fn accepted_timestamp(&self, fd: RawFd) -> Option<u32> {
        self.take(fd);
        let known = self.timestamp.load(Ordering::Relaxed);
        (known & KNOWN != 0).then_some(known as u32)
    }

    /// Takes the kept SYN from the kernel, once.
    fn take(&self, fd: RawFd) {
        let first =
            self.saving.compare_exchange(OURS, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !first {
            return;
        }
        let mut headers = [0; saved::LONGEST];
        let found = kernel::option(fd, libc::IPPROTO_TCP, TCP_SAVED_SYN, &mut headers)
            .ok()
            .and_then(|len| saved::timestamp(headers.get(..len)?));
        if let Some(timestamp) = found {
            self.timestamp.store(KNOWN | u64::from(timestamp), Ordering::Relaxed);
        }
    }

    /// Before the program asks for an option: what is ours of it is put out of its sight. True
    /// where the kernel would say 1 of an option that the program has never set, and it is to be
    /// told 0.
    #[must_use]
    pub fn asked(&self, fd: RawFd, level: i32, name: i32) -> bool {
        if level != libc::IPPROTO_TCP
            || !matches!(self.saving.load(Ordering::Relaxed), OURS | TAKEN)
        {
            return false;
        }
        if name == TCP_SAVED_SYN {
            // Of a listener too: it has none.
            self.take_of_connection(fd);
        }
        name == TCP_SAVE_SYN
    }

    fn take_of_connection(&self, fd: RawFd) {
        if kernel::integer(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(0) {
            self.take(fd);
        }
    }

    /// The program has set an option: what is kept from now on is its own.
    pub fn was_set(&self, fd: RawFd, level: i32, name: i32) {
        if (level, name) == (libc::IPPROTO_TCP, TCP_SAVE_SYN) {
            self.take_of_connection(fd);
            self.saving.store(THEIRS, Ordering::Relaxed);
        }
    }
}
