//! Every system call that leaving TCP needs, with arguments that a filter would see and that do
//! nothing.
//!
//! Filters look at numbers and at arguments that are numbers: families, commands, options, flags,
//! protections. Those are what they would be; descriptors are none, lengths zero, names those of
//! nothing. `docs/system-calls.md` says which path makes which. Must not know who makes them. Entry
//! points: [`CALLS`], [`Call::is_made`].
#![forbid(unsafe_code)]

use libc::{EAGAIN, EBADF, ECHILD, EINVAL, ENOENT, ESRCH, c_int, c_long};

/// An argument that is the address of some bytes of the trial's own, all zero.
pub(super) const ROOM: usize = usize::MAX - 4095;
/// The address of a name that is there for nothing.
pub(super) const NAME: usize = usize::MAX - 8191;
/// A length of those bytes.
pub(super) const ROOM_BYTES: usize = 256;
const NONE: usize = -1_i32 as u32 as usize;
const NULL: usize = 0;
/// A number that no process and no thread has.
const NOBODY: usize = i32::MAX as usize;

/// What becomes of a connection where the filter has no place for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Without it nothing attaches.
    Must,
    /// What it is for can be done without where the kernel refuses it; a filter that kills forbids
    /// all.
    Tolerant,
    /// There is another way, and this one is not gone where a filter kills for it.
    OtherWay(Way),
}
use Need::{Must, OtherWay, Tolerant};

/// What may be done without, if need be: each is a bit. Most are ways in which an end finds out
/// which process has the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Way {
    /// The kernel is asked.
    Netlink = 1,
    /// Both ends know the handshake.
    Handshake = 2,
    /// They meet in a directory, across network namespaces.
    Directory = 4,
    /// A thread goes to its peer's CPU.
    Migration = 8,
}

/// What the kernel answers by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// This error.
    Error(c_int),
    /// No error.
    Fine,
    /// A descriptor, or an error that there is no room for one.
    Descriptor,
    /// No error, or this one.
    Either(c_int),
}
use Answer::{Descriptor, Either, Error, Fine};

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Its name for people: the call's, and what the argument is that a filter may look at.
    pub(super) name: &'static str,
    /// Its number.
    pub(super) number: c_long,
    /// Its arguments.
    pub(super) arguments: [usize; 6],
    answer: Answer,
    /// How much it is needed.
    pub(super) need: Need,
}

impl Call {
    /// Whether this is an answer (the negative of an error) that is the kernel's own.
    #[must_use]
    pub(super) fn is_made(&self, result: isize) -> bool {
        let error = if result < 0 { (-result) as c_int } else { 0 };
        match self.answer {
            Fine => error == 0,
            Error(e) => error == e,
            Descriptor => {
                matches!(error, 0 | libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
            }
            Either(e) => error == 0 || error == e,
        }
    }
}

/// The arguments, and zeros behind them.
#[allow(clippy::indexing_slicing, reason = "evaluated when it is compiled")]
const fn padded<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    let mut i = 0;
    while i < N {
        all[i] = given[i];
        i += 1;
    }
    all
}

const fn call<const N: usize>(
    name: &'static str,
    number: c_long,
    given: [usize; N],
    answer: Answer,
    need: Need,
) -> Call {
    Call { name, number, arguments: padded(given), answer, need }
}

/// One that is made with no descriptor.
const fn bad<const N: usize>(name: &'static str, number: c_long, given: [usize; N]) -> Call {
    call(name, number, given, Error(EBADF), Must)
}

const fn fine<const N: usize>(name: &'static str, number: c_long, given: [usize; N]) -> Call {
    call(name, number, given, Fine, Must)
}

/// One by which the ends know each other where the kernel cannot be asked.
const fn handshake<const N: usize>(
    name: &'static str,
    number: c_long,
    given: [usize; N],
    answer: Answer,
) -> Call {
    call(name, number, given, answer, OtherWay(Way::Handshake))
}

/// One by which ends meet in a directory.
const fn directory<const N: usize>(name: &'static str, number: c_long, given: [usize; N]) -> Call {
    call(name, number, given, Error(EBADF), OtherWay(Way::Directory))
}

const CLOEXEC: usize = libc::O_CLOEXEC as usize;
const ITSELF: usize = (libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) as usize;
const LIST: usize = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
const READ: usize = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY) as usize;
const MAKE: usize = (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC) as usize;
const UNIX: usize = libc::AF_UNIX as usize;
const AT_ONCE: usize = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
const PACKETS: usize = libc::SOCK_SEQPACKET as usize | AT_ONCE;
const DATAGRAMS: usize = libc::SOCK_DGRAM as usize | AT_ONCE;
const QUIETLY: usize = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
const RW: usize = (libc::PROT_READ | libc::PROT_WRITE) as usize;
const PRIVATE: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
const SOCKET: usize = libc::SOL_SOCKET as usize;
const TCP: usize = libc::IPPROTO_TCP as usize;
const NETNS_COOKIE: usize = 71;
const CORE: usize = libc::RLIMIT_CORE as usize;
const NETLINK: usize = libc::SOCK_RAW as usize | AT_ONCE;
const DIAG: usize = libc::NETLINK_SOCK_DIAG as usize;
const CLONED: usize =
    (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_THREAD) as usize;
const SIGNAL_SET: usize = 8;
const EVENT: usize = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
const MEMFD: usize = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
const SEALS: usize = (libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL) as usize;
/// `SIOCOUTQ`, `SIOCOUTQNSD` and `FIONREAD`.
const UNSENT: usize = libc::TIOCOUTQ as usize;
const KEPT_BACK: usize = 0x894b;
const UNREAD: usize = libc::FIONREAD as usize;

/// Where in [`CALLS`] the limit on core files is read and set: a process that a filter kills would
/// leave one.
pub(super) const GET_CORE: usize = 1;
/// As above.
pub(super) const SET_CORE: usize = 2;

/// All of them. The first is how the calling thread learns of the end; it is not made before that
/// was tried.
pub(super) const CALLS: &[Call] = &[
    call(
        "wait4",
        libc::SYS_wait4,
        [NONE, NULL, (libc::WNOHANG | libc::__WALL) as usize],
        Error(ECHILD),
        Must,
    ),
    fine("prlimit64", libc::SYS_prlimit64, [0, CORE, NULL, ROOM]),
    call("prlimit64.set", libc::SYS_prlimit64, [0, CORE, ROOM, NULL], Fine, Tolerant),
    // Files.
    bad("openat", libc::SYS_openat, [NONE, NAME, READ]),
    call("openat.O_CREAT", libc::SYS_openat, [NONE, NAME, MAKE, 0o600], Error(EBADF), Tolerant),
    bad("read", libc::SYS_read, [NONE, ROOM]),
    bad("write", libc::SYS_write, [NONE, ROOM]),
    bad("pread64", libc::SYS_pread64, [NONE, ROOM]),
    call("pwrite64", libc::SYS_pwrite64, [NONE, ROOM], Error(EBADF), Tolerant),
    bad("close", libc::SYS_close, [NONE]),
    bad("fstat", libc::SYS_fstat, [NONE, ROOM]),
    bad("newfstatat", libc::SYS_newfstatat, [NONE, NAME, ROOM]),
    bad("fstatfs", libc::SYS_fstatfs, [NONE, ROOM]),
    bad("ftruncate", libc::SYS_ftruncate, [NONE]),
    bad("lseek", libc::SYS_lseek, [NONE, 0, libc::SEEK_CUR as usize]),
    bad("getdents64", libc::SYS_getdents64, [NONE, ROOM, ROOM_BYTES]),
    bad("readlinkat", libc::SYS_readlinkat, [NONE, NAME, ROOM, ROOM_BYTES]),
    call("fallocate", libc::SYS_fallocate, [NONE, 0, 0, 1], Error(EBADF), Tolerant),
    call("mkdirat", libc::SYS_mkdirat, [NONE, NAME, 0o700], Error(EBADF), Tolerant),
    call("unlinkat", libc::SYS_unlinkat, [NONE, NAME], Error(EBADF), Tolerant),
    call("fgetxattr", libc::SYS_fgetxattr, [NONE, NAME, ROOM, ROOM_BYTES], Error(EBADF), Tolerant),
    call("faccessat", libc::SYS_faccessat, [NONE, NAME], Error(EBADF), Tolerant),
    #[cfg(target_arch = "x86_64")]
    call("access", libc::SYS_access, [ROOM], Error(ENOENT), Tolerant),
    call("dup3", libc::SYS_dup3, [NONE, 3, CLOEXEC], Error(EBADF), Tolerant),
    bad("fcntl.F_DUPFD_CLOEXEC", libc::SYS_fcntl, [NONE, libc::F_DUPFD_CLOEXEC as usize]),
    bad("fcntl.F_GETFD", libc::SYS_fcntl, [NONE, libc::F_GETFD as usize]),
    bad("fcntl.F_SETFD", libc::SYS_fcntl, [NONE, libc::F_SETFD as usize]),
    bad("fcntl.F_GETFL", libc::SYS_fcntl, [NONE, libc::F_GETFL as usize]),
    bad("fcntl.F_SETFL", libc::SYS_fcntl, [NONE, libc::F_SETFL as usize]),
    bad("fcntl.F_ADD_SEALS", libc::SYS_fcntl, [NONE, libc::F_ADD_SEALS as usize, SEALS]),
    bad("fcntl.F_GET_SEALS", libc::SYS_fcntl, [NONE, libc::F_GET_SEALS as usize]),
    // Memory.
    call("memfd_create", libc::SYS_memfd_create, [ROOM, MEMFD], Descriptor, Must),
    bad("mmap", libc::SYS_mmap, [NULL, 4096, RW, libc::MAP_SHARED as usize, NONE]),
    call("mmap.MAP_ANONYMOUS", libc::SYS_mmap, [NULL, 0, RW, PRIVATE, NONE], Error(EINVAL), Must),
    fine("mprotect", libc::SYS_mprotect, [NULL, 0, RW]),
    call("munmap", libc::SYS_munmap, [NULL, 0], Error(EINVAL), Must),
    call(
        "mremap",
        libc::SYS_mremap,
        [NULL, 0, 0, libc::MREMAP_MAYMOVE as usize],
        Error(EINVAL),
        Tolerant,
    ),
    call("munlock", libc::SYS_munlock, [NULL, 0], Fine, Tolerant),
    call(
        "madvise",
        libc::SYS_madvise,
        [NULL, 0, libc::MADV_WIPEONFORK as usize],
        Either(EINVAL),
        Tolerant,
    ),
    // Sockets.
    call("socket.AF_UNIX", libc::SYS_socket, [UNIX, PACKETS], Descriptor, Must),
    call("socket.SOCK_DGRAM", libc::SYS_socket, [UNIX, DATAGRAMS], Descriptor, Must),
    call("socketpair", libc::SYS_socketpair, [UNIX, PACKETS, 0, ROOM], Descriptor, Tolerant),
    bad("bind", libc::SYS_bind, [NONE, ROOM]),
    bad("listen", libc::SYS_listen, [NONE, 1]),
    bad("accept4", libc::SYS_accept4, [NONE, NULL, NULL, AT_ONCE]),
    bad("connect", libc::SYS_connect, [NONE, ROOM]),
    bad("getsockname", libc::SYS_getsockname, [NONE, ROOM, ROOM]),
    bad("getpeername", libc::SYS_getpeername, [NONE, ROOM, ROOM]),
    bad("sendto", libc::SYS_sendto, [NONE, ROOM, 0, QUIETLY]),
    bad("recvfrom", libc::SYS_recvfrom, [NONE, ROOM, 0, libc::MSG_DONTWAIT as usize]),
    bad("sendmsg", libc::SYS_sendmsg, [NONE, ROOM, QUIETLY]),
    bad("recvmsg", libc::SYS_recvmsg, [NONE, ROOM, (libc::MSG_DONTWAIT | libc::MSG_PEEK) as usize]),
    bad(
        "getsockopt.SO_PEERCRED",
        libc::SYS_getsockopt,
        [NONE, SOCKET, libc::SO_PEERCRED as usize, ROOM, ROOM],
    ),
    bad(
        "getsockopt.SO_COOKIE",
        libc::SYS_getsockopt,
        [NONE, SOCKET, libc::SO_COOKIE as usize, ROOM, ROOM],
    ),
    bad(
        "getsockopt.SO_NETNS_COOKIE",
        libc::SYS_getsockopt,
        [NONE, SOCKET, NETNS_COOKIE, ROOM, ROOM],
    ),
    bad(
        "getsockopt.SO_RCVTIMEO",
        libc::SYS_getsockopt,
        [NONE, SOCKET, libc::SO_RCVTIMEO as usize, ROOM, ROOM],
    ),
    bad(
        "getsockopt.SO_SNDTIMEO",
        libc::SYS_getsockopt,
        [NONE, SOCKET, libc::SO_SNDTIMEO as usize, ROOM, ROOM],
    ),
    bad(
        "getsockopt.TCP_INFO",
        libc::SYS_getsockopt,
        [NONE, TCP, libc::TCP_INFO as usize, ROOM, ROOM],
    ),
    bad(
        "setsockopt.SO_LINGER",
        libc::SYS_setsockopt,
        [NONE, SOCKET, libc::SO_LINGER as usize, ROOM, 8],
    ),
    call(
        "setsockopt.TCP_QUICKACK",
        libc::SYS_setsockopt,
        [NONE, TCP, libc::TCP_QUICKACK as usize, ROOM, 4],
        Error(EBADF),
        Tolerant,
    ),
    call(
        "getsockopt.TCP_NODELAY",
        libc::SYS_getsockopt,
        [NONE, TCP, libc::TCP_NODELAY as usize, ROOM, ROOM],
        Error(EBADF),
        Tolerant,
    ),
    call(
        "setsockopt.TCP_NODELAY",
        libc::SYS_setsockopt,
        [NONE, TCP, libc::TCP_NODELAY as usize, ROOM, 4],
        Error(EBADF),
        Tolerant,
    ),
    bad("shutdown", libc::SYS_shutdown, [NONE]),
    bad("ioctl.SIOCOUTQ", libc::SYS_ioctl, [NONE, UNSENT, ROOM]),
    call("ioctl.SIOCOUTQNSD", libc::SYS_ioctl, [NONE, KEPT_BACK, ROOM], Error(EBADF), Tolerant),
    bad("ioctl.FIONREAD", libc::SYS_ioctl, [NONE, UNREAD, ROOM]),
    // Sleeping and waking.
    fine("ppoll", libc::SYS_ppoll, [NULL, 0, ROOM, NULL, SIGNAL_SET]),
    #[cfg(target_arch = "x86_64")]
    fine("poll", libc::SYS_poll, [NULL, 0, 0]),
    call("eventfd2", libc::SYS_eventfd2, [0, EVENT], Descriptor, Tolerant),
    bad("epoll_ctl", libc::SYS_epoll_ctl, [NONE, libc::EPOLL_CTL_MOD as usize, NONE, ROOM]),
    bad("epoll_pwait", libc::SYS_epoll_pwait, [NONE, ROOM, 1, 0, NULL, SIGNAL_SET]),
    call("futex.FUTEX_WAKE", libc::SYS_futex, [ROOM, libc::FUTEX_WAKE as usize, 1], Fine, Must),
    call(
        "futex.FUTEX_WAIT",
        libc::SYS_futex,
        [ROOM, libc::FUTEX_WAIT as usize, 1],
        Error(EAGAIN),
        Must,
    ),
    call("sched_yield", libc::SYS_sched_yield, [], Fine, Tolerant),
    call(
        "sched_getaffinity",
        libc::SYS_sched_getaffinity,
        [0, ROOM_BYTES, ROOM],
        Either(EINVAL),
        Tolerant,
    ),
    call(
        "sched_setaffinity",
        libc::SYS_sched_setaffinity,
        [NOBODY, ROOM_BYTES, ROOM],
        Error(ESRCH),
        OtherWay(Way::Migration),
    ),
    fine("rt_sigaction", libc::SYS_rt_sigaction, [libc::SIGTERM as usize, NULL, ROOM, SIGNAL_SET]),
    fine(
        "rt_sigprocmask",
        libc::SYS_rt_sigprocmask,
        [libc::SIG_BLOCK as usize, NULL, ROOM, SIGNAL_SET],
    ),
    // As where a descriptor is moved above the limit; a flag too many.
    call("clone", libc::SYS_clone, [CLONED], Error(EINVAL), Tolerant),
    // Identities, and whether a process exists.
    fine("getpid", libc::SYS_getpid, []),
    fine("gettid", libc::SYS_gettid, []),
    fine("getuid", libc::SYS_getuid, []),
    fine("geteuid", libc::SYS_geteuid, []),
    fine("getgid", libc::SYS_getgid, []),
    fine("getegid", libc::SYS_getegid, []),
    fine("getrandom", libc::SYS_getrandom, [ROOM, 0]),
    call("kill", libc::SYS_kill, [NOBODY, 0], Error(ESRCH), Must),
    call(
        "socket.AF_NETLINK",
        libc::SYS_socket,
        [libc::AF_NETLINK as usize, NETLINK, DIAG],
        Descriptor,
        OtherWay(Way::Netlink),
    ),
    // What both ends know of the handshake.
    handshake(
        "getsockopt.TCP_SAVED_SYN",
        libc::SYS_getsockopt,
        [NONE, TCP, 28, ROOM, ROOM],
        Error(EBADF),
    ),
    handshake(
        "getsockopt.TCP_TIMESTAMP",
        libc::SYS_getsockopt,
        [NONE, TCP, 24, ROOM, ROOM],
        Error(EBADF),
    ),
    handshake(
        "getsockopt.SO_PEERPIDFD",
        libc::SYS_getsockopt,
        [NONE, SOCKET, 77, ROOM, ROOM],
        Error(EBADF),
    ),
    handshake(
        "setsockopt.TCP_SAVE_SYN",
        libc::SYS_setsockopt,
        [NONE, TCP, 27, ROOM, 4],
        Error(EBADF),
    ),
    handshake(
        "socket.AF_INET",
        libc::SYS_socket,
        [libc::AF_INET as usize, libc::SOCK_STREAM as usize | AT_ONCE],
        Descriptor,
    ),
    handshake(
        "socket.AF_INET6",
        libc::SYS_socket,
        [libc::AF_INET6 as usize, libc::SOCK_STREAM as usize | AT_ONCE],
        Descriptor,
    ),
    handshake("pidfd_open", libc::SYS_pidfd_open, [NOBODY], Error(ESRCH)),
    // Meeting across network namespaces.
    directory("openat.O_PATH", libc::SYS_openat, [NONE, NAME, ITSELF]),
    directory("openat.O_DIRECTORY", libc::SYS_openat, [NONE, NAME, LIST]),
    directory("fchmodat", libc::SYS_fchmodat, [NONE, NAME, 0o666]),
    directory(
        "getsockopt.SO_DOMAIN",
        libc::SYS_getsockopt,
        [NONE, SOCKET, libc::SO_DOMAIN as usize, ROOM, ROOM],
    ),
    directory(
        "getsockopt.SO_TYPE",
        libc::SYS_getsockopt,
        [NONE, SOCKET, libc::SO_TYPE as usize, ROOM, ROOM],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        assert!(CALLS.len() < 250, "a number of eight bits has room for them");
        for c in CALLS {
            assert_eq!(CALLS.iter().filter(|other| other.name == c.name).count(), 1, "{}", c.name);
        }
        assert_eq!((CALLS[GET_CORE].name, CALLS[SET_CORE].name), ("prlimit64", "prlimit64.set"));
    }
}
