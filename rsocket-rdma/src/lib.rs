//! The RDMA device: queue pairs, completions, registered memory and connection management, over
//! libibverbs and librdmacm, which are loaded at the first use ([`ffi`]).
//!
//! Must not know sockets, streams or what the words mean. Entry points: [`probe`];
//! [`EventChannel::open`] and [`CmId`] to connect; [`CmId::create_pair`] for the [`RdmaPair`],
//! which keeps the device contract; [`EventSource`] to sleep on all pairs of a device; [`UdPair`]
//! and [`Path`] for datagrams.
//!
//! What runs where:
//!
//! - **Calls of librdmacm** are made one at a time, under a lock of ours, and hold no lock of the
//!   program's. They make system calls, and some take the kernel a while (a queue pair's change of
//!   state). None waits for a peer, with one exception: soft-iWARP connects its TCP inside
//!   [`CmId::connect`]. A signal handler that interrupts one gets `EAGAIN`.
//! - **The data path** (posting, polling, arming) takes the provider's own spin locks and nothing
//!   else. Some providers make a system call to ring the doorbell.
//! - **Cancellation**: both libraries call `write` and `poll` of the process, which are
//!   cancellation points, and C code that is cancelled inside keeps its locks. So no thread can be
//!   cancelled inside.
//! - **Fork**: nothing of this works in the child of a fork, and nothing of the parent's may be
//!   torn down there. Everything here remembers the process that made it and is leaked elsewhere.
//!   The three steps of `pthread_atfork` are [`fork_prepare`], [`fork_parent`] and [`fork_child`];
//!   the child starts afresh, with device contexts of its own.
//! - **Descriptors** are moved to private numbers: the libraries keep a number in a public field,
//!   and use it from there each time.

// A panic in here kills a program that is not ours.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::CStr;
use core::fmt;

use rsocket_host::failure::Failure;

mod address;
mod cm;
mod contexts;
mod doorbell;
mod event;
mod ffi;
mod gate;
mod identifier;
mod memory;
mod pair;
mod path;
mod private;
mod staging;
mod ud;

pub use cm::EventChannel;
pub use contexts::{Device, EventSource, open_anew};
pub use event::{Event, Kind};
pub use ffi::Library;
pub use gate::{fork_child, fork_parent, fork_prepare};
pub use identifier::CmId;
pub use pair::{PairParams, RdmaPair};
pub use path::{AddressHandle, Path};
pub use private::{MAX_PRIVATE, Parameters, Private};
pub use ud::{MOST_BYTES, NotSent, UdPair};

/// An address as the connection manager takes it: IPv4 or IPv6, with the port.
pub type SockAddr = core::net::SocketAddr;

/// Why there is no RDMA here. Its text is one line for the log, for a user who wonders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// This library cannot be loaded.
    Library(&'static CStr),
    /// The libraries are too old for this symbol.
    Symbol(&'static CStr),
    /// The host has no RDMA device.
    NoDevice,
    /// There are devices, and this process may not open them, or the container does not show them.
    NoPermission,
    /// The process may not pin the memory that a connection needs.
    Memlock {
        /// Bytes that were to be pinned, beside what is.
        needed: u64,
        /// Its limit, `RLIMIT_MEMLOCK`, in bytes.
        limit: u64,
    },
    /// A child of a fork that was made while another thread was inside librdmacm.
    Forked,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &'static CStr| name.to_str().unwrap_or("?");
        match *self {
            Self::Library(name) => write!(
                f,
                "no RDMA: {} cannot be loaded (packages libibverbs1, librdmacm1, ibverbs-providers)",
                text(name)
            ),
            Self::Symbol(name) => write!(f, "no RDMA: {} is not in the installed rdma-core", text(name)),
            Self::NoDevice => f.write_str("no RDMA: this host has no RDMA device (see `rdma link`)"),
            Self::NoPermission => f.write_str(
                "no RDMA: /dev/infiniband/rdma_cm or uverbs cannot be opened (permissions, or a container without them)",
            ),
            Self::Memlock { needed, limit } => write!(
                f,
                "no RDMA: {needed} more bytes cannot be pinned, RLIMIT_MEMLOCK is {limit} bytes (ulimit -l)"
            ),
            Self::Forked => f.write_str("no RDMA: the process forked while RDMA was being set up"),
        }
    }
}

/// Why something could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmError {
    /// There is no RDMA here.
    Missing(Missing),
    /// What the kernel or the library said. `EAGAIN` from a signal handler that interrupted a call
    /// in here.
    Os(Failure),
}

impl CmError {
    /// What it is to a caller that has no other transport.
    #[must_use]
    pub const fn failure(self) -> Failure {
        match self {
            Self::Missing(Missing::Memlock { .. }) => Failure::NoMemory,
            Self::Missing(Missing::NoPermission) => Failure::Denied,
            Self::Missing(_) => Failure::NoDevice,
            Self::Os(e) => e,
        }
    }
}

impl From<CmError> for Failure {
    fn from(e: CmError) -> Self {
        e.failure()
    }
}

impl From<Missing> for CmError {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::Os(e) => write!(f, "RDMA: {}", e),
        }
    }
}

/// Whether this process could use RDMA, as far as can be said without opening anything. It could if
/// a device is listed, its nodes may be opened, and the libraries load. A host without devices is
/// told by one failing `open`, and nothing is loaded. Does not remember a refusal.
///
/// # Errors
/// What is missing.
pub fn probe() -> Result<&'static Library, Missing> {
    devices_listed()?;
    nodes_open()?;
    ffi::library().map(|loaded| &loaded.table)
}

/// The kernel lists the devices that this network namespace may use.
fn devices_listed() -> Result<(), Missing> {
    use rustix::fs::{CWD, Mode, OFlags, RawDir};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::openat(CWD, c"/sys/class/infiniband", flags, Mode::empty())
    else {
        return Err(Missing::NoDevice);
    };
    let mut buffer = [core::mem::MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut found = false;
    while let Some(Ok(entry)) = entries.next() {
        if !entry.file_name().to_bytes().starts_with(b".") {
            found = true;
            break;
        }
    }
    rsocket_host::sys::discard(directory);
    if found { Ok(()) } else { Err(Missing::NoDevice) }
}

/// A refusal that opening would meet as well. Where the nodes have other names, opening will tell.
fn nodes_open() -> Result<(), Missing> {
    use rustix::fs::{Access, AtFlags, CWD};
    let node = c"/dev/infiniband/rdma_cm";
    let access =
        rustix::fs::accessat(CWD, node, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS);
    match access.map_err(Failure::from) {
        Err(Failure::Denied | Failure::NotPermitted) => Err(Missing::NoPermission),
        _ => Ok(()),
    }
}

/// What to say when `needed` bytes of memory could not be registered
/// ([`MemoryError::Exhausted`](super::MemoryError)). `None` where there is no limit, so that the
/// cause was something else.
#[must_use]
pub fn memory_limit(needed: u64) -> Option<Missing> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current?;
    Some(Missing::Memlock { needed, limit })
}

/// What a failing open of a device or channel means.
fn refused(e: Failure) -> CmError {
    match e {
        Failure::Denied | Failure::NotPermitted | Failure::Missing => {
            CmError::Missing(Missing::NoPermission)
        }
        Failure::NoDevice => CmError::Missing(Missing::NoDevice),
        _ => CmError::Os(e),
    }
}
