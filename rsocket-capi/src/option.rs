//! What an rsocket is asked to be: the table of rsocket(7), and nothing else. An option that is not
//! in it is refused, since the kernel socket underneath would take it without any effect.
//!
//! An rsocket's own sizes are kept in its slot. The rest are options of the kernel socket, where
//! the calls that they concern look them up.

use core::ffi::{c_int, c_long, c_void};

use libc::socklen_t;
use rsocket_edge::config::sizes::Size;
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::conn::timers;
use rsocket_edge::descriptors;
use rsocket_edge::descriptors::Entry;
use rsocket_edge::edge::{done, fail, nowhere};
use rsocket_edge::socket::options::harmless;
use rsocket_edge::{native, socket};
use rsocket_host::facts::kernel;
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Bytes};
use rsocket_host::sys;

use crate::{datagram, epoll, table};
use rsocket_edge::socket::timing;

const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// The numbers of the two time-outs with 64-bit times, which libc's header may choose.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;

/// What becomes of an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Kept in the slot.
    Kept(Size),
    /// The kernel socket's: our calls look it up there, or it concerns what the kernel does.
    Kernels,
    /// As [`Self::Kernels`], and a bridge must know it.
    Timer,
    /// The kernel socket's, and a queue pair's while it connects.
    WhileConnecting,
    /// As [`Self::Kernels`]; a name that the kernel does not know is no error, since nothing goes
    /// by it.
    Wish,
    /// The kernel's where the kernel knows the names.
    WithoutRdma,
    /// Can be asked for, of the kernel socket.
    Asked,
    /// `SO_ERROR`.
    Error,
    /// `TCP_MAXSEG`.
    Segment,
    /// `TCP_INFO`.
    Info,
}

fn rule(level: c_int, name: c_int) -> Option<Rule> {
    Some(match level {
        libc::SOL_SOCKET => match name {
            libc::SO_SNDBUF => Rule::Kept(Size::SendBuffer),
            libc::SO_RCVBUF => Rule::Kept(Size::ReceiveBuffer),
            libc::SO_REUSEADDR
            | libc::SO_LINGER
            | libc::SO_OOBINLINE
            | libc::SO_RCVTIMEO
            | libc::SO_SNDTIMEO
            | SO_RCVTIMEO_NEW
            | SO_SNDTIMEO_NEW
            | libc::SO_RCVLOWAT => Rule::Kernels,
            libc::SO_KEEPALIVE => Rule::Timer,
            libc::SO_REUSEPORT => Rule::WithoutRdma,
            libc::SO_TYPE | libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_ACCEPTCONN => {
                Rule::Asked
            }
            libc::SO_ERROR => Rule::Error,
            _ => return None,
        },
        libc::IPPROTO_TCP => match name {
            libc::TCP_NODELAY | libc::TCP_CORK | libc::TCP_QUICKACK => Rule::Kernels,
            libc::TCP_CONGESTION => Rule::Wish,
            libc::TCP_KEEPIDLE
            | libc::TCP_KEEPINTVL
            | libc::TCP_KEEPCNT
            | libc::TCP_USER_TIMEOUT => Rule::Timer,
            libc::TCP_MAXSEG => Rule::Segment,
            libc::TCP_INFO => Rule::Info,
            _ => return None,
        },
        libc::IPPROTO_IP if name == libc::IP_TOS => Rule::WhileConnecting,
        libc::IPPROTO_IPV6 => match name {
            libc::IPV6_V6ONLY => Rule::Kernels,
            libc::IPV6_TCLASS => Rule::WhileConnecting,
            _ => return None,
        },
        SOL_RDMA => match name {
            RDMA_SQSIZE => Rule::Kept(Size::SendQueue),
            RDMA_RQSIZE => Rule::Kept(Size::ReceiveQueue),
            RDMA_INLINE => Rule::Kept(Size::Inline),
            RDMA_IOMAPSIZE => Rule::Kept(Size::Iomap),
            _ => return None,
        },
        _ => return None,
    })
}

/// The same for a datagram socket, most of whose options are the kernel's.
fn datagram_rule(level: c_int, name: c_int, set: bool) -> Option<Rule> {
    match (level, name) {
        (SOL_RDMA, _) => rule(level, name),
        (libc::SOL_SOCKET, libc::SO_ERROR) => Some(Rule::Error),
        _ if !set || harmless(level, name) && !looks_into(level, name) => Some(Rule::Kernels),
        _ => None,
    }
}

/// Options that look at what the packets of a datagram socket say, which is not what the program
/// does.
fn looks_into(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(name, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF | libc::SO_LOCK_FILTER)
}

fn set(fd: c_int, (level, name): (c_int, c_int), value: Bytes<'_>) -> Result<(), Failure> {
    let slot = table::rsocket(fd)?;
    let datagrams = datagram::behind(fd).is_some();
    let rule = if datagrams { datagram_rule(level, name, true) } else { rule(level, name) };
    match rule.ok_or(Failure::Unsupported)? {
        Rule::Kept(size) => {
            if nowhere(value.as_ptr()) {
                return Err(Failure::BadAddress);
            }
            let asked = value.integer()?;
            // The kernel too takes a negative size of a buffer for a huge one; a negative queue is
            // nonsense.
            if asked < 0 && level == SOL_RDMA {
                return Err(Failure::Invalid);
            }
            return native::set_size(slot, size, asked.cast_unsigned());
        }
        Rule::Asked | Rule::Error | Rule::Info => return Err(Failure::UnknownOption),
        Rule::WithoutRdma if native::by_rdma(slot) => return Err(Failure::Unsupported),
        Rule::WhileConnecting if native::by_rdma(slot) && native::begun(slot) => {
            return Err(Failure::Invalid);
        }
        _ => {}
    }
    match kernel::set_given(fd, level, name, value) {
        // A wish that cannot be fulfilled does not matter.
        Err(Failure::Missing | Failure::NotPermitted) if rule == Some(Rule::Wish) => {}
        other => other?,
    }
    if level == libc::SOL_SOCKET {
        timing::facts_changed(slot);
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        socket::low_water(slot, fd);
    }
    if !datagrams && timers::concerns(level, name) {
        timing::changed(slot, fd);
    }
    Ok(())
}

/// Gives the program as much of an answer as it has room for.
fn give(answer: &[u8], to: Answer<'_>) -> Result<(), Failure> {
    let (value, length) = to.as_ptrs();
    if nowhere(value) || nowhere(length) {
        return Err(Failure::BadAddress);
    }
    to.option(answer)
}

fn get(
    slot: SlotId,
    fd: c_int,
    (level, name): (c_int, c_int),
    to: Answer<'_>,
) -> Result<(), Failure> {
    let datagrams = datagram::behind(fd).is_some();
    let rule = if datagrams { datagram_rule(level, name, false) } else { rule(level, name) };
    let integer = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX).to_ne_bytes();
    let own = match rule.ok_or(Failure::Unsupported)? {
        Rule::Error => Some(native::error(slot, fd)?.to_ne_bytes()),
        Rule::Kept(size) => Some(integer(native::size(slot, size))),
        Rule::Segment => native::info::segment(slot).map(integer),
        Rule::Info => {
            let (info, len) = native::info::tcp_info(slot, fd)?;
            return give(info.get(..len).unwrap_or(&info), to);
        }
        Rule::WithoutRdma if native::by_rdma(slot) => return Err(Failure::Unsupported),
        _ => None,
    };
    if let Some(own) = own {
        return give(&own, to);
    }
    kernel::get_given(fd, level, name, to)
}

fn control(fd: c_int, command: c_int, argument: c_long) -> Result<c_int, Failure> {
    let slot = if epoll::is_set(fd) { None } else { Some(table::rsocket(fd)?) };
    let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if !duplicates
        && !matches!(command, libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD)
    {
        return Err(Failure::Unsupported);
    }
    let result = sys::fcntl(fd, command, argument);
    if command == libc::F_SETFL
        && let Some(slot) = slot
    {
        timing::facts_changed(slot);
    }
    let r = result?;
    if duplicates
        && descriptors::mine()
        && let Some(slot) = slot
    {
        // Another name for the same rsocket; the last rclose ends it.
        let listens = matches!(descriptors::entry(fd), Entry::Listener(_));
        socket::duplicated(slot);
        if let Err(e) = table::enter(r, slot) {
            table::close(r);
            return Err(e);
        }
        if listens {
            descriptors::put(r, Entry::Listener(slot));
        }
    } else if duplicates && descriptors::mine() {
        epoll::duplicated(fd, r);
    }
    Ok(r)
}

call! {
    fn rsetsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> c_int {
        done(set(fd, (level, name), Bytes::new(value, length)))
    }

    fn rgetsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t,
    ) -> c_int {
        let to = Answer::new(value, length);
        done(table::rsocket(fd).and_then(|slot| get(slot, fd, (level, name), to)))
    }

    /// Variadic in C: on the ABIs that we build for, a variadic integer travels as an ordinary one
    /// does. An integer that was not passed is a register whose value is not used.
    fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        match control(fd, command, argument) {
            Ok(r) => r,
            Err(e) => fail(e),
        }
    }
}
