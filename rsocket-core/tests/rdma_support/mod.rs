//! Pairs of the RDMA device, connected through the connection manager within this process, over the
//! device whose address `RSOCKET_TEST_RDMA` names.
#![allow(dead_code)]

use std::cell::RefCell;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rsocket_core::copy::Bytes;
use rsocket_core::device::conformance::Rig;
use rsocket_core::device::rdma::{CmId, Event, EventChannel, Kind, PairParams, Private, RdmaPair};
use rsocket_core::device::{Completion, MemoryError, PostError, QueuePair};
use rsocket_core::proto::control::Mode;
use rsocket_core::wire::sge::Sge;
use rsocket_core::wire::word::Word;

/// Longer than anything takes in a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nothing more comes after so long without anything: the retry timers of the devices are far
/// shorter.
const QUIET: Duration = Duration::from_millis(400);

pub(crate) const LISTENER: u64 = 1;

/// The address of the device to test.
pub(crate) fn address() -> IpAddr {
    let text = std::env::var("RSOCKET_TEST_RDMA")
        .expect("RSOCKET_TEST_RDMA names an RDMA device's address");
    text.parse().expect("RSOCKET_TEST_RDMA is an address")
}

/// One end, shared with the rig, which drives what its owner does not.
#[derive(Clone)]
pub(crate) struct End {
    pair: Rc<RefCell<Option<RdmaPair>>>,
    pub(crate) id: Rc<CmId>,
    pub(crate) key: u64,
}

impl End {
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut RdmaPair) -> T) -> T {
        f(self.pair.borrow_mut().as_mut().expect("it lives"))
    }
}

impl QueuePair for End {
    const SURVIVES: bool = RdmaPair::SURVIVES;

    fn mode(&self) -> Mode {
        self.with(|pair| pair.mode())
    }
    fn register(&mut self, len: u32) -> Result<Sge, MemoryError> {
        self.with(|pair| pair.register(len))
    }
    fn load(&self, addr: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        self.with(|pair| pair.load(addr, into))
    }
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.with(|pair| pair.store(addr, bytes))
    }
    fn post_receives(&mut self, count: u16) -> Result<(), PostError> {
        self.with(|pair| pair.post_receives(count))
    }
    fn room(&self) -> u16 {
        self.with(|pair| pair.room())
    }
    fn staging_room(&self) -> u32 {
        self.with(|pair| pair.staging_room())
    }
    fn post_write(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        self.with(|pair| pair.post_write(bytes, target, word, token))
    }
    fn post_send(&mut self, word: Word, token: u64) -> Result<(), PostError> {
        self.with(|pair| pair.post_send(word, token))
    }
    fn post_message(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        self.with(|pair| pair.post_message(bytes, target, word, token))
    }
    fn post_filled(
        &mut self,
        target: Sge,
        word: Option<Word>,
        token: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), PostError> {
        self.with(|pair| pair.post_filled(target, word, token, fill))
    }
    fn each_chunk(
        &self,
        addr: u64,
        len: u32,
        sink: &mut dyn FnMut(Bytes<'_>),
    ) -> Result<(), MemoryError> {
        self.with(|pair| pair.each_chunk(addr, len, sink))
    }
    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.with(|pair| pair.poll(into))
    }
    fn arm(&mut self) {
        self.with(RdmaPair::arm);
    }
    fn take_event(&mut self) -> bool {
        self.with(RdmaPair::take_event)
    }
    fn event_fd(&self) -> Option<c_int> {
        self.with(|pair| pair.event_fd())
    }
    fn close(&mut self) {
        self.with(RdmaPair::close);
    }
}

/// A listener, and the connections made to it.
pub(crate) struct Fabric {
    pub(crate) channel: EventChannel,
    pub(crate) listener: CmId,
    pub(crate) at: SocketAddr,
    pub(crate) params: PairParams,
    live: Vec<End>,
    next_key: u64,
    /// The other end of the live one is dead.
    killed: bool,
}

impl Fabric {
    pub(crate) fn new() -> Self {
        let channel = EventChannel::open().unwrap_or_else(|e| panic!("{e}"));
        let listener = CmId::new(&channel, LISTENER).unwrap();
        listener.bind(&SocketAddr::new(address(), 0)).unwrap();
        listener.listen(16).unwrap();
        let at = listener.local_address().unwrap();
        assert_ne!(at.port(), 0);
        let params = PairParams { spare_receives: 0, ..PairParams::default() };
        Self { channel, listener, at, params, live: Vec::new(), next_key: 10, killed: false }
    }

    /// A key that no identifier has yet.
    pub(crate) fn key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    /// The next event, whosever.
    pub(crate) fn event(&self) -> Event {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.channel.next().unwrap() {
                // A connection of before.
                Some(Event { kind: Kind::Other | Kind::Disconnected, .. }) => {}
                Some(event) => return event,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < deadline, "no event came");
        }
    }

    /// An identifier whose route to the address is resolved.
    pub(crate) fn resolved(&mut self, to: &SocketAddr) -> (CmId, u64) {
        let key = self.key();
        let id = CmId::new(&self.channel, key).unwrap();
        id.resolve_address(None, to, 2000).unwrap();
        let event = self.event();
        assert!(event.id == key && matches!(event.kind, Kind::AddressResolved), "{event:?}");
        id.resolve_route(2000).unwrap();
        let event = self.event();
        assert!(event.id == key && matches!(event.kind, Kind::RouteResolved), "{event:?}");
        (id, key)
    }

    /// Two connected ends, and what each was told by the other.
    pub(crate) fn connected(&mut self, request: &[u8], reply: &[u8]) -> ([End; 2], [Private; 2]) {
        let at = self.at;
        let (id, key) = self.resolved(&at);
        let near = id.create_pair(&self.params).unwrap_or_else(|e| panic!("{e}"));
        id.connect(request).unwrap();
        let event = self.event();
        assert_eq!(event.id, LISTENER, "{event:?}");
        let Kind::Request { id: far_id, private: requested, .. } = event.kind else {
            panic!("{event:?}")
        };
        let far_key = self.key();
        far_id.set_key(far_key).unwrap();
        let far = far_id.create_pair(&self.params).unwrap_or_else(|e| panic!("{e}"));
        far_id.accept(reply).unwrap();
        let mut answered = None;
        for _ in 0..2 {
            let event = self.event();
            let Kind::Established { private } = event.kind else { panic!("{event:?}") };
            if event.id == key {
                answered = Some(private);
            } else {
                assert_eq!(event.id, far_key);
            }
        }
        let end =
            |pair, id, key| End { pair: Rc::new(RefCell::new(Some(pair))), id: Rc::new(id), key };
        let ends = [end(near, id, key), end(far, far_id, far_key)];
        self.live = ends.to_vec();
        self.killed = false;
        (ends, [answered.expect("both ends are told"), requested])
    }

    /// Takes one event for the live ends; false when there is none.
    pub(crate) fn attend(&self) -> bool {
        let event = self.channel.next().unwrap();
        if let Some(Event { id, kind: Kind::Disconnected }) = &event {
            for end in self.live.iter().filter(|end| end.key == *id) {
                if let Some(pair) = end.pair.borrow_mut().as_mut() {
                    pair.peer_gone();
                }
            }
        }
        event.is_some()
    }

    /// Forgets the last ends, and destroys those that no other owner has.
    pub(crate) fn forget(&mut self) {
        self.live.clear();
    }
}

impl Rig for Fabric {
    type Pair = End;

    fn pair(&mut self) -> (End, End) {
        let ([near, far], _) = self.connected(b"", b"");
        (near, far)
    }

    fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let mut until = Instant::now() + QUIET;
        while Instant::now() < until {
            let happened = self.attend();
            let mut over = usize::from(self.killed);
            let mut all = over;
            for end in &self.live {
                if let Some(pair) = end.pair.borrow_mut().as_mut() {
                    pair.advance();
                    over += usize::from(pair.is_over());
                    all += 1;
                }
            }
            // The news of an end is under way to the other, however slow the machine is.
            if (happened || over % all != 0) && Instant::now() < deadline {
                until = Instant::now() + QUIET;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(&mut self, end: End) {
        // What the kernel does with a process's objects.
        end.pair.borrow_mut().take();
        self.live.retain(|other| other.key != end.key);
        self.killed = true;
    }

    fn holds_words_back(&self) -> bool {
        self.live.last().is_none_or(|end| end.mode() == Mode::Immediate)
    }
}

/// Takes all that it reports now.
pub(crate) fn drain(end: &mut impl QueuePair, seen: &mut Vec<Completion>) {
    let mut batch = [Completion::None; 64];
    loop {
        let count = end.poll(&mut batch);
        if count == 0 {
            return;
        }
        seen.extend_from_slice(&batch[..count]);
    }
}

/// Until `done` says so.
pub(crate) fn poll_until(
    ends: &mut [&mut End],
    mut done: impl FnMut(&[Vec<Completion>]) -> bool,
) -> Vec<Vec<Completion>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut seen = vec![Vec::new(); ends.len()];
    while !done(&seen) {
        for (end, seen) in ends.iter_mut().zip(&mut seen) {
            drain(*end, seen);
        }
        assert!(Instant::now() < deadline, "{seen:?}");
    }
    seen
}
