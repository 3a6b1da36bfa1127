//! io_uring: what a ring does with a socket no hook sees. Either there is no ring (it fails as on a kernel without io_uring,
//! and programs do what they did before there was one), or there are rings, and the sockets of the process are on TCP:
//! `RSOCKET_IO_URING` chooses ([`rsocket_core::socket::rings`]).
//!
//! Rings are made by `io_uring_setup`, through libc's `syscall` (libuv, most languages) or by liburing's functions. A
//! program that makes the system call by an instruction of its own is out of reach.
//!
//! `syscall` carries everybody's futexes and the calls of sandboxes, with up to seven arguments, before any constructor and in any
//! state. So it is wrapped by a comparison and a jump: no frame, no memory but the pointer, no register that could hold an argument.

use core::ffi::{CStr, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use rsocket_core::attach::reason::Reason;
use rsocket_core::attach::sandbox;
use rsocket_core::socket::{self, rings};
use rsocket_core::sys;

use crate::edge::keeping_errno;
use crate::shadow::{self, Entry};
use crate::{policy, real};

/// The next definition of `syscall`; before that is known, what finds it.
static NEXT: AtomicPtr<()> = AtomicPtr::new(find as *mut ());

/// Finds the next definition, for good; every later call jumps there.
extern "C-unwind" fn look_up() -> *const () {
    let found = real::syscall();
    // Relaxed: everybody stores the same pointer, and it carries no data with it.
    NEXT.store(found.cast_mut(), Ordering::Relaxed);
    found
}

passing_on! {
    /// `syscall` as it is before the first one: finds the next definition, then goes there.
    find => look_up;
}

/// `syscall`, as in its manual page.
///
/// # Safety
/// The contract of libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) unsafe extern "C-unwind" fn syscall() {
    // SAFETY: changes nothing but the flags (and x16, which belongs to whoever stands between caller and callee), and
    // leaves by a jump either way.
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {setup}",
        "je {ours}",
        "jmp qword ptr [rip + {next}]",
        ".cfi_endproc",
        setup = const libc::SYS_io_uring_setup,
        ours = sym setup_by_number,
        next = sym NEXT,
    );
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp x0, {setup}",
        "b.eq {ours}",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "br x16",
        ".cfi_endproc",
        setup = const libc::SYS_io_uring_setup,
        ours = sym setup_by_number,
        next = sym NEXT,
    );
}

/// `syscall(SYS_io_uring_setup, entries, parameters)`.
unsafe extern "C-unwind" fn setup_by_number(
    number: c_long,
    entries: c_uint,
    parameters: *mut c_void,
) -> c_long {
    if refused() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    type Setup = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;
    // SAFETY: libc's syscall has this type; the arguments are the caller's.
    unsafe { core::mem::transmute::<*const (), Setup>(real::syscall())(number, entries, parameters) }
}

/// Whether a ring is refused. If it is not, every connection of the process goes back to, or stays on, TCP.
fn refused() -> bool {
    // In a sandbox everything is the kernel's already.
    if sandbox::inside() || !policy::enabled() {
        return false;
    }
    keeping_errno(|| {
        if rings::refused() {
            return true;
        }
        if rings::open_from_now_on() && shadow::any() && shadow::mine() {
            for fd in 0..shadow::end() {
                if let Entry::Connection(slot) = shadow::entry(fd) {
                    socket::refuse(slot, fd, Reason::IoUring);
                }
            }
        }
        false
    })
}

/// liburing's function of that name, wherever the program has it from: it may have been loaded after us, and only for
/// one of the program's libraries.
fn liburing(name: &CStr) -> Option<*const ()> {
    // SAFETY: C strings; RTLD_NOLOAD finds what is loaded already, and never unloads it since nobody closes the handle.
    unsafe {
        let mut found = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        for library in [c"liburing.so.2", c"liburing.so.1"] {
            if found.is_null() {
                let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !handle.is_null() {
                    found = libc::dlsym(handle, name.as_ptr());
                }
            }
        }
        (!found.is_null()).then_some(found.cast_const().cast())
    }
}

/// Functions of liburing's that make a ring. They give a negative error number.
macro_rules! ring {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => { hook! {$(
        fn $name($($arg: $type),*) -> c_int {
            type Next = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            if refused() {
                return -libc::ENOSYS;
            }
            match keeping_errno(|| liburing(NAME)) {
                // What liburing's header says of this function.
                Some(next) => core::mem::transmute::<*const (), Next>(next)($($arg),*),
                None => -libc::ENOSYS,
            }
        }
    )*} };
}

ring! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, size: usize);
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, flags: c_uint);
}
