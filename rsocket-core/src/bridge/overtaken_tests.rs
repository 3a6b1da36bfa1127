//! Two programs that a TCP connection joins and two bridges beside it, as between hosts. TCP's FIN
//! is there before anything that the bridges carry: they run only when a test lets them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::pump::{PeerEnd, Pump, prepare};
use super::pump_tests::byte;
use super::{meeting, own_channel};
use crate::attach::remote;
use crate::channel::{handover_state, link};
use crate::conn::fork_group;
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::QueuePair;
use crate::device::sim::{self, SimPair, Weather, World};
use crate::failure::Failure;
use crate::given::In;
use crate::handover::{back, fds_in_flight};
use crate::host::events::Events;
use crate::readiness::epoll;
use crate::reason::Reason;
use crate::socket::{self, ready};
use crate::wire::private_data::PrivateData;

/// A number that no bridge of the process has: the pumps here are run by hand.
const NO_BRIDGE: u32 = 1 << 30;

struct Host {
    fd: Option<OwnedFd>,
    id: SlotId,
    pump: Pump<SimPair>,
    claim: (u32, u32),
}

impl Host {
    fn raw(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn slot(&self) -> &'static Slot {
        fork_group::slot(self.id).unwrap()
    }

    /// The two have met: it has its side of the channel.
    fn meet(&self) {
        assert!(meeting::met(self.id, self.slot(), NO_BRIDGE, self.claim.0, self.claim.1));
    }

    fn send(&self, bytes: &[u8]) {
        let v = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        assert_eq!(socket::send(self.id, self.raw(), &v, libc::MSG_DONTWAIT), Ok(bytes.len()));
    }

    fn receive(&self) -> Result<Vec<u8>, Failure> {
        receive(self.id, self.raw(), libc::MSG_DONTWAIT)
    }

    /// All that is there, in pieces that leave no room unused by chance.
    fn drain(&self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(more) = self.receive() {
            if more.is_empty() {
                break;
            }
            all.extend(more);
        }
        all
    }

    fn modes(&self) -> (ReceiveMode, SendMode) {
        (self.slot().receive_mode(), self.slot().send_mode())
    }

    fn shut_sending(&self) {
        socket::shutdown(self.id, self.raw(), libc::SHUT_WR);
        rustix::net::shutdown(self.fd.as_ref().unwrap(), rustix::net::Shutdown::Write).unwrap();
    }

    fn shut_both(&self) {
        socket::shutdown(self.id, self.raw(), libc::SHUT_RDWR);
        rustix::net::shutdown(self.fd.as_ref().unwrap(), rustix::net::Shutdown::Both).unwrap();
        socket::has_shut(self.id);
    }

    fn close(&mut self) {
        socket::closing(self.id, self.raw());
        self.fd = None;
    }

    /// What a poll for everything would show.
    fn polled(&self) -> Events {
        let all = Events::IN | Events::RDHUP;
        let look = ready::look(self.id, self.slot(), self.raw());
        let said = kernel_says(self.raw(), all.bits() as i16, 0)
            & (look.ask | Events::RDHUP | Events::HUP);
        let heard =
            if said.is_empty() { said } else { ready::heard(self.slot(), self.raw(), said) };
        (look.ready | heard) & all
    }

    /// Until the kernel has the peer's FIN.
    fn await_fin(&self) {
        assert!(
            kernel_says(self.raw(), Events::RDHUP.bits() as i16, 10_000).contains(Events::RDHUP)
        );
    }

    fn await_bytes(&self) {
        assert!(kernel_says(self.raw(), libc::POLLIN, 10_000).contains(Events::IN));
    }
}

fn receive(id: SlotId, fd: RawFd, flags: i32) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; 65536];
    let v = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let n = socket::receive(id, fd, &v, flags)?;
    bytes.truncate(n);
    Ok(bytes)
}

fn kernel_says(fd: RawFd, events: i16, milliseconds: i32) -> Events {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one pollfd, which is ours.
    unsafe { libc::poll(&raw mut one, 1, milliseconds) };
    Events::from_bits_truncate(u32::from(one.revents as u16))
}

type Hosts = (Rc<RefCell<World>>, Host, Host);

/// Two ends that have not met yet; the first one connected.
fn strangers() -> Hosts {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    let (world, mut pa, mut pb) = sim::pair(Weather::default());
    let send_queue = Weather::default().send_queue;
    let own_a = prepare(&mut pa, 384, 131_072, send_queue, 0).unwrap();
    let own_b = prepare(&mut pb, 384, 131_072, send_queue, 0).unwrap();
    let heard = |p: PrivateData| PrivateData::parse(&p.to_bytes()).unwrap();
    let host = |stream: std::net::TcpStream, pair, own, other, flags| {
        stream.set_nonblocking(true).unwrap();
        let fd = OwnedFd::from(stream);
        let id = fork_group::take(flags, fd.as_raw_fd()).unwrap();
        fork_group::slot(id).unwrap().set_phase(Phase::Young);
        let (claim, port) = own_channel::channel().unwrap();
        let pump = Pump::new(port, pair, &own, &heard(other)).unwrap().beside_tcp();
        Host { fd: Some(fd), id, pump, claim: (claim.record, claim.channel) }
    };
    let first = host(a, pa, own_a, own_b.private_data(), flag::CONNECTING);
    (world, first, host(b, pb, own_b, own_a.private_data(), 0))
}

/// Two ends that have met; each was told that the other may leave TCP, and neither has.
fn hosts() -> Hosts {
    let (world, mut a, mut b) = strangers();
    a.meet();
    b.meet();
    assert_eq!((a.receive(), b.receive()), (Err(Failure::Blocked), Err(Failure::Blocked)));
    settle(&world, &mut a, &mut b);
    assert_eq!(b.modes(), (ReceiveMode::Acknowledged, SendMode::Kernel));
    (world, a, b)
}

/// The bridges run, and what they sent arrives.
fn settle(world: &RefCell<World>, a: &mut Host, b: &mut Host) {
    loop {
        let mut moved = a.pump.run() | b.pump.run();
        while world.borrow_mut().step() {
            moved = true;
        }
        if !moved {
            return;
        }
    }
}

/// As a bridge's end tells its program.
fn is_lost(host: &mut Host) {
    assert_eq!((host.pump.peer(), host.pump.finished()), (PeerEnd::Broken, true));
    remote::lost(host.slot(), host.pump.committed());
}

#[test]
fn fin_before_the_switch_is_not_the_end() {
    for by_tcp in [&b"first by TCP, "[..], b""] {
        let (world, mut a, mut b) = hosts();
        if !by_tcp.is_empty() {
            // As a program's thread that is inside libc's call.
            assert_eq!(rustix::io::write(a.fd.as_ref().unwrap(), by_tcp), Ok(by_tcp.len()));
        }
        let long: Vec<u8> = (0..100_000).map(byte).collect();
        a.send(&long);
        assert_eq!(a.slot().send_mode(), SendMode::Device);
        a.close();
        b.await_fin();
        assert_eq!(b.drain(), by_tcp);
        assert_eq!(b.receive(), Err(Failure::Blocked), "the cut is still on its way");
        assert!(b.polled().is_empty());
        let mut got = Vec::new();
        for _ in 0..100 {
            settle(&world, &mut a, &mut b);
            got.extend(b.drain());
        }
        assert!(got == long, "{} of {} bytes", got.len(), long.len());
        assert_eq!(b.polled(), Events::IN | Events::RDHUP);
        assert_eq!(b.receive(), Ok(vec![]));
        b.close();
        settle(&world, &mut a, &mut b);
        assert!(a.pump.finished() && b.pump.finished());
    }
}

/// A program that was told that it can read, and then finds nothing, may take that for a failure.
#[test]
fn the_switch_alone_is_nothing_to_read() {
    for by_tcp in [&b"first by TCP, "[..], b""] {
        let (world, mut a, mut b) = hosts();
        assert_eq!(rustix::io::write(a.fd.as_ref().unwrap(), by_tcp), Ok(by_tcp.len()));
        a.send(b"by the device");
        a.shut_sending();
        b.await_fin();
        assert_eq!(b.drain(), by_tcp);
        assert!(b.polled().is_empty());
        // The first that the bridges bring is the word of the switch offset, and what is behind it
        // takes its time.
        let switch_offset =
            handover_state::switch_offset(&link::ends(a.slot()).unwrap().outgoing).unwrap();
        handover_state::publish_switch_offset(
            &link::ends(b.slot()).unwrap().incoming,
            switch_offset,
        );
        assert!(b.polled().is_empty());
        assert_eq!(b.receive(), Err(Failure::Blocked));
        assert!(b.polled().is_empty());
        settle(&world, &mut a, &mut b);
        assert!(b.polled().contains(Events::IN));
        assert_eq!((b.receive(), b.receive()), (Ok(b"by the device".to_vec()), Ok(vec![])));
    }
}

#[test]
fn fin_behind_the_words_is_the_end_at_once() {
    let (world, mut a, mut b) = hosts();
    a.send(b"by the device");
    a.shut_sending();
    settle(&world, &mut a, &mut b);
    assert_eq!(b.receive().unwrap(), b"by the device");
    assert_eq!(b.receive(), Ok(vec![]));
    b.await_fin();
    assert_eq!(b.receive(), Ok(vec![]));
}

#[test]
fn who_never_left_tcp_ends_there() {
    for half in [true, false] {
        let (world, mut a, mut b) = hosts();
        assert_eq!(rustix::io::write(a.fd.as_ref().unwrap(), b"all by TCP"), Ok(10));
        if half {
            a.shut_sending()
        } else {
            a.close()
        }
        b.await_fin();
        assert_eq!(b.polled(), Events::IN, "bytes, and nobody knows whether that is all");
        assert_eq!(b.receive().unwrap(), b"all by TCP");
        assert_eq!((b.receive(), b.polled()), (Err(Failure::Blocked), Events::empty()));
        settle(&world, &mut a, &mut b);
        assert_eq!(b.polled(), Events::IN | Events::RDHUP);
        assert_eq!((b.receive(), b.receive()), (Ok(vec![]), Ok(vec![])));
    }
}

#[test]
fn the_words_may_come_before_what_tcp_brings() {
    let (world, mut a, mut b) = hosts();
    socket::shutdown(a.id, a.raw(), libc::SHUT_WR);
    settle(&world, &mut a, &mut b);
    assert_eq!(
        (b.receive(), b.polled()),
        (Err(Failure::Blocked), Events::empty()),
        "TCP goes on until its FIN"
    );
    rustix::io::write(a.fd.as_ref().unwrap(), b"late").unwrap();
    b.await_bytes();
    assert_eq!(b.receive().unwrap(), b"late");
    a.close();
    b.await_fin();
    assert_eq!((b.polled(), b.receive()), (Events::IN | Events::RDHUP, Ok(vec![])));
}

#[test]
fn a_direction_that_was_shut_before_the_two_met_ends_too() {
    let (world, mut a, mut b) = strangers();
    a.shut_sending();
    a.meet();
    b.meet();
    b.await_fin();
    // A program that has polled the kernel knows of an end to read. A sender that sent FIN before
    // it was told cannot have left TCP.
    assert_eq!((b.polled(), b.receive()), (Events::IN | Events::RDHUP, Ok(vec![])));
    assert_eq!(b.slot().receive_mode(), ReceiveMode::Asked);
    settle(&world, &mut a, &mut b);
    assert_eq!(b.receive(), Ok(vec![]));
    b.send(b"answer");
    settle(&world, &mut a, &mut b);
    assert_eq!(a.receive().unwrap(), b"answer");
}

#[test]
fn half_a_close_leaves_the_other_direction_to_go_on() {
    let (world, mut a, mut b) = hosts();
    a.shut_sending();
    b.await_fin();
    // The answer leaves TCP behind all the same.
    b.send(b"answer");
    assert_eq!(b.slot().send_mode(), SendMode::Device);
    assert_eq!(b.receive(), Err(Failure::Blocked));
    settle(&world, &mut a, &mut b);
    assert_eq!((a.receive().unwrap(), b.receive()), (b"answer".to_vec(), Ok(vec![])));
    b.send(b", more");
    b.shut_sending();
    a.await_fin();
    assert_eq!(a.receive(), Err(Failure::Blocked));
    settle(&world, &mut a, &mut b);
    assert_eq!((a.receive().unwrap(), a.receive()), (b", more".to_vec(), Ok(vec![])));
    a.close();
    b.close();
    settle(&world, &mut a, &mut b);
    assert!(a.pump.finished() && b.pump.finished());
}

/// TCP's kernel cannot tell a sender that has left TCP. The end of a program that shuts both
/// directions is where its own bytes went.
#[test]
fn who_takes_nothing_more_tells_a_sender_that_has_left_tcp() {
    for back in [false, true] {
        let (world, mut a, mut b) = hosts();
        b.send(b"by the device");
        settle(&world, &mut a, &mut b);
        if back {
            back::refuse(a.id, a.raw(), Reason::OddUse);
            settle(&world, &mut a, &mut b);
        }
        a.shut_both();
        settle(&world, &mut a, &mut b);
        assert_eq!((a.drain(), a.receive()), (b"by the device".to_vec(), Ok(vec![])));
        b.await_fin();
        assert_eq!((b.receive(), b.pump.peer()), (Ok(vec![]), PeerEnd::Closed), "back: {back}");
        assert!(a.pump.finished() && b.pump.finished());
    }
}

#[test]
fn fin_is_believed_while_no_acknowledgement_was_given() {
    let (_world, mut a, b) = strangers();
    a.meet();
    b.meet();
    let s = b.slot();
    // A thread is inside libc's call, so that the direction cannot leave TCP.
    s.inside_receive.fetch_add(1, Ordering::SeqCst);
    assert_eq!((b.receive(), s.receive_mode()), (Err(Failure::Blocked), ReceiveMode::Asked));
    a.close();
    b.await_fin();
    assert_eq!(b.receive(), Ok(vec![]));
    s.inside_receive.fetch_sub(1, Ordering::SeqCst);
    assert_eq!(
        (b.receive(), s.receive_mode()),
        (Ok(vec![]), ReceiveMode::Asked),
        "what was said stays true"
    );
}

#[test]
fn a_sender_that_goes_back_says_so_before_its_fin_is_believed() {
    // It never left TCP, and never will.
    let (world, mut a, mut b) = hosts();
    back::refuse(a.id, a.raw(), Reason::OddUse);
    a.send(b"by TCP");
    assert_eq!(a.slot().send_mode(), SendMode::Returned);
    a.close();
    b.await_fin();
    assert_eq!((b.drain(), b.receive()), (b"by TCP".to_vec(), Err(Failure::Blocked)));
    settle(&world, &mut a, &mut b);
    assert_eq!((b.polled(), b.receive()), (Events::IN | Events::RDHUP, Ok(vec![])));
    assert_eq!(b.slot().receive_mode(), ReceiveMode::Returned);

    // It left TCP, and went back.
    let (world, mut a, mut b) = hosts();
    a.send(b"by the device");
    back::refuse(a.id, a.raw(), Reason::OddUse);
    a.close();
    b.await_fin();
    assert_eq!((b.receive(), b.polled()), (Err(Failure::Blocked), Events::empty()));
    settle(&world, &mut a, &mut b);
    assert_eq!(b.receive().unwrap(), b"by the device");
    assert_eq!(b.receive(), Ok(vec![]));
}

#[test]
fn what_follows_a_way_back_is_not_cut_short_by_the_farewell() {
    let (world, mut a, mut b) = hosts();
    a.send(b"by the device, ");
    settle(&world, &mut a, &mut b);
    back::refuse(a.id, a.raw(), Reason::OddUse);
    a.send(b"by TCP");
    a.close();
    b.await_fin();
    settle(&world, &mut a, &mut b);
    assert_eq!(b.drain(), b"by the device, by TCP");
    assert_eq!(b.receive(), Ok(vec![]));
}

#[test]
fn a_sender_that_is_killed_leaves_no_clean_end() {
    for switch_offset in [true, false] {
        let (world, mut a, mut b) = hosts();
        if switch_offset {
            a.send(b"never leaves the host");
        }
        // The kernel says FIN, and the pair is gone; no other word comes.
        a.fd = None;
        b.await_fin();
        assert_eq!(b.receive(), Err(Failure::Blocked));
        a.pump.pair().close();
        while world.borrow_mut().step() {}
        b.pump.run();
        is_lost(&mut b);
        assert_eq!(b.receive(), Err(Failure::Reset));
    }
}

#[test]
fn a_peer_that_never_met_us_leaves_tcp_as_it_was() {
    let (world, mut a, mut b) = strangers();
    b.meet();
    assert_eq!(b.receive(), Err(Failure::Blocked));
    assert_eq!(b.slot().receive_mode(), ReceiveMode::Acknowledged);
    b.pump.run();
    rustix::io::write(a.fd.as_ref().unwrap(), b"by TCP").unwrap();
    a.close();
    b.await_fin();
    assert_eq!((b.drain(), b.receive()), (b"by TCP".to_vec(), Err(Failure::Blocked)));
    a.pump.pair().close();
    while world.borrow_mut().step() {
        b.pump.run();
    }
    b.pump.run();
    is_lost(&mut b);
    assert_eq!((b.polled(), b.receive()), (Events::IN | Events::RDHUP, Ok(vec![])));
}

/// The process that gets the descriptor may know nothing of us, and would read TCP alone.
#[test]
fn nobody_is_met_while_a_copy_of_the_descriptor_travels() {
    let (_world, _a, b) = strangers();
    let met = || meeting::met(b.id, b.slot(), NO_BRIDGE, b.claim.0, b.claim.1);
    assert!(fds_in_flight::send_off(b.id, b.raw()));
    assert!(!met() && !link::has_channel(b.slot()) && !b.slot().has(flag::TCP_ANCHORED));
    fds_in_flight::take_back(b.id);
    assert!(met());
}

#[test]
fn shutting_the_reading_side_is_an_end_of_its_own() {
    let (_world, mut a, b) = hosts();
    a.close();
    b.await_fin();
    assert_eq!(b.receive(), Err(Failure::Blocked));
    socket::shutdown(b.id, b.raw(), libc::SHUT_RD);
    rustix::net::shutdown(b.fd.as_ref().unwrap(), rustix::net::Shutdown::Read).unwrap();
    assert_eq!(b.polled(), Events::IN | Events::RDHUP);
    assert_eq!(b.receive(), Ok(vec![]));
}

#[test]
fn a_reader_that_sleeps_hears_the_bridge() {
    for switch_offset in [true, false] {
        let (world, mut a, mut b) = hosts();
        if switch_offset {
            a.send(b"by the device");
        }
        a.close();
        b.await_fin();
        rustix::io::ioctl_fionbio(b.fd.as_ref().unwrap(), false).unwrap();
        let (id, fd) = (b.id, b.raw());
        let reader = std::thread::spawn(move || {
            let first = receive(id, fd, 0).unwrap();
            if first.is_empty() { first } else { [first, receive(id, fd, 0).unwrap()].concat() }
        });
        // Until it is about to sleep.
        while b.slot().pins.load(Ordering::Acquire) == 0 && !reader.is_finished() {
            std::thread::yield_now();
        }
        while !reader.is_finished() {
            settle(&world, &mut a, &mut b);
            std::thread::yield_now();
        }
        assert_eq!(reader.join().unwrap(), if switch_offset { &b"by the device"[..] } else { b"" });
    }
}

static MEMBER: [AtomicU32; 2] = [AtomicU32::new(u32::MAX), AtomicU32::new(0)];

fn find(fd: RawFd) -> Option<SlotId> {
    let [number, id] = &MEMBER;
    if number.load(Ordering::Relaxed) == fd as u32 {
        SlotId::from_raw(id.load(Ordering::Relaxed))
    } else {
        None
    }
}

pub(crate) unsafe extern "C-unwind" fn real_ctl(
    set: i32,
    op: i32,
    fd: i32,
    event: *mut libc::epoll_event,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe { libc::epoll_ctl(set, op, fd, event) }
}

pub(crate) unsafe extern "C-unwind" fn real_wait(
    set: i32,
    events: *mut libc::epoll_event,
    most: i32,
    ms: i32,
    mask: *const libc::sigset_t,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe { libc::epoll_pwait(set, events, most, ms, mask) }
}

/// What a wait of an epoll set with one member brings; nothing when time is up.
fn waited(set: RawFd, time: Duration) -> u32 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let (events, mask) = (&raw mut event, core::ptr::null());
    // SAFETY: room for one event, no mask, and the kernel's own call.
    let (wait, real) = unsafe {
        (epoll::Wait::new(set, events, 1, Some(time), mask), epoll::Pwait::new(real_wait))
    };
    let n = epoll::wait(wait, real);
    if n == Ok(0) { 0 } else { event.events }
}

#[test]
fn who_waits_for_edges_is_told_of_the_end_when_it_is_one() {
    let moment = Duration::from_millis(5);
    let long = Duration::from_secs(20);
    let fin = (Events::IN | Events::RDHUP).bits();
    for (switch_offset, short_read) in [(true, false), (false, false), (false, true)] {
        let (world, mut a, mut b) = hosts();
        MEMBER[0].store(b.raw() as u32, Ordering::Relaxed);
        MEMBER[1].store(b.id.raw(), Ordering::Relaxed);
        // SAFETY: no arguments that point anywhere.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        epoll::created(set);
        let event = libc::epoll_event { events: fin | libc::EPOLLET as u32, u64: 7 };
        // SAFETY: a valid event, and the kernel's own call.
        let (event, real) = unsafe { (In::new(&raw const event), epoll::Ctl::new(real_ctl)) };
        let change = epoll::Change { epfd: set, op: libc::EPOLL_CTL_ADD, fd: b.raw(), event };
        epoll::ctl(change, find, real).unwrap();
        assert_eq!(waited(set, moment), 0);
        rustix::io::write(a.fd.as_ref().unwrap(), b"by TCP").unwrap();
        if switch_offset {
            a.send(b", by the device");
        }
        a.close();
        b.await_fin();
        assert_eq!(waited(set, long), Events::IN.bits());
        assert_eq!(b.receive().unwrap(), b"by TCP");
        if !short_read {
            assert_eq!(b.receive(), Err(Failure::Blocked));
        }
        assert_eq!(waited(set, moment), 0, "no news");
        settle(&world, &mut a, &mut b);
        if switch_offset {
            assert_eq!(waited(set, long) & Events::IN.bits(), Events::IN.bits());
            assert_eq!(b.receive().unwrap(), b", by the device");
        } else {
            assert_eq!(waited(set, long), fin);
        }
        assert_eq!(b.receive(), Ok(vec![]));
        epoll::member_closing(b.raw());
        b.close();
        epoll::closed(set);
        // SAFETY: the set is ours.
        unsafe { libc::close(set) };
    }
}
