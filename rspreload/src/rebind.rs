//! Objects that bind past us: what `dlopen` brings with `RTLD_DEEPBIND` finds libc's functions
//! before ours.
//!
//! After such a `dlopen` the slots of the hooked names, in the relocation tables of all objects,
//! are pointed at our hooks. A slot is changed if it holds an address in libc, or if it belongs to
//! a new object and is not resolved yet. Everything else in the object stays bound as the program
//! wanted it.
//!
//! `Writer` writes slots through `/proc/self/mem` where the linker has made their pages read-only.
//! A change of the protection could take a page from a thread that is just relocating its object.
//! Where `/proc/self/mem` is forbidden, everything goes back to TCP, and the process attaches no
//! more. Must not know what a hook does. Entry points: [`Before::now`], [`Before::rebind`].

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::os::fd::OwnedFd;

use rsocket_edge::channel::link;
use rsocket_edge::descriptors::Entry;
use rsocket_edge::socket;
use rsocket_host::reason::Reason;
use rsocket_host::stats;
use rsocket_host::stats::Counter;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

mod followed;
mod object;

use object::{Object, Slot};

use crate::shadow;

/// Objects that a snapshot has room for. With more, none counts as new.
const MOST: usize = 8192;

/// Which objects were there before a `dlopen`. Has no destructor: a constructor may end the thread.
pub(crate) struct Before {
    /// The addresses of their program headers; null if there was no memory.
    list: *mut usize,
    count: usize,
}

impl Before {
    /// What is loaded now.
    pub(crate) fn now() -> Self {
        let (bytes, rw) = (MOST * size_of::<usize>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, rw, MapFlags::PRIVATE) };
        let mut before =
            Self { list: memory.map_or(core::ptr::null_mut(), <*mut c_void>::cast), count: 0 };
        each_object(&mut |object| before.add(object.identity()));
        before
    }

    fn add(&mut self, identity: usize) {
        if !self.list.is_null() && self.count < MOST {
            // SAFETY: within the mapping, which is ours alone.
            unsafe { *self.list.add(self.count) = identity };
            self.count += 1;
        }
    }

    fn has(&self, identity: usize) -> bool {
        if self.list.is_null() || self.count == MOST {
            return true;
        }
        // SAFETY: so many were written.
        unsafe { core::slice::from_raw_parts(self.list, self.count) }.contains(&identity)
    }

    /// Points what binds past us at our hooks, and ends the snapshot. `dlsym` is for these
    /// libraries alone.
    pub(crate) fn rebind(self, dlsym: *const ()) {
        let found = Found::now();
        if let Some(own) = found.own {
            let mut writer = Writer { memory: None, done: 0, left: 0 };
            each_object(&mut |object| {
                if object.identity() != own.identity() && !object.is_libcs() {
                    let new = !self.has(object.identity()) || followed::has(object.path());
                    let before = writer.done;
                    object.each_slot(&mut |slot| {
                        if found.goes_past_us(&object, new, &slot)
                            && let Some(hook) = instead_of(&own, slot.name, dlsym)
                        {
                            writer.write(slot.address, hook, object.is_read_only(slot.address));
                        }
                    });
                    if new && writer.done > before {
                        followed::add(object.path());
                    }
                }
            });
            writer.end();
        } else {
            left(1);
        }
        if !self.list.is_null() {
            // SAFETY: our own mapping, of which nothing is kept.
            let _ = unsafe { munmap(self.list.cast(), MOST * size_of::<usize>()) };
        }
    }
}

/// What a library that binds past us is to have in place of libc's function.
fn instead_of(own: &Object, name: &[u8], dlsym: *const ()) -> Option<usize> {
    if name == b"dlsym" { Some(dlsym as usize) } else { own.function(name) }
}

/// Our hook of this name.
///
/// # Safety
/// `name` is a C string.
pub(crate) unsafe fn hook(name: *const c_char) -> Option<usize> {
    // SAFETY: the caller's promise.
    Found::now().own?.function(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// Our hook of this name, if the address is in libc.
///
/// # Safety
/// As [`hook`].
pub(crate) unsafe fn hook_instead_of(address: usize, name: *const c_char) -> Option<usize> {
    let found = Found::now();
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    found.own.filter(|_| found.is_libcs(address))?.function(name)
}

/// A call may go past us from now on: what is on a device goes back to TCP, and nothing attaches
/// any more.
pub(crate) fn left(slots: u64) {
    stats::add(Counter::DeepbindLeft, slots);
    rsocket_host::log_warn!(
        "a library that was loaded with RTLD_DEEPBIND cannot be followed: nothing attaches any more"
    );
    link::distrust();
    if shadow::any() && shadow::mine() {
        for fd in 0..shadow::end() {
            if let Entry::Connection(slot) = shadow::entry(fd) {
                socket::give_away(slot, fd, Reason::OddUse);
            }
        }
    }
}

/// Shows each object of the process, under the linker's lock: none comes or goes meanwhile.
fn each_object(each: &mut dyn FnMut(Object)) {
    unsafe extern "C" fn one(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the linker's description of one object, and what `each_object` gave.
        unsafe { (*data.cast::<&mut dyn FnMut(Object)>())(Object::of(&*info)) };
        0
    }
    let mut each = each;
    // SAFETY: the function has the right type, and `each` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(one), (&raw mut each).cast()) };
}

/// Ourselves, and where libc is.
struct Found {
    own: Option<Object>,
    libc: [(usize, usize); 4],
    libcs: usize,
}

impl Found {
    fn now() -> Self {
        let mut found = Self { own: None, libc: [(0, 0); 4], libcs: 0 };
        each_object(&mut |object| found.look(&object));
        found
    }

    fn look(&mut self, object: &Object) {
        let here: fn(u64) = left;
        if object.has(here as usize) {
            self.own = Some(*object);
        } else if object.is_libcs()
            && let Some(place) = self.libc.get_mut(self.libcs)
        {
            *place = object.range();
            self.libcs += 1;
        }
    }

    fn is_libcs(&self, address: usize) -> bool {
        self.libc.iter().any(|(from, to)| (*from..*to).contains(&address))
    }

    /// Whether a call through the slot reaches libc without us, now or when it is resolved.
    fn goes_past_us(&self, object: &Object, new: bool, slot: &Slot) -> bool {
        // SAFETY: a slot in a mapped page of the object, aligned.
        let now = unsafe { &*(slot.address as *const AtomicUsize) }.load(Ordering::Relaxed);
        // One that is not resolved yet leads into its own object. (Before relocation it is a small
        // number.)
        self.is_libcs(now) || new && slot.lazy && object.has(now)
    }
}

/// Writes slots, and counts them.
struct Writer {
    memory: Option<OwnedFd>,
    done: u64,
    left: u64,
}

impl Writer {
    fn write(&mut self, slot: usize, value: usize, read_only: bool) {
        if !read_only {
            // SAFETY: a slot in a writable page. The linker writes it as a whole, too.
            unsafe { &*(slot as *const AtomicUsize) }.store(value, Ordering::Relaxed);
            self.done += 1;
            return;
        }
        if self.memory.is_none() && self.left == 0 && !sandbox::inside() {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            self.memory =
                rustix::fs::openat(rustix::fs::CWD, c"/proc/self/mem", flags, Mode::empty()).ok();
        }
        let bytes = value.to_ne_bytes();
        let wrote = self.memory.as_ref().map(|m| rustix::io::pwrite(m, &bytes, slot as u64));
        if matches!(wrote, Some(Ok(n)) if n == bytes.len()) {
            self.done += 1;
        } else {
            self.left += 1;
        }
    }

    fn end(self) {
        stats::add(Counter::DeepbindRebound, self.done);
        if self.left > 0 {
            left(self.left);
        }
        if let Some(memory) = self.memory {
            sys::discard(memory);
        }
    }
}

/// Whether `dlopen` of this name by the code at `caller` does the same when we call it instead.
/// Then neither the caller's own search path counts, nor where the caller lies. (The program's
/// RPATH counts in either case.)
///
/// # Safety
/// `name` is null or a C string.
pub(crate) unsafe fn may_stand_in(name: *const c_char, caller: usize) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let mut paths = None;
    each_object(&mut |object| {
        if object.has(caller) {
            paths = Some((
                object.has_tag(object::RPATH) && !object.is_program(),
                object.has_tag(object::RUNPATH),
            ));
        }
    });
    let path = name.contains(&b'/');
    !name.contains(&b'$') && matches!(paths, Some((false, runpath)) if path || !runpath)
}
