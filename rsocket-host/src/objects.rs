//! Loaded ELF objects as the dynamic linker describes them: their tables, each access checked
//! against the object's segments, and what it finds by name.
//!
//! A [`Slot`] is where an object keeps the address of another's function; [`Slot::bind`] changes
//! it. Must not know what is looked for. Entry points: [`each`], [`Object::this`],
//! [`next_definition`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym};

use crate::sys::PAGE_SIZE;

unsafe extern "C" {
    /// The beginning in memory of the object that this code is in, as the linker says.
    static __ehdr_start: Elf64_Ehdr;
}

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
/// A tag: where the object's dependencies are looked for, and what they need.
pub const RPATH: i64 = 15;
/// A tag: where the object's dependencies are looked for.
pub const RUNPATH: i64 = 29;

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

/// Integers alone.
///
/// # Safety
/// Any bytes are a value.
unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for u8 {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for Dyn {}
// SAFETY: integers.
unsafe impl Plain for Rela {}
// SAFETY: integers.
unsafe impl Plain for Elf64_Sym {}

/// A function, and the name that it does the work of.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    name: &'a [u8],
    address: usize,
}

impl<'a> Function<'a> {
    /// # Safety
    /// What is at `address` can be called in place of the function of this name, for good.
    #[must_use]
    pub const unsafe fn new(name: &'a [u8], address: usize) -> Self {
        Self { name, address }
    }

    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }
}

/// The place of the address of another object's function.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    name: &'a [u8],
    place: &'a AtomicUsize,
    lazy: bool,
    read_only: bool,
}

impl<'a> Slot<'a> {
    /// The function's name.
    #[must_use]
    pub const fn name(&self) -> &'a [u8] {
        self.name
    }

    /// It may be resolved at the first call.
    #[must_use]
    pub const fn is_lazy(&self) -> bool {
        self.lazy
    }

    /// Whether the linker has made its page read-only after relocation.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> usize {
        core::ptr::from_ref(self.place).addr()
    }

    /// What stands there.
    #[must_use]
    pub fn get(&self) -> usize {
        self.place.load(Relaxed)
    }

    /// Points it at another function of its name. False if it cannot be written, or has another
    /// name. The linker writes it as a whole, too.
    pub fn bind(&self, function: Function<'_>) -> bool {
        let can = !self.read_only && function.name == self.name;
        if can {
            self.place.store(function.address, Relaxed);
        }
        can
    }
}

/// One loaded object, for as long as it is known to stay.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    base: usize,
    headers: &'a [Elf64_Phdr],
    path: &'a [u8],
}

/// Shows each object of the process, under the linker's lock: none comes or goes meanwhile.
pub fn each(each: &mut dyn FnMut(Object<'_>)) {
    unsafe extern "C" fn one(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the linker's description of one object, and what `each` gave.
        unsafe { (*data.cast::<&mut dyn FnMut(Object<'_>)>())(Object::of(&*info)) };
        0
    }
    let mut each = each;
    // SAFETY: the function has the right type, and `each` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(one), (&raw mut each).cast()) };
}

impl<'a> Object<'a> {
    /// # Safety
    /// As `dl_iterate_phdr` gives it, and used only as long as the linker's lock is held.
    unsafe fn of(info: &libc::dl_phdr_info) -> Self {
        let headers = if info.dlpi_phdr.is_null() {
            &[]
        } else {
            // SAFETY: the linker's word.
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
        };
        let path = if info.dlpi_name.is_null() {
            b"".as_slice()
        } else {
            // SAFETY: the linker's name of the object.
            unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
        };
        Self { base: info.dlpi_addr as usize, headers, path }
    }

    /// The object that this code is in, as far as its header tells: it has no path.
    #[must_use]
    pub fn this() -> Object<'static> {
        let start = &raw const __ehdr_start;
        // SAFETY: the header of an object whose code runs, and behind it what it says to be there.
        // Both stay as long as the code.
        let headers = unsafe {
            let first = start.cast::<u8>().add((*start).e_phoff as usize).cast::<Elf64_Phdr>();
            core::slice::from_raw_parts(first, usize::from((*start).e_phnum))
        };
        // The first segment begins with the header.
        let first = headers.iter().find(|h| h.p_type == PT_LOAD && h.p_offset == 0);
        let base = start.addr().wrapping_sub(first.map_or(0, |h| h.p_vaddr as usize));
        Object { base, headers, path: b"" }
    }

    /// The same object, if it is the one that this code is in: that stays as long as the code.
    #[must_use]
    pub fn own(self) -> Option<Object<'static>> {
        if !self.has(&raw const __ehdr_start as usize) {
            return None;
        }
        // SAFETY: the linker's description of an object lives as long as the object.
        let (headers, path) = unsafe {
            (
                core::slice::from_raw_parts(self.headers.as_ptr(), self.headers.len()),
                core::slice::from_raw_parts(self.path.as_ptr(), self.path.len()),
            )
        };
        Some(Object { base: self.base, headers, path })
    }

    /// A number that no other loaded object has.
    #[must_use]
    pub fn identity(&self) -> usize {
        self.headers.as_ptr() as usize
    }

    fn segments(&self, kind: u32) -> impl Iterator<Item = (usize, usize, u32)> + '_ {
        self.headers.iter().filter(move |h| h.p_type == kind).map(|h| {
            let from = self.base.wrapping_add(h.p_vaddr as usize);
            (from, from.saturating_add(h.p_memsz as usize), h.p_flags)
        })
    }

    /// From its first segment to the end of its last.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        let from = self.segments(PT_LOAD).map(|s| s.0).min().unwrap_or(0);
        (from, self.segments(PT_LOAD).map(|s| s.1).max().unwrap_or(0))
    }

    /// Its zero-initialised memory, in whole pages: where, and how much.
    #[must_use]
    pub fn zeroed(&self) -> Option<(usize, usize)> {
        let writable = |h: &&Elf64_Phdr| h.p_type == PT_LOAD && h.p_flags & PF_W != 0;
        let zeroes = |h: &&Elf64_Phdr| h.p_memsz.saturating_sub(h.p_filesz);
        self.headers.iter().filter(writable).max_by_key(zeroes).map(|h| {
            let at = self.base.wrapping_add(h.p_vaddr as usize);
            let from = at.wrapping_add(h.p_filesz as usize).next_multiple_of(PAGE_SIZE);
            let to = at.wrapping_add(h.p_memsz as usize).next_multiple_of(PAGE_SIZE);
            (from, to.saturating_sub(from))
        })
    }

    /// Whether the address is in one of its segments.
    #[must_use]
    pub fn has(&self, address: usize) -> bool {
        self.segments(PT_LOAD).any(|(from, to, _)| (from..to).contains(&address))
    }

    /// Whether the linker has made the page of this address read-only after relocation.
    fn is_read_only(&self, address: usize) -> bool {
        self.segments(PT_GNU_RELRO).any(|(from, to, _)| (from..to).contains(&address))
    }

    /// Whether it is the program itself, which has no name.
    #[must_use]
    pub fn is_program(&self) -> bool {
        self.path.is_empty() && self.has_tag(PROGRAM)
    }

    /// Where it was loaded from; empty for the program.
    #[must_use]
    pub const fn path(&self) -> &'a [u8] {
        self.path
    }

    /// Whether it is libc, or a library that has libc's calls for threads; or the linker, or the
    /// kernel's own.
    #[must_use]
    pub fn is_libcs(&self) -> bool {
        let name = self.path().rsplit(|c| *c == b'/').next().unwrap_or_default();
        const NAMES: [&[u8]; 6] =
            [b"libc.so", b"libc-2", b"libpthread", b"ld-linux", b"ld-2", b"linux-vdso"];
        NAMES.iter().any(|known| name.starts_with(known))
    }

    /// So many values at an address, if they are in one segment that can be read.
    fn slice<T: Plain>(&self, address: usize, count: usize) -> Option<&'a [T]> {
        let bytes = count.checked_mul(size_of::<T>())?;
        let end = address.checked_add(bytes)?;
        let inside = self
            .segments(PT_LOAD)
            .any(|(from, to, flags)| flags & PF_R != 0 && from <= address && end <= to);
        if !inside || !address.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: mapped and readable for as long as the object is there, aligned, and any bytes
        // are a value. Nothing writes the tables once the object is loaded.
        Some(unsafe { core::slice::from_raw_parts(address as *const T, count) })
    }

    fn one<T: Plain>(&self, address: usize) -> Option<&'a T> {
        self.slice(address, 1)?.first()
    }

    fn symbol(&self, table: usize, number: usize) -> Option<&'a Elf64_Sym> {
        self.one(table.wrapping_add(number.wrapping_mul(size_of::<Elf64_Sym>())))
    }

    /// The value of an entry of the dynamic section.
    fn tag(&self, tag: i64) -> Option<usize> {
        let (from, to, _) = self.segments(PT_DYNAMIC).next()?;
        let entries: &[Dyn] = self.slice(from, (to - from) / size_of::<Dyn>())?;
        entries.iter().take_while(|e| e.tag != 0).find(|e| e.tag == tag).map(|e| e.value as usize)
    }

    /// Whether its dynamic section has such an entry.
    #[must_use]
    pub fn has_tag(&self, tag: i64) -> bool {
        self.tag(tag).is_some()
    }

    /// The address that an entry holds: the linker has added the base, but not everywhere.
    fn address(&self, tag: i64) -> Option<usize> {
        let value = self.tag(tag)?;
        Some(if value < self.base { value.wrapping_add(self.base) } else { value })
    }

    /// The name at an offset in the table of strings, without its end.
    fn string(&self, strings: &'a [u8], offset: u32) -> Option<&'a [u8]> {
        let rest = strings.get(offset as usize..)?;
        rest.get(..rest.iter().position(|b| *b == 0)?)
    }

    /// A word that the linker writes.
    fn place(&self, address: usize) -> Option<&'a AtomicUsize> {
        let writable = self.segments(PT_LOAD).any(|(from, to, flags)| {
            flags & PF_W != 0 && from <= address && address.saturating_add(8) <= to
        });
        if !writable || !address.is_multiple_of(align_of::<usize>()) {
            return None;
        }
        // SAFETY: mapped for as long as the object is there, and aligned. The linker writes it as a
        // whole; a page that it has made read-only since can be read.
        Some(unsafe { &*(address as *const AtomicUsize) })
    }

    /// Shows each slot that is bound to another object's function.
    pub fn each_slot(&self, each: &mut dyn FnMut(Slot<'_>)) {
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
                let Some(place) = self.place(address) else { continue };
                let Some(symbol) = self.symbol(symbols, symbol) else { continue };
                if symbol.st_shndx == 0
                    && let Some(name) = self.string(strings, symbol.st_name)
                {
                    each(Slot { name, place, lazy, read_only: self.is_read_only(address) });
                }
            }
        }
    }

    /// The function of this name that the object exports, by its GNU hash table.
    #[must_use]
    pub fn function<'n>(&self, name: &'n [u8]) -> Option<Function<'n>> {
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
                    let address = self.base.wrapping_add(symbol.st_value as usize);
                    return Some(Function { name, address });
                }
            }
            if known & 1 != 0 {
                return None;
            }
            number = number.checked_add(1)?;
        }
    }
}

/// The next definition of this name, in the order of the process, behind the object that this code
/// is in; null if there is none. It takes the linker's recursive lock, which fork renews in the
/// child.
#[must_use]
pub fn next_definition(name: &CStr) -> *mut c_void {
    found(libc::RTLD_NEXT, name)
}

/// What the whole process sees by this name; null if there is nothing.
#[must_use]
pub fn definition(name: &CStr) -> *mut c_void {
    found(libc::RTLD_DEFAULT, name)
}

/// What a library has by this name, which is loaded for that and for good; null if there is
/// nothing.
#[must_use]
pub fn definition_in(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: a C string. The constructors of a library that is loaded run as in any dlopen.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() { library } else { found(library, name) }
}

/// Null if there is nothing.
fn found(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a C string, and a library that is loaded, or what stands for the order of all.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn this_object_is_one_of_all() {
        let (mut count, mut own) = (0, None);
        each(&mut |object| {
            count += 1;
            own = own.or(object.own());
        });
        let (own, this) = (own.unwrap(), Object::this());
        assert!(count > 1 && own.is_program() && !own.is_libcs());
        assert_eq!(own.range(), this.range());
        assert!(own.has(this_object_is_one_of_all as fn() as usize));
        assert!(!own.has(definition(c"malloc") as usize));
        assert!(this.zeroed().is_some());
    }

    #[test]
    fn slots_are_bound_by_their_names() {
        let (mut slots, mut exports) = (0, 0);
        each(&mut |object| {
            object.each_slot(&mut |slot| {
                slots += 1;
                // SAFETY: never called: its name is not the slot's.
                let other = unsafe { Function::new(b"no function's", 1) };
                let before = slot.get();
                assert!(!slot.name().is_empty() && !slot.bind(other) && slot.get() == before);
                assert!(object.has(slot.address()));
            });
            let getpid = object.function(b"getpid");
            exports +=
                usize::from(object.is_libcs() && getpid.is_some_and(|f| object.has(f.address())));
        });
        assert!(slots > 0 && exports == 1, "{slots} {exports}");
    }

    #[test]
    fn names_are_found() {
        assert!(!definition(c"getpid").is_null() && definition(c"no function's").is_null());
        assert_eq!(definition_in(c"libc.so.6", c"getpid"), definition(c"getpid"));
        assert!(definition_in(c"no-library.so", c"getpid").is_null());
    }
}
