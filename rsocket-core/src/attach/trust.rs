//! Which socket is at the other end of a TCP connection, and whose? The kernel knows: `sock_diag`
//! names the owner of any socket of this network namespace by user, inode and cookie, and needs no
//! privilege for it. From here on a claim by a peer ("I hold the other end") is checked, not
//! believed (`life-of-a-connection §3`).
//!
//! Knows sockets and the kernel; must not know devices, arenas or what a connection is used for.
//! Entry points: [`find`], [`own_identity`], [`cred_matches`].
//!
//! The look-up happens in the network namespace of the calling thread. A socket that was made in
//! another one (`setns`) is not found, or a stranger's of the same addresses is. Then the
//! identities, which both ends exchange and compare, do not agree, and the connection stays on TCP.
//! [`peer_of`] says so of a connection that stands.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, RawFd};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::failure::Failure;
use crate::host::tuple::Tuple;
use crate::host::{tcp_state as state, trial};
use crate::stats::{self, Counter};
use crate::sync::stack;
use crate::sys::{self, files, identity, sock_diag, sockets};

/// Whether the fd is a TCP socket and not something that looks like one (MPTCP, SCTP, SMC).
#[must_use]
pub fn is_tcp(fd: RawFd) -> bool {
    sockets::is_tcp(sys::borrow(fd))
}

/// What the kernel says about a socket of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user that made it, as seen from our user namespace.
    pub uid: u32,
    /// Its inode; 0 when no process holds it any more (or not yet: not accepted).
    pub inode: u32,
    /// The kernel's own number for it, unique since boot.
    pub cookie: u64,
    /// TCP state, by the kernel's numbers.
    pub state: u8,
}

impl Owner {
    /// A process holds the socket, and it can still carry data in at least one direction.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        self.inode != 0
            && matches!(
                self.state,
                state::ESTABLISHED | state::FIN_WAIT1 | state::FIN_WAIT2 | state::CLOSE_WAIT
            )
    }

    /// The socket is the one that a peer claims to hold.
    #[must_use]
    pub const fn is(&self, inode: u32, cookie: u64) -> bool {
        self.inode != 0 && self.inode == inode && self.cookie == cookie
    }
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// The attribute that holds a `struct tcp_info`, and where in it `tcpi_last_ack_recv` is.
const INET_DIAG_INFO: u8 = 2;
const LAST_ACK_RECEIVED: usize = 56;
const ANY_COOKIE: [u32; 2] = [u32::MAX; 2];
/// The index of `lo` in every network namespace. Packets between two sockets of one host arrive
/// there.
const LOOPBACK: u32 = 1;

/// `struct nlmsghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    len: u32,
    kind: u16,
    flags: u16,
    seq: u32,
    pid: u32,
}

/// `struct inet_diag_sockid`: `src` is the end of the socket that is looked for.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SockId {
    sport: [u8; 2],
    dport: [u8; 2],
    src: [u8; 16],
    dst: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Request {
    header: Header,
    family: u8,
    protocol: u8,
    ext: u8,
    pad: u8,
    states: u32,
    id: SockId,
}

/// `struct inet_diag_msg`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Answer {
    family: u8,
    state: u8,
    timer: u8,
    retrans: u8,
    id: SockId,
    expires: u32,
    rqueue: u32,
    wqueue: u32,
    uid: u32,
    inode: u32,
}

const _: () =
    assert!(size_of::<Request>() == 72 && size_of::<Answer>() == 72 && size_of::<SockId>() == 48);

fn request(tuple: &Tuple) -> Request {
    Request {
        header: Header {
            len: size_of::<Request>() as u32,
            kind: SOCK_DIAG_BY_FAMILY,
            flags: NLM_F_REQUEST,
            seq: 1,
            pid: 0,
        },
        family: if tuple.family == 4 { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 },
        protocol: libc::IPPROTO_TCP as u8,
        ext: 0,
        pad: 0,
        states: u32::MAX,
        id: SockId {
            sport: tuple.local.port.to_be_bytes(),
            dport: tuple.remote.port.to_be_bytes(),
            src: tuple.local.addr,
            dst: tuple.remote.addr,
            // With no interface the kernel passes over a socket that is bound to one
            // (SO_BINDTODEVICE).
            interface: if tuple.scope == 0 { LOOPBACK } else { tuple.scope },
            cookie: ANY_COOKIE,
        },
    }
}

/// Reads the kernel's answer. Where no connection matches, the kernel looks for a listener instead,
/// so the ports of what was found are compared, and listeners are no owners.
fn parse(tuple: &Tuple, bytes: &[u8]) -> Result<Option<Owner>, Failure> {
    let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| Failure::Invalid)?;
    if header.kind == NLMSG_ERROR {
        let (code, _) = i32::read_from_prefix(rest).map_err(|_| Failure::Invalid)?;
        let Some(code) = code.checked_neg().filter(|code| *code > 0) else {
            return Err(Failure::Invalid);
        };
        return match Failure::from_code(code) {
            Failure::Missing => Ok(None),
            e => Err(e),
        };
    }
    if header.kind != SOCK_DIAG_BY_FAMILY || header.seq != 1 {
        return Err(Failure::Invalid);
    }
    let (answer, _) = Answer::read_from_prefix(rest).map_err(|_| Failure::Invalid)?;
    let asked = request(tuple).id;
    if answer.state == state::LISTEN
        || answer.id.sport != asked.sport
        || answer.id.dport != asked.dport
    {
        return Ok(None);
    }
    let [low, high] = answer.id.cookie;
    let cookie = u64::from(low) | u64::from(high) << 32;
    Ok(Some(Owner { uid: answer.uid, inode: answer.inode, cookie, state: answer.state }))
}

/// The socket of this network namespace whose own end is `tuple.local`, connected to
/// `tuple.remote`. For the peer of a socket of ours ask for `Tuple::of(fd).reversed()`.
///
/// Opens its netlink socket for each look-up. Forked children would share a cached one, and would
/// read each other's answers. A cached one would also keep looking where the process was before a
/// `setns`.
///
/// # Errors
/// The kernel's: out of descriptors, or a sandbox that has no netlink (`EPERM`, `EAFNOSUPPORT`, …).
pub fn find(tuple: &Tuple) -> Result<Option<Owner>, Failure> {
    look_up(None, &request(tuple), |answer| parse(tuple, answer))
}

/// What [`peer_of`] says where it cannot know: the calling thread is in another network namespace
/// than the socket.
pub const ELSEWHERE: Failure = Failure::Elsewhere;

/// The socket at the other end of a connected one of ours, in the namespace of that.
///
/// # Errors
/// As [`find`], and [`ELSEWHERE`].
pub fn peer_of(fd: RawFd, tuple: &Tuple) -> Result<Option<Owner>, Failure> {
    let tuple = tuple.reversed();
    look_up(sys::network_namespace(fd), &request(&tuple), |answer| parse(&tuple, answer))
}

/// How long ago, in nanoseconds, the other end of this network namespace's TCP connection last
/// acknowledged anything; `None` where there is no such connection. The kernel's own connections
/// are found too.
///
/// # Errors
/// As [`find`].
pub fn silence(tuple: &Tuple) -> Result<Option<u64>, Failure> {
    let asked = Request { ext: 1 << (INET_DIAG_INFO - 1), ..request(tuple) };
    look_up(None, &asked, |answer| {
        let found = parse(tuple, answer)?;
        let attributes =
            answer.get(size_of::<Header>() + size_of::<Answer>()..).unwrap_or_default();
        Ok(found.and_then(|_| last_heard(attributes)).map(|ms| u64::from(ms) * 1_000_000))
    })
}

/// `tcpi_last_ack_recv`, in milliseconds, out of the attributes behind an answer.
fn last_heard(mut attributes: &[u8]) -> Option<u32> {
    loop {
        let (header, _) = <[u16; 2]>::read_from_prefix(attributes).ok()?;
        let [len, kind] = header.map(usize::from);
        if kind == usize::from(INET_DIAG_INFO) {
            let field = attributes.get(4..len)?.get(LAST_ACK_RECEIVED..)?;
            return Some(u32::read_from_prefix(field).ok()?.0);
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

/// Asks in the namespace where the thread is; with `of`, only if it is that one.
fn look_up<R>(
    of: Option<u64>,
    request: &Request,
    read: impl FnOnce(&[u8]) -> Result<R, Failure>,
) -> Result<R, Failure> {
    stack::on_own(|| look_up_here(of, request, read))
}

fn look_up_here<R>(
    of: Option<u64>,
    request: &Request,
    read: impl FnOnce(&[u8]) -> Result<R, Failure>,
) -> Result<R, Failure> {
    stats::add(Counter::LookUps, 1);
    if trial::netlink_kills() {
        return Err(Failure::WrongFamily);
    }
    let socket = sock_diag::open()?;
    let here = of.and_then(|_| sys::network_namespace(socket.as_raw_fd()));
    let result =
        if here == of { sock_diag::ask(&socket, request.as_bytes(), read) } else { Err(ELSEWHERE) };
    sys::discard(socket);
    result
}

/// Inode and cookie of a socket of ours, in the form in which [`find`] gives them to others.
///
/// # Errors
/// `EBADF` and `ENOTSOCK` for what is no socket.
pub fn own_identity(fd: RawFd) -> Result<(u32, u64), Failure> {
    let fd = sys::borrow(fd);
    let cookie = sockets::cookie(fd)?;
    // sock_diag has 32 bits for the inode, and the kernel's socket inodes fit.
    let inode = files::status_of(fd)?.inode() as u32;
    Ok((inode, cookie))
}

/// Whether a socket of ours was made by the user that this process is: the user that a peer sees at
/// a rendezvous. Yes, where the kernel does not say.
#[must_use]
pub fn is_own_user(fd: RawFd) -> bool {
    files::status_of(sys::borrow(fd)).map_or(true, |s| s.owner() == identity::user())
}

/// Whether the process behind a rendezvous (its user by `SO_PEERCRED`) and the owner of the other
/// TCP socket are the same user. The overflow user never is: every user without a number in our
/// user namespace shows as that one.
#[must_use]
pub fn cred_matches(peer_uid: u32, owner: &Owner) -> bool {
    same_user(peer_uid, owner.uid, overflow_uid())
}

/// [`cred_matches`] as a function of numbers.
#[must_use]
pub const fn same_user(peer_uid: u32, owner_uid: u32, overflow: u32) -> bool {
    // 65534 also where the administrator changed it: what was munged before the change still shows
    // so. u32::MAX is "no user".
    peer_uid == owner_uid && peer_uid != overflow && peer_uid != 65534 && peer_uid != u32::MAX
}

/// Whether this is what the kernel calls every user that it has no number for here, so that it is
/// no proof of anything.
#[must_use]
pub fn is_nobody(uid: u32) -> bool {
    !same_user(uid, uid, overflow_uid())
}

/// The overflow uid plus 1 << 32, once it has been read. Two readers store the same.
static OVERFLOW: AtomicU64 = AtomicU64::new(0);

fn overflow_uid() -> u32 {
    let known = OVERFLOW.load(Ordering::Relaxed);
    if known != 0 {
        return known as u32;
    }
    let mut buf = [0u8; 16];
    let uid = sys::small_file::read_file(c"/proc/sys/kernel/overflowuid", &mut buf)
        .and_then(|text| core::str::from_utf8(text).ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65534);
    OVERFLOW.store(u64::from(uid) | 1 << 32, Ordering::Relaxed);
    uid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tuple::End;

    fn tuple() -> Tuple {
        let mut t = Tuple { family: 4, ..Tuple::default() };
        t.local = End { addr: [0; 16], port: 0x1234 };
        t.local.addr[..4].copy_from_slice(&[127, 0, 0, 1]);
        t.remote = End { port: 80, ..t.local };
        t
    }

    fn answer(state: u8, id: SockId) -> Vec<u8> {
        let header = Header { len: 88, kind: SOCK_DIAG_BY_FAMILY, flags: 0, seq: 1, pid: 9 };
        let body = Answer {
            family: 2,
            state,
            timer: 0,
            retrans: 0,
            id: SockId { cookie: [7, 1], ..id },
            expires: 0,
            rqueue: 0,
            wqueue: 0,
            uid: 1000,
            inode: 55,
        };
        [header.as_bytes(), body.as_bytes()].concat()
    }

    #[test]
    fn an_answer_is_parsed() {
        let owner = parse(&tuple(), &answer(1, request(&tuple()).id)).unwrap().unwrap();
        assert_eq!(owner, Owner { uid: 1000, inode: 55, cookie: 0x1_0000_0007, state: 1 });
        assert!(owner.is_alive() && owner.is(55, 0x1_0000_0007));
        assert!(!owner.is(55, 7) && !owner.is(54, 0x1_0000_0007));
    }

    #[test]
    fn listeners_and_other_ports_are_nobody() {
        assert_eq!(parse(&tuple(), &answer(state::LISTEN, request(&tuple()).id)), Ok(None));
        assert_eq!(parse(&tuple(), &answer(1, request(&tuple().reversed()).id)), Ok(None));
    }

    #[test]
    fn errors_and_rubbish() {
        let error = |code: i32| {
            let header = Header { len: 36, kind: NLMSG_ERROR, flags: 0, seq: 1, pid: 9 };
            [header.as_bytes(), &code.to_ne_bytes()[..]].concat()
        };
        assert_eq!(parse(&tuple(), &error(-libc::ENOENT)), Ok(None));
        assert_eq!(parse(&tuple(), &error(-libc::EPERM)), Err(Failure::NotPermitted));
        assert_eq!(parse(&tuple(), &error(0)), Err(Failure::Invalid));
        assert_eq!(parse(&tuple(), &error(i32::MIN)), Err(Failure::Invalid));
        let good = answer(1, request(&tuple()).id);
        for len in 0..good.len() {
            assert_eq!(parse(&tuple(), &good[..len]), Err(Failure::Invalid), "length {len}");
        }
    }

    #[test]
    fn users() {
        assert!(same_user(0, 0, 65534) && same_user(1000, 1000, 65534));
        assert!(!same_user(0, 1000, 65534) && !same_user(65534, 65534, 65534));
        assert!(!same_user(99, 99, 99) && !same_user(65534, 65534, 99));
        assert!(!same_user(u32::MAX, u32::MAX, 65534));
        let orphan = Owner { uid: 0, inode: 0, cookie: 1, state: 1 };
        assert!(!orphan.is_alive() && !orphan.is(0, 1));
        assert_eq!(cred_matches(0, &orphan), overflow_uid() != 0);
    }

    #[test]
    fn names_and_hints() {
        let t = tuple();
        assert_eq!(t.reversed().reversed(), t);
        assert_ne!(t.name_hash(), t.reversed().name_hash());
        assert_eq!(&t.to_bytes()[37..], [0x12, 0x34, 0, 80]);
        assert!(t.peer_may_be_local() && !t.is_self_connected());
        let mut far = t;
        far.remote.addr[0] = 10;
        assert!(!far.peer_may_be_local());
    }
}
