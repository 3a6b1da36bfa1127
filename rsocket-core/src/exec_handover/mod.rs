//! What a program leaves to the next one in its process: connections across `exec`.
//!
//! The next program has the same descriptors and the same process id. When it has this library too
//! (see [`target`]), it needs three things alone: the fork group's memory, the arenas, and which
//! descriptor is which connection. The first two are memfds that stay open. The third is a list in
//! a file of its own, whose number an environment variable says. So nothing moves, no byte can be
//! lost, and the peer notices nothing (`life-of-a-connection §5`). The next program maps all that
//! in its constructor and removes the variable.
//!
//! Must not know hooks. Entry points: [`prepare`] before `exec` and [`Will::undo`] if it failed;
//! [`inherit`], then [`show`].

pub mod target;

use core::ffi::{CStr, c_char};
use core::fmt::Write;
use std::os::fd::RawFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::attach::reach;
use crate::channel::{arenas, broken, fd_stash, link};
use crate::conn::fork_group::{self, ForkGroup};
use crate::conn::machine::Phase;
use crate::conn::slot::{Slot, SlotId};
use crate::descriptors::{self, Entry};
use crate::device::shm::{layout, netns};
use crate::given::Strings;
use crate::handover::back;
use crate::host::kernel;
use crate::pairing::heirs;
use crate::reason::Reason;
use crate::sync::array::Array;
use crate::sys::text::Text;
use crate::sys::{descriptor, files, small_file};
use crate::{live_segment, socket, sys};

/// Says the number of the list's descriptor.
pub const VARIABLE: &CStr = c"RSOCKET_HEIR";
const ASSIGNED: &[u8] = b"RSOCKET_HEIR=";
const MAGIC: u64 = u64::from_le_bytes(*b"rs-heirs");
/// To be raised with any change of what is in the fork group's memory that does not change its
/// size.
const VERSION: u32 = 7;

/// The head of the list.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, PartialEq, Eq, Clone, Copy)]
struct Head {
    magic: u64,
    group_size: u64,
    slot_size: u32,
    version: u32,
    layout: u32,
    pid: u32,
    group: i32,
    entry: u32,
    fd_stash: [i32; 2],
    count: u32,
    home: i32,
}

impl Head {
    fn new(group: RawFd, entry: u32, count: u32) -> Self {
        Self {
            magic: MAGIC,
            group_size: size_of::<ForkGroup>() as u64,
            slot_size: size_of::<Slot>() as u32,
            version: VERSION,
            layout: layout::VERSION,
            pid: sys::pid(),
            group,
            entry,
            fd_stash: fd_stash::ends(),
            count,
            home: netns::descriptor(),
        }
    }
}

/// One descriptor, and what it stands for.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
struct Item {
    fd: i32,
    /// 0 a connection that is on TCP, 1 a connection on a device, 2 a listener.
    kind: u32,
    slot: u32,
}

const ON_DEVICE: u32 = 1;
const LISTENER: u32 = 2;

/// What was prepared for the next program. Has no destructor: `exec` does not come back.
pub struct Will {
    list: RawFd,
    group: RawFd,
    environment: Environment,
}

impl Will {
    /// The environment for the next program: what the caller wanted, and ours.
    #[must_use]
    pub fn environment(&self) -> *const *const c_char {
        self.environment.strings.as_ptr()
    }

    /// After an `exec` that failed: everything is as it was.
    pub fn undo(self) {
        sys::close_private(self.list);
        sys::keep_across_exec(self.group, false);
        fd_stash::keep_across_exec(false);
        netns::keep_across_exec(false);
        arenas::keep_across_exec(false);
        socket::exec_failed();
        self.environment.release();
    }
}

/// Whether `exec` leaves the descriptor open; `None` if it is not open at all.
fn inherited(fd: RawFd) -> Option<bool> {
    descriptor::closes_on_exec(fd).ok().map(|closes| !closes)
}

/// Whether the next program inherits a socket of ours at all.
#[must_use]
pub fn leaves_anything() -> bool {
    (0..descriptors::end()).any(|fd| {
        matches!(descriptors::entry(fd), Entry::Connection(_) | Entry::Listener(_))
            && inherited(fd) == Some(true)
    })
}

/// Before `exec` of a program that will have this library: everything that it inherits is passed
/// on. What cannot be goes back to TCP if the program is meant to use it ([`give_back`]).
///
/// Allocates nothing by `malloc`: this may be the child of a process with many threads.
///
/// # Errors
/// What is missing, in words.
pub fn prepare(environment: Strings<'_>) -> Result<Will, &'static str> {
    let (group, entry) = fork_group::bequest().ok_or("the family's file")?;
    let list = files::in_memory("rsockets-heirs").and_then(sys::make_private);
    let list = list.map_err(|_| "a file for the list")?;
    let Some(environment) = Environment::extended(environment, list) else {
        sys::close_private(list);
        return Err("memory for the environment");
    };
    if write_list(list, group, entry).is_none() {
        sys::close_private(list);
        environment.release();
        return Err("room in the list");
    }
    for fd in [list, group] {
        sys::keep_across_exec(fd, true);
    }
    fd_stash::keep_across_exec(true);
    netns::keep_across_exec(true);
    arenas::keep_across_exec(true);
    socket::pass_on(&|id| listed(list, id));
    Ok(Will { list, group, environment })
}

/// Writes down every descriptor that the next program inherits; how many there are.
fn write_list(list: RawFd, group: RawFd, entry: u32) -> Option<u32> {
    let mut count = 0u32;
    for fd in 0..descriptors::end() {
        let (slot, kind) = match descriptors::entry(fd) {
            Entry::Connection(slot) => (slot, u32::from(socket::on_device(slot))),
            Entry::Listener(slot) => (slot, LISTENER),
            Entry::Set | Entry::Foreign => continue,
        };
        if inherited(fd) != Some(true) {
            continue;
        }
        if !socket::heritable(slot, fd) {
            if socket::on_shared_memory(slot) {
                // The next program is as likely to use it as this one was.
                back::give_away(slot, fd, Reason::Executed);
            } else {
                give_back_one(slot, fd);
            }
            continue;
        }
        let item = Item { fd, kind, slot: slot.raw() };
        write_at(list, place(count), item.as_bytes())?;
        count += 1;
    }
    write_at(list, 0, Head::new(group, entry, count).as_bytes())?;
    Some(count)
}

fn place(index: u32) -> u64 {
    size_of::<Head>() as u64 + u64::from(index) * size_of::<Item>() as u64
}

fn write_at(file: RawFd, at: u64, bytes: &[u8]) -> Option<()> {
    if !sys::file_may_reach(at + bytes.len() as u64) {
        return None;
    }
    files::write_at(sys::borrow(file), at, bytes)
}

fn read_at<T: FromBytes + IntoBytes + KnownLayout>(file: RawFd, at: u64) -> Option<T> {
    let mut value = T::new_zeroed();
    small_file::read_exactly(sys::borrow(file), at, value.as_mut_bytes())?;
    Some(value)
}

fn items(list: RawFd, count: u32) -> impl Iterator<Item = Item> {
    (0..count).map_while(move |i| read_at(list, place(i)))
}

fn listed(list: RawFd, id: SlotId) -> bool {
    let count = read_at::<Head>(list, 0).map_or(0, |h| h.count);
    items(list, count).any(|item| item.slot == id.raw())
}

/// An environment with our variable in it, in memory of its own. Its other strings are those of the
/// one that it was made of.
struct Environment {
    /// Ends with null pointers.
    strings: Array<*const c_char>,
    /// Our variable, with zero bytes behind it.
    ours: Array<u8>,
}

impl Environment {
    fn extended(of: Strings<'_>, list: RawFd) -> Option<Self> {
        const TEXT: usize = 32;
        // One of an earlier time would hide this one.
        let others = || of.filter(|string| !string.to_bytes().starts_with(ASSIGNED));
        let mut text = Text::<{ TEXT - 1 }>::new();
        text.push(ASSIGNED);
        write!(text, "{list}").ok().filter(|()| !text.cut)?;
        let mut ours = Array::mapped(TEXT, 0_u8)?;
        for (to, from) in ours.iter_mut().zip(text.as_bytes()) {
            *to = *from;
        }
        let Some(mut strings) = Array::mapped(others().count() + 2, core::ptr::null()) else {
            ours.release();
            return None;
        };
        let all = others().map(CStr::as_ptr).chain([ours.as_ptr().cast()]);
        for (to, from) in strings.iter_mut().zip(all) {
            *to = from;
        }
        Some(Self { strings, ours })
    }

    fn release(self) {
        self.strings.release();
        self.ours.release();
    }
}

/// Before `exec` of a program that may know nothing of us: what it is meant to use goes back to
/// TCP. Of a program like this one, to which nothing could be passed on, that is `all` that it
/// inherits.
pub fn give_back(all: bool) {
    for fd in 0..descriptors::end() {
        if let Entry::Connection(slot) = descriptors::entry(fd)
            && inherited(fd) == Some(true)
        {
            if all {
                back::give_away(slot, fd, Reason::Executed);
            } else {
                give_back_one(slot, fd);
            }
        }
    }
    socket::leaving();
}

/// What stands on 0 to 2, or belongs to no other process, is meant for the new program. The new
/// program merely holds anything else open, while a sibling goes on with it.
fn give_back_one(slot: SlotId, fd: RawFd) {
    if fd <= 2 || socket::on_device(slot) && !fork_group::shared(slot) {
        back::give_away(slot, fd, Reason::Executed);
    }
}

/// Whether the last program of this process says that it left something.
#[must_use]
pub fn announced() -> bool {
    crate::environment::variable(VARIABLE).is_some()
}

/// In the constructor: takes over what the last program of this process left, if the environment
/// says so. True if there was anything.
///
/// Something that is not what it should be is left alone. A connection that this program cannot go
/// on with is reset, since its bytes would be missing.
pub fn inherit() -> bool {
    let Some(value) = crate::environment::variable(VARIABLE) else { return false };
    let list = value.to_str().ok().and_then(|v| v.parse::<RawFd>().ok()).filter(|fd| *fd > 2);
    crate::environment::forget(VARIABLE);
    let Some(list) = list else { return false };
    let Some(head) = read_at::<Head>(list, 0).filter(|h| h.magic == MAGIC && h.pid == sys::pid())
    else {
        return false;
    };
    sys::inherit_private(list);
    sys::inherit_private(head.group);
    fd_stash::inherit(head.fd_stash);
    netns::inherit(head.home);
    let known = head == Head::new(head.group, head.entry, head.count)
        && fork_group::inherit(head.group, head.entry)
        && descriptors::claim();
    if known {
        arenas::inherit();
        heirs::after_exec();
        let inherited = items(list, head.count)
            .filter_map(|item| fork_group::slot(SlotId::from_raw(item.slot)?));
        inherited.for_each(live_segment::forget_last_program);
    }
    for item in items(list, head.count) {
        take_over(&item, known);
    }
    sys::close_private(list);
    known
}

fn take_over(item: &Item, known: bool) {
    let Some(id) = SlotId::from_raw(item.slot) else { return };
    if !known || !fork_group::inherit_descriptor(id, item.fd) {
        if item.kind == ON_DEVICE {
            // Another build of the library, for one: what was on the device is out of reach.
            crate::log_warn!("connection reset: what the last program left of it is out of reach");
            kernel::reset_on_close(item.fd);
            kernel::shut_both(item.fd);
        }
        return;
    }
    let entry = if item.kind == LISTENER { Entry::Listener(id) } else { Entry::Connection(id) };
    descriptors::put(item.fd, entry);
    if let Some(s) = fork_group::slot(id)
        && link::has_channel(s)
        && link::ends(s).is_none()
    {
        broken::break_connection(s, item.fd, Reason::Executed);
    }
}

/// Once the settings are known, if anything was inherited: shows it. Also finds out whether RDMA
/// could reach peers on other hosts, for which the connections' first bytes are remembered.
pub fn show() {
    reach::find_out();
    for fd in 0..descriptors::end() {
        if let Entry::Connection(id) = descriptors::entry(fd)
            && let Some(s) = fork_group::slot(id)
            && matches!(s.phase(), Phase::Paired | Phase::Refused)
        {
            live_segment::enter(id, s, fd);
            live_segment::name_pair(s, link::common(s));
        }
    }
}
