//! What is true of a connection, one bit each, as all the processes that hold it see it.
//!
//! The bits of a slot's flag word, made from one table that says of each how long it stays, and
//! which others it needs or cannot stand beside. They say what has happened or what may not happen
//! any more; where bytes travel is said by the modes ([`crate::conn::machine`]). A debug build
//! judges every change by the table. Knows nothing of who asks. Entry points: the bits themselves;
//! [`TABLE`], [`objection`].
#![forbid(unsafe_code)]

/// How long a flag stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The slot has it from its first moment on, or never.
    Born,
    /// Something sets it, and it stays to the end.
    Once,
    /// It is set and cleared, as often as that may be.
    ComesAndGoes,
}

/// One flag, and what the table says of it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As the code calls it.
    pub name: &'static str,
    /// Its bit.
    pub bit: u32,
    /// How long it stays.
    pub life: Life,
    /// What it says.
    pub meaning: &'static str,
    /// Those that stand whenever it does.
    pub implies: u32,
    /// Those that never stand beside it. Written at one of the two.
    pub excludes: u32,
}

macro_rules! flags {
    ($($(#[doc = $meaning:literal])+ $name:ident = $place:literal, $life:ident
        $(, implies $($implied:ident)|+)? $(, excludes $($excluded:ident)|+)?;)+) => {
        $($(#[doc = $meaning])+ pub const $name: u32 = 1 << $place;)+
        /// Every flag, in the order of the bits.
        pub const TABLE: &[Row] = &[$(Row {
            name: stringify!($name),
            bit: $name,
            life: Life::$life,
            meaning: concat!($($meaning),+),
            implies: 0 $($(| $implied)+)?,
            excludes: 0 $($(| $excluded)+)?,
        }),+];
        const ALL: u32 = 0 $(| $name)+;
    };
}

flags! {
    /// This end called connect.
    CONNECTING = 0, ComesAndGoes;
    /// Policy excludes TCP: no byte of the program's travels on it.
    STRICT = 1, ComesAndGoes;
    /// shutdown for reading was called here.
    READ_SHUT = 2, Once;
    /// shutdown for writing was called here.
    WRITE_SHUT = 3, Once;
    /// An inconsistency was found after the switch: everything answers ECONNRESET.
    BROKEN = 4, Once;
    /// The peer is known to have closed for good (orphaned or gone).
    PEER_GONE = 5, ComesAndGoes;
    /// The channel was given up or was never there.
    CHANNEL_DONE = 6, ComesAndGoes;
    /// The peer's FIN was seen (by a wait; reading decides for itself).
    PEER_FIN = 7, ComesAndGoes;
    /// Nothing is left to be sent by TCP of what the peer had not read of the channel.
    RESIDUAL_SENT = 8, Once;
    /// The channel's last word was read: the stream is over, whether or not the FIN is here yet.
    ENDED = 9, Once;
    /// The switch offset is known, and TCP still has bytes before it: a reader that waits need not
    /// look at the channel.
    TCP_AHEAD = 10, Once;
    /// Nobody has come to its name in this network namespace: it offers in the directory.
    OFFERS_THERE = 11, ComesAndGoes;
    /// An rsocket from the start: strict, and bytes that come by TCP are a stranger's.
    RSOCKET = 12, Born;
    /// The program has not asked yet how its connect went: until it does, or the end attaches, a
    /// socket that TCP has connected is writable.
    CONNECT_NEWS = 13, ComesAndGoes;
    /// Beyond the channel is a bridge, not a peer process: [`crate::bridge`].
    BRIDGED = 14, ComesAndGoes;
    /// The bridge is still connecting: nothing is ready.
    PENDING = 15, ComesAndGoes, implies BRIDGED, excludes UNREACHED | TCP_ANCHORED;
    /// The bridge could not connect; [`crate::conn::slot::Slot::pending_error`] says why.
    UNREACHED = 16, ComesAndGoes, implies BRIDGED, excludes TCP_ANCHORED;
    /// Listens by way of a bridge.
    BRIDGE_LISTENS = 17, Once, excludes BRIDGED;
    /// The bridge stands beside a TCP connection to the same peer.
    TCP_ANCHORED = 18, ComesAndGoes, implies BRIDGED;
    /// The bridge's connection broke: what arrived can be read, then nothing.
    LOST = 19, Once, implies TCP_ANCHORED;
    /// Beside a bridge TCP has brought FIN and all before it, and the bridge has still to say
    /// whether that is the end.
    FIN_FIRST = 20, Once;
    /// Fork mode: it is not known yet whether the connection stays on TCP ([`crate::fork_safe`]).
    UNDECIDED = 21, ComesAndGoes, excludes RSOCKET | STRICT | TCP_ANCHORED;
    /// A listener to which peers may come by RDMA beside TCP.
    HEARD_TCP_ANCHORED = 22, Once;
    /// The kernel notes when bytes arrive, for those who ask ([`crate::socket::stamps`]).
    STAMPED = 23, ComesAndGoes;
    /// Memory of this side's is mapped, or was: what the ring has is placed before what the peer
    /// sent behind it is received.
    MAPPED = 24, Once;
    /// A direct write found no room: the connection is writable only when there is some again.
    PLACES_FULL = 25, ComesAndGoes;
    /// An owner has entered a sandbox, and makes the kernel's calls only.
    SANDBOXED_OWNER = 26, ComesAndGoes;
    // Taken back where the slot was another connection's by then (fork_group::left_by_the_dead).
    /// The last owner has closed: whoever sets this ends the connection for all of them.
    OVER = 27, ComesAndGoes;
    /// Copies of its descriptor are on their way in messages, or a stranger has one: it must not
    /// leave TCP.
    TRAVELS = 28, ComesAndGoes, excludes RSOCKET | TCP_ANCHORED;
    /// There is memory for the large class of the direction that we send in, or it is not asked
    /// about.
    LARGE_OPEN = 29, Once;
    /// A datagram socket ([`crate::datagram`]).
    DATAGRAM = 30, Born, implies RSOCKET | STRICT, excludes STREAMS;
    // A process that waits by system calls of its own would sleep for ever.
    /// A call of the library's has waited for it, or may: what becomes ready on a device is heard.
    WAITED = 31, Once;
}

/// What only a stream can have.
const STREAMS: u32 = ALL & !(DATAGRAM | RSOCKET | STRICT | READ_SHUT | WRITE_SHUT | WAITED | OVER);

/// None of these is set in the middle of a life on shared memory.
pub const UNCOMMON: u32 = BROKEN
    | UNDECIDED
    | BRIDGED
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

impl Row {
    /// Whether the flag, if it is one of `flags`, has what it needs and nothing that it excludes.
    #[must_use]
    pub const fn stands_among(&self, flags: u32) -> bool {
        flags & self.bit == 0 || flags & self.implies == self.implies && flags & self.excludes == 0
    }

    /// Whether the flag has nothing against this change, of itself or of others.
    const fn allows(&self, old: u32, new: u32) -> bool {
        let (came, went) = (new & !old, old & !new);
        if went & self.bit != 0 {
            return matches!(self.life, Life::ComesAndGoes);
        }
        if came & self.bit != 0 {
            return !matches!(self.life, Life::Born) && self.stands_among(new);
        }
        // It stands already: only what the change brings or takes is judged.
        new & self.bit == 0 || self.excludes & came == 0 && self.implies & went == 0
    }
}

/// The flag that may not change so, or that forbids it; `None` for a legal change. `old` is what
/// stood at that moment: what other threads set meanwhile they answer for themselves.
#[must_use]
pub fn objection(old: u32, new: u32) -> Option<&'static Row> {
    TABLE.iter().find(|row| !row.allows(old, new))
}

/// In debug builds: a change that the table does not have is a mistake of ours.
#[inline(always)]
pub(super) fn judge(old: u32, new: u32) {
    debug_assert!(
        objection(old, new).is_none(),
        "flags {old:#x} may not become {new:#x}: {:?}",
        objection(old, new)
    );
}

/// In debug builds: the same of the flags with which a slot begins.
#[inline(always)]
pub(super) fn judge_birth(flags: u32) {
    debug_assert!(
        TABLE.iter().all(|row| row.stands_among(flags)),
        "no slot begins with flags {flags:#x}"
    );
}

#[cfg(test)]
pub(super) mod tests;
