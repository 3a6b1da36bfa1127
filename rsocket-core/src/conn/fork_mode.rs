//! How far a connection of fork mode has come from TCP to RDMA, as a table. Pure: what is carried
//! out on the way is in [`crate::fork_safe`]. Entry point: [`State::after`].
#![forbid(unsafe_code)]

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$vdoc])* $variant = $value),+ }
        #[cfg(test)]
        impl $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];
        }
    };
}

numbered! {
    /// Where a connection stands.
    State {
        /// It is none of fork mode's, or none any more: what it is now, its other states say.
        Over = 0,
        /// Accepted; neither end has said anything.
        Accepted = 1,
        /// About to greet, unless another connection with the same peer does.
        Claiming = 2,
        /// The peer was greeted: it comes by RDMA, or speaks by TCP.
        Greeted = 3,
        /// A request over RDMA came, which must be the peer's, and was granted.
        Requested = 4,
        /// Connected; the program has not used it yet.
        Connected = 5,
        /// The program wants to use it: does the peer greet?
        Listening = 6,
        /// The peer has greeted, and is asked for over RDMA.
        Dialling = 7,
        /// The connection over RDMA stands; the program's descriptor is still TCP's.
        Stands = 8,
        /// The program's descriptor is being tied to the bridge.
        Tying = 9,
    }
}

numbered! {
    /// What happens to it.
    Happening {
        /// TCP brings something that is no part of the handshake: bytes, the end, an error.
        PeerSpoke = 0,
        /// The program sends first, or uses the connection in a way that only TCP has; or the peer
        /// did not come in time.
        StaysTcp = 1,
        /// The peer has been silent for long enough, or is known.
        MayGreet = 2,
        /// Another connection with the same peer was first.
        Withdrawn = 3,
        /// The greeting was sent.
        Greets = 4,
        /// The peer's request over RDMA came.
        Asked = 5,
        /// The program wants to send or receive.
        Used = 6,
        /// The peer's greeting came.
        Heard = 7,
        /// The connection over RDMA is established.
        Established = 8,
        /// It could not be, or broke before the program had it.
        Failed = 9,
        /// Both ends have left TCP.
        LeavesTcp = 10,
        /// The program has its connection over RDMA.
        Tied = 11,
    }
}

impl State {
    /// Reads a stored value; anything unknown is [`State::Over`].
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Accepted,
            2 => Self::Claiming,
            3 => Self::Greeted,
            4 => Self::Requested,
            5 => Self::Connected,
            6 => Self::Listening,
            7 => Self::Dialling,
            8 => Self::Stands,
            9 => Self::Tying,
            _ => Self::Over,
        }
    }

    /// The state after that, or `None` where it cannot happen, or means nothing.
    #[must_use]
    pub const fn after(self, what: Happening) -> Option<Self> {
        use Happening as H;
        match (self, what) {
            (Self::Accepted | Self::Claiming | Self::Greeted, H::PeerSpoke | H::StaysTcp)
            | (Self::Connected | Self::Listening, H::PeerSpoke | H::StaysTcp)
            | (Self::Requested | Self::Dialling, H::StaysTcp | H::Failed)
            | (Self::Stands, H::Failed)
            | (Self::Tying, H::Tied) => Some(Self::Over),
            (Self::Accepted, H::MayGreet) => Some(Self::Claiming),
            (Self::Claiming, H::Withdrawn) => Some(Self::Accepted),
            (Self::Claiming, H::Greets) => Some(Self::Greeted),
            (Self::Greeted, H::Asked) => Some(Self::Requested),
            (Self::Connected, H::Used) => Some(Self::Listening),
            (Self::Listening, H::Heard) => Some(Self::Dialling),
            (Self::Requested | Self::Dialling, H::Established) => Some(Self::Stands),
            (Self::Stands, H::LeavesTcp) => Some(Self::Tying),
            _ => None,
        }
    }

    /// Whether what TCP says of the end is no news to the program: the peer leaves it.
    #[must_use]
    pub const fn is_deaf(self) -> bool {
        matches!(self, Self::Requested | Self::Dialling | Self::Stands | Self::Tying)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn stored_states_come_back() {
        for state in State::ALL {
            assert_eq!(State::from_raw(*state as u32), *state);
        }
        assert_eq!(State::from_raw(u32::MAX), State::Over);
    }

    /// Every pair of state and event, so that a new line of the table is written here too.
    #[test]
    fn the_table_is_this() {
        use Happening as H;
        use State as S;
        let expected = |state: S, what: H| match state {
            S::Over => None,
            S::Accepted => match what {
                H::PeerSpoke | H::StaysTcp => Some(S::Over),
                H::MayGreet => Some(S::Claiming),
                _ => None,
            },
            S::Claiming => match what {
                H::PeerSpoke | H::StaysTcp => Some(S::Over),
                H::Withdrawn => Some(S::Accepted),
                H::Greets => Some(S::Greeted),
                _ => None,
            },
            S::Greeted => match what {
                H::PeerSpoke | H::StaysTcp => Some(S::Over),
                H::Asked => Some(S::Requested),
                _ => None,
            },
            S::Connected => match what {
                H::PeerSpoke | H::StaysTcp => Some(S::Over),
                H::Used => Some(S::Listening),
                _ => None,
            },
            S::Listening => match what {
                H::PeerSpoke | H::StaysTcp => Some(S::Over),
                H::Heard => Some(S::Dialling),
                _ => None,
            },
            S::Requested | S::Dialling => match what {
                H::StaysTcp | H::Failed => Some(S::Over),
                H::Established => Some(S::Stands),
                _ => None,
            },
            S::Stands => match what {
                H::Failed => Some(S::Over),
                H::LeavesTcp => Some(S::Tying),
                _ => None,
            },
            S::Tying => (what == H::Tied).then_some(S::Over),
        };
        for state in S::ALL {
            for what in H::ALL {
                assert_eq!(state.after(*what), expected(*state, *what), "{state:?} {what:?}");
            }
        }
    }

    /// TCP is left only where RDMA stands, and from everywhere the table leads to an end.
    #[test]
    fn every_way_ends() {
        for start in [State::Accepted, State::Connected] {
            let mut reached = vec![start];
            let mut i = 0;
            while i < reached.len() {
                for what in Happening::ALL {
                    if let Some(next) = reached[i].after(*what) {
                        assert!(next != State::Tying || reached[i] == State::Stands);
                        if !reached.contains(&next) {
                            reached.push(next);
                        }
                    }
                }
                i += 1;
            }
            assert!(reached.contains(&State::Over) && reached.contains(&State::Tying));
        }
    }
}
