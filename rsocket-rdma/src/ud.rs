//! A queue pair for unreliable datagrams, bound to one address of one device
//! (`wire-protocol §9.1`).
//!
//! Its memory is slots. The slots of receives begin with room for the global route header. The
//! slots of sends hold a frame each until the device has sent it. What arrives waits in its slot
//! until it is released. Must not know what the frames say. Entry point: [`UdPair::new`]. Exactly
//! one thread at a time uses a pair.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use super::contexts::{Channel, Device};
use super::identifier::Identifier;
use super::memory::{Domain, Region};
use super::path::{AddressHandle, Path};
use super::{CmError, CmId, ffi, gate, memory_limit};
use rsocket_host::failure::Failure;
use rsocket_host::sys;
use rsocket_wire::proto::control::Mode;

/// The most bytes of a frame: a slot of upstream's.
pub const MOST_BYTES: usize = 2048;
/// Slots in each direction.
const SLOTS: u16 = 64;
/// What stands before each frame that arrives.
const ROUTE_HEADER: usize = 40;
/// From one receive's slot to the next, in bytes.
const STRIDE: usize = 2112;
/// The key of every program that uses the connection manager's datagrams.
const KEY: u32 = 0x0123_4567;
/// Completions read by one call.
const BATCH: usize = 16;
/// Set in the number of a receive's work request.
const RECEIVE: u64 = 1 << 63;
/// How long a pair that is dropped lets the device send what it has, in nanoseconds.
const LAST_NS: u64 = 100_000_000;

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// All slots are under way: poll, or wait for the event.
    Full,
    /// It is longer than a slot, or than a packet may be on the way there.
    TooLong,
    /// The queue pair has failed.
    Broken,
}

/// A frame that has arrived.
#[derive(Clone, Copy)]
struct Arrived {
    slot: u16,
    len: u16,
}

/// The queue pair. Dropped, it lets the device send what it has, for a moment.
pub struct UdPair {
    memory: Region,
    domain: Arc<Domain>,
    device: &'static Device,
    qp: *mut ffi::ibv_qp,
    cq: *mut ffi::ibv_cq,
    channel: Channel,
    unacknowledged: u32,
    id: Arc<Identifier>,
    number: u32,
    slots: u16,
    /// Slots of sends that are free.
    free: Vec<u16>,
    /// What the others are on their way to.
    under_way: Box<[Option<AddressHandle>]>,
    arrived: VecDeque<Arrived>,
    broken: bool,
}

// SAFETY: the raw pointers are to objects of its own, and libibverbs takes calls from any thread.
unsafe impl Send for UdPair {}

impl UdPair {
    /// The pair for an identifier of [`CmId::for_datagrams`] that is bound to an address with a
    /// device. Pins some 260 KiB.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on iWARP, which has no datagrams; what the device says.
    pub fn new(cm: &CmId) -> Result<Self, CmError> {
        let device = cm.device()?.ok_or(CmError::Os(Failure::NoDevice))?;
        if device.mode() != Mode::Immediate {
            return Err(CmError::Os(Failure::Unsupported));
        }
        let slots = u16::try_from(device.limits.queue.min(device.limits.completions / 2))
            .unwrap_or(SLOTS)
            .min(SLOTS);
        let size = (STRIDE + MOST_BYTES) * usize::from(slots);
        let domain = Domain::new(device)?;
        let memory =
            Region::new(&domain, size as u32, ffi::LOCAL_WRITE).map_err(|e| match memory_limit(
                size as u64,
            ) {
                Some(missing) if e == Failure::NoMemory => missing.into(),
                _ => CmError::Os(e),
            })?;
        let mut pair = Self {
            memory,
            domain,
            device,
            qp: core::ptr::null_mut(),
            cq: core::ptr::null_mut(),
            channel: Channel::open(device)?,
            unacknowledged: 0,
            id: Arc::clone(&cm.id),
            number: 0,
            slots,
            free: (0..slots).collect(),
            under_way: vec![None; usize::from(slots)].into_boxed_slice(),
            arrived: VecDeque::with_capacity(usize::from(slots)),
            broken: false,
        };
        pair.make_queues()?;
        for slot in 0..slots {
            pair.receive_into(slot);
        }
        Ok(pair)
    }

    fn make_queues(&mut self) -> Result<(), CmError> {
        let (device, pd) = (self.device, self.domain.pd());
        let f = &device.loaded.table;
        let depth = c_int::from(self.slots) * 2;
        let none = core::ptr::null_mut();
        // SAFETY: the context and the channel are open.
        self.cq = unsafe { (f.ibv_create_cq)(device.context, depth, none, self.channel.raw(), 0) };
        if self.cq.is_null() {
            return Err(CmError::Os(gate::last_error()));
        }
        // SAFETY: all zeroes is a value of this structure of numbers and pointers.
        let mut wanted: ffi::ibv_qp_init_attr = unsafe { core::mem::zeroed() };
        wanted.send_cq = self.cq;
        wanted.recv_cq = self.cq;
        wanted.qp_type = ffi::UNRELIABLE;
        wanted.sq_sig_all = 1;
        wanted.cap.max_send_wr = self.slots.into();
        wanted.cap.max_recv_wr = self.slots.into();
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        let mut made = core::ptr::null_mut();
        self.id.call(|f, id| {
            // SAFETY: the identifier is alive and the gate held. The context is that of the same
            // device that we opened ourselves, and stays open. The domain is ours. librdmacm takes
            // the pair to where it can send, with the key that all have.
            unsafe {
                (*id).verbs = device.context;
                (*id).pd = pd;
                let result = (f.rdma_create_qp)(id, pd, &raw mut wanted);
                if result == 0 {
                    made = (*id).qp;
                }
                result
            }
        })?;
        self.qp = made;
        // SAFETY: made just now; the number does not change.
        self.number = unsafe { (*made).qp_num };
        Ok(())
    }

    /// Its number, by which others send to it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The handle by which it sends along a path.
    ///
    /// # Errors
    /// `EXDEV` for a path of another device; as for making it.
    pub fn handle(&self, path: &Path) -> Result<AddressHandle, CmError> {
        if !core::ptr::eq(path.device, self.device) {
            return Err(CmError::Os(Failure::Elsewhere));
        }
        AddressHandle::new(&self.domain, path)
    }

    /// Whether it has failed.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    fn receive_at(&self, slot: u16) -> u64 {
        self.memory.addr() + u64::from(slot) * STRIDE as u64
    }

    fn send_at(&self, slot: u16) -> u64 {
        self.memory.addr()
            + u64::from(self.slots) * STRIDE as u64
            + u64::from(slot) * MOST_BYTES as u64
    }

    fn receive_into(&mut self, slot: u16) {
        let mut entry = ffi::ibv_sge {
            addr: self.receive_at(slot),
            length: (ROUTE_HEADER + MOST_BYTES) as u32,
            lkey: self.memory.lkey(),
        };
        // SAFETY: all zeroes is a value of this structure of numbers and pointers.
        let mut request: ffi::ibv_recv_wr = unsafe { core::mem::zeroed() };
        request.wr_id = RECEIVE | u64::from(slot);
        request.sg_list = &raw mut entry;
        request.num_sge = 1;
        let _uncancelled = gate::uncancelled();
        // SAFETY: the queue pair is alive; the request lives on this stack, the slot in registered
        // memory, and nothing else has it.
        if unsafe { ffi::post_receive(self.qp, &raw mut request) }.is_err() {
            self.broken = true;
        }
    }

    /// Posts the first `len` bytes of a slot.
    fn post_send(
        &mut self,
        slot: u16,
        len: usize,
        to: &AddressHandle,
        number: u32,
    ) -> Result<(), ffi::NotPosted> {
        let addr = self.send_at(slot);
        let mut entry = ffi::ibv_sge { addr, length: len as u32, lkey: self.memory.lkey() };
        // SAFETY: all zeroes is a value of this structure of numbers and pointers.
        let mut request: ffi::ibv_send_wr = unsafe { core::mem::zeroed() };
        request.wr_id = u64::from(slot);
        request.opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
        request.send_flags = ffi::SIGNALED;
        request.sg_list = &raw mut entry;
        request.num_sge = 1;
        request.wr.ud = rdma_ud(to, number);
        let _uncancelled = gate::uncancelled();
        // SAFETY: the queue pair and the address handle are alive; the request lives on this stack,
        // the frame in registered memory until its completion.
        unsafe { ffi::post_send(self.qp, &raw mut request) }
    }

    /// Sends one frame of `len` bytes, which `fill` writes. Never blocks.
    ///
    /// # Errors
    /// [`NotSent`]. `fill` may have been called for [`NotSent::Full`] and [`NotSent::Broken`].
    pub fn send(
        &mut self,
        to: &AddressHandle,
        number: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), NotSent> {
        if self.broken || !to.is_of(&self.domain) {
            return Err(NotSent::Broken);
        }
        if len > MOST_BYTES || len > to.mtu() as usize {
            return Err(NotSent::TooLong);
        }
        if self.free.is_empty() {
            self.gather();
        }
        let slot = self.free.pop().ok_or(NotSent::Full)?;
        let at = self.send_at(slot);
        let Some(place) = self.memory.at(at, len) else { return Err(NotSent::TooLong) };
        // SAFETY: inside the memory, initialised since it was mapped; the slot is this frame's
        // alone.
        fill(unsafe { core::slice::from_raw_parts_mut(place, len) });
        match self.post_send(slot, len, to, number) {
            Ok(()) => {
                if let Some(place) = self.under_way.get_mut(usize::from(slot)) {
                    *place = Some(to.clone());
                }
                Ok(())
            }
            Err(refused) if refused.why == Failure::NoMemory => {
                self.free.push(slot);
                Err(NotSent::Full)
            }
            Err(_) => {
                self.free.push(slot);
                self.broken = true;
                Err(NotSent::Broken)
            }
        }
    }

    /// Looks at what the device has done; how many frames have arrived.
    pub fn gather(&mut self) -> u32 {
        let mut count = 0;
        loop {
            let mut batch = [const { MaybeUninit::<ffi::ibv_wc>::uninit() }; BATCH];
            let uncancelled = gate::uncancelled();
            // SAFETY: the completion queue is alive.
            let polled = unsafe { ffi::poll(self.cq, &mut batch) };
            drop(uncancelled);
            let Ok(found) = polled else {
                self.broken = true;
                return count;
            };
            for completion in found {
                count += u32::from(self.completed(completion));
            }
            if found.len() < BATCH {
                return count;
            }
        }
    }

    /// True for a frame that has arrived.
    fn completed(&mut self, completion: &ffi::ibv_wc) -> bool {
        let good = completion.status == ffi::ibv_wc_status::IBV_WC_SUCCESS;
        let slot = (completion.wr_id & !RECEIVE) as u16;
        if completion.wr_id & RECEIVE == 0 {
            if let Some(place) = self.under_way.get_mut(usize::from(slot)) {
                *place = None;
                self.free.push(slot);
            }
            // A datagram that could not be sent is lost; only the queue pair's own end shows in a
            // receive too.
            return false;
        }
        if !good || slot >= self.slots {
            self.broken = true;
            return false;
        }
        let len = (completion.byte_len as usize).saturating_sub(ROUTE_HEADER).min(MOST_BYTES);
        self.arrived.push_back(Arrived { slot, len: len as u16 });
        true
    }

    /// Frames that have arrived and were not released.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.arrived.len()
    }

    /// The oldest of them, without its route header.
    #[must_use]
    pub fn frame(&self) -> Option<&[u8]> {
        let first = self.arrived.front()?;
        let (at, len) = (self.receive_at(first.slot) + ROUTE_HEADER as u64, usize::from(first.len));
        let place = self.memory.at(at, len)?;
        // The completion that announced it was read before; the provider has the processor's
        // barrier.
        compiler_fence(Ordering::Acquire);
        // SAFETY: inside the memory, initialised since it was mapped. The device has no receive in
        // this slot until the slot is released, and a release needs self exclusively.
        Some(unsafe { core::slice::from_raw_parts(place, len) })
    }

    /// The oldest one was copied: its slot is the device's again.
    pub fn release(&mut self) {
        if let Some(first) = self.arrived.pop_front() {
            self.receive_into(first.slot);
        }
    }

    /// Whether a frame can be sent now.
    pub fn has_room(&mut self) -> bool {
        if self.free.is_empty() {
            self.gather();
        }
        !self.free.is_empty()
    }

    /// Readable after [`Self::arm`], once something was sent or has arrived. Private, not to be
    /// closed.
    #[must_use]
    pub fn event_fd(&self) -> c_int {
        self.channel.fd()
    }

    /// Asks for an event with the next completion: arm, gather once more, then sleep.
    pub fn arm(&mut self) {
        let _uncancelled = gate::uncancelled();
        // SAFETY: the completion queue is alive.
        unsafe { ffi::request_notify(self.cq) };
    }

    /// Takes the events that came.
    pub fn take_events(&mut self) {
        let _uncancelled = gate::uncancelled();
        while self.channel.next().is_some() {
            self.unacknowledged += 1;
        }
        if self.unacknowledged >= 64 {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        let count = core::mem::take(&mut self.unacknowledged);
        if count > 0 {
            // SAFETY: the queue is alive, and so many of its events were taken.
            unsafe { (self.device.loaded.table.ibv_ack_cq_events)(self.cq, count) };
        }
    }

    /// Waits until the device has sent what it was given, for a moment.
    pub fn flush(&mut self) {
        let end = sys::now_ns().saturating_add(LAST_NS);
        while !self.broken && self.free.len() < usize::from(self.slots) && sys::now_ns() < end {
            self.gather();
            rsocket_host::thread::yield_now();
        }
    }
}

fn rdma_ud(to: &AddressHandle, number: u32) -> ffi::ud_t {
    ffi::ud_t { ah: to.raw(), remote_qpn: number, remote_qkey: KEY }
}

impl Drop for UdPair {
    fn drop(&mut self) {
        // A child of a fork leaves all of it alone; so do the region and the identifier.
        if !self.id.mine() {
            return;
        }
        let _uncancelled = gate::uncancelled();
        if !self.qp.is_null() {
            self.flush();
            let destroyed = self.id.call(|f, id| {
                // SAFETY: the identifier is alive and has this queue pair; no thread posts any
                // more.
                unsafe { (f.rdma_destroy_qp)(id) };
                0
            });
            if destroyed.is_err() {
                // In a handler that interrupted the gate: leaked, for the device has it.
                self.memory.leak();
                self.channel.leak();
                core::mem::forget(Arc::clone(&self.domain));
                return;
            }
        }
        self.take_events();
        self.acknowledge();
        if !self.cq.is_null() {
            // SAFETY: no queue pair uses it any more.
            unsafe { (self.device.loaded.table.ibv_destroy_cq)(self.cq) };
        }
    }
}
