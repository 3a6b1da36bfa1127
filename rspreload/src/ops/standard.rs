//! libc's standard streams over a connection: `stdin`, `stdout` and `stderr` of a program whose
//! descriptor 0, 1 or 2 is one. `inetd` and its kin start programs so, and a shell redirects so.
//!
//! libc reads and writes for its streams by calls of its own, which no hook sees. Their bytes would
//! travel by TCP while those of the program's `read` and `write` have left it. So when a connection
//! comes to stand on such a number, a stream of ours (`streams`) replaces libc's. It is buffered in
//! the same way.
//!
//! A stream that holds bytes already, or has been used for wide characters, is left as it is. Must
//! not know what a connection is. Entry points: [`stands`], and [`own`] before `freopen`.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use libc::FILE;

use super::replaced::{place, put_back};
use super::streams::{self, Shown};

unsafe extern "C" {
    fn fwide(file: *mut FILE, mode: c_int) -> c_int;
}

/// `flags`: not buffered.
const UNBUFFERED: c_int = 0x2;
/// `flags`: buffered by lines.
const BY_LINES: c_int = 0x200;

/// A connection has come to stand on `fd`. The calling process is the one whose table says so.
#[inline]
pub(crate) fn stands(fd: c_int) {
    if (0..=2).contains(&fd) {
        replace(fd);
    }
}

#[cold]
fn replace(fd: c_int) {
    let Some((stream, variable)) = place(fd) else { return };
    if !stream.by.load(Relaxed).is_null() {
        return;
    }
    // SAFETY: libc's own variable, which a program may assign as well; it holds a stream or null.
    let old = unsafe { variable.read() };
    // SAFETY: as above.
    if old.is_null() || !unsafe { is_fresh(old, fd) } {
        return;
    }
    let mode = if fd == 0 { c"r" } else { c"w" };
    // SAFETY: the mode is a string.
    let new = unsafe { streams::open(fd, mode.as_ptr()) };
    if new.is_null() {
        return;
    }
    // SAFETY: two streams; no other thread has the new one; libc's headers show these fields.
    unsafe {
        let buffering = match (*old.cast::<Shown>()).flags & (UNBUFFERED | BY_LINES) {
            0 => libc::_IOFBF,
            BY_LINES => libc::_IOLBF,
            _ => libc::_IONBF,
        };
        if buffering != libc::_IOFBF {
            libc::setvbuf(new, ptr::null_mut(), buffering, 0);
        }
    }
    stream.was.store(old, Relaxed);
    stream.by.store(new, Relaxed);
    // SAFETY: as above.
    unsafe { variable.write(new) };
}

/// Whether nothing would be lost with the stream: it is the descriptor's, holds no byte, and is not
/// for wide characters.
///
/// # Safety
/// `file` is a stream.
unsafe fn is_fresh(file: *mut FILE, fd: c_int) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let shown = file.cast::<Shown>();
        (*shown).fileno == fd
            && (*shown).read_at == (*shown).read_end
            && (*shown).write_at == (*shown).write_base
            && fwide(file, 0) <= 0
    }
}

/// The stream that `freopen` is to open anew: libc can do that with its own only. So in place of a
/// stream of ours, which is flushed, it is the one that ours has replaced.
///
/// # Safety
/// `file` is null or an open stream.
pub(crate) unsafe fn own(file: *mut FILE) -> *mut FILE {
    for fd in 0..=2 {
        if let Some((stream, variable)) = place(fd)
            && !file.is_null()
            && stream.by.load(Relaxed) == file
        {
            // SAFETY: the caller's promise, and libc's variable for the stream.
            return unsafe {
                libc::fflush(file);
                put_back(stream, variable)
            };
        }
    }
    file
}
