//! The variables that the library goes by: copied once, when the library is loaded.
//!
//! A program may clear its environment, or write over it to change its title, before a variable is
//! asked for. So the constructor copies the library's variables into memory of its own
//! ([`remember`]). In a privileged process ([`privileged`]) no variable counts, and children
//! inherit none.
//!
//! Must not know what the variables mean. Allocates nothing by `malloc`.
//! Entry points: [`remember`], [`variable`], [`privileged`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The beginnings of the names of our variables.
const OURS: &[u8] = b"RSOCKET_";
/// Others that the library looks at: upstream's, and where a user's files belong.
const OTHERS: [&[u8]; 5] =
    [b"RS_SQ_SIZE=", b"RS_RQ_SIZE=", b"RS_INLINE=", b"RDMAV_FORK_SAFE=", b"XDG_RUNTIME_DIR="];
/// Bytes for the copies that need no mapping of their own.
const ROOM: usize = 4096;

/// Written by the one thread that has set `TAKEN`, and then never again.
struct Space(UnsafeCell<[u8; ROOM]>);
// SAFETY: written before MEMORY points to it, by one thread; only read from then on.
unsafe impl Sync for Space {}

static SPACE: Space = Space(UnsafeCell::new([0; ROOM]));
static TAKEN: AtomicBool = AtomicBool::new(false);
/// The copies, "NAME=value" one behind the other, each with its zero byte, then an empty one.
/// Null until they are complete.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

type Strings = *mut *const c_char;

unsafe extern "C" {
    static environ: Strings;
    static program_invocation_short_name: *const c_char;
}

/// Whether the kernel started this program with more privileges than its caller had: setuid,
/// setgid, file capabilities, or a change of domain (`AT_SECURE`). Makes no system call.
#[must_use]
pub fn privileged() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether libc can read the environment; before its own constructor ran it cannot.
#[must_use]
pub fn is_there() -> bool {
    // SAFETY: libc's variable, read as getenv reads it.
    !unsafe { environ }.is_null()
}

/// The name that the program was started by, without its directories. Empty before libc's own
/// constructor ran.
#[must_use]
pub fn program() -> &'static CStr {
    // SAFETY: glibc's variable: null, or a C string that stays to the end.
    unsafe {
        let name = program_invocation_short_name;
        if name.is_null() { c"" } else { CStr::from_ptr(name) }
    }
}

/// The variable's value when the library was loaded; before that, its value now. Never allocates.
#[must_use]
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    if privileged() {
        return None;
    }
    // Acquire: pairs with the release in remember().
    let memory = MEMORY.load(Ordering::Acquire);
    // SAFETY: the copies are complete, stay for good, and end in an empty string.
    if memory.is_null() { current(name) } else { unsafe { find(memory.cast(), name) } }
}

/// The variable's value at this moment, whatever has set it: for what libc itself goes by.
#[must_use]
pub fn current(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: getenv takes a C string and gives null or one that lives in the environment. A
    // program that changes its environment in another thread at this moment races with every getenv
    // of libc's own too.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Takes a variable out of the environment, for this process and those that it starts. To be called
/// by the constructor: it runs before the program's threads.
pub fn forget(name: &CStr) {
    // SAFETY: a C string, and no other thread changes the environment now, or it races as with any
    // other unsetenv of the program's.
    unsafe { libc::unsetenv(name.as_ptr()) };
}

/// Copies our variables. To be called by the constructor, once libc can read the environment.
///
/// A privileged process loses them instead: its caller chose them, and a program that it starts as
/// another user must not go by them. (The dynamic linker treats its own variables so.)
pub fn remember() {
    // SAFETY: libc's variable. Constructors run before the program's threads, or at least within
    // dlopen, where the program must keep other threads from changing the environment.
    unsafe {
        if privileged() {
            remove(environ);
        } else if !TAKEN.swap(true, Ordering::Relaxed) {
            let bytes = copied(environ, |_| {}) + 1;
            let Some(memory) = room(bytes) else { return };
            let mut at = memory;
            copied(environ, |string| {
                let with_end = string.to_bytes_with_nul();
                core::ptr::copy_nonoverlapping(with_end.as_ptr(), at, with_end.len());
                at = at.add(with_end.len());
            });
            // Release: pairs with the acquire in variable().
            MEMORY.store(memory, Ordering::Release);
        }
    }
}

/// Zeroed memory for so many bytes, for good.
fn room(bytes: usize) -> Option<*mut u8> {
    if bytes <= ROOM {
        return Some(SPACE.0.get().cast());
    }
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, rw, MapFlags::PRIVATE) }
        .ok()
        .map(<*mut _>::cast)
}

fn wanted(string: &[u8]) -> bool {
    string.starts_with(OURS) || OTHERS.iter().any(|name| string.starts_with(name))
}

/// Shows each string that is to be copied; how many bytes they are, each with its end.
///
/// # Safety
/// `list` is null, or ends with a null pointer after C strings.
unsafe fn copied(list: Strings, mut each: impl FnMut(&CStr)) -> usize {
    let (mut bytes, mut at) = (0, list);
    // SAFETY: the caller's promise.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let string = CStr::from_ptr(*at);
            if wanted(string.to_bytes()) {
                bytes += string.to_bytes_with_nul().len();
                each(string);
            }
            at = at.add(1);
        }
    }
    bytes
}

/// The value of a variable among copies.
///
/// # Safety
/// `at` points to C strings that stay for good, one behind the other, of which the last is empty.
unsafe fn find(mut at: *const c_char, name: &CStr) -> Option<&'static CStr> {
    loop {
        // SAFETY: the caller's promise; the step leads to the next string.
        let string = unsafe { CStr::from_ptr(at) };
        let bytes = string.to_bytes_with_nul();
        if bytes.len() == 1 {
            return None;
        }
        if let Some(value) =
            bytes.strip_prefix(name.to_bytes()).and_then(|rest| rest.strip_prefix(b"="))
        {
            return CStr::from_bytes_with_nul(value).ok();
        }
        // SAFETY: as above.
        at = unsafe { at.add(bytes.len()) };
    }
}

/// Takes our variables out of a list, in place.
///
/// # Safety
/// As [`copied`]; no other thread changes the list.
unsafe fn remove(list: Strings) {
    if list.is_null() {
        return;
    }
    let (mut from, mut to) = (list, list);
    // SAFETY: `to` is never ahead of `from`, which stops at the null pointer.
    unsafe {
        while !(*from).is_null() {
            if !CStr::from_ptr(*from).to_bytes().starts_with(OURS) {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = core::ptr::null();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(strings: &[&CStr]) -> Vec<*const c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([core::ptr::null()]).collect()
    }

    #[test]
    fn what_is_ours_is_copied_and_found() {
        let mut all = list(&[
            c"PATH=/bin",
            c"RSOCKET_LOG=debug",
            c"RS_INLINE=0",
            c"RS_INLINES=9",
            c"RSOCKET_A=",
        ]);
        let mut text = Vec::new();
        // SAFETY: a list as it must be.
        let n =
            unsafe { copied(all.as_mut_ptr(), |s| text.extend_from_slice(s.to_bytes_with_nul())) };
        assert_eq!(
            (n, &text[..]),
            (text.len(), &b"RSOCKET_LOG=debug\0RS_INLINE=0\0RSOCKET_A=\0"[..])
        );
        text.push(0);
        let text: &'static [u8] = text.leak();
        // SAFETY: strings, the last of which is empty.
        let find = |name| unsafe { find(text.as_ptr().cast(), name) };
        assert_eq!(find(c"RSOCKET_LOG"), Some(c"debug"));
        assert_eq!(find(c"RSOCKET_A"), Some(c""));
        assert_eq!(find(c"RSOCKET_LO"), None);
        assert_eq!(find(c"RSOCKET_LOG_FILE"), None);
        assert_eq!(find(c"PATH"), None);
    }

    #[test]
    fn a_program_has_a_name_and_an_environment() {
        assert!(is_there() && !program().is_empty());
        assert!(!program().to_bytes().contains(&b'/'));
    }

    #[test]
    fn an_empty_environment_has_nothing() {
        // SAFETY: null is allowed.
        let bytes = unsafe { copied(core::ptr::null_mut(), |_| unreachable!()) };
        assert_eq!(bytes, 0);
        // SAFETY: as above.
        unsafe { remove(core::ptr::null_mut()) };
    }

    #[test]
    fn only_ours_are_removed() {
        let mut all = list(&[
            c"RSOCKET_LOG=debug",
            c"PATH=/bin",
            c"RSOCKET_HEIR=4",
            c"RSOCKETS=1",
            c"HOME=/",
        ]);
        // SAFETY: a list as it must be.
        unsafe { remove(all.as_mut_ptr()) };
        let left = all.iter().take_while(|s| !s.is_null());
        // SAFETY: what is left are strings of the list.
        let left: Vec<_> = left.map(|s| unsafe { CStr::from_ptr(*s) }).collect();
        assert_eq!(left, [c"PATH=/bin", c"RSOCKETS=1", c"HOME=/"]);
    }
}
