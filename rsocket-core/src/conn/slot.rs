//! One connection as all the processes that hold it see it.
//!
//! A [`Slot`] is plain integers in memory that is mapped shared before the process forks, so that
//! parent and child simply have the same one. It knows counts, modes and the two protocol states;
//! it does not know how the socket and the attach use them.
//!
//! Protocol state is edited as a copy and published by one store ([`Guarded`]). So a holder that is
//! killed inside leaves the old state or the new one, never half.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::handshake::Handshake;
use crate::config::policy;
use crate::config::sizes::Sizes;
use crate::conn::conn_counters::ConnCounters;
pub use crate::conn::flag;
pub use crate::conn::id::SlotId;
use crate::conn::kind::Kind;
use crate::conn::listener::{Function, Listener};
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::migration::Migration;
pub use crate::conn::name::Name;
use crate::conn::option_cache::OptionCache;
use crate::conn::pairing_state::Pairing;
use crate::conn::poll_backoff::PollBackoff;
use crate::conn::prefix::Prefix;
use crate::conn::timers::Timers;
use crate::device::shm::channel::{RecvState, SendState};
use crate::sync::guarded::Guarded;

/// What a connection's owners know about direct placement ([`crate::direct_placement`]).
#[repr(C)]
#[derive(Default)]
pub struct Placement {
    /// The process whose memory is mapped, and that places what comes; 0 before there was a
    /// mapping.
    pub owner: AtomicU32,
    /// Mappings ever made, doubled: the generation of the next one's entry.
    pub generation: AtomicU32,
    /// Bytes ever put into the ring. Changed under the send lock.
    pub put: AtomicU64,
    /// Bytes ever taken out of the ring. Changed by the owner, under its own lock.
    pub taken: AtomicU64,
}

impl Placement {
    /// As for a connection that has just begun.
    pub fn reset(&self) {
        self.owner.store(0, Ordering::Relaxed);
        self.generation.store(0, Ordering::Relaxed);
        self.put.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
    }
}

/// One connection. All words are shared by the processes that hold it.
#[repr(C, align(128))]
pub struct Slot {
    // What every hook reads first.
    receive_mode: AtomicU32,
    send_mode: AtomicU32,
    phase: AtomicU32,
    /// Bits of [`flag`].
    flags: AtomicU32,
    /// Changes when the slot is given to another connection.
    pub generation: AtomicU32,
    /// Changes whenever what the kernel must be asked for changes.
    pub mode_epoch: AtomicU32,
    /// Threads inside the kernel to receive, of all owners.
    pub inside_receive: AtomicU32,
    /// Threads inside the kernel to send, of all owners.
    pub inside_send: AtomicU32,
    /// Threads waiting in the kernel for readiness, of all owners.
    pub inside_wait: AtomicU32,
    /// Threads of ours that sleep on the connection; the slot is not reused before they left.
    pub pins: AtomicU32,
    /// Bytes and calls that hooks saw, both directions, scaled; a guess that only times the attach.
    pub position: AtomicU64,
    /// As much of it, unscaled, the side that accepted has sent since the other one last did.
    pub answered: AtomicU64,
    /// The tick of the clock that had the last of it that counts as news (`socket::evidence`).
    pub news_at: AtomicU64,
    /// The position at which the next attach step is due, where there is TCP to stay on.
    pub next_step: AtomicU64,

    /// The pairing's lock, and what it holds open.
    pub pairing: Pairing,
    /// Steps tried so far in this phase.
    pub tries: AtomicU32,
    /// Times that pairing began again because of something that may pass
    /// ([`crate::attach::retry`]).
    pub set_backs: AtomicU32,
    /// Monotonic nanoseconds at which the next step of a connection without TCP is due; 0 for now.
    pub next_try: AtomicU64,
    /// Why not attached ([`crate::reason::Reason`] as a number).
    pub reason: AtomicU32,
    /// What more is known of it ([`crate::conn::cause`]).
    pub cause: AtomicU32,
    /// Which arena record of the fork group, plus one; 0 for none.
    pub arena: AtomicU32,
    /// Which channel in it.
    pub channel: AtomicU32,
    /// Which end of the channel this side is: 0 connecting, 1 accepting.
    pub side: AtomicU32,
    /// What an rsocket is to be made with.
    pub sizes: Sizes,
    /// How long a silent peer is waited for, as far as a bridge must know.
    pub timers: Timers,
    /// How long a strict connection has waited to attach ([`crate::socket::verdict`]).
    pub waiting_since: AtomicU64,
    /// The processes of the fork group that hold it.
    pub owners: crate::conn::owners::Owners,
    /// The bridge's number in its process, plus one; 0 for none.
    pub bridge: AtomicU32,
    /// The process that the bridge is in.
    pub bridge_pid: AtomicU32,
    /// Calls that found nothing before any wait was seen ([`crate::socket::looking`]).
    pub looks: AtomicU32,
    /// When the first of them was, in nanoseconds.
    pub looks_began: AtomicU64,
    /// Whether `TCP_INQ` is set ([`crate::socket::inq`]).
    pub tells_inq: AtomicU32,
    /// Time-outs that were set to less than nothing ([`crate::socket::timeout_set`]).
    pub unwaiting: AtomicU32,
    /// The error that is still to be said, an errno ([`crate::conn::pending`]); 0 for none.
    pub pending_error: AtomicI32,
    /// The first bytes that were sent and received over TCP, for an end on another host to know us
    /// by.
    pub fingerprint: [Prefix; 2],
    /// Where this end, in process `bridge_pid`, can be asked over RDMA: a port; 0 for nowhere.
    pub asked_at_port: AtomicU32,
    /// What is known of the handshake ([`crate::attach::meet`]).
    pub handshake: Handshake,
    /// The kernel's name for the socket, from the first time that its descriptor was sent in a
    /// message; 0 before ([`crate::handover::fds_in_flight`]).
    pub cookie: AtomicU64,
    /// Which record of which process shows it ([`crate::live_segment`]): process above record plus
    /// one; 0 for none.
    pub record: AtomicU64,
    /// Our address and the peer's, where they are not the kernel socket's own.
    pub names: [Name; 2],
    /// Received over TCP.
    pub tcp_in: ConnCounters,
    /// Sent over TCP.
    pub tcp_out: ConnCounters,
    /// Next free slot, while this one is free.
    pub next_free: AtomicU32,

    /// Direct placement.
    pub placement: Placement,
    /// Upstream's fork mode.
    pub migration: Migration,

    /// What `look` needs without the lock: position in the message ring, and unread bytes of the
    /// message.
    pub unread_hint: AtomicU64,
    /// Where in the channel the next bytes will probably be.
    pub next_bytes: AtomicU64,
    /// Time stamp counter when the kernel was last asked whether the connection has ended.
    pub asked_at: AtomicU64,
    /// What a call that receives has to do when it has let go of the receive lock ([`after`]).
    pub after_receive: AtomicU32,
    /// SO_RCVLOWAT, as far as it was set here, or on a listener for what it accepts; 0 and 1 are
    /// the same.
    pub low_water: AtomicU32,
    /// What spinning for data taught ([`crate::sync::spin::Adaptive`]).
    pub receive_spin: AtomicU32,
    /// What the kernel said of the descriptor.
    pub option_cache: OptionCache,
    /// How soon to look for more data.
    pub poll_backoff: PollBackoff,
    /// What spinning for room taught.
    pub send_spin: AtomicU32,
    /// Received over shared memory.
    pub shm_in: ConnCounters,
    /// The receiving direction.
    pub receive: Guarded<RecvState>,

    /// What `look` needs without the lock: position in the credit ring, and whether there
    /// is room ([`SendState::hint`]).
    pub room_hint: AtomicU64,
    /// Changes when room came back after there was none.
    pub room_epoch: AtomicU64,
    /// Time stamp counter when the kernel was last asked whether the peer still reads.
    pub reader_asked_at: AtomicU64,
    /// Sent over shared memory.
    pub shm_out: ConnCounters,
    /// The sending direction.
    pub send: Guarded<SendState>,
}

/// What is to be done after a receive, as bits of [`Slot::after_receive`].
pub mod after {
    /// The sender is to be woken: there is room again.
    pub const WAKE_SENDER: u32 = 1;
    /// An epoll set's waker was put into the words, and no ready bit was taken since. The peer may
    /// have published what this call has found, and not said so yet. Stays until a bit is taken.
    pub const TELL_SETS: u32 = 2;
}

impl Slot {
    /// The sender is to be woken as soon as the receive lock is free. Relaxed: under that lock.
    pub fn wake_sender_soon(&self) {
        self.after_receive.fetch_or(after::WAKE_SENDER, Ordering::Relaxed);
    }

    /// A set's waker is about to be put into the words. Relaxed: before the fence of arming.
    pub fn set_may_be_deaf(&self) {
        self.after_receive.fetch_or(after::TELL_SETS, Ordering::Relaxed);
    }

    /// The sets are told by a ready bit that was taken. Relaxed: under a set's lock, as arming is.
    pub fn sets_hear(&self) {
        self.after_receive.fetch_and(!after::TELL_SETS, Ordering::Relaxed);
    }

    /// Whether the sender is to be woken, which the caller does then.
    #[inline]
    pub fn takes_wake_of_sender(&self) -> bool {
        // Relaxed: whoever takes it wakes with a fence of its own.
        self.after_receive.load(Ordering::Relaxed) & after::WAKE_SENDER != 0
            && self.after_receive.fetch_and(!after::WAKE_SENDER, Ordering::Relaxed)
                & after::WAKE_SENDER
                != 0
    }

    /// Whether an epoll set of this process may not have heard yet of what was found here. Relaxed:
    /// the thread that put the waker in is this one, or has been told of the bytes by it.
    #[inline]
    pub fn sets_may_be_deaf(&self) -> bool {
        self.after_receive.load(Ordering::Relaxed) & after::TELL_SETS != 0
    }

    /// Where this side's incoming bytes come from. Acquire: pairs with [`Self::set_receive_mode`],
    /// so that a thread that sees a mode sees the state that belongs to it.
    #[inline]
    pub fn receive_mode(&self) -> ReceiveMode {
        ReceiveMode::from_raw(self.receive_mode.load(Ordering::Acquire))
    }

    /// Where this side's outgoing bytes go; ordering as [`Self::receive_mode`].
    #[inline]
    pub fn send_mode(&self) -> SendMode {
        SendMode::from_raw(self.send_mode.load(Ordering::Acquire))
    }

    /// Whether its incoming bytes come from there; ordering as [`Self::receive_mode`].
    #[inline(always)]
    pub fn receives_by(&self, mode: ReceiveMode) -> bool {
        self.receive_mode.load(Ordering::Acquire) == mode as u32
    }

    /// Whether its outgoing bytes go there; ordering as [`Self::receive_mode`].
    #[inline(always)]
    pub fn sends_by(&self, mode: SendMode) -> bool {
        self.send_mode.load(Ordering::Acquire) == mode as u32
    }

    /// Whether the pairing has come so far and no further.
    #[inline(always)]
    pub fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) == phase as u32
    }

    /// As [`Self::receive_mode`], in one order with the in-kernel counters. A caller may have
    /// counted itself in and still see Kernel: then the thread that sets Asked and afterwards reads
    /// the counter sees that caller.
    #[inline]
    pub fn receive_mode_fenced(&self) -> ReceiveMode {
        ReceiveMode::from_raw(self.receive_mode.load(Ordering::SeqCst))
    }

    /// The sending counterpart of [`Self::receive_mode_fenced`].
    #[inline]
    pub fn send_mode_fenced(&self) -> SendMode {
        SendMode::from_raw(self.send_mode.load(Ordering::SeqCst))
    }

    /// How far the pairing is.
    #[inline]
    pub fn phase(&self) -> Phase {
        Phase::from_raw(self.phase.load(Ordering::Acquire))
    }

    /// Whether it has a channel at all.
    #[inline]
    #[must_use]
    pub fn has_channel(&self) -> bool {
        self.arena.load(Ordering::Relaxed) != 0
    }

    /// What it is. A connection that meets its peer becomes another kind: a call asks after its
    /// step of the pairing.
    #[inline(always)]
    #[must_use]
    pub fn kind(&self) -> Kind {
        // The channel first. Acquire: pairs with the release in link::start, before which a native
        // connection has its flags.
        let has_channel = self.arena.load(Ordering::Acquire) != 0;
        Kind::of(self.flags.load(Ordering::Relaxed), has_channel)
    }

    /// The same without a look at the channel, which tells shared memory from TCP: for callers to
    /// whom both are the same, in one load. Shared memory is [`Kind::Tcp`] here.
    #[inline(always)]
    #[must_use]
    pub fn kind_by_flags(&self) -> Kind {
        Kind::of(self.flags.load(Ordering::Relaxed), false)
    }

    /// [`Kind::has_bridge`].
    #[inline(always)]
    #[must_use]
    pub fn has_bridge(&self) -> bool {
        self.kind_by_flags().has_bridge()
    }

    /// [`Kind::ends_with_tcp`].
    #[inline(always)]
    #[must_use]
    pub fn ends_with_tcp(&self) -> bool {
        self.kind_by_flags().ends_with_tcp()
    }

    /// Whether both directions are shut.
    pub(crate) fn takes_nothing(&self) -> bool {
        self.has_just(flag::READ_SHUT | flag::WRITE_SHUT, flag::READ_SHUT | flag::WRITE_SHUT)
    }

    /// Whether both directions are wholly on the device: what the kernel is to be asked will not
    /// change any more, short of a fallback.
    #[inline]
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.receive_mode() == ReceiveMode::Device && self.send_mode() == SendMode::Device
    }

    /// Publishes a receive mode; see [`Self::receive_mode_fenced`].
    pub fn set_receive_mode(&self, mode: ReceiveMode) {
        self.receive_mode.store(mode as u32, Ordering::SeqCst);
        self.mode_epoch.fetch_add(1, Ordering::AcqRel);
        changed(self);
    }

    /// Something else changed that decides what the kernel must be asked for.
    pub fn next_epoch(&self) {
        self.mode_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Publishes a send mode.
    pub fn set_send_mode(&self, mode: SendMode) {
        self.send_mode.store(mode as u32, Ordering::SeqCst);
        self.mode_epoch.fetch_add(1, Ordering::AcqRel);
        changed(self);
    }

    /// As [`Self::set_receive_mode`], but only out of the mode that the caller acted on: another
    /// thread may have gone back to TCP meanwhile.
    pub fn shift_receive_mode(&self, from: ReceiveMode, to: ReceiveMode) -> bool {
        let done = self.receive_mode.compare_exchange(
            from as u32,
            to as u32,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        self.mode_epoch.fetch_add(1, Ordering::AcqRel);
        changed(self);
        done.is_ok()
    }

    /// The sending counterpart of [`Self::shift_receive_mode`].
    pub fn shift_send_mode(&self, from: SendMode, to: SendMode) -> bool {
        let done = self.send_mode.compare_exchange(
            from as u32,
            to as u32,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        self.mode_epoch.fetch_add(1, Ordering::AcqRel);
        changed(self);
        done.is_ok()
    }

    /// Publishes a phase.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Release);
        changed(self);
    }

    /// Whether any of the bits of [`flag`] is set.
    #[inline]
    pub fn has(&self, bit: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether of `these` bits of [`flag`] exactly those in `set` are set.
    #[inline]
    pub fn has_just(&self, set: u32, these: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & these == set
    }

    /// Sets these bits of [`flag`] in one step.
    pub fn set(&self, bits: u32) {
        let old = self.flags.fetch_or(bits, Ordering::AcqRel);
        flag::judge(old, old | bits);
    }

    /// A wait for the socket was seen.
    #[inline]
    pub fn waits_seen(&self) {
        if !self.has(flag::WAITED) {
            self.set(flag::WAITED);
        }
    }

    /// Sets `bit` of [`flag`]; whether it was not set before.
    pub fn set_first(&self, bit: u32) -> bool {
        let old = self.flags.fetch_or(bit, Ordering::AcqRel);
        flag::judge(old, old | bit);
        old & bit == 0
    }

    /// Clears these bits of [`flag`] in one step; whether any was set.
    pub fn clear(&self, bits: u32) -> bool {
        let old = self.flags.fetch_and(!bits, Ordering::AcqRel);
        flag::judge(old, old & !bits);
        old & bits != 0
    }

    /// Clears `from` of [`flag`] and sets `to` in one step: no thread sees both, or neither.
    pub fn turn(&self, from: u32, to: u32) {
        // AcqRel: as a change of one bit. Relaxed: a word that has changed meanwhile is read anew.
        let turned = |flags: u32| flags & !from | to;
        let done = self
            .flags
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |flags| Some(turned(flags)));
        if let Ok(old) = done {
            flag::judge(old, turned(old));
        }
    }

    /// Makes the slot a fresh one for a new descriptor. The caller has it to itself.
    pub fn reset(&self, flags: u32) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.record.store(0, Ordering::Relaxed);
        self.cookie.store(0, Ordering::Relaxed);
        self.set_receive_mode(ReceiveMode::Kernel);
        self.set_send_mode(SendMode::Kernel);
        self.set_phase(Phase::Unconnected);
        flag::judge_birth(flags);
        self.flags.store(flags, Ordering::Relaxed);
        self.forget_words();
        self.forget_parts();
        self.receive.free();
        self.send.free();
    }

    /// What the last connection has left in single words: 0 is "nothing yet" in each.
    fn forget_words(&self) {
        for word in [
            &self.inside_receive,
            &self.inside_send,
            &self.inside_wait,
            &self.pins,
            &self.tries,
            &self.set_backs,
            &self.receive_spin,
            &self.low_water,
            &self.after_receive,
            &self.send_spin,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.position,
            &self.answered,
            &self.news_at,
            &self.next_step,
            &self.next_try,
            &self.asked_at,
            &self.room_epoch,
            &self.reader_asked_at,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.waiting_since.store(0, Ordering::Relaxed);
        self.reason.store(0, Ordering::Relaxed);
        self.cause.store(0, Ordering::Relaxed);
        self.bridge.store(0, Ordering::Relaxed);
        self.bridge_pid.store(0, Ordering::Relaxed);
        self.pending_error.store(0, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
        self.looks_began.store(0, Ordering::Relaxed);
        self.tells_inq.store(0, Ordering::Relaxed);
        self.unwaiting.store(0, Ordering::Relaxed);
        self.asked_at_port.store(0, Ordering::Relaxed);
        self.arena.store(0, Ordering::Relaxed);
        self.unread_hint.store(0, Ordering::Relaxed);
        self.next_bytes.store(0, Ordering::Relaxed);
        self.room_hint.store(0, Ordering::Relaxed);
    }

    /// What it has left in parts that know how to begin anew.
    fn forget_parts(&self) {
        self.option_cache.change();
        self.sizes.copy_from(policy::sizes());
        self.timers.reset();
        self.poll_backoff.reset();
        self.fingerprint.iter().for_each(Prefix::reset);
        self.names.iter().for_each(|name| name.set(None));
        self.placement.reset();
        self.migration.reset();
        self.handshake.reset();
        self.pairing.reset();
    }
}

// SAFETY: a function pointer.
unsafe impl Function for fn(&Slot) {
    fn address(self) -> *mut () {
        self as *mut ()
    }
}

static CHANGED: Listener<fn(&Slot)> = Listener::nobody();

/// Installs the function that shows what becomes of connections.
pub(crate) fn show_changes(changed: fn(&Slot)) {
    CHANGED.install(changed);
}

/// A mode or the phase of the connection has changed.
#[inline]
fn changed(s: &Slot) {
    if let Some(f) = CHANGED.get() {
        f(s);
    }
}
