//! The RDMA device keeps the device contract, on a machine that has such a device: `scripts/vm`
//! makes one.
//!
//! `RSOCKET_TEST_RDMA=ADDRESS cargo test -p rsocket-core --test rdma_conformance -- --ignored
//! --test-threads 1`
#![cfg(not(shuttle))]
#![allow(missing_docs)]

mod rdma_support;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_support::{Fabric, address, drain, poll_until};
use rsocket_core::device::conformance::{self, Rig};
use rsocket_core::device::rdma::{CmError, CmId, EventChannel, Kind, Missing, PairParams, probe};
use rsocket_core::device::{Completion, HALF, PostError, QueuePair};
use rsocket_core::failure::Failure;
use rsocket_core::proto::control::Mode;
use rsocket_core::wire::sge::Sge;
use rsocket_core::wire::word::Word;

/// Without a device nothing is loaded, and there is a line to log.
#[test]
fn absence_is_explained() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some())
    {
        assert_ne!(probe().err(), Some(Missing::NoDevice));
        return;
    }
    assert_eq!(probe().err(), Some(Missing::NoDevice));
    let refused = EventChannel::open().err().unwrap();
    assert_eq!(refused, CmError::Missing(Missing::NoDevice));
    assert!(refused.to_string().starts_with("no RDMA: this host has no RDMA device"));
    assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains("librdmacm"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn keeps_the_contract() {
    conformance::all(&mut Fabric::new());
}

/// The same without inline data and with small queues.
#[test]
#[ignore = "needs an RDMA device"]
fn keeps_the_contract_when_small() {
    let mut fabric = Fabric::new();
    fabric.params =
        PairParams { send_queue: 16, receive_queue: 16, inline: 0, staging: 4096, ..fabric.params };
    conformance::all(&mut fabric);
}

/// Memory of the staging ring that is used again as soon as its post is reported does not change
/// what was sent.
#[test]
#[ignore = "needs an RDMA device"]
fn reported_bytes_are_out_of_our_hands() {
    const LEN: u32 = 64 << 10;
    const COUNT: u32 = 128;
    fn body(number: u32) -> Vec<u8> {
        (0..LEN).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ number as u8).collect()
    }
    let mut fabric = Fabric::new();
    fabric.params = PairParams { staging: 2 * LEN, ..fabric.params };
    let (mut near, mut far) = fabric.pair();
    let place = far.register(LEN * COUNT).unwrap();
    far.post_receives(COUNT as u16).unwrap();
    let (mut posted, mut arrived) = (0, 0);
    let mut found = [Completion::None; 32];
    let deadline = Instant::now() + Duration::from_secs(60);
    while arrived < COUNT {
        let target = Sge { addr: place.addr + u64::from(posted * LEN), rkey: place.rkey, len: LEN };
        let post = if posted == COUNT {
            Err(PostError::Full)
        } else {
            near.post_message(&body(posted), target, Word(posted), 7)
        };
        match post {
            Ok(()) => posted += 1,
            Err(PostError::Full) => {
                near.poll(&mut found);
            }
            Err(e) => panic!("{e:?}"),
        }
        let count = far.poll(&mut found);
        arrived +=
            found.iter().take(count).filter(|c| matches!(c, Completion::Word(_))).count() as u32;
        assert!(Instant::now() < deadline, "{arrived} of {posted} arrived");
    }
    let mut got = vec![0; LEN as usize];
    for number in 0..COUNT {
        far.load(place.addr + u64::from(number * LEN), &mut got).unwrap();
        assert!(got == body(number), "message {number} is not what was sent");
    }
}

/// What the ends say while connecting arrives: `wire-protocol §2.2`'s 40 bytes, and the most that
/// fits.
#[test]
#[ignore = "needs an RDMA device"]
fn private_data_arrives() {
    let mut fabric = Fabric::new();
    for len in [0, 40, 56] {
        let request: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x55).collect();
        let reply: Vec<u8> = (0..len).map(|i| i as u8 | 0x80).collect();
        let ([near, far], [answered, requested]) = fabric.connected(&request, &reply);
        assert!(requested.bytes().starts_with(&request), "{requested:?}");
        assert!(answered.bytes().starts_with(&reply), "{answered:?}");
        let at = fabric.at;
        assert_eq!(near.id.peer_address(), Some(at));
        assert_eq!(far.id.local_address(), Some(at));
        assert_eq!(near.id.local_address(), far.id.peer_address());
        fabric.forget();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn refusals_are_told() {
    let mut fabric = Fabric::new();
    // The program's own refusal.
    let at = fabric.at;
    let (id, key) = fabric.resolved(&at);
    let _pair = id.create_pair(&fabric.params).unwrap();
    id.connect(b"please").unwrap();
    let event = fabric.event();
    let Kind::Request { id: asked, .. } = event.kind else { panic!("{event:?}") };
    asked.reject(b"no").unwrap();
    drop(asked);
    let event = fabric.event();
    let Kind::Rejected { private, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(event.id, key);
    assert!(private.bytes().is_empty() || private.bytes().starts_with(b"no"));

    // No program listens there.
    let free = CmId::new(&fabric.channel, 0).unwrap();
    free.bind(&SocketAddr::new(address(), 0)).unwrap();
    let nowhere = free.local_address().unwrap();
    drop(free);
    let (id, key) = fabric.resolved(&nowhere);
    let _pair = id.create_pair(&fabric.params).unwrap();
    // Soft-iWARP says so at once.
    match id.connect(b"") {
        Err(e) => assert_eq!(e.failure(), Failure::Refused),
        Ok(()) => {
            let event = fabric.event();
            let refused = matches!(event.kind, Kind::Rejected { .. } | Kind::Failed { .. });
            assert!(event.id == key && refused, "{event:?}");
        }
    }

    // An address without a device.
    let nowhere = CmId::new(&fabric.channel, 0).unwrap();
    assert!(nowhere.bind(&"203.0.113.7:0".parse().unwrap()).is_err());
    assert!(nowhere.device().unwrap().is_none());
}

/// Many messages of all sizes go through a ring of staging memory and a buffer of the peer's. Two
/// of three are filled in place, all are read in place, and each has a credit.
#[test]
#[ignore = "needs an RDMA device"]
fn a_stream_of_messages_is_whole() {
    let mut fabric = Fabric::new();
    fabric.params =
        PairParams { receive_queue: 8, spare_receives: 8, staging: 16384, ..fabric.params };
    let (mut a, mut b) = fabric.pair();
    let place = b.register(8 * 8192).unwrap();
    b.post_receives(8).unwrap();
    let (total, byte) = (600_u32, |message: u32, i: u32| (message * 7 + i * 13) as u8);
    let (mut sent, mut reported, mut read, mut refused) = (0, 0, 0, 0);
    let mut seen = [Vec::new(), Vec::new()];
    let deadline = Instant::now() + Duration::from_secs(120);
    while reported < total || read < total {
        assert!(Instant::now() < deadline, "sent {sent}, reported {reported}, read {read}");
        // At most 8 are unread: its bytes and its receive are free again.
        while sent < total && sent < read + 8 {
            let len = sent * 37 % 8000 + 1;
            let target = Sge { addr: place.addr + u64::from(sent % 8) * 8192, ..place };
            let fill = |bytes: &mut [u8]| (0..).zip(bytes).for_each(|(i, b)| *b = byte(sent, i));
            let posted = match sent % 3 {
                0 => {
                    let mut bytes = vec![0; len as usize];
                    fill(&mut bytes);
                    a.post_message(&bytes, target, Word::data(len), sent.into())
                }
                _ => a.post_filled(Sge { len, ..target }, Some(Word::data(len)), sent.into(), fill),
            };
            match posted {
                Ok(()) => sent += 1,
                Err(PostError::Full) => {
                    refused += 1;
                    break;
                }
                Err(e) => panic!("{e:?}"),
            }
        }
        drain(&mut a, &mut seen[0]);
        for completion in seen[0].drain(..) {
            match completion {
                Completion::Sent { token: HALF } if a.mode() == Mode::Message => {}
                Completion::Sent { token } => {
                    assert_eq!(token, reported.into());
                    reported += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        drain(&mut b, &mut seen[1]);
        for completion in seen[1].drain(..) {
            let len = read * 37 % 8000 + 1;
            assert_eq!(completion, Completion::Word(Word::data(len)));
            let mut at = 0;
            b.each_chunk(place.addr + u64::from(read % 8) * 8192, len, &mut |from| {
                let mut bytes = vec![0; from.len()];
                from.copy_to(&mut bytes);
                for b in &bytes {
                    assert_eq!(*b, byte(read, at), "message {read}, byte {at} of {len}");
                    at += 1;
                }
            })
            .unwrap();
            assert_eq!(at, len);
            b.post_receives(1).unwrap();
            read += 1;
        }
    }
    assert!(refused > 0, "the staging ring was never full");
    let capacity = a.staging_room();
    assert!(capacity >= 16384, "all of it is free again");
    let too_long = Sge { len: capacity + 1, ..place };
    let refused = a.post_filled(too_long, Some(Word(1)), 1, |_| panic!("refused"));
    assert_eq!(refused, Err(PostError::Full));
}

/// The device accepts a post of as many bytes as there is room for. It accepts a word when there is
/// no room, because the ring is for bytes alone (rule 8).
#[test]
#[ignore = "needs an RDMA device"]
fn room_is_what_it_says_without_inline_data() {
    const LINE: u32 = 64;
    let mut fabric = Fabric::new();
    fabric.params = PairParams { inline: 0, staging: 4096, ..fabric.params };
    let (mut a, mut b) = fabric.pair();
    let place = b.register(4096).unwrap();
    b.post_receives(4).unwrap();
    let all = a.staging_room();
    for round in 1..100 {
        let rest = if round % 2 == 0 { LINE } else { 0 };
        let fill = |bytes: &mut [u8]| bytes.fill(round as u8);
        let most = Sge { len: all - rest, ..place };
        a.post_filled(most, Some(Word::data(round)), 1, fill).expect("it fits");
        assert_eq!(a.staging_room(), rest);
        let small = [round as u8 | 0x80; 16];
        let bytes: &[u8] = if rest == 0 { &[] } else { &small };
        a.post_message(bytes, place, Word::data(round + 1000), 2).expect("it fits too");
        let ends = &mut [&mut a, &mut b];
        let done = |c: &Completion| *c == Completion::Sent { token: 2 };
        let seen = poll_until(ends, |seen| seen[0].last().is_some_and(done) && seen[1].len() == 2);
        assert_eq!(seen[1], [round, round + 1000].map(|n| Completion::Word(Word::data(n))));
        let mut got = [0; 32];
        b.load(place.addr, &mut got).unwrap();
        let first = if rest == 0 { round as u8 } else { small[0] };
        assert_eq!((got[0], got[15], got[16]), (first, first, round as u8));
        b.post_receives(2).unwrap();
    }
}

/// Words beyond what the caller posted receives for use the spare ones. However many come at once,
/// all are replaced.
#[test]
#[ignore = "needs an RDMA device"]
fn spare_receives_are_replaced() {
    let mut fabric = Fabric::new();
    fabric.params = PairParams { receive_queue: 8, spare_receives: 16, ..fabric.params };
    let (mut a, mut b) = fabric.pair();
    b.post_receives(8).unwrap();
    assert_eq!(b.post_receives(1), Err(PostError::Full));
    for round in 0..20 {
        for i in 0..16 {
            a.post_message(&[], Sge::default(), Word::data(round * 16 + i + 1), 0).unwrap();
        }
        // All of them have arrived before the first is looked at.
        poll_until(&mut [&mut a], |seen| seen[0].len() == 16);
        let seen = poll_until(&mut [&mut b], |seen| seen[0].len() == 16);
        let words: Vec<_> =
            (1..=16).map(|i| Completion::Word(Word::data(round * 16 + i))).collect();
        assert_eq!(seen[0], words);
        b.post_receives(16).unwrap();
        assert_eq!(b.post_receives(1), Err(PostError::Full));
    }
}

/// One descriptor for several pairs: it says which of them has something.
#[test]
#[ignore = "needs an RDMA device"]
fn pairs_share_a_place_to_sleep() {
    let mut fabric = Fabric::new();
    let source = {
        let at = fabric.at;
        let (id, _) = fabric.resolved(&at);
        let device = id.device().unwrap().unwrap();
        assert!(!device.name().is_empty() && device.name() != "?");
        device.event_source().unwrap()
    };
    assert!(
        rsocket_core::sys::is_private(source.fd())
            && rsocket_core::sys::is_private(fabric.channel.fd())
    );
    let mut held = Vec::new();
    for key in [71, 72] {
        fabric.params = PairParams { events: Some(source), key, ..fabric.params };
        let (near, far) = fabric.pair();
        assert_eq!(near.event_fd(), None);
        held.push((near, far));
    }
    assert_eq!(source.next(), None);
    let (near, mut far) = held.pop().unwrap();
    far.with(|pair| pair.post_receives(4)).unwrap();
    far.arm();
    near.with(|pair| pair.post_message(&[], Sge::default(), Word(9), 1)).unwrap();
    let mut fds = [libc::pollfd { fd: source.fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: one valid entry.
    assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 10_000) }, 1);
    assert_eq!(source.next(), Some(72));
    assert_eq!(source.next(), None);
    let seen = poll_until(&mut [&mut far], |seen| !seen[0].is_empty());
    assert_eq!(seen[0], [Completion::Word(Word(9))]);
    // A pair that goes while its event is unread.
    far.arm();
    near.with(|pair| pair.post_message(&[], Sge::default(), Word(10), 2)).unwrap();
    // SAFETY: one valid entry.
    assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 10_000) }, 1);
    drop((near, far));
    fabric.forget();
    assert_eq!(source.next(), None);
}

/// Objects of this process that the kernel knows. It names the thread that made them.
fn alive(kind: &str) -> usize {
    let output = Command::new("rdma")
        .args(["resource", "show", kind])
        .output()
        .expect("iproute2 is installed");
    let mine = |line: &&str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "pid");
        words.nth(1).is_some_and(|id| std::path::Path::new("/proc/self/task").join(id).exists())
    };
    String::from_utf8_lossy(&output.stdout).lines().filter(mine).count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mapped() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
#[ignore = "needs an RDMA device"]
fn connections_leave_nothing_behind() {
    let mut fabric = Fabric::new();
    let one = |fabric: &mut Fabric, round: u32| {
        let (mut a, mut b) = fabric.pair();
        let place = b.register(4096).unwrap();
        b.post_receives(2).unwrap();
        a.post_message(b"bytes", place, Word::data(5), 1).unwrap();
        poll_until(&mut [&mut b], |seen| !seen[0].is_empty());
        match round % 3 {
            // Closed, by both; closed by one; dropped.
            0 => (a.close(), b.close()).0,
            1 => a.close(),
            _ => {}
        }
        if round % 3 < 2 {
            poll_until(&mut [&mut a], |seen| seen[0].last() == Some(&Completion::Ended));
        }
        drop((a, b));
        fabric.forget();
    };
    // The first ones also open the device.
    (0..3).for_each(|round| one(&mut fabric, round));
    let counts = || (alive("qp"), alive("mr"), alive("cq"), alive("cm_id"), descriptors());
    let (before, maps) = (counts(), mapped());
    assert!(before.3 >= 1, "the listener is seen: {before:?}");
    let (held, _far) = fabric.pair();
    assert!(counts().0 > before.0 && counts().1 > before.1, "pairs are seen");
    drop((held, _far));
    fabric.forget();
    for round in 0..100 {
        one(&mut fabric, round);
        while fabric.attend() {}
    }
    assert_eq!(counts(), before);
    assert!(mapped() <= maps + 16, "{} mappings, and {maps} before", mapped());
}

/// A child of a fork: it has none of the parent's, ends nothing of it, and can have its own.
#[test]
#[ignore = "needs an RDMA device"]
fn a_forked_child_leaves_the_parents_alone() {
    use rsocket_core::device::rdma::{fork_child, fork_parent, fork_prepare};
    let mut fabric = Fabric::new();
    let (mut a, mut b) = fabric.pair();
    let place = b.register(64).unwrap();
    b.post_receives(4).unwrap();
    fork_prepare();
    // SAFETY: the test runner's other thread only waits; the child does not return into it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        rsocket_core::sync::thread::forked();
        fork_child();
        let inherited = fabric.channel.next().is_err() && a.id.disconnect().is_err();
        drop((a, b));
        drop(fabric);
        let own = std::panic::catch_unwind(|| {
            let mut fabric = Fabric::new();
            let (mut a, mut b) = fabric.pair();
            b.post_receives(1).unwrap();
            a.post_message(&[], Sge::default(), Word(5), 1).unwrap();
            poll_until(&mut [&mut b], |seen| seen[0] == [Completion::Word(Word(5))]);
        });
        let code = if !inherited { 2 } else { i32::from(own.is_err()) };
        // SAFETY: ends the process without the runner's handlers.
        unsafe { libc::_exit(code) };
    }
    fork_parent();
    let mut status = 0;
    // SAFETY: our own child, a valid pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child could connect, and touched nothing");
    a.post_message(b"still", place, Word::data(5), 1).unwrap();
    let seen = poll_until(&mut [&mut b], |seen| !seen[0].is_empty());
    assert_eq!(seen[0], [Completion::Word(Word::data(5))]);
}

/// A process that may not pin what a connection needs is told so, and nothing of what was begun is
/// left.
#[test]
#[ignore = "needs an RDMA device, and root"]
fn too_little_pinned_memory_is_explained() {
    let fabric = Fabric::new();
    let at = fabric.at;
    rsocket_core::device::rdma::fork_prepare();
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        rsocket_core::sync::thread::forked();
        rsocket_core::device::rdma::fork_child();
        let refused = std::panic::catch_unwind(|| {
            without_pinned_memory();
            let channel = EventChannel::open().unwrap();
            let id = resolved(&channel, &at);
            let refused = id.create_pair(&PairParams::default()).err();
            // The device is open from the first time on.
            let before = descriptors();
            assert!((0..50).all(|_| id.create_pair(&PairParams::default()).is_err()));
            (refused, before, descriptors())
        });
        let limit = 64 * 1024;
        let told = matches!(refused, Ok((Some(CmError::Missing(Missing::Memlock { needed: 131_072, limit: l })), before, after))
            if l == limit && before == after);
        eprintln!("{refused:?}");
        // SAFETY: ends the process without the runner's handlers.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    rsocket_core::device::rdma::fork_parent();
    let mut status = 0;
    // SAFETY: our own child, a valid pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// Root may pin all that there is, by a capability.
fn without_pinned_memory() {
    let limit = libc::rlimit { rlim_cur: 64 * 1024, rlim_max: 64 * 1024 };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
    // Version 3, this process; no capability at all.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: the kernel's structures, as linux/capability.h has them.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }, 0);
}

/// The next event of the only identifier of a channel.
fn next_kind(channel: &EventChannel) -> Kind {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(event) = channel.next().unwrap() {
            return event.kind;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An identifier of a channel of its own, whose route to the address is resolved.
fn resolved(channel: &EventChannel, to: &SocketAddr) -> CmId {
    let id = CmId::new(channel, 5).unwrap();
    id.resolve_address(None, to, 2000).unwrap();
    assert!(matches!(next_kind(channel), Kind::AddressResolved));
    id.resolve_route(2000).unwrap();
    assert!(matches!(next_kind(channel), Kind::RouteResolved));
    id
}

/// The parent of a forked child dies: its connections end, though the child lives.
#[test]
#[ignore = "needs an RDMA device"]
fn connections_end_with_their_process() {
    let fabric = Fabric::new();
    let at = fabric.at;
    let (reader, writer) = std::io::pipe().unwrap();
    rsocket_core::device::rdma::fork_prepare();
    // SAFETY: as above.
    let parent = unsafe { libc::fork() };
    if parent == 0 {
        rsocket_core::sync::thread::forked();
        rsocket_core::device::rdma::fork_child();
        let _ = std::panic::catch_unwind(|| connect_fork_and_die(at));
        // SAFETY: ends the process without the runner's handlers.
        unsafe { libc::_exit(1) };
    }
    rsocket_core::device::rdma::fork_parent();
    drop(writer);
    let event = fabric.event();
    let Kind::Request { id, .. } = event.kind else { panic!("{event:?}") };
    id.set_key(99).unwrap();
    let mut pair = id.create_pair(&fabric.params).unwrap();
    pair.post_receives(4).unwrap();
    id.accept(b"").unwrap();
    let event = fabric.event();
    assert!(event.id == 99 && matches!(event.kind, Kind::Established { .. }), "{event:?}");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match fabric.channel.next().unwrap() {
            Some(event) if event.id == 99 && matches!(event.kind, Kind::Disconnected) => break,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
        assert!(Instant::now() < deadline, "the dead process's connection lives on");
    }
    pair.peer_gone();
    let mut seen = Vec::new();
    drain(&mut pair, &mut seen);
    assert_eq!(seen.last(), Some(&Completion::Ended));
    // The grandchild ends by itself, after 25 seconds.
    drop(reader);
    let mut status = 0;
    // SAFETY: our own child, a valid pointer.
    unsafe { libc::waitpid(parent, &raw mut status, 0) };
}

fn connect_fork_and_die(at: SocketAddr) {
    let channel = EventChannel::open().unwrap();
    let id = resolved(&channel, &at);
    let _pair = id.create_pair(&PairParams::default()).unwrap();
    id.connect(b"").unwrap();
    assert!(matches!(next_kind(&channel), Kind::Established { .. }));
    rsocket_core::device::rdma::fork_prepare();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        rsocket_core::sync::thread::forked();
        rsocket_core::device::rdma::fork_child();
        // Outlives its parent, but not the test.
        std::thread::sleep(Duration::from_secs(25));
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    std::thread::sleep(Duration::from_millis(200));
    // SAFETY: ends the process as a crash does.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}
