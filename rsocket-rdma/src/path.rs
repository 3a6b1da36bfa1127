//! The way to another host's queue pairs for datagrams: what the connection manager knows of it,
//! and the handle that the device wants.
//!
//! Every handle has a global route header. RoCE carries nothing without one, and InfiniBand takes
//! it (upstream leaves it out for neighbours: row 5.4 of `tests/upstream-gaps.md`). Knows nothing
//! of queue pairs. Entry points: [`Path::of`], and [`UdPair::handle`](super::UdPair::handle) for
//! the handle.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::{CStr, c_int};
use std::io::Write;
use std::sync::Arc;

use super::contexts::Device;
use super::memory::Domain;
use super::{CmError, CmId, ffi, gate};
use rsocket_host::failure::Failure;
use rsocket_host::sys;

/// Entries of a port's table of addresses that are looked at.
const MOST_GIDS: c_int = 256;
/// Routers on the way, at least so many allowed.
const HOPS: u8 = 64;

/// A path, as the connection manager resolved it.
#[derive(Clone, Copy)]
pub struct Path {
    pub(super) device: &'static Device,
    ours: [u8; 16],
    theirs: [u8; 16],
    lid: u16,
    level: u8,
    rate: u8,
    traffic_class: u8,
    flow_label: u32,
    hops: u8,
    port: u8,
    /// Bytes that a packet carries.
    mtu: u32,
}

impl Path {
    /// The path of an identifier whose route is resolved; `None` if it is not.
    #[must_use]
    pub fn of(id: &CmId) -> Option<Self> {
        let mut found = None;
        let device = id.device().ok()??;
        let _ = id.id.call(|_, id| {
            // SAFETY: the identifier is alive and the gate held; a resolved route has as many
            // records as it says.
            unsafe {
                let record = (*id).route.path_rec;
                if (*id).route.num_paths > 0 && !record.is_null() {
                    let r = record.read_unaligned();
                    found = Some(Self {
                        device,
                        ours: r.sgid.raw,
                        theirs: r.dgid.raw,
                        lid: u16::from_be(r.dlid),
                        level: r.sl,
                        rate: r.rate,
                        traffic_class: r.traffic_class,
                        flow_label: u32::from_be(r.flow_label),
                        hops: r.hop_limit,
                        port: (*id).port_num,
                        mtu: bytes(r.mtu),
                    });
                }
            }
            0
        });
        found
    }
}

/// A code of `enum ibv_mtu` in bytes.
fn bytes(mtu: u8) -> u32 {
    128 << u32::from(mtu.clamp(1, 5))
}

/// A destination, as a work request names it. A post keeps a copy until it has been carried out;
/// the last one destroys it.
#[derive(Clone)]
pub struct AddressHandle(Arc<Handle>);

struct Handle {
    device: &'static Device,
    domain: Arc<Domain>,
    raw: *mut ffi::ibv_ah,
    mtu: u32,
    pid: u32,
}

// SAFETY: libibverbs' functions on a handle may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Handle {}

impl AddressHandle {
    /// The handle for a path, in the domain of the queue pair that is to use it. Takes the kernel a
    /// few system calls.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when the port has lost the address; what the device says.
    pub(super) fn new(domain: &Arc<Domain>, path: &Path) -> Result<Self, CmError> {
        let device = path.device;
        let index = own_index(device, path).ok_or(CmError::Os(Failure::NoSuchName))?;
        // SAFETY: all zeroes is a value of this structure of numbers.
        let mut wanted: ffi::ibv_ah_attr = unsafe { core::mem::zeroed() };
        wanted.grh.dgid = ffi::ibv_gid { raw: path.theirs };
        wanted.grh.flow_label = path.flow_label;
        wanted.grh.sgid_index = index;
        wanted.grh.hop_limit = path.hops.max(HOPS);
        wanted.grh.traffic_class = path.traffic_class;
        wanted.dlid = path.lid;
        wanted.sl = path.level;
        wanted.static_rate = path.rate;
        wanted.is_global = 1;
        wanted.port_num = path.port;
        let _uncancelled = gate::uncancelled();
        // SAFETY: the protection domain stays as long as this; the structure is valid.
        let raw = unsafe { (device.loaded.table.ibv_create_ah)(domain.pd(), &raw mut wanted) };
        if raw.is_null() {
            return Err(CmError::Os(gate::last_error()));
        }
        let domain = Arc::clone(domain);
        Ok(Self(Arc::new(Handle { device, domain, raw, mtu: path.mtu, pid: sys::pid() })))
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_ah {
        self.0.raw
    }

    /// Whether it can be used by a queue pair of this domain.
    pub(super) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.0.domain, domain)
    }

    /// Bytes that one packet carries on the way there.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.0.mtu
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.pid == sys::pid() {
            let _uncancelled = gate::uncancelled();
            // SAFETY: made by new(), and nothing names it any more.
            unsafe { (self.device.loaded.table.ibv_destroy_ah)(self.raw) };
        }
    }
}

/// Where the path's own end stands in the port's table. An address stands there once for each
/// version of RoCE; the second is the one that UDP carries, and that connections use.
fn own_index(device: &'static Device, path: &Path) -> Option<u8> {
    let mut found = None;
    for index in 0..MOST_GIDS {
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        let _uncancelled = gate::uncancelled();
        // SAFETY: the context is open, the place valid.
        let asked = unsafe {
            (device.loaded.table.ibv_query_gid)(device.context, path.port, index, &raw mut gid)
        };
        if asked != 0 {
            break;
        }
        // SAFETY: either field of the union is bytes.
        if unsafe { gid.raw } != path.ours {
            continue;
        }
        found = found.or(u8::try_from(index).ok());
        if is_version_2(device.name(), path.port, index) {
            return u8::try_from(index).ok();
        }
    }
    found
}

/// Whether the entry is of RoCE's second version, as the kernel's text says.
fn is_version_2(device: &str, port: u8, index: c_int) -> bool {
    use rustix::fs::{CWD, Mode, OFlags};
    let mut path = [0_u8; 160];
    let mut rest: &mut [u8] = &mut path;
    if write!(rest, "/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}\0")
        .is_err()
    {
        return false;
    }
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return false;
    };
    let mut text = [0_u8; 32];
    let n = rustix::io::read(&file, &mut text).unwrap_or(0);
    sys::discard(file);
    text.get(..n).is_some_and(|text| text.starts_with(b"RoCE v2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_packet_sizes() {
        assert_eq!([1, 3, 4, 5].map(bytes), [256, 1024, 2048, 4096]);
        assert_eq!([0, 9].map(bytes), [256, 4096], "what no device says");
    }
}
