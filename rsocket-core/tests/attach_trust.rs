//! Finding the other end of a real loopback connection.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use rsocket_core::attach::trust::{self, Owner};
use rsocket_core::host::counters;
use rsocket_core::host::filter;
use rsocket_core::host::memory;
use rsocket_core::host::tcp_state as state;
use rsocket_core::host::trial;
use rsocket_core::host::tuple::Tuple;

fn pair(listen: &str, connect: Option<&str>) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(listen).expect("bind");
    let port = listener.local_addr().expect("address").port();
    let to = connect.map_or_else(
        || listener.local_addr().expect("address"),
        |host| SocketAddr::new(host.parse().expect("an address"), port),
    );
    let client = TcpStream::connect(to).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    (client, server)
}

fn tuple(s: &TcpStream) -> Tuple {
    Tuple::of(s.as_raw_fd()).expect("a connected socket")
}

fn look(t: &Tuple) -> Option<Owner> {
    trust::find(t).expect("sock_diag")
}

fn check_both_ways(client: &TcpStream, server: &TcpStream) {
    assert_eq!(tuple(client), tuple(server).reversed());
    let me = rustix::process::geteuid().as_raw();
    for (seen_from, other) in [(client, server), (server, client)] {
        let owner = look(&tuple(seen_from).reversed()).expect("the other end is on this host");
        let (inode, cookie) = trust::own_identity(other.as_raw_fd()).expect("identity");
        assert!(owner.is(inode, cookie), "{owner:?} {inode} {cookie}");
        assert_eq!((owner.uid, owner.state), (me, state::ESTABLISHED));
        assert!(owner.is_alive() && !trust::cred_matches(me + 1, &owner));
        // In a user namespace where this user has no number, it shows as the overflow user, which
        // never matches.
        assert_eq!(trust::cred_matches(me, &owner), me != 65534);
    }
}

#[test]
fn ipv4() {
    let (c, s) = pair("127.0.0.1:0", None);
    assert_eq!(tuple(&c).family, 4);
    assert!(tuple(&c).peer_may_be_local() && trust::is_tcp(c.as_raw_fd()));
    check_both_ways(&c, &s);
}

#[test]
fn ipv6() {
    let Ok(_) = TcpListener::bind("[::1]:0") else { return };
    let (c, s) = pair("[::1]:0", None);
    assert_eq!(tuple(&c).family, 6);
    assert!(tuple(&c).peer_may_be_local());
    check_both_ways(&c, &s);
}

#[test]
fn ipv4_client_of_an_ipv6_listener() {
    let Ok(_) = TcpListener::bind("[::]:0") else { return };
    let (c, s) = pair("[::]:0", Some("127.0.0.1"));
    assert!(s.peer_addr().expect("address").is_ipv6(), "the server's view is a mapped address");
    assert_eq!((tuple(&c).family, tuple(&s).family), (4, 4));
    check_both_ways(&c, &s);
    let (c, s) = pair("0.0.0.0:0", Some("::ffff:127.0.0.1"));
    check_both_ways(&c, &s);
}

#[test]
fn another_loopback_address() {
    let (c, s) = pair("127.0.0.9:0", None);
    assert!(tuple(&c).peer_may_be_local());
    check_both_ways(&c, &s);
}

#[test]
fn nobody_there() {
    let (c, s) = pair("127.0.0.1:0", None);
    let mut t = tuple(&c).reversed();
    // A listener's port with another peer: the kernel would answer with the listener.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    t.local.port = listener.local_addr().expect("address").port();
    assert_eq!(look(&t), None);
    t.local.addr[..4].copy_from_slice(&Ipv4Addr::new(192, 0, 2, 1).octets());
    assert_eq!(look(&t), None);
    drop((c, s));
}

#[test]
fn not_accepted_yet_and_orphaned() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let waiting = look(&tuple(&client).reversed()).expect("it is in the accept queue");
    assert!(waiting.inode == 0 && !waiting.is_alive(), "{waiting:?}");
    let (mut server, _) = listener.accept().expect("accept");
    let seen = tuple(&client).reversed();
    assert!(look(&seen).expect("accepted").is_alive());
    server.write_all(b"x").expect("write");
    drop(server);
    // FIN_WAIT2 without a holder.
    let orphan = look(&seen).expect("still in the kernel");
    assert!(orphan.inode == 0 && !orphan.is_alive(), "{orphan:?}");
}

#[test]
fn half_closed() {
    let (c, s) = pair("127.0.0.1:0", None);
    c.shutdown(std::net::Shutdown::Write).expect("shutdown");
    let owner = look(&tuple(&s).reversed()).expect("there");
    // FIN_WAIT1 as long as the FIN waits for its (delayed) acknowledgement.
    assert!(
        matches!(owner.state, state::FIN_WAIT1 | state::FIN_WAIT2) && owner.is_alive(),
        "{owner:?}"
    );
    let owner = look(&tuple(&c).reversed()).expect("there");
    assert!(owner.state == state::CLOSE_WAIT && owner.is_alive(), "{owner:?}");
}

#[test]
fn what_is_no_tcp_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    assert_eq!(Tuple::of(listener.as_raw_fd()), None);
    assert!(trust::is_tcp(listener.as_raw_fd()));
    let (a, _b) = std::os::unix::net::UnixStream::pair().expect("pair");
    assert_eq!(Tuple::of(a.as_raw_fd()), None);
    assert!(!trust::is_tcp(a.as_raw_fd()));
    let file = std::fs::File::open("/dev/null").expect("open");
    assert_eq!(Tuple::of(file.as_raw_fd()), None);
    assert!(!trust::is_tcp(file.as_raw_fd()) && trust::own_identity(file.as_raw_fd()).is_err());
    assert_eq!(Tuple::of(-1), None);
}

#[test]
fn connected_to_itself() {
    let kind = rustix::net::SocketType::STREAM;
    let s = rustix::net::socket(rustix::net::AddressFamily::INET, kind, None).expect("socket");
    let any: SocketAddr = "127.0.0.1:0".parse().expect("address");
    rustix::net::bind(&s, &any).expect("bind");
    let own = SocketAddr::try_from(rustix::net::getsockname(&s).expect("name")).expect("address");
    rustix::net::connect(&s, &own).expect("connect");
    let t = Tuple::of(s.as_raw_fd()).expect("connected");
    assert!(t.is_self_connected());
    let (inode, cookie) = trust::own_identity(s.as_raw_fd()).expect("identity");
    assert!(look(&t.reversed()).expect("there").is(inode, cookie));
    // Its SYN was acknowledged, as on any connecting side.
    rustix::io::write(&s, b"seven b").expect("write");
    assert_eq!(counters::put(s.as_raw_fd(), true), Ok(7));
    assert_eq!(counters::taken(s.as_raw_fd()).map(|t| (t.bytes, t.waiting)), Ok((0, 7)));
}

#[test]
#[ignore = "a measurement"]
fn cost() {
    let (c, _s) = pair("127.0.0.1:0", None);
    let fd = c.as_raw_fd();
    let peer = tuple(&c).reversed();
    let time = |what: &str, f: &mut dyn FnMut()| {
        for _ in 0..1000 {
            f();
        }
        let start = std::time::Instant::now();
        for _ in 0..20_000 {
            f();
        }
        println!("{what}: {:.2} us", start.elapsed().as_secs_f64() * 1e6 / 20_000.0);
    };
    time("find", &mut || assert!(look(&peer).is_some()));
    time("find, nobody", &mut || assert!(look(&Tuple { family: 4, ..Tuple::default() }).is_none()));
    time("Tuple::of", &mut || assert!(Tuple::of(fd).is_some()));
    time("is_tcp", &mut || assert!(trust::is_tcp(fd)));
    time("own_identity", &mut || assert!(trust::own_identity(fd).is_ok()));
    time("counters::put", &mut || assert_eq!(counters::put(fd, true), Ok(0)));
    time("counters::taken", &mut || assert!(counters::taken(fd).is_ok()));
    // Each first look, once a second at most.
    let start = std::time::Instant::now();
    let answer = filter::sandboxed(trial::Seccomp::Careful);
    println!("sandboxed, first: {:.2} us ({answer})", start.elapsed().as_secs_f64() * 1e6);
    let start = std::time::Instant::now();
    let _ = memory::memory_pressure();
    println!("memory_pressure, look: {:.2} us", start.elapsed().as_secs_f64() * 1e6);
    time("memory_pressure, kept", &mut || assert!(!memory::memory_pressure()));
}
