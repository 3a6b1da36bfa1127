//! Kernel calls that the library makes for itself, and the file descriptors that it keeps for
//! itself.
//!
//! Everything here goes to the kernel directly (rustix, `linux_raw`). The preload library hooks
//! libc's functions of the same names, and calling them from inside a hook would come back to us
//! (`hazards H4`). One system call is made through libc, [`wait`], because a thread that sleeps on
//! behalf of the program must stay a cancellation point. The preload library installs libc's own
//! definition there.
//!
//! Private descriptors are numbered above the program's limit where that is possible ([`above`]),
//! else high. They are close-on-exec, and are marked in a bitmap so that the hooks on `close`,
//! `dup2` and `close_range` can spare them.

mod above;
pub mod background;
pub mod cancelling;
pub mod clock;
pub mod descriptor;
pub mod errand;
pub mod event_set;
pub mod files;
pub mod identity;
pub mod mapped;
pub mod nowait;
pub mod on_word;
pub mod sandbox;
pub mod settle;
pub mod small_file;
pub mod sock_diag;
pub mod sockets;
pub mod text;
pub mod thread_end;
pub mod unix_datagram;
pub mod unlocked;
pub mod vectors;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::process::Rlimit;

use crate::failure::Failure;
use crate::sys::settle::Settle;

/// Descriptors at or above this number are never private, and never looked up.
pub const MAX_FDS: usize = 1 << 20;

/// One bit for each descriptor number: set while the number is ours. A bit is set before the number
/// is used and cleared before it is closed, by the same thread. Readers only ever act on their own
/// fds, so relaxed is enough.
static PRIVATE: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];

/// The program's limits on open files.
fn limits() -> Rlimit {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
}

fn soft(limits: Rlimit) -> u64 {
    limits.current.unwrap_or(u64::MAX)
}

/// The program's soft limit on open files.
fn soft_limit() -> u64 {
    soft(limits())
}

/// Whether the program may have that number.
#[must_use]
pub fn is_below_limit(fd: RawFd) -> bool {
    u64::try_from(fd).is_ok_and(|fd| fd < soft_limit())
}

/// A lower bound for private numbers below the limit. It is high, since they are not select's where
/// it can be helped. It is low, since every fork goes through the kernel's table of descriptors up
/// to the highest number (3,072 of them took 14 µs).
fn private_base(soft: u64) -> RawFd {
    (soft / 4 * 3).min(libc::FD_SETSIZE as u64) as RawFd
}

/// How many private descriptors may be kept only to save time. It is any number above the soft
/// limit, where they take none from the program. Else it is a small part of what the program may
/// have.
#[must_use]
pub fn spare() -> u64 {
    let limits = limits();
    if above::is_possible(limits) { u64::MAX } else { soft(limits) / 16 }
}

/// True when there is room for private descriptors above the soft limit, or below it beside the
/// program's own.
#[must_use]
pub fn fd_margin() -> bool {
    // Relaxed: a moment, which orders nothing.
    let until = USED_UP_UNTIL.load(Ordering::Relaxed);
    let limits = limits();
    above::is_possible(limits) || soft(limits) >= 128 && (until == 0 || now_ns() >= until)
}

/// Until when none of ours is to be added below the limit; 0 if there was never a reason.
static USED_UP_UNTIL: AtomicU64 = AtomicU64::new(0);
/// How long that is, in nanoseconds.
const RESPITE: u64 = 5_000_000_000;

/// The program has met its limit.
pub fn used_up() {
    USED_UP_UNTIL.store(now_ns().saturating_add(RESPITE), Ordering::Relaxed);
}

/// The number from which on the program nears its limit, while one of ours has been put below it.
static CROWDED_FROM: AtomicI32 = AtomicI32::new(i32::MAX);

/// See `headroom::is_crowded` of rsocket-core. Relaxed: a number that orders nothing.
#[inline]
#[must_use]
pub fn crowded_from() -> RawFd {
    CROWDED_FROM.load(Ordering::Relaxed)
}

/// Another number for what `fd` names where the program, with this soft limit, could have one, too.
fn below(fd: BorrowedFd<'_>, soft: u64) -> Result<OwnedFd, Failure> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, private_base(soft))?;
    let limit = i32::try_from(soft).unwrap_or(i32::MAX);
    if copy.as_raw_fd() < limit - limit / 16 {
        watch_from(soft);
    } else {
        // Ours have filled what is above the program's. The next one of its makes room for more of
        // them.
        CROWDED_FROM.store(0, Ordering::Relaxed);
    }
    Ok(copy)
}

/// From now on the program's descriptors are few while they are below three quarters of the limit.
pub fn watch_for_crowds() {
    watch_from(soft_limit());
}

fn watch_from(soft: u64) {
    let crowded = i32::try_from(soft.saturating_mul(3) / 4).unwrap_or(i32::MAX);
    CROWDED_FROM.store(crowded, Ordering::Relaxed);
}

/// Whether a file may become so many bytes long here. To make a longer one, also one that is
/// memory, is a `SIGXFSZ` for the program (setrlimit(2), `RLIMIT_FSIZE`), so we ask before the
/// kernel does.
#[must_use]
pub fn file_may_reach(size: u64) -> bool {
    let errno = errno();
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let nothing = core::ptr::null::<libc::rlimit64>();
    // SAFETY: the kernel writes a limit, for which there is room, and reads none.
    let r = unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, nothing, &raw mut limit)
    };
    set_errno(errno);
    // A filter may refuse to tell: then it is not known that there is one. (rustix says 0 there.)
    r != 0 || limit.rlim_cur == libc::RLIM64_INFINITY || size <= limit.rlim_cur
}

/// Whether so many bytes may be written at the end of what `fd` names; as [`file_may_reach`], if it
/// is a file.
#[must_use]
pub fn may_append(fd: impl AsFd, more: usize) -> bool {
    if file_may_reach(u64::MAX) {
        return true;
    }
    let Ok(status) = rustix::fs::fstat(fd) else { return false };
    rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::RegularFile
        || file_may_reach((status.st_size as u64).saturating_add(more as u64))
}

/// Moves `fd` to a private number, close-on-exec, and marks it. The descriptor stays open until
/// [`close_private`].
///
/// # Errors
/// What `F_DUPFD_CLOEXEC` answers: mostly `EMFILE`. The original is closed in that case.
pub fn make_private(fd: OwnedFd) -> Result<RawFd, Failure> {
    let number = private_copy(&fd)?;
    discard(fd);
    Ok(number)
}

/// Another number for what `fd` names: private, close-on-exec and marked. The original stays as it
/// is.
///
/// # Errors
/// As for [`make_private`].
pub fn private_copy(fd: impl AsFd) -> Result<RawFd, Failure> {
    let fd = fd.as_fd();
    let limits = limits();
    let copy = match above::copy(fd, limits) {
        Some(copy) => copy,
        None => below(fd, soft(limits))?,
    };
    let number = copy.into_raw_fd();
    if let Some(word) = PRIVATE.get(number as usize / 64) {
        word.fetch_or(1 << (number % 64), Ordering::Relaxed);
    }
    Ok(number)
}

/// Closes a private descriptor and forgets it.
pub fn close_private(fd: RawFd) {
    forget_private(fd);
    close(fd);
}

/// Closes a number that its one owner gives up, past libc, whose `close` is a hook where this
/// library is preloaded.
pub fn close(fd: RawFd) {
    // SAFETY: the kernel takes the number and touches no memory. A wrong one is an EBADF, or takes
    // away what another owner counts on; that owner then gets an error.
    unsafe { rustix::io::close(fd) };
}

/// Makes the program's number `at` a name of what `fd` names, in place of what it named.
///
/// # Errors
/// As dup3(2). `fd` is closed in any case.
pub fn put_at(fd: OwnedFd, at: RawFd, closes_on_exec: bool) -> Result<(), Failure> {
    let put = name_at(fd.as_fd(), at, closes_on_exec);
    discard(fd);
    put
}

/// As [`put_at`], for any owner's number, and what is named keeps its other name.
///
/// # Errors
/// As dup3(2).
pub fn name_at(fd: BorrowedFd<'_>, at: RawFd, closes_on_exec: bool) -> Result<(), Failure> {
    use rustix::io::DupFlags;
    let flags = if closes_on_exec { DupFlags::CLOEXEC } else { DupFlags::empty() };
    // SAFETY: `at` stays whose it is, since this owner of it is never dropped.
    let mut place = core::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(at) });
    Ok(rustix::io::dup3(fd, &mut place, flags)?)
}

/// Marks a private descriptor that the process's last program left open, close-on-exec again.
pub fn inherit_private(fd: RawFd) {
    keep_across_exec(fd, false);
    if fd >= 0
        && let Some(word) = PRIVATE.get(fd as usize / 64)
    {
        word.fetch_or(1 << (fd % 64), Ordering::Relaxed);
    }
}

/// Whether `exec` leaves a private descriptor open.
pub fn keep_across_exec(fd: RawFd, keep: bool) {
    use rustix::io::FdFlags;
    let flags = if keep { FdFlags::empty() } else { FdFlags::CLOEXEC };
    let _ = rustix::io::fcntl_setfd(borrow(fd), flags);
}

/// Closes without libc's `close`, which is a hook where this library is preloaded.
pub fn discard(fd: OwnedFd) {
    close(fd.into_raw_fd());
}

/// A command of fcntl(2) that takes and gives numbers: those of descriptors and of their flags.
///
/// # Errors
/// As fcntl(2), and `EINVAL` for any other.
pub fn fcntl(fd: RawFd, command: i32, argument: i64) -> Result<RawFd, Failure> {
    let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if !duplicates
        && !matches!(command, libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD)
    {
        return Err(Failure::Invalid);
    }
    // SAFETY: none of these commands takes a pointer.
    let r = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
    if r < 0 { Err(Failure::last()) } else { RawFd::try_from(r).map_err(|_| Failure::Invalid) }
}

/// Which network namespace a socket is of, where the kernel says so (5.14).
#[must_use]
pub fn network_namespace(socket: RawFd) -> Option<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the word is writable for its length, which the kernel is told.
    let r = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket,
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            &raw mut cookie,
            &raw mut len,
        )
    };
    (r == 0 && len as usize == size_of::<u64>()).then_some(cookie)
}

/// Marks the number as no longer ours, without closing it.
pub fn forget_private(fd: RawFd) {
    if fd >= 0
        && let Some(word) = PRIVATE.get(fd as usize / 64)
    {
        word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
    }
}

/// Whether the descriptor number is one of ours, to be hidden from the program.
#[must_use]
#[inline]
pub fn is_private(fd: RawFd) -> bool {
    fd >= 0
        && PRIVATE
            .get(fd as usize / 64)
            .is_some_and(|w| w.load(Ordering::Relaxed) >> (fd % 64) & 1 == 1)
}

/// The lowest and highest-plus-one private numbers, for callers that must step around them.
#[must_use]
pub fn next_private(from: RawFd) -> Option<RawFd> {
    let from = usize::try_from(from).unwrap_or(0);
    (from / 64..PRIVATE.len()).find_map(|i| {
        let mut bits = PRIVATE.get(i)?.load(Ordering::Relaxed);
        if i == from / 64 {
            bits &= u64::MAX << (from % 64);
        }
        (bits != 0).then(|| (i * 64) as RawFd + bits.trailing_zeros() as RawFd)
    })
}

/// Bytes in a page of the kernel's; more do no harm.
pub const PAGE_SIZE: usize = 4096;

/// What [`emptied_in_copies`] gives. It stays for ever.
pub type EmptiedPage = [AtomicU64; PAGE_SIZE / 8];

/// A new page of zeros that the kernel empties in every copy of this memory. It does so in each
/// forked child, also where the fork went past libc (raw `clone`). A `vfork` child shares it with
/// its parent, as it shares everything else. `None` where the kernel cannot do that.
pub fn emptied_in_copies() -> Option<&'static EmptiedPage> {
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a fresh anonymous mapping at a place of the kernel's choice.
    let page = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE_SIZE, prot, flags) }
        .ok()?;
    // SAFETY: the page is ours and no other thread has seen it yet.
    if unsafe { rustix::mm::madvise(page, PAGE_SIZE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(page, PAGE_SIZE) };
        return None;
    }
    // SAFETY: so many bytes, aligned to a page, that stay mapped; of atomics any bytes are values.
    Some(unsafe { &*page.cast::<EmptiedPage>() })
}

/// This process. Asked each time: a cached one is wrong in a child of vfork or of a raw clone.
#[must_use]
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Has `fork` of libc's call these for as long as the process lives: before, and after it in the
/// parent and in the child.
pub fn around_forks(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: functions that take nothing, and stay: our libraries are never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// The same for the child alone.
pub fn after_forks(child: extern "C" fn()) {
    // SAFETY: as above.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Sends a signal to the calling thread. A handler of the program's may run here, or the process
/// may end here: nothing may be held.
pub fn raise(signal: i32) {
    // SAFETY: async-signal-safe, and takes no pointer.
    unsafe { libc::raise(signal) };
}

/// Threads of the library's own in this process. Relaxed: a count that orders nothing.
static OWN_THREADS: AtomicU64 = AtomicU64::new(0);

/// A thread of the library's own is about to begin, or (`false`) has ended.
pub fn own_thread(begins: bool) {
    if begins {
        OWN_THREADS.fetch_add(1, Ordering::Relaxed);
    } else {
        OWN_THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In the child of a fork, which has one thread.
pub fn forked() {
    OWN_THREADS.settle(0);
}

/// Whether the program has threads beside the calling one, the library's own not counted; yes if
/// the kernel does not say.
#[must_use]
pub fn has_threads() -> bool {
    // The directory has an entry, and so a link, for each, beside the usual two.
    let own = OWN_THREADS.load(Ordering::Relaxed);
    rustix::fs::stat(c"/proc/self/task").map_or(true, |s| s.st_nlink > 3 + own)
}

/// Borrows a descriptor number that the caller knows to be open for the duration of the call.
#[must_use]
#[inline]
pub fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: -1 is the only value that BorrowedFd forbids. For any other number the worst that a
    // stale one does is an EBADF from the kernel.
    unsafe { BorrowedFd::borrow_raw(if fd == -1 { i32::MAX } else { fd }) }
}

/// Set in a sandbox that may know `poll` only.
static PLAIN_POLL: AtomicBool = AtomicBool::new(false);

/// From now on [`wait`] calls `poll`, where there is such a system call: a sandbox need not allow
/// another.
pub fn sandboxed() {
    PLAIN_POLL.store(true, Ordering::Relaxed);
}

/// Whether that was said: then no other system call is to be made that the program would not make
/// itself.
#[must_use]
pub fn is_sandboxed() -> bool {
    PLAIN_POLL.load(Ordering::Relaxed)
}

/// As [`wait`], but no cancellation point; with a mask it would not be what was asked for.
#[cold]
fn plain_poll(
    fds: &mut [libc::pollfd],
    timeout: Option<&libc::timespec>,
) -> Result<usize, Failure> {
    let millis = |t: &libc::timespec| {
        t.tv_sec.saturating_mul(1000).saturating_add((t.tv_nsec + 999_999) / 1_000_000)
    };
    let ms = timeout.map_or(-1, |t| i32::try_from(millis(t)).unwrap_or(i32::MAX));
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the slice is valid for its length.
    let n = unsafe { libc::syscall(libc::SYS_poll, fds.as_mut_ptr(), fds.len(), ms) };
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the slice is valid for its length. libc's poll is the kernel's ppoll here.
    let n = unsafe {
        let time = libc::timespec {
            tv_sec: i64::from(ms) / 1000,
            tv_nsec: i64::from(ms) % 1000 * 1_000_000,
        };
        let at = if ms < 0 { core::ptr::null() } else { &raw const time };
        libc::syscall(
            libc::SYS_ppoll,
            fds.as_mut_ptr(),
            fds.len(),
            at,
            core::ptr::null::<libc::sigset_t>(),
            8,
        )
    };
    usize::try_from(n).map_err(|_| Failure::last())
}

/// The signature of libc's `ppoll`.
pub type Ppoll = unsafe extern "C-unwind" fn(
    *mut libc::pollfd,
    libc::nfds_t,
    *const libc::timespec,
    *const libc::sigset_t,
) -> libc::c_int;

static PPOLL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Installs the next definition of `ppoll` in the process, for [`wait`].
pub fn install_ppoll(f: Ppoll) {
    PPOLL.store(f as *mut (), Ordering::Relaxed);
}

/// Sleeps in the kernel until one of `fds` is ready, the time has passed or a signal came. A
/// cancellation point: no lock may be held and nothing with a destructor may be alive across it.
///
/// # Errors
/// `EINTR` above all.
#[allow(clippy::not_unsafe_ptr_arg_deref)] // The mask is handed to the kernel, which answers EFAULT to a bad one.
pub fn wait(
    fds: &mut [libc::pollfd],
    timeout: Option<&libc::timespec>,
    mask: *const libc::sigset_t,
) -> Result<usize, Failure> {
    if PLAIN_POLL.load(Ordering::Relaxed) && mask.is_null() {
        return plain_poll(fds, timeout);
    }
    let time = timeout.map_or(core::ptr::null(), core::ptr::from_ref);
    let installed = PPOLL.load(Ordering::Relaxed);
    let ppoll: Ppoll = if installed.is_null() {
        libc_ppoll
    } else {
        // SAFETY: only install_ppoll stores here, and it takes a Ppoll.
        unsafe { core::mem::transmute::<*mut (), Ppoll>(installed) }
    };
    // SAFETY: the slice is valid for its length, the two pointers are null or the caller's.
    let n = unsafe { ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, mask) };
    usize::try_from(n).map_err(|_| Failure::last())
}

unsafe extern "C-unwind" fn libc_ppoll(
    fds: *mut libc::pollfd,
    n: libc::nfds_t,
    t: *const libc::timespec,
    m: *const libc::sigset_t,
) -> libc::c_int {
    // SAFETY: passes on the caller's promises. Only reached where no hook is installed.
    unsafe { libc::ppoll(fds, n, t, m) }
}

/// The calling thread's `errno`.
#[must_use]
pub fn errno() -> i32 {
    // SAFETY: libc gives a valid pointer to the calling thread's errno, always.
    unsafe { *libc::__errno_location() }
}

impl Failure {
    /// Why the last call of libc's by this thread has failed.
    #[must_use]
    pub fn last() -> Self {
        Self::from_code(errno())
    }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: i32) {
    // SAFETY: as in errno().
    unsafe { *libc::__errno_location() = value };
}

/// Runs bookkeeping after a real call without letting it be seen in `errno`.
#[inline]
pub fn keeping_errno<R>(bookkeeping: impl FnOnce() -> R) -> R {
    let before = errno();
    let r = bookkeeping();
    set_errno(before);
    r
}

/// Nanoseconds of the monotonic clock (vDSO, no system call).
#[must_use]
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A cheap clock that only orders of magnitude matter of: some two to four ticks in a nanosecond.
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: rdtsc exists on every x86-64 and has no effect but its value.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        now_ns().wrapping_mul(2)
    }
}
