//! The devices that this process has opened, and the one place to sleep on all queue pairs of a
//! device.
//!
//! Each process opens a device for itself, once, and keeps it open. The reason is that what hangs
//! on a context that was made before a fork belongs to both processes. It would outlive the process
//! that uses it. A process opens a device once more after it has changed its credentials, with
//! which the kernel compares those of the opener. librdmacm's own contexts serve for looking up
//! addresses only. Knows nothing of connections. Entry points: [`Device::of`],
//! [`Device::event_source`], [`open_anew`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::ffi::{self, Loaded};
use super::gate::{self, Inside};
use super::{CmError, refused};
use rsocket_host::failure::Failure;
use rsocket_host::sys;
use rsocket_wire::proto::control::Mode;

/// What a device can hold, as it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Work requests in one queue.
    pub(super) queue: u32,
    /// Completions in one completion queue.
    pub(super) completions: u32,
}

/// An open device of this process. Never closed.
pub struct Device {
    pub(super) loaded: &'static Loaded,
    device: *mut ffi::ibv_device,
    pub(super) context: *mut ffi::ibv_context,
    pub(super) limits: Limits,
    mode: Mode,
    /// The process that opened it.
    pid: u32,
    /// [`ERA`] at that time.
    era: u32,
    source: AtomicPtr<EventSource>,
    next: *mut Self,
}

// SAFETY: libibverbs says that its functions may be called from any thread; all else is written
// before the device is published, or atomic.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// All that were ever opened, the latest first. Changed inside the gate.
static DEVICES: AtomicPtr<Device> = AtomicPtr::new(core::ptr::null_mut());

/// How often this process was told to open its devices anew. Relaxed: the thread that says so gives
/// the other threads work after it.
static ERA: AtomicU32 = AtomicU32::new(0);

/// What is opened from here on is opened anew: this process has changed its credentials.
pub fn open_anew() {
    ERA.fetch_add(1, Ordering::Relaxed);
}

impl Device {
    /// The device that librdmacm has bound an identifier to.
    ///
    /// # Errors
    /// It cannot be opened.
    ///
    /// # Safety
    /// The context is alive, and one of librdmacm's.
    pub(super) unsafe fn of(
        verbs: *mut ffi::ibv_context,
        loaded: &'static Loaded,
        _inside: &Inside,
    ) -> Result<&'static Self, CmError> {
        // SAFETY: the caller's promise.
        let device = unsafe { (*verbs).device };
        let pid = sys::pid();
        // Acquire: pairs with the Release below, which another thread may have done.
        let mut at = DEVICES.load(Ordering::Acquire);
        // SAFETY: devices are never freed, and complete before they are published.
        while let Some(known) = unsafe { at.as_ref() } {
            if known.device == device
                && known.pid == pid
                && known.era == ERA.load(Ordering::Relaxed)
            {
                return Ok(known);
            }
            at = known.next;
        }
        // SAFETY: a context's device lives as long as the context.
        unsafe { Self::open(device, pid, loaded) }
    }

    /// # Safety
    /// The device is alive; only inside the gate.
    unsafe fn open(
        device: *mut ffi::ibv_device,
        pid: u32,
        loaded: &'static Loaded,
    ) -> Result<&'static Self, CmError> {
        let f = &loaded.table;
        // SAFETY: the caller's promise. The context keeps the device alive.
        let context = unsafe { (f.ibv_open_device)(device) };
        if context.is_null() {
            return Err(refused(gate::last_error()));
        }
        // SAFETY: the context was opened just now, and no other thread has it.
        unsafe {
            gate::keep(&mut (*context).cmd_fd, true).map_err(CmError::Os)?;
            gate::keep(&mut (*context).async_fd, true).map_err(CmError::Os)?;
        }
        let mut attributes = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
        // SAFETY: the context is open; the structure is as large as the function's.
        let asked = unsafe { (f.ibv_query_device)(context, attributes.as_mut_ptr()) };
        if asked != 0 {
            return Err(CmError::Os(gate::last_error()));
        }
        // SAFETY: plain numbers, zeroed before they were filled in.
        let attributes = unsafe { attributes.assume_init() };
        let count = |value: c_int| u32::try_from(value).unwrap_or(0).max(1);
        // SAFETY: the device is alive.
        let transport = unsafe { (*device).transport_type };
        let iwarp = transport == ffi::ibv_transport_type::IBV_TRANSPORT_IWARP;
        let opened = Box::into_raw(Box::new(Self {
            loaded,
            device,
            context,
            limits: Limits {
                queue: count(attributes.max_qp_wr),
                completions: count(attributes.max_cqe),
            },
            mode: if iwarp { Mode::Message } else { Mode::Immediate },
            pid,
            era: ERA.load(Ordering::Relaxed),
            source: AtomicPtr::new(core::ptr::null_mut()),
            next: DEVICES.load(Ordering::Relaxed),
        }));
        // Release: pairs with the Acquire in `of`.
        DEVICES.store(opened, Ordering::Release);
        // SAFETY: made above, never freed.
        Ok(unsafe { &*opened })
    }

    /// How words travel on this device: iWARP knows no immediate data.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The kernel's name of the device, such as `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        // SAFETY: the device is alive while it is open, and its name does not change.
        let name = unsafe { &*(&raw const (*self.device).name).cast::<[u8; 64]>() };
        let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        name.get(..len).and_then(|name| core::str::from_utf8(name).ok()).unwrap_or("?")
    }

    /// The one place to sleep on all pairs of this device that were made for it
    /// ([`PairParams::events`](super::PairParams::events)). Made with the first call.
    ///
    /// # Errors
    /// No descriptors, or the device is gone.
    pub fn event_source(&'static self) -> Result<&'static EventSource, CmError> {
        let _inside = gate::enter()?;
        // Acquire: pairs with the Release below.
        let known = self.source.load(Ordering::Acquire);
        // SAFETY: sources are never freed.
        if let Some(source) = unsafe { known.as_ref() } {
            return Ok(source);
        }
        let made = Box::into_raw(Box::new(EventSource { channel: Channel::open(self)? }));
        // Release: pairs with the Acquire above.
        self.source.store(made, Ordering::Release);
        // SAFETY: made above, never freed.
        Ok(unsafe { &*made })
    }
}

/// A completion channel.
pub(super) struct Channel {
    device: &'static Device,
    raw: *mut ffi::ibv_comp_channel,
    /// The process whose it is.
    pid: u32,
}

// SAFETY: libibverbs' functions on a channel may be called from any thread.
unsafe impl Sync for Channel {}
// SAFETY: as above.
unsafe impl Send for Channel {}

impl Channel {
    /// A new one, unless events are to come from a source of the same device.
    pub(super) fn unless_shared(
        source: Option<&EventSource>,
        device: &'static Device,
    ) -> Result<Option<Self>, CmError> {
        match source {
            None => Ok(Some(Self::open(device)?)),
            Some(source) if core::ptr::eq(source.device(), device) => Ok(None),
            Some(_) => Err(CmError::Os(Failure::Invalid)),
        }
    }

    /// A new one, non-blocking.
    pub(super) fn open(device: &'static Device) -> Result<Self, CmError> {
        let f = &device.loaded.table;
        // SAFETY: the context is open, as devices stay.
        let raw = unsafe { (f.ibv_create_comp_channel)(device.context) };
        if raw.is_null() {
            return Err(CmError::Os(gate::last_error()));
        }
        let channel = Self { device, raw, pid: sys::pid() };
        // SAFETY: made above, and no other thread has it.
        let field = unsafe { &mut (*raw).fd };
        gate::keep(field, true).map_err(CmError::Os)?;
        // Its own flags: the kernel made it for this channel.
        rustix::fs::fcntl_setfl(sys::borrow(*field), rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| CmError::Os(e.into()))?;
        Ok(channel)
    }

    pub(super) const fn raw(&self) -> *mut ffi::ibv_comp_channel {
        self.raw
    }

    pub(super) fn fd(&self) -> c_int {
        // SAFETY: the channel is alive, and its number does not change after `open`.
        unsafe { (*self.raw).fd }
    }

    /// The next event: its completion queue, which waits for it to be acknowledged, and that
    /// queue's key.
    pub(super) fn next(&self) -> Option<(*mut ffi::ibv_cq, u64)> {
        let (mut cq, mut key) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the channel is alive, the pointers are valid.
        let got = unsafe {
            (self.device.loaded.table.ibv_get_cq_event)(self.raw, &raw mut cq, &raw mut key)
        };
        (got == 0).then_some((cq, key as u64))
    }
}

impl Channel {
    /// Leaves it to the device for ever.
    pub(super) const fn leak(&mut self) {
        // No process has this id.
        self.pid = 0;
    }
}

impl Drop for Channel {
    /// All its completion queues are gone.
    fn drop(&mut self) {
        // A child of a fork leaves it alone; its descriptor was closed there (gate).
        if self.pid != sys::pid() {
            return;
        }
        let _uncancelled = gate::uncancelled();
        // SAFETY: no thread has a use for it any more. If it is private, let_go closes it and the
        // library closes -1; else the library closes it.
        unsafe {
            gate::let_go(&mut (*self.raw).fd);
            (self.device.loaded.table.ibv_destroy_comp_channel)(self.raw);
        }
    }
}

/// Where the events of many pairs come together. One for each device of a process, for ever.
pub struct EventSource {
    channel: Channel,
}

impl EventSource {
    /// Readable when there is an event. Non-blocking, private, not to be closed.
    #[must_use]
    pub fn fd(&self) -> c_int {
        self.channel.fd()
    }

    /// The key of the next pair that has an event; `None` when there is none left. Never blocks. A
    /// pair that is being dropped by another thread may still be named.
    pub fn next(&self) -> Option<u64> {
        let _uncancelled = gate::uncancelled();
        let (cq, key) = self.channel.next()?;
        // At once and not in batches: the thread that drops the pair waits for it, and can free the
        // queue only then. SAFETY: the queue is alive until its event is acknowledged, which
        // happens here.
        unsafe { (self.channel.device.loaded.table.ibv_ack_cq_events)(cq, 1) };
        Some(key)
    }

    pub(super) const fn device(&self) -> &'static Device {
        self.channel.device
    }

    pub(super) const fn channel(&self) -> &Channel {
        &self.channel
    }
}

/// Moves the descriptors of a context of librdmacm's to private numbers, unless the program uses it
/// too.
///
/// # Safety
/// The context is alive or null; only inside the gate.
pub(super) unsafe fn hide(verbs: *mut ffi::ibv_context, loaded: &'static Loaded, _inside: &Inside) {
    // SAFETY: the caller's promise. The fields are used inside the gate only.
    if let Some(verbs) = unsafe { verbs.as_mut() }
        && !loaded.shared
    {
        // Without descriptors to spare they stay where they are.
        let _ = gate::keep(&mut verbs.cmd_fd, false);
        let _ = gate::keep(&mut verbs.async_fd, false);
    }
}
