//! What a socket is asked to be.
//!
//! Most options are the kernel's, since the descriptor is its socket. What is known here is which
//! of them leave a connection on a device as it is ([`harmless`]). What an rsocket has beside them
//! is [`crate::config::sizes`]'s.
#![forbid(unsafe_code)]

use std::os::fd::RawFd;

use crate::conn::slot::SlotId;
use crate::conn::{cause, fork_group};
use crate::host::kernel;
use crate::host::option_table::{self, Kind};
use crate::reason::Reason;
use crate::sys;

/// Options that change neither which bytes arrive nor what a call returns beside them, as long as
/// no call asks for times of arrival.
#[must_use]
pub fn harmless(level: i32, name: i32) -> bool {
    option_table::kind(level, name) != Kind::Tcp
}

/// Options that are not [`harmless`], that a socket has from the one that listens, and that the
/// kernel tells of. Each has its level, its name, and the value of a socket of which nothing was
/// asked. (`TCP_MD5SIG` it does not tell.)
const INHERITED: [(i32, i32, i32); 6] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    (libc::SOL_SOCKET, 65, 0), // SO_TIMESTAMPING_NEW
    (libc::SOL_SOCKET, libc::SO_TXTIME, 0),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::IPPROTO_TCP, libc::TCP_ULP, 0),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
];

/// The option that only TCP can honour, on a socket on which another program may have set some: its
/// level and number. Six system calls.
#[cold]
#[must_use]
pub fn odd_one(fd: RawFd) -> Option<(i32, i32)> {
    let set = INHERITED.iter().find(|(level, name, usual)| {
        let mut bytes = [0; 32];
        // No program has set one that the kernel does not know; one that it has no value of is off.
        let Ok(n) = kernel::option(fd, *level, *name, &mut bytes) else { return false };
        let told = bytes.iter().take(n);
        match usual {
            0 => told.clone().any(|b| *b != 0),
            _ => told.ne(&usual.to_ne_bytes()),
        }
    });
    set.map(|(level, name, _)| (*level, *name))
}

/// Options that change how TCP sends: what is to be sent by TCP when the connection goes back goes
/// before they are set.
#[must_use]
pub fn changes_sending(level: i32, name: i32) -> bool {
    level == libc::IPPROTO_TCP
        && matches!(name, libc::TCP_REPAIR | libc::TCP_MD5SIG | TCP_MD5SIG_EXT)
}

/// linux/tcp.h has it.
const TCP_MD5SIG_EXT: i32 = 32;

/// Whether setting an option that [`changes_sending`] would change nothing: the kernel refuses the
/// value, of whatever socket, or it is there already. `value` is an address of the program's and a
/// length; `number` what stands there, of four bytes.
#[cold]
#[must_use]
pub fn would_change_nothing(
    fd: RawFd,
    level: i32,
    name: i32,
    value: (usize, u32),
    number: Option<i32>,
) -> bool {
    // -1 switches TCP_REPAIR off, too.
    let is_so = || number.is_some() && kernel::integer(fd, level, name) == number.map(|n| n.max(0));
    kernel::would_refuse(fd, level, name, value) || name == libc::TCP_REPAIR && is_so()
}

/// A call's flags without `MSG_ZEROCOPY`, where the kernel ignores that one: the program has not
/// set `SO_ZEROCOPY`.
#[inline]
#[must_use]
pub fn heeded(fd: RawFd, flags: i32) -> i32 {
    if flags & libc::MSG_ZEROCOPY != 0 && !may_borrow(fd) {
        flags & !libc::MSG_ZEROCOPY
    } else {
        flags
    }
}

/// Whether the kernel may send from the program's buffers. Preserves `errno`.
#[cold]
fn may_borrow(fd: RawFd) -> bool {
    let asked = sys::keeping_errno(|| kernel::integer(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY));
    // Where it does not say, the kernel is left to the call itself.
    asked != Some(0)
}

/// An option is, or is about to be, set that only TCP can honour: as [`super::refuse`].
pub fn refuse_for(id: SlotId, fd: RawFd, level: i32, name: i32) {
    if let Some(s) = fork_group::slot(id) {
        cause::of_option(s, level, name);
        super::refuse(id, fd, Reason::OddOption);
    }
}

/// An option that may not be [`harmless`], before the program's call sets it: what it is now.
pub struct Before {
    level: i32,
    name: i32,
    /// Its bytes, and how many they are; `None` where the kernel does not say.
    value: Option<([u8; 32], usize)>,
}

impl Before {
    /// Asks the kernel.
    #[cold]
    #[must_use]
    pub fn ask(fd: RawFd, level: i32, name: i32) -> Self {
        Self { level, name, value: value(fd, level, name) }
    }

    /// Whether the call that has just succeeded has changed something, as far as can be told.
    #[must_use]
    pub fn has_changed(&self, fd: RawFd) -> bool {
        self.value.is_none() || value(fd, self.level, self.name) != self.value
    }
}

/// Longer ones are not compared.
fn value(fd: RawFd, level: i32, name: i32) -> Option<([u8; 32], usize)> {
    let mut bytes = [0; 32];
    let n = kernel::option(fd, level, name, &mut bytes).ok()?;
    (n < bytes.len()).then_some((bytes, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_the_bytes_is_not_harmless() {
        assert!(harmless(libc::IPPROTO_TCP, libc::TCP_NODELAY));
        assert!(
            harmless(libc::SOL_SOCKET, libc::SO_RCVTIMEO)
                && harmless(libc::SOL_SOCKET, libc::SO_TIMESTAMP)
        );
        for name in [libc::TCP_ULP, libc::TCP_MD5SIG, libc::TCP_REPAIR] {
            assert!(!harmless(libc::IPPROTO_TCP, name), "{name}");
        }
        for name in [libc::SO_TIMESTAMPING, libc::SO_TXTIME] {
            assert!(!harmless(libc::SOL_SOCKET, name), "{name}");
        }
        // SOL_TLS
        assert!(!harmless(282, 1));
    }
}
