//! One error number. Small enums inside the layers become one of these at the socket's edge, here
//! and nowhere else.

/// A Linux error number, as `errno` would hold it; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Nothing now; try again (`EAGAIN`).
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// A signal arrived first (`EINTR`).
    pub const INTR: Self = Self(libc::EINTR);
    /// The other end cannot be trusted or is gone (`ECONNRESET`).
    pub const CONNRESET: Self = Self(libc::ECONNRESET);
    /// Writing to what nobody will read (`EPIPE`).
    pub const PIPE: Self = Self(libc::EPIPE);
    /// An argument that makes no sense (`EINVAL`).
    pub const INVAL: Self = Self(libc::EINVAL);
    /// Not connected (`ENOTCONN`).
    pub const NOTCONN: Self = Self(libc::ENOTCONN);
    /// Out of memory, or of room for it (`ENOMEM`).
    pub const NOMEM: Self = Self(libc::ENOMEM);
    /// Out of time (`ETIMEDOUT`).
    pub const TIMEDOUT: Self = Self(libc::ETIMEDOUT);
    /// Not supported (`EOPNOTSUPP`).
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// No device leads there (`ENODEV`).
    pub const NODEV: Self = Self(libc::ENODEV);
    /// The file would become too long (`EFBIG`).
    pub const FBIG: Self = Self(libc::EFBIG);
    /// No such descriptor (`EBADF`).
    pub const BADF: Self = Self(libc::EBADF);
}

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Self {
        Self(e.raw_os_error())
    }
}
