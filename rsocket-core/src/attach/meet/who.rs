//! Which process is at the other end of a UNIX socket, in words that both of them understand.
//!
//! A proof says that a process knows what only the two ends of a connection know. It does not say
//! that this process is the sender. So each end names itself in its proof, and the other end asks
//! the kernel which process has made the socket. The name is the number of the inode of the
//! process's pidfd, which no two processes share and which every process sees alike (Linux 6.9).
//! Else the name is the pid, where both ends are in one pid namespace.
//!
//! Must not know what is proved. Entry points: [`Who::own`], [`is_behind`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::host::raw;
use crate::seqpacket::Channel;
use crate::sys::{self, identity};

/// A process, for others. What is not known is 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Who {
    /// The inode of its pidfd.
    pub process: u64,
    /// The inode of its pid namespace.
    pub namespace: u64,
    /// Its pid there.
    pub pid: u32,
    zero: u32,
}

/// Length of [`Who::to_bytes`].
pub const WHO_BYTES: usize = size_of::<Who>();
const _: () = assert!(WHO_BYTES == 24);

impl Who {
    /// One with these numbers.
    #[must_use]
    pub const fn new(process: u64, namespace: u64, pid: u32) -> Self {
        Self { process, namespace, pid, zero: 0 }
    }

    /// This process. Some six system calls; nothing is remembered, since a forked child is another.
    #[must_use]
    pub fn own() -> Self {
        let process = identity::own_pidfd().map_or(0, identity::number);
        Self::new(process, identity::pid_namespace(), sys::pid())
    }

    /// As bytes that both ends put into what they prove.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; WHO_BYTES] {
        zerocopy::transmute!(*self)
    }
}

/// The number of the process that made the socket at the other end of the channel; 0 where the
/// kernel does not tell.
#[must_use]
pub fn inode_of(channel: &Channel) -> u64 {
    raw::peer_pidfd(channel.fd).map_or(0, identity::number)
}

/// Whether the process `said` made the socket at the other end of the channel, given that this
/// process is `own`. No, where the kernel does not tell.
#[must_use]
pub fn is_behind(said: &Who, own: &Who, channel: &Channel) -> bool {
    if own.process != 0 && said.process != 0 {
        return raw::peer_pidfd(channel.fd).is_some_and(|fd| identity::number(fd) == said.process);
    }
    let same_space = own.namespace != 0 && said.namespace == own.namespace;
    same_space && said.pid != 0 && said.pid == channel.peer_pid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::os::fd::{AsRawFd, OwnedFd};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn oneself() {
        let own = Who::own();
        assert_eq!((own, own.pid), (Who::own(), std::process::id()));
        let (ours, _theirs) = pair();
        let channel = Channel { fd: ours.as_raw_fd() };
        assert!(is_behind(&own, &own, &channel), "{own:?}");
        // By each way alone.
        let (by_inode, by_pid) = (Who { namespace: 0, pid: 0, ..own }, Who { process: 0, ..own });
        assert_eq!(is_behind(&by_inode, &own, &channel), own.process != 0);
        assert_eq!(is_behind(&by_pid, &own, &channel), own.namespace != 0);
    }

    #[test]
    fn others() {
        let own = Who::own();
        let (ours, _theirs) = pair();
        let channel = Channel { fd: ours.as_raw_fd() };
        let wrong = [
            Who { process: own.process + 1, ..own },
            Who { process: 0, pid: own.pid + 1, ..own },
            Who { process: 0, namespace: own.namespace + 1, ..own },
            Who::default(),
        ];
        for who in wrong {
            assert!(!is_behind(&who, &own, &channel), "{who:?}");
        }
    }

    #[test]
    fn a_child_is_another() {
        let own = Who::own();
        let (ours, theirs) = pair();
        // The socket is the parent's, whichever process has it.
        let channel = Channel { fd: ours.as_raw_fd() };
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let child = Who::own();
            let right = child != own && !is_behind(&child, &child, &channel);
            // SAFETY: ends the child without what its parent would do at its own end.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        drop(theirs);
        let mut status = 0;
        // SAFETY: a child of ours, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
