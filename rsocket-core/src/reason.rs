//! Why a connection is on TCP ([`Reason`]), and which reason an error of the kernel's is.
//!
//! Pure, but for the log. Entry points: [`refused`], [`not_asked`].
#![forbid(unsafe_code)]

use crate::errno::Errno;

pub use rsocket_stats::reason::Reason;

/// The kernel has refused this; its error is said in the log, since the reason does not say it.
pub(crate) fn refused(what: &'static str) -> impl Fn(Errno) -> Reason {
    move |e| {
        crate::log_info!("{}: error {}", what, e.0);
        if e.0 == libc::EMFILE { Reason::FdLimit } else { Reason::ResourceError }
    }
}

/// The directory for meeting cannot be used: its error is said in the log.
pub(crate) fn not_there(e: Errno) -> Reason {
    crate::log_info!("the directory for meeting: error {}", e.0);
    if e.0 == libc::EMFILE { Reason::FdLimit } else { Reason::MeetRefused }
}

/// The kernel cannot be asked who has the other end: now, since there is no room for the question,
/// or ever.
pub(crate) fn not_asked(e: Errno) -> Reason {
    match e.0 {
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EINTR => {
            refused("sock_diag")(e)
        }
        _ => {
            crate::log_info!("sock_diag: error {}", e.0);
            Reason::NoNetlink
        }
    }
}
