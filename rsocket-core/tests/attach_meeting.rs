//! Offering, knocking, and the two messages, over real sockets.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rsocket_core::attach::hello::{Hello, HelloAck, MESSAGE_MAX};
use rsocket_core::attach::rendezvous::{Offer, knock, name};
use rsocket_core::attach::trust::{self, own_identity};
use rsocket_core::channel::identity::{Id, forked, process_id};
use rsocket_core::failure::Failure;
use rsocket_core::host::tuple::Tuple;
use rsocket_core::seqpacket::{Channel, MAX_FDS, ReceiveError, Received};
use rsocket_core::sys;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    (client, listener.accept().expect("accept").0)
}

fn tuple(s: &TcpStream) -> Tuple {
    Tuple::of(s.as_raw_fd()).expect("connected")
}

/// An offer that was taken up: the connecting side's channel, then the accepting side's.
fn meeting() -> (Channel, Channel) {
    let (c, s) = pair();
    let offer = Offer::open(&tuple(&c)).expect("offer");
    let there = knock(&tuple(&s)).expect("knock").expect("somebody offers");
    let here = offer.pick_up().expect("accept").expect("somebody knocked");
    offer.close();
    (here, there)
}

fn none() -> [Option<OwnedFd>; MAX_FDS] {
    [const { None }; MAX_FDS]
}

fn memfd() -> OwnedFd {
    rustix::fs::memfd_create("arena", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd")
}

/// Descriptors of this process that lead to this inode.
fn holders(of: BorrowedFd<'_>) -> usize {
    let inode = rustix::fs::fstat(of).expect("fstat").st_ino;
    (0..8192)
        .filter(|fd| rustix::fs::fstat(sys::borrow(*fd)).is_ok_and(|s| s.st_ino == inode))
        .count()
}

#[test]
fn a_whole_meeting() {
    let (client, server) = pair();
    assert_eq!(knock(&tuple(&server)), Ok(None), "nobody offers yet");
    let offer = Offer::open(&tuple(&client)).expect("offer");
    assert!(sys::is_private(offer.fd) && offer.fd > 63);
    assert_eq!(offer.pick_up(), Ok(None));
    let there = knock(&tuple(&server)).expect("knock").expect("offered");
    assert_eq!(there.receive(&mut [0; MESSAGE_MAX], &mut none()), Err(ReceiveError::NothingYet));
    let me = Id::random().expect("id");
    let own = own_identity(server.as_raw_fd()).expect("identity");
    there.send(Hello::new(me, own, 0).bytes(), &[]).expect("send");

    let here = offer.pick_up().expect("accept").expect("knocked");
    let (mut buf, mut fds) = ([0; MESSAGE_MAX], none());
    let got = here.receive(&mut buf, &mut fds).expect("message");
    assert_eq!(got.nfds, 0);
    let message = Hello::parse(&buf[..got.len]).expect("a knock");
    let owner = trust::find(&tuple(&client).reversed()).expect("look-up").expect("found");
    assert!(owner.is(message.inode, message.cookie) && message.process == me);
    assert!(trust::cred_matches(here.peer_uid().expect("uid"), &owner));
    assert!(trust::cred_matches(there.peer_uid().expect("uid"), &owner));

    let arena = memfd();
    let own = own_identity(client.as_raw_fd()).expect("identity");
    let id = Id::random().expect("id");
    here.send(HelloAck::new(me, id, 3, own, true).bytes(), &[arena.as_fd()]).expect("send");
    here.close();
    offer.close();

    let got = there.receive(&mut buf, &mut fds).expect("message");
    assert_eq!(got.nfds, 1);
    let hello_ack = HelloAck::parse(&buf[..got.len]).expect("a welcome");
    assert!(hello_ack.with_arena() && hello_ack.arena == id && hello_ack.channel == 3);
    let owner = trust::find(&tuple(&server).reversed()).expect("look-up").expect("found");
    assert!(owner.is(hello_ack.inode, hello_ack.cookie));
    let fd = fds[0].take().expect("the arena");
    assert_eq!(
        rustix::fs::fstat(&fd).expect("stat").st_ino,
        rustix::fs::fstat(&arena).expect("stat").st_ino
    );
    assert!(rustix::io::fcntl_getfd(&fd).expect("flags").contains(rustix::io::FdFlags::CLOEXEC));
    assert_eq!(there.receive(&mut buf, &mut fds), Err(ReceiveError::Closed));
    assert_eq!(there.send(b"x", &[]), Err(Failure::Ended));
    there.close();
    assert_eq!(knock(&tuple(&server)), Ok(None), "nothing is left behind");
}

#[test]
fn the_name_can_be_taken_once() {
    let (client, server) = pair();
    let offer = Offer::open(&tuple(&client)).expect("offer");
    assert_eq!(Offer::open(&tuple(&client)), Err(Failure::NameTaken));
    assert_ne!(name(&tuple(&client)), name(&tuple(&server)), "each side has a name of its own");
    // Strangers fill the queue: the next one is told so, and none waits.
    let full = (0..8).map(|_| knock(&tuple(&server))).collect::<Vec<_>>();
    assert_eq!(full.last(), Some(&Err(Failure::Blocked)));
    let strangers = full.into_iter().filter_map(|k| k.ok().flatten()).collect::<Vec<_>>();
    // Each can be picked up, also those who have left.
    strangers[0].close();
    let mut picked = 0;
    while let Some(channel) = offer.pick_up().expect("accept") {
        picked += 1;
        channel.close();
    }
    assert_eq!(picked, strangers.len());
    strangers.iter().skip(1).for_each(|s| s.close());
    offer.close();
}

#[test]
fn too_long_is_an_error_and_keeps_nothing() {
    let (here, there) = meeting();
    let file = memfd();
    here.send(&[1; 100], &[file.as_fd()]).expect("send");
    let mut fds = none();
    assert_eq!(there.receive(&mut [0; MESSAGE_MAX], &mut fds), Err(ReceiveError::TooLong));
    assert!(fds.iter().all(Option::is_none));
    assert_eq!(holders(file.as_fd()), 1);
    // The channel goes on with the next message.
    here.send(&[2; 10], &[]).expect("send");
    assert_eq!(there.receive(&mut [0; MESSAGE_MAX], &mut fds), Ok(Received { len: 10, nfds: 0 }));
    here.close();
    there.close();
}

#[test]
fn four_descriptors_and_no_more() {
    let (here, there) = meeting();
    let file = memfd();
    assert_eq!(here.send(b"x", &[file.as_fd(); MAX_FDS + 1]), Err(Failure::Invalid));
    here.send(b"four", &[file.as_fd(); MAX_FDS]).expect("send");
    let (mut buf, mut fds) = ([0; MESSAGE_MAX], none());
    assert_eq!(there.receive(&mut buf, &mut fds), Ok(Received { len: 4, nfds: 4 }));
    assert_eq!(holders(file.as_fd()), 5);
    fds = none();

    // A peer that does not keep to it: one too many, and far too many.
    for count in [MAX_FDS + 1, 40] {
        let many = [file.as_fd(); 40];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many[..count])));
        let text = [IoSlice::new(b"many")];
        rustix::net::sendmsg(sys::borrow(here.fd), &text, &mut control, SendFlags::empty())
            .expect("send");
        assert_eq!(there.receive(&mut buf, &mut fds), Err(ReceiveError::ControlTruncated));
        assert!(fds.iter().all(Option::is_none));
        assert_eq!(holders(file.as_fd()), 1, "all that came is closed");
    }
    here.close();
    there.close();
}

#[test]
fn a_reader_that_does_not_read_stops_nobody() {
    let (here, there) = meeting();
    let error = (0..100_000).find_map(|_| here.send(&[0; 40], &[]).err());
    assert_eq!(error, Some(Failure::Blocked));
    here.close();
    there.close();
}

#[test]
fn a_child_has_another_name() {
    let mine = process_id().expect("id");
    assert_eq!(process_id(), Ok(mine));
    // SAFETY: the child makes a few system calls and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let new = process_id() != Ok(mine) && process_id() == process_id();
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(i32::from(!new)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, into a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the kernel wiped the name in the child");
    assert_eq!(process_id(), Ok(mine), "and not in the parent");
    // What the fork handler does where the kernel cannot wipe (in the test: in the same process).
    forked();
    assert_ne!(process_id(), Ok(mine));
}

#[test]
#[ignore = "a measurement"]
fn cost() {
    let time = |what: &str, f: &mut dyn FnMut()| {
        for _ in 0..1000 {
            f();
        }
        let start = std::time::Instant::now();
        for _ in 0..10_000 {
            f();
        }
        println!("{what}: {:.2} us", start.elapsed().as_secs_f64() * 1e6 / 10_000.0);
    };
    let (client, server) = pair();
    let (ct, st) = (tuple(&client), tuple(&server));
    time("knock, refused", &mut || assert_eq!(knock(&st), Ok(None)));
    time("offer, close", &mut || Offer::open(&ct).expect("offer").close());
    let arena = memfd();
    for with_arena in [false, true] {
        time(if with_arena { "whole exchange, with an fd" } else { "whole exchange" }, &mut || {
            let offer = Offer::open(&ct).expect("offer");
            let there = knock(&st).expect("knock").expect("offered");
            there.send(Hello::new(Id([1, 1]), (1, 1), 0).bytes(), &[]).expect("send");
            let here = offer.pick_up().expect("accept").expect("knocked");
            let (mut buf, mut fds) = ([0; MESSAGE_MAX], none());
            here.receive(&mut buf, &mut fds).expect("knock");
            let gift = [arena.as_fd()];
            let gift = if with_arena { &gift[..] } else { &[] };
            here.send(HelloAck::new(Id([1, 1]), Id([1, 1]), 0, (1, 1), with_arena).bytes(), gift)
                .expect("send");
            there.receive(&mut buf, &mut fds).expect("welcome");
            here.close();
            there.close();
            offer.close();
        });
    }
}
