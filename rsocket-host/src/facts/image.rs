//! How a program file moves bytes: by libc's functions, which hooks see, or by system call
//! instructions of its own.
//!
//! A guess from the file, in favour of the second: what the program imports, and which instructions
//! it has. Libraries that it needs are not looked into. Every read is bounded. Must not know
//! connections. Entry points: [`goes_through_libc`], and [`waits`] for a part of any file that is
//! mapped.

use core::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

#[cfg(target_arch = "x86_64")]
use super::find;
use super::lengths::begins_at;
use super::loaded::PT_INTERP;
use crate::sys::small_file::read_exactly;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_X: u32 = 1;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const SYMBOLS: u64 = 6;

/// Entries of the dynamic section, and imported symbols, that are looked at. A program with more is
/// a big one.
const ENTRIES: u64 = 256;
const IMPORTS: u64 = 4096;
/// Bytes of instructions that are looked at, in pieces of so many, which overlap by what judging
/// one may take.
const TEXT: u64 = 16 << 20;
/// As many of a program that runs: some have everything in one file.
const ALL: u64 = 256 << 20;
const PIECE: usize = 64 << 10;
const OVERLAP: usize = 96;
/// The longest name of interest, in bytes.
const NAME: usize = 24;

/// Functions by which a program moves bytes, or becomes another one that may; without the marks of
/// their variants.
const MOVERS: [&[u8]; 50] = [
    b"read",
    b"readv",
    b"preadv2",
    b"recv",
    b"recvfrom",
    b"recvmsg",
    b"recvmmsg",
    b"write",
    b"writev",
    b"pwritev2",
    b"send",
    b"sendto",
    b"sendmsg",
    b"sendmmsg",
    b"sendfile",
    b"splice",
    b"fread",
    b"fgets",
    b"fgetc",
    b"getc",
    b"getchar",
    b"getline",
    b"getdelim",
    b"fscanf",
    b"scanf",
    b"uflow",
    b"underflow",
    b"fwrite",
    b"fputs",
    b"fputc",
    b"putc",
    b"putchar",
    b"puts",
    b"printf",
    b"fprintf",
    b"vprintf",
    b"vfprintf",
    b"overflow",
    b"execv",
    b"execve",
    b"execvp",
    b"execvpe",
    b"execl",
    b"execlp",
    b"execle",
    b"fexecve",
    b"posix_spawn",
    b"posix_spawnp",
    b"system",
    b"popen",
];

/// Libraries that bring no way of moving bytes that is not libc's own.
const LIBCS: [&[u8]; 7] =
    [b"libc.", b"libm.", b"libgcc_s.", b"libpthread.", b"libdl.", b"librt.", b"ld-linux"];

/// Whether the program moves bytes through libc, as far as its file tells. `None`: it is not what
/// it should be.
pub fn goes_through_libc(file: &OwnedFd) -> Option<bool> {
    let image = Image::of(file)?;
    Some(image.imports_a_mover()? && !image.has_calls_of_its_own()?)
}

/// Whether it is a program for the machine that this one is for, and for the dynamic linker of that
/// name. `None`: not such a file.
pub fn is_for(file: &OwnedFd, interpreter: &CStr) -> Option<bool> {
    let wanted = interpreter.to_bytes_with_nul();
    let head = Image::head(file)?;
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let [m, e, l, f, class, ..] = head.e_ident;
    if [m, e, l, f, class] != *b"\x7fELF\x02" || head.e_machine != machine || head.e_phnum > 256 {
        return Some(false);
    }
    let image = Image::behind(file, &head)?;
    for i in 0..image.count {
        let part = image.header(i)?;
        if part.p_type == PT_INTERP {
            let mut name = [0; 256];
            let name = name.get_mut(..wanted.len())?;
            read_exactly(file, part.p_offset, name)?;
            return Some(name == wanted && part.p_filesz as usize == wanted.len());
        }
    }
    Some(false)
}

struct Image<'a> {
    file: &'a OwnedFd,
    headers: u64,
    size: u64,
    count: u64,
}

impl<'a> Image<'a> {
    fn of(file: &'a OwnedFd) -> Option<Self> {
        Self::behind(file, &Self::head(file)?)
    }

    fn behind(file: &'a OwnedFd, head: &libc::Elf64_Ehdr) -> Option<Self> {
        let count = u64::from(head.e_phnum);
        (count <= 256).then_some(Self {
            file,
            headers: head.e_phoff,
            size: head.e_phentsize.into(),
            count,
        })
    }

    fn head(file: &OwnedFd) -> Option<libc::Elf64_Ehdr> {
        let mut head = [0; size_of::<libc::Elf64_Ehdr>()];
        read_exactly(file, 0, &mut head)?;
        // SAFETY: plain integers, for which any bytes are valid.
        Some(unsafe {
            core::mem::transmute::<[u8; size_of::<libc::Elf64_Ehdr>()], libc::Elf64_Ehdr>(head)
        })
    }

    fn header(&self, number: u64) -> Option<libc::Elf64_Phdr> {
        let mut part = [0; size_of::<libc::Elf64_Phdr>()];
        read_exactly(self.file, self.headers.checked_add(number * self.size)?, &mut part)?;
        // SAFETY: as above.
        Some(unsafe {
            core::mem::transmute::<[u8; size_of::<libc::Elf64_Phdr>()], libc::Elf64_Phdr>(part)
        })
    }

    fn segments(&self, kind: u32) -> impl Iterator<Item = libc::Elf64_Phdr> + '_ {
        (0..self.count).map_while(|i| self.header(i)).filter(move |h| h.p_type == kind)
    }

    /// Where in the file an address of the program is.
    fn offset(&self, address: u64) -> Option<u64> {
        self.segments(PT_LOAD).find_map(|s| {
            let inside = address.checked_sub(s.p_vaddr).filter(|d| *d < s.p_filesz)?;
            s.p_offset.checked_add(inside)
        })
    }

    fn pair(&self, at: u64) -> Option<[u64; 2]> {
        let mut bytes = [0; 16];
        read_exactly(self.file, at, &mut bytes)?;
        let all = u128::from_le_bytes(bytes);
        Some([all as u64, (all >> 64) as u64])
    }

    /// The dynamic section: what each entry is, and its value.
    fn dynamic(&self) -> impl Iterator<Item = [u64; 2]> + '_ {
        let section = self.segments(PT_DYNAMIC).next();
        let (at, n) = section.map_or((0, 0), |s| (s.p_offset, s.p_filesz / 16));
        (0..n.min(ENTRIES))
            .map_while(move |i| self.pair(at.checked_add(i * 16)?))
            .take_while(|e| e[0] != 0)
    }

    fn entry(&self, tag: u64) -> Option<u64> {
        self.dynamic().find(|e| e[0] == tag).map(|e| e[1])
    }

    /// The beginning of a string.
    fn string(&self, at: u64) -> Option<([u8; NAME], usize)> {
        let mut name = [0; NAME];
        let n = rustix::io::pread(self.file, &mut name[..], at).ok()?;
        let length = name.get(..n)?.iter().position(|b| *b == 0).unwrap_or(n);
        Some((name, length))
    }

    /// Whether it imports such a function, or needs a library that may move the bytes for it.
    fn imports_a_mover(&self) -> Option<bool> {
        let (symbols, strings) = (self.entry(SYMBOLS)?, self.entry(STRINGS)?);
        let room = strings.checked_sub(symbols).map_or(IMPORTS, |bytes| bytes / 24);
        let (at, strings) = (self.offset(symbols)?, self.offset(strings)?);
        for needed in self.dynamic().filter(|e| e[0] == NEEDED) {
            let (name, length) = self.string(strings.checked_add(needed[1])?)?;
            if !LIBCS.iter().any(|known| name.get(..length).is_some_and(|n| n.starts_with(known))) {
                return Some(true);
            }
        }
        for i in 1..room.min(IMPORTS) {
            // A name's place, four bytes that say of what kind it is and where it is defined, its
            // address.
            let [head, _] = self.pair(at.checked_add(i * 24)?)?;
            let (name, defined) = (head & 0xffff_ffff, head >> 48);
            if defined == 0 {
                let (name, length) = self.string(strings.checked_add(name)?)?;
                if name.get(..length).is_some_and(is_mover) {
                    return Some(true);
                }
            }
        }
        Some(room > IMPORTS)
    }

    /// Whether its own instructions move bytes.
    fn has_calls_of_its_own(&self) -> Option<bool> {
        let mut found = Some(false);
        with_piece(|piece| {
            for text in self.segments(PT_LOAD).filter(|s| s.p_flags & PF_X != 0) {
                if found == Some(false) {
                    let bytes = text.p_filesz.min(TEXT);
                    found = look_through(self.file, text.p_offset, bytes, piece, |text, judged| {
                        makes_calls(text, judged, true, moves)
                    });
                }
            }
        })?;
        found
    }
}

/// Calls `f` with room for a piece of a file. `None`, and no call, where there is no memory.
pub fn with_piece(f: impl FnOnce(&mut [u8])) -> Option<()> {
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let memory =
        unsafe { mmap_anonymous(core::ptr::null_mut(), PIECE, rw, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the mapping, which is ours alone.
    f(unsafe { core::slice::from_raw_parts_mut(memory.cast::<u8>(), PIECE) });
    // SAFETY: nothing refers to it any more.
    let _ = unsafe { munmap(memory, PIECE) };
    Some(())
}

/// Whose instructions are looked at.
#[derive(Clone, Copy)]
pub enum Owner {
    /// All that may wait.
    Program,
    /// A library has system calls for a purpose of its own (OpenMP's futexes). It also has
    /// functions that make any call that the program asks for, if it asks for one. So a library
    /// waits where the number says so, and not where the number is given. Rings are asked for by
    /// functions that have hooks.
    Library,
}

/// Whether the instructions that stand in the file from there on wait for sockets, as far as they
/// can be read.
pub fn waits(file: &OwnedFd, from: u64, bytes: u64, owner: Owner, piece: &mut [u8]) -> bool {
    let program = matches!(owner, Owner::Program);
    let bytes = bytes.min(if program { ALL } else { TEXT });
    let is_one = |number| is_wait(number) || program && takes_over(number);
    look_through(file, from, bytes, piece, |text, judged| {
        makes_calls(text, judged, program, is_one)
    })
    .unwrap_or(false)
}

fn look_through(
    file: &OwnedFd,
    from: u64,
    bytes: u64,
    piece: &mut [u8],
    is_it: impl Fn(&[u8], usize) -> bool,
) -> Option<bool> {
    let mut done = 0;
    while done < bytes {
        let n = rustix::io::pread(file, &mut *piece, from.checked_add(done)?).ok()?;
        let n = n.min(usize::try_from(bytes - done).ok()?);
        let judged = if done == 0 { 0 } else { OVERLAP - 1 };
        if is_it(piece.get(..n)?, judged) {
            return Some(true);
        }
        if n <= OVERLAP {
            break;
        }
        done += (n - OVERLAP) as u64;
    }
    Some(false)
}

/// Whether the name is one of the functions, or of their variants (`__read_chk`, `fgets_unlocked`,
/// `_IO_getc`).
fn is_mover(name: &[u8]) -> bool {
    let start = name.iter().position(|b| *b != b'_').unwrap_or(0);
    let mut plain = name.get(start..).unwrap_or_default();
    for prefix in [&b"IO_"[..], b"isoc99_", b"isoc23_"] {
        plain = plain.strip_prefix(prefix).unwrap_or(plain);
    }
    for suffix in [&b"_chk"[..], b"_unlocked", b"64"] {
        plain = plain.strip_suffix(suffix).unwrap_or(plain);
    }
    MOVERS.contains(&plain)
}

/// Whether these instructions have a system call with such a number, or, where `given` says that it
/// counts, one whose number they are given. Those that begin among the first `judged` bytes are
/// left out.
///
/// The two bytes of the instruction also occur inside others, in distances above all.
#[cfg(target_arch = "x86_64")]
fn makes_calls(text: &[u8], judged: usize, given: bool, is_one: impl Fn(u32) -> bool) -> bool {
    const BEFORE: usize = 24;
    find::pairs(text, judged, [0x0f, 0x05]).any(|at| {
        let before = text.get(at.saturating_sub(BEFORE)..at).unwrap_or_default();
        number_before(before).map_or_else(|| given && is_given(before), &is_one)
            && begins_at(text, at)
    })
}

/// The number that was put into `eax` last: `mov`, `xor`, or `push` and `pop`.
#[cfg(target_arch = "x86_64")]
fn number_before(before: &[u8]) -> Option<u32> {
    let mut last = None;
    for i in 0..before.len() {
        // Into `r8d`, which these bytes would mean behind a prefix.
        let elsewhere = i.checked_sub(1).and_then(|i| before.get(i));
        if elsewhere.is_some_and(|prefix| matches!(prefix, 0x41 | 0x44 | 0x45 | 0x49 | 0x4d)) {
            continue;
        }
        last = match before.get(i..).unwrap_or_default() {
            [0xb8, a, b, 0, 0, ..] => {
                Some(u32::from(*b) << 8 | u32::from(*a)).filter(|n| *n < 600).or(last)
            }
            [0x31 | 0x33, 0xc0, ..] => Some(0),
            [0x6a, n, 0x58, ..] => Some((*n).into()),
            _ => last,
        };
    }
    last
}

/// Whether `eax` comes from another register, or from a variable.
#[cfg(target_arch = "x86_64")]
fn is_given(before: &[u8]) -> bool {
    let near = before.get(before.len().saturating_sub(10)..).unwrap_or_default();
    near.windows(2).any(|w| matches!(w, [0x89, 0xc8 | 0xd0 | 0xd8 | 0xe8 | 0xf0 | 0xf8]))
        || near.windows(3).any(|w| matches!(w, [0x44 | 0x4c, 0x89, 0xc0]))
        || before.windows(3).any(|w| w == [0x48, 0x8b, 0x45])
        || before.windows(4).any(|w| w == [0x48, 0x8b, 0x44, 0x24])
}

/// Whether the system call of this number moves bytes, or waits for them.
#[cfg(target_arch = "x86_64")]
fn moves(number: u32) -> bool {
    const NUMBERS: [i64; 19] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendfile,
        libc::SYS_splice,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_select,
        libc::SYS_pselect6,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
    ];
    NUMBERS.contains(&number.into())
}

/// Whether the system call of this number waits for sockets, or may.
fn is_wait(number: u32) -> bool {
    const NUMBERS: &[i64] = &[
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        libc::SYS_ppoll,
        libc::SYS_pselect6,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_io_submit,
    ];
    NUMBERS.contains(&number.into())
}

/// Whether it receives itself, or has a ring do so: then nothing but TCP will do for it.
fn takes_over(number: u32) -> bool {
    const NUMBERS: [i64; 3] = [libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_io_uring_enter];
    NUMBERS.contains(&number.into())
}

/// As above; here the instruction is a word that nothing else looks like, and libc has it for all
/// other code.
#[cfg(not(target_arch = "x86_64"))]
fn moves(_: u32) -> bool {
    true
}

/// As above: `svc 0`, and before it `mov x8, NUMBER`, or a number that it is given.
#[cfg(not(target_arch = "x86_64"))]
fn makes_calls(text: &[u8], judged: usize, given: bool, is_one: impl Fn(u32) -> bool) -> bool {
    let words =
        || text.chunks_exact(4).map(|w| w.iter().rev().fold(0_u32, |n, b| n << 8 | u32::from(*b)));
    words().enumerate().skip(judged.div_ceil(4)).any(|(at, word)| {
        let first = at.saturating_sub(6);
        // movz x8 or w8, a number of 16 bits.
        let set = |w: &u32| w & 0x7fe0_001f == 0x5280_0008;
        let number =
            || words().skip(first).take(at - first).filter(set).last().map(|w| w >> 5 & 0xffff);
        word == 0xd400_0001 && number().map_or(given, &is_one)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_variants() {
        for name in [
            "read",
            "__read_chk",
            "fgets_unlocked",
            "_IO_getc",
            "__isoc99_fscanf",
            "__overflow",
            "preadv64v2",
        ] {
            assert!(is_mover(name.as_bytes()) == (name != "preadv64v2"), "{name}");
        }
        for name in ["", "_", "readlink", "__libc_start_main", "abort"] {
            assert!(!is_mover(name.as_bytes()), "{name}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn system_calls_that_move_bytes() {
        let yes: [&[u8]; 5] = [
            b"\x31\xc0\x31\xff\x0f\x05\x48\x85", // xor eax, eax; xor edi, edi
            b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x0f\x05\x48", // mov eax, 1
            b"\x6a\x2d\x58\x0f\x05\xc3",         // push 45; pop rax
            b"\x4c\x89\xd0\x4c\x89\xd7\x4c\x29\xc2\x0f\x05\x48", // mov rax, r10
            b"\x48\x8b\x45\xf8\x48\x8b\x7d\xf0\x0f\x05\x48", // mov rax, [rbp-8]
        ];
        assert!(yes.into_iter().all(|text| makes_calls(text, 0, true, moves)));
        let no: [&[u8]; 6] = [
            b"\x90\x31\xc0\x48\x8d\x35\x0f\x05\x17\0\x90\x90", // lea rsi, [rip + distance]
            b"\xb8\xca\0\0\0\x0f\x05\x48",                     // futex
            b"\x31\xc0\x48\x8d\x3d\x10\x0f\x05\0",             // a distance
            b"\x0f\x05",
            b"\x48\x01\xc8\x0f\x05\xc3",
            b"",
        ];
        assert!(!no.into_iter().any(|text| makes_calls(text, 0, true, moves)));
        assert!(makes_calls(b"\xb8\xd1\0\0\0\x0f\x05\xc3", 0, true, is_wait), "io_submit");
        let epoll = b"\xb8\x19\x01\0\0\x45\x31\xc0\x0f\x05\x49\x89"; // mov eax, 281; xor r8d, r8d
        assert!(
            makes_calls(epoll, 0, true, is_wait)
                && !makes_calls(b"\x41\xb8\x07\0\0\0\x0f\x05\x48", 0, true, is_wait)
        );
        assert!(!makes_calls(yes[1], 0, true, is_wait) && makes_calls(yes[3], 0, true, is_wait));
        assert!(!makes_calls(yes[3], 0, false, is_wait) && makes_calls(epoll, 0, false, is_wait));
    }

    #[test]
    fn programs_of_this_machine() {
        let judge = |path: &str| {
            let file = OwnedFd::from(std::fs::File::open(path).unwrap());
            goes_through_libc(&file)
        };
        assert_eq!(judge("/bin/cat"), Some(true));
        assert_eq!(judge("/bin/sh"), Some(true));
        assert_eq!(judge("/usr/bin/env"), Some(true));
        assert_eq!(judge("/etc/passwd"), None);
    }
}
