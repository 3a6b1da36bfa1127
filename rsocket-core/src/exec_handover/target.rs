//! Whether a program that is about to be executed will have this library in it.
//!
//! The answer "yes" must be right, since then connections stay where only the library can reach
//! them. So anything unusual is a "no", which costs no more than the fallback to TCP. For a "yes",
//! the program must be for the same dynamic linker as ours, and readable, perhaps behind `#!`. It
//! must not be marked to change user, group or capabilities (the linker then ignores `LD_PRELOAD`).
//! The environment, or `/etc/ld.so.preload`, must name this very file, and nothing may turn it off.
//! If a connection on a device is inherited, the program must also move bytes through libc, as far
//! as its file tells ([`crate::host::image`]).
//!
//! Entry point: [`judge`].

use core::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};

use crate::failure::Failure;

use crate::descriptors::{self, Entry};
use crate::given::Strings;
use crate::host::{image, loaded};
use crate::sync::stack;
use crate::sys::{descriptor, files, files::For, identity};
use crate::{libdir, socket, sys};

/// Scripts whose interpreter is a script again, at most.
const DEPTH: usize = 4;
/// The longest path that is dealt with, its end included.
const PATH: usize = 1024;

/// What `exec` was asked for.
#[derive(Clone, Copy)]
pub enum Program<'a> {
    /// A path, relative to the working directory.
    Path(Option<&'a CStr>),
    /// A name without a slash is looked for in `PATH`, as by `execvp`.
    Name(Option<&'a CStr>),
    /// An open file.
    Open(RawFd),
}

/// What comes of an `exec`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It fails: there is no such program, as shells try one directory after the other. Or a name
    /// or the environment is where no memory is.
    Fails,
    /// The program will not have this library, or may not.
    Without,
    /// It will.
    With,
}

/// Whether the program will have this library, with this environment.
#[must_use]
pub fn judge(program: Program<'_>, environment: Strings<'_>) -> Verdict {
    stack::on_own(|| judge_here(program, environment))
}

fn judge_here(program: Program<'_>, environment: Strings<'_>) -> Verdict {
    if !environment.are_there() {
        return Verdict::Fails;
    }
    let file = match open(program) {
        Ok(file) => file,
        Err(
            Failure::Missing
            | Failure::BadAddress
            | Failure::NotADirectory
            | Failure::TooManyLinks
            | Failure::NameTooLong,
        ) => {
            return Verdict::Fails;
        }
        Err(_) => return Verdict::Without,
    };
    // With another effective user or group than the real one the linker ignores `LD_PRELOAD`.
    if preloads(environment) && !identity::changes_user() && loads(&file, DEPTH) {
        sys::discard(file);
        return Verdict::With;
    }
    let regular = files::status_of(&file).is_ok_and(|s| s.is_regular());
    sys::discard(file);
    if regular { Verdict::Without } else { Verdict::Fails }
}

// ---------------------------------------------------------------- the environment

/// Whether the environment, or the file that stands for all programs, names this library.
fn preloads(environment: Strings<'_>) -> bool {
    let Some(own) = own_name() else { return false };
    let mut preload: Option<&[u8]> = None;
    for string in environment.map(CStr::to_bytes) {
        if let Some(value) = string.strip_prefix(b"LD_PRELOAD=") {
            // With two of them it depends on the reader which one counts.
            if preload.replace(value).is_some() {
                return false;
            }
        }
        if let Some(value) = string.strip_prefix(b"RSOCKET_DISABLE=")
            && !matches!(value, b"" | b"0")
        {
            return false;
        }
    }
    files::may_read(own)
        && (preload.is_some_and(|list| names(list, own.to_bytes()))
            || for_all_programs(own.to_bytes()))
}

/// The library's file, as the dynamic linker was told to find it.
fn own_name() -> Option<&'static CStr> {
    // One that was found without a path may be another one next time.
    loaded::own_file().filter(|name| name.to_bytes().contains(&b'/'))
}

/// Whether a list as of `LD_PRELOAD` has this name in it.
fn names(list: &[u8], name: &[u8]) -> bool {
    list.split(|c| matches!(c, b' ' | b':' | b'\t' | b'\n'))
        .any(|item| libdir::means(item, name, libdir::directory()))
}

fn for_all_programs(name: &[u8]) -> bool {
    let mut text = [0; 4096];
    let Ok(file) = files::open(c"/etc/ld.so.preload", For::Reading) else { return false };
    let n = files::read_at(&file, 0, &mut text).unwrap_or(0);
    sys::discard(file);
    text.get(..n).is_some_and(|list| names(list, name))
}

// ---------------------------------------------------------------- the program

/// Opens what exec would execute.
fn open(program: Program<'_>) -> Result<OwnedFd, Failure> {
    match program {
        Program::Name(Some(name)) if !name.to_bytes().contains(&b'/') => open_name(name.to_bytes()),
        Program::Path(Some(path)) | Program::Name(Some(path)) => open_path(path),
        Program::Open(fd) => descriptor::copy(fd),
        Program::Path(None) | Program::Name(None) => Err(Failure::BadAddress),
    }
}

fn open_path(path: &CStr) -> Result<OwnedFd, Failure> {
    files::open(path, For::ReadingAtOnce)
}

/// The first file of the name in `PATH` that may be executed.
fn open_name(name: &[u8]) -> Result<OwnedFd, Failure> {
    let search = crate::environment::current(c"PATH").map_or(&b"/bin:/usr/bin"[..], CStr::to_bytes);
    let mut space = [0; PATH];
    for directory in search.split(|c| *c == b':') {
        let path = join(&mut space, directory, name).ok_or(Failure::Invalid)?;
        if files::may_execute(path) && files::status(path).is_ok_and(|s| s.is_regular()) {
            return open_path(path);
        }
    }
    Err(Failure::Missing)
}

fn join<'a>(space: &'a mut [u8; PATH], directory: &[u8], name: &[u8]) -> Option<&'a CStr> {
    use std::io::Write;
    let mut room: &mut [u8] = space;
    for part in [directory, if directory.is_empty() { b"" } else { b"/" }, name, b"\0"] {
        room.write_all(part).ok()?;
    }
    CStr::from_bytes_until_nul(space).ok()
}

/// Whether the program in this file begins with our dynamic linker, which will load us.
fn loads(file: &OwnedFd, depth: usize) -> bool {
    unmarked(file) && (is_ours(file) && can_be_followed(file) || interpreter_loads(file, depth))
}

/// Whether it is a program for the machine and the dynamic linker that this one is for.
fn is_ours(file: &OwnedFd) -> bool {
    loaded::interpreter().and_then(|own| image::is_for(file, own)) == Some(true)
}

/// Whether what it does with what it inherits goes through hooks. Connections that are on TCP need
/// no answer.
fn can_be_followed(file: &OwnedFd) -> bool {
    !leaves_a_device_connection() || image::goes_through_libc(file).unwrap_or(false)
}

/// Whether `exec` leaves a connection open that is on a device.
fn leaves_a_device_connection() -> bool {
    (0..descriptors::end()).any(|fd| match descriptors::entry(fd) {
        Entry::Connection(slot) => {
            socket::on_device(slot) && descriptor::closes_on_exec(fd) == Ok(false)
        }
        _ => false,
    })
}

/// Whether executing it changes neither user nor group nor capabilities.
fn unmarked(file: &OwnedFd) -> bool {
    files::status_of(file).is_ok_and(|s| !s.changes_user()) && !files::gives_capabilities(file)
}

/// `#!` and a path.
fn interpreter_loads(file: &OwnedFd, depth: usize) -> bool {
    let mut line = [0; 256];
    let Ok(n) = files::read_at(file, 0, &mut line) else { return false };
    let Some(text) = line.get(..n).and_then(|l| l.strip_prefix(b"#!")) else { return false };
    let text = text.split(|c| *c == b'\n').next().unwrap_or_default();
    let Some(path) = text.split(|c| matches!(c, b' ' | b'\t')).find(|word| !word.is_empty()) else {
        return false;
    };
    let mut space = [0; PATH];
    let Some(path) = join(&mut space, b"", path) else { return false };
    let Some(next) = depth.checked_sub(1) else { return false };
    let Ok(file) = open_path(path) else { return false };
    let yes = loads(&file, next);
    sys::discard(file);
    yes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(p: &CStr) -> bool {
        open_path(p).is_ok_and(|f| loads(&f, DEPTH))
    }

    fn written(name: &str, text: &[u8]) -> std::ffi::CString {
        let file = std::env::temp_dir().join(format!("rs-target-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        std::ffi::CString::new(file.into_os_string().into_encoded_bytes()).unwrap()
    }

    #[test]
    fn this_program_would_load_it() {
        assert!(path(c"/proc/self/exe"));
        assert!(loaded::interpreter().is_some());
    }

    #[test]
    fn scripts_are_followed_to_their_interpreter() {
        let exe = std::env::current_exe().unwrap();
        let first = written("first", format!("#! {} -x\nrest", exe.display()).as_bytes());
        let second = written("second", format!("#!{}", first.to_str().unwrap()).as_bytes());
        let round = written("round", b"");
        std::fs::write(round.to_str().unwrap(), format!("#!{}\n", round.to_str().unwrap()))
            .unwrap();
        let text = written("text", b"echo hello\n");
        let cut = written("cut", b"\x7fELF\x02");
        let empty = written("empty", b"");
        assert!(path(&first) && path(&second));
        for no in [&round, &text, &cut, &empty] {
            assert!(!path(no), "{no:?}");
        }
        for f in [&first, &second, &round, &text, &cut, &empty] {
            std::fs::remove_file(f.to_str().unwrap()).unwrap();
        }
    }

    #[test]
    fn what_changes_its_user_does_not() {
        use std::os::unix::fs::PermissionsExt;
        let copy = written("marked", &std::fs::read("/proc/self/exe").unwrap());
        assert!(path(&copy));
        for mode in [0o4755, 0o2755] {
            std::fs::set_permissions(copy.to_str().unwrap(), std::fs::Permissions::from_mode(mode))
                .unwrap();
            assert!(!path(&copy));
        }
        std::fs::remove_file(copy.to_str().unwrap()).unwrap();
    }

    #[test]
    fn lists_of_libraries() {
        assert!(names(b"/a/x.so:/b/y.so", b"/b/y.so") && names(b"/a/x.so /b/y.so", b"/a/x.so"));
        assert!(!names(b"/a/x.so", b"/a/x") && !names(b"", b"/a/x"));
    }
}
