//! `rspreload/calls.txt` against the system: what libc exports, what its headers declare, and the
//! page that is made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use rs_tests::workspace;

struct Line {
    place: String,
    class: String,
    why: String,
}

fn table() -> BTreeMap<String, Line> {
    let text = std::fs::read_to_string(workspace().join("rspreload/calls.txt"))
        .expect("part of the source");
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or_else(|| panic!("{line}")).to_owned();
        let (place, class, name) = (word(), word(), word());
        let why = words.collect::<Vec<_>>().join(" ");
        assert!(found.insert(name, Line { place, class, why }).is_none(), "twice: {line}");
    }
    found
}

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("tools print text")
}

/// What the libc that this test itself runs with exports: name and version.
fn libc_functions() -> Vec<(String, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let libc = maps
        .lines()
        .filter_map(|l| l.split_whitespace().nth(5))
        .find(|p| p.contains("/libc.so") || p.contains("/libc-2"))
        .expect("a program has a libc");
    output(Command::new("nm").args(["-D", "--defined-only", libc]))
        .lines()
        .filter_map(|line| {
            let (kind, name) = line.split_once(' ')?.1.split_once(' ')?;
            let (name, version) = name.split_once('@').unwrap_or((name, ""));
            "TWiI".contains(kind).then(|| (name.to_owned(), version.trim_matches('@').to_owned()))
        })
        .collect()
}

/// What is left of a name without the marks of its variants: `__read_chk`, `fcntl64`, `_IO_fclose`.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('_');
    let name = name.strip_prefix("libc_").or_else(|| name.strip_prefix("IO_")).unwrap_or(name);
    let name =
        ["_chk", "_nocancel", "_2"].iter().find_map(|e| name.strip_suffix(e)).unwrap_or(name);
    name.strip_suffix("64").or_else(|| name.strip_suffix("64v2")).unwrap_or(name).to_owned()
}

#[test]
fn every_line_is_well_formed() {
    let table = table();
    assert!(table.len() > 200, "{}", table.len());
    for (name, line) in table {
        assert!(["+", "-", "*"].contains(&line.place.as_str()), "{name}");
        let right = match line.class.as_str() {
            "handled" => line.place == "+",
            "translated" => line.place == "+" && !line.why.is_empty(),
            "refused" => line.place != "-" && !line.why.is_empty(),
            "passed" => line.place != "*" && !line.why.is_empty(),
            _ => false,
        };
        assert!(right, "{name}: {} {}", line.place, line.class);
    }
}

/// A function that we define has no other name in libc that is not thought of.
#[test]
fn no_variant_of_a_hook_is_missing() {
    let table = table();
    let functions = libc_functions();
    assert!(functions.len() > 1500, "{}", functions.len());
    let hooked: BTreeSet<String> =
        table.iter().filter(|(_, l)| l.place == "+").map(|(n, _)| plain(n)).collect();
    // It runs handlers and then calls libc's own `_exit`; what must happen then happens in our
    // destructor.
    let missing: Vec<_> = functions
        .iter()
        .filter(|(name, _)| {
            hooked.contains(&plain(name)) && !table.contains_key(name) && name != "exit"
        })
        .collect();
    assert!(missing.is_empty(), "in libc, but not in calls.txt: {missing:?}");
    for (name, line) in table.iter().filter(|(_, l)| l.place == "+") {
        assert!(functions.iter().any(|(f, _)| f == name), "{name} ({}) is not libc's", line.class);
    }
}

/// Names that only libc's own libraries may use stay theirs; all others that stand beside them are
/// hooked.
#[test]
fn private_names_are_left_alone() {
    let table = table();
    for (name, version) in libc_functions() {
        if let Some(line) = table.get(&name) {
            assert!(version != "GLIBC_PRIVATE" || line.place == "-", "{name} is private");
        }
    }
}

/// Whether a parameter is a descriptor, or a set of descriptors.
fn takes_descriptor(parameter: &str) -> bool {
    const NAMES: [&str; 14] = [
        "fd", "fds", "fildes", "filedes", "fd2", "infd", "outfd", "in_fd", "out_fd", "epfd",
        "fdin", "fdout", "sockfd", "fdes",
    ];
    let words: Vec<&str> = parameter
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|w| !w.is_empty())
        .collect();
    let name = words.last().map_or("", |w| w.trim_start_matches('_'));
    let sets = ["pollfd", "fd_set"].iter().any(|t| words.contains(t));
    sets || words.len() > 1
        && words.contains(&"int")
        && !parameter.contains('*')
        && NAMES.contains(&name)
}

/// Every function that libc's headers declare with a descriptor among its parameters is in the
/// table.
#[test]
fn every_function_of_the_headers_is_listed() {
    const HEADERS: &str = "unistd.h fcntl.h sys/socket.h sys/uio.h sys/epoll.h poll.h sys/select.h sys/sendfile.h sys/ioctl.h \
        sys/stat.h stdio.h aio.h sys/mman.h sys/eventfd.h sys/timerfd.h sys/signalfd.h sys/inotify.h sys/fanotify.h termios.h pty.h \
        dirent.h sys/vfs.h sys/statvfs.h sys/file.h sys/xattr.h sys/mount.h netdb.h spawn.h mqueue.h sys/time.h sched.h sys/prctl.h \
        netinet/in.h stdlib.h wchar.h sys/pidfd.h";
    let mut source = String::from("#define _GNU_SOURCE\n#define _LARGEFILE64_SOURCE\n");
    for h in HEADERS.split_whitespace() {
        source += &format!("#if __has_include(<{h}>)\n#include <{h}>\n#endif\n");
    }
    let file = std::env::temp_dir().join(format!("rsocket-headers-{}.c", std::process::id()));
    std::fs::write(&file, source).expect("a temporary file");
    let text = output(Command::new("cc").args(["-E", "-P"]).arg(&file).stdin(Stdio::null()));
    let _ = std::fs::remove_file(&file);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (table, functions) = (table(), libc_functions());
    let (mut seen, mut missing) = (0, Vec::new());
    for statement in text.split([';', '{', '}']) {
        let Some((head, rest)) =
            statement.trim().strip_prefix("extern ").and_then(|s| s.split_once('('))
        else {
            continue;
        };
        let name = head.trim_end().rsplit([' ', '*']).next().unwrap_or("");
        let parameters = rest.split(')').next().unwrap_or("");
        if parameters.split(',').any(takes_descriptor) {
            seen += 1;
            // Some declarations have no definition.
            if !table.contains_key(name) && functions.iter().any(|(f, _)| f == name) {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(seen > 100, "only {seen} functions take descriptors: the headers were not understood");
    assert!(missing.is_empty(), "in libc's headers, but not in calls.txt: {missing:?}");
}

#[test]
fn the_page_is_made_from_the_table() {
    let made = output(&mut Command::new(workspace().join("scripts/calls")));
    let page =
        std::fs::read_to_string(workspace().join("docs/calls.md")).expect("part of the source");
    assert!(made == page, "docs/calls.md is not what scripts/calls prints");
}
