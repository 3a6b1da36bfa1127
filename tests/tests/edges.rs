//! The edges at which preload libraries fail: each a small C program of `edge/`, run plain and
//! preloaded with the same outcome demanded. What each is about stands in its first comment.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rs_tests::{
    Outcome, build_preload_library, compile, preload_library, run, same_plain_and_preloaded,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Compiles and runs a program of `edge/` both ways; it must end well.
fn same(program: &str) -> Outcome {
    let path = compile(program, program, &[]);
    let outcome =
        same_plain_and_preloaded(|| Command::new(&path), preload_library(), &[], &[], LIMIT);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    outcome
}

#[test]
fn a_signal_that_arrives_during_a_look_up_may_call_the_same_function() {
    let outcome = during_look_up("interposer-signal", "-DSIGNAL");
    assert_eq!(outcome.stdout, "the read came back\n");
}

#[test]
fn a_child_that_is_forked_during_a_look_up_may_call_the_same_function() {
    let outcome = during_look_up("interposer-sleep", "-DSLEEP");
    assert_eq!(outcome.stdout, "the child came back\n");
}

fn during_look_up(name: &str, scenario: &str) -> Outcome {
    let interposer = compile("interposer", &format!("{name}.so"), &["-shared", "-fPIC", scenario]);
    let program = compile("nothing", &format!("{name}-nothing"), &[]);
    same_plain_and_preloaded(
        || Command::new(&program),
        preload_library(),
        &[],
        &[&interposer],
        LIMIT,
    )
}

/// In both profiles: an optimiser can remove the landing pads that would abort.
fn cancelled(release: bool) {
    let path = compile("cancel", if release { "cancel-release" } else { "cancel-debug" }, &[]);
    let library = build_preload_library(release);
    let outcome = same_plain_and_preloaded(|| Command::new(&path), &library, &[], &[], LIMIT);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    for line in outcome.stdout.lines() {
        assert!(line.ends_with("cancelled 1, cleaned 1"), "{line}");
    }
}

#[test]
fn a_cancelled_call_unwinds_through_the_hook_in_a_debug_build() {
    cancelled(false);
}

#[test]
fn a_cancelled_call_unwinds_through_the_hook_in_a_release_build() {
    cancelled(true);
}

#[test]
fn a_late_destructor_may_write() {
    assert_eq!(same("late_destructor").stdout, "early\nlate\n");
}

#[test]
fn a_vfork_child_leaves_its_parents_connections_alone() {
    same("vfork_child");
}

#[test]
fn pythons_subprocess_with_pipes_works() {
    let script = "
import socket, subprocess
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
c = socket.create_connection(s.getsockname()); a, _ = s.accept()
for close_fds in True, False:
    for _ in range(3):
        done = subprocess.run(['cat'], input=b'through', capture_output=True, close_fds=close_fds)
        print(done.stdout, done.returncode)
        c.sendall(b'there'); print(a.recv(5)); a.sendall(b'back'); print(c.recv(4))
c.close(); print(a.recv(1))
";
    let make = || {
        let mut python = Command::new("python3");
        python.args(["-c", script]);
        python
    };
    let outcome = same_plain_and_preloaded(make, preload_library(), &[], &[], LIMIT);
    assert_eq!(outcome.status, 0, "{outcome:?}");
}

/// Python starts it by `vfork`, and takes close-on-exec from the number.
#[test]
fn a_program_that_python_starts_may_have_a_connection() {
    let script = "
import socket, subprocess, sys
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
c = socket.create_connection(s.getsockname()); a, _ = s.accept()
for _ in range(100):
    c.sendall(b'x' * 4000); a.recv(4000, socket.MSG_WAITALL)
    a.sendall(b'y' * 4000); c.recv(4000, socket.MSG_WAITALL)
upper = 'import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(s.recv(5, socket.MSG_WAITALL).upper())'
child = subprocess.Popen([sys.executable, '-c', upper, str(a.fileno())], pass_fds=[a.fileno()])
a.close(); c.settimeout(20); c.sendall(b'hello')
print(c.recv(5, socket.MSG_WAITALL), c.recv(1), child.wait())
";
    let make = || {
        let mut python = Command::new("python3");
        python.args(["-c", script]);
        python
    };
    let outcome = same_plain_and_preloaded(make, preload_library(), &[], &[], LIMIT);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "b'HELLO' b'' 0\n"), "{outcome:?}");
}

#[test]
fn sockets_may_take_the_numbers_of_the_standard_descriptors() {
    let path = compile("closed_standard", "closed_standard", &[]);
    let make = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" <&- >&- 2>&-"]).arg(&path);
        shell
    };
    let outcome = same_plain_and_preloaded(make, preload_library(), &[], &[], LIMIT);
    assert_eq!(outcome.status, 42, "{outcome:?}");
}

#[test]
fn a_sanitized_program_runs_with_its_runtime_first() {
    let runtime = Command::new("cc").arg("-print-file-name=libasan.so").output().expect("cc runs");
    let runtime = String::from_utf8_lossy(&runtime.stdout).trim().to_owned();
    let runtime = Path::new(&runtime);
    if !runtime.is_absolute() {
        eprintln!("skipped: the compiler has no address sanitizer");
        return;
    }
    // The library that -print-file-name gives may be a linker script or a symbolic link: the loader
    // wants a file.
    let runtime = runtime.canonicalize().expect("the sanitizer's runtime exists");
    for program in ["aliases", "close_everything", "before_constructors"] {
        if program == "before_constructors" {
            // .preinit_array comes before the sanitizer itself is ready.
            continue;
        }
        let path = compile(program, &format!("{program}-asan"), &["-fsanitize=address"]);
        let make = || {
            let mut command = Command::new(&path);
            command.env("ASAN_OPTIONS", "detect_leaks=0");
            command
        };
        let outcome = same_plain_and_preloaded(make, preload_library(), &[&runtime], &[], LIMIT);
        assert_eq!(outcome.status, 0, "{outcome:?}");
    }
}

#[test]
fn hooks_work_before_any_constructor_and_after_every_exit_handler() {
    let outcome = same("before_constructors");
    assert_eq!(outcome.stdout, "preinit\nconstructor\nmain\nexit\ndestructor\n");
}

#[test]
fn an_allocator_that_reads_files_while_it_starts_works() {
    let allocator = compile("allocator", "allocator.so", &["-shared", "-fPIC", "-fno-builtin"]);
    let program = compile("aliases", "aliases-allocator", &[]);
    for (before, after) in [(Some(&*allocator), None), (None, Some(&*allocator))] {
        let before: Vec<&Path> = before.into_iter().collect();
        let after: Vec<&Path> = after.into_iter().collect();
        let outcome = same_plain_and_preloaded(
            || Command::new(&program),
            preload_library(),
            &before,
            &after,
            LIMIT,
        );
        assert_eq!(outcome.status, 0, "{outcome:?}");
    }
}

#[test]
fn programs_may_close_everything() {
    same("close_everything");
}

#[test]
fn every_variadic_argument_arrives() {
    same("variadic");
}

#[test]
fn aliases_relatives_and_bulk_calls_are_those_of_tcp() {
    same("aliases");
}

/// And so does every message, report and packet that it can be told to write.
#[test]
fn every_call_fits_into_the_smallest_stack() {
    assert_eq!(same("small_stack").stdout, "all of them\n");
    let path = compile("small_stack", "small_stack-telling", &[]);
    let told = |what: &str| path.with_extension(format!("{}.{what}", std::process::id()));
    let mut command = Command::new(&path);
    command.env("LD_PRELOAD", preload_library()).env("RSOCKET_LOG", "debug");
    command
        .env("RSOCKET_LOG_FILE", told("log"))
        .env("RSOCKET_PCAP", told("pcap"))
        .env("RSOCKET_STATS", told("stats"));
    let outcome = run(&mut command, LIMIT);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = std::fs::read_to_string(told("stats")).expect("the report is written");
    let moved =
        stats.lines().filter_map(|l| l.strip_prefix("bytes.sent.shm ")?.parse::<u64>().ok());
    assert!(moved.max() > Some(4_000_000), "{stats}");
    for what in ["log", "pcap", "stats"] {
        std::fs::remove_file(told(what)).expect("it was written");
    }
}

/// Of names that mean the same function (with underscores, `_chk` or 64; the old names of `signal`)
/// one is enough; liburing's are not libc's.
#[test]
fn no_call_is_left_out_there() {
    let read = |path: &str| {
        std::fs::read_to_string(rs_tests::workspace().join(path)).expect("a part of the source")
    };
    let (calls, program) = (read("rspreload/calls.txt"), read("tests/edge/small_stack.c"));
    let alias = |n: &str| {
        n.starts_with("__") || n.starts_with("_IO") || n.contains("64") || n.starts_with("io_uring")
    };
    let other =
        ["vdprintf", "fclose", "bsd_signal", "sysv_signal", "sigset", "siginterrupt", "_exit"];
    let hooked =
        calls.lines().filter(|l| l.starts_with('+')).filter_map(|l| l.split_whitespace().nth(2));
    let missing: Vec<_> = hooked
        .filter(|n| {
            !alias(n)
                && !other.contains(n)
                && !program.contains(&format!(" {n}("))
                && !program.contains(&format!("({n}("))
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn one_thread_may_hold_both_ends() {
    same("one_thread");
}

#[test]
fn disabled_means_nothing_is_tracked() {
    let path = compile("aliases", "aliases-disabled", &[]);
    let outcome = run(
        Command::new(&path).env("LD_PRELOAD", preload_library()).env("RSOCKET_DISABLE", "1"),
        LIMIT,
    );
    assert_eq!(outcome.status, 0, "{outcome:?}");
}

/// What a report says of a counter.
fn counted(report: &str, name: &str) -> u64 {
    let line = report.lines().find_map(|l| l.strip_prefix(name)).and_then(|l| l.strip_prefix(' '));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn a_plug_in_that_binds_past_us_is_followed() {
    let program = compile("deepbind", "deepbind", &[]);
    let (relro, lazy) = ("-Wl,-z,relro,-z,now", "-Wl,-z,lazy");
    for (linking, loading) in [(relro, "now"), (lazy, "now"), (lazy, "lazy")] {
        let plug = |name: &str| {
            let name = format!("{name}-{}-{loading}.so", linking.len());
            compile("deepbind", &name, &["-shared", "-fPIC", "-DPLUG", linking])
        };
        let (first, second) = (plug("plug"), plug("plug-again"));
        for release in [false, true] {
            let report = program.with_extension(format!("{}-{loading}-{release}", linking.len()));
            let _ = std::fs::remove_file(&report);
            let make = || {
                let mut command = Command::new(&program);
                command.arg(&first).arg(&second).arg(loading).env("RSOCKET_STATS", &report);
                command
            };
            let library = build_preload_library(release);
            let outcome = same_plain_and_preloaded(make, &library, &[], &[], LIMIT);
            assert_eq!(outcome.status, 0, "{outcome:?}");
            let text = std::fs::read_to_string(&report).expect("a report was written");
            assert!(counted(&text, "deepbind.rebound") >= 3, "{text}");
            assert_eq!(counted(&text, "deepbind.left"), 0, "{text}");
            assert!(counted(&text, "bytes.sent.shm") > 50_000, "{text}");
        }
    }
}

/// A library with a search path of its own opens another one: nobody can do that in its place.
#[test]
fn where_it_cannot_be_followed_everything_is_on_tcp() {
    let path = "-Wl,--disable-new-dtags,-rpath,/nonexistent";
    // The program's own path changes nothing.
    let program = compile("deepbind", "deepbind-path", &[path]);
    let first = compile("deepbind", "plug-path.so", &["-shared", "-fPIC", "-DPLUG", path]);
    let second = compile("deepbind", "plug-no-path.so", &["-shared", "-fPIC", "-DPLUG"]);
    let report = program.with_extension("path");
    let _ = std::fs::remove_file(&report);
    let make = || {
        let mut command = Command::new(&program);
        command.arg(&first).arg(&second).arg("now").env("RSOCKET_STATS", &report);
        command
    };
    let outcome = same_plain_and_preloaded(make, preload_library(), &[], &[], LIMIT);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let text = std::fs::read_to_string(&report).expect("a report was written");
    assert_eq!(counted(&text, "deepbind.left"), 1, "{text}");
    assert!(counted(&text, "deepbind.rebound") >= 3, "{text}");
    assert!(counted(&text, "detached") >= 1, "{text}");
}

#[test]
fn settings_outlive_the_programs_environment() {
    let path = compile("own_environment", "own_environment", &[]);
    let report = path.with_extension("stats");
    let _ = std::fs::remove_file(&report);
    let mut program = Command::new(&path);
    program.env("LD_PRELOAD", preload_library()).env("RSOCKET_STATS", &report);
    // More than the library has room for without a mapping.
    program.env("RSOCKET_FORK_PEERS", "10.0.0.1,".repeat(600));
    let outcome = run(&mut program, LIMIT);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let text = std::fs::read_to_string(&report).expect("a report was written");
    assert!(text.contains("\nbytes.sent.tcp "), "{text}");
}

/// A shell script that forks, pipes and redirects, in the manner of a configure script.
#[test]
fn a_shell_script_works() {
    let script = "
for i in 1 2 3; do echo $(echo $i | cat) | while read x; do echo \"got $x\"; done; done
exec 7>&1; (echo sub >&7); ls / | head -1; cat <<END
here
END
f() { return 3; }; f; echo $?; ( exit 4 ); echo $?; sleep 0 & wait; ulimit -n | grep -c .
";
    for shell in ["sh", "bash"] {
        let make = || {
            let mut command = Command::new(shell);
            command.args(["-c", script]);
            command
        };
        let outcome = same_plain_and_preloaded(make, preload_library(), &[], &[], LIMIT);
        assert_eq!(outcome.status, 0, "{outcome:?}");
    }
}
