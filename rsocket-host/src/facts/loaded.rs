//! What the kernel and the dynamic linker have loaded: the program's own headers, and the files of
//! this library and of libc.
//!
//! The kernel tells by the auxiliary vector, which it wrote when it started the program and which
//! no code changes. Must not know what an answer is for. Entry points: [`entry`], [`seed`],
//! [`interpreter`], [`own_file`], [`libc_file`], [`is_loaded`], [`function_of`].

use core::ffi::{CStr, c_char, c_ulong, c_void};

/// The kind of a program header that names the dynamic linker.
pub(super) const PT_INTERP: u32 = 3;
/// The kind of the one that says where the headers are.
const PT_PHDR: u32 = 6;

fn auxiliary(kind: c_ulong) -> u64 {
    // SAFETY: takes no pointer; 0 for what the kernel did not say.
    unsafe { libc::getauxval(kind) }
}

/// Where the kernel, or the linker in its place, has the program begin.
#[must_use]
pub fn entry() -> u64 {
    auxiliary(libc::AT_ENTRY)
}

/// The sixteen random bytes that the kernel gave the process, as two words.
#[must_use]
pub fn seed() -> Option<[u64; 2]> {
    let at = auxiliary(libc::AT_RANDOM) as *const [u64; 2];
    // SAFETY: not null, so it points to 16 bytes, which live as long as the process.
    (!at.is_null()).then(|| unsafe { at.read_unaligned() })
}

/// The dynamic linker that this very program names.
#[must_use]
pub fn interpreter() -> Option<&'static CStr> {
    let (at, n) = (auxiliary(libc::AT_PHDR), auxiliary(libc::AT_PHNUM));
    if at == 0 || n > 256 {
        return None;
    }
    // SAFETY: the program's own headers, mapped for its life: so the kernel says.
    let headers = unsafe { core::slice::from_raw_parts(at as *const libc::Elf64_Phdr, n as usize) };
    let base = (at as usize)
        .checked_sub(headers.iter().find(|h| h.p_type == PT_PHDR)?.p_vaddr as usize)?;
    let named = headers.iter().find(|h| h.p_type == PT_INTERP)?;
    // SAFETY: the name is part of the program's image and ends with a zero byte, or the kernel
    // would not have run it.
    Some(unsafe { CStr::from_ptr((base + named.p_vaddr as usize) as *const c_char) })
}

/// The file of the library (or program) that this function is part of, as the dynamic linker was
/// told to find it.
#[must_use]
pub fn own_file() -> Option<&'static CStr> {
    let here: fn() -> Option<&'static CStr> = own_file;
    // SAFETY: a process that runs this code has it loaded for good: our libraries are never
    // unloaded.
    unsafe { file_of(here as *const c_void) }
}

/// libc's file.
#[must_use]
pub fn libc_file() -> Option<&'static CStr> {
    let there: unsafe extern "C" fn(c_ulong) -> c_ulong = libc::getauxval;
    // SAFETY: libc is never unloaded.
    unsafe { file_of(there as *const c_void) }
}

/// # Safety
/// `address` is in something that is never unloaded.
unsafe fn file_of(address: *const c_void) -> Option<&'static CStr> {
    let mut found = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr fills in the structure, for which zeroes are a value. The name lives as long
    // as what it is the name of, which is for good by the caller's promise.
    unsafe {
        if libc::dladdr(address, found.as_mut_ptr()) == 0 {
            return None;
        }
        let name = found.assume_init().dli_fname;
        (!name.is_null()).then(|| CStr::from_ptr(name))
    }
}

/// Whether the dynamic linker finds, by this name, something that it has loaded already.
#[must_use]
pub fn is_loaded(name: &CStr) -> bool {
    !handle_of(name).is_null()
}

/// The handle of what is loaded already, or null.
fn handle_of(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; nothing is loaded, and a handle that is not closed only counts what stays
    // anyway.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// The function of this name in a library, if that is loaded already.
#[must_use]
pub fn function_of(library: &CStr, name: &CStr) -> Option<*const ()> {
    let handle = handle_of(library);
    if handle.is_null() {
        return None;
    }
    // SAFETY: a C string, and not null: such handles are never closed.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_loaded() {
        assert!(own_file().is_some() && libc_file().is_some_and(is_loaded));
        assert!(!is_loaded(c"no-such-library.so"));
        assert!(function_of(c"libc.so.6", c"getauxval").is_some());
        assert!(function_of(c"no-such-library.so", c"getauxval").is_none());
        assert!(function_of(c"libc.so.6", c"no_such_function").is_none());
        assert!(interpreter().is_some_and(|name| name.to_bytes().starts_with(b"/")));
        assert!(seed().is_some() && entry() != 0);
    }
}
