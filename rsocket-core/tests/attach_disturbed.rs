//! Two ends that meet although something is in the way for a while: strangers, or a kernel that has
//! nothing to give just now. Where there is no TCP to stay on, nothing of this may cost a
//! connection.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rsocket_core::attach::hello::Hello;
use rsocket_core::attach::meet::{names::Name, offers, pake::Side, place};
use rsocket_core::attach::proof::Joined;
use rsocket_core::attach::proving::{self, Secret};
use rsocket_core::attach::rendezvous::{self, Offer};
use rsocket_core::attach::trust;
use rsocket_core::channel::identity::process_id;
use rsocket_core::channel::link;
use rsocket_core::conn::arena_record;
use rsocket_core::conn::fork_group;
use rsocket_core::conn::handshake::Handshake;
use rsocket_core::conn::machine::{Phase, ReceiveMode, SendMode};
use rsocket_core::conn::offsets;
use rsocket_core::conn::pairing_lock::PairingGuard;
use rsocket_core::conn::slot::{Slot, SlotId, flag};
use rsocket_core::device::shm::channel::Beyond;
use rsocket_core::failure::Failure;
use rsocket_core::host::counters;
use rsocket_core::host::events::Events;
use rsocket_core::host::tuple::Tuple;
use rsocket_core::reason::Reason;
use rsocket_core::seqpacket::Channel;
use rsocket_core::socket::{ready, receive, send};
use rsocket_core::stats::{self, Counter};
use rsocket_core::sys::{self, sockets};
use rsocket_core::{channel::handover_state, pairing};
use rustix::net::{AddressFamily, SendFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One test at a time: some change what the whole process may do, and one starts a process. Until
/// that runs its program it holds the names of all offers, also of one that is closed meanwhile.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of a connection without TCP to stay on.
struct End {
    stream: TcpStream,
    id: SlotId,
    slot: &'static Slot,
}

impl End {
    fn new(stream: TcpStream, flags: u32) -> Self {
        let id = fork_group::take(flags, stream.as_raw_fd()).expect("a slot");
        let slot = fork_group::slot(id).expect("a slot");
        slot.set_phase(Phase::Young);
        Self { stream, id, slot }
    }

    fn tuple(&self) -> Tuple {
        Tuple::of(self.stream.as_raw_fd()).expect("connected")
    }

    /// The next step, and where that leads.
    fn step(&self) -> Phase {
        // These tests say when a step is due, not the clock, nor what went by TCP.
        self.slot.next_try.store(0, Ordering::Relaxed);
        self.slot.next_step.store(0, Ordering::Relaxed);
        pairing::advance(self.id, self.slot, self.stream.as_raw_fd());
        self.slot.phase()
    }

    /// Why it has not attached so far.
    fn reason(&self) -> Option<Reason> {
        Reason::from_u8(self.slot.reason.load(Ordering::Relaxed) as u8)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        link::release(self.slot);
        pairing::forget(self.slot);
    }
}

fn ends(more: u32) -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    // No hook waits for them here.
    let more = more | flag::WAITED;
    (End::new(client, flag::CONNECTING | more), End::new(server, more))
}

/// Nothing is in the way any more: they attach.
fn attach(client: &End, server: &End) {
    for _ in 0..50 {
        if [client.step(), server.step()] == [Phase::Paired, Phase::Paired] {
            assert!(link::has_channel(client.slot) && link::has_channel(server.slot));
            assert_eq!(
                [client.reason(), server.reason()],
                [Some(Reason::TooYoung); 2],
                "nothing is noted"
            );
            return;
        }
    }
    panic!(
        "{:?} ({:?}), {:?} ({:?})",
        client.slot.phase(),
        client.reason(),
        server.slot.phase(),
        server.reason()
    );
}

/// In a thread that is another user; `None` where this process may not have one.
fn as_stranger<R: Send>(f: impl FnOnce() -> R + Send) -> Option<R> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let stranger = || {
        // SAFETY: by the kernel's call it is this thread alone that becomes another user.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 4712, -1) }, 0);
        f()
    };
    std::thread::scope(|scope| Some(scope.spawn(stranger).join().expect("a stranger")))
}

fn strangers() -> u64 {
    stats::snapshot().get(Counter::Strangers)
}

/// Upstream's fork mode decides first how the connection's bytes travel.
#[test]
fn an_undecided_end_takes_no_step() {
    let _alone = alone();
    let (client, server) = ends(0);
    client.slot.set(flag::UNDECIDED);
    assert_eq!([client.step(), client.step()], [Phase::Young; 2]);
    client.slot.clear(flag::UNDECIDED);
    attach(&client, &server);
}

/// The stranger comes first, with words that might be right or are rubbish; also where there is TCP
/// to stay on.
#[test]
fn a_stranger_knocks_first() {
    let _alone = alone();
    for more in [0, flag::STRICT] {
        let (client, server) = ends(more);
        assert_eq!(client.step(), Phase::Offered);
        let before = strangers();
        let tuple = server.tuple();
        let knocked = as_stranger(|| {
            let channel = rendezvous::knock(&tuple).expect("knock").expect("offered");
            channel.send(b"let me in", &[]).expect("send");
            channel
        });
        let Some(channel) = knocked else { return };
        assert_eq!(client.step(), Phase::Offered, "the offer stands");
        assert_eq!(strangers(), before + 1);
        assert!(channel.send(b"hello?", &[]).is_err(), "he is sent away");
        channel.close();
        attach(&client, &server);
    }
}

#[test]
fn strangers_crowd_the_door() {
    let _alone = alone();
    let (client, server) = ends(flag::STRICT);
    assert_eq!(client.step(), Phase::Offered);
    let tuple = server.tuple();
    let crowd = as_stranger(|| {
        let mut crowd: Vec<Channel> = vec![];
        loop {
            match rendezvous::knock(&tuple) {
                Ok(channel) => crowd.push(channel.expect("offered")),
                Err(e) => break assert_eq!(e, Failure::Blocked),
            }
        }
        crowd
    });
    let Some(crowd) = crowd else { return };
    assert_eq!(server.step(), Phase::Young, "it looks again");
    attach(&client, &server);
    crowd.into_iter().for_each(Channel::close);
}

/// A connection whose ends know its SYN's timestamp, where a kernel can tell.
fn dialled() -> (End, End) {
    place::find_out(Some(b"/tmp"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let listens = Handshake::default();
    listens.listens(listener.as_raw_fd());
    let socket =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    let client = End::new(TcpStream::from(socket), flag::CONNECTING | flag::WAITED | flag::STRICT);
    client.slot.handshake.dials();
    let address = listener.local_addr().expect("address");
    rustix::net::connect(&client.stream, &address).expect("connect");
    client.slot.handshake.has_dialled();
    let (server, _) = listener.accept().expect("accept");
    let server = End::new(server, flag::WAITED | flag::STRICT);
    server.slot.handshake.accepted(&listens);
    (client, server)
}

/// The first word of another user's process, which goes away at once. What is said to that no
/// process hears: by such visitors none can try a guess, and they cost none of what is borne.
#[test]
fn visitors_that_have_gone_cost_no_guess() {
    let _alone = alone();
    // One more than that is forgotten at once.
    let most = proving::BUDGET as usize + 2;
    let answers = (0..10 * most).filter(|_| {
        let (client, server) = dialled();
        let [c, s] = [&client, &server].map(|end| end.stream.as_raw_fd());
        let stamp = server.slot.handshake.accepted_timestamp(s);
        // A thread that was not run meanwhile knows too little.
        let known = client.slot.handshake.dialled_bounds(c);
        let (Some(stamp), Some(_)) = (stamp, known) else { return false };
        assert_eq!(client.step(), Phase::Offered);
        let tuple = server.tuple();
        let own = trust::own_identity(s).expect("identity");
        let came = as_stranger(|| {
            let channel = rendezvous::knock(&tuple).expect("knock").expect("offered");
            let secret = Secret { side: Side::Accepting, stamp, place: b"a place" };
            let proof = proving::begin(&channel, &secret).expect("a first word");
            let hello = Hello::new(process_id().expect("id"), own, 0).with_stamp(Some(stamp));
            channel.send(Joined::new(hello.bytes(), Some(&proof)).bytes(), &[]).expect("send");
            proving::over(channel.fd);
            channel.close();
        });
        if came.is_some() {
            assert_eq!(client.step(), Phase::Young, "it has been answered");
            assert_eq!(client.reason(), Some(Reason::OfferLapsed));
        }
        attach(&client, &server);
        came.is_some()
    });
    let answered = answers.take(most).count();
    let can_be_shown = rustix::process::geteuid().is_root() && offsets::are_each_ones_own(-1);
    assert!(answered == most || !can_be_shown, "{answered}");
    assert!(proving::can_afford(), "after {answered}");
}

/// A process that was not run between its knock and its first word is sent away, since any process
/// may knock. It comes again.
#[test]
fn a_visitor_that_was_not_heard_comes_again() {
    let _alone = alone();
    for round in 0..60 {
        let (client, server) = ends([0, flag::STRICT][round % 2]);
        let offer = Offer::open(&client.tuple()).expect("offer");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    offer.pick_up().expect("accept").into_iter().for_each(Channel::close);
                }
            });
            let steps = (0..12).map(|_| server.step()).collect::<Vec<_>>();
            over.store(true, Ordering::Relaxed);
            assert!(!steps.contains(&Phase::Refused), "{steps:?}, {:?}", server.reason());
        });
        offer.close();
        attach(&client, &server);
    }
}

/// From now on the process asks the kernel for no other process's sockets.
fn forbid_netlink() {
    let step = |code: u32, k: u32, jt| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32, 0);
    let jump = |k: i64, over| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k as u32, over);
    let end = |k| step(libc::BPF_RET | libc::BPF_K, k, 0);
    let mut filter = [
        load(core::mem::offset_of!(libc::seccomp_data, nr)),
        jump(libc::SYS_socket, 1),
        end(libc::SECCOMP_RET_ALLOW),
        load(core::mem::offset_of!(libc::seccomp_data, args)),
        jump(libc::AF_NETLINK.into(), 1),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` names as many steps as there are, and lives until the calls are over.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, set, 0, &raw const program), 0);
    }
}

/// The right host may close while the first word is under way, where the visitor was not run
/// between its call and the word. The name is called at again while a transfer is young, and not
/// after the 200 ms for which a wrong one is left alone.
#[test]
fn a_host_that_has_left_is_called_at_again_soon() {
    const CALLS: u32 = 12;
    let _alone = alone();
    if !in_own_process("a_host_that_has_left_is_called_at_again_soon") {
        return;
    }
    forbid_netlink();
    // A thread that was not run meanwhile knows too little of its handshake.
    let known = (0..50).map(|_| dialled()).find_map(|(client, server)| {
        let [c, s] = [&client, &server].map(|end| end.stream.as_raw_fd());
        server.slot.handshake.accepted_timestamp(s)?;
        let bounds = client.slot.handshake.dialled_bounds(c)?;
        Some((client, server, bounds))
    });
    let Some((_client, server, bounds)) = known else {
        return assert!(!offsets::are_each_ones_own(-1), "no handshake is known");
    };
    let name = Name::new(bounds, server.tuple().remote.port, 0x4711);
    let host = offers::open(&name).expect("an offer");
    let began = Instant::now();
    for call in 0..CALLS {
        let visitor = loop {
            let phase = server.step();
            if let Ok(visitor) = sockets::accept(sys::borrow(host)) {
                // It has said its word.
                assert_eq!(phase, Phase::HelloSent, "{call}: {:?}", server.reason());
                break visitor;
            }
            assert_eq!(phase, Phase::Young, "{call}: {:?}", server.reason());
        };
        drop(visitor);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_millis(200) * (CALLS - 1), "{took:?}");
    offers::withdraw(host);
    sys::close_private(host);
}

/// A sibling that held the connection and is still ending, or a stranger for a while.
#[test]
fn the_name_is_taken_for_a_while() {
    let _alone = alone();
    let (client, server) = ends(flag::STRICT);
    let taken = Offer::open(&client.tuple()).expect("offer");
    assert_eq!((client.step(), client.reason()), (Phase::Young, Some(Reason::NameTaken)));
    taken.close();
    attach(&client, &server);

    let (client, server) = ends(flag::STRICT);
    let tuple = client.tuple();
    let Some(taken) = as_stranger(|| Offer::open(&tuple).expect("offer")) else { return };
    for end in [&client, &server] {
        assert_eq!((end.step(), end.reason()), (Phase::Young, Some(Reason::NameTaken)));
    }
    taken.close();
    attach(&client, &server);
}

/// Where there is TCP, the connection stays there, and says why.
#[test]
fn a_taken_name_is_said() {
    let _alone = alone();
    let (client, _server) = ends(0);
    client.slot.next_step.store(0, Ordering::Relaxed);
    let taken = Offer::open(&client.tuple()).expect("offer");
    assert_eq!((client.step(), client.reason()), (Phase::Refused, Some(Reason::NameTaken)));
    taken.close();
}

/// Whether this is the process that the test has for itself. If not, it has run there.
fn in_own_process(name: &str) -> bool {
    if std::env::var_os(name).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("own path");
    let run = Command::new(own)
        .args([name, "--exact", "--nocapture"])
        .env(name, "")
        .output()
        .expect("run");
    let said = [run.stdout, run.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(run.status.success(), "{}", said.concat());
    false
}

/// Runs `f` while the process may not do something.
fn without<R>(what: Resource, f: impl FnOnce() -> R) -> R {
    let usual = getrlimit(what);
    setrlimit(what, Rlimit { current: Some(0), ..usual }).expect("less");
    let r = f();
    setrlimit(what, usual).expect("as before");
    r
}

/// The arenas that there are become full, and there is no memory for another one; then there is.
/// The test runs in a process of its own, whose output goes into pipes. The limit is for all files,
/// also for one that the tests' output may go to.
#[test]
fn no_arena_for_a_while() {
    let _alone = alone();
    if !in_own_process("no_arena_for_a_while") {
        return;
    }
    let mut attached = vec![];
    let (client, server) = without(Resource::Fsize, || {
        loop {
            let (client, server) = ends(flag::STRICT);
            assert_eq!([client.step(), server.step()], [Phase::Offered, Phase::HelloSent]);
            // The hello has come with its sender.
            if client.step() == Phase::Paired {
                attach(&client, &server);
                attached.push((client, server));
                continue;
            }
            assert_eq!(
                (client.slot.phase(), client.reason()),
                (Phase::Young, Some(Reason::ResourceError))
            );
            break (client, server);
        }
    });
    attach(&client, &server);
}

/// The reason why no peer came is said, and counted, once.
#[test]
fn out_of_time_has_a_reason() {
    let _alone = alone();
    let (client, server) = ends(flag::STRICT);
    let counted = |reason| stats::snapshot().on_tcp(reason);
    let late = |end: &End| {
        // More than all patience.
        end.slot.waiting_since.store((1 << 30) - 1, Ordering::Relaxed);
        let mut byte = 0_u8;
        let list = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        let fd = end.stream.as_raw_fd();
        let sent = || send::send(end.id, end.slot, fd, &list, libc::MSG_DONTWAIT);
        assert_eq!([sent(), sent()], [Err(Failure::TimedOut); 2]);
    };
    let before = [Reason::NoOffer, Reason::NameTaken, Reason::OfferLapsed].map(counted);
    late(&server);
    let taken = Offer::open(&client.tuple()).expect("offer");
    late(&client);
    taken.close();
    assert_eq!(client.step(), Phase::Offered);
    late(&client);
    let after = [Reason::NoOffer, Reason::NameTaken, Reason::OfferLapsed].map(counted);
    assert_eq!(after, before.map(|n| n + 1));
    // A peer that comes late is welcome.
    attach(&client, &server);
}

/// The end that accepted closes. From then on its peer may give the channel to another connection,
/// which another thread accepts before the first one has done anything else.
#[test]
fn a_channel_is_free_here_before_the_peer_may_use_it() {
    let _alone = alone();
    for _ in 0..200 {
        let (client, server) = ends(flag::STRICT);
        attach(&client, &server);
        // A sleeper that is to be woken holds up the end that closes.
        ready::arm(client.id, client.slot, Events::IN, 5, false);
        let record = server.slot.arena.load(Ordering::Relaxed) - 1;
        let channel = server.slot.channel.load(Ordering::Relaxed);
        let outgoing = link::ends(server.slot).expect("a channel").outgoing;
        let (_other, next) = ends(flag::STRICT);
        std::thread::scope(|scope| {
            let started = scope.spawn(|| {
                while !handover_state::sender_closed(&outgoing) {
                    std::hint::spin_loop();
                }
                let slot = PairingGuard::take(next.slot).expect("nobody pairs");
                link::start(next.id, &slot, (record, channel), 1, Beyond::Peer)
            });
            link::release(server.slot);
            assert_eq!(started.join().expect("a thread"), Ok(()));
        });
    }
}

fn received(end: &End) -> Result<usize, Failure> {
    let mut bytes = [0_u8; 4096];
    let list = [libc::iovec { iov_base: (&raw mut bytes).cast(), iov_len: bytes.len() }];
    receive::receive(end.id, end.slot, end.stream.as_raw_fd(), &list, libc::MSG_DONTWAIT)
}

/// A peer that is killed between the switch offset and its last bytes takes those with it. The
/// reset was reported to the call that asked first, and is no reason to distrust the peer.
#[test]
fn a_reset_before_the_switch_is_no_inconsistency() {
    let _alone = alone();
    let (client, server) = ends(0);
    client.stream.set_nonblocking(true).expect("non-blocking");
    while (&client.stream).write(&[7; 65536]).is_ok() {}
    for end in [&client, &server] {
        end.slot.position.store(u64::MAX / 2, Ordering::Relaxed);
    }
    attach(&client, &server);
    assert_eq!(server.slot.receive_mode(), ReceiveMode::Acknowledged);
    let n = counters::put(client.stream.as_raw_fd(), true).expect("a count");
    handover_state::publish_switch_offset(&link::ends(client.slot).expect("a channel").outgoing, n);
    rsocket_core::host::kernel::disconnect(client.stream.as_raw_fd());
    assert!(server.stream.take_error().expect("SO_ERROR").is_some());
    let mut all = 0;
    let end = loop {
        match received(&server) {
            Ok(some @ 1..) => all += some as u64,
            other => break other,
        }
    };
    assert_eq!(end, Err(Failure::Reset));
    assert!(0 < all && all < n, "{all} of {n}");
    assert!(!link::distrusted());
}

/// TCP keeps the last bytes back before the switch offset, because the program said that more are
/// to follow. Those go by the device, which does not wait for a timer of the kernel's.
#[test]
fn what_tcp_kept_back_goes_before_the_switch() {
    let _alone = alone();
    for (no_delay, cork) in [(true, false), (false, false), (true, true), (false, true)] {
        let (client, server) = ends(0);
        let fd = client.stream.as_raw_fd();
        client.stream.set_nodelay(no_delay).expect("TCP_NODELAY");
        sockopt::set_tcp_cork(&client.stream, cork).expect("TCP_CORK");
        let flags = if cork { SendFlags::empty() } else { SendFlags::MORE };
        assert_eq!(rustix::net::send(&client.stream, &[7; 100], flags), Ok(100));
        assert_eq!(counters::out_queue(fd), Ok(100), "kept back");
        for end in [&client, &server] {
            end.slot.position.store(u64::MAX / 2, Ordering::Relaxed);
        }
        attach(&client, &server);
        while client.slot.send_mode() != SendMode::Device {
            let byte = 7_u8;
            let list = [libc::iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 }];
            let sent = send::send(client.id, client.slot, fd, &list, libc::MSG_MORE);
            assert_eq!(sent, Ok(1), "{:?}", client.slot.send_mode());
            server.step();
        }
        let all = counters::put(fd, true);
        assert_eq!(counters::in_queue(server.stream.as_raw_fd()), all, "they are there");
        assert_eq!(client.stream.nodelay().expect("TCP_NODELAY"), no_delay);
        assert_eq!(sockopt::tcp_cork(&client.stream), Ok(cork));
    }
}

/// A holder that cannot get at the channel just now loses the connection, and nothing else.
#[test]
fn a_channel_that_cannot_be_reached_is_no_inconsistency() {
    let _alone = alone();
    for sending in [false, true] {
        let (client, server) = ends(flag::STRICT);
        attach(&client, &server);
        let arena = server.slot.arena.swap(arena_record::MAX_ARENAS as u32, Ordering::Relaxed);
        let byte = [libc::iovec { iov_base: (&raw const sending).cast_mut().cast(), iov_len: 1 }];
        let fd = server.stream.as_raw_fd();
        let tried = match sending {
            true => send::send(server.id, server.slot, fd, &byte, libc::MSG_DONTWAIT),
            false => received(&server),
        };
        server.slot.arena.store(arena, Ordering::Relaxed);
        assert_eq!(tried, Err(Failure::Reset));
        assert_eq!(server.reason(), Some(Reason::ResourceError));
        assert!(!link::distrusted());
    }
}
