//! The states of a stream socket over a queue pair, and what moves it between them
//! (`wire-protocol §6`).
//!
//! Knows nothing of data: a state says which directions are open and which word a change puts on
//! the wire. Entry point: [`State::step`], total over states and events; the test below prints all
//! of it.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use crate::word::Word;

/// Where a socket is in its life (`wire-protocol §6.3`). A connected socket has two independent
/// flags in the specification; here each of their combinations is a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Fresh.
    Init,
    /// Has a local address.
    Bound,
    /// Accepts connections, and does nothing else any more.
    Listening,
    /// Connecting: which device and neighbour lead to the address?
    ResolvingAddress,
    /// Connecting: which path?
    ResolvingRoute,
    /// Connecting: the request is out.
    Connecting,
    /// Accepted, but the other side has not confirmed.
    Accepting,
    /// Connected in both directions.
    Open,
    /// Connected; we send no more.
    ReadOnly,
    /// Connected; nothing more will be read, because the peer or the application closed that side.
    WriteOnly,
    /// DISCONNECT is on its way.
    Closing,
    /// Over.
    Disconnected,
    /// Connecting failed.
    ConnectError,
    /// The device failed, or the peer broke a rule.
    Error,
}

/// What can happen to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Event {
    /// The application binds.
    Bind,
    /// The application listens.
    Listen,
    /// The application connects.
    Connect,
    /// A socket is made for a connection request.
    Accept,
    /// The address was resolved.
    AddressResolved,
    /// The route was resolved.
    RouteResolved,
    /// The connection stands.
    Established,
    /// A step of connecting failed.
    ConnectFailed,
    /// `shutdown(SHUT_RD)`.
    ShutRead,
    /// `shutdown(SHUT_WR)`.
    ShutWrite,
    /// `shutdown(SHUT_RDWR)`, or close.
    ShutBoth,
    /// The word SHUTDOWN arrived.
    GotShutdown,
    /// The word DISCONNECT arrived.
    GotDisconnect,
    /// Our DISCONNECT has left.
    DisconnectSent,
    /// The connection manager says that the peer is gone.
    PeerGone,
    /// A work request failed, or the peer broke a rule.
    Failed,
}

/// What an event does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Move, and send the word if there is one.
    Go(State, Option<Word>),
    /// Nothing changes: the event is late or without meaning here.
    Stay,
    /// The application asked for something that this state does not have.
    Refuse,
}

impl State {
    /// Every state, for tables.
    pub const ALL: [Self; 14] = [
        Self::Init,
        Self::Bound,
        Self::Listening,
        Self::ResolvingAddress,
        Self::ResolvingRoute,
        Self::Connecting,
        Self::Accepting,
        Self::Open,
        Self::ReadOnly,
        Self::WriteOnly,
        Self::Closing,
        Self::Disconnected,
        Self::ConnectError,
        Self::Error,
    ];

    /// Whether the application may send.
    #[must_use]
    pub const fn writable(self) -> bool {
        matches!(self, Self::Open | Self::WriteOnly)
    }

    /// Whether more may arrive for the application. What arrived before stays readable in any
    /// state.
    #[must_use]
    pub const fn readable(self) -> bool {
        matches!(self, Self::Open | Self::ReadOnly)
    }

    /// Whether words may be sent and received at all. While [`Closing`](Self::Closing) the last one
    /// is already posted.
    #[must_use]
    pub const fn connected(self) -> bool {
        matches!(self, Self::Open | Self::ReadOnly | Self::WriteOnly)
    }

    /// Whether it is waiting for the connection to stand.
    #[must_use]
    pub const fn opening(self) -> bool {
        matches!(
            self,
            Self::ResolvingAddress | Self::ResolvingRoute | Self::Connecting | Self::Accepting
        )
    }

    /// What `event` does here.
    #[must_use]
    pub const fn step(self, event: Event) -> Step {
        use Event as E;
        match event {
            E::Bind | E::Listen | E::Connect | E::Accept => self.begin(event),
            E::ConnectFailed | E::PeerGone | E::Failed if self.opening() => {
                Step::Go(Self::ConnectError, None)
            }
            E::AddressResolved | E::RouteResolved | E::Established | E::ConnectFailed => {
                self.open(event)
            }
            E::ShutRead | E::ShutWrite | E::ShutBoth => self.shut(event),
            E::GotShutdown | E::GotDisconnect | E::DisconnectSent | E::PeerGone | E::Failed => {
                self.end(event)
            }
        }
    }

    /// The program names, offers or asks.
    const fn begin(self, event: Event) -> Step {
        use Event as E;
        use Step::{Go, Refuse, Stay};
        match (self, event) {
            (Self::Init, E::Bind) => Go(Self::Bound, None),
            (Self::Bound, E::Listen) => Go(Self::Listening, None),
            // A repeated listen is fine (`wire-protocol §11`).
            (Self::Listening, E::Listen) => Stay,
            (Self::Init | Self::Bound, E::Connect) => Go(Self::ResolvingAddress, None),
            // Connecting what is connected is a success that does nothing (`§11`).
            (Self::Open | Self::ReadOnly | Self::WriteOnly, E::Connect) => Stay,
            (Self::Init, E::Accept) => Go(Self::Accepting, None),
            _ => Refuse,
        }
    }

    /// The connection comes one step nearer to standing.
    const fn open(self, event: Event) -> Step {
        use Event as E;
        use Step::{Go, Stay};
        match (self, event) {
            (Self::ResolvingAddress, E::AddressResolved) => Go(Self::ResolvingRoute, None),
            (Self::ResolvingRoute, E::RouteResolved) => Go(Self::Connecting, None),
            (Self::Connecting | Self::Accepting, E::Established) => Go(Self::Open, None),
            _ => Stay,
        }
    }

    /// The program shuts a direction, or both (`wire-protocol §6.1`).
    const fn shut(self, event: Event) -> Step {
        use Event as E;
        use Step::{Go, Refuse, Stay};
        match (self, event) {
            (Self::Open, E::ShutWrite) => Go(Self::ReadOnly, Some(Word::SHUTDOWN)),
            (Self::Open, E::ShutRead) => Go(Self::WriteOnly, None),
            (Self::WriteOnly, E::ShutWrite | E::ShutBoth) => {
                Go(Self::Closing, Some(Word::DISCONNECT))
            }
            (Self::ReadOnly, E::ShutRead | E::ShutBoth) => {
                Go(Self::Closing, Some(Word::DISCONNECT))
            }
            (Self::Open, E::ShutBoth) => Go(Self::Closing, Some(Word::DISCONNECT)),
            (Self::WriteOnly, E::ShutRead) | (Self::ReadOnly, E::ShutWrite) => Stay,
            (Self::Closing | Self::Disconnected | Self::Error, _) => Stay,
            _ => Refuse,
        }
    }

    /// The peer ends a direction, or the connection is over (`wire-protocol §6.2`).
    const fn end(self, event: Event) -> Step {
        use Event as E;
        use Step::{Go, Stay};
        match (self, event) {
            (Self::Open, E::GotShutdown) => Go(Self::WriteOnly, None),
            (Self::WriteOnly, E::GotShutdown) => Stay,
            (Self::ReadOnly | Self::Closing, E::GotShutdown) => Go(Self::Disconnected, None),
            (Self::Closing, E::DisconnectSent) => Go(Self::Disconnected, None),
            (
                Self::Open | Self::ReadOnly | Self::WriteOnly | Self::Closing,
                E::GotDisconnect | E::PeerGone,
            ) => Go(Self::Disconnected, None),
            (Self::Open | Self::ReadOnly | Self::WriteOnly, E::Failed) => Go(Self::Error, None),
            // The peer's queue pair is gone as soon as it has our word, or we have its: not an
            // error.
            (Self::Closing, E::Failed) => Go(Self::Disconnected, None),
            _ => Stay,
        }
    }
}

impl Event {
    /// Every event, for tables.
    pub const ALL: [Self; 16] = [
        Self::Bind,
        Self::Listen,
        Self::Connect,
        Self::Accept,
        Self::AddressResolved,
        Self::RouteResolved,
        Self::Established,
        Self::ConnectFailed,
        Self::ShutRead,
        Self::ShutWrite,
        Self::ShutBoth,
        Self::GotShutdown,
        Self::GotDisconnect,
        Self::DisconnectSent,
        Self::PeerGone,
        Self::Failed,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state with every event: `.` stays, `!` refuses.
    const TABLE: &str = include_str!("state_table.txt");

    fn table() -> String {
        let mut out = String::new();
        for state in State::ALL {
            for event in Event::ALL {
                let effect = match state.step(event) {
                    Step::Stay => ".".to_owned(),
                    Step::Refuse => "!".to_owned(),
                    Step::Go(next, None) => format!("{next:?}"),
                    Step::Go(next, Some(word)) => format!("{next:?} {:08x}", word.0),
                };
                out +=
                    &format!("{:<17}{:<16}{effect}\n", format!("{state:?}"), format!("{event:?}"));
            }
        }
        out
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes of comparing text")]
    fn the_table_is_the_one_that_was_reviewed() {
        let table = table();
        if std::env::var_os("BLESS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/proto/state_table.txt");
            std::fs::write(path, &table).unwrap();
            return;
        }
        for (now, reviewed) in table.lines().zip(TABLE.lines()) {
            assert_eq!(now, reviewed);
        }
        assert_eq!(table, TABLE);
    }

    #[test]
    fn the_ends_are_the_end() {
        for state in [State::Disconnected, State::ConnectError, State::Error] {
            for event in Event::ALL {
                assert!(!matches!(state.step(event), Step::Go(..)), "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_word_is_sent_only_while_connected() {
        for state in State::ALL {
            for event in Event::ALL {
                if let Step::Go(next, Some(_)) = state.step(event) {
                    assert!(state.connected() && !next.writable(), "{state:?} {event:?}");
                }
            }
        }
    }
}
