//! Which system calls the data path and an attach make: the rows that `docs/system-calls.md` marks.
//! Needs `strace`, and a kernel that lets it trace; without them there is nothing to see, and the
//! test says so.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use rs_tests::{compile, preload_library, profile_directory, run};

/// How often each system call was made, by stage.
type Stages = BTreeMap<String, BTreeMap<String, u32>>;

fn stages(trace: &str) -> Stages {
    let mut out = Stages::new();
    let mut stage = String::new();
    for line in trace.lines() {
        let Some((call, rest)) = line.split_once('(') else { continue };
        if call == "write" && rest.starts_with("-1, ") {
            stage = rest.split('"').nth(1).unwrap_or_default().to_owned();
            out.insert(stage.clone(), BTreeMap::new());
        } else if let Some(counts) = out.get_mut(&stage) {
            *counts.entry(call.to_owned()).or_default() += 1;
        }
    }
    out
}

/// How many system calls both ends of a connection make together to attach, where their processes
/// have met before: it is 101, and 102 where the library is built with debug assertions.
const ATTACH_MOST: u32 = 102;
/// How often they ask who has the other end.
const LOOK_UPS: u32 = 5;
/// What is not counted: the program's own calls, looks whose number the clock decides, and what
/// depends on the limit on open files and on sandboxes.
const NOT_ALWAYS: [&str; 10] = [
    "sendto",
    "recvfrom",
    "recvmsg",
    "poll",
    "ppoll",
    "prlimit64",
    "rt_sigprocmask",
    "newfstatat",
    "openat",
    "read",
];

#[test]
fn the_data_path() {
    let program = compile("awake", "awake", &[]);
    let trace =
        profile_directory().join("edge").join(format!("awake.{}.trace", std::process::id()));
    let mut strace = Command::new("strace");
    strace.arg("-o").arg(&trace).arg("-E");
    strace.arg(format!("LD_PRELOAD={}", preload_library().display())).arg(&program);
    strace.env_remove("RSOCKET_TRANSPORT").env_remove("RSOCKET_DISABLE");
    let traces = |c: &mut Command| c.output().is_ok_and(|o| o.status.success());
    if !traces(Command::new("strace").args(["-o", "/dev/null", "true"])) {
        println!("strace is not there, or may not trace: nothing was tested");
        return;
    }
    let outcome = run(&mut strace, Duration::from_secs(60));
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "done\n"), "{}", outcome.stderr);
    let text = std::fs::read_to_string(&trace).expect("strace wrote it");
    let _ = std::fs::remove_file(&trace);
    let stages = stages(&text);
    let counts = |stage: &str| {
        let calls = stages.get(stage).unwrap_or_else(|| panic!("no stage {stage}"));
        calls.iter().map(|(call, n)| (call.as_str(), *n)).collect::<Vec<_>>()
    };
    assert_eq!(
        counts("foreign"),
        [("read", 100), ("write", 100)],
        "the program's own, and none of ours"
    );
    assert_eq!(
        counts("young"),
        [("recvfrom", 4), ("sendto", 4)],
        "the program's own, and none of ours"
    );
    for (call, n) in counts("awake") {
        assert!(
            matches!(call, "poll" | "ppoll") && n <= 20,
            "6000 messages of 1 KiB on the device, and now and then a look whether they are read: {call} {n}"
        );
    }
    for (call, n) in counts("empty") {
        assert!(
            call == "recvmsg" && n <= 20,
            "one look at the connection's end for each, at most: {call} {n}"
        );
    }
    let attach = counts("attach");
    let made = |name: &str| attach.iter().find(|(call, _)| *call == name).map_or(0, |(_, n)| *n);
    // Each file that is looked into is closed again.
    let all = attach.iter().filter(|(call, _)| !NOT_ALWAYS.contains(call)).map(|(_, n)| n);
    let all = all.sum::<u32>().saturating_sub(made("openat"));
    assert!(all <= ATTACH_MOST, "{all} system calls to attach: {attach:?}");
    assert_eq!(
        made("socket"),
        2 + LOOK_UPS,
        "where the ends meet, and one for each look-up: {attach:?}"
    );
}
