//! What an rsocket is asked to be. Its own sizes are kept in its slot; what is left is an option of the kernel
//! socket, where that does no harm.

use core::ffi::{c_int, c_long, c_void};

use libc::socklen_t;
use rsocket_core::descriptors::{self, Entry};
use rsocket_core::edge::{done, fail, nowhere};
use rsocket_core::errno::Errno;
use rsocket_core::socket::options::{Size, harmless};
use rsocket_core::socket::{self, SlotId};
use rsocket_core::{plain, sys};

use crate::{datagram, table};

const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// An option that is kept in the slot.
fn kept(level: c_int, name: c_int) -> Option<Size> {
    match (level, name) {
        (SOL_RDMA, RDMA_SQSIZE) => Some(Size::SendQueue),
        (SOL_RDMA, RDMA_RQSIZE) => Some(Size::ReceiveQueue),
        (SOL_RDMA, RDMA_INLINE) => Some(Size::Inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => Some(Size::Iomap),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => Some(Size::SendBuffer),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => Some(Size::ReceiveBuffer),
        _ => None,
    }
}

/// Whether the kernel socket may be told. Not that it should wait for bytes before it accepts: none ever come
/// over TCP.
fn for_the_kernel(level: c_int, name: c_int) -> bool {
    harmless(level, name) && (level, name) != (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)
}

/// Options that look at what the packets of a datagram socket say, which is not what the program does.
fn looks_into(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(name, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF | libc::SO_LOCK_FILTER)
}

/// # Safety
/// `value` is null or points to `length` bytes.
unsafe fn integer(value: *const c_void, length: socklen_t) -> Result<c_int, Errno> {
    if nowhere(value) {
        return Err(Errno(libc::EFAULT));
    }
    if (length as usize) < size_of::<c_int>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: checked, and the caller's promise.
    Ok(unsafe { value.cast::<c_int>().read_unaligned() })
}

/// # Safety
/// As `setsockopt`.
unsafe fn set(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Result<(), Errno> {
    let slot = table::rsocket(fd)?;
    let datagrams = datagram::behind(fd).is_some();
    if let Some(size) = kept(level, name).filter(|_| !datagrams || level == SOL_RDMA) {
        // SAFETY: the caller's promise.
        let asked = unsafe { integer(value, length) }?;
        // The kernel too takes a negative size of a buffer for a huge one; a negative queue is nonsense.
        if asked < 0 && level == SOL_RDMA {
            return Err(Errno::INVAL);
        }
        return plain::set_size(slot, size, asked.cast_unsigned());
    }
    if !for_the_kernel(level, name) || datagrams && looks_into(level, name) {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: passed on as the caller gave it; the kernel checks.
    let r = unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value, length) };
    if r != 0 {
        return Err(Errno(sys::errno()));
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        // SAFETY: the kernel read the value from there just now.
        socket::low_water(slot, unsafe { integer(value, length) }?.unsigned_abs());
    }
    Ok(())
}

/// # Safety
/// As `getsockopt`.
unsafe fn get(
    slot: SlotId,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    let own = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => Some(plain::error(slot, fd)?),
        _ if level != SOL_RDMA && datagram::behind(fd).is_some() => None,
        _ => kept(level, name).map(|size| c_int::try_from(plain::size(slot, size)).unwrap_or(c_int::MAX)),
    };
    if let Some(own) = own {
        if nowhere(value) || nowhere(length) {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller's promise; no more is written than there is room for.
        unsafe {
            let n = (length.read_unaligned() as usize).min(size_of::<c_int>());
            core::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), value.cast::<u8>(), n);
            length.write_unaligned(n as socklen_t);
        }
        return Ok(());
    }
    // The one option that takes bytes from the stream.
    if level == SOL_RDMA || (level, name) == (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE) {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: passed on as the caller gave it; the kernel checks.
    let r = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, length) };
    if r == 0 { Ok(()) } else { Err(Errno(sys::errno())) }
}

fn control(fd: c_int, command: c_int, argument: c_long) -> Result<c_int, Errno> {
    let slot = table::rsocket(fd)?;
    let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if !duplicates && !matches!(command, libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD) {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: none of these commands takes a pointer.
    let r = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
    let r = c_int::try_from(r).map_err(|_| Errno::INVAL)?;
    if r < 0 {
        return Err(Errno(sys::errno()));
    }
    if duplicates && descriptors::mine() {
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
    }
    Ok(r)
}

call! {
    fn rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        done(set(fd, level, name, value, length))
    }

    fn rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        done(table::rsocket(fd).and_then(|slot| get(slot, fd, level, name, value, length)))
    }

    /// Variadic in C: on the ABIs that we build for a variadic integer travels as an ordinary one does, and one
    /// that was not passed is a register that nobody looks at.
    fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        match control(fd, command, argument) {
            Ok(r) => r,
            Err(e) => fail(e),
        }
    }
}
