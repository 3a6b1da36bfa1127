//! Work requests: what goes to the device, and from where.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;

use super::{Life, Pending, RdmaPair, SLOT};
use crate::ffi;
use crate::staging::Piece;
use rsocket_device::{HALF, PostError};
use rsocket_host::failure::Failure;
use rsocket_wire::proto::control::Mode;
use rsocket_wire::sge::Sge;
use rsocket_wire::word::Word;

/// Set in the number of a receive.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Receives posted by one call; few, since all of them are made anew each time, and some five are
/// once the pair stands.
const CHAIN: usize = 8;

/// Where the bytes of a request are.
#[derive(Clone, Copy)]
enum Bytes {
    /// There are none.
    None,
    /// The caller's, taken by the device during the call.
    Inline(*const u8, u32),
    /// In the staging ring; the flag says that they are short enough to be taken during the call.
    Staged(Piece, u32, bool),
    /// A word, in this host's byte order.
    Word([u8; SLOT as usize]),
}

/// A request to be.
#[derive(Clone, Copy)]
struct Request {
    opcode: ffi::ibv_wr_opcode::Type,
    bytes: Bytes,
    target: Sge,
    immediate: Word,
    token: u64,
    /// The device is to say when it was carried out.
    signalled: bool,
}

impl Request {
    #[inline(always)]
    fn write(bytes: Bytes, target: Sge, word: Option<Word>, token: u64) -> Self {
        let opcode = match word {
            Some(_) => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        // A write of no bytes names no memory; what it is given by accident need not travel.
        let target = if matches!(bytes, Bytes::None) { Sge::default() } else { target };
        Self { opcode, bytes, target, immediate: word.unwrap_or(Word(0)), token, signalled: true }
    }

    /// The first half of a message in message mode. The report of the second says as much as one of
    /// its own would. But where the device reads our memory later, the first half has a report all
    /// the same. The reason is soft-iWARP: if the request is not signalled, it hands such memory to
    /// TCP without a copy. It then calls the request done while TCP still reads there.
    #[inline(always)]
    fn first_half(bytes: Bytes, target: Sge) -> Self {
        let signalled = !matches!(bytes, Bytes::None | Bytes::Inline(..) | Bytes::Staged(.., true));
        Self { signalled, ..Self::write(bytes, target, None, HALF) }
    }

    #[inline(always)]
    const fn send(word: Word, token: u64) -> Self {
        let target = Sge { addr: 0, rkey: 0, len: 0 };
        let opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
        let bytes = Bytes::Word(word.to_native());
        Self { opcode, bytes, target, immediate: Word(0), token, signalled: true }
    }
}

const fn sge(addr: u64, length: u32, lkey: u32) -> ffi::ibv_sge {
    ffi::ibv_sge { addr, length, lkey }
}

impl RdmaPair {
    /// Whether so many posts can be taken now.
    fn ready_for(&self, posts: u16) -> Result<(), PostError> {
        if self.life != Life::Open {
            return Err(PostError::Ended);
        }
        if self.send_queue - self.unreported < posts { Err(PostError::Full) } else { Ok(()) }
    }

    /// A piece of the staging ring. A caller that does not post it puts the ring back.
    fn stage(&mut self, len: u32) -> Result<Piece, PostError> {
        let piece = self.staging.find(len).ok_or(PostError::Full)?;
        self.staging.take(piece);
        Ok(piece)
    }

    /// The memory of a piece.
    fn staged(&mut self, piece: Piece, len: u32) -> &mut [u8] {
        let at = self.staging_memory.addr() + u64::from(piece.at);
        match self.staging_memory.at(at, len as usize) {
            // SAFETY: inside the staging memory, initialised since it was mapped. The ring gave the
            // piece to this post alone, and the device only reads it, after it was posted.
            Some(place) => unsafe { core::slice::from_raw_parts_mut(place, len as usize) },
            None => &mut [],
        }
    }

    /// The caller's bytes, where the device finds them.
    fn copied(&mut self, bytes: &[u8]) -> Result<Bytes, PostError> {
        let len = u32::try_from(bytes.len()).map_err(|_| PostError::Full)?;
        if len == 0 {
            return Ok(Bytes::None);
        }
        if len <= self.inline {
            return Ok(Bytes::Inline(bytes.as_ptr(), len));
        }
        let piece = self.stage(len)?;
        let place = self.staged(piece, len);
        if place.len() == bytes.len() {
            place.copy_from_slice(bytes);
        }
        Ok(Bytes::Staged(piece, len, false))
    }

    /// Does what `f` says; when it is refused, the staging ring is as it was.
    fn whole(
        &mut self,
        f: impl FnOnce(&mut Self) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let before = self.staging;
        let result = f(self);
        if result.is_err() {
            self.staging = before;
        }
        result
    }

    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        self.ready_for(1)?;
        self.whole(|pair| {
            let bytes = pair.copied(bytes)?;
            pair.post(Request::write(bytes, target, word, token))
        })
    }

    pub(super) fn send(&mut self, word: Word, token: u64) -> Result<(), PostError> {
        self.ready_for(1)?;
        self.post(Request::send(word, token))
    }

    pub(super) fn message(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        if self.device.mode() == Mode::Immediate {
            return self.write(bytes, target, Some(word), token);
        }
        if bytes.is_empty() {
            return self.send(word, token);
        }
        self.ready_for(2)?;
        self.whole(|pair| {
            let bytes = pair.copied(bytes)?;
            pair.halves(bytes, target, word, token)
        })
    }

    pub(super) fn filled(
        &mut self,
        target: Sge,
        word: Option<Word>,
        token: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), PostError> {
        let len = target.len;
        if len == 0 {
            fill(&mut []);
            return match word {
                Some(word) => self.message(&[], target, word, token),
                None => self.write(&[], target, None, token),
            };
        }
        let mode = self.device.mode();
        self.ready_for(if word.is_some() { mode.cost(true).into() } else { 1 })?;
        self.whole(|pair| {
            let piece = pair.stage(len)?;
            fill(pair.staged(piece, len));
            let bytes = Bytes::Staged(piece, len, len <= pair.inline);
            match (mode, word) {
                (Mode::Message, Some(word)) => pair.halves(bytes, target, word, token),
                _ => pair.post(Request::write(bytes, target, word, token)),
            }
        })
    }

    /// A message of so few bytes that the device takes them during the call.
    #[inline(always)]
    pub(super) fn at_once(
        &mut self,
        from: *const [u8],
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        let bytes = Bytes::Inline(from.cast(), from.len() as u32);
        let mode = self.device.mode();
        self.ready_for(mode.cost(true).into())?;
        match mode {
            Mode::Message => self.halves(bytes, target, word, token),
            Mode::Immediate => self.post(Request::write(bytes, target, Some(word), token)),
        }
    }

    /// Puts the word of a post to where the device reads it. That is not the staging ring: all room
    /// there is promised to bytes (rule 8). The place is free: the post that had it before is done,
    /// since only so many are taken.
    fn place(&self, word: [u8; SLOT as usize], number: u64) -> Result<ffi::ibv_sge, PostError> {
        let slots = self.slots.as_ref().ok_or(PostError::Unsupported)?;
        let slot = self.receives() + (number % u64::from(self.send_queue)) as u32;
        slots.set_word(slot * SLOT, word).map_err(|_| PostError::Unsupported)?;
        Ok(sge(slots.addr() + u64::from(slot * SLOT), SLOT, slots.lkey()))
    }

    /// Where the device finds the bytes of a post, and whether it takes them at once.
    #[inline(always)]
    fn located(&self, bytes: &Bytes, number: u64) -> Result<(ffi::ibv_sge, bool), PostError> {
        let staging = &self.staging_memory;
        Ok(match bytes {
            Bytes::None => (sge(0, 0, 0), false),
            Bytes::Inline(from, len) => (sge(*from as u64, *len, 0), true),
            Bytes::Staged(piece, len, now) => {
                (sge(staging.addr() + u64::from(piece.at), *len, staging.lkey()), *now)
            }
            Bytes::Word(word) if SLOT <= self.inline => (sge(word.as_ptr() as u64, SLOT, 0), true),
            Bytes::Word(word) => (self.place(*word, number)?, false),
        })
    }

    /// Posts one request. The pair is open and has room for it.
    fn post(&mut self, request: Request) -> Result<(), PostError> {
        let mut entry = sge(0, 0, 0);
        let mut only =
            self.work_request(&request, &mut entry, self.posted, core::ptr::null_mut())?;
        self.ring(&raw mut only)?;
        self.accepted(&request);
        Ok(())
    }

    /// A message in message mode: the write, and the word behind it, with one doorbell. The pair is
    /// open and has room for both.
    #[inline(always)]
    fn halves(
        &mut self,
        bytes: Bytes,
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        let (write, send) = (Request::first_half(bytes, target), Request::send(word, token));
        let (mut first, mut second) = (sge(0, 0, 0), sge(0, 0, 0));
        let mut last =
            self.work_request(&send, &mut second, self.posted + 1, core::ptr::null_mut())?;
        let mut chain = self.work_request(&write, &mut first, self.posted, &raw mut last)?;
        self.ring(&raw mut chain)?;
        self.accepted(&write);
        self.accepted(&send);
        Ok(())
    }

    /// What the device reads of a request that is to be the post with this number, before `next`.
    #[inline(always)]
    fn work_request(
        &self,
        request: &Request,
        entry: &mut ffi::ibv_sge,
        number: u64,
        next: *mut ffi::ibv_send_wr,
    ) -> Result<ffi::ibv_send_wr, PostError> {
        // SAFETY: all zeroes is a value of this structure of numbers and pointers.
        let mut wr: ffi::ibv_send_wr = unsafe { core::mem::zeroed() };
        wr.wr_id = number & !RECEIVE;
        wr.next = next;
        wr.opcode = request.opcode;
        wr.imm_data_invalidated_rkey_union.imm_data =
            u32::from_ne_bytes(request.immediate.to_immediate());
        wr.wr.rdma.remote_addr = request.target.addr;
        wr.wr.rdma.rkey = request.target.rkey;
        let now;
        (*entry, now) = self.located(&request.bytes, number)?;
        wr.send_flags =
            if request.signalled { ffi::SIGNALED } else { 0 } | if now { ffi::INLINE } else { 0 };
        if entry.length != 0 {
            wr.sg_list = entry;
            wr.num_sge = 1;
        }
        Ok(wr)
    }

    /// Gives the device a chain of requests, all or none. What it points to lives in our caller's
    /// frame: the chain, its entries and inline words. Inline bytes are the caller's caller's.
    /// Staged bytes and other words stay in registered memory until they are reported.
    #[inline(always)]
    fn ring(&mut self, chain: *mut ffi::ibv_send_wr) -> Result<(), PostError> {
        // SAFETY: the queue pair is alive, and the chain as above.
        match unsafe { ffi::post_send(self.qp, chain) } {
            Ok(()) => Ok(()),
            Err(refused) if refused.why == Failure::NoMemory && !refused.torn => {
                Err(PostError::Full)
            }
            Err(_) => {
                self.life = Life::Broken;
                Err(PostError::Ended)
            }
        }
    }

    /// The device has the next request.
    #[inline(always)]
    fn accepted(&mut self, request: &Request) {
        let piece =
            if let Bytes::Staged(piece, ..) = request.bytes { piece } else { Piece::default() };
        let at = (self.posted % u64::from(self.send_queue)) as usize;
        if let Some(place) = self.pending.get_mut(at) {
            *place = Pending { token: request.token, piece };
        }
        self.posted += 1;
        self.unreported += 1;
    }

    /// More receives for the caller. The spare ones let us hand them to the device several at a
    /// time.
    pub(super) fn receive(&mut self, count: u16) -> Result<(), PostError> {
        if self.life != Life::Open {
            return Err(PostError::Ended);
        }
        // More words than the caller posted receives for may have come at once, since there are
        // spare ones: these are replaced too.
        let held = self.received + u64::from(self.owed) - self.reported.min(self.received);
        if held + u64::from(count) > u64::from(self.receive_queue) + u64::from(self.spare) {
            return Err(PostError::Full);
        }
        self.owed += count;
        // The device always has as many as the caller posted.
        if self.owed > self.spare / 2 {
            self.give_receives()?;
        }
        Ok(())
    }

    fn give_receives(&mut self) -> Result<(), PostError> {
        while self.owed > 0 {
            let count = usize::from(self.owed).min(CHAIN);
            let mut entries = [const { sge(0, 0, 0) }; CHAIN];
            // SAFETY: all zeroes is a value of these structures of numbers and pointers.
            let mut chain: [ffi::ibv_recv_wr; CHAIN] = unsafe { core::mem::zeroed() };
            let mut next: *mut ffi::ibv_recv_wr = core::ptr::null_mut();
            // From the last to the first, so that each can name its successor: the first is the
            // last here.
            let mut number = self.received + count as u64;
            for (wr, entry) in chain.iter_mut().zip(&mut entries).take(count) {
                number -= 1;
                let slot = self.slot(number);
                wr.wr_id = RECEIVE | u64::from(slot);
                wr.next = next;
                if let Some(slots) = &self.slots {
                    entry.addr = slots.addr() + u64::from(slot * SLOT);
                    entry.length = SLOT;
                    entry.lkey = slots.lkey();
                    wr.sg_list = entry;
                    wr.num_sge = 1 as c_int;
                }
                next = wr;
            }
            // SAFETY: the queue pair is alive; the chain lives on this stack, the slots in
            // registered memory.
            if unsafe { ffi::post_receive(self.qp, next) }.is_err() {
                self.life = Life::Broken;
                return Err(PostError::Ended);
            }
            self.received += count as u64;
            self.owed -= count as u16;
        }
        Ok(())
    }

    /// The slot of a receive. Receives are used in order, so no two of the device's have the same.
    fn slot(&self, number: u64) -> u32 {
        (number % u64::from(self.receives())) as u32
    }

    /// Receives that the device holds, and so slots for them.
    fn receives(&self) -> u32 {
        u32::from(self.receive_queue) + u32::from(self.spare)
    }
}
