//! The rsockets protocol, socket semantics and devices. No C symbol is exported from here, and
//! nothing here has heard of hooks.
//!
//! Below it stand [`wire`] (bytes and types) and [`proto`] (the protocol as a machine without I/O),
//! a crate of their own. Below it stands rsocket-host, too: [`sys`] (system calls), [`host`] (what
//! the kernel says), the calling thread, [`environment`] (the variables), [`log`], [`seqpacket`]
//! (messages with descriptors). From the bottom up:
//!
//! - [`device`] (memory that a peer can write, and how it is told);
//! - [`channel`] (what a connection has of that memory);
//! - [`attach`] (how two ends of a TCP connection find each other);
//! - [`bridge`] (what is beyond a channel when it is not a peer process);
//! - [`socket`] (what a socket is);
//! - [`readiness`] (poll, select and epoll over sockets of both kinds);
//! - [`native`] (how sockets meet that are rsockets from the start);
//! - [`datagram`] (sockets for datagrams).
//!
//! Between [`bridge`] and [`socket`] stand [`pairing`] (the steps by which two ends meet),
//! [`handover`] (back to TCP), [`waiting`] (spinning, sleeping, deadlines) and
//! [`direct_placement`]. Above them stands [`iomap`], the calls of direct placement.
//!
//! [`fork_safe`] is upstream's fork mode, in which a TCP connection becomes one over RDMA before
//! its first byte.
//!
//! Beside them: [`config`], [`libdir`] (`$LIB`), [`stats`], [`live_segment`] (what `rsstat` shows),
//! [`tap`] (packets for Wireshark).
//!
//! For the libraries that export C functions: [`descriptors`] (what each number stands for),
//! [`process`] (forks and the end). They see of all this what the crate rsocket-edge names.

// A panic in here kills a program that is not ours.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod attach;
pub mod bridge;
pub mod channel;
pub mod config;
pub mod conn;
pub mod datagram;
pub mod descriptors;
pub mod direct_placement;
pub mod exec_handover;
pub mod fork_safe;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod handover;
pub mod headroom;
pub mod iomap;
pub mod libdir;
pub mod live_segment;
pub mod native;
pub(crate) mod own_directory;
pub mod pairing;
pub mod process;
pub mod readiness;
pub mod rules;
pub mod socket;
pub mod tap;
pub mod waiting;

pub use rsocket_host::{
    address, copy, environment, facts as host, failure, fnv, given, log, probe, reason, seqpacket,
    stats, sys,
};
pub use rsocket_host::{log_at, log_debug, log_info, log_warn};
pub use rsocket_wire as wire;
pub use rsocket_wire::proto;

/// What carries bytes between two ends: the contract, and the devices that keep it.
pub mod device {
    pub use rsocket_device::*;
    pub use rsocket_rdma as rdma;
    pub use rsocket_shm as shm;
}

/// What lies below every room: the calling thread, and what threads and processes share.
pub mod sync {
    pub use rsocket_host::sys::on_word;
    pub use rsocket_host::{array, living, migration, signals, stack, thread};
    pub use rsocket_sync::{atom, backoff, guarded, lock, mutex, published, saturation, spin};
}
