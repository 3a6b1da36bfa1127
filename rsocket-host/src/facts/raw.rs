//! The five kernel calls that rustix does not offer in the shape that attaching needs. Straight to
//! the kernel, because libc's functions of these names are hooked by the preload library and would
//! come back to us. Knows nothing about connections; everything else in [`super`] goes through
//! rustix.
//!
//! Entry points: [`getsockopt`], [`peer_pidfd`], [`setsockopt_int`], [`ioctl_int`], [`random`],
//! [`peek_with_note`].

use core::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::failure::Failure;

#[cfg(target_arch = "x86_64")]
mod nr {
    pub(super) const GETSOCKOPT: usize = 55;
    pub(super) const SETSOCKOPT: usize = 54;
    pub(super) const IOCTL: usize = 16;
    pub(super) const GETRANDOM: usize = 318;
    pub(super) const RECVMSG: usize = 47;
}
#[cfg(target_arch = "aarch64")]
mod nr {
    pub(super) const GETSOCKOPT: usize = 209;
    pub(super) const SETSOCKOPT: usize = 208;
    pub(super) const IOCTL: usize = 29;
    pub(super) const GETRANDOM: usize = 278;
    pub(super) const RECVMSG: usize = 212;
}

/// One system call with up to five arguments.
///
/// # Safety
/// The arguments must be what the call with this number expects, and every pointer among them valid
/// for what the call does with it.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(nr: usize, a: [usize; 5]) -> isize {
    let [a0, a1, a2, a3, a4] = a;
    let result: isize;
    // SAFETY: the registers are those of the kernel's calling convention, and rcx and r11 are
    // declared as destroyed. What the call does to memory is the caller's promise.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => result,
            in("rdi") a0, in("rsi") a1, in("rdx") a2, in("r10") a3, in("r8") a4,
            lateout("rcx") _, lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// One system call with up to five arguments.
///
/// # Safety
/// As on the other architecture.
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(nr: usize, a: [usize; 5]) -> isize {
    let [a0, a1, a2, a3, a4] = a;
    let result: isize;
    // SAFETY: the registers are those of the kernel's calling convention; what the call does to
    // memory is the caller's promise.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") nr,
            inlateout("x0") a0 as isize => result,
            in("x1") a1, in("x2") a2, in("x3") a3, in("x4") a4,
            options(nostack, preserves_flags),
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the kernel's calling convention on this architecture is missing in facts/raw.rs");

/// Turns the kernel's answer into a count or an error number.
fn check(result: isize) -> Result<usize, Failure> {
    usize::try_from(result)
        .map_err(|_| Failure::from_code(i32::try_from(-result).unwrap_or(libc::EINVAL)))
}

/// Types that are plain numbers: any bytes of the right length are a value.
///
/// # Safety
/// The implementor promises that all bit patterns are valid and that there is no padding that
/// matters.
pub unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for i32 {}

/// Reads a socket option. Bytes that the kernel does not fill stay 0 (an older kernel has a shorter
/// answer). The length that it did fill comes back beside the value.
pub fn getsockopt<T: Plain>(fd: RawFd, level: i32, name: i32) -> Result<(T, usize), Failure> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    let args = [
        fd as usize,
        level as usize,
        name as usize,
        value.as_mut_ptr() as usize,
        (&raw mut len) as usize,
    ];
    // SAFETY: the kernel writes at most `len` bytes to `value`, whose size that is, and `len`
    // itself; both live until the call returns.
    check(unsafe { syscall(nr::GETSOCKOPT, args) })?;
    // SAFETY: zeroed before, and any bytes are a value of a Plain type.
    Ok((unsafe { value.assume_init() }, len as usize))
}

/// The pidfd of the process that connected, or listened, at the other end of a UNIX socket (Linux
/// 6.5).
pub fn peer_pidfd(fd: RawFd) -> Option<OwnedFd> {
    // An option of unix(7) that libc has no name for.
    const SO_PEERPIDFD: i32 = 77;
    let (fd, _) = getsockopt::<i32>(fd, libc::SOL_SOCKET, SO_PEERPIDFD).ok()?;
    // SAFETY: the kernel has just opened it for us, and no other code knows of it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is one `int`.
pub fn setsockopt_int(fd: RawFd, level: i32, option: i32, value: i32) -> Result<(), Failure> {
    let args = [
        fd as usize,
        level as usize,
        option as usize,
        (&raw const value) as usize,
        size_of::<i32>(),
    ];
    // SAFETY: the kernel reads size_of::<i32>() bytes at a valid address.
    check(unsafe { syscall(nr::SETSOCKOPT, args) }).map(|_| ())
}

/// An ioctl that answers with one `int`, such as `SIOCINQ`.
pub(super) fn ioctl_int(fd: RawFd, request: u32) -> Result<i32, Failure> {
    let mut value = 0i32;
    let args = [fd as usize, request as usize, (&raw mut value) as usize, 0, 0];
    // SAFETY: the callers, all in this module's parent, name requests that write one int.
    check(unsafe { syscall(nr::IOCTL, args) })?;
    Ok(value)
}

/// Sixty-four bits from the kernel's random number generator, without waiting for it.
pub fn random() -> Result<u64, Failure> {
    let mut bytes = [0u8; 8];
    // GRND_NONBLOCK: very early in a machine's life the pool is not ready; then there is no
    // attaching yet.
    let args = [bytes.as_mut_ptr() as usize, bytes.len(), 1, 0, 0];
    // SAFETY: the kernel writes at most 8 bytes into the array.
    match check(unsafe { syscall(nr::GETRANDOM, args) })? {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Failure::Blocked),
    }
}

/// Looks at the first byte of the queue, and gives what the kernel notes beside it. That is the
/// `int` of a control message of this level and kind, if there is one. Does not wait.
///
/// # Errors
/// As recvmsg(2); `EAGAIN` also where the queue is empty.
pub(super) fn peek_with_note(fd: RawFd, level: i32, kind: i32) -> Result<Option<i32>, Failure> {
    // A header, an int, and padding.
    #[repr(C)]
    struct Note {
        header: libc::cmsghdr,
        value: i32,
        _pad: i32,
    }
    let mut byte = 0u8;
    let mut v = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut note = MaybeUninit::<Note>::zeroed();
    // SAFETY: all zero is a message header without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut v, 1);
    (message.msg_control, message.msg_controllen) = (note.as_mut_ptr().cast(), size_of::<Note>());
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let args = [fd as usize, (&raw mut message) as usize, flags as usize, 0, 0];
    // SAFETY: the header names one byte and the note, with their sizes; all of them live until the
    // call returns.
    if check(unsafe { syscall(nr::RECVMSG, args) })? == 0 {
        return Err(Failure::Blocked);
    }
    // SAFETY: zeroed before, and plain integers.
    let note = unsafe { note.assume_init() };
    let whole = message.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<i32>();
    let named = note.header.cmsg_level == level && note.header.cmsg_type == kind;
    Ok((whole && named).then_some(note.value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn errors_are_the_kernels() {
        assert_eq!(
            getsockopt::<i32>(-1, libc::SOL_SOCKET, libc::SO_TYPE).map(|_| ()),
            Err(Failure::BadDescriptor)
        );
        assert_eq!(ioctl_int(-1, 0x541b), Err(Failure::BadDescriptor));
    }

    #[test]
    fn an_option_and_a_random_number() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let (kind, len) =
            getsockopt::<i32>(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE).expect("type");
        assert_eq!((kind, len), (libc::SOCK_DGRAM, 4));
        assert_ne!(random(), random());
    }
}
