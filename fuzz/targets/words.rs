//! A whole stream whose peer says anything in any order, while the program and the device do what
//! they may.
//!
//! Whatever comes, what is sent goes where the peer's last entries point, and what is read lies in
//! our buffer. A peer that broke a rule is not listened to again.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rsocket_core::proto::RecvParams;
use rsocket_core::proto::control::Mode;
use rsocket_core::proto::ramp::Ramp;
use rsocket_core::proto::state::{Event, State};
use rsocket_core::proto::stream::{Payload, Readable, Stream, StreamParams};
use rsocket_core::wire::private_data::PrivateData;
use rsocket_core::wire::sge::{Endian, Sge};
use rsocket_core::wire::word::Word;

#[derive(Arbitrary, Debug)]
enum Step {
    Word(u32),
    /// Words that are likely to be right.
    Data(u16),
    Credit(u16),
    Entry {
        addr: u64,
        rkey: u32,
        len: u32,
    },
    Sent(u8),
    Failed,
    Send(u32),
    Control(bool),
    Read(u16),
    ShutWrite,
    ShutBoth,
    PeerGone,
    Say(u32),
    KeepAlive,
}

#[derive(Arbitrary, Debug)]
struct Case {
    message_mode: bool,
    credits: u16,
    entries: u8,
    steps: Vec<Step>,
}

const BUFFER: u32 = 8192;

fuzz_target!(|case: Case| {
    let mode = if case.message_mode { Mode::Message } else { Mode::Immediate };
    let recv = RecvParams { queue: 16, segments: 2, large: BUFFER / 2, small: 0 };
    let table = Sge { addr: 0x1000, rkey: 1, len: 2 };
    let buffer = Sge { addr: 0x10_0000, rkey: 2, len: BUFFER };
    let params = StreamParams { mode, send_queue: 12, recv, buffer, table, iomaps: 0 };
    let peer = PrivateData {
        endian: Endian::Little,
        credits: case.credits.max(1),
        iomap: None,
        notes: false,
        table: Sge { addr: 0x2000, rkey: 3, len: u32::from(case.entries.max(2)) },
        buffer: Sge { addr: 0x20_0000, rkey: 4, len: 4096 },
    };
    let mut stream = Stream::new(&params, &peer).expect("a fair offer");
    // Where the peer said that bytes may go.
    let mut allowed = vec![peer.buffer];
    let mut posted = Vec::new();
    for step in case.steps {
        let was_thrown_out = stream.violation().is_some();
        match step {
            Step::Word(word) => drop(stream.on_word(Word(word))),
            Step::Data(len) => drop(stream.on_word(Word(u32::from(len)))),
            Step::Credit(limit) => drop(stream.on_word(Word::sgl(limit, 0))),
            Step::Entry { addr, rkey, len } => {
                let entry = Sge { addr, rkey, len };
                if let Some(index) = stream.expected_entry()
                    && stream.on_entry(index, entry).is_ok()
                {
                    allowed.push(entry);
                }
            }
            Step::Sent(which) => {
                if !posted.is_empty() {
                    let token = posted.remove(usize::from(which) % posted.len());
                    stream.on_sent(token);
                }
            }
            Step::Failed => stream.on_failed(),
            Step::Send(len) => {
                if let Some(post) = stream.next_data(&mut Ramp::FLAT.clone(), len) {
                    assert!(stream.state().writable() && post.target.len > 0);
                    let end = post.target.end().expect("within memory");
                    let inside = |a: &Sge| {
                        a.rkey == post.target.rkey
                            && a.addr <= post.target.addr
                            && a.end().is_some_and(|e| end <= e)
                    };
                    assert!(allowed.iter().any(inside), "{:?} is not in {allowed:?}", post.target);
                    posted.push(post.token);
                }
            }
            Step::Control(grow) => {
                if let Some(post) = stream.next_control(grow) {
                    if let Payload::Entry(_) = post.payload {
                        let offset = post.target.addr - peer.table.addr;
                        assert!(offset / 16 < u64::from(peer.table.len) && post.target.rkey == 3);
                    }
                    posted.push(post.token);
                }
            }
            Step::Read(n) => {
                if let Ok(Readable::Bytes(region)) = stream.next_read() {
                    assert!(!was_thrown_out);
                    assert!(
                        region.len > 0
                            && region.offset.checked_add(region.len).is_some_and(|e| e <= BUFFER)
                    );
                    stream.on_read(region.len.min(u32::from(n)));
                }
            }
            Step::ShutWrite => drop(stream.on_event(Event::ShutWrite)),
            Step::ShutBoth => drop(stream.on_event(Event::ShutBoth)),
            Step::PeerGone => drop(stream.on_event(Event::PeerGone)),
            Step::Say(word) => posted.extend(stream.say(Word(word)).map(|post| post.token)),
            Step::KeepAlive => posted.extend(stream.keep_alive()),
        }
        if was_thrown_out {
            assert_eq!(stream.room(), 0);
            assert!(matches!(stream.state(), State::Error | State::Closing | State::Disconnected));
        }
    }
});
