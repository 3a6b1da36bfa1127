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

use core::ffi::CStr;
use std::os::fd::OwnedFd;

use rsocket_edge::channel::link;
use rsocket_edge::descriptors::Entry;
use rsocket_edge::socket;
use rsocket_host::array::Array;
use rsocket_host::objects::{self, Function, Object, Slot};
use rsocket_host::reason::Reason;
use rsocket_host::stats;
use rsocket_host::stats::Counter;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;
use rustix::fs::{Mode, OFlags};

mod followed;

use crate::shadow;

/// Objects that a snapshot has room for. With more, none counts as new.
const MOST: usize = 8192;

/// Which objects were there before a `dlopen`. Has no destructor: a constructor may end the thread.
pub(crate) struct Before {
    /// The addresses of their program headers; none if there was no memory.
    list: Option<Array<usize>>,
    count: usize,
}

impl Before {
    /// What is loaded now.
    pub(crate) fn now() -> Self {
        let mut before = Self { list: Array::mapped(MOST, 0), count: 0 };
        objects::each(&mut |object| before.add(object.identity()));
        before
    }

    fn add(&mut self, identity: usize) {
        if let Some(place) = self.list.as_mut().and_then(|list| list.get_mut(self.count)) {
            *place = identity;
            self.count += 1;
        }
    }

    fn has(&self, identity: usize) -> bool {
        match self.list.as_ref().and_then(|list| list.get(..self.count)) {
            Some(list) if self.count < MOST => list.contains(&identity),
            _ => true,
        }
    }

    /// Points what binds past us at our hooks, and ends the snapshot. `dlsym` is for these
    /// libraries alone.
    pub(crate) fn rebind(self, dlsym: Function<'_>) {
        let found = Found::now();
        if let Some(own) = found.own {
            let mut writer = Writer { memory: None, done: 0, left: 0 };
            objects::each(&mut |object| {
                if object.identity() != own.identity() && !object.is_libcs() {
                    let new = !self.has(object.identity()) || followed::has(object.path());
                    let before = writer.done;
                    object.each_slot(&mut |slot| {
                        if found.goes_past_us(&object, new, &slot)
                            && let Some(hook) = instead_of(&own, slot.name(), dlsym)
                        {
                            writer.write(&slot, hook);
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
        if let Some(list) = self.list {
            list.release();
        }
    }
}

/// What a library that binds past us is to have in place of libc's function.
fn instead_of<'a>(own: &Object<'_>, name: &'a [u8], dlsym: Function<'a>) -> Option<Function<'a>> {
    if name == b"dlsym" { Some(dlsym) } else { own.function(name) }
}

/// Whether there is a hook of this name.
pub(crate) fn is_hook(name: &CStr) -> bool {
    Found::now().own.is_some_and(|own| own.function(name.to_bytes()).is_some())
}

/// Our hook of this name, if the address is in libc.
pub(crate) fn hook_instead_of(address: usize, name: &CStr) -> Option<usize> {
    let found = Found::now();
    let hook = found.own.filter(|_| found.is_libcs(address))?.function(name.to_bytes())?;
    Some(hook.address())
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

/// Ourselves, and where libc is.
struct Found {
    own: Option<Object<'static>>,
    libc: [(usize, usize); 4],
    libcs: usize,
}

impl Found {
    fn now() -> Self {
        let mut found = Self { own: None, libc: [(0, 0); 4], libcs: 0 };
        objects::each(&mut |object| found.look(&object));
        found
    }

    fn look(&mut self, object: &Object<'_>) {
        if let Some(own) = object.own() {
            self.own = Some(own);
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
    fn goes_past_us(&self, object: &Object<'_>, new: bool, slot: &Slot<'_>) -> bool {
        let now = slot.get();
        // One that is not resolved yet leads into its own object. (Before relocation it is a small
        // number.)
        self.is_libcs(now) || new && slot.is_lazy() && object.has(now)
    }
}

/// Writes slots, and counts them.
struct Writer {
    memory: Option<OwnedFd>,
    done: u64,
    left: u64,
}

impl Writer {
    fn write(&mut self, slot: &Slot<'_>, hook: Function<'_>) {
        if slot.bind(hook) {
            self.done += 1;
            return;
        }
        if self.memory.is_none() && self.left == 0 && !sandbox::inside() {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            self.memory =
                rustix::fs::openat(rustix::fs::CWD, c"/proc/self/mem", flags, Mode::empty()).ok();
        }
        let bytes = hook.address().to_ne_bytes();
        let wrote =
            self.memory.as_ref().map(|m| rustix::io::pwrite(m, &bytes, slot.address() as u64));
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
pub(crate) fn may_stand_in(name: &CStr, caller: usize) -> bool {
    let name = name.to_bytes();
    let mut paths = None;
    objects::each(&mut |object| {
        if object.has(caller) {
            paths = Some((
                object.has_tag(objects::RPATH) && !object.is_program(),
                object.has_tag(objects::RUNPATH),
            ));
        }
    });
    let path = name.contains(&b'/');
    !name.contains(&b'$') && matches!(paths, Some((false, runpath)) if path || !runpath)
}
