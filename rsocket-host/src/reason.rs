//! Why a connection is on TCP ([`Reason`]), and which reason an error of the kernel's is.
//!
//! Pure, but for the log. Entry points: [`refused`], [`not_asked`].
#![forbid(unsafe_code)]

use crate::failure::Failure;

pub use rsocket_stats::reason::Reason;

/// The kernel has refused this; its error is said in the log, since the reason does not say it.
pub fn refused(what: &'static str) -> impl Fn(Failure) -> Reason {
    move |e| {
        crate::log_info!("{}: {}", what, e);
        if e == Failure::NoDescriptors { Reason::FdLimit } else { Reason::ResourceError }
    }
}

/// The directory for meeting cannot be used: its error is said in the log.
pub fn not_there(e: Failure) -> Reason {
    crate::log_info!("the directory for meeting: {}", e);
    if e == Failure::NoDescriptors { Reason::FdLimit } else { Reason::MeetRefused }
}

/// The kernel cannot be asked for the owner of the other end: now, since there is no room for the
/// question, or ever.
pub fn not_asked(e: Failure) -> Reason {
    match e {
        Failure::NoDescriptors
        | Failure::NoFiles
        | Failure::NoMemory
        | Failure::NoBuffers
        | Failure::Blocked
        | Failure::Interrupted => refused("sock_diag")(e),
        _ => {
            crate::log_info!("sock_diag: {}", e);
            Reason::NoNetlink
        }
    }
}
