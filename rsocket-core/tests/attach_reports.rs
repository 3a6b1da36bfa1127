//! Messages and the report at exit, in real files.

use std::ffi::{CStr, CString};
use std::path::PathBuf;

use rsocket_core::host::filter;
use rsocket_core::host::trial::Seccomp;
use rsocket_core::reason::Reason;
use rsocket_core::stats::{self, Counter, Transport};
use rsocket_core::sys::sandbox;
use rsocket_core::{log, log_debug, log_info, log_warn, sys};

fn place(name: &str) -> (PathBuf, CString) {
    let pid = std::process::id();
    let path = std::env::temp_dir().join(format!("rsockets-{name}-{pid}"));
    let _ = std::fs::remove_file(&path);
    let pattern = path.to_str().expect("a name").replace(&pid.to_string(), "%p");
    (path, CString::new(pattern).expect("a name"))
}

// One test: level and counters belong to the process.
#[test]
fn log_report_and_sandbox() {
    let count = core::cell::Cell::new(0);
    let costly = || count.replace(count.get() + 1);
    log_warn!("nobody listens {}", costly());
    assert_eq!(count.get(), 0, "arguments are not evaluated");

    let (path, pattern) = place("log");
    let env = |name: &CStr| match name.to_bytes() {
        b"RSOCKET_LOG" => Some(c"info"),
        b"RSOCKET_LOG_FILE" => Some(pattern.as_c_str()),
        _ => None,
    };
    log::init(env);
    sys::set_errno(77);
    log_warn!("hello {}", costly());
    log_info!("{}", Reason::PeerElsewhere);
    log_debug!("too much {}", costly());
    log_info!("{}", "x".repeat(2000));
    assert_eq!((sys::errno(), count.get()), (77, 1));
    let text = std::fs::read_to_string(&path).expect("the log");
    let lines = text.lines().collect::<Vec<_>>();
    let me = std::process::id();
    assert_eq!(lines[0], format!("rsockets[{me}]: warn: hello 0"));
    assert_eq!(lines[1], format!("rsockets[{me}]: info: {}", Reason::PeerElsewhere.text()));
    assert!(lines.len() == 3 && lines[2].len() == 511 && lines[2].ends_with("x..."));
    log::close();
    log_warn!("after the end");
    assert_eq!(std::fs::read_to_string(&path).expect("the log"), text);
    let _ = std::fs::remove_file(&path);
    assert!(log::open(log::Level::Warn, Some(b"/nowhere/at/all")).is_err());

    let (path, pattern) = place("stats");
    let env = |name: &CStr| (name == c"RSOCKET_STATS").then_some(pattern.as_c_str());
    stats::sent(Transport::Shm, 100, 2);
    stats::received(Transport::Tcp, 7, 1);
    stats::fell_back(Reason::NoOffer);
    stats::report_at_exit(env);
    stats::add(Counter::Resets, 1);
    stats::report_at_exit(env);
    stats::report_at_exit(|_| None);
    let text = std::fs::read_to_string(&path).expect("the report");
    let find = |line: &str| text.lines().filter(|l| *l == line).count();
    assert_eq!(find(&format!("pid {me}")), 2, "two reports, one after the other");
    assert_eq!((find("bytes.sent.shm 100"), find("messages.received.tcp 1")), (2, 2));
    assert_eq!((find("on_tcp.no_offer 1"), find("resets 0"), find("resets 1")), (2, 1, 1));
    assert!(text.lines().all(|l| l.split(' ').count() == 2));
    stats::forked();
    assert_eq!(stats::snapshot().get(Counter::Resets), 0);

    // In a sandbox there is no report; what a hook saw is not to be overruled.
    let _ = filter::sandboxed(Seccomp::Careful);
    assert!(!filter::sandboxed(Seccomp::Trust));
    sandbox::entering_sandbox();
    assert!(sandbox::entered() && !sandbox::inside());
    sandbox::inside_from_now_on();
    assert!(
        sandbox::inside()
            && filter::sandboxed(Seccomp::Trust)
            && filter::sandboxed(Seccomp::Careful)
    );
    std::fs::remove_file(&path).expect("remove");
    stats::report_at_exit(env);
    assert!(!path.exists());
}
