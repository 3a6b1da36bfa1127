//! What the dynamic linker puts for `$LIB` in a path: the directory of its libc, without the
//! prefix.
//!
//! A library that `LD_PRELOAD` names by a path with `$LIB` is found by glibc, and by no other
//! linker. The linker of musl looks for a directory of that very name, finds none, and starts the
//! program without the library. (A library for glibc would end the program.) Must not know its
//! callers. Entry points: [`directory`], [`with_variable`], [`means`].

use core::ffi::CStr;

use crate::host::loaded;

/// The variable, in both spellings.
const VARIABLES: [&[u8]; 2] = [b"$LIB", b"${LIB}"];

/// What `$LIB` stands for in this process: `lib/x86_64-linux-gnu`, `lib64`, `lib`. Goes by where
/// libc was found.
#[must_use]
pub fn directory() -> Option<&'static [u8]> {
    of_libc(libc_file()?)
}

fn libc_file() -> Option<&'static [u8]> {
    loaded::libc_file().map(CStr::to_bytes)
}

/// From the last directory that is called `lib`, or so, to libc itself.
fn of_libc(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|b| *b == b'/')?;
    let directory = path.get(..end)?;
    let mut start = end;
    while start > 0 {
        start = directory.get(..start)?.iter().rposition(|b| *b == b'/')?;
        let rest = directory.get(start + 1..)?;
        if matches!(
            rest.split(|b| *b == b'/').next(),
            Some(b"lib" | b"lib64" | b"lib32" | b"libx32")
        ) {
            return Some(rest);
        }
    }
    None
}

/// The path with `$LIB` in it, if the directory that it stands for is part of the path: what comes
/// before it, and after.
#[must_use]
pub fn with_variable<'a>(path: &'a [u8], directory: &[u8]) -> Option<[&'a [u8]; 2]> {
    let n = directory.len();
    if n == 0 || path.contains(&b'$') {
        return None;
    }
    let at = path
        .windows(n + 2)
        .rposition(|w| matches!(w, [b'/', middle @ .., b'/'] if middle == directory))?;
    Some([path.get(..at + 1)?, path.get(at + 1 + n..)?])
}

/// Whether a word of `LD_PRELOAD` means this path.
#[must_use]
pub fn means(word: &[u8], path: &[u8], directory: Option<&[u8]>) -> bool {
    if word == path {
        return true;
    }
    let Some(directory) = directory else { return false };
    VARIABLES.iter().any(|variable| {
        let Some(at) = word.windows(variable.len()).position(|w| w == *variable) else {
            return false;
        };
        let (before, after) = (word.get(..at), word.get(at + variable.len()..));
        before.and_then(|b| path.strip_prefix(b)).and_then(|p| p.strip_prefix(directory)) == after
    })
}

/// Whether the linker of this process really puts that there, seen by how it finds libc, which is
/// loaded already.
#[must_use]
pub fn is_right(directory: &[u8]) -> bool {
    let Some(path) = libc_file() else { return false };
    let Some([before, after]) = with_variable(path, directory) else { return false };
    let Ok(name) = std::ffi::CString::new([before, b"$LIB", after].concat()) else { return false };
    loaded::is_loaded(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_libc_is() {
        assert_eq!(of_libc(b"/lib/x86_64-linux-gnu/libc.so.6"), Some(&b"lib/x86_64-linux-gnu"[..]));
        assert_eq!(of_libc(b"/lib64/libc.so.6"), Some(&b"lib64"[..]));
        assert_eq!(of_libc(b"/usr/lib/libc.so.6"), Some(&b"lib"[..]));
        assert_eq!(of_libc(b"/nix/store/x-glibc-2.39/lib/libc.so.6"), Some(&b"lib"[..]));
        assert_eq!(of_libc(b"/opt/libc.so.6"), None);
        assert_eq!(of_libc(b"libc.so.6"), None);
        assert!(directory().is_some_and(is_right));
        assert!(!is_right(b"nolib"));
    }

    #[test]
    fn paths_and_what_they_mean() {
        let (path, directory) = (&b"/usr/lib64/rsocket/l.so"[..], &b"lib64"[..]);
        assert_eq!(with_variable(path, directory), Some([&b"/usr/"[..], b"/rsocket/l.so"]));
        assert_eq!(with_variable(path, b"lib"), None);
        assert_eq!(with_variable(b"/lib/a/lib/b.so", b"lib"), Some([&b"/lib/a/"[..], b"/b.so"]));
        assert_eq!(with_variable(b"/b.so", b"lib"), None);
        for word in [path, b"/usr/$LIB/rsocket/l.so", b"/usr/${LIB}/rsocket/l.so"] {
            assert!(means(word, path, Some(directory)));
        }
        for word in [
            &b"/usr/$LIB/rsocket/m.so"[..],
            b"/$LIB/rsocket/l.so",
            b"$LIB",
            b"",
            b"/usr/lib/rsocket/l.so",
        ] {
            assert!(!means(word, path, Some(directory)));
        }
        assert!(!means(b"/usr/$LIB/rsocket/l.so", path, Some(b"lib")));
        assert!(!means(b"/usr/$LIB/rsocket/l.so", path, None));
    }
}
