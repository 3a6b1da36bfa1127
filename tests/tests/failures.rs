//! errno stays at the edges: inside, a failure is a word (`rsocket_host::failure`).
//!
//! Unit tests are left out. What the kernel is asked with, and what C is answered with, is named
//! below.

use std::path::Path;

use rs_tests::workspace;

/// Rooms that know no number and no `errno`.
const INSIDE: [&str; 6] = [
    "rsocket-wire/src",
    "rsocket-sync/src",
    "rsocket-device/src",
    "rsocket-shm/src",
    "rsocket-rdma/src",
    "rsocket-core/src",
];

fn sources(dir: &Path, into: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The lines that are neither comments nor unit tests.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("\n#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text.get(..end).unwrap_or(text).lines().enumerate().filter(|(_, line)| {
        let line = line.trim_start();
        !line.starts_with("//")
    })
}

/// Whether a line names an error number of C's, or the variable that holds one.
fn names_errno(line: &str) -> bool {
    let number = line.match_indices("libc::E").any(|(at, found)| {
        let rest = line.get(at + found.len()..).unwrap_or("");
        let word =
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("");
        !word.is_empty()
            && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
            && !word.starts_with("POLL")
    });
    let variable = ["Errno", "set_errno", "errno()", "errno_location"];
    number || variable.iter().any(|name| line.contains(name) && !line.contains("keeping_errno"))
}

#[test]
fn a_failure_is_a_word_inside() {
    let mut found = Vec::new();
    let mut files = Vec::new();
    INSIDE.iter().for_each(|dir| sources(&workspace().join(dir), &mut files));
    assert!(files.len() > 200, "{} files", files.len());
    for path in files {
        let name = path.strip_prefix(workspace()).unwrap().display().to_string();
        let tests = name.ends_with("tests.rs") || name.contains("/tests/");
        if tests {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, line) in code(&text).filter(|(_, line)| names_errno(line)) {
            found.push(format!("{name}:{}: {}", at + 1, line.trim()));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn what_names_errno_is_found() {
    for line in
        ["Err(libc::EAGAIN)", "let e = sys::errno();", "rustix::io::Errno::INTR", "set_errno(1)"]
    {
        assert!(names_errno(line), "{line}");
    }
    for line in
        ["libc::EPOLLIN", "sys::keeping_errno(|| ())", "Failure::Blocked", "libc::EFD_NONBLOCK"]
    {
        assert!(!names_errno(line), "{line}");
    }
}
