//! Two ends that meet although something is in the way for a while: strangers, or a kernel that has nothing to give just now.
//! Where there is no TCP to stay on, nothing of this may cost a connection.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rsocket_core::attach::machine::Phase;
use rsocket_core::attach::reason::Reason;
use rsocket_core::attach::rendezvous::{self, Channel};
use rsocket_core::attach::trust::Tuple;
use rsocket_core::attach::{link, pairing};
use rsocket_core::errno::Errno;
use rsocket_core::socket::family;
use rsocket_core::socket::slot::{Slot, SlotId, flag};
use rsocket_core::stats::{self, Counter};

/// One test at a time: some change what the whole process may do.
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
        let id = family::take(flags, stream.as_raw_fd()).expect("a slot");
        let slot = family::slot(id).expect("a slot");
        slot.set_phase(Phase::Young);
        Self { stream, id, slot }
    }

    fn tuple(&self) -> Tuple {
        Tuple::of(self.stream.as_raw_fd()).expect("connected")
    }

    /// The next step, and where that leads.
    fn step(&self) -> Phase {
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
    (End::new(client, flag::CONNECTING | more), End::new(server, more))
}

/// Nothing is in the way any more: they attach.
fn attach(client: &End, server: &End) {
    for _ in 0..50 {
        if [client.step(), server.step()] == [Phase::Paired, Phase::Paired] {
            assert!(link::has_window(client.slot) && link::has_window(server.slot));
            assert_eq!([client.reason(), server.reason()], [Some(Reason::TooYoung); 2], "nothing is noted");
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

/// He comes first, with words that might be right or are rubbish; also where there is TCP to stay on.
#[test]
fn a_stranger_knocks_first() {
    let _alone = alone();
    for more in [0, flag::STRICT] {
        let (client, server) = ends(more);
        // Past the mark at which others take their first step.
        for end in [&client, &server] {
            end.slot.next_step.store(0, Ordering::Relaxed);
        }
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
                Err(e) => break assert_eq!(e, Errno::AGAIN),
            }
        }
        crowd
    });
    let Some(crowd) = crowd else { return };
    assert_eq!(server.step(), Phase::Young, "it looks again");
    attach(&client, &server);
    crowd.into_iter().for_each(Channel::close);
}
