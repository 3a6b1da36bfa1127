//! Streams over a descriptor whose bytes come by functions of the library's (`fopencookie`).
//!
//! Such a stream says the same descriptor as one of libc's. It stays when something else comes to
//! stand there. It takes no wide characters, and libc's `freopen` cannot have it ([`is_ours`]).
//!
//! Must not know what the functions do. Entry points: [`install`], [`open`], [`flush`].

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{
    AtomicI32, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{Shown, Stream, closed};

/// How the bytes of a stream come and go, by its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// As `read`: called with room for so many bytes.
    pub read: unsafe fn(c_int, *mut c_void, size_t) -> ssize_t,
    /// As `write`: called with so many bytes.
    pub write: unsafe fn(c_int, *const c_void, size_t) -> ssize_t,
    /// As `lseek64`.
    pub seek: fn(c_int, off64_t, c_int) -> off64_t,
    /// As `close`: the number is the stream's.
    pub close: fn(c_int) -> c_int,
}

/// The same for libc, by the stream's cookie.
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn fflush_unlocked(file: *mut FILE) -> c_int;
}

/// What a stream of ours has as its cookie. Never freed, but used again.
struct Cookie {
    /// Its descriptor, or [`FREE`].
    fd: AtomicI32,
    /// Null until the stream is made.
    file: AtomicPtr<FILE>,
    /// Written before others can find it.
    next: AtomicPtr<Self>,
    ways: &'static Ways,
}

const FREE: c_int = -1;

/// All of them, the newest first.
static FIRST: AtomicPtr<Cookie> = AtomicPtr::new(ptr::null_mut());

fn all() -> impl Iterator<Item = &'static Cookie> {
    let reference = |p: *mut Cookie| {
        // SAFETY: null, or a cookie that was made by take() and is never freed.
        unsafe { p.as_ref() }
    };
    // Acquire: pairs with the Release in take(), before which `next` was written.
    let first = reference(FIRST.load(Acquire));
    core::iter::successors(first, move |c| reference(c.next.load(Relaxed)))
}

/// A cookie that is not in use; `None` where there is no memory.
fn take(fd: c_int, ways: &'static Ways) -> Option<&'static Cookie> {
    // Acquire: pairs with the Release in close(), after which its last user does not touch it.
    let is_free = |c: &&Cookie| c.fd.compare_exchange(FREE, fd, Acquire, Relaxed).is_ok();
    if let Some(cookie) = all().filter(|c| ptr::eq(c.ways, ways)).find(is_free) {
        return Some(cookie);
    }
    // SAFETY: a plain allocation, by libc's own as the stream's.
    let new = unsafe { libc::malloc(size_of::<Cookie>()) }.cast::<Cookie>();
    if new.is_null() {
        return None;
    }
    let mut next = FIRST.load(Relaxed);
    loop {
        let fresh = Cookie {
            fd: AtomicI32::new(fd),
            file: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(next),
            ways,
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

static WAYS: AtomicPtr<Ways> = AtomicPtr::new(ptr::null_mut());

/// How the streams that are opened from now on get their bytes.
///
/// # Safety
/// The functions do with what they are called with as [`Ways`] says, and no more.
pub unsafe fn install(ways: &'static Ways) {
    WAYS.store(ptr::from_ref(ways).cast_mut(), Relaxed);
}

/// A stream on `fd`, until the program closes it; `None`, with `errno`, where libc makes none.
#[must_use]
pub fn open(fd: c_int, mode: &CStr) -> Option<Stream<'static>> {
    // SAFETY: null, or what install() was given. Relaxed: it was made by the compiler.
    let ways = unsafe { WAYS.load(Relaxed).as_ref() }?;
    let cookie = take(fd, ways)?;
    let functions = Functions { read, write, seek, close };
    let at = ptr::from_ref(cookie).cast_mut().cast();
    // SAFETY: the functions know what the cookie is, and libc gives it to nobody else.
    let file = unsafe { fopencookie(at, mode.as_ptr(), functions) };
    // SAFETY: null, or just opened; only who has it from here can close it.
    let Some(stream) = (unsafe { Stream::new(file) }) else {
        cookie.fd.store(FREE, Release);
        return None;
    };
    // SAFETY: no other thread has it yet; libc's headers show this field.
    unsafe { (*file.cast::<Shown>()).fileno = fd };
    // Relaxed: a thread that looks for this stream has it from open().
    cookie.file.store(file, Relaxed);
    Some(stream)
}

/// Whether it is a stream of ours, which libc cannot open anew. libc would write where it has the
/// fields for wide characters in its own.
#[must_use]
pub fn is_ours(stream: Stream<'_>) -> bool {
    all().any(|c| c.file.load(Relaxed) == stream.as_ptr())
}

/// Writes what the streams hold. For the end of the program, without their locks, as libc does
/// then: a thread may sleep with one.
pub fn flush() {
    for cookie in all() {
        let file = cookie.file.load(Relaxed);
        if !file.is_null() {
            // SAFETY: a stream of ours, which stands here until it is closed. A thread that closes
            // it at this moment races with libc's own flush at the end, too.
            unsafe { fflush_unlocked(file) };
        }
    }
}

/// What libc gives the functions below.
///
/// # Safety
/// `cookie` is what [`open`] gave libc.
unsafe fn of(cookie: *mut c_void) -> (&'static Cookie, c_int) {
    // SAFETY: the caller's promise; cookies are never freed.
    let cookie = unsafe { &*cookie.cast::<Cookie>() };
    (cookie, cookie.fd.load(Relaxed))
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: called by libc, with our cookie and room in the stream's buffer.
    unsafe {
        let (cookie, fd) = of(cookie);
        (cookie.ways.read)(fd, to.cast(), length)
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
        // SAFETY: called by libc, with our cookie and the stream's buffer, of which `done` bytes
        // are through.
        let n = unsafe {
            let (cookie, fd) = of(cookie);
            (cookie.ways.write)(fd, from.add(done).cast(), length - done)
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
    // SAFETY: called by libc, with our cookie and a pointer to the position that is wanted.
    unsafe {
        let (cookie, fd) = of(cookie);
        let reached = (cookie.ways.seek)(fd, *position, whence);
        if reached < 0 {
            return -1;
        }
        *position = reached;
    }
    0
}

/// The stream is gone after this.
unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: called by libc, with our cookie.
    let (cookie, fd) = unsafe { of(cookie) };
    let file = cookie.file.swap(ptr::null_mut(), Relaxed);
    closed(fd, file);
    let close = cookie.ways.close;
    // Release: pairs with the Acquire in take().
    cookie.fd.store(FREE, Release);
    close(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe fn nothing(_: c_int, _: *mut c_void, _: size_t) -> ssize_t {
        0
    }

    /// One byte at a time.
    unsafe fn one(fd: c_int, from: *const c_void, _: size_t) -> ssize_t {
        // SAFETY: there is a byte.
        unsafe { libc::write(fd, from, 1) }
    }

    fn seek(_: c_int, _: off64_t, _: c_int) -> off64_t {
        -1
    }

    fn close(fd: c_int) -> c_int {
        // SAFETY: the test's own.
        unsafe { libc::close(fd) }
    }

    static ONES: Ways = Ways { read: nothing, write: one, seek, close };

    #[test]
    fn bytes_go_by_the_functions_and_cookies_are_used_again() {
        let mut pipe = [0; 2];
        assert!(open(0, c"r").is_none());
        // SAFETY: pointers to locals, functions that do so, and descriptors and streams of the
        // test's own.
        unsafe {
            install(&ONES);
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let stream = open(pipe[1], c"w").unwrap();
            assert!(is_ours(stream) && stream.descriptor() == pipe[1]);
            assert!(libc::fputs(c"abc".as_ptr(), stream.as_ptr()) >= 0);
            flush();
            let mut read = [0_u8; 4];
            assert_eq!(libc::read(pipe[0], read.as_mut_ptr().cast(), 4), 3);
            assert_eq!(&read, b"abc\0");
            assert_eq!(libc::fclose(stream.as_ptr()), 0);
            assert!(!is_ours(stream));
            let (before, again) = (all().count(), open(pipe[0], c"r").unwrap());
            assert_eq!(all().count(), before);
            assert_eq!(libc::fgetc(again.as_ptr()), libc::EOF);
            assert_eq!(libc::fclose(again.as_ptr()), 0);
        }
    }
}
