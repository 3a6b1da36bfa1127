//! For fuzzers only (`--cfg fuzzing`): a program's end of a connection whose channel a hostile peer
//! writes.
//!
//! The victim is the real thing, from `socket` down; the peer is whatever the fuzzer makes of the
//! memory that both have. Must not be part of a library that a program loads. Entry point:
//! [`Victim`].
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a fuzzer is told by a panic"
)]

use core::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::bridge::{loopback, own_channel};
use crate::channel::link::{self, Ends};
use crate::conn::fork_group;
use crate::conn::slot::{SlotId, flag};
use crate::device::shm::layout::{self, DIRECTION_LEN, HEAD_LEN};
use crate::failure::Failure;
use crate::{socket, sys};

/// Bytes of a channel: what the peer can write.
pub const CHANNEL: usize = layout::CHANNEL_LEN;

/// A connected socket with a channel, and a peer that is none.
pub struct Victim {
    fd: OwnedFd,
    tie: Option<OwnedFd>,
    id: SlotId,
    port: Option<crate::bridge::channel_port::ChannelPort>,
    ends: Ends,
    base: *mut u8,
}

impl Default for Victim {
    fn default() -> Self {
        Self::new()
    }
}

impl Victim {
    /// One that has exchanged nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let fd = sys::sockets::stream_for(&(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let tie = loopback::tie(fd.as_raw_fd()).unwrap();
        let id = fork_group::take(0, fd.as_raw_fd()).unwrap();
        let (claim, port) = own_channel::channel().unwrap();
        let s = fork_group::slot(id).unwrap();
        own_channel::enter_new(id, s, (claim.record, claim.channel), 0).unwrap();
        // Nothing carries its bytes on: the other side is a peer's.
        s.clear(flag::BRIDGED);
        let ends = link::ends(s).unwrap();
        let [a, b] = [&ends.incoming, &ends.outgoing]
            .map(|d| d.payload(0, 1).unwrap().wrapping_sub(HEAD_LEN));
        assert_eq!(a.addr().abs_diff(b.addr()), DIRECTION_LEN);
        let base = if a.addr() < b.addr() { a } else { b };
        Self { fd, tie: Some(tie), id, port: Some(port), ends, base }
    }

    /// The peer writes anywhere into the channel, as far as it goes.
    pub fn scribble(&mut self, at: usize, bytes: &[u8]) {
        for (i, byte) in
            bytes.iter().enumerate().take_while(|(i, _)| at.saturating_add(*i) < CHANNEL)
        {
            // SAFETY: within the channel, which lives as long as the connection; the victim reads
            // it through atomics and raw pointers only.
            unsafe { self.base.add(at + i).write_volatile(*byte) };
        }
    }

    /// The peer publishes this word as the next one of what comes to the victim.
    pub fn publish(&mut self, position: u32, word: u32) {
        self.ends.incoming.publish_data(position, word);
    }

    /// The peer publishes this word as the next one of what it gives back.
    pub fn credit(&mut self, position: u32, word: u32) {
        self.ends.outgoing.publish_control(position, word);
    }

    /// The program sends so many bytes, without waiting.
    ///
    /// # Errors
    /// What `send` would say.
    pub fn send(&mut self, n: usize) -> Result<usize, Failure> {
        let bytes = vec![0x5a; n];
        let v = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: n }];
        let sent = socket::send(self.id, self.fd.as_raw_fd(), &v, libc::MSG_DONTWAIT)?;
        assert!(sent <= n);
        Ok(sent)
    }

    /// The program receives into exactly so many bytes, without waiting, or looks at them only.
    ///
    /// # Errors
    /// What `recv` would say.
    pub fn receive(&mut self, n: usize, peek: bool) -> Result<usize, Failure> {
        let mut bytes = vec![0; n].into_boxed_slice();
        let v = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: n }];
        let flags = libc::MSG_DONTWAIT | if peek { libc::MSG_PEEK } else { 0 };
        let got = socket::receive(self.id, self.fd.as_raw_fd(), &v, flags)?;
        assert!(got <= n);
        Ok(got)
    }

    /// The program writes to a mapping of the peer's, without waiting.
    ///
    /// # Errors
    /// What `riowrite` would say.
    pub fn place(&mut self, n: usize, offset: i64) -> Result<usize, Failure> {
        let bytes = vec![0xa5; n];
        let v = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: n }];
        crate::iomap::write(self.id, self.fd.as_raw_fd(), &v, offset, libc::MSG_DONTWAIT)
    }

    /// The program polls, and asks how much there is.
    pub fn look(&mut self) {
        let _ = socket::look(self.id, self.fd.as_raw_fd());
        let _ = socket::unread(self.id, self.fd.as_raw_fd());
        let _ = socket::progress(self.id);
    }

    /// The program shuts its sending side.
    pub fn shut(&mut self) {
        socket::shutdown(self.id, self.fd.as_raw_fd(), libc::SHUT_WR);
    }

    /// The peer's TCP ends.
    pub fn hang_up(&mut self) {
        self.tie = None;
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        socket::closing(self.id, self.fd.as_raw_fd());
        if let Some(port) = self.port.take() {
            port.close();
        }
    }
}
