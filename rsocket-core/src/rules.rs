//! Which sockets of which programs the preload library takes: the file `preload_config`
//! (`wire-protocol §12.3`).
//!
//! A line is `program domain type protocol`, words that blanks separate; `*` stands for anything.
//! Without the file, or without a line in it that means something, every TCP socket is taken; else
//! only those that a line matches. Unlike upstream, a program's name is compared whole, and the
//! bits `SOCK_NONBLOCK` and `SOCK_CLOEXEC` are no part of the type. Reads without allocating, since
//! it may run inside a hook.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::os::fd::IntoRawFd;

use crate::config::DIRECTORY;
use crate::sys::files::{self, For};

/// The file's name.
pub const FILE: &str = "preload_config";
/// More of the file than this is not read, in bytes.
const FILE_MAX: usize = 16 * 1024;

/// What a program may have taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// TCP over IPv4.
    pub inet: bool,
    /// TCP over IPv6.
    pub inet6: bool,
    /// Lines that mean nothing.
    pub odd_lines: u32,
}

impl Rules {
    /// Everything.
    pub const ALL: Self = Self { inet: true, inet6: true, odd_lines: 0 };

    /// What the file in `directory` (the usual one, if none is given) says of a program of this
    /// short name.
    #[must_use]
    pub fn load(directory: Option<&[u8]>, program: &[u8]) -> Self {
        let directory = directory.filter(|d| !d.is_empty()).unwrap_or(DIRECTORY.as_bytes());
        let mut buffer = [0; FILE_MAX];
        Self::parse(read(directory, &mut buffer).unwrap_or_default(), program)
    }

    /// What such a text says.
    #[must_use]
    pub fn parse(text: &[u8], program: &[u8]) -> Self {
        let mut found = Self { inet: false, inet6: false, odd_lines: 0 };
        let mut lines = 0;
        for line in text.split(|b| *b == b'\n').map(<[u8]>::trim_ascii) {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let Some(line) = Line::parse(line) else {
                found.odd_lines += 1;
                continue;
            };
            lines += 1;
            if line.tcp && (line.program == b"*" || line.program.eq_ignore_ascii_case(program)) {
                found.inet |= line.inet;
                found.inet6 |= line.inet6;
            }
        }
        if lines == 0 { Self { odd_lines: found.odd_lines, ..Self::ALL } } else { found }
    }
}

struct Line<'a> {
    program: &'a [u8],
    inet: bool,
    inet6: bool,
    tcp: bool,
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
        let (program, domain, kind, protocol) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let domain = Word::of(domain, &[b"AF_", b"PF_"], &[b"INET", b"INET6", b"IB"])?;
        let kind = Word::of(kind, &[b"SOCK_"], &[b"STREAM", b"DGRAM"])?;
        let protocol = Word::of(protocol, &[b"IPPROTO_"], &[b"TCP", b"UDP"])?;
        Some(Self {
            program,
            inet: domain.is(0),
            inet6: domain.is(1),
            tcp: kind.is(0) && protocol.is(0),
        })
    }
}

/// One of the words that are known, or any.
struct Word(Option<usize>);

impl Word {
    fn of(word: &[u8], prefixes: &[&[u8]], known: &[&[u8]]) -> Option<Self> {
        if word == b"*" {
            return Some(Self(None));
        }
        let bare = prefixes
            .iter()
            .find_map(|p| {
                word.split_at_checked(p.len()).filter(|(head, _)| head.eq_ignore_ascii_case(p))
            })
            .map_or(word, |(_, rest)| rest);
        known.iter().position(|k| k.eq_ignore_ascii_case(bare)).map(|at| Self(Some(at)))
    }

    fn is(&self, which: usize) -> bool {
        self.0.is_none_or(|w| w == which)
    }
}

/// As much of the file as there is room for, up to the end of a line.
fn read<'a>(directory: &[u8], buffer: &'a mut [u8; FILE_MAX]) -> Option<&'a [u8]> {
    let dir = files::open(directory, For::Listing).ok()?;
    let file = files::open_in(&dir, FILE, For::ReadingAtOnce);
    close(dir);
    let file = file.ok()?;
    let mut length = 0;
    while let Some(room) = buffer.get_mut(length..).filter(|r| !r.is_empty()) {
        match files::read_through_signals(&file, room) {
            Ok(n) if n > 0 => length += n,
            _ => break,
        }
    }
    close(file);
    let text = buffer.get(..length)?;
    if length < FILE_MAX {
        return Some(text);
    }
    let end = text.iter().rposition(|b| *b == b'\n').unwrap_or(0);
    text.get(..end)
}

/// Closes without going through libc, whose `close` may be a hook.
fn close(fd: impl IntoRawFd) {
    crate::sys::close_private(fd.into_raw_fd());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &str, program: &str) -> (bool, bool) {
        let rules = Rules::parse(text.as_bytes(), program.as_bytes());
        (rules.inet, rules.inet6)
    }

    #[test]
    fn no_line_means_everything() {
        assert_eq!(Rules::parse(b"", b"x"), Rules::ALL);
        assert_eq!(both("# a comment\n\n   \n", "x"), (true, true));
        let odd = Rules::parse(
            b"three words only\none two three four five\n* inet stream telepathy\n",
            b"x",
        );
        assert_eq!(odd, Rules { odd_lines: 3, ..Rules::ALL });
        assert_eq!(Rules::load(Some(b"/nonexistent"), b"x"), Rules::ALL);
    }

    /// Row 6.14 of upstream's gaps: there "ssh" also means "sshd", and flag bits hide a socket from
    /// its line.
    #[test]
    fn names_are_whole() {
        let text = "ssh inet stream tcp\n";
        assert_eq!(both(text, "ssh"), (true, false));
        assert_eq!(both(text, "SSH"), (true, false));
        assert_eq!(both(text, "sshd"), (false, false));
        assert_eq!(both(text, "ss"), (false, false));
        assert_eq!(both("* * * *", "anything"), (true, true));
    }

    #[test]
    fn each_column_counts() {
        assert_eq!(both("* AF_INET6 SOCK_STREAM IPPROTO_TCP", "x"), (false, true));
        assert_eq!(both("* pf_inet sock_stream *", "x"), (true, false));
        assert_eq!(both("* inet dgram *", "x"), (false, false));
        assert_eq!(both("* inet stream udp", "x"), (false, false));
        assert_eq!(both("* ib * *", "x"), (false, false));
        assert_eq!(both("a inet stream tcp\nb inet6 stream tcp\na inet6 * *", "a"), (true, true));
        assert_eq!(both("a inet stream tcp\r\n\tb\tinet6 stream tcp", "b"), (false, true));
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let dir = std::env::temp_dir().join(format!("rsocket-rules-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut text = String::from("a inet stream tcp\n");
        while text.len() < FILE_MAX {
            text += "# and so on, and so on\n";
        }
        text += "b inet stream tcp\n";
        std::fs::write(dir.join(FILE), text).unwrap();
        let name = dir.to_str().unwrap().as_bytes();
        let rules = (Rules::load(Some(name), b"a"), Rules::load(Some(name), b"b"));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(rules.0.inet && !rules.1.inet);
    }
}
