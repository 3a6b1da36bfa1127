//! Bytes in: `read`, `recv` and their relatives.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::socket;
use rsocket_edge::socket::{Route, inq, stamps};
use rsocket_host::failure::Failure;
use rsocket_host::given::In;
use rsocket_host::probe::present;
use rsocket_host::reason::Reason;
use rsocket_host::sys;

use super::messages::{bad_list, saw_each, total};
use super::passing::{came, may_bring};
use crate::edge::{self, count, fail, iovecs, keeping_errno, nowhere, one, small};
use crate::{real, shadow};

/// Flags that are no receive of the stream: reports, and the urgent byte. TCP looks at five others
/// (`MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT`, `MSG_TRUNC`, `MSG_CMSG_CLOEXEC`), and ignores the
/// rest (recv(2)).
const OTHER_QUEUES: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// [`socket::enter_receive`] for a call that only the kernel can do.
pub(crate) fn enter_kernel(slot: SlotId, fd: c_int) -> Route {
    match socket::enter_receive(slot, fd) {
        Route::Device => back_to_kernel(slot, fd),
        route => route,
    }
}

#[cold]
fn back_to_kernel(slot: SlotId, fd: c_int) -> Route {
    socket::refuse(slot, fd, Reason::OddUse);
    socket::enter_receive(slot, fd)
}

/// What libc has just received may be the beginning by which an end on another host knows us.
#[inline]
fn saw(slot: SlotId, to: &[iovec], flags: c_int, r: ssize_t) {
    if socket::watching()
        && flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0
        && let Ok(n @ 1..) = usize::try_from(r)
    {
        socket::fingerprint_bytes(slot, true, to, n);
    }
}

/// One receiving call: `real` is the pass-through.
#[inline]
pub(crate) fn receive(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if flags & OTHER_QUEUES == 0
        && let Some(n) = socket::receive_at_once(slot, to, flags)
    {
        return n.cast_signed();
    }
    if flags & OTHER_QUEUES != 0 {
        // Reads reports, or the urgent byte, which is the kernel's business: a peer that sends one
        // has gone back to TCP before. Not bytes of the stream, and never sleeps.
        return real();
    }
    match socket::enter_receive(slot, fd) {
        Route::Kernel => {
            let r = real();
            socket::leave_receive(slot, fd, r);
            saw(slot, to, flags, r);
            r
        }
        Route::Device => count(socket::receive_patiently(slot, fd, to, flags)),
    }
}

/// `read` is `recv` without flags (or with the one that does not wait), but for nothing: a read of
/// no bytes never sleeps.
#[inline]
pub(crate) fn read_like(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if edge::length(to) == 0 {
        return real();
    }
    receive(slot, fd, to, flags, real)
}

/// After a stream has given bytes, `recvfrom` says that there was no address to give. It says so as
/// the kernel does, and with the kernel's errors, when the bytes are taken.
///
/// # Safety
/// `length` is null or points to the caller's `socklen_t`.
pub(crate) unsafe fn no_address(
    r: ssize_t,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    if r < 0 || address.is_null() {
        return r;
    }
    if nowhere(length) {
        return fail(Failure::BadAddress) as ssize_t;
    }
    // SAFETY: somewhere, and the caller's promise.
    let room = unsafe { length.replace(0) };
    if room.cast_signed() < 0 { fail(Failure::Invalid) as ssize_t } else { r }
}

/// What the kernel has to say beside the bytes is asked for, in the first message at least.
///
/// # Safety
/// `message` points to a valid header.
unsafe fn has_room(slot: SlotId, fd: c_int, message: *const msghdr) {
    // SAFETY: the caller's promise.
    if unsafe { (*message).msg_controllen } > 0 {
        keeping_errno(|| stamps::wanted(slot, fd));
    }
}

/// `recvmsg` on the device: a stream gives no address, no control data and no flags.
///
/// # Safety
/// `message` points to a valid header that `to` was taken from.
unsafe fn message_from_device(
    slot: SlotId,
    fd: c_int,
    message: *mut msghdr,
    to: &[iovec],
    flags: c_int,
) -> Result<usize, Failure> {
    let n = socket::receive(slot, fd, to, flags)?;
    // SAFETY: the caller's promise.
    let message = unsafe { &mut *message };
    if !message.msg_name.is_null() {
        message.msg_namelen = 0;
    }
    let room = message.msg_controllen;
    message.msg_controllen = 0;
    // The kernel gives this one back as it came (recvmsg(2)).
    message.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    if inq::is_told(slot) {
        // SAFETY: the caller's header says where there is room for so many bytes.
        unsafe { tell_inq(message, room, inq::hint(slot, fd)) };
    }
    Ok(n)
}

/// Puts `TCP_INQ`'s control message into a header, or as much of it as there is room for, as the
/// kernel does.
///
/// # Safety
/// The header's control buffer has `room` bytes, or is null.
unsafe fn tell_inq(message: &mut msghdr, room: usize, unread: c_int) {
    // SAFETY: these only count.
    let (whole, space) = unsafe {
        let size = size_of::<c_int>() as c_uint;
        (libc::CMSG_LEN(size) as usize, libc::CMSG_SPACE(size) as usize)
    };
    if room < size_of::<libc::cmsghdr>() || message.msg_control.is_null() {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let length = whole.min(room);
    if length < whole {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    // SAFETY: there is room for the header, which was asked above, and for the data up to `length`.
    unsafe {
        let header = message.msg_control.cast::<libc::cmsghdr>();
        let mut said: libc::cmsghdr = core::mem::zeroed();
        said.cmsg_len = length as _;
        said.cmsg_level = libc::IPPROTO_TCP;
        said.cmsg_type = libc::TCP_INQ;
        header.write_unaligned(said);
        let data = libc::CMSG_DATA(header);
        let bytes = unread.to_ne_bytes();
        core::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            data,
            length.saturating_sub(size_of::<libc::cmsghdr>()).min(bytes.len()),
        );
    }
    message.msg_controllen = space.min(room);
}

/// `TCP_INQ` of a message that the kernel gave: what the channel has behind TCP's bytes can be
/// read, too.
///
/// # Safety
/// The kernel has filled the header.
unsafe fn tell_of_both(slot: SlotId, fd: c_int, message: *const msghdr) {
    let Some(unread) = inq::beside_tcp(slot, fd) else { return };
    // SAFETY: the kernel's messages, as its header says; the last check is that there is room for
    // what is written.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let said = header.read_unaligned();
            if (said.cmsg_level, said.cmsg_type) == (libc::IPPROTO_TCP, libc::TCP_INQ)
                && said.cmsg_len as usize >= libc::CMSG_LEN(size_of::<c_int>() as c_uint) as usize
            {
                libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(unread);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// `recvmmsg` on the device, message by message as the kernel does it. The call looks at the time
/// after each message only, and leaves an error after the first message to the next call.
///
/// # Safety
/// `list` points to `length` valid headers, `timeout` is null or valid.
unsafe fn messages_from_device(
    (slot, fd): (SlotId, c_int),
    (list, length): (*mut mmsghdr, c_uint),
    flags: c_int,
    timeout: *mut timespec,
) -> Result<usize, Failure> {
    // SAFETY: the caller's promise.
    let time = edge::span(unsafe { In::new(timeout) })?;
    let end =
        time.map(|t| sys::now_ns().saturating_add(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)));
    let after_one = if flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
    let first = flags & !libc::MSG_WAITFORONE;
    // Before the first message, bytes or not.
    socket::pending_error(slot, fd)?;
    let mut done = 0;
    while done < length as usize {
        let flags = if done > 0 { first | after_one } else { first };
        // SAFETY: below `length`, so inside what the caller promises.
        match unsafe { entry_from_device(slot, fd, list.wrapping_add(done), flags) } {
            Ok(()) => done += 1,
            Err(e) if done == 0 => return Err(e.of_call()),
            Err(Unreceived::Header(_)) => return Ok(done),
            Err(Unreceived::Stream(e)) => {
                socket::leave_error(slot, e);
                return Ok(done);
            }
        }
        // SAFETY: there is an end only if `timeout` is not null.
        if end.is_some_and(|end| unsafe { is_over(end, timeout) }) {
            break;
        }
    }
    Ok(done)
}

/// Why a message of a list was not received: for what the caller gave, or for the connection.
#[derive(Clone, Copy)]
enum Unreceived {
    Header(Failure),
    Stream(Failure),
}

impl Unreceived {
    const fn of_call(self) -> Failure {
        match self {
            Self::Header(e) | Self::Stream(e) => e,
        }
    }
}

/// One message of a list.
///
/// # Safety
/// `entry` points to a valid header, or to nothing that can be read.
unsafe fn entry_from_device(
    slot: SlotId,
    fd: c_int,
    entry: *mut mmsghdr,
    flags: c_int,
) -> Result<(), Unreceived> {
    if !present(entry, 1) {
        return Err(Unreceived::Header(Failure::BadAddress));
    }
    // SAFETY: it is there, which was asked just before; what it names is the caller's promise.
    unsafe {
        let header = &raw mut (*entry).msg_hdr;
        let Some(to) = iovecs((*header).msg_iov, (*header).msg_iovlen) else {
            return Err(Unreceived::Header(bad_list(&*header)));
        };
        let n = message_from_device(slot, fd, header, to, flags).map_err(Unreceived::Stream)?;
        (*entry).msg_len = u32::try_from(n).unwrap_or(u32::MAX);
    }
    Ok(())
}

/// Writes how much time is left, as the kernel does, and says whether there is none.
///
/// # Safety
/// `timeout` is the caller's.
unsafe fn is_over(end: u64, timeout: *mut timespec) -> bool {
    let left = end.saturating_sub(sys::now_ns());
    // SAFETY: the caller's promise.
    unsafe {
        (*timeout).tv_sec = i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX);
        (*timeout).tv_nsec = (left % 1_000_000_000) as i64;
    }
    left == 0
}

/// `read` of a descriptor of whatever kind.
///
/// # Safety
/// The contract of read(2).
pub(crate) unsafe fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let real = || unsafe { real::read(fd, buffer, length) };
    match shadow::connection(fd) {
        Some(slot) => read_like(slot, fd, &one(buffer, length), 0, real),
        None => real(),
    }
}

/// `readv`.
///
/// # Safety
/// The contract of readv(2).
pub(crate) unsafe fn readv(slot: SlotId, fd: c_int, list: *const iovec, length: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let real = || unsafe { real::readv(fd, list, length) };
    // SAFETY: as above.
    match usize::try_from(length).ok().and_then(|n| unsafe { iovecs(list, n) }) {
        Some(to) => read_like(slot, fd, to, 0, real),
        None => real(),
    }
}

/// `recvmsg` into a header that is somewhere.
///
/// # Safety
/// The contract of recvmsg(2).
pub(crate) unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let real = || unsafe { real::recvmsg(fd, message, flags) };
    // Of a socket that is none of ours nothing is read before the kernel has found that it is
    // there.
    let Some(slot) = shadow::connection(fd) else {
        let r = real();
        // SAFETY: the kernel has filled in the header.
        if r >= 0 && unsafe { may_bring(message) } {
            // SAFETY: as above.
            keeping_errno(|| unsafe { came(message, flags) });
        }
        return r;
    };
    // The sign bit is the kernel's own, for programs of 32 bits: it refuses the call.
    if flags & OTHER_QUEUES != 0 || flags < 0 || !present(message, 1) {
        return real();
    }
    // SAFETY: the header is there, which was asked just before, and its list is the caller's
    // promise.
    let Some(to) = (unsafe { iovecs((*message).msg_iov, (*message).msg_iovlen) }) else {
        return real();
    };
    // SAFETY: as above.
    unsafe { has_room(slot, fd, message) };
    match socket::enter_receive(slot, fd) {
        Route::Kernel => {
            let r = real();
            socket::leave_receive(slot, fd, r);
            saw(slot, to, flags, r);
            if r >= 0 && inq::is_told(slot) {
                // SAFETY: the kernel has filled in the header.
                keeping_errno(|| unsafe { tell_of_both(slot, fd, message) });
            }
            r
        }
        // SAFETY: as above.
        Route::Device => count(unsafe { message_from_device(slot, fd, message, to, flags) }),
    }
}

/// `recvmmsg` into a list that is somewhere.
///
/// # Safety
/// The contract of recvmmsg(2).
pub(crate) unsafe fn recvmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    length: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let real = || unsafe { real::recvmmsg(fd, list, length, flags, timeout) };
    let Some(slot) = shadow::connection(fd) else {
        let r = real();
        let each = 0..usize::try_from(r).unwrap_or(0);
        // SAFETY: the kernel has filled in so many headers.
        let brought = |i| unsafe { came(&raw const (*list.add(i)).msg_hdr, flags) };
        keeping_errno(|| each.for_each(brought));
        return r;
    };
    if flags & OTHER_QUEUES != 0 || flags < 0 || !present(list, 1) {
        return real();
    }
    if length > 0 {
        // SAFETY: the first header is there, which was asked just before.
        unsafe { has_room(slot, fd, &raw const (*list).msg_hdr) };
    }
    if socket::enter_receive(slot, fd) == Route::Device {
        // SAFETY: the caller's promise.
        return small(unsafe { messages_from_device((slot, fd), (list, length), flags, timeout) });
    }
    let r = real();
    // SAFETY: the kernel has filled in so many headers, here and below.
    unsafe {
        socket::leave_receive(slot, fd, total(r, list));
        saw_each(slot, true, list, r, flags);
        // What the program goes by is the last one.
        if inq::is_told(slot)
            && let Some(last) = usize::try_from(r).ok().and_then(|n| n.checked_sub(1))
        {
            keeping_errno(|| tell_of_both(slot, fd, &raw const (*list.add(last)).msg_hdr));
        }
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header after [`tell_inq`] with so much room, and the bytes of its control data.
    fn told(room: usize) -> (msghdr, [u64; 4]) {
        let mut control = [0xaaaa_aaaa_aaaa_aaaa_u64; 4];
        // SAFETY: integers and pointers, for which zero is a value.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the buffer has 32 bytes, and `room` is no more.
        unsafe { tell_inq(&mut message, room, 77) };
        (message, control)
    }

    #[test]
    fn what_can_be_read_is_told_in_the_room_there_is() {
        let (message, control) = told(32);
        assert_eq!((message.msg_controllen, message.msg_flags), (24, 0));
        assert_eq!((control[0], control[2] as u32), (20, 77));
        // Room for the header alone: it is cut, and says so; nothing beyond the room is written.
        let (message, control) = told(16);
        assert_eq!((message.msg_controllen, message.msg_flags), (16, libc::MSG_CTRUNC));
        assert_eq!((control[0], control[2]), (16, 0xaaaa_aaaa_aaaa_aaaa));
        // Not even that.
        let (message, control) = told(15);
        assert_eq!((message.msg_controllen, message.msg_flags), (0, libc::MSG_CTRUNC));
        assert_eq!(control[0], 0xaaaa_aaaa_aaaa_aaaa);
    }
}
