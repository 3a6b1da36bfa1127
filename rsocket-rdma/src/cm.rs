//! Connections before and after they carry bytes: the event channel and the identifiers of
//! librdmacm.
//!
//! Knows nothing of queue pairs but that an identifier has one. Entry points:
//! [`EventChannel::open`], [`CmId::new`], and [`Kind::Request`] for connections that others make.
//!
//! An identifier lives until both its [`CmId`] and its pair are dropped, and the channel until all
//! its identifiers are.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use super::address::Raw;
use super::contexts::{Device, hide};
use super::event::{Event, Kind};
use super::ffi::{self, Library, rdma_cm_event_type as event_type};
use super::gate::{self, Inside};
use super::identifier::{Channel, CmId, Identifier};
use super::private::{Parameters, Private};
use super::{CmError, PairParams, RdmaPair, SockAddr, probe, refused};
use rsocket_host::failure::Failure;
use rsocket_host::sys;

/// How often the transport sends again before it gives up. Not 7, the most there is: soft-RoCE
/// takes it for ever, and would never notice that a host has gone.
const RETRIES: u8 = 6;

/// How often it sends again when the peer has no receive: 7 is for ever, which control messages
/// need (`wire-protocol §2.5`).
const RNR_RETRIES: u8 = 7;

/// The code of 0.64 ms: how long a peer waits that found no receive here. The kernel sets 655 ms.
const MIN_RNR_TIMER: u8 = 12;

/// Where the events of many identifiers come together.
pub struct EventChannel {
    channel: Arc<Channel>,
}

impl EventChannel {
    /// Opens one, non-blocking. Loads the libraries with the first call.
    ///
    /// # Errors
    /// Why there is no RDMA here, or there are no descriptors.
    pub fn open() -> Result<Self, CmError> {
        probe()?;
        let inside = gate::enter()?;
        let loaded = ffi::library()?;
        // SAFETY: takes nothing.
        let raw = unsafe { (loaded.table.rdma_create_event_channel)() };
        if raw.is_null() {
            return Err(refused(gate::last_error()));
        }
        // SAFETY: made above, and no other thread has it.
        let field = unsafe { &mut (*raw).fd };
        let private = gate::keep(field, true).and_then(|()| {
            rustix::fs::fcntl_setfl(sys::borrow(*field), rustix::fs::OFlags::NONBLOCK)
                .map_err(Failure::from)
        });
        drop(inside);
        // It closes itself if it is given up here.
        let channel = Arc::new(Channel { raw, loaded, pid: sys::pid() });
        private.map_err(CmError::Os)?;
        Ok(Self { channel })
    }

    /// Readable when there is an event. Private, not to be closed.
    #[must_use]
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel is alive, and its number does not change after `open`.
        unsafe { (*self.channel.raw).fd }
    }

    /// The next event; `None` when there is none. Never waits for a peer; an answer or a request
    /// makes a few system calls.
    ///
    /// # Errors
    /// The channel does not work any more (or this is a signal handler: [`CmError`]).
    pub fn next(&self) -> Result<Option<Event>, CmError> {
        if self.channel.pid != sys::pid() {
            return Err(CmError::Os(Failure::BadDescriptor));
        }
        let inside = gate::enter()?;
        let f = &self.channel.loaded.table;
        let mut event = core::ptr::null_mut();
        // SAFETY: the channel is alive, the pointer valid.
        if unsafe { (f.rdma_get_cm_event)(self.channel.raw, &raw mut event) } != 0 {
            return match gate::last_error() {
                Failure::Blocked | Failure::Interrupted => Ok(None),
                e => Err(CmError::Os(e)),
            };
        }
        // SAFETY: the event is valid until it is acknowledged, once, right after this.
        unsafe {
            let copied = self.copy(event, &inside);
            (f.rdma_ack_cm_event)(event);
            Ok(Some(copied))
        }
    }

    /// # Safety
    /// The event is valid and not acknowledged yet.
    unsafe fn copy(&self, event: *const ffi::rdma_cm_event, inside: &Inside) -> Event {
        // SAFETY: the caller's promise. An identifier outlives its unacknowledged events. For what
        // is no datagram, `conn` is the field of the union that counts; it has only numbers and a
        // pointer.
        let (id, listener, kind, status, conn) = unsafe {
            ((*event).id, (*event).listen_id, (*event).event, (*event).status, (*event).param.conn)
        };
        // SAFETY: as above. Null for events that have no private data.
        let private =
            || unsafe { Private::copied(conn.private_data.cast(), conn.private_data_len) };
        // SAFETY: as above; the gate is held.
        unsafe { hide((*id).verbs, self.channel.loaded, inside) };
        let owner = if kind == event_type::RDMA_CM_EVENT_CONNECT_REQUEST { listener } else { id };
        // SAFETY: as above.
        let key = unsafe { (*owner).context as u64 };
        let kind = match kind {
            event_type::RDMA_CM_EVENT_ADDR_RESOLVED => Kind::AddressResolved,
            event_type::RDMA_CM_EVENT_ROUTE_RESOLVED => Kind::RouteResolved,
            event_type::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let parameters = Parameters {
                    responder_resources: conn.responder_resources,
                    initiator_depth: conn.initiator_depth,
                    flow_control: conn.flow_control,
                    rnr_retry_count: conn.rnr_retry_count,
                };
                let id = CmId { id: Arc::new(Identifier::of(id, &self.channel, parameters)) };
                Kind::Request { id, private: private(), parameters }
            }
            event_type::RDMA_CM_EVENT_ESTABLISHED | event_type::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                // SAFETY: the identifier is alive, the gate is held.
                unsafe { shorten_waits(&self.channel.loaded.table, id) };
                Kind::Established { private: private() }
            }
            event_type::RDMA_CM_EVENT_REJECTED => Kind::Rejected { status, private: private() },
            event_type::RDMA_CM_EVENT_ADDR_ERROR
            | event_type::RDMA_CM_EVENT_ROUTE_ERROR
            | event_type::RDMA_CM_EVENT_CONNECT_ERROR
            | event_type::RDMA_CM_EVENT_UNREACHABLE => Kind::Failed {
                why: match status {
                    0 => Failure::Unreachable,
                    _ => Failure::from_code(status.saturating_abs()),
                },
            },
            event_type::RDMA_CM_EVENT_DISCONNECTED => Kind::Disconnected,
            event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => Kind::DeviceRemoved,
            _ => Kind::Other,
        };
        Event { id: key, kind }
    }
}

/// A peer that finds no receive here is told to try again soon. Only what has such answers takes
/// it.
///
/// # Safety
/// The identifier is alive and the gate held.
unsafe fn shorten_waits(f: &Library, id: *mut ffi::rdma_cm_id) {
    // SAFETY: all zeroes is a value of this structure of numbers.
    let mut attributes: ffi::ibv_qp_attr = unsafe { core::mem::zeroed() };
    attributes.min_rnr_timer = MIN_RNR_TIMER;
    // SAFETY: the caller's promise; a queue pair is destroyed inside the gate, and then not named
    // here.
    unsafe {
        let qp = (*id).qp;
        if !qp.is_null()
            && (*(*(*qp).context).device).transport_type
                == ffi::ibv_transport_type::IBV_TRANSPORT_IB
        {
            (f.ibv_modify_qp)(qp, &raw mut attributes, ffi::QP_MIN_RNR_TIMER);
        }
    }
}

impl CmId {
    /// A new one; its events carry the key.
    ///
    /// # Errors
    /// No memory, or the channel does not work any more.
    pub fn new(channel: &EventChannel, key: u64) -> Result<Self, CmError> {
        Self::in_space(channel, key, ffi::PORT_SPACE)
    }

    /// A new one for datagrams: to be bound to an address for a [`UdPair`](super::UdPair), or to
    /// look up a [`Path`](super::Path).
    ///
    /// # Errors
    /// As [`CmId::new`].
    pub fn for_datagrams(channel: &EventChannel, key: u64) -> Result<Self, CmError> {
        Self::in_space(channel, key, ffi::DATAGRAM_PORT_SPACE)
    }

    fn in_space(channel: &EventChannel, key: u64, space: ffi::PortSpace) -> Result<Self, CmError> {
        if channel.channel.pid != sys::pid() {
            return Err(CmError::Os(Failure::BadDescriptor));
        }
        let _inside = gate::enter()?;
        let mut raw = core::ptr::null_mut();
        let f = &channel.channel.loaded.table;
        // SAFETY: the channel is alive and outlives the identifier; the pointer is valid; no code
        // uses the key as a pointer.
        let made = unsafe {
            (f.rdma_create_id)(channel.channel.raw, &raw mut raw, key as *mut c_void, space)
        };
        if made != 0 {
            return Err(refused(gate::last_error()));
        }
        Ok(Self { id: Arc::new(Identifier::of(raw, &channel.channel, Parameters::default())) })
    }

    /// Changes the key of events to come.
    ///
    /// # Errors
    /// This is a signal handler or a child of a fork.
    pub fn set_key(&self, key: u64) -> Result<(), CmError> {
        self.id.call(|_, id| {
            // SAFETY: the identifier is alive, and the gate held.
            unsafe { (*id).context = key as *mut c_void };
            0
        })
    }

    fn set_option(&self, name: c_int, value: bool) -> Result<(), CmError> {
        let mut value = c_int::from(value);
        self.id.call(|f, id| {
            // SAFETY: the identifier is alive; the option is an int.
            unsafe {
                (f.rdma_set_option)(
                    id,
                    ffi::OPTION_ID,
                    name,
                    (&raw mut value).cast(),
                    size_of::<c_int>(),
                )
            }
        })
    }

    /// `SO_REUSEADDR`, before binding.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_reuse_address(&self, on: bool) -> Result<(), CmError> {
        self.set_option(ffi::OPTION_ID_REUSEADDR, on)
    }

    /// `IPV6_V6ONLY`, before binding.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn ipv6_only(&self, on: bool) -> Result<(), CmError> {
        self.set_option(ffi::OPTION_ID_AFONLY, on)
    }

    /// The type of service of the connection's packets, before its address is resolved.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_type_of_service(&self, tos: u8) -> Result<(), CmError> {
        let mut tos = tos;
        self.id.call(|f, id| {
            // SAFETY: the identifier is alive; the option is one byte, and the kernel insists on
            // that.
            unsafe {
                (f.rdma_set_option)(
                    id,
                    ffi::OPTION_ID,
                    ffi::OPTION_ID_TOS,
                    (&raw mut tos).cast(),
                    size_of::<u8>(),
                )
            }
        })
    }

    /// Binds to an address of this host; port 0 takes a free one.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, and `ENODEV` for an address that no RDMA device has.
    pub fn bind(&self, address: &SockAddr) -> Result<(), CmError> {
        let mut raw = Raw::from(address);
        self.id.call(|f, id| {
            // SAFETY: the identifier is alive, the address valid.
            unsafe { (f.rdma_bind_addr)(id, raw.pointer()) }
        })
    }

    /// Listens; requests are events.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn listen(&self, backlog: i32) -> Result<(), CmError> {
        // SAFETY: the identifier is alive.
        self.id.call(|f, id| unsafe { (f.rdma_listen)(id, backlog) })
    }

    /// Begins to resolve the peer's address; the answer is an event.
    ///
    /// # Errors
    /// What can be said at once: no route, no device on the way there.
    pub fn resolve_address(
        &self,
        source: Option<&SockAddr>,
        to: &SockAddr,
        timeout_ms: i32,
    ) -> Result<(), CmError> {
        let mut source = source.map(Raw::from);
        let mut to = Raw::from(to);
        let from = source.as_mut().map_or(core::ptr::null_mut(), Raw::pointer);
        // SAFETY: the identifier is alive, the addresses valid.
        self.id.call(|f, id| unsafe { (f.rdma_resolve_addr)(id, from, to.pointer(), timeout_ms) })
    }

    /// Begins to resolve the route; the answer is an event.
    ///
    /// # Errors
    /// What can be said at once.
    pub fn resolve_route(&self, timeout_ms: i32) -> Result<(), CmError> {
        // SAFETY: the identifier is alive.
        self.id.call(|f, id| unsafe { (f.rdma_resolve_route)(id, timeout_ms) })
    }

    /// Makes the queue pair, after the route is resolved or for a request, once. Registers memory,
    /// so it takes the kernel some ten to hundred microseconds.
    ///
    /// # Errors
    /// [`Missing::Memlock`](super::Missing::Memlock), or what the device says.
    pub fn create_pair(&self, params: &PairParams) -> Result<RdmaPair, CmError> {
        RdmaPair::new(Arc::clone(&self.id), params)
    }

    /// The device that it is bound to; `None` before its address is resolved, and on a wildcard
    /// address.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn device(&self) -> Result<Option<&'static Device>, CmError> {
        self.id.device()
    }

    fn parameters(private: &[u8], granted: Parameters) -> Result<ffi::rdma_conn_param, CmError> {
        let len = u8::try_from(private.len()).map_err(|_| CmError::Os(Failure::Invalid))?;
        Ok(ffi::rdma_conn_param {
            private_data: private.as_ptr().cast(),
            private_data_len: len,
            responder_resources: granted.responder_resources,
            initiator_depth: granted.initiator_depth,
            flow_control: granted.flow_control,
            retry_count: RETRIES,
            rnr_retry_count: granted.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        })
    }

    /// Asks the peer, once the pair is made and its receives are posted. The answer is an event.
    ///
    /// # Errors
    /// What can be said at once. `EINVAL` when there is too much private data (56 bytes over
    /// InfiniBand).
    pub fn connect(&self, private: &[u8]) -> Result<(), CmError> {
        let iwarp =
            self.device()?.is_some_and(|d| d.mode() == rsocket_wire::proto::control::Mode::Message);
        // The iWARP stack reads from the peer once while connecting.
        let asked = Parameters {
            responder_resources: 0,
            initiator_depth: u8::from(iwarp),
            flow_control: 1,
            rnr_retry_count: RNR_RETRIES,
        };
        let mut parameters = Self::parameters(private, asked)?;
        // SAFETY: the identifier is alive, the parameters valid and their bytes the caller's.
        self.id.call(|f, id| unsafe { (f.rdma_connect)(id, &raw mut parameters) })
    }

    /// Grants a request, once the pair is made and its receives are posted. The peer may send
    /// before the event says that the connection stands.
    ///
    /// # Errors
    /// What the kernel says: the peer may have given up.
    pub fn accept(&self, private: &[u8]) -> Result<(), CmError> {
        let mut parameters = Self::parameters(private, self.id.parameters)?;
        // SAFETY: as in `connect`.
        self.id.call(|f, id| unsafe { (f.rdma_accept)(id, &raw mut parameters) })
    }

    /// Refuses a request.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn reject(&self, private: &[u8]) -> Result<(), CmError> {
        let len = u8::try_from(private.len()).map_err(|_| CmError::Os(Failure::Invalid))?;
        // SAFETY: the identifier is alive, the bytes the caller's.
        self.id.call(|f, id| unsafe { (f.rdma_reject)(id, private.as_ptr().cast(), len) })
    }

    /// Ends the connection at once, whatever is under way: the pair's posts fail. To end it after
    /// them, [`close`](rsocket_device::QueuePair::close) the pair.
    ///
    /// # Errors
    /// It was not connected.
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.id.disconnect()
    }

    /// Our end's address; `None` before it is bound.
    #[must_use]
    pub fn local_address(&self) -> Option<SockAddr> {
        self.address(|id| {
            // SAFETY: the identifier is alive, and all of the union's fields are numbers.
            unsafe { (&raw const (*id).route.addr.src_addr_union).cast() }
        })
    }

    /// The other end's address; `None` before it is known.
    #[must_use]
    pub fn peer_address(&self) -> Option<SockAddr> {
        self.address(|id| {
            // SAFETY: as above.
            unsafe { (&raw const (*id).route.addr.dst_addr_union).cast() }
        })
    }

    fn address(
        &self,
        place: impl FnOnce(*mut ffi::rdma_cm_id) -> *const libc::sockaddr_storage,
    ) -> Option<SockAddr> {
        let mut found = None;
        let called = self.id.call(|_, id| {
            // SAFETY: the place is a sockaddr_storage inside the living identifier.
            found = unsafe { Raw { storage: place(id).read() } }.get();
            0
        });
        called.ok().and(found)
    }
}

impl Identifier {
    pub(super) fn disconnect(&self) -> Result<(), CmError> {
        // SAFETY: the identifier is alive. librdmacm moves the queue pair to its end first.
        self.call(|f, id| unsafe { if (*id).qp.is_null() { 0 } else { (f.rdma_disconnect)(id) } })
    }
}

/// For tests: what the child of a fork has of its parent's. Nothing happens to it, whatever is
/// tried.
#[cfg(feature = "testing")]
#[allow(clippy::expect_used, missing_docs)]
impl EventChannel {
    #[must_use]
    pub fn of_a_parent() -> Self {
        use std::os::fd::IntoRawFd;
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let fd = rustix::event::eventfd(0, flags).expect("a descriptor").into_raw_fd();
        let raw = Box::leak(Box::new(ffi::rdma_event_channel { fd }));
        let loaded = ffi::library().expect("the libraries with whose headers this was built");
        Self { channel: Arc::new(Channel { raw, loaded, pid: 0 }) }
    }
}

#[cfg(feature = "testing")]
#[allow(missing_docs)]
impl CmId {
    #[must_use]
    pub fn of_a_parent() -> Self {
        let channel = EventChannel::of_a_parent().channel;
        Self {
            id: Arc::new(Identifier::of(core::ptr::null_mut(), &channel, Parameters::default())),
        }
    }
}
