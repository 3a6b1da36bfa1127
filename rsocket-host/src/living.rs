//! Whether a thread, or any thread of a process, still runs.
//!
//! `kill` alone cannot tell: a killed process answers until its parent has collected it. So
//! `/proc` is asked, and where there is none, `kill` decides. The answer may be old when it comes;
//! "dead" is final, but for numbers that are used again. Allocates nothing, and opens a descriptor
//! for a moment.
//!
//! Must not know what is lost with the dead. Entry points: [`thread`], [`process`], [`any_thread`].
#![forbid(unsafe_code)]

use core::ffi::CStr;
use core::mem::MaybeUninit;
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::stack;

/// Room for "/proc/PID/task/TID/statm".
const PATH: usize = 48;

/// Whether there is a thread or process of this kernel id, dead ones that are not collected yet
/// among them.
fn exists(id: u32) -> bool {
    // EPERM means that it exists; only ESRCH means that it does not.
    i32::try_from(id)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Whether a thread with this kernel id still runs, in whatever process.
#[must_use]
pub fn thread(tid: u32) -> bool {
    exists(tid) && !matches!(state(tid), Some(b'Z' | b'X' | b'x'))
}

/// Whether any thread of the process still runs and has not begun to end. A process that is being
/// killed gives up its memory before its descriptors are closed. So a peer that hears of the closed
/// descriptors finds it dead.
///
/// The thread that a process began with may be long gone, while others go on. When one of those
/// calls `exec`, it becomes that first one, and a look at the list of threads just then misses it.
/// So this looks at the first one once more.
#[must_use]
pub fn process(pid: u32) -> bool {
    exists(pid)
        && (has_memory(pid, None)
            || any_thread(pid, |tid| has_memory(pid, Some(tid)))
            || has_memory(pid, None))
}

/// False where `/proc` says that the thread has given up its memory, or that there is no such
/// thread any more. True where it cannot tell.
fn has_memory(pid: u32, tid: Option<u32>) -> bool {
    let mut text = [0_u8; 32];
    match proc_file(pid, tid, b"/statm\0", &mut text) {
        Some(Ok(n)) => !text.get(..n).is_some_and(|t| t.starts_with(b"0 ")),
        Some(Err(Errno::NOENT | Errno::SRCH)) => tid.is_none(),
        _ => true,
    }
}

/// Whether `f` holds for any thread of the process, as far as /proc lists them; no more are asked
/// then.
pub fn any_thread(pid: u32, f: impl FnMut(u32) -> bool) -> bool {
    stack::on_own(|| any_listed(pid, f))
}

fn any_listed(pid: u32, mut f: impl FnMut(u32) -> bool) -> bool {
    let mut path = [0_u8; PATH];
    let Some(path) = join(&mut path, &[b"/proc/", decimal(pid, &mut [0; 10]), b"/task\0"]) else {
        return false;
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::openat(CWD, path, flags, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 1024];
    let mut list = RawDir::new(&folder, &mut buffer);
    let mut found = false;
    while !found && let Some(Ok(entry)) = list.next() {
        let tid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        found = tid.is_some_and(&mut f);
    }
    crate::sys::discard(folder);
    found
}

/// The state letter in /proc; `None` where /proc cannot tell.
fn state(tid: u32) -> Option<u8> {
    let mut text = [0_u8; 128];
    let n = proc_file(tid, None, b"/stat\0", &mut text)?.ok()?;
    // "pid (name) S ...": the name may hold anything, parentheses too, and is at most 64 bytes
    // long.
    let text = text.get(..n)?;
    let end = text.iter().rposition(|&b| b == b')')?;
    text.get(end + 2).copied()
}

/// The beginning of a file in /proc, of a process or of one of its threads. `name` ends with its
/// NUL.
fn proc_file(
    pid: u32,
    tid: Option<u32>,
    name: &[u8],
    text: &mut [u8],
) -> Option<Result<usize, Errno>> {
    let (mut path, mut first, mut second) = ([0_u8; PATH], [0; 10], [0; 10]);
    let (task, tid): (&[u8], &[u8]) = match tid {
        Some(tid) => (b"/task/", decimal(tid, &mut second)),
        None => (b"", b""),
    };
    let path = join(&mut path, &[b"/proc/", decimal(pid, &mut first), task, tid, name])?;
    let file = match rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    {
        Ok(file) => file,
        Err(e) => return Some(Err(e)),
    };
    let n = rustix::io::read(&file, text);
    crate::sys::discard(file);
    Some(n)
}

fn decimal(number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut rest = number;
    let mut first = digits.len();
    for (i, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        first = i;
        if rest == 0 {
            break;
        }
    }
    digits.get(first..).unwrap_or_default()
}

/// The parts, of which the last ends with the NUL, one after the other.
fn join<'a>(buffer: &'a mut [u8; PATH], parts: &[&[u8]]) -> Option<&'a CStr> {
    let bytes = parts.iter().flat_map(|part| part.iter());
    for (to, from) in buffer.iter_mut().zip(bytes) {
        *to = *from;
    }
    CStr::from_bytes_until_nul(buffer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pid;
    use crate::thread::tid;

    fn child() -> std::process::Child {
        std::process::Command::new("sleep").arg("100").spawn().unwrap()
    }

    fn until(what: impl Fn() -> bool) -> bool {
        (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            what()
        })
    }

    #[test]
    fn knows_itself() {
        assert!(thread(tid()) && process(pid()));
        assert_eq!(state(tid()), Some(b'R'));
        assert!(any_thread(pid(), |it| it == tid()));
        for nobody in [0, 0x7fff_ffff, u32::MAX] {
            assert!(!thread(nobody) && !process(nobody), "{nobody}");
        }
    }

    #[test]
    fn numbers_are_written_in_full() {
        for n in [0, 7, 10, 4_194_304, u32::MAX] {
            assert_eq!(decimal(n, &mut [0; 10]), n.to_string().as_bytes());
        }
    }

    #[test]
    fn a_corpse_is_not_alive() {
        let mut child = child();
        let id = child.id();
        assert!(thread(id) && process(id) && any_thread(id, |tid| has_memory(id, Some(tid))));
        child.kill().unwrap();
        assert!(until(|| !thread(id) && !process(id)), "not collected yet, and dead all the same");
        child.wait().unwrap();
        assert!(!thread(id) && !process(id));
    }

    #[test]
    fn a_thread_that_has_ended_is_not_alive() {
        let id = std::thread::spawn(tid).join().unwrap();
        assert!(until(|| !thread(id) && !has_memory(pid(), Some(id))));
    }
}
