//! libc's standard streams over a connection: `stdin`, `stdout` and `stderr` of a program whose descriptor 0, 1 or 2
//! is one, as `inetd` and its kin start them and as a shell redirects.
//!
//! libc reads and writes for its streams by calls of its own, which no hook sees: their bytes would travel by TCP while
//! those of the program's `read` and `write` have left it. So when a connection comes to stand on such a number, the
//! stream is replaced by one whose reads and writes are our hooks (`fopencookie`). It says the same descriptor, is buffered
//! in the same way, and stays when something else comes to stand there: the hooks pass on what is not ours.
//!
//! A stream that holds bytes already, or has been used for wide characters, is left as it is. Must not know what a
//! connection is. Entry points: [`stands`], [`own`] before `freopen`, and [`flush`] at the end.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{recv, send};
use crate::real;

/// How a stream made by `fopencookie` reads, writes, seeks and closes.
#[repr(C)]
struct Ways {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, ways: Ways) -> *mut FILE;
    fn fflush_unlocked(file: *mut FILE) -> c_int;
    fn fwide(file: *mut FILE, mode: c_int) -> c_int;
}

/// What libc's headers show of a stream, up to its descriptor (`bits/types/struct_FILE.h`).
#[repr(C)]
struct Shown {
    flags: c_int,
    read_at: *mut c_char,
    read_end: *mut c_char,
    read_base: *mut c_char,
    write_base: *mut c_char,
    write_at: *mut c_char,
    write_end: *mut c_char,
    buffer: [*mut c_char; 2],
    saved: [*mut c_char; 3],
    markers: *mut c_void,
    chain: *mut FILE,
    fileno: c_int,
}

/// `flags`: not buffered.
const UNBUFFERED: c_int = 0x2;
/// `flags`: buffered by lines.
const BY_LINES: c_int = 0x200;

/// A stream of ours, and what it has replaced; null where there is none. Relaxed: whoever uses a stream has it from libc's
/// variable, which is as plain as the program's own use of it.
struct Replaced {
    by: AtomicPtr<FILE>,
    was: AtomicPtr<FILE>,
}

static STREAMS: [Replaced; 3] =
    [const { Replaced { by: AtomicPtr::new(ptr::null_mut()), was: AtomicPtr::new(ptr::null_mut()) } }; 3];

/// The stream's place here, and libc's variable for it.
fn place(fd: c_int) -> Option<(&'static Replaced, *mut *mut FILE)> {
    let variable = match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        2 => &raw mut stderr,
        _ => return None,
    };
    Some((STREAMS.get(usize::try_from(fd).ok()?)?, variable))
}

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
    let ways = Ways { read, write, seek, close };
    // SAFETY: the functions know what the cookie is: the number.
    let new = unsafe { fopencookie(ptr::without_provenance_mut(fd as usize), mode.as_ptr(), ways) };
    if new.is_null() {
        return;
    }
    // SAFETY: two streams, of which nobody else has the new one; libc's headers show these fields.
    unsafe {
        (*new.cast::<Shown>()).fileno = fd;
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

/// Whether nothing would be lost with the stream: it is the descriptor's, holds no byte, and is not for wide characters.
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

/// At the end of the program, before its connections are: libc would write what its streams hold only after that. Without
/// their locks, as libc does then: a thread may sleep with one.
pub(crate) fn flush() {
    for stream in &STREAMS {
        let file = stream.by.load(Relaxed);
        if !file.is_null() {
            // SAFETY: our stream, which stands here until it is closed.
            unsafe { fflush_unlocked(file) };
        }
    }
}

fn number(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the stream's buffer.
    unsafe { recv::read(number(cookie), to.cast(), length) }
}

/// All of it, or what went before an error: a stream counts fewer as one.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, from: *const c_char, length: size_t) -> ssize_t {
    let mut done = 0;
    while done < length {
        // SAFETY: the stream's buffer, of which `done` bytes are through.
        let n = unsafe { send::write(number(cookie), from.add(done).cast(), length - done) };
        match usize::try_from(n) {
            Ok(n @ 1..) => done += n,
            _ => break,
        }
    }
    done.cast_signed()
}

/// A connection has no position, but a file may stand there later.
unsafe extern "C-unwind" fn seek(cookie: *mut c_void, position: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: libc gives a pointer to the position that is wanted.
    unsafe {
        let reached = libc::lseek64(number(cookie), *position, whence);
        if reached < 0 {
            return -1;
        }
        *position = reached;
    }
    0
}

/// The stream is gone after this; a program may name it once more all the same. The hook of `fclose` has told the table.
unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = number(cookie);
    if let Some((stream, variable)) = place(fd) {
        // SAFETY: libc's variable for the stream.
        unsafe { put_back(stream, variable) };
    }
    // SAFETY: the number is the stream's to close.
    unsafe { real::close(fd) }
}

/// The stream that ours has replaced has its name again.
///
/// # Safety
/// `variable` is libc's for this stream.
unsafe fn put_back(stream: &Replaced, variable: *mut *mut FILE) -> *mut FILE {
    let ours = stream.by.swap(ptr::null_mut(), Relaxed);
    let was = stream.was.load(Relaxed);
    // SAFETY: the caller's promise; what was there before lives as long as the process.
    unsafe {
        if variable.read() == ours {
            variable.write(was);
        }
    }
    was
}

/// The stream that `freopen` is to open anew: libc can do that with its own only, so in place of ours, which is flushed, the one
/// that it has replaced.
///
/// # Safety
/// `file` is null or an open stream.
pub(super) unsafe fn own(file: *mut FILE) -> *mut FILE {
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
