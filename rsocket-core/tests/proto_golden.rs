//! The sequences of `wire-protocol §5.6`, `§5.7` and `§15`, as two ends over the simulated device
//! post them.

mod proto_support;

use proto_support::{End, UPSTREAM, bytes, connect, settle};
use rsocket_core::device::sim::Weather;
use rsocket_core::proto::control::Mode;
use rsocket_core::proto::recv_half::RecvParams;
use rsocket_core::proto::state::{Event, State};
use rsocket_core::proto::stream::Readable;
use rsocket_core::wire::word::Word;

/// What an end posted since the last time, as (what, offset, bytes, word).
fn posted(end: &mut End, peer: &End) -> Vec<(&'static str, u64, u32, u32)> {
    let (buffer, table) = (peer.params.buffer, peer.params.table);
    let place = |addr: u64, len: u32| match addr {
        _ if len == 0 => ("nothing", 0),
        a if a >= buffer.addr && a < buffer.addr + u64::from(buffer.len) => {
            ("buffer", a - buffer.addr)
        }
        a => ("sgl", a - table.addr),
    };
    let log = core::mem::take(&mut end.log);
    log.iter()
        .map(|(target, word)| {
            let (what, offset) = place(target.addr, target.len);
            (what, offset, target.len, word.0)
        })
        .collect()
}

#[test]
#[cfg_attr(miri, ignore = "half a million bytes")]
fn worked_example_of_section_5_7() {
    for mode in [Mode::Immediate, Mode::Message] {
        let (world, mut a, mut b) = connect(Weather { mode, ..Weather::default() }, [UPSTREAM; 2]);
        assert_eq!(a.send(&bytes(0, 5)), 5);
        assert_eq!(posted(&mut a, &b), [("buffer", 0, 5, 5)]);
        settle(&world);
        // B's first receive call processes its queue. It reads nothing yet, so that row 7 can read
        // all.
        b.progress();
        assert_eq!(posted(&mut b, &a), [("sgl", 16, 16, 0x8000_0180)]);
        settle(&world);
        assert_eq!(a.send(&bytes(5, 5)), 5);
        assert_eq!(posted(&mut a, &b), [("buffer", 5, 5, 5)]);

        let sent = a.send(&bytes(10, 500_000));
        assert_eq!(sent, 131_062);
        let expected = [
            ("buffer", 10, 2048, 2048),
            ("buffer", 2058, 4096, 4096),
            ("buffer", 6154, 8192, 8192),
            ("buffer", 14346, 16384, 16384),
            ("buffer", 30730, 32768, 32768),
            ("buffer", 63498, 2038, 2038),
            // A stops for want of a buffer, processes its queue, says its own first word and finds
            // B's entry. Upstream reads the entry in the table itself, hence before its own word.
            ("sgl", 16, 16, 0x8000_0180),
            ("buffer", 65536, 65536, 0x0001_0000),
        ];
        assert_eq!(posted(&mut a, &b), expected);

        settle(&world);
        b.progress();
        assert_eq!(b.recv(usize::MAX), bytes(0, 131_072));
        b.progress();
        assert_eq!(posted(&mut b, &a), [("sgl", 0, 16, 0x8000_0189), ("sgl", 16, 16, 0x8000_0189)]);

        settle(&world);
        a.progress();
        assert_eq!(a.send(&bytes(131_072, 5000)), 5000);
        assert_eq!(posted(&mut a, &b), [("buffer", 0, 2048, 2048), ("buffer", 2048, 2952, 2952)]);
    }
}

#[test]
fn send_sizes_of_section_15() {
    let (world, mut a, mut b) = connect(Weather::default(), [UPSTREAM; 2]);
    a.progress();
    b.progress();
    settle(&world);
    a.progress();
    assert_eq!(a.send(&[0; 10]), 10);
    a.log.clear();
    assert_eq!(a.send(&[0; 131_062]), 131_062);
    let sizes: Vec<_> = a.log.iter().map(|(target, _)| target.len).collect();
    assert_eq!(sizes, [2048, 4096, 8192, 16384, 32768, 2038, 65536]);
}

#[test]
fn credit_only_example_of_section_5_7() {
    let (world, mut a, mut b) =
        connect(Weather::default(), [RecvParams { queue: 16, ..UPSTREAM }; 2]);
    a.progress();
    b.progress();
    settle(&world);
    a.progress();
    for _ in 0..16 {
        assert_eq!(a.send(b"x"), 1);
    }
    assert_eq!(a.send(b"x"), 0);
    settle(&world);
    b.progress();
    posted(&mut b, &a);
    assert_eq!(b.recv(7).len(), 7);
    b.progress();
    assert_eq!(posted(&mut b, &a), []);
    assert_eq!(b.recv(1).len(), 1);
    b.progress();
    assert_eq!(posted(&mut b, &a), [("nothing", 0, 0, 0x8000_0018)]);
    settle(&world);
    assert_eq!(a.send(b"12345678"), 8);
    assert_eq!(a.stream.credits(), 7);
}

#[test]
fn half_close_and_close_of_section_15() {
    for mode in [Mode::Immediate, Mode::Message] {
        let (world, mut a, mut b) = connect(Weather { mode, ..Weather::default() }, [UPSTREAM; 2]);
        assert!(a.stream.on_event(Event::ShutWrite));
        a.progress();
        assert_eq!(
            posted(&mut a, &b),
            [("nothing", 0, 0, 0xe000_0002), ("sgl", 16, 16, 0x8000_0180)]
        );
        settle(&world);
        b.progress();
        assert_eq!(b.verdict(), Readable::End);
        b.log.clear();
        assert_eq!(b.send(b"bye"), 3);
        assert!(b.stream.on_event(Event::ShutBoth));
        b.progress();
        assert_eq!(posted(&mut b, &a), [("buffer", 0, 3, 3), ("nothing", 0, 0, 0xe000_0000)]);
        settle(&world);
        b.progress();
        assert_eq!(b.state(), State::Disconnected);
        a.progress();
        assert_eq!(a.recv(10), b"bye");
        assert_eq!((a.verdict(), a.state()), (Readable::End, State::Disconnected));
        assert!(
            a.log.iter().all(|(_, word)| *word != Word::DISCONNECT),
            "no reply to a DISCONNECT"
        );
    }
}
