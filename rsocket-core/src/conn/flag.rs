//! What is true of a connection, one bit each, as all the processes that hold it see it.
//!
//! Bits of [`super::slot::Slot::flags`]. They say what has happened or what may not happen any
//! more; where bytes travel is said by the modes ([`crate::conn::machine`]). Knows nothing of who
//! asks.
#![forbid(unsafe_code)]

/// This end called connect.
pub const CONNECTING: u32 = 1 << 0;
/// Policy excludes TCP: no byte of the program's travels on it.
pub const STRICT: u32 = 1 << 1;
/// shutdown for reading was called here.
pub const READ_SHUT: u32 = 1 << 2;
/// shutdown for writing was called here.
pub const WRITE_SHUT: u32 = 1 << 3;
/// An inconsistency was found after the switch: everything answers ECONNRESET.
pub const BROKEN: u32 = 1 << 4;
/// The peer is known to have closed for good (orphaned or gone).
pub const PEER_GONE: u32 = 1 << 5;
/// The window was given up or was never there.
pub const WINDOW_DONE: u32 = 1 << 6;
/// The peer's FIN was seen (by a wait; reading decides for itself).
pub const PEER_FIN: u32 = 1 << 7;
/// Nothing is left to be sent by TCP of what the peer had not read of the window.
pub const TAIL_SENT: u32 = 1 << 8;
/// The window's last word was read: the stream is over, whether or not the FIN is here yet.
pub const ENDED: u32 = 1 << 9;
/// The cut is known, and TCP still has bytes before it: a reader that waits need not look at the
/// window.
pub const TCP_AHEAD: u32 = 1 << 10;
/// An rsocket from the start: strict, and bytes that come by TCP are a stranger's.
pub const RSOCKET: u32 = 1 << 12;
/// A connection attempt runs or has ended, and the program has not asked yet how it went: until
/// then a socket whose TCP connection stands is writable. Where TCP is excluded, until it attaches,
/// if that is sooner.
pub const CONNECT_NEWS: u32 = 1 << 13;
/// Beyond the window is a relay, not a peer process: [`crate::relay`].
pub const RELAYED: u32 = 1 << 14;
/// The relay is still connecting: nothing is ready.
pub const PENDING: u32 = 1 << 15;
/// The relay could not connect; [`crate::conn::slot::Slot::pending_error`] says why.
pub const UNREACHED: u32 = 1 << 16;
/// Listens by way of a relay.
pub const RELAY_LISTENS: u32 = 1 << 17;
/// The relay stands beside a TCP connection to the same peer.
pub const BESIDE: u32 = 1 << 18;
/// The relay's connection broke: what arrived can be read, then nothing.
pub const LOST: u32 = 1 << 19;
/// Beside a relay TCP has brought FIN and all before it, and the relay has still to say whether
/// that is the end.
pub const FIN_FIRST: u32 = 1 << 20;
/// A datagram socket: of the rest only the shut bits and the peer's name mean anything
/// ([`crate::datagram`]).
pub const DATAGRAM: u32 = 1 << 30;

/// Memory of this side's is mapped, or was: what the peer puts into the ring must be placed before
/// what it sends after it is received.
pub const MAPPED: u32 = 1 << 24;
/// A direct write found no room: the connection is writable only when there is some again.
pub const PLACES_FULL: u32 = 1 << 25;
/// A holder has entered a sandbox, and makes the kernel's calls only.
pub const SANDBOXED_HOLDER: u32 = 1 << 26;
/// The last holder has closed: set once, by the one that ends the connection for all of them.
pub const OVER: u32 = 1 << 27;
/// Fork mode: it is not known yet whether the connection stays on TCP ([`crate::fork_safe`]).
pub const UNDECIDED: u32 = 1 << 21;
/// A listener to which peers may come by RDMA beside TCP.
pub const HEARD_BESIDE: u32 = 1 << 22;

/// The kernel notes when bytes arrive, for those who ask ([`crate::socket::stamps`]).
pub const STAMPED: u32 = 1 << 23;

/// Copies of its descriptor are on their way in messages, or a stranger has one: it must not leave
/// TCP.
pub const TRAVELS: u32 = 1 << 28;
/// There is memory for the large bank of the direction that we send in, or it is not asked about.
pub const LARGE_OPEN: u32 = 1 << 29;

/// A call of the library's has waited for it, or may: what becomes ready on a device is heard. A
/// process that waits by system calls of its own would sleep for ever.
pub const WAITED: u32 = 1 << 31;

/// None of these is set in the middle of a life on shared memory.
pub const UNCOMMON: u32 = BROKEN
    | UNDECIDED
    | RELAYED
    | PENDING
    | UNREACHED
    | LOST
    | FIN_FIRST
    | ENDED
    | READ_SHUT
    | WRITE_SHUT
    | PEER_GONE
    | CONNECT_NEWS
    | PLACES_FULL
    | DATAGRAM
    | OVER;

#[cfg(test)]
pub(super) const ALL: &[u32] = &[
    MAPPED,
    PLACES_FULL,
    LARGE_OPEN,
    CONNECTING,
    STRICT,
    READ_SHUT,
    WRITE_SHUT,
    BROKEN,
    PEER_GONE,
    WINDOW_DONE,
    PEER_FIN,
    TAIL_SENT,
    ENDED,
    TCP_AHEAD,
    RSOCKET,
    CONNECT_NEWS,
    RELAYED,
    PENDING,
    UNREACHED,
    RELAY_LISTENS,
    BESIDE,
    LOST,
    FIN_FIRST,
    DATAGRAM,
    SANDBOXED_HOLDER,
    OVER,
    TRAVELS,
    UNDECIDED,
    HEARD_BESIDE,
    STAMPED,
    WAITED,
];
