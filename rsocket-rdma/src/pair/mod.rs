//! One end of a connected pair: the seam's [`QueuePair`] over a reliable connection of an RDMA
//! device.
//!
//! - *Memory* is mapped and registered for the pair alone; its name is its address and the region's
//!   key.
//! - *Posts* copy their bytes into a ring of registered memory, the staging ring. Where the bytes
//!   are few enough, a post gives them to the device at once (`inline`). The device carries out
//!   posts in order.
//! - *Words* are the immediate data of a write. Where the transport knows none (iWARP), a word is a
//!   SEND of 4 bytes into the slot of a receive (`wire-protocol §4.2`). A word that the device does
//!   not take at once is sent from a slot of the post's own. The room of the staging ring is all
//!   for bytes. Every request is signalled but the first of two that the device has taken at once
//!   (`post` says why).
//! - *Receives*: a few more than the caller asks for, against senders that are not bound by
//!   credits.
//! - *The end*: our posts are carried out first, then the connection manager tells the peer. There
//!   the reader of the manager's events tells the pair ([`RdmaPair::peer_gone`]).
//!
//! `post` makes work requests, `report` reads completions. Must not know what the words mean. Entry
//! point: [`CmId::create_pair`](super::CmId::create_pair). Exactly one thread at a time uses a
//! pair. It cannot be cancelled meanwhile, because a device's library may make system calls that
//! are cancellation points (`bridge::table::Bridge`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::{c_int, c_void};
use std::collections::VecDeque;
use std::sync::Arc;

use super::contexts::{Channel, Device, EventSource};
use super::identifier::Identifier;
use super::memory::{Domain, Exposed, Region};
use super::staging::{Piece, Staging};
use super::{CmError, ffi, gate, memory_limit};
use rsocket_device::{Completion, MemoryError, PostError, QueuePair};
use rsocket_host::copy::{Bytes, CopyHint, out_of_shared};
use rsocket_host::failure::Failure;
use rsocket_wire::proto::control::Mode;
use rsocket_wire::sge::Sge;
use rsocket_wire::word::Word;

mod post;
mod report;

/// What a pair is to be like. What a device cannot do is cut to what it can.
#[derive(Clone, Copy)]
pub struct PairParams {
    /// Posts that may be unreported, at least 1.
    pub send_queue: u16,
    /// Receives that may be unused, at least 1: the credits.
    pub receive_queue: u16,
    /// Receives beside those, which no call counts (`wire-protocol §5.5`).
    pub spare_receives: u16,
    /// Bytes that a post is to carry without the staging ring; the device may give more or fewer.
    pub inline: u32,
    /// Bytes of the staging ring.
    pub staging: u32,
    /// The device's common place to sleep; without it the pair has a descriptor of its own
    /// ([`QueuePair::event_fd`]).
    pub events: Option<&'static EventSource>,
    /// What the common place calls the pair.
    pub key: u64,
}

impl Default for PairParams {
    fn default() -> Self {
        Self {
            send_queue: 384,
            receive_queue: 384,
            spare_receives: 8,
            inline: 64,
            staging: 131_072,
            events: None,
            key: 0,
        }
    }
}

/// A post that the device has.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    token: u64,
    piece: Piece,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Posts are taken.
    Open,
    /// Closed by us; what was posted is being carried out.
    Closing,
    /// The queue pair is at its end; what had arrived is being reported.
    Broken,
    /// All is reported.
    Ended,
}

/// One end of a pair. Dropped, it ends the connection at once.
pub struct RdmaPair {
    // Dropped in this order: regions and channel before the identifier. The queues go first, in
    // `drop`.
    regions: Vec<Region>,
    /// The program's own memory that the peer may write.
    exposed: Vec<Exposed>,
    domain: Arc<Domain>,
    staging_memory: Region,
    /// In message mode, the slots of the receives. Behind them lies one slot for each post, for a
    /// sent word that the device does not take at once.
    slots: Option<Region>,
    device: &'static Device,
    qp: *mut ffi::ibv_qp,
    cq: *mut ffi::ibv_cq,
    /// `None` when its events come from the device's common source.
    channel: Option<Channel>,
    /// Events taken from the channel and not acknowledged.
    unacknowledged: u32,
    /// How many events were asked for since some were last taken.
    asked: u32,
    id: Arc<Identifier>,

    life: Life,
    /// The connection manager has told the peer, or need not.
    disconnected: bool,

    send_queue: u16,
    /// Bytes that go without staging.
    inline: u32,
    staging: Staging,
    /// Posts that the device has, by their number modulo the queue's size.
    pending: Box<[Pending]>,
    /// Posts ever accepted, ever completed.
    posted: u64,
    completed: u64,
    /// Posts accepted and not reported to the caller.
    unreported: u16,

    receive_queue: u16,
    spare: u16,
    /// Words ever reported to the caller; each has used one receive, be it one that the caller
    /// posted or a spare one.
    reported: u64,
    /// Receives not given to the device yet.
    owed: u16,
    /// Receives ever given to the device.
    received: u64,

    /// Found and not reported yet. Never longer than both queues.
    ready: VecDeque<Completion>,
}

// SAFETY: the raw pointers are to objects of its own, and libibverbs takes calls from any thread.
unsafe impl Send for RdmaPair {}

/// Bytes of a word's slot.
const SLOT: u32 = 4;

fn clipped(value: u16, most: u32) -> u16 {
    u16::try_from(most).unwrap_or(u16::MAX).min(value).max(1)
}

/// How many posts and receives a pair has, as far as its device allows.
struct Queues {
    send_queue: u16,
    receive_queue: u16,
    /// Receives beyond the queue.
    spare: u16,
}

impl Queues {
    fn of(params: &PairParams, device: &Device) -> Self {
        let limits = &device.limits;
        let receive_queue = clipped(params.receive_queue, limits.queue.min(limits.completions / 4));
        let most = limits.queue.min(limits.completions / 2) - u32::from(receive_queue).min(1);
        let spare = most.saturating_sub(u32::from(receive_queue)).min(params.spare_receives.into());
        Self {
            send_queue: clipped(params.send_queue, limits.queue.min(limits.completions / 2)),
            receive_queue,
            spare: spare as u16,
        }
    }
}

/// What a refusal to pin `needed` bytes means.
fn unpinned(e: Failure, needed: u64) -> CmError {
    match memory_limit(needed) {
        Some(missing) if e == Failure::NoMemory => missing.into(),
        _ => CmError::Os(e),
    }
}

impl RdmaPair {
    pub(super) fn new(id: Arc<Identifier>, params: &PairParams) -> Result<Self, CmError> {
        let device = id.device()?.ok_or(CmError::Os(Failure::NotConnected))?;
        let Queues { send_queue, receive_queue, spare } = Queues::of(params, device);
        let receives = u32::from(receive_queue) + u32::from(spare);
        // A ring of no lines could carry nothing where there is no inline data.
        let staging = params.staging.max(4096);
        let domain = Domain::new(device)?;
        let pinned = |len: u32, access| {
            Region::new(&domain, len, access).map_err(|e| unpinned(e, u64::from(len)))
        };
        let channel = Channel::unless_shared(params.events, device)?;
        let mut pair = Self {
            regions: Vec::with_capacity(4),
            exposed: Vec::new(),
            domain: Arc::clone(&domain),
            staging_memory: pinned(staging, ffi::LOCAL_WRITE)?,
            slots: match device.mode() {
                Mode::Immediate => None,
                Mode::Message => {
                    Some(pinned((receives + u32::from(send_queue)) * SLOT, ffi::LOCAL_WRITE)?)
                }
            },
            device,
            qp: core::ptr::null_mut(),
            cq: core::ptr::null_mut(),
            channel,
            unacknowledged: 0,
            asked: 0,
            id,
            life: Life::Open,
            disconnected: false,
            send_queue,
            inline: 0,
            staging: Staging::new(staging),
            pending: vec![Pending::default(); usize::from(send_queue)].into_boxed_slice(),
            posted: 0,
            completed: 0,
            unreported: 0,
            receive_queue,
            spare,
            reported: 0,
            owed: spare,
            received: 0,
            ready: VecDeque::with_capacity(usize::from(send_queue) + receives as usize + 1),
        };
        pair.make_queues(params, receives)?;
        Ok(pair)
    }

    /// The completion queue and the queue pair. What was made is destroyed by `drop`.
    fn make_queues(&mut self, params: &PairParams, receives: u32) -> Result<(), CmError> {
        let device = self.device;
        let f = &device.loaded.table;
        let channel = match (&self.channel, params.events) {
            (Some(channel), _) => channel.raw(),
            (None, Some(source)) => source.channel().raw(),
            (None, None) => core::ptr::null_mut(),
        };
        let depth = c_int::try_from(u32::from(self.send_queue) + receives).unwrap_or(c_int::MAX);
        // SAFETY: the context and the channel are open; no code uses the key as a pointer.
        self.cq = unsafe {
            (f.ibv_create_cq)(device.context, depth, params.key as *mut c_void, channel, 0)
        };
        if self.cq.is_null() {
            return Err(CmError::Os(gate::last_error()));
        }
        // Some devices refuse the number instead of giving fewer.
        self.make_queue_pair(params.inline, receives).or_else(|e| {
            if params.inline == 0 { Err(e) } else { self.make_queue_pair(0, receives) }
        })
    }

    fn make_queue_pair(&mut self, inline: u32, receives: u32) -> Result<(), CmError> {
        // SAFETY: all zeroes is a value of this structure of numbers and pointers.
        let mut wanted: ffi::ibv_qp_init_attr = unsafe { core::mem::zeroed() };
        wanted.send_cq = self.cq;
        wanted.recv_cq = self.cq;
        wanted.qp_type = ffi::RELIABLE;
        wanted.cap.max_send_wr = self.send_queue.into();
        wanted.cap.max_recv_wr = receives;
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        wanted.cap.max_inline_data = inline;
        let (device, pd) = (self.device, self.domain.pd());
        let mut made = core::ptr::null_mut();
        self.id.call(|f, id| {
            // SAFETY: the identifier is alive and the gate held. Context and protection domain are
            // those of the same device that we opened ourselves, and stay as long as the pair.
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
        self.inline = wanted.cap.max_inline_data;
        Ok(())
    }

    /// The key's owner was told that the connection is over ([`Kind::Disconnected`](super::Kind)):
    /// what had arrived can still be polled, then the end. Wakes the thread that sleeps on the
    /// pair. Also ends a pair at once, without waiting for its posts.
    pub fn peer_gone(&mut self) {
        if matches!(self.life, Life::Open | Life::Closing) {
            self.life = Life::Broken;
        }
        self.disconnect();
        self.flush();
    }

    /// The largest packet of the path, in bytes of payload; `None` where the device does not say.
    #[must_use]
    pub fn path_mtu(&self) -> Option<u32> {
        // SAFETY: all zeroes is a value of these structures of numbers and pointers.
        let (mut attr, mut init): (ffi::ibv_qp_attr, ffi::ibv_qp_init_attr) =
            unsafe { core::mem::zeroed() };
        let query = self.device.loaded.table.ibv_query_qp;
        // SAFETY: the queue pair is alive, the structures are ours to be written.
        let failed = unsafe { query(self.qp, &raw mut attr, ffi::QP_PATH_MTU, &raw mut init) };
        // SAFETY: an enum of C's as wide as a u32, read as the number that it is: a code from 1
        // (256 bytes) to 5.
        let code = unsafe { (&raw const attr.path_mtu).cast::<u32>().read() };
        (failed == 0 && (1..=5).contains(&code)).then(|| 128 << code)
    }

    /// The receives that may be unused, after the device had its say: the credits to give.
    #[must_use]
    pub const fn receive_queue(&self) -> u16 {
        self.receive_queue
    }

    /// The posts that may be unreported, after the device had its say.
    #[must_use]
    pub const fn send_queue(&self) -> u16 {
        self.send_queue
    }

    /// Bytes that a post carries without the staging ring.
    #[must_use]
    pub const fn inline(&self) -> u32 {
        self.inline
    }

    /// Whether the end has come, reported or still to be polled.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.life, Life::Broken | Life::Ended)
    }

    /// The device that it is on.
    #[must_use]
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Tells the peer by the connection manager, once. To be tried again when a handler interrupted
    /// us.
    fn disconnect(&mut self) {
        if !self.disconnected {
            let told = self.id.disconnect();
            self.disconnected = told != Err(CmError::Os(Failure::Blocked));
        }
    }

    /// Moves the queue pair to its error state, so that what it has comes back, and wakes. On iWARP
    /// disconnecting does not.
    fn flush(&mut self) {
        // SAFETY: all zeroes is a value of this structure of numbers.
        let mut attributes: ffi::ibv_qp_attr = unsafe { core::mem::zeroed() };
        attributes.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let qp = self.qp;
        // SAFETY: the queue pair is alive.
        let _ = self
            .id
            .call(|f, _| unsafe { (f.ibv_modify_qp)(qp, &raw mut attributes, ffi::QP_STATE) });
    }

    fn region(&self, addr: u64, len: usize) -> Result<*mut u8, MemoryError> {
        // The buffer was made last, and is what is mostly asked for.
        self.regions.iter().rev().find_map(|region| region.at(addr, len)).ok_or(MemoryError::Range)
    }
}

impl QueuePair for RdmaPair {
    // The poster's device sends them, and it goes with the process.
    const SURVIVES: bool = false;

    fn mode(&self) -> Mode {
        self.device.mode()
    }

    fn register(&mut self, len: u32) -> Result<Sge, MemoryError> {
        let region = Region::new(&self.domain, len, ffi::REMOTE_WRITE)
            .map_err(|_| MemoryError::Exhausted)?;
        let sge = region.sge();
        self.regions.push(region);
        Ok(sge)
    }

    unsafe fn expose(&mut self, at: *mut u8, len: u32) -> Result<Sge, MemoryError> {
        // SAFETY: the caller's promise is the same, and `exposed` goes with the pair.
        let exposed = unsafe { Exposed::new(&self.domain, at, len) }.map_err(|e| match e {
            Failure::BadAddress | Failure::Invalid => MemoryError::Range,
            _ => MemoryError::Exhausted,
        })?;
        let name = exposed.name();
        self.exposed.push(exposed);
        Ok(name)
    }

    fn withdraw(&mut self, name: Sge) {
        self.exposed.retain(|exposed| exposed.name() != name);
    }

    fn load(&self, addr: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let place = self.region(addr, into.len())?;
        // SAFETY: the place is readable for as many bytes; the slice is the caller's alone.
        unsafe { out_of_shared(into.as_mut_ptr(), place, into.len(), CopyHint::Ordinary) };
        Ok(())
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let place = self.region(addr, bytes.len())?;
        // SAFETY: the place is writable for as many bytes, and there is no reference into it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        Ok(())
    }

    fn each_chunk(
        &self,
        addr: u64,
        len: u32,
        sink: &mut dyn FnMut(Bytes<'_>),
    ) -> Result<(), MemoryError> {
        let place = self.region(addr, len as usize)?;
        // SAFETY: the place has so many bytes, and stays as long as the pair does.
        sink(unsafe { Bytes::new(place, len as usize) });
        Ok(())
    }

    fn post_receives(&mut self, count: u16) -> Result<(), PostError> {
        self.receive(count)
    }

    fn room(&self) -> u16 {
        if self.life == Life::Open { self.send_queue - self.unreported } else { 0 }
    }

    fn staging_room(&self) -> u32 {
        self.staging.room()
    }

    fn post_write(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        if word.is_some() && self.mode() == Mode::Message {
            return Err(PostError::Unsupported);
        }
        self.write(bytes, target, word, token)
    }

    fn post_send(&mut self, word: Word, token: u64) -> Result<(), PostError> {
        self.send(word, token)
    }

    fn post_message(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        self.message(bytes, target, word, token)
    }

    fn post_filled(
        &mut self,
        target: Sge,
        word: Option<Word>,
        token: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), PostError> {
        self.filled(target, word, token, fill)
    }

    fn most_at_once(&self) -> u32 {
        self.inline
    }

    unsafe fn post_at_once(
        &mut self,
        from: *const [u8],
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        if from.len() == 0 || from.len() > self.inline as usize {
            return Err(PostError::Unsupported);
        }
        self.at_once(from, target, word, token)
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.take(into)
    }

    fn arm(&mut self) {
        self.asked = self.asked.saturating_add(1);
        // SAFETY: the completion queue is alive.
        unsafe { ffi::request_notify(self.cq) };
    }

    fn take_event(&mut self) -> bool {
        let Some(channel) = &self.channel else { return false };
        let mut came = false;
        // Each look is a system call: one, and another only where more events were asked for. The
        // first whatever was asked for: an event too many of some device's would keep its
        // descriptor readable for ever.
        while channel.next().is_some() {
            came = true;
            self.unacknowledged += 1;
            self.asked = self.asked.saturating_sub(1);
            if self.asked == 0 {
                break;
            }
        }
        // An event that was asked for twice comes once. The next look finds an event that is still
        // to come.
        self.asked = 0;
        if self.unacknowledged >= 64 {
            self.acknowledge();
        }
        came
    }

    fn event_fd(&self) -> Option<c_int> {
        self.channel.as_ref().map(Channel::fd)
    }

    fn close(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Closing;
        }
        self.advance();
    }
}

impl RdmaPair {
    /// Acknowledges the events of a channel of its own; the queue cannot be destroyed before.
    fn acknowledge(&mut self) {
        let count = core::mem::take(&mut self.unacknowledged);
        if count > 0 {
            // SAFETY: the queue is alive, and so many of its events were taken.
            unsafe { (self.device.loaded.table.ibv_ack_cq_events)(self.cq, count) };
        }
    }
}

impl Drop for RdmaPair {
    fn drop(&mut self) {
        // A child of a fork leaves all of it alone; so do its regions and the identifier.
        if !self.id.mine() {
            return;
        }
        let _uncancelled = gate::uncancelled();
        if !self.qp.is_null() {
            self.disconnect();
            let destroyed = self.id.call(|f, id| {
                // SAFETY: the identifier is alive and has this queue pair; no thread posts any
                // more.
                unsafe { (f.rdma_destroy_qp)(id) };
                0
            });
            if destroyed.is_err() {
                // In a handler that interrupted the gate: all of it is leaked, for the device has
                // it.
                self.leak();
                return;
            }
        }
        self.acknowledge();
        if !self.cq.is_null() {
            // SAFETY: no queue pair uses it any more. It waits until another thread has
            // acknowledged an event that it just took.
            unsafe { (self.device.loaded.table.ibv_destroy_cq)(self.cq) };
        }
    }
}

impl RdmaPair {
    fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.regions));
        core::mem::forget(core::mem::take(&mut self.exposed));
        core::mem::forget(Arc::clone(&self.domain));
        core::mem::forget(self.slots.take());
        core::mem::forget(self.channel.take());
        self.staging_memory.leak();
    }
}
