//! `mlockall`: what the program has locked is not to grow by memory of ours that is not in use.
//!
//! Must not know how that is done (`rsocket_host::facts::locking`). Its hook is its entry point.

use rsocket_edge::channel::arenas;
use rsocket_edge::conn::fork_group;

use crate::edge::keeping_errno;

/// What of our memory is large and sparse: what the kernel gave the library zeroed, the fork group,
/// the arenas.
pub(crate) fn of_the_library(f: &mut dyn FnMut(usize, usize)) {
    keeping_errno(|| {
        if let Some((at, length)) = zeroed() {
            f(at, length);
        }
        if let Some((at, length)) = fork_group::range() {
            f(at, length);
        }
        arenas::each_mapping(f);
    });
}

unsafe extern "C" {
    /// The beginning of this library in memory, as the linker says.
    static __ehdr_start: libc::Elf64_Ehdr;
}

const PAGE: usize = 4096;

/// The library's zero-initialised memory, in whole pages.
fn zeroed() -> Option<(usize, usize)> {
    let start = &raw const __ehdr_start;
    // SAFETY: the header of a loaded library, and behind it what it says to be there, for good.
    let headers = unsafe {
        let first = start.cast::<u8>().add((*start).e_phoff as usize).cast::<libc::Elf64_Phdr>();
        core::slice::from_raw_parts(first, usize::from((*start).e_phnum))
    };
    let writable = |h: &&libc::Elf64_Phdr| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W != 0;
    // The first segment of a library begins with its header, at the address 0 of its own count.
    let zeroes = |h: &&libc::Elf64_Phdr| h.p_memsz.saturating_sub(h.p_filesz);
    headers.iter().filter(writable).max_by_key(zeroes).map(|h| {
        let from = start.addr() + (h.p_vaddr + h.p_filesz) as usize;
        let to = start.addr() + (h.p_vaddr + h.p_memsz) as usize;
        let from = from.next_multiple_of(PAGE);
        (from, to.next_multiple_of(PAGE).saturating_sub(from))
    })
}
