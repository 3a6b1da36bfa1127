//! The names of libibverbs and librdmacm: the only module that has heard of the crate `rdma-sys`.
//!
//! Types and constants come from that crate, nothing else. One call of an out-of-line function of
//! its would make the library depend on libibverbs at load time. It would then kill every program
//! on a host without libibverbs. Functions come from a table of pointers ([`Library`]) that is
//! filled by `dlopen` and `dlvsym` at the first use, from no constructor. The four inline functions
//! that we need ask the provider's own table, which theirs would `unwrap`. Traps of that crate:
//! `ibv_query_port` is the old one with a shorter struct. `ibv_event_type` is a Rust enum, so that
//! a value newer than it is undefined behaviour.
//!
//! Entry point: [`library`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering};

use rdma_sys::{
    ibv_access_flags, ibv_qp_attr_mask, ibv_qp_type, ibv_send_flags, ibv_wc_flags, rdma_port_space,
};
pub(super) use rdma_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_transport_type, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, ud_t,
};

use super::{Missing, doorbell};
use rsocket_host::failure::Failure;

/// What an identifier of the connection manager is for.
pub(super) type PortSpace = rdma_port_space::Type;
/// Connections, as opposed to datagrams.
pub(super) const PORT_SPACE: rdma_port_space::Type = rdma_port_space::RDMA_PS_TCP;
/// Datagrams: for binding and for looking up paths (`wire-protocol §1`).
pub(super) const DATAGRAM_PORT_SPACE: rdma_port_space::Type = rdma_port_space::RDMA_PS_UDP;
/// Unreliable datagrams.
pub(super) const UNRELIABLE: ibv_qp_type::Type = ibv_qp_type::IBV_QPT_UD;
/// A reliable connection.
pub(super) const RELIABLE: ibv_qp_type::Type = ibv_qp_type::IBV_QPT_RC;
/// What our memory is registered for.
pub(super) const LOCAL_WRITE: c_int = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
/// The same, and the peer may write it.
pub(super) const REMOTE_WRITE: c_int =
    LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 as c_int;
/// The post's completion is reported.
pub(super) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
/// The post's bytes are taken at once.
pub(super) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
/// The completion has immediate data.
pub(super) const WITH_IMMEDIATE: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0;
/// `ibv_modify_qp` is to change the state.
pub(super) const QP_STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
/// `ibv_modify_qp` is to change how long a sender without a receive waits.
pub(super) const QP_MIN_RNR_TIMER: c_int = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as c_int;
/// `ibv_query_qp` is to say the path's largest packet.
pub(super) const QP_PATH_MTU: c_int = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0 as c_int;
/// `rdma_set_option`: options of an identifier. These are enums without names in `rdma_cma.h`.
pub(super) const OPTION_ID: c_int = 0;
/// One byte: the type of service.
pub(super) const OPTION_ID_TOS: c_int = 0;
/// An `int`: 1 to bind to an address that is in use.
pub(super) const OPTION_ID_REUSEADDR: c_int = 1;
/// An `int`: 1 to listen on IPv6 only.
pub(super) const OPTION_ID_AFONLY: c_int = 2;

/// Fills `$name` with the functions listed: which library, which version of the symbol, which type.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($file:ident $version:literal $symbol:ident($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name {
            $(pub(super) $symbol: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $name {
            fn look_up(handles: &Handles) -> Result<Self, Missing> {
                Ok(Self {
                    $($symbol: {
                        let found = handles.find(
                            Which::$file,
                            c_str(concat!(stringify!($symbol), "\0")),
                            c_str(concat!($version, "\0")),
                        )?;
                        // SAFETY: the symbol of this name and version is a function of this type.
                        // The C header says so, and the versions of a symbol never change their
                        // meaning.
                        unsafe {
                            core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found)
                        }
                    },)*
                })
            }
        }
    };
}

/// A literal of the table, which always ends with its only NUL.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

#[derive(Clone, Copy)]
enum Which {
    Verbs,
    Cm,
}

table! {
    /// The functions of libibverbs and librdmacm that we call. There is one table in a process, and
    /// it is never freed: the libraries stay loaded.
    Library {
        Verbs "IBVERBS_1.1" ibv_fork_init() -> c_int;
        Verbs "IBVERBS_1.1" ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        Verbs "IBVERBS_1.1" ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        Verbs "IBVERBS_1.1" ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        Verbs "IBVERBS_1.1" ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        Verbs "IBVERBS_1.1" ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        Verbs "IBVERBS_1.1" ibv_dereg_mr(*mut ibv_mr) -> c_int;
        Verbs "IBVERBS_1.0" ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        Verbs "IBVERBS_1.0" ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        Verbs "IBVERBS_1.1" ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        Verbs "IBVERBS_1.1" ibv_destroy_cq(*mut ibv_cq) -> c_int;
        Verbs "IBVERBS_1.1" ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        Verbs "IBVERBS_1.1" ibv_ack_cq_events(*mut ibv_cq, u32);
        Verbs "IBVERBS_1.1" ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        Verbs "IBVERBS_1.1" ibv_destroy_ah(*mut ibv_ah) -> c_int;
        Verbs "IBVERBS_1.1" ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        Verbs "IBVERBS_1.1" ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        Verbs "IBVERBS_1.1" ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        Cm "RDMACM_1.0" rdma_create_event_channel() -> *mut rdma_event_channel;
        Cm "RDMACM_1.0" rdma_destroy_event_channel(*mut rdma_event_channel);
        Cm "RDMACM_1.0" rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        Cm "RDMACM_1.0" rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        Cm "RDMACM_1.0" rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space::Type) -> c_int;
        Cm "RDMACM_1.0" rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        Cm "RDMACM_1.0" rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        Cm "RDMACM_1.0" rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        Cm "RDMACM_1.0" rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        Cm "RDMACM_1.0" rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        Cm "RDMACM_1.0" rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        Cm "RDMACM_1.0" rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        Cm "RDMACM_1.0" rdma_destroy_qp(*mut rdma_cm_id);
        Cm "RDMACM_1.0" rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        Cm "RDMACM_1.0" rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        Cm "RDMACM_1.0" rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        Cm "RDMACM_1.0" rdma_disconnect(*mut rdma_cm_id) -> c_int;
    }
}

/// The two libraries, loaded.
struct Handles {
    verbs: *mut c_void,
    cm: *mut c_void,
}

const VERBS_FILE: &CStr = c"libibverbs.so.1";
const CM_FILE: &CStr = c"librdmacm.so.1";

fn load(file: &'static CStr) -> Result<*mut c_void, Missing> {
    // SAFETY: the name is a C string. The library's constructors run here. They are those of
    // rdma-core, which start no thread and call nothing of ours but hooks on descriptors that are
    // not ours.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(Missing::Library(file)) } else { Ok(handle) }
}

/// Whether the program itself (or a library of its) uses librdmacm.
fn program_uses_it() -> bool {
    // SAFETY: the name is a C string; with this flag nothing is loaded. The reference that it may
    // take is kept, as load's is.
    unsafe { !libc::dlopen(CM_FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD).is_null() }
}

impl Handles {
    fn find(
        &self,
        which: Which,
        name: &'static CStr,
        version: &'static CStr,
    ) -> Result<*mut c_void, Missing> {
        let handle = match which {
            Which::Verbs => self.verbs,
            Which::Cm => self.cm,
        };
        // SAFETY: the handle is an open library's, the names are C strings.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
        if found.is_null() { Err(Missing::Symbol(name)) } else { Ok(found) }
    }
}

/// The table, and what else is known of the libraries.
pub(super) struct Loaded {
    pub(super) table: Library,
    /// librdmacm was here before us, so its device contexts are not ours alone.
    pub(super) shared: bool,
}

static LOADED: AtomicPtr<Loaded> = AtomicPtr::new(core::ptr::null_mut());

/// The functions; loads the libraries with the first call. May be called by several threads at
/// once, not by a constructor (it takes the loader's lock) and not by a signal handler.
///
/// # Errors
/// What is missing. That is asked anew each time, since packages come and go.
pub(super) fn library() -> Result<&'static Loaded, Missing> {
    // Acquire: pairs with the Release of the thread that published the table.
    let known = LOADED.load(Ordering::Acquire);
    // SAFETY: published tables are never freed.
    if let Some(loaded) = unsafe { known.as_ref() } { Ok(loaded) } else { first() }
}

#[cold]
fn first() -> Result<&'static Loaded, Missing> {
    let shared = program_uses_it();
    let handles = Handles { verbs: load(VERBS_FILE)?, cm: load(CM_FILE)? };
    let table = Library::look_up(&handles)?;
    // SAFETY: takes nothing. It asks the kernel whether pinned pages are copied at a fork, and only
    // if they are not prepares to mark them. That it may be too late for it (EINVAL) does not
    // matter to us, since we mark our own memory.
    unsafe { (table.ibv_fork_init)() };
    let mine = Box::into_raw(Box::new(Loaded { table, shared }));
    // Release: pairs with the Acquire above. Acquire on failure: the winner's table is used.
    match LOADED.compare_exchange(core::ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire)
    {
        // SAFETY: it was made above and is never freed.
        Ok(_) => Ok(unsafe { &*mine }),
        Err(winner) => {
            // SAFETY: ours was not published, so no other thread has it; the winner's is never
            // freed.
            unsafe {
                drop(Box::from_raw(mine));
                Ok(&*winner)
            }
        }
    }
}

/// Why a chain was not posted, and whether some of it was.
pub(super) struct NotPosted {
    pub(super) why: Failure,
    pub(super) torn: bool,
}

/// Posts a chain of sends.
///
/// # Safety
/// The queue pair is alive; the chain and what it points to are valid.
pub(super) unsafe fn post_send(qp: *mut ibv_qp, chain: *mut ibv_send_wr) -> Result<(), NotPosted> {
    let mut bad = core::ptr::null_mut();
    // SAFETY: the caller's promises; a queue pair has its context and that has its provider's
    // table.
    let done = unsafe { (*(*qp).context).ops.post_send.map(|f| f(qp, chain, &raw mut bad)) };
    match done {
        Some(0) => Ok(()),
        // All of it is in the queue, and the kernel was not to hear of it from these credentials.
        Some(e) if bad.is_null() && Failure::from_code(e) == Failure::Denied => {
            // SAFETY: as above.
            let (file, handle) = unsafe { ((*(*qp).context).cmd_fd, (*qp).handle) };
            doorbell::ring(file, handle).map_err(|why| NotPosted { why, torn: true })
        }
        Some(e) => {
            Err(NotPosted { why: Failure::from_code(e.saturating_abs()), torn: bad != chain })
        }
        None => Err(NotPosted { why: Failure::Unsupported, torn: false }),
    }
}

/// Posts a chain of receives.
///
/// # Safety
/// As for [`post_send`].
pub(super) unsafe fn post_receive(qp: *mut ibv_qp, chain: *mut ibv_recv_wr) -> Result<(), Failure> {
    let mut bad = core::ptr::null_mut();
    // SAFETY: as in post_send.
    let done = unsafe { (*(*qp).context).ops.post_recv.map(|f| f(qp, chain, &raw mut bad)) };
    match done {
        Some(0) => Ok(()),
        Some(e) => Err(Failure::from_code(e.saturating_abs())),
        None => Err(Failure::Unsupported),
    }
}

/// Takes completions: those that there were, or that the device failed. Fewer than there is room
/// for: the queue was emptied (`ibv_poll_cq(3)`).
///
/// # Safety
/// The completion queue is alive.
pub(super) unsafe fn poll(
    cq: *mut ibv_cq,
    into: &mut [MaybeUninit<ibv_wc>],
) -> Result<&[ibv_wc], ()> {
    let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
    let at = into.as_mut_ptr().cast::<ibv_wc>();
    // SAFETY: the caller's promise.
    let count = unsafe { (*(*cq).context).ops.poll_cq.map_or(-1, |f| f(cq, room, at)) };
    let count = usize::try_from(count).map_err(|_| ())?.min(into.len());
    // SAFETY: the device has written so many, from the first on.
    Ok(unsafe { core::slice::from_raw_parts(at, count) })
}

/// Asks for an event with the next completion.
///
/// # Safety
/// The completion queue is alive.
pub(super) unsafe fn request_notify(cq: *mut ibv_cq) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(f) = (*(*cq).context).ops.req_notify_cq {
            f(cq, 0);
        }
    }
}
