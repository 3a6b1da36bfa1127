//! What the administrator asked for, resolved once for the process.
//!
//! Read from the environment and the configuration files when the first TCP socket appears; from
//! then on a few relaxed loads. Must not know a connection, nor what is made by the settings
//! (`socket::settings`). Entry points: [`read`], then a function for each setting.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use crate::config::sizes::Sizes;
use crate::config::{Config, Transport, fork_peers};
use crate::host::filter;
use crate::host::trial::Seccomp;

const UNREAD: u32 = 0;
const READING: u32 = 1;
const READ: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(UNREAD);
static SHM: AtomicBool = AtomicBool::new(true);
static TCP: AtomicBool = AtomicBool::new(true);
static RDMA: AtomicBool = AtomicBool::new(true);
static EAGER: AtomicBool = AtomicBool::new(false);
static REQUIRE: AtomicBool = AtomicBool::new(false);
static SECCOMP: AtomicU8 = AtomicU8::new(Seccomp::Careful as u8);
static RINGS: AtomicBool = AtomicBool::new(false);
static POLLING_NS: AtomicU64 = AtomicU64::new(50_000);
/// Milliseconds; 0 is no limit.
static WAKE_UP_MS: AtomicU32 = AtomicU32::new(0);
static FORK_SAFE: AtomicBool = AtomicBool::new(false);
static RSOCKETS: AtomicBool = AtomicBool::new(false);
static SIZES: Sizes = Sizes::new(&Config::DEFAULT);

/// Position at which a connection is thought to live long enough to be worth the attach. An attach
/// costs about what one TCP connection costs. The position counts bytes, and [`PER_CALL`] for each
/// call, in both directions. What counts, the socket's `evidence` says.
pub const MARK: u64 = 16 * 1024;
/// What one call adds to the position beside its bytes: many small exchanges are worth it too.
pub const PER_CALL: u64 = 1024;
/// Position at which a connection that must leave TCP should have met its peer.
pub const REQUIRED_BY: u64 = 4 << 20;
/// How long a connection that may not use TCP waits to attach, in nanoseconds.
pub const STRICT_PATIENCE_NS: u64 = 5_000_000_000;

/// libc's `getenv`, as the library that this crate is part of has it.
pub type Getenv = fn(&CStr) -> Option<&'static CStr>;

/// Whether a thread has read the settings, and all that goes with them.
#[inline]
#[must_use]
pub fn is_resolved() -> bool {
    // Acquire: pairs with the release in resolved().
    STATE.load(Ordering::Acquire) == READ
}

/// This thread is about to read the settings. True of the first such thread, which speaks for them
/// all. Threads whose first sockets come at the same time must not go by defaults. They must not
/// wait either, since one may be a signal handler above another. So each thread reads, and finds
/// the same.
#[must_use]
pub fn begins() -> bool {
    STATE.compare_exchange(UNREAD, READING, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// All that goes with the settings is done.
pub fn resolved() {
    // Release: pairs with the acquire in is_resolved(): a thread that finds READ has what was
    // stored before.
    STATE.store(READ, Ordering::Release);
}

/// Reads the settings. The `first` thread complains of what is wrong with them.
pub fn read(getenv: Getenv, first: bool) {
    let env = |name: &'static str| short_name(name, getenv);
    let (mut config, mut complaints) = Config::load(env);
    if !are_rsockets() {
        config.apply_preload_env(env, &mut complaints);
    }
    for c in complaints.iter().filter(|_| first) {
        crate::log_warn!("{}", c);
    }
    SHM.store(config.transports.allows(Transport::Shm), Ordering::Relaxed);
    TCP.store(config.transports.allows(Transport::Tcp), Ordering::Relaxed);
    RDMA.store(config.transports.allows(Transport::Rdma), Ordering::Relaxed);
    EAGER.store(config.eager, Ordering::Relaxed);
    REQUIRE.store(config.require, Ordering::Relaxed);
    POLLING_NS.store(u64::from(config.polling_us) * 1000, Ordering::Relaxed);
    WAKE_UP_MS.store(config.wake_up_ms, Ordering::Relaxed);
    SIZES.copy_from(&Sizes::new(&config));
    read_words(getenv, first);
}

/// The settings that are a word each.
fn read_words(getenv: Getenv, first: bool) {
    let value = |name| getenv(name).map_or(b"".as_slice(), CStr::to_bytes);
    let seccomp = Seccomp::from_value(value(c"RSOCKET_SECCOMP")).unwrap_or_else(|| {
        if first {
            crate::log_warn!("RSOCKET_SECCOMP is none of probe, trust and refuse: the default");
        }
        Seccomp::Careful
    });
    SECCOMP.store(seccomp as u8, Ordering::Relaxed);
    match value(c"RSOCKET_IO_URING") {
        b"" | b"refuse" => {}
        b"tcp" => RINGS.store(true, Ordering::Relaxed),
        _ if !first => {}
        _ => crate::log_warn!("RSOCKET_IO_URING is neither refuse nor tcp: refuse"),
    }
    // An integer, as upstream reads it; what is none is 0.
    let fork_safe = value(c"RDMAV_FORK_SAFE").trim_ascii();
    let nonzero = fork_safe.iter().take_while(|b| b.is_ascii_digit()).any(|b| *b != b'0');
    FORK_SAFE.store(nonzero && !are_rsockets(), Ordering::Relaxed);
    let (peers, clean) = fork_peers::Peers::parse(value(c"RSOCKET_FORK_PEERS"));
    fork_peers::remember(&peers);
    if first && !clean {
        crate::log_warn!("RSOCKET_FORK_PEERS has words that are no addresses: they name nobody");
    }
}

fn short_name(name: &str, getenv: Getenv) -> Option<&'static [u8]> {
    let mut bytes = [0u8; 64];
    bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    Some(getenv(CStr::from_bytes_until_nul(&bytes).ok()?)?.to_bytes())
}

/// Whether shared memory may be used.
#[inline]
pub fn shm_allowed() -> bool {
    SHM.load(Ordering::Relaxed)
}

/// The sockets of the library that this is part of are rsockets, which never use TCP for data,
/// whatever the settings say. To be called before its first socket is made.
pub fn rsockets() {
    RSOCKETS.store(true, Ordering::Relaxed);
}

/// Whether [`rsockets`] was called.
#[inline]
pub fn are_rsockets() -> bool {
    RSOCKETS.load(Ordering::Relaxed)
}

/// Whether TCP is excluded.
#[inline]
pub fn strict() -> bool {
    !TCP.load(Ordering::Relaxed) || are_rsockets()
}

/// What a new socket starts with, where the program does not say otherwise.
#[must_use]
pub fn sizes() -> &'static Sizes {
    &SIZES
}

/// Whether RDMA may be used.
#[inline]
pub fn rdma_allowed() -> bool {
    RDMA.load(Ordering::Relaxed)
}

/// Whether connections begin as in upstream's fork mode (`RDMAV_FORK_SAFE`).
#[inline]
pub fn fork_safe() -> bool {
    FORK_SAFE.load(Ordering::Relaxed)
}

/// Whether connections are RDMA's from the start, by its own connection manager, as upstream's are:
/// no TCP.
#[inline]
pub fn native_rdma() -> bool {
    rdma_allowed() && strict() && !shm_allowed()
}

/// Whether a connection tries to attach from its first byte.
#[inline]
pub fn eager() -> bool {
    EAGER.load(Ordering::Relaxed)
}

/// The position at which a connection takes its first step towards the attach.
#[inline]
#[must_use]
pub fn first_step() -> u64 {
    if eager() { 0 } else { MARK }
}

/// The shortest distance from a step that found no peer to the next one.
#[inline]
#[must_use]
pub fn step_distance() -> u64 {
    if eager() { PER_CALL } else { MARK }
}

/// Whether a connection that stays on TCP for good, or goes back to it, is to be broken.
#[inline]
pub fn required() -> bool {
    REQUIRE.load(Ordering::Relaxed)
}

/// What was said of processes under a seccomp filter.
#[inline]
#[must_use]
pub fn seccomp() -> Seccomp {
    Seccomp::from_number(SECCOMP.load(Ordering::Relaxed))
}

/// Whether nothing attaches in this process for the sake of a sandbox: [`filter::sandboxed`].
#[must_use]
pub fn sandboxed() -> bool {
    filter::sandboxed(seccomp())
}

/// Whether programs may have an io_uring, and then stay on TCP; else it is refused.
#[inline]
pub fn rings_allowed() -> bool {
    RINGS.load(Ordering::Relaxed)
}

/// How long a waiter spins before it sleeps, in nanoseconds.
#[inline]
pub fn polling_ns() -> u64 {
    POLLING_NS.load(Ordering::Relaxed)
}

/// How long one sleep of poll, select or epoll may last before the sockets are looked at again. A
/// safeguard: a thread that has news for them wakes the sleeper anyway. `None` for as long as it
/// takes.
#[inline]
pub fn wake_up_interval() -> Option<Duration> {
    match WAKE_UP_MS.load(Ordering::Relaxed) {
        0 => None,
        ms => Some(Duration::from_millis(ms.into())),
    }
}
