//! The life of a connection as tables: what it waits for, and what may happen then.
//!
//! There are three machines, all without I/O. The [`Phase`] of a connection says how far two
//! processes have come in pairing a device with it. For each direction on its own, [`ReceiveMode`]
//! and [`SendMode`] say where its bytes travel. Their states are `u32` so that they can live in
//! memory that processes share. What is carried out on the way is in `pairing` and `handover`. An
//! event that a state does not expect has no transition, and the caller that sees that stops
//! trusting the connection ("doubt means TCP").
#![forbid(unsafe_code)]

macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$vdoc])* $variant = $value),+ }
        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            const FIRST: Self = match Self::ALL { [first, ..] => *first, [] => unreachable!() };
            /// Reads a stored value; anything unknown is the first state.
            #[must_use]
            #[inline]
            pub const fn from_raw(raw: u32) -> Self {
                match raw { $($value => Self::$variant,)+ _ => Self::FIRST }
            }
        }
    };
}

states! {
    /// How far the two ends have come in putting a device beside the connection.
    Phase {
        /// An ordinary TCP connection that has not shown yet that it will live.
        Young = 0,
        /// Connecting side: a name is bound, the accepting side may knock.
        Offered = 1,
        /// Connecting side: a process knocked; its message is awaited.
        Greeted = 2,
        /// Accepting side: knocked; the hello-ack is awaited.
        HelloSent = 3,
        /// Both ends have the channel; directions switch each on its own.
        Paired = 4,
        /// Stays on TCP, or went back to it, for good.
        Refused = 5,
        /// Not a connection: not connected yet, or listening.
        Unconnected = 6,
        /// The peer is on another host: a connection over RDMA is being made to it, or is wanted
        /// from it.
        Dialling = 7,
    }
}

states! {
    /// What happens to a connection's pairing.
    PhaseEvent {
        /// connect or accept gave a connection.
        Established = 0,
        /// The connecting side bound the name.
        OfferOpened = 1,
        /// The accepting side connected to the name.
        HelloSent = 2,
        /// The connecting side accepted a channel on the name.
        PeerCame = 3,
        /// The connecting side checked the hello and answered it.
        HelloAnswered = 4,
        /// The accepting side checked the hello-ack and has the channel.
        HelloAckRead = 5,
        /// The offer or the channel was given up for now; it may be tried again later.
        Lapsed = 6,
        /// Never attach (again).
        Refuse = 7,
        /// The connecting side asks a peer on another host for RDMA.
        Dialled = 8,
        /// The two ends have met over RDMA, and each has a channel with its bridge.
        Met = 9,
    }
}

impl Phase {
    /// The phase after `event`, or `None` when this phase does not expect it.
    #[must_use]
    pub const fn after(self, event: PhaseEvent) -> Option<Self> {
        use PhaseEvent as E;
        match (self, event) {
            (Self::Unconnected, E::Established) => Some(Self::Young),
            (Self::Young, E::OfferOpened) => Some(Self::Offered),
            (Self::Young, E::HelloSent) => Some(Self::HelloSent),
            (Self::Offered, E::PeerCame) => Some(Self::Greeted),
            (Self::Greeted, E::HelloAnswered) => Some(Self::Paired),
            (Self::HelloSent, E::HelloAckRead) => Some(Self::Paired),
            (Self::Young, E::Dialled) => Some(Self::Dialling),
            // The accepting side is asked, and answers at once.
            (Self::Young | Self::Dialling, E::Met) => Some(Self::Paired),
            (Self::Offered | Self::Greeted | Self::HelloSent | Self::Dialling, E::Lapsed) => {
                Some(Self::Young)
            }
            (_, E::Refuse) => Some(Self::Refused),
            _ => None,
        }
    }
}

states! {
    /// Where a receiver takes the bytes of its direction from.
    ReceiveMode {
        /// From TCP, by the program's own calls.
        Kernel = 0,
        /// From TCP, by our non-blocking calls; earlier callers may still be inside the kernel.
        Asked = 1,
        /// No thread is inside the kernel, and the sender was told: TCP up to the switch offset,
        /// then the device.
        Acknowledged = 2,
        /// From the device alone.
        Device = 3,
        /// From TCP again, for good.
        Returned = 4,
    }
}

states! {
    /// What happens to a receiver's direction.
    ReceiveEvent {
        /// The connection is paired.
        Paired = 0,
        /// No thread of any owner is inside the kernel on it.
        KernelEmpty = 1,
        /// All bytes before the switch offset were taken from TCP.
        SwitchReached = 2,
        /// The sender's end mark was reached, or this side wants to go back.
        Return = 3,
    }
}

impl ReceiveMode {
    /// The mode after `event`, or `None` when this mode does not expect it.
    #[must_use]
    pub const fn after(self, event: ReceiveEvent) -> Option<Self> {
        use ReceiveEvent as E;
        match (self, event) {
            (Self::Kernel, E::Paired) => Some(Self::Asked),
            (Self::Asked, E::KernelEmpty) => Some(Self::Acknowledged),
            (Self::Acknowledged, E::SwitchReached) => Some(Self::Device),
            (_, E::Return) => Some(Self::Returned),
            _ => None,
        }
    }

    /// Whether the program's own call into the kernel is the right way to receive.
    #[must_use]
    #[inline]
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::Returned)
    }
}

states! {
    /// Where a sender puts the bytes of its direction.
    SendMode {
        /// Into TCP, by the program's own calls.
        Kernel = 0,
        /// Into TCP, by our non-blocking calls; earlier callers may still be inside the kernel.
        Asked = 1,
        /// Into the device; the switch offset was published.
        Device = 2,
        /// Into TCP again, for good, once what the peer did not read is sent there too.
        Returned = 3,
    }
}

states! {
    /// What happens to a sender's direction.
    SendEvent {
        /// The receiver acknowledged the direction.
        Acknowledged = 0,
        /// No thread of any owner is inside the kernel on it, and the switch offset was fixed and
        /// published.
        SwitchPublished = 1,
        /// This side or the peer wants to go back.
        Return = 2,
    }
}

impl SendMode {
    /// The mode after `event`, or `None` when this mode does not expect it.
    #[must_use]
    pub const fn after(self, event: SendEvent) -> Option<Self> {
        use SendEvent as E;
        match (self, event) {
            (Self::Kernel, E::Acknowledged) => Some(Self::Asked),
            (Self::Asked, E::SwitchPublished) => Some(Self::Device),
            (_, E::Return) => Some(Self::Returned),
            _ => None,
        }
    }

    /// Whether the program's own call into the kernel is the right way to send.
    #[must_use]
    #[inline]
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::Returned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table<S: Copy + core::fmt::Debug, E: Copy + core::fmt::Debug>(
        states: &[S],
        events: &[E],
        after: impl Fn(S, E) -> Option<S>,
    ) -> String {
        let mut out = String::new();
        for s in states {
            for e in events {
                if let Some(next) = after(*s, *e) {
                    out += &format!("{s:?} + {e:?} -> {next:?}\n");
                }
            }
        }
        out
    }

    #[test]
    fn every_pair_of_phase_and_event() {
        let expected = "\
Young + OfferOpened -> Offered
Young + HelloSent -> HelloSent
Young + Refuse -> Refused
Young + Dialled -> Dialling
Young + Met -> Paired
Offered + PeerCame -> Greeted
Offered + Lapsed -> Young
Offered + Refuse -> Refused
Greeted + HelloAnswered -> Paired
Greeted + Lapsed -> Young
Greeted + Refuse -> Refused
HelloSent + HelloAckRead -> Paired
HelloSent + Lapsed -> Young
HelloSent + Refuse -> Refused
Paired + Refuse -> Refused
Refused + Refuse -> Refused
Unconnected + Established -> Young
Unconnected + Refuse -> Refused
Dialling + Lapsed -> Young
Dialling + Refuse -> Refused
Dialling + Met -> Paired
";
        assert_eq!(table(Phase::ALL, PhaseEvent::ALL, Phase::after), expected);
    }

    #[test]
    fn every_pair_of_mode_and_event() {
        let expected = "\
Kernel + Paired -> Asked
Kernel + Return -> Returned
Asked + KernelEmpty -> Acknowledged
Asked + Return -> Returned
Acknowledged + SwitchReached -> Device
Acknowledged + Return -> Returned
Device + Return -> Returned
Returned + Return -> Returned
";
        assert_eq!(table(ReceiveMode::ALL, ReceiveEvent::ALL, ReceiveMode::after), expected);
        let expected = "\
Kernel + Acknowledged -> Asked
Kernel + Return -> Returned
Asked + SwitchPublished -> Device
Asked + Return -> Returned
Device + Return -> Returned
Returned + Return -> Returned
";
        assert_eq!(table(SendMode::ALL, SendEvent::ALL, SendMode::after), expected);
    }

    #[test]
    fn stored_values_read_back() {
        assert!(Phase::ALL.iter().all(|p| Phase::from_raw(*p as u32) == *p));
        assert!(ReceiveMode::ALL.iter().all(|p| ReceiveMode::from_raw(*p as u32) == *p));
        assert!(SendMode::ALL.iter().all(|p| SendMode::from_raw(*p as u32) == *p));
        assert_eq!(Phase::from_raw(77), Phase::Young);
    }
}
