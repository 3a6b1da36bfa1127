//! What a hostile peer can do over shared memory: the other side of the channel is driven by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::{ANY, closing};
use crate::bridge::channel_port::ChannelPort;
use crate::bridge::pump_tests::program;
use crate::channel::link::Ends;
use crate::conn::fork_group;
use crate::conn::slot::{SlotId, flag};
use crate::device::shm::places::Header;
use crate::failure::Failure;
use crate::iomap::{Memory, map, unmap};
use crate::socket;

/// A connection whose peer is no bridge, as far as it knows.
struct Victim {
    fd: OwnedFd,
    _tie: OwnedFd,
    id: SlotId,
    port: ChannelPort,
    put: u64,
}

impl Victim {
    fn new() -> Self {
        let (fd, tie, id, port) = program();
        fork_group::slot(id).unwrap().clear(flag::BRIDGED);
        port.ends().outgoing.offer(4);
        Self { fd, _tie: tie, id, port, put: 0 }
    }

    /// What the peer writes to.
    fn ends(&self) -> &Ends {
        self.port.ends()
    }

    fn map(&self, memory: &mut [u8], offset: i64) -> Result<i64, Failure> {
        // SAFETY: every test keeps its memory until the mapping is gone.
        let memory = unsafe { Memory::new(memory.as_mut_ptr(), memory.len(), true) };
        map(self.id, self.fd.as_raw_fd(), memory, offset)
    }

    /// The peer puts a piece of ones into the ring, whatever its header says.
    fn put(&mut self, header: Header, count: usize) {
        let bytes = vec![1; count];
        self.ends().outgoing.write_header(self.put, &header);
        // SAFETY: a vector's bytes.
        unsafe { self.ends().outgoing.write_place(self.put, 0, bytes.as_ptr(), count) };
        self.put += header.extent();
        self.ends().outgoing.publish_put(self.put);
        self.ends().wake_reader();
    }

    /// What the next receive says, once the library has seen the pieces.
    fn receive(&self) -> Result<usize, Failure> {
        let mut byte = 0_u8;
        let v = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        socket::receive(self.id, self.fd.as_raw_fd(), &v, libc::MSG_DONTWAIT)
    }

    /// The same, once it says anything: the library's thread may be at the pieces, too.
    fn verdict(&self) -> Result<usize, Failure> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match self.receive() {
                Err(Failure::Blocked) if Instant::now() < end => std::thread::yield_now(),
                said => return said,
            }
        }
    }
}

#[test]
fn only_what_is_mapped_is_written() {
    let mut memory = vec![0; 4096];
    let mut honest_memory = vec![0; 100];
    let mut honest = Victim::new();
    honest.map(&mut honest_memory, 0).unwrap();
    let spot = honest.ends().outgoing.find_map(0).unwrap();
    let right = Header { index: spot.index, generation: spot.generation, at: 10, len: 20 };
    for (header, count) in [
        // Beyond the end, by one and by far; a sum that would wrap.
        (Header { at: 81, ..right }, 20),
        (Header { at: u32::MAX, ..right }, 20),
        (Header { at: u32::MAX - 5, ..right }, 20),
        (Header { at: 0, len: 101, ..right }, 101),
        (Header { at: 0, len: 60_000, ..right }, 60_000),
        // No bytes, and more than there are.
        (Header { len: 0, ..right }, 0),
    ] {
        let mut victim = Victim::new();
        victim.map(&mut memory[1000..1100], 0).unwrap();
        let spot = victim.ends().outgoing.find_map(0).unwrap();
        victim.put(Header { index: spot.index, generation: spot.generation, ..header }, count);
        assert_eq!(victim.verdict(), Err(Failure::Reset), "{header:?}");
        closing(victim.id, fork_group::slot(victim.id).unwrap());
        assert!(memory.iter().all(|b| *b == 0), "{header:?}");
    }
    // Pieces for what is not there, or not any more, are dropped.
    for header in [
        Header { index: 1, ..right },
        Header { index: u32::MAX, ..right },
        Header { generation: right.generation + 2, ..right },
        Header { generation: 0, ..right },
    ] {
        honest.put(header, 20);
        assert_eq!(honest.receive(), Err(Failure::Blocked));
    }
    assert!(honest_memory.iter().all(|b| *b == 0));
    honest.put(right, 20);
    assert_eq!(honest.receive(), Err(Failure::Blocked));
    assert!(honest_memory.iter().enumerate().all(|(i, b)| *b == u8::from((10..30).contains(&i))));
    closing(honest.id, fork_group::slot(honest.id).unwrap());
}

#[test]
fn what_was_taken_back_is_not_written() {
    let mut memory = vec![0; 100];
    let mut victim = Victim::new();
    assert_eq!(victim.map(&mut memory, 500), Ok(500));
    let spot = victim.ends().outgoing.find_map(500).unwrap();
    assert_eq!(unmap(victim.id, memory.as_mut_ptr(), 99), Err(Failure::Invalid));
    assert_eq!(unmap(victim.id, memory.as_mut_ptr(), 100), Ok(()));
    assert_eq!(victim.ends().outgoing.find_map(500), None);
    let stale = Header { index: spot.index, generation: spot.generation, at: 0, len: 50 };
    victim.put(stale, 50);
    assert_eq!(victim.receive(), Err(Failure::Blocked));
    // The same entry, another mapping.
    let at = victim.map(&mut memory, ANY).unwrap();
    victim.put(stale, 50);
    assert_eq!(victim.receive(), Err(Failure::Blocked));
    assert_eq!(memory, vec![0; 100]);
    let spot = victim.ends().outgoing.find_map(at as u64).unwrap();
    victim.put(Header { index: spot.index, generation: spot.generation, ..stale }, 50);
    assert_eq!(victim.receive(), Err(Failure::Blocked));
    assert_eq!(memory[..51], [&[1; 50][..], &[0]].concat());
    closing(victim.id, fork_group::slot(victim.id).unwrap());
}

#[test]
fn it_happens_while_the_program_computes() {
    let mut memory = vec![0_u8; 100];
    let mut victim = Victim::new();
    victim.map(&mut memory, 0).unwrap();
    let spot = victim.ends().outgoing.find_map(0).unwrap();
    victim.put(Header { index: spot.index, generation: spot.generation, at: 0, len: 100 }, 100);
    // SAFETY: the last byte of the memory, which lives on.
    let last = unsafe { core::sync::atomic::AtomicU8::from_ptr(memory.as_mut_ptr().add(99)) };
    while last.load(core::sync::atomic::Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    closing(victim.id, fork_group::slot(victim.id).unwrap());
    assert_eq!(memory, vec![1; 100]);
}
