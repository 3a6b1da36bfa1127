//! A loaded ELF object as the dynamic linker describes it: its tables, each access checked against
//! its segments.
//!
//! Must not know what is looked for. Entry point: [`Object::of`].

use core::ffi::CStr;

use libc::{Elf64_Phdr, Elf64_Sym};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

const PLT_RELA_SIZE: i64 = 2;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const RELA: i64 = 7;
const RELA_SIZE: i64 = 8;
const STRINGS_SIZE: i64 = 10;
/// The debugger's entry, which programs have.
const PROGRAM: i64 = 21;
const PLT_RELA: i64 = 23;
const GNU_HASH: i64 = 0x6fff_fef5;
/// Where the object's dependencies are looked for; the first also counts for what they need.
pub(super) const RPATH: i64 = 15;
pub(super) const RUNPATH: i64 = 29;

/// The kinds of relocation that hold an address: of the table of procedures, of the table of data,
/// of data itself.
#[cfg(target_arch = "x86_64")]
const KINDS: (u32, u32, u32) = (7, 6, 1);
#[cfg(target_arch = "aarch64")]
const KINDS: (u32, u32, u32) = (1026, 1025, 257);

#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Rela {
    offset: u64,
    info: u64,
    addend: i64,
}

/// The place of the address of another object's function.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    /// The function's name.
    pub(super) name: &'a [u8],
    pub(super) address: usize,
    /// It may be resolved at the first call.
    pub(super) lazy: bool,
}

/// One loaded object. Valid while the linker's lock is held, or the object stays loaded.
#[derive(Clone, Copy)]
pub(super) struct Object {
    base: usize,
    headers: &'static [Elf64_Phdr],
    name: *const core::ffi::c_char,
}

impl Object {
    /// # Safety
    /// As `dl_iterate_phdr` gives it, for as long as the linker's lock is held.
    pub(super) unsafe fn of(info: &libc::dl_phdr_info) -> Self {
        let headers = if info.dlpi_phdr.is_null() {
            &[]
        } else {
            // SAFETY: the linker's word.
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
        };
        Self { base: info.dlpi_addr as usize, headers, name: info.dlpi_name }
    }

    /// A number that no other loaded object has.
    pub(super) fn identity(&self) -> usize {
        self.headers.as_ptr() as usize
    }

    fn segments(&self, kind: u32) -> impl Iterator<Item = (usize, usize, u32)> + '_ {
        self.headers.iter().filter(move |h| h.p_type == kind).map(|h| {
            let from = self.base.wrapping_add(h.p_vaddr as usize);
            (from, from.saturating_add(h.p_memsz as usize), h.p_flags)
        })
    }

    /// From its first segment to the end of its last.
    pub(super) fn range(&self) -> (usize, usize) {
        let from = self.segments(PT_LOAD).map(|s| s.0).min().unwrap_or(0);
        (from, self.segments(PT_LOAD).map(|s| s.1).max().unwrap_or(0))
    }

    /// Whether the address is in one of its segments.
    pub(super) fn has(&self, address: usize) -> bool {
        self.segments(PT_LOAD).any(|(from, to, _)| (from..to).contains(&address))
    }

    /// Whether the linker has made the page of this address read-only after relocation.
    pub(super) fn is_read_only(&self, address: usize) -> bool {
        self.segments(PT_GNU_RELRO).any(|(from, to, _)| (from..to).contains(&address))
    }

    /// Whether it is the program itself, which has no name.
    pub(super) fn is_program(&self) -> bool {
        // SAFETY: the linker's name of the object.
        !self.name.is_null() && unsafe { *self.name } == 0 && self.has_tag(PROGRAM)
    }

    /// Where it was loaded from; empty for the program.
    pub(super) fn path(&self) -> &[u8] {
        if self.name.is_null() {
            return b"";
        }
        // SAFETY: the linker's name of the object.
        unsafe { CStr::from_ptr(self.name) }.to_bytes()
    }

    /// Whether it is libc, or a library that has libc's calls for threads; or the linker, or the
    /// kernel's own.
    pub(super) fn is_libcs(&self) -> bool {
        let name = self.path().rsplit(|c| *c == b'/').next().unwrap_or_default();
        const NAMES: [&[u8]; 6] =
            [b"libc.so", b"libc-2", b"libpthread", b"ld-linux", b"ld-2", b"linux-vdso"];
        NAMES.iter().any(|known| name.starts_with(known))
    }

    /// So many values at an address, if they are in one segment that can be read.
    fn slice<T>(&self, address: usize, count: usize) -> Option<&'static [T]> {
        let bytes = count.checked_mul(size_of::<T>())?;
        let end = address.checked_add(bytes)?;
        let inside = self
            .segments(PT_LOAD)
            .any(|(from, to, flags)| flags & PF_R != 0 && from <= address && end <= to);
        if !inside || !address.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: mapped and readable, aligned, and T is plain integers here.
        Some(unsafe { core::slice::from_raw_parts(address as *const T, count) })
    }

    fn one<T>(&self, address: usize) -> Option<&'static T> {
        self.slice(address, 1)?.first()
    }

    fn symbol(&self, table: usize, number: usize) -> Option<&'static Elf64_Sym> {
        self.one(table.wrapping_add(number.wrapping_mul(size_of::<Elf64_Sym>())))
    }

    /// The value of an entry of the dynamic section.
    fn tag(&self, tag: i64) -> Option<usize> {
        let (from, to, _) = self.segments(PT_DYNAMIC).next()?;
        let entries: &[Dyn] = self.slice(from, (to - from) / size_of::<Dyn>())?;
        entries.iter().take_while(|e| e.tag != 0).find(|e| e.tag == tag).map(|e| e.value as usize)
    }

    pub(super) fn has_tag(&self, tag: i64) -> bool {
        self.tag(tag).is_some()
    }

    /// The address that an entry holds: the linker has added the base, but not everywhere.
    fn address(&self, tag: i64) -> Option<usize> {
        let value = self.tag(tag)?;
        Some(if value < self.base { value.wrapping_add(self.base) } else { value })
    }

    /// The name at an offset in the table of strings, without its end.
    fn string(&self, strings: &'static [u8], offset: u32) -> Option<&'static [u8]> {
        let rest = strings.get(offset as usize..)?;
        rest.get(..rest.iter().position(|b| *b == 0)?)
    }

    /// Shows each slot that is bound to another object's function.
    pub(super) fn each_slot(&self, each: &mut dyn FnMut(Slot)) {
        let (Some(symbols), Some(strings)) = (self.address(SYMBOLS), self.address(STRINGS)) else {
            return;
        };
        let Some(strings) = self.tag(STRINGS_SIZE).and_then(|n| self.slice::<u8>(strings, n))
        else {
            return;
        };
        for (table, size) in [(PLT_RELA, PLT_RELA_SIZE), (RELA, RELA_SIZE)] {
            let (Some(table), Some(bytes)) = (self.address(table), self.tag(size)) else {
                continue;
            };
            let Some(entries) = self.slice::<Rela>(table, bytes / size_of::<Rela>()) else {
                continue;
            };
            for entry in entries {
                let (kind, symbol) = (entry.info as u32, (entry.info >> 32) as usize);
                let lazy = kind == KINDS.0;
                if symbol == 0 || !(lazy || kind == KINDS.1 || kind == KINDS.2 && entry.addend == 0)
                {
                    continue;
                }
                let address = self.base.wrapping_add(entry.offset as usize);
                let writable = self.segments(PT_LOAD).any(|(from, to, flags)| {
                    flags & PF_W != 0 && from <= address && address.saturating_add(8) <= to
                });
                if !writable || !address.is_multiple_of(align_of::<usize>()) {
                    continue;
                }
                let Some(symbol) = self.symbol(symbols, symbol) else { continue };
                if symbol.st_shndx == 0
                    && let Some(name) = self.string(strings, symbol.st_name)
                {
                    each(Slot { name, address, lazy });
                }
            }
        }
    }

    /// The function of this name that the object exports, by its GNU hash table.
    pub(super) fn function(&self, name: &[u8]) -> Option<usize> {
        let table = self.address(GNU_HASH)?;
        let (symbols, strings) = (self.address(SYMBOLS)?, self.address(STRINGS)?);
        let strings = self.slice::<u8>(strings, self.tag(STRINGS_SIZE)?)?;
        let &[buckets, first, filters, _] = self.slice::<u32>(table, 4)? else { return None };
        let hash = name.iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add((*b).into()));
        let nth =
            |table: usize, n: u32| self.one::<u32>(table.wrapping_add(n as usize * 4)).copied();
        let at = table.wrapping_add(16 + filters as usize * 8);
        let chains = at.wrapping_add(buckets as usize * 4);
        let mut number = nth(at, hash.checked_rem(buckets)?)?;
        if number < first {
            return None;
        }
        loop {
            let known = nth(chains, number - first)?;
            if known | 1 == hash | 1 {
                let symbol = self.symbol(symbols, number as usize)?;
                if symbol.st_shndx != 0 && self.string(strings, symbol.st_name) == Some(name) {
                    return Some(self.base.wrapping_add(symbol.st_value as usize));
                }
            }
            if known & 1 != 0 {
                return None;
            }
            number = number.checked_add(1)?;
        }
    }
}
