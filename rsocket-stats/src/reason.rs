//! Why a connection is on TCP, or went back to it. There is one value for each reason, so that
//! every one can be counted, shown and tested for.
//!
//! Entry points: [`Reason`], [`Reason::text`], [`Reason::ALL`].

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal => $explanation:literal,)+) => {
        /// Why a connection is on TCP, or went back to it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// Every reason, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// A short name for reports: lower case, no spaces, stable.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// One line for people.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $explanation,)+ }
            }
        }
    };
}

reasons! {
    /// Too few bytes so far.
    TooYoung "too_young" => "the connection has not moved enough bytes yet to be worth attaching",
    /// Another host, or another network namespace than the peer's or than what has attached before.
    PeerElsewhere "peer_elsewhere" => "the other end is not in this host's network namespace",
    /// No process offers at the rendezvous.
    NoOffer "no_offer" => "the other end did not offer: it does not use the library, or chose not to",
    /// No process answered in time.
    OfferLapsed "offer_lapsed" => "the other end did not take up the offer in time",
    /// The handful of open offers is used up.
    TooManyOffers "too_many_offers" => "too many offers of this process are open already",
    /// The configuration wants TCP.
    PolicyTcp "policy_tcp" => "the configuration keeps this connection on TCP",
    /// A system call filter, now or soon.
    Sandboxed "sandboxed" => "the process is in a sandbox (seccomp, Landlock), or about to enter one",
    /// No room for private descriptors.
    FdLimit "fd_limit" => "the limit on open files leaves no margin",
    /// No room for arenas.
    MemoryLimit "memory_limit" => "the memory cgroup is near its limit",
    /// A socket option that TCP alone can honour.
    OddOption "odd_option" => "a socket option is set that only TCP can honour",
    /// A use that no hook can follow.
    OddUse "odd_use" => "the descriptor is used by stdio, dprintf, io_uring or asynchronous I/O",
    /// Out-of-band data.
    Urgent "urgent" => "urgent (out-of-band) data was sent or received",
    /// Another user at the rendezvous than at the socket.
    UidMismatch "uid_mismatch" => "the process at the rendezvous runs as another user than the other end",
    /// The messages and the kernel name different sockets.
    IdentityMismatch "identity_mismatch" => "the process at the rendezvous does not hold the other end",
    /// Two versions of the library.
    LayoutMismatch "layout_mismatch" => "the other end uses another version of the library",
    /// The shared memory is not as it should be.
    ArenaRefused "arena_refused" => "the shared memory that came from the other end was not acceptable",
    /// A direction was closed before its switch.
    ShutDownEarly "shut_down_early" => "a direction was shut down before it could switch",
    /// A holder that we cannot include.
    SharedHolders "shared_holders" => "processes outside the library's view hold the socket too",
    /// Something that cannot be.
    Inconsistent "inconsistent" => "an inconsistency was found; the process attaches no more",
    /// A direct write that no mapping can hold.
    BadPlacement "bad_placement" => "the other end wrote beyond what is mapped for it",
    /// Switched off.
    Disabled "disabled" => "the library is switched off",
    /// The fd went to another process in a message.
    PassedAway "passed_away" => "the descriptor was passed to another process",
    /// The process became another program.
    Executed "executed" => "the process executed another program",
    /// Not a TCP socket at all.
    NotTcp "not_tcp" => "the socket is not plain TCP",
    /// A system call that should work did not.
    ResourceError "resource_error" => "the kernel refused something that attaching needs",
    /// Another process has the connection's name.
    NameTaken "name_taken" => "somebody else has taken the connection's place at the rendezvous",
    /// The socket is connected to itself.
    SelfConnected "self_connected" => "the socket is connected to itself",
    /// No RDMA on the way to another host, or none here.
    NoRoute "no_route" => "the other end is on another host, and no RDMA device leads there",
    /// The other host's end was asked, and did not want.
    PeerRefused "peer_refused" => "the other end, on another host, does not take part over RDMA",
    /// The program moves bytes in a way that this library does not see.
    IoUring "io_uring" => "the process has an io_uring, and RSOCKET_IO_URING allows that",
    /// Not yet, or no more, connected.
    NotConnected "not_connected" => "the socket is not connected",
    /// The program may wait where no hook sees it.
    UnseenWait "unseen_wait" => "no wait for the socket was seen: the program may wait by system calls of its own",
    /// It came with `exec` or in a message, and this library knows nothing of the program that had
    /// it before.
    NotHandedOver "not_handed_over" => "another program made the connection, and did not hand it over",
    /// The kernel cannot be asked for the owner of the other end.
    NoNetlink "no_netlink" => "the kernel lets this process make no netlink socket to ask for the other end",
    /// The kernel does not tell which user an end belongs to.
    UserNobody "user_nobody" => "an end is of user nobody, which is what the kernel calls every unknown user",
    /// The other end went back, and did not say why.
    PeerReturned "peer_returned" => "the other end has gone back to TCP",
    /// Neither the kernel nor the handshake tells who the process at the rendezvous is.
    NoEvidence "no_evidence" => "whoever is at the rendezvous has not proved that the other end is his",
    /// The handshake is not known, by which ends of two network namespaces would know each other.
    NoHandshake "no_handshake" => "the other end is elsewhere, and the handshake is not known here",
    /// No process was in the directory for this connection.
    NobodyMet "nobody_met" => "the other end is elsewhere, and did not come to the directory",
    /// The directory is there, and is of no use.
    MeetRefused "meet_refused" => "the directory for meeting cannot be used by this process",
}

impl Reason {
    /// The reason with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
            assert_eq!(Reason::from_u8(i as u8), Some(*reason));
            assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(!reason.text().is_empty() && reason.text().len() < 90);
            assert_eq!(Reason::ALL.iter().filter(|r| r.name() == reason.name()).count(), 1);
        }
        assert_eq!(Reason::from_u8(Reason::COUNT as u8), None);
        assert_eq!(Reason::from_u8(255), None);
    }
}
