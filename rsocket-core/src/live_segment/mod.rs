//! What `rsstat` shows. Each connection that has attached, or has learnt that it never will, has a
//! record in a file that this process maps. What happens to it is counted there by plain stores. No
//! process is asked or told; a reader that may read the file looks when it likes.
//!
//! The file is made when the first such connection comes ([`file`](self::file), some ten system
//! calls), never in a sandbox. Where none can be made there is none. A process that ends removes
//! it; one that was killed leaves it. Must not know pairing or devices. Entry points: [`enter`],
//! [`record`], [`leave`], [`ended`].

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod conn_counters;
mod file;

pub use rsocket_stats::layout;

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::RawFd;

use crate::config::policy;
use crate::conn::cause;
use crate::conn::kind::Kind;
use crate::conn::slot::{self, Slot, SlotId};
use crate::host::tuple::Tuple;
use crate::stats::{self, Stats};
use crate::sync::published::Published;
use crate::sys::mapped::Words;
use crate::sys::settle::Settle;
use crate::sys::{clock, sandbox};
use crate::{environment, sys};
use layout::{CHUNK_RECORDS, MAX_CHUNKS, RECORD_WORDS, Via, record as word};

/// One connection in the file. Relaxed everywhere: numbers for people, which order nothing.
#[repr(C)]
pub struct Record([AtomicU64; RECORD_WORDS]);

// SAFETY: atomic integers.
unsafe impl Words for Record {}

type Chunk = [Record; CHUNK_RECORDS];

/// A head page.
#[repr(C)]
struct Head {
    words: [AtomicU64; layout::head::COUNTERS],
    counters: Stats,
    _rest: [AtomicU64; (layout::HEAD_BYTES - size_of::<Stats>()) / 8 - layout::head::COUNTERS],
}

// SAFETY: all of its fields are.
unsafe impl Words for Head {}

/// What the file is at first.
#[repr(C)]
struct File {
    head: Head,
    first: Chunk,
}

// SAFETY: both of its fields are.
unsafe impl Words for File {}

const _: () = assert!(
    size_of::<Head>() == layout::HEAD_BYTES
        && size_of::<File>() == layout::HEAD_BYTES + layout::CHUNK_BYTES
        && core::mem::offset_of!(Head, counters) == layout::head::COUNTERS * 8
);

const NONE: u32 = 0;
const MAKING: u32 = 1;
const MADE: u32 = 2;
const IMPOSSIBLE: u32 = 3;
/// Whether this process has a file.
static STATE: AtomicU32 = AtomicU32::new(NONE);
/// The number by which slots know that a record is this process's: its pid, 0 without a file.
static MINE: AtomicU32 = AtomicU32::new(0);
static HEAD: Published<Head> = Published::new();
static CHUNKS: [Published<Chunk>; MAX_CHUNKS] = [const { Published::new() }; MAX_CHUNKS];
/// Free records: number plus one in the low half, a counter against reuse in the high half.
static FREE: AtomicU64 = AtomicU64::new(0);

impl Record {
    #[inline(always)]
    fn word(&self, number: usize) -> &AtomicU64 {
        // The numbers are constants below the length; a wrong one must not be a panic.
        self.0.get(number).unwrap_or(&SCRAP)
    }

    #[inline(always)]
    fn set(&self, number: usize, value: u64) {
        self.word(number).store(value, Ordering::Relaxed);
    }

    /// Adds to a word that one thread at a time adds to; two that do at once may lose a count.
    #[inline]
    pub(crate) fn add(&self, number: usize, n: u64) {
        let w = self.word(number);
        w.store(w.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// What is unread of the current message.
    #[inline]
    pub(crate) fn unread(&self, bytes: u32) {
        self.set(word::UNREAD, u64::from(bytes));
    }

    /// What the next message may have, and the credits of both classes.
    #[inline]
    pub(crate) fn room(&self, bytes: u32, credits: [u16; 2]) {
        let [small, large] = credits;
        self.set(word::ROOM, u64::from(large) << 48 | u64::from(small) << 32 | u64::from(bytes));
    }

    /// The credits of the small class, where nothing else has changed. What the next message may
    /// have is then shown as it was. But without room in the large class the true value is what is
    /// left of a small segment.
    #[inline(always)]
    pub(crate) fn small_credits(&self, credits: u16) {
        let others = self.word(word::ROOM).load(Ordering::Relaxed) & !(0xffff << 32);
        self.set(word::ROOM, others | u64::from(credits) << 32);
    }

    /// One word.
    pub(crate) fn count(&self, number: usize) -> u64 {
        self.word(number).load(Ordering::Relaxed)
    }

    /// One word, and zero from now on.
    pub(crate) fn take(&self, number: usize) -> u64 {
        self.word(number).swap(0, Ordering::Relaxed)
    }
}

static SCRAP: AtomicU64 = AtomicU64::new(0);

#[inline(always)]
fn nth(index: usize) -> Option<&'static Record> {
    // The file has all its blocks from the start, so that a full file system is no fault here.
    CHUNKS.get(index / CHUNK_RECORDS)?.get()?.get(index % CHUNK_RECORDS)
}

/// The connection's record, if it is one of this process's.
#[inline(always)]
pub fn record(s: &Slot) -> Option<&'static Record> {
    let known = s.record.load(Ordering::Relaxed);
    if known == 0 || (known >> 32) as u32 != MINE.load(Ordering::Relaxed) {
        return None;
    }
    nth((known as u32).checked_sub(1)? as usize)
}

/// The connection's state has changed, or its reason, or its flags.
#[inline]
pub fn changed(s: &Slot) {
    if let Some(r) = record(s) {
        let (reason, by_peer) = cause::shown(s);
        let first = if by_peer { word::BY_PEER } else { 0 };
        r.set(word::STATE, first | (reason as u64) << 32 | cause::condition(s) as u64);
        let mut words = cause::detail_name(s).unwrap_or("").as_bytes().chunks(8);
        for number in word::DETAIL..word::DETAIL + word::DETAIL_WORDS {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(words.next().unwrap_or(&[])).for_each(|(to, from)| *to = *from);
            r.set(number, u64::from_ne_bytes(bytes));
        }
    }
}

/// Counts something that happened to one connection: a number of [`layout::record`].
#[inline]
pub(crate) fn count(s: &Slot, number: usize) {
    if let Some(r) = record(s) {
        r.add(number, 1);
    }
}

/// What both ends of the connection have in common, and no other two at the same time.
pub fn name_pair(s: &Slot, common: u64) {
    if let Some(r) = record(s) {
        r.set(word::COMMON, common);
    }
}

fn via(s: &Slot) -> u64 {
    let via = match s.kind() {
        Kind::RdmaBesideTcp | Kind::NativeRdma => Via::Rdma,
        Kind::SharedMemory => Via::Shm,
        Kind::Tcp | Kind::RdmaListener | Kind::Datagram => Via::Tcp,
    };
    u64::from(via as u32) << 32
}

/// The connection has attached, or stays on TCP, for good or until its other end comes: from now on
/// it is shown. To be called where a system call more does not matter.
#[cold]
pub fn enter(id: SlotId, s: &Slot, fd: RawFd) {
    if let Some(r) = record(s) {
        if Via::from_raw((r.count(word::FD) >> 32) as u32) == Via::Tcp {
            r.set(word::FD, via(s) | r.count(word::FD));
        }
        return changed(s);
    }
    // A file that cannot be opened costs an error; where a filter kills, it would cost the process.
    if sandbox::inside() || !begin() {
        return;
    }
    let Some(index) = free_record() else { return };
    let Some(r) = nth(index) else { return };
    for number in (0..RECORD_WORDS).filter(|n| *n != word::NEXT) {
        r.set(number, 0);
    }
    let names = s.names.each_ref().map(|name| name.get());
    name(r, names, if fd < 0 { None } else { Tuple::of(fd) });
    r.set(word::FD, via(s) | u64::from(fd as u32));
    r.set(word::MADE_SINCE_BOOT, clock::since_boot());
    let before = [s.tcp_in.now(), s.tcp_out.now()];
    for (i, n) in before.into_iter().flat_map(|(bytes, messages)| [bytes, messages]).enumerate() {
        r.set(word::BEFORE + i, n);
    }
    let generation = s.generation.load(Ordering::Relaxed).max(1);
    r.set(word::KEY, u64::from(generation) << 32 | u64::from(id.raw()));
    s.record.store(
        u64::from(MINE.load(Ordering::Relaxed)) << 32 | (index as u64 + 1),
        Ordering::Relaxed,
    );
    changed(s);
}

/// Writes the two addresses into a record.
fn name(r: &Record, known: [Option<SocketAddr>; 2], tuple: Option<Tuple>) {
    let pack = |a: [u8; 16]| {
        let [high, low] = [u128::from_ne_bytes(a) as u64, (u128::from_ne_bytes(a) >> 64) as u64];
        [high, low]
    };
    let bytes = |a: SocketAddr| {
        let mut out = [0; 16];
        match a.ip().to_canonical() {
            IpAddr::V4(ip) => out.iter_mut().zip(ip.octets()).for_each(|(to, from)| *to = from),
            IpAddr::V6(ip) => out = ip.octets(),
        }
        out
    };
    let (family, ends) = match (known, tuple) {
        ([Some(ours), Some(theirs)], _) => {
            let family = if ours.ip().to_canonical().is_ipv4() { 4 } else { 6 };
            (family, [(bytes(ours), ours.port()), (bytes(theirs), theirs.port())])
        }
        (_, Some(t)) => (t.family, [(t.local.addr, t.local.port), (t.remote.addr, t.remote.port)]),
        _ => return,
    };
    let [(local, our_port), (peer, their_port)] = ends;
    r.set(word::PORTS, u64::from(family) << 32 | u64::from(their_port) << 16 | u64::from(our_port));
    for (first, address) in [(word::LOCAL, local), (word::PEER, peer)] {
        for (i, w) in pack(address).into_iter().enumerate() {
            r.set(first + i, w);
        }
    }
}

/// The connection is over, its counts have been taken.
pub fn leave(s: &Slot) {
    let Some(r) = record(s) else { return };
    let index = (s.record.swap(0, Ordering::Relaxed) as u32).wrapping_sub(1);
    r.set(word::KEY, 0);
    loop {
        let head = FREE.load(Ordering::Relaxed);
        r.set(word::NEXT, head & 0xffff_ffff);
        let new = (head >> 32).wrapping_add(1) << 32 | u64::from(index.wrapping_add(1));
        // Release: pairs with the acquire in free_record().
        if FREE.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

fn free_record() -> Option<usize> {
    loop {
        // Acquire: pairs with the release in leave(), so that the next free record is what was
        // stored.
        let head = FREE.load(Ordering::Acquire);
        let Some(index) = (head as u32).checked_sub(1) else { break };
        let next = nth(index as usize)?.word(word::NEXT).load(Ordering::Relaxed);
        let new = (head >> 32).wrapping_add(1) << 32 | next & 0xffff_ffff;
        if FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(index as usize);
        }
    }
    let used = head_word(layout::head::USED)?;
    let index = usize::try_from(used.fetch_add(1, Ordering::Relaxed)).ok()?;
    if nth(index).is_none() && !grow(index / CHUNK_RECORDS) {
        used.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    Some(index)
}

fn head_word(number: usize) -> Option<&'static AtomicU64> {
    HEAD.get()?.words.get(number)
}

/// One chunk more; false when there cannot be one.
fn grow(chunk: usize) -> bool {
    let Some(place) = CHUNKS.get(chunk) else { return false };
    let Some(records) = file::more(chunk) else { return false };
    // Two threads that grow at once map the same bytes of the file twice.
    place.publish(records);
    true
}

/// Makes the file, once; whether there is one.
fn begin() -> bool {
    if STATE.load(Ordering::Acquire) == MADE {
        return true;
    }
    if STATE.compare_exchange(NONE, MAKING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    // A privileged process writes no file.
    let wanted = !environment::privileged()
        && environment::variable(c"RSOCKET_LIVE").is_none_or(|v| v.to_bytes() != b"0");
    let made = if wanted && !policy::sandboxed() { file::create() } else { None };
    let Some(made) = made else {
        STATE.store(IMPOSSIBLE, Ordering::Release);
        return false;
    };
    if let Some(chunk) = CHUNKS.first() {
        chunk.publish(&made.first);
    }
    HEAD.publish(&made.head);
    stats::count_in(&made.head.counters);
    MINE.store(sys::pid(), Ordering::Relaxed);
    slot::show_changes(changed);
    STATE.store(MADE, Ordering::Release);
    true
}

/// In a forked child: the file is the parent's. Its own comes with its first connection that
/// attaches. (What is mapped stays so: a child that no fork handler ran for must be able to count.)
pub fn forked() {
    MINE.settle(0);
    FREE.settle(0);
    // The first chunk is there when the head is: without, their page is not touched.
    if HEAD.is_there() {
        HEAD.withdraw();
        CHUNKS.iter().take_while(|chunk| chunk.is_there()).for_each(Published::withdraw);
    }
    STATE.settle(NONE);
}

/// After `exec`, before anything else is asked of a connection that goes on. Its record was in the
/// file of the last program, which is not mapped any more. The file of this program will be known
/// by the same process id.
pub fn forget_last_program(s: &Slot) {
    if (s.record.load(Ordering::Relaxed) >> 32) as u32 == sys::pid() {
        s.record.store(0, Ordering::Relaxed);
    }
}

/// The process ends, or is about to become another program; or, with false, it has not.
pub fn ending(so: bool) {
    if let Some(ended) = head_word(layout::head::ENDED) {
        ended.store(u64::from(so), Ordering::Relaxed);
    }
}

/// The process ends: nothing is left of its file. Makes one system call, if there is a file and no
/// sandbox.
pub fn ended() {
    ending(true);
    if STATE.load(Ordering::Acquire) == MADE && !sandbox::inside() {
        file::remove();
    }
}
