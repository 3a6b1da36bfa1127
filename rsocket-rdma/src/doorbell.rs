//! The doorbell of a software device whose provider may not ring it any more.
//!
//! The provider of soft-RoCE tells the kernel of new work by a `write` to the device's file. The
//! kernel takes such writes only from the very credentials that opened it. It takes none from a
//! server that has changed to its user's since (setuid(2), setgroups(2), a log-in of sshd). The
//! kernel takes the same command as an ioctl(2) from any process that has the file, which is how
//! libibverbs sends all its other commands. Adapters have doorbells in mapped memory, and need
//! neither. Soft-iWARP's provider is left alone: it complains on the program's standard error,
//! which may be a connection, each time it is refused. Layouts and numbers are those of
//! `rdma/ib_user_ioctl_cmds.h` and `rdma/ib_user_verbs.h`. Entry point: [`ring`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;

use rsocket_host::failure::Failure;

/// `RDMA_VERBS_IOCTL`.
const VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;
/// `UVERBS_OBJECT_DEVICE`, and of its methods `UVERBS_METHOD_INVOKE_WRITE`.
const OBJECT_DEVICE: u16 = 0;
const METHOD_INVOKE_WRITE: u16 = 0;
/// The attributes of that method: what the command says, where its answer goes, which command it
/// is.
const ATTR_CORE_IN: u16 = 0;
const ATTR_CORE_OUT: u16 = 1;
const ATTR_WRITE_CMD: u16 = 2;
const ATTR_MANDATORY: u16 = 1;
/// `IB_USER_VERBS_CMD_POST_SEND`.
const COMMAND_POST_SEND: u64 = 28;
/// `sizeof(struct ib_uverbs_send_wr)`: what the kernel wants a work request to be at least, though
/// it gets none.
const WORK_REQUEST: u32 = 56;
/// `RDMA_DRIVER_RXE`. A command for another driver than the file's is refused without effect.
const DRIVER: u32 = 14;

/// `struct ib_uverbs_attr`.
#[repr(C)]
struct Attribute {
    id: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    /// The data themselves up to eight bytes, then their address.
    data: u64,
}

/// `struct ib_uverbs_ioctl_hdr` with the attributes of this command.
#[repr(C)]
struct Invocation {
    length: u16,
    object: u16,
    method: u16,
    count: u16,
    reserved1: u64,
    driver: u32,
    reserved2: u32,
    attributes: [Attribute; 3],
}

/// `struct ib_uverbs_post_send` without work requests: look at the queue, there is something in it.
#[repr(C)]
struct PostSend {
    response: u64,
    queue_pair: u32,
    requests: u32,
    entries: u32,
    request_size: u32,
}

/// Rings for the queue pair with this handle, on the device whose file is `file`. Does not block.
pub(super) fn ring(file: c_int, queue_pair: u32) -> Result<(), Failure> {
    let mut answer = 0_u32;
    let command =
        PostSend { response: 0, queue_pair, requests: 0, entries: 0, request_size: WORK_REQUEST };
    let attribute = |id, len, data| Attribute { id, len, flags: ATTR_MANDATORY, reserved: 0, data };
    let mut invocation = Invocation {
        length: size_of::<Invocation>() as u16,
        object: OBJECT_DEVICE,
        method: METHOD_INVOKE_WRITE,
        count: 3,
        reserved1: 0,
        driver: DRIVER,
        reserved2: 0,
        attributes: [
            attribute(ATTR_CORE_IN, size_of::<PostSend>() as u16, &raw const command as u64),
            attribute(ATTR_CORE_OUT, size_of::<u32>() as u16, &raw mut answer as u64),
            attribute(ATTR_WRITE_CMD, size_of::<u64>() as u16, COMMAND_POST_SEND),
        ],
    };
    // SAFETY: the invocation is of the size that it says. What its attributes point to lives on
    // this stack with the sizes that they say.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, file, VERBS_IOCTL, &raw mut invocation) };
    if done == 0 { Ok(()) } else { Err(Failure::last()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_are_the_kernels() {
        assert_eq!(size_of::<Attribute>(), 16);
        assert_eq!(size_of::<Invocation>(), 24 + 3 * 16);
        assert_eq!(size_of::<PostSend>(), 24);
    }

    #[test]
    fn what_is_no_device_says_so() {
        assert_eq!(ring(-1, 0), Err(Failure::BadDescriptor));
    }
}
