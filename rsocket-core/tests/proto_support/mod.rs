//! What the tests of the protocol over a device share: one end of a connection with everything that
//! drives it. Entry point: [`End`].
#![allow(dead_code, reason = "not every test uses all of it")]

use rsocket_core::device::sim::{self, SimPair, Weather, World};
use rsocket_core::device::{Completion, HALF, QueuePair};
use rsocket_core::proto::ramp::Ramp;
use rsocket_core::proto::recv_half::{RecvHalf, RecvParams};
use rsocket_core::proto::state::{Event, State};
use rsocket_core::proto::stream::{Payload, Post, Readable, Stream, StreamParams};
use rsocket_core::proto::{Region, Violation};
use rsocket_core::wire::private_data::PrivateData;
use rsocket_core::wire::sge::{Endian, Sge};
use rsocket_core::wire::word::{Message, Word};
use std::cell::RefCell;
use std::rc::Rc;

pub(crate) const UPSTREAM: RecvParams =
    RecvParams { queue: 384, segments: 2, large: 65536, small: 0 };

/// One end of a connection.
pub(crate) struct End<P = SimPair> {
    pub(crate) pair: P,
    pub(crate) stream: Stream,
    pub(crate) params: StreamParams,
    /// Everything that was posted, in order.
    pub(crate) log: Vec<(Sge, Word)>,
    /// What the peer did wrong, if it did.
    pub(crate) violation: Option<Violation>,
    /// The pair said that it ended.
    pub(crate) ended: bool,
    /// Full-size segments from now on.
    pub(crate) grow: bool,
}

/// Registers what an end needs and says how it wants to receive. `entries` is the length of its
/// table.
pub(crate) fn prepare(
    pair: &mut impl QueuePair,
    recv: RecvParams,
    entries: u32,
    send_queue: u16,
) -> StreamParams {
    let table = pair.register(entries * 16).unwrap();
    let buffer = pair.register(RecvHalf::buffer_len(&recv)).unwrap();
    // Eight more than the credits, for words that cost none (`wire-protocol §5.5`).
    pair.post_receives(recv.queue + 8).unwrap();
    StreamParams {
        mode: pair.mode(),
        send_queue,
        recv,
        buffer,
        table: Sge { len: entries, ..table },
        iomaps: 0,
    }
}

/// Two ends of an established connection. Each receives as its parameters say; the tables are as
/// long as the other side has segments.
pub(crate) fn connect(weather: Weather, recv: [RecvParams; 2]) -> (Rc<RefCell<World>>, End, End) {
    connect_as(weather, recv, true)
}

/// The same; each takes the other for one of ours, or for upstream.
pub(crate) fn connect_as(
    weather: Weather,
    recv: [RecvParams; 2],
    notes: bool,
) -> (Rc<RefCell<World>>, End, End) {
    let (world, mut a, mut b) = sim::pair(weather);
    let [ra, rb] = recv;
    let pa = prepare(&mut a, ra, rb.segments, weather.send_queue);
    let pb = prepare(&mut b, rb, ra.segments, weather.send_queue);
    let heard = |params: StreamParams| PrivateData { notes, ..params.private_data() };
    (world, End::new(a, pa, &heard(pb)), End::new(b, pb, &heard(pa)))
}

impl<P: QueuePair> End<P> {
    pub(crate) fn new(pair: P, params: StreamParams, peer: &PrivateData) -> Self {
        let peer = PrivateData::parse(&peer.to_bytes()).unwrap();
        let stream = Stream::new(&params, &peer).unwrap();
        Self { pair, stream, params, log: Vec::new(), violation: None, ended: false, grow: false }
    }

    /// Polls, feeds the stream, and posts what it has to say; whether anything happened.
    pub(crate) fn progress(&mut self) -> bool {
        let mut moved = false;
        let mut batch = [Completion::None; 4];
        loop {
            let count = self.pair.poll(&mut batch);
            for completion in &batch[..count] {
                moved = true;
                self.completed(*completion);
            }
            if count == 0 {
                break;
            }
        }
        while self.violation.is_none()
            && let Some(post) = self.stream.next_control(self.grow)
        {
            moved = true;
            self.post(&post, &[]);
        }
        moved
    }

    fn completed(&mut self, completion: Completion) {
        match completion {
            Completion::None
            | Completion::Sent { token: HALF }
            | Completion::Failed { token: HALF } => {}
            Completion::Sent { token } => self.stream.on_sent(token),
            Completion::Failed { .. } => self.stream.on_failed(),
            Completion::Ended => {
                self.ended = true;
                self.stream.on_event(Event::PeerGone);
            }
            Completion::Word(word) => {
                let _ = self.pair.post_receives(1);
                let taken = self.stream.on_word(word);
                let announced = matches!(word.message(), Ok(Message::Sgl(_)));
                let outcome = taken.and_then(|()| if announced { self.entry() } else { Ok(()) });
                self.judge(outcome);
            }
        }
    }

    /// Reads the entry that an SGL word may have announced.
    fn entry(&mut self) -> Result<(), Violation> {
        let Some(index) = self.stream.expected_entry() else { return Ok(()) };
        let at = self.params.table.addr + u64::from(index) * 16;
        let mut bytes = [0; 16];
        self.pair.load(at, &mut bytes).unwrap();
        let entry = Sge::from_bytes(bytes, Endian::NATIVE);
        if entry.len == 0 {
            return Ok(());
        }
        self.pair.store(at + 12, &[0; 4]).unwrap();
        self.stream.on_entry(index, entry)
    }

    fn judge(&mut self, outcome: Result<(), Violation>) {
        if let Err(violation) = outcome {
            self.violation.get_or_insert(violation);
            self.pair.close();
        }
    }

    fn post(&mut self, post: &Post, data: &[u8]) {
        let bytes = match &post.payload {
            Payload::None => &[],
            Payload::Data => data,
            Payload::Entry(bytes) => &bytes[..],
        };
        assert_eq!(bytes.len(), post.target.len as usize);
        self.log.push((post.target, post.word));
        // The stream counts work requests: that there is room is its business. The pair may have
        // ended.
        let outcome = self.pair.post_message(bytes, post.target, post.word, post.token);
        assert!(
            !matches!(outcome, Err(rsocket_core::device::PostError::Full)),
            "slots are counted wrong"
        );
    }

    /// A nonblocking send call as upstream does it: progress only when stuck.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> usize {
        let mut ramp = Ramp::UPSTREAM;
        let mut done = 0;
        for again in [true, false] {
            while let Some(post) = self.stream.next_data(&mut ramp, (bytes.len() - done) as u32) {
                let len = post.target.len as usize;
                self.post(&post, &bytes[done..done + len]);
                done += len;
            }
            if done == bytes.len() || !again {
                break;
            }
            self.progress();
        }
        done
    }

    /// A nonblocking receive call: everything there is, up to `most`.
    pub(crate) fn recv(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < most {
            match self.stream.next_read() {
                Ok(Readable::Bytes(Region { offset, len })) => {
                    let len = (len as usize).min(most - bytes.len());
                    let start = bytes.len();
                    bytes.resize(start + len, 0);
                    let addr = self.params.buffer.addr + u64::from(offset);
                    self.pair.load(addr, &mut bytes[start..]).unwrap();
                    self.stream.on_read(len as u32);
                }
                Ok(_) => break,
                Err(violation) => {
                    self.judge(Err(violation));
                    break;
                }
            }
        }
        bytes
    }

    /// What a read finds that has read everything.
    pub(crate) fn verdict(&mut self) -> Readable {
        self.stream.next_read().unwrap_or(Readable::Broken)
    }

    pub(crate) fn state(&self) -> State {
        self.stream.state()
    }
}

/// Lets everything happen that happens by itself.
pub(crate) fn settle(world: &RefCell<World>) {
    while world.borrow_mut().step() {}
}

/// Byte `i` of a stream; long enough a period to notice any displacement.
pub(crate) fn byte(i: u64) -> u8 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn bytes(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(byte).collect()
}
