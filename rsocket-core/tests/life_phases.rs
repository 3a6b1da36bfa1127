//! Every interleaving of two ends that pair, switch both directions, lapse and refuse, walked
//! exhaustively over the tables of `machine`.
//!
//! The test checks in every state that can be reached:
//! - No step asks a table for a transition that the table does not have.
//! - A byte goes into the device only when both ends have the channel.
//! - A receiver takes the device's bytes only after a switch offset.
//! - From that state both ends can still come to rest.

use std::collections::{HashMap, HashSet};

use rsocket_core::conn::machine::{
    Phase, PhaseEvent, ReceiveEvent, ReceiveMode, SendEvent, SendMode,
};

/// What one message's channel holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Channel {
    None,
    HelloSent,
    Acknowledged,
    Closed,
}

/// One direction, with the words that its ends have written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Direction {
    receive: ReceiveMode,
    send: SendMode,
    acknowledged: bool,
    cut: bool,
    /// The device was ever written to.
    used: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct World {
    connecting: Phase,
    accepting: Phase,
    /// The ends are on two hosts: the channel is a request over RDMA and what became of it.
    apart: bool,
    offer: bool,
    channel: Channel,
    /// Connecting to accepting, and back.
    directions: [Direction; 2],
}

const START: World = World {
    connecting: Phase::Unconnected,
    accepting: Phase::Unconnected,
    apart: false,
    offer: false,
    channel: Channel::None,
    directions: [Direction {
        receive: ReceiveMode::Kernel,
        send: SendMode::Kernel,
        acknowledged: false,
        cut: false,
        used: false,
    }; 2],
};

fn phase(p: Phase, e: PhaseEvent) -> Phase {
    p.after(e).unwrap_or_else(|| panic!("{p:?} does not expect {e:?}"))
}

/// What `pairing` may do next at the connecting side.
fn connecting(w: World, out: &mut Vec<World>) {
    use PhaseEvent as E;
    let p = w.connecting;
    match p {
        Phase::Unconnected => out.push(World { connecting: phase(p, E::Established), ..w }),
        Phase::Young if w.apart => {
            if w.channel == Channel::None {
                out.push(World {
                    connecting: phase(p, E::Dialled),
                    channel: Channel::HelloSent,
                    ..w
                });
            }
        }
        Phase::Dialling => {
            // Refused, or the wire broke; what was granted is void.
            out.push(World { connecting: phase(p, E::Lapsed), channel: Channel::Closed, ..w });
            if w.channel == Channel::Acknowledged {
                out.push(World { connecting: phase(p, E::Met), ..w });
            }
        }
        Phase::Young => out.push(World { connecting: phase(p, E::OfferOpened), offer: true, ..w }),
        Phase::Offered => {
            // The name goes with the offer; a hello that this end has not picked up goes too.
            let channel = if w.channel == Channel::HelloSent { Channel::Closed } else { w.channel };
            out.push(World { connecting: phase(p, E::Lapsed), offer: false, channel, ..w });
            if w.channel == Channel::HelloSent {
                out.push(World { connecting: phase(p, E::PeerCame), offer: false, ..w });
            }
        }
        Phase::Greeted => {
            out.push(World { connecting: phase(p, E::Lapsed), channel: Channel::Closed, ..w });
            if w.channel == Channel::HelloSent {
                out.push(World {
                    connecting: phase(p, E::HelloAnswered),
                    channel: Channel::Acknowledged,
                    ..w
                });
            }
        }
        Phase::HelloSent => unreachable!("the accepting side's"),
        Phase::Paired | Phase::Refused => {}
    }
    if p != Phase::Refused {
        let channel =
            if matches!(p, Phase::Offered | Phase::Greeted) && w.channel == Channel::HelloSent {
                Channel::Closed
            } else {
                w.channel
            };
        let mut w = World { connecting: phase(p, E::Refuse), offer: false, channel, ..w };
        if p == Phase::Paired {
            leave(&mut w, 0);
        }
        out.push(w);
    }
}

/// The same at the accepting side.
fn accepting(w: World, out: &mut Vec<World>) {
    use PhaseEvent as E;
    let p = w.accepting;
    match p {
        Phase::Unconnected => out.push(World { accepting: phase(p, E::Established), ..w }),
        Phase::Young if w.apart && w.channel == Channel::HelloSent => {
            out.push(World { channel: Channel::Acknowledged, ..w });
            out.push(World { channel: Channel::Closed, ..w });
        }
        // The answer was taken.
        Phase::Young
            if w.apart && w.channel == Channel::Acknowledged && w.connecting == Phase::Paired =>
        {
            out.push(World { accepting: phase(p, E::Met), ..w });
        }
        Phase::Dialling => unreachable!("the connecting side's"),
        Phase::Young if w.offer => {
            out.push(World { accepting: phase(p, E::HelloSent), channel: Channel::HelloSent, ..w });
        }
        Phase::Young => {}
        Phase::HelloSent => {
            out.push(World { accepting: phase(p, E::Lapsed), channel: Channel::Closed, ..w });
            if w.channel == Channel::Acknowledged {
                out.push(World { accepting: phase(p, E::HelloAckRead), ..w });
            }
        }
        Phase::Offered | Phase::Greeted => unreachable!("the connecting side's"),
        Phase::Paired | Phase::Refused => {}
    }
    if p != Phase::Refused {
        let mut w = World { accepting: phase(p, E::Refuse), ..w };
        if p == Phase::HelloSent {
            w.channel = Channel::Closed;
        }
        if p == Phase::Paired {
            leave(&mut w, 1);
        }
        out.push(w);
    }
}

/// A side goes back: its sender and its receiver.
fn leave(w: &mut World, side: usize) {
    let [a, b] = &mut w.directions;
    let (outgoing, incoming) = if side == 0 { (a, b) } else { (b, a) };
    outgoing.send = outgoing.send.after(SendEvent::Return).expect("always possible");
    incoming.receive = incoming.receive.after(ReceiveEvent::Return).expect("always possible");
}

/// What the two ends of one direction may do next.
fn direction(w: World, d: usize, out: &mut Vec<World>) {
    let at = w.directions[d];
    let mut push = |next: Direction| {
        let mut w = w;
        w.directions[d] = next;
        out.push(w);
    };
    let (sender, receiver) =
        if d == 0 { (w.connecting, w.accepting) } else { (w.accepting, w.connecting) };
    if receiver == Phase::Paired {
        if let (ReceiveMode::Kernel, Some(receive)) =
            (at.receive, at.receive.after(ReceiveEvent::Paired))
        {
            push(Direction { receive, ..at });
        }
        if let (ReceiveMode::Asked, Some(receive)) =
            (at.receive, at.receive.after(ReceiveEvent::KernelEmpty))
        {
            push(Direction { receive, acknowledged: true, ..at });
        }
    }
    if at.cut && at.receive == ReceiveMode::Acknowledged {
        let receive =
            at.receive.after(ReceiveEvent::SwitchReached).expect("the cut was acknowledged");
        push(Direction { receive, ..at });
    }
    if sender == Phase::Paired && at.send == SendMode::Kernel && at.acknowledged {
        push(Direction { send: at.send.after(SendEvent::Acknowledged).expect("asked"), ..at });
    }
    if at.send == SendMode::Asked {
        push(Direction {
            send: at.send.after(SendEvent::SwitchPublished).expect("cut"),
            cut: true,
            ..at
        });
    }
    if at.send == SendMode::Device {
        push(Direction { used: true, ..at });
        // The receiver has gone back and says so; the sender gives way.
        if at.receive == ReceiveMode::Returned {
            push(Direction { send: at.send.after(SendEvent::Return).expect("way back"), ..at });
        }
    }
    if at.receive == ReceiveMode::Device && at.send == SendMode::Returned {
        push(Direction {
            receive: at.receive.after(ReceiveEvent::Return).expect("end mark"),
            ..at
        });
    }
}

fn check(w: &World) {
    for (d, at) in w.directions.iter().enumerate() {
        let went_paired = |p: Phase| matches!(p, Phase::Paired | Phase::Refused);
        if at.used || at.cut {
            assert!(at.acknowledged, "{d}: cut without acknowledgement in {w:?}");
            assert!(went_paired(w.connecting) && went_paired(w.accepting), "{w:?}");
            assert!(w.channel == Channel::Acknowledged, "the channel is shared: {w:?}");
        }
        if at.receive == ReceiveMode::Device {
            assert!(at.cut, "{w:?}");
        }
    }
}

#[test]
fn all_interleavings() {
    let apart = World { apart: true, ..START };
    let mut seen = HashMap::from([(START, Vec::new()), (apart, Vec::new())]);
    let mut todo = vec![START, apart];
    while let Some(w) = todo.pop() {
        check(&w);
        let mut next = vec![];
        connecting(w, &mut next);
        accepting(w, &mut next);
        direction(w, 0, &mut next);
        direction(w, 1, &mut next);
        next.retain(|n| *n != w);
        for n in &next {
            if !seen.contains_key(n) {
                seen.insert(*n, Vec::new());
                todo.push(*n);
            }
        }
        seen.insert(w, next);
    }
    assert!(seen.len() > 200, "{} states", seen.len());
    let device = |at: &Direction| at.receive == ReceiveMode::Device && at.send == SendMode::Device;
    for apart in [false, true] {
        let reached = seen.keys().any(|w| w.apart == apart && w.directions.iter().all(device));
        assert!(reached, "both directions reach the device");
    }
    // From everywhere both ends can come to rest: on the device for good, or on TCP.
    let rests = |w: &World| {
        w.directions.iter().all(|at| device(at) || (at.send.is_kernel() && at.receive.is_kernel()))
            && [w.connecting, w.accepting]
                .iter()
                .all(|p| matches!(p, Phase::Paired | Phase::Refused))
    };
    let mut good: HashSet<World> = seen.keys().filter(|w| rests(w)).copied().collect();
    loop {
        let more: Vec<World> = seen
            .iter()
            .filter(|(w, next)| !good.contains(*w) && next.iter().any(|n| good.contains(n)))
            .map(|(w, _)| *w)
            .collect();
        if more.is_empty() {
            break;
        }
        good.extend(more);
    }
    let stuck = seen.keys().find(|w| !good.contains(*w));
    assert_eq!(stuck, None, "of {} states", seen.len());
}
