//! What a socket is asked to be: `setsockopt`, `fcntl`, `ioctl`.
//!
//! The options themselves are the kernel's, since the descriptor is its socket. Options of which we do not
//! know that they are harmless to a connection on a device keep it on TCP, or bring it back there.

use core::ffi::{c_int, c_long, c_ulong, c_void};

use libc::socklen_t;
use rsocket_core::attach::reason::Reason;
use rsocket_core::errno::Errno;
use rsocket_core::{socket, sys};

use super::dup::alias;
use crate::edge::{fail, keeping_errno};
use crate::{real, shadow};

/// `SIOCOUTQNSD`: like `SIOCOUTQ`, but only what has not been sent at all.
const SIOCOUTQNSD: c_ulong = 0x894B;

/// Options that change neither which bytes arrive nor what a call returns beside them.
fn harmless(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => harmless_socket(name),
        libc::IPPROTO_TCP => harmless_tcp(name),
        libc::IPPROTO_IP => matches!(
            name,
            libc::IP_TOS
                | libc::IP_TTL
                | libc::IP_MTU_DISCOVER
                | libc::IP_FREEBIND
                | libc::IP_TRANSPARENT
                | libc::IP_BIND_ADDRESS_NO_PORT
                | libc::IP_MINTTL
                | libc::IP_RECVERR
                | libc::IP_UNICAST_IF
                | 51 // IP_LOCAL_PORT_RANGE
        ),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_V6ONLY
                | libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_MTU
                | libc::IPV6_FREEBIND
                | libc::IPV6_TRANSPARENT
                | libc::IPV6_RECVERR
                | libc::IPV6_ADDR_PREFERENCES
                | libc::IPV6_AUTOFLOWLABEL
                | libc::IPV6_MINHOPCOUNT
        ),
        _ => false,
    }
}

fn harmless_socket(name: c_int) -> bool {
    matches!(
        name,
        libc::SO_DEBUG
            | libc::SO_REUSEADDR
            | libc::SO_REUSEPORT
            | libc::SO_DONTROUTE
            | libc::SO_BROADCAST
            | libc::SO_SNDBUF
            | libc::SO_RCVBUF
            | libc::SO_SNDBUFFORCE
            | libc::SO_RCVBUFFORCE
            | libc::SO_KEEPALIVE
            | libc::SO_OOBINLINE
            | libc::SO_PRIORITY
            | libc::SO_LINGER
            | libc::SO_RCVLOWAT
            | libc::SO_RCVTIMEO
            | libc::SO_SNDTIMEO
            | 66 // SO_RCVTIMEO_NEW
            | 67 // SO_SNDTIMEO_NEW
            | libc::SO_BINDTODEVICE
            | libc::SO_BINDTOIFINDEX
            | libc::SO_MARK
            | libc::SO_BUSY_POLL
            | libc::SO_PREFER_BUSY_POLL
            | libc::SO_BUSY_POLL_BUDGET
            | libc::SO_INCOMING_CPU
            | libc::SO_MAX_PACING_RATE
            | libc::SO_ATTACH_FILTER
            | libc::SO_DETACH_FILTER
            | libc::SO_LOCK_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_ATTACH_REUSEPORT_CBPF
            | libc::SO_ATTACH_REUSEPORT_EBPF
            | 68 // SO_DETACH_REUSEPORT_BPF
            | 72 // SO_BUF_LOCK
            | 73 // SO_RESERVE_MEM
            | 74 // SO_TXREHASH
    )
}

fn harmless_tcp(name: c_int) -> bool {
    matches!(
        name,
        libc::TCP_NODELAY
            | libc::TCP_MAXSEG
            | libc::TCP_CORK
            | libc::TCP_KEEPIDLE
            | libc::TCP_KEEPINTVL
            | libc::TCP_KEEPCNT
            | libc::TCP_SYNCNT
            | libc::TCP_LINGER2
            | libc::TCP_DEFER_ACCEPT
            | libc::TCP_WINDOW_CLAMP
            | libc::TCP_QUICKACK
            | libc::TCP_CONGESTION
            | libc::TCP_THIN_LINEAR_TIMEOUTS
            | libc::TCP_THIN_DUPACK
            | libc::TCP_USER_TIMEOUT
            | libc::TCP_FASTOPEN
            | libc::TCP_FASTOPEN_KEY
            | libc::TCP_FASTOPEN_NO_COOKIE
            | libc::TCP_TIMESTAMP
            | libc::TCP_NOTSENT_LOWAT
            | libc::TCP_SAVE_SYN
            | 37 // TCP_TX_DELAY
    )
}

/// The `fcntl` commands that make another name for a descriptor.
#[inline(always)]
fn duplicates(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

hook! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int, with slot of fd => {
        if !harmless(level, name) {
            keeping_errno(|| socket::refuse(slot, fd, Reason::OddOption));
        }
        let r = real::setsockopt(fd, level, name, value, length);
        if r == 0
            && (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
            && length as usize >= size_of::<c_int>()
            && let Some(slot) = shadow::connection(fd)
        {
            // The kernel read the value from there just now.
            socket::low_water(slot, value.cast::<c_int>().read_unaligned().unsigned_abs());
        }
        r
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int, with slot of fd => {
        // The one option that takes bytes from the stream.
        if level == libc::IPPROTO_TCP && name == libc::TCP_ZEROCOPY_RECEIVE {
            keeping_errno(|| socket::refuse(slot, fd, Reason::OddOption));
        }
        real::getsockopt(fd, level, name, value, length)
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, with slot of fd => {
        let known = match request {
            libc::FIONREAD => socket::unread(slot, fd),
            libc::TIOCOUTQ | SIOCOUTQNSD => socket::unsent(slot, fd),
            _ => None,
        };
        match known {
            Some(n) if !argument.is_null() => {
                argument.cast::<c_int>().write_unaligned(c_int::try_from(n).unwrap_or(c_int::MAX));
                0
            }
            _ => real::ioctl(fd, request, argument),
        }
    }
}

hook! {
    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int, when duplicates(command) || sys::is_private(fd) => {
        if sys::is_private(fd) { fail(Errno::BADF) } else { alias(fd, real::fcntl(fd, command, argument)) }
    }

    fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int, when duplicates(command) || sys::is_private(fd) => {
        if sys::is_private(fd) { fail(Errno::BADF) } else { alias(fd, real::fcntl64(fd, command, argument)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_the_bytes_is_not_harmless() {
        assert!(harmless(libc::IPPROTO_TCP, libc::TCP_NODELAY));
        assert!(harmless(libc::SOL_SOCKET, libc::SO_RCVTIMEO));
        for name in
            [libc::TCP_ULP, libc::TCP_MD5SIG, libc::TCP_REPAIR, libc::TCP_INQ, libc::TCP_FASTOPEN_CONNECT]
        {
            assert!(!harmless(libc::IPPROTO_TCP, name), "{name}");
        }
        for name in [libc::SO_ZEROCOPY, libc::SO_TIMESTAMPING, libc::SO_TIMESTAMP, libc::SO_TXTIME] {
            assert!(!harmless(libc::SOL_SOCKET, name), "{name}");
        }
        // SOL_TLS
        assert!(!harmless(282, 1));
    }
}
