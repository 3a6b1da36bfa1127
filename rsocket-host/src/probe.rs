//! Whether memory that a program names is there, for headers and lists that hooks read before the
//! kernel does. A bad one is then the kernel's to answer (`EFAULT`).
//!
//! The stack is there, and so is, as far as is remembered, a page that was there before: the kernel
//! is asked once for each. A page that has gone since is not noticed. Must not know what is read.
//! Entry points: [`present`], [`string_is_present`]; [`populate`].

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::sigset_t;

use crate::failure::Failure;
use crate::sys::{self, keeping_errno, sandbox};

/// So far above the caller's frame its stack goes on.
const STACK: usize = 8 * 1024;
/// The smallest page, as a number of bits.
const PAGE: usize = 12;
/// How many pages are remembered.
const KNOWN: usize = 16;

/// The numbers of pages that were there, each at the place that its own bits say; 0 is none.
static PAGES: [AtomicUsize; KNOWN] = [const { AtomicUsize::new(0) }; KNOWN];

/// Whether `count` items can be read at `p`; of a long list the first and the last page are looked
/// at. True for none.
#[inline]
#[must_use]
pub fn present<T>(p: *const T, count: usize) -> bool {
    let bytes = count.saturating_mul(size_of::<T>());
    let here = 0_u8;
    let above = (p as usize).wrapping_sub(core::ptr::from_ref(&here) as usize);
    bytes == 0
        || above.saturating_add(bytes) < STACK
        || page_is_there(p as usize) && page_is_there((p as usize).saturating_add(bytes - 1))
}

/// Whether a C string can be read up to its end.
#[must_use]
pub fn string_is_present(string: *const c_char) -> bool {
    let mut at = string;
    while present(at, 1) {
        let rest = (1 << PAGE) - (at as usize & ((1 << PAGE) - 1));
        // SAFETY: its page is there, and the look ends with that.
        if !unsafe { libc::memchr(at.cast(), 0, rest) }.is_null() {
            return true;
        }
        at = at.wrapping_add(rest);
    }
    false
}

/// Whether a set of signals is given, and no memory is there. The kernel reads eight bytes of it.
#[inline]
#[must_use]
pub fn signals_are_nowhere(mask: *const sigset_t) -> bool {
    !mask.is_null() && !present(mask.cast::<u64>(), 1)
}

fn page_is_there(at: usize) -> bool {
    let page = at >> PAGE;
    let Some(known) = PAGES.get(page % KNOWN) else { return true };
    // Relaxed: the word is all that is said.
    if page != 0 && known.load(Ordering::Relaxed) == page {
        return true;
    }
    let there = readable(at as *const u8, 1);
    if there {
        known.store(page, Ordering::Relaxed);
    }
    there
}

/// Whether memory of the program's can be read. This is for what is looked at before a call that is
/// the kernel's business. The kernel answers the bad pointers of such a call with EFAULT. Memory in
/// the caller's own frames can be read; of the rest the kernel is asked, a page a call.
#[inline]
#[must_use]
pub fn readable<T>(p: *const T, bytes: usize) -> bool {
    let here = 0_u8;
    let above = (p as usize).wrapping_sub(core::ptr::from_ref(&here) as usize);
    above.saturating_add(bytes) < STACK || kernel_reads(p as usize, bytes)
}

/// As [`readable`], as the kernel says. Preserves `errno`.
#[cold]
fn kernel_reads(start: usize, bytes: usize) -> bool {
    if start < 65536 {
        return false;
    }
    // A filter may forbid every question; then the program is trusted, as it always was.
    if bytes == 0 || sandbox::inside() {
        return true;
    }
    let Some(last) = start.checked_add(bytes - 1) else { return false };
    let mut at = start;
    keeping_errno(|| {
        loop {
            if !kernel_reads_word(at) {
                return false;
            }
            if at >> PAGE == last >> PAGE {
                return true;
            }
            at = ((at >> PAGE) + 1) << PAGE;
        }
    })
}

/// Whether the kernel can read the word that holds this byte. It reads the set of signals before it
/// finds that it is not told what to do with it (rt_sigprocmask, sigprocmask(2)), and so changes
/// nothing.
fn kernel_reads_word(at: usize) -> bool {
    const NOTHING: c_int = -1;
    let word = at & !7;
    // SAFETY: the kernel checks the address itself, and writes nowhere: it is given no place for
    // the old mask.
    let r = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NOTHING, word, 0_usize, 8_usize) };
    r == 0 || sys::errno() != libc::EFAULT
}

/// Makes sure that memory is there to be written, as registering it with a device would; it is
/// touched by that.
///
/// # Errors
/// `EFAULT`: some of it is not mapped, or not writable.
pub fn populate(at: *mut u8, len: usize) -> Result<(), Failure> {
    let page = rustix::param::page_size();
    let start = at.map_addr(|a| a / page * page);
    let len = (at.addr() + len).next_multiple_of(page) - start.addr();
    // SAFETY: changes no byte of it.
    let there =
        unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxPopulateWrite) };
    match there.map_err(Failure::from) {
        Ok(()) => Ok(()),
        // A kernel before 5.14 does not know this advice.
        Err(Failure::Invalid) => {
            let writable = (0..len).step_by(page).all(|i| writable(start.wrapping_add(i)));
            if writable { Ok(()) } else { Err(Failure::BadAddress) }
        }
        Err(_) => Err(Failure::BadAddress),
    }
}

/// Whether the page that starts here can be written: the kernel adds nothing to its first word, and
/// says if it may not.
fn writable(page: *mut u8) -> bool {
    let (add_0, if_equal_0) = (libc::FUTEX_OP_ADD, libc::FUTEX_OP_CMP_EQ);
    let operation = libc::FUTEX_OP(add_0, 0, if_equal_0, 0);
    let own = core::sync::atomic::AtomicU32::new(0);
    // SAFETY: no byte changes, and the word is aligned. A thread of this process that sleeps on
    // that word by futex(2) may be woken, which every such sleeper has to expect.
    let r = unsafe {
        libc::syscall(
            libc::SYS_futex,
            own.as_ptr(),
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0,
            page,
            operation,
        )
    };
    r >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    static CONSTANT: [u64; 1024] = [7; 1024];

    #[test]
    fn the_stack_the_heap_and_nothing() {
        let (stack, heap) = ([0_u64; 4], vec![0_u64; 4096]);
        assert!(present(stack.as_ptr(), 4) && present(heap.as_ptr(), 4096));
        assert!(present(heap.as_ptr(), 4096), "remembered");
        assert!(!present(core::ptr::null::<u64>(), 1) && present(core::ptr::null::<u64>(), 0));
        assert!(!present(usize::MAX as *const u8, 9));
    }

    #[test]
    fn a_page_that_nobody_may_read_is_not_there() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let at = core::ptr::null_mut();
        // SAFETY: new mappings at addresses of the kernel's choice.
        let none =
            unsafe { mmap_anonymous(at, 8192, ProtFlags::empty(), MapFlags::PRIVATE) }.unwrap();
        assert!(!present(none.cast::<u64>(), 1));
    }

    #[test]
    fn a_string_that_goes_on_where_nothing_is() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let (at, both) = (core::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: new mappings at addresses of the kernel's choice, of which the second page goes.
        let pages = unsafe {
            let at = mmap_anonymous(at, 8192, both, MapFlags::PRIVATE).unwrap();
            mprotect(at.wrapping_byte_add(4096), 4096, MprotectFlags::empty()).unwrap();
            at.cast::<u8>()
        };
        let last = pages.wrapping_add(4090);
        // SAFETY: inside the first page.
        unsafe { last.write_bytes(b'a', 6) };
        assert!(!string_is_present(last.cast()), "no end");
        assert!(!string_is_present(pages.wrapping_add(4096).cast()), "no beginning");
        // SAFETY: as above.
        unsafe { pages.add(4095).write(0) };
        assert!(string_is_present(last.cast()));
        let (long, none) = (vec![b'b'; 9000], core::ptr::null());
        let long = std::ffi::CString::new(long).unwrap();
        assert!(string_is_present(long.as_ptr()) && !string_is_present(none));
    }

    #[test]
    fn memory_must_be_there() {
        let mut bytes = vec![1_u8; 10_000];
        assert_eq!(populate(bytes.as_mut_ptr(), bytes.len()), Ok(()));
        assert!(bytes.iter().all(|b| *b == 1));
        assert!(writable(bytes.as_mut_ptr().map_addr(|a| a & !3)));
        let nothing = core::ptr::without_provenance_mut(0x1000_0000);
        assert_eq!((populate(nothing, 1), writable(nothing)), (Err(Failure::BadAddress), false));
        let constant = (&raw const CONSTANT).cast_mut();
        assert_eq!(populate(constant.cast(), 1), Err(Failure::BadAddress));
    }
}
