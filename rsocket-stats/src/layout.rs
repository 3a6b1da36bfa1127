//! The layout of the file in which a process shows its connections while it runs. The file is words
//! of 64 bits, in the order of the machine, at the numbers that stand here. Read by `rsstat`,
//! written by rsocket-core.
//!
//! A page of [`head`] words with the process's counters, then records of [`RECORD_WORDS`] words, in
//! chunks of [`CHUNK_RECORDS`]. What changes is written by plain stores and read without a lock:
//! each word is whole, a record is as of about now.

/// Raised with every change of what stands where, of the counters or of the reasons.
pub const VERSION: u64 = 4;
/// "rsockets" as bytes.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"rsockets");
/// Bytes before the first record.
pub const HEAD_BYTES: usize = 4096;
/// Words of one record.
pub const RECORD_WORDS: usize = 32;
/// Records by which a file grows: 16 KiB.
pub const CHUNK_RECORDS: usize = 64;
/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = CHUNK_RECORDS * RECORD_WORDS * 8;
/// Chunks that a file can have.
pub const MAX_CHUNKS: usize = 512;

/// Numbers of words in the head.
pub mod head {
    /// [`super::MAGIC`]; stored last.
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 1;
    /// Process id, as the process itself sees it.
    pub const PID: usize = 2;
    /// Inode of the pid namespace in which that number means something.
    pub const PID_NAMESPACE: usize = 3;
    /// When the file was made, in nanoseconds since the host was booted.
    pub const MADE_SINCE_BOOT: usize = 4;
    /// The same in nanoseconds since 1970.
    pub const MADE: usize = 5;
    /// Nonzero: the process has ended, or become another program, in an orderly way.
    pub const ENDED: usize = 6;
    /// Records that were ever used.
    pub const USED: usize = 7;
    /// Name of the program, 16 bytes, padded with zeroes.
    pub const PROGRAM: usize = 8;
    /// The counters of [`crate::counters`]: as many words as it has room for counters, then for
    /// reasons.
    pub const COUNTERS: usize = 64;
    /// Where the reasons begin.
    pub const ON_TCP: usize = COUNTERS + crate::counters::ROOM;
}

/// Numbers of words in a record.
pub mod record {
    /// The connection's number in its fork group in the low half, a generation above it; 0 is
    /// no connection.
    pub const KEY: usize = 0;
    /// Descriptor that the connection had when it was entered, in the low half; [`super::Via`]
    /// above it.
    pub const FD: usize = 1;
    /// Family (4 or 6) above the peer's port above our port, 16 bits each.
    pub const PORTS: usize = 2;
    /// Our address in two words, network order; IPv4 in the first four bytes.
    pub const LOCAL: usize = 3;
    /// The peer's address.
    pub const PEER: usize = 5;
    /// When the record was made, in nanoseconds since the host was booted.
    pub const MADE_SINCE_BOOT: usize = 7;
    /// [`super::Condition`] in the low half; above it the reason (0, "too young", is none yet),
    /// with [`BY_PEER`].
    pub const STATE: usize = 8;
    /// In [`STATE`]: the other end went back first.
    pub const BY_PEER: u64 = 1 << 63;
    /// What the reason is about, in [`DETAIL_WORDS`] words, padded with zeroes: the name of an
    /// option, or of a system call.
    pub const DETAIL: usize = 9;
    /// Words of that name.
    pub const DETAIL_WORDS: usize = 3;
    /// What TCP had carried when the record was made: bytes and messages received, bytes and
    /// messages sent.
    pub const BEFORE: usize = 12;
    /// Received over TCP since: bytes, then messages.
    pub const TCP_IN: usize = 16;
    /// Received over the device: bytes, then messages.
    pub const DEVICE_IN: usize = 18;
    /// Unread bytes of the current message.
    pub const UNREAD: usize = 20;
    /// Sleeps in the kernel for this connection alone.
    pub const SLEEPS: usize = 21;
    /// Those that the peer's waker ended.
    pub const WOKEN: usize = 22;
    /// Spins that saw something come.
    pub const SPINS_PAID: usize = 23;
    /// Sent over TCP since: bytes, then messages.
    pub const TCP_OUT: usize = 24;
    /// Sent over the device: bytes, then messages.
    pub const DEVICE_OUT: usize = 26;
    /// Room for the next message in bytes, in the low half; credits of both classes, 16 bits each,
    /// above it.
    pub const ROOM: usize = 28;
    /// Spins that ended in a sleep.
    pub const SPINS_FAILED: usize = 29;
    /// What both ends of a connection over shared memory have in common, and no other two at the
    /// same time; 0 where nothing is.
    pub const COMMON: usize = 30;
    /// The next free record, while this one is free.
    pub const NEXT: usize = 31;
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Condition {
    /// On its way between TCP and the device.
    Switching = 0,
    /// A direction has left TCP, and the other one does with its next call.
    Attached = 1,
    /// On TCP, and stays there, or until the other end comes.
    Tcp = 2,
    /// Back on TCP.
    Returned = 3,
    /// Reset, because something could not be right or TCP was not wanted.
    Broken = 4,
}

impl Condition {
    /// Reads a stored number.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Attached,
            2 => Self::Tcp,
            3 => Self::Returned,
            4 => Self::Broken,
            _ => Self::Switching,
        }
    }
}

/// What is beside the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Via {
    /// Nothing.
    Tcp = 0,
    /// Shared memory.
    Shm = 1,
    /// A bridge to an RDMA device.
    Rdma = 2,
}

impl Via {
    /// Reads a stored number.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Shm,
            2 => Self::Rdma,
            _ => Self::Tcp,
        }
    }
}

/// The directories in which a user's processes leave their files, best first. `runtime` is
/// `XDG_RUNTIME_DIR`. The first has a subdirectory of ours; the others are ours by name and belong
/// to the user.
pub const PLACES: [(&str, &str); 3] =
    [("/run/user/", "/rsocket"), ("/dev/shm/rsocket-", ""), ("/tmp/rsocket-", "")];
/// What the name of a file ends with; before it stands the process id.
pub const SUFFIX: &str = ".live";
