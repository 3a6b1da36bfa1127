//! Why a call has failed, in words; and the one place that knows which number C has for that.
//!
//! Inside, a failure is what a caller acts on: [`Failure::Blocked`] is waited out,
//! [`Failure::Interrupted`] begins again, the rest ends the call. `errno` exists where the kernel
//! is asked ([`crate::sys::errno`]) and where C is answered ([`Failure::code`]). Must not know who
//! failed. Entry point: [`Failure`].
#![forbid(unsafe_code)]

use core::fmt;

macro_rules! failures {
    ($($(#[$meaning:meta])* $name:ident = $number:ident,)*) => {
        /// Why a call has failed. Each word is its number in memory, so that neither way from one
        /// to the other takes a table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Failure {
            /// What only the kernel says, and no code in here asks about.
            Kernel(Number) = 0,
            $($(#[$meaning])* #[doc = concat!(" (`", stringify!($number), "`).")]
            $name = libc::$number,)*
        }

        impl Failure {
            /// What `errno` holds of this failure; never 0.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self {
                    $(Self::$name => libc::$number,)*
                    Self::Kernel(number) => number.0,
                }
            }

            /// The failure of which `errno` holds this number.
            #[must_use]
            #[inline(never)]
            pub const fn from_code(code: i32) -> Self {
                match code {
                    $(libc::$number => Self::$name,)*
                    other => Self::Kernel(Number(other)),
                }
            }

            #[cfg(test)]
            const NAMED: &[Self] = &[$(Self::$name),*];
        }
    };
}

failures! {
    /// Nothing now; try again
    Blocked = EAGAIN,
    /// A signal arrived first
    Interrupted = EINTR,
    /// No receiver will read what is written
    Ended = EPIPE,
    /// The other end is gone in the middle, or cannot be trusted
    Reset = ECONNRESET,
    /// Out of time
    TimedOut = ETIMEDOUT,
    /// No process listens there, or the listener wants no connection
    Refused = ECONNREFUSED,
    /// Given up before it stood
    Aborted = ECONNABORTED,
    /// There is no connection
    NotConnected = ENOTCONN,
    /// There is one already
    Connected = EISCONN,
    /// An attempt has begun, and goes on
    UnderWay = EINPROGRESS,
    /// An earlier attempt goes on
    AlreadyUnderWay = EALREADY,
    /// No way leads to that host
    Unreachable = EHOSTUNREACH,
    /// The host is down
    HostDown = EHOSTDOWN,
    /// No way leads to that network
    NetUnreachable = ENETUNREACH,
    /// The network is down
    NetDown = ENETDOWN,
    /// The network has dropped the connection
    NetReset = ENETRESET,
    /// The other end broke the protocol
    Protocol = EPROTO,
    /// An argument that makes no sense
    Invalid = EINVAL,
    /// Memory of the caller's that is not there
    BadAddress = EFAULT,
    /// No such descriptor
    BadDescriptor = EBADF,
    /// A descriptor of another kind
    NotASocket = ENOTSOCK,
    /// Not a file with positions
    NoPositions = ESPIPE,
    /// Not supported
    Unsupported = EOPNOTSUPP,
    /// An unknown option
    UnknownOption = ENOPROTOOPT,
    /// An address of another family
    WrongFamily = EAFNOSUPPORT,
    /// A socket of another kind
    WrongKind = EPROTOTYPE,
    /// The name is in use
    NameTaken = EADDRINUSE,
    /// The name is not this host's
    NoSuchName = EADDRNOTAVAIL,
    /// No destination is named
    NoPeer = EDESTADDRREQ,
    /// More than one message may have
    MessageTooLong = EMSGSIZE,
    /// More than a file may have
    FileTooLong = EFBIG,
    /// More than a name may have
    NameTooLong = ENAMETOOLONG,
    /// Out of memory
    NoMemory = ENOMEM,
    /// Out of places
    NoBuffers = ENOBUFS,
    /// Out of this process's descriptors
    NoDescriptors = EMFILE,
    /// Out of the system's descriptors
    NoFiles = ENFILE,
    /// No device leads there
    NoDevice = ENODEV,
    /// A device has failed
    Device = EIO,
    /// It does not exist
    Missing = ENOENT,
    /// It exists already
    Exists = EEXIST,
    /// Something on the way is not a directory
    NotADirectory = ENOTDIR,
    /// Too many links on the way
    TooManyLinks = ELOOP,
    /// No such process
    NoProcess = ESRCH,
    /// It is in use
    Busy = EBUSY,
    /// It lies elsewhere
    Elsewhere = EXDEV,
    /// This user may not
    Denied = EACCES,
    /// No caller like this may
    NotPermitted = EPERM,
    /// The kernel has no such call
    NoSuchCall = ENOSYS,
}

/// A number of the kernel's that has no word here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number(i32);

impl From<rustix::io::Errno> for Failure {
    fn from(e: rustix::io::Errno) -> Self {
        Self::from_code(e.raw_os_error())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}", self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_one_number_and_each_number_one_failure() {
        for failure in Failure::NAMED {
            assert_eq!(Failure::from_code(failure.code()), *failure);
        }
        for code in 1..4096 {
            assert_eq!(Failure::from_code(code).code(), code);
        }
    }
}
