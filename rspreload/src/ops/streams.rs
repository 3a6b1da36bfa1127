//! libc's streams over a connection, whose reads and writes are our hooks (`fopencookie`).
//!
//! libc reads and writes for a stream by calls of its own, which no hook sees. A stream from here
//! says the same descriptor as one of libc's. It stays when something else comes to stand there:
//! the hooks pass on what is not ours. It takes no wide characters, and libc's `freopen` cannot
//! have it ([`is_ours`]).
//!
//! Must not know what a connection is. Entry points: [`open`], [`is_ours`] and [`flush`].

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{
    AtomicI32, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{recv, replaced, send};
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
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, ways: Ways) -> *mut FILE;
    fn fflush_unlocked(file: *mut FILE) -> c_int;
}

/// What libc's headers show of a stream, up to its descriptor (`bits/types/struct_FILE.h`).
#[repr(C)]
pub(crate) struct Shown {
    pub flags: c_int,
    pub read_at: *mut c_char,
    pub read_end: *mut c_char,
    pub read_base: *mut c_char,
    pub write_base: *mut c_char,
    pub write_at: *mut c_char,
    pub write_end: *mut c_char,
    pub buffer: [*mut c_char; 2],
    pub saved: [*mut c_char; 3],
    pub markers: *mut c_void,
    pub chain: *mut FILE,
    pub fileno: c_int,
}

/// A stream of ours, which knows it as its cookie. Never freed, but used again.
struct Stream {
    /// Its descriptor, or [`FREE`].
    fd: AtomicI32,
    /// Null until it is made.
    file: AtomicPtr<FILE>,
    /// Written before others can find it.
    next: AtomicPtr<Self>,
}

const FREE: c_int = -1;

/// All of them, the newest first.
static FIRST: AtomicPtr<Stream> = AtomicPtr::new(ptr::null_mut());

fn all() -> impl Iterator<Item = &'static Stream> {
    let reference = |p: *mut Stream| {
        // SAFETY: null, or a stream that was made by take().
        unsafe { p.as_ref() }
    };
    // Acquire: pairs with the Release in take(), before which `next` was written.
    let first = reference(FIRST.load(Acquire));
    core::iter::successors(first, move |s| reference(s.next.load(Relaxed)))
}

/// A stream that is not in use; `None` where there is no memory.
fn take(fd: c_int) -> Option<&'static Stream> {
    // Acquire: pairs with the Release in close(), after which its last user does not touch it.
    if let Some(s) = all().find(|s| s.fd.compare_exchange(FREE, fd, Acquire, Relaxed).is_ok()) {
        return Some(s);
    }
    // SAFETY: a plain allocation, by libc's own as the stream's.
    let new = unsafe { libc::malloc(size_of::<Stream>()) }.cast::<Stream>();
    if new.is_null() {
        return None;
    }
    let mut next = FIRST.load(Relaxed);
    loop {
        let fresh = Stream {
            fd: AtomicI32::new(fd),
            file: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(next),
        };
        // SAFETY: memory for one, of which no other thread knows.
        unsafe { new.write(fresh) };
        // Release: pairs with the Acquire in all().
        match FIRST.compare_exchange_weak(next, new, Release, Relaxed) {
            Ok(_) => break,
            Err(other) => next = other,
        }
    }
    // SAFETY: written above, and never freed.
    unsafe { new.as_ref() }
}

/// A stream of ours on `fd`; null, with `errno`, where libc makes none.
///
/// # Safety
/// `mode` is a string.
pub(crate) unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let Some(stream) = take(fd) else { return ptr::null_mut() };
    let ways = Ways { read, write, seek, close };
    // SAFETY: the functions know what the cookie is; the mode is the caller's.
    let file = unsafe { fopencookie(ptr::from_ref(stream).cast_mut().cast(), mode, ways) };
    if file.is_null() {
        stream.fd.store(FREE, Release);
        return file;
    }
    // SAFETY: no other thread has it yet; libc's headers show this field.
    unsafe { (*file.cast::<Shown>()).fileno = fd };
    // Relaxed: a thread that looks for this stream has it from open().
    stream.file.store(file, Relaxed);
    file
}

/// Whether it is a stream of ours, which libc cannot open anew. libc would write where it has the
/// fields for wide characters in its own.
pub(crate) fn is_ours(file: *mut FILE) -> bool {
    !file.is_null() && all().any(|s| s.file.load(Relaxed) == file)
}

/// At the end of the program, before its connections are: libc would write what its streams hold
/// only after that. Without their locks, as libc does then: a thread may sleep with one.
pub(crate) fn flush() {
    for stream in all() {
        let file = stream.file.load(Relaxed);
        if !file.is_null() {
            // SAFETY: our stream, which stands here until it is closed.
            unsafe { fflush_unlocked(file) };
        }
    }
}

/// The stream whose cookie this is.
///
/// # Safety
/// `cookie` is one that [`open`] gave libc.
unsafe fn of(cookie: *mut c_void) -> &'static Stream {
    // SAFETY: the caller's promise; streams are never freed.
    unsafe { &*cookie.cast::<Stream>() }
}

/// # Safety
/// As [`of`].
unsafe fn number(cookie: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { of(cookie) }.fd.load(Relaxed)
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: our cookie, and the stream's buffer.
    unsafe {
        let fd = number(cookie);
        recv::read(fd, to.cast(), length, || real::read(fd, to.cast(), length))
    }
}

/// All of it, or what went before an error: a stream counts fewer as one.
unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    from: *const c_char,
    length: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < length {
        // SAFETY: our cookie, and the stream's buffer, of which `done` bytes are through.
        let n = unsafe {
            let (fd, at, left) = (number(cookie), from.add(done).cast(), length - done);
            send::write(fd, at, left, || real::write(fd, at, left))
        };
        match usize::try_from(n) {
            Ok(n @ 1..) => done += n,
            _ => break,
        }
    }
    done.cast_signed()
}

/// A connection has no position, but a file may stand there later.
unsafe extern "C-unwind" fn seek(
    cookie: *mut c_void,
    position: *mut off64_t,
    whence: c_int,
) -> c_int {
    // SAFETY: our cookie; libc gives a pointer to the position that is wanted.
    unsafe {
        let reached = libc::lseek64(number(cookie), *position, whence);
        if reached < 0 {
            return -1;
        }
        *position = reached;
    }
    0
}

/// The stream is gone after this. The hook of `fclose` has told the table.
unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: our cookie.
    let stream = unsafe { of(cookie) };
    let fd = stream.fd.load(Relaxed);
    let file = stream.file.swap(ptr::null_mut(), Relaxed);
    replaced::closed(fd, file);
    // Release: pairs with the Acquire in take().
    stream.fd.store(FREE, Release);
    // SAFETY: the number is the stream's to close.
    unsafe { real::close(fd) }
}
