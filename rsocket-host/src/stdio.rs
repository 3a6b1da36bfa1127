//! libc's streams: what its headers show of one, and the variables of the three standard ones.
//!
//! A [`Stream`] is made where a C caller gives one, and making it is the promise. [`cookie`] has
//! streams whose bytes come by functions of the library's. Must not know what a stream is used for.
//! Entry points: [`Stream::new`], [`standard`], [`cookie::open`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod cookie;

use core::ffi::{c_char, c_int, c_void};
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::FILE;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fwide(file: *mut FILE, mode: c_int) -> c_int;
    fn fileno_unlocked(file: *mut FILE) -> c_int;
}

/// What libc's headers show of a stream, up to its descriptor (`bits/types/struct_FILE.h`).
#[repr(C)]
#[derive(Clone, Copy)]
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

/// When a stream passes on what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffering {
    /// When its buffer is full.
    Full,
    /// At the end of a line.
    Lines,
    /// At once.
    None,
}

/// A stream that is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream<'a>(NonNull<FILE>, PhantomData<&'a FILE>);

impl Stream<'_> {
    /// `None` for null.
    ///
    /// # Safety
    /// `file` is null or an open stream, or one of libc's own three, whose memory stays. Nobody
    /// closes it as long as this value is used.
    #[must_use]
    pub const unsafe fn new(file: *mut FILE) -> Option<Self> {
        match NonNull::new(file) {
            Some(file) => Some(Self(file, PhantomData)),
            None => None,
        }
    }

    /// To be passed on.
    #[must_use]
    pub const fn as_ptr(self) -> *mut FILE {
        self.0.as_ptr()
    }

    /// Its descriptor; without one -1, and `errno`.
    #[must_use]
    pub fn descriptor(self) -> c_int {
        // SAFETY: an open stream, by the promise of new().
        unsafe { fileno_unlocked(self.as_ptr()) }
    }

    /// Writes what it holds.
    pub fn flush(self) {
        // SAFETY: as above.
        unsafe { libc::fflush(self.as_ptr()) };
    }

    /// What stands in it at this moment; a thread that uses it may change that.
    fn shown(self) -> Shown {
        // SAFETY: a stream begins so, and any bits are a value. Nothing that is shown is followed.
        unsafe { self.0.cast::<Shown>().read_volatile() }
    }

    /// Whether nothing would be lost with it: it is the descriptor's, holds no byte, and is not for
    /// wide characters.
    #[must_use]
    pub fn is_fresh(self, fd: c_int) -> bool {
        let shown = self.shown();
        shown.fileno == fd
            && shown.read_at == shown.read_end
            && shown.write_at == shown.write_base
            // SAFETY: an open stream. It is only asked.
            && unsafe { fwide(self.as_ptr(), 0) } <= 0
    }

    /// How it is buffered.
    #[must_use]
    pub fn buffering(self) -> Buffering {
        match self.shown().flags & (UNBUFFERED | BY_LINES) {
            0 => Buffering::Full,
            BY_LINES => Buffering::Lines,
            _ => Buffering::None,
        }
    }

    /// How it is to be buffered, in a buffer of libc's.
    pub fn set_buffering(self, buffering: Buffering) {
        let how = match buffering {
            Buffering::Full => libc::_IOFBF,
            Buffering::Lines => libc::_IOLBF,
            Buffering::None => libc::_IONBF,
        };
        // SAFETY: an open stream, and no buffer of the caller's.
        unsafe { libc::setvbuf(self.as_ptr(), ptr::null_mut(), how, 0) };
    }
}

/// One of libc's three standard streams: the stream of ours that has replaced it, and what that has
/// replaced; null where there is none. Relaxed: a thread that uses a stream has it from libc's
/// variable, which is as plain as the program's own use of it.
#[derive(Debug)]
pub struct Standard {
    fd: c_int,
    by: AtomicPtr<FILE>,
    /// Only what [`Self::replace`] was given.
    was: AtomicPtr<FILE>,
}

static STANDARD: [Standard; 3] = [Standard::of(0), Standard::of(1), Standard::of(2)];

/// The standard stream of this number.
#[must_use]
pub fn standard(fd: c_int) -> Option<&'static Standard> {
    STANDARD.get(usize::try_from(fd).ok()?)
}

impl Standard {
    const fn of(fd: c_int) -> Self {
        Self { fd, by: AtomicPtr::new(ptr::null_mut()), was: AtomicPtr::new(ptr::null_mut()) }
    }

    /// libc's variable for it, which a program may assign as well.
    fn variable(&self) -> &'static AtomicPtr<FILE> {
        let variable = match self.fd {
            0 => &raw mut stdin,
            1 => &raw mut stdout,
            _ => &raw mut stderr,
        };
        // SAFETY: a variable of libc's is there for good, and aligned. The program's own use of it
        // is as plain as a relaxed load or store.
        unsafe { AtomicPtr::from_ptr(variable) }
    }

    /// What libc's variable names.
    ///
    /// # Safety
    /// That is null, or a stream as for [`Stream::new`]. So it is in a program that has not closed
    /// a stream which it had put there itself.
    #[must_use]
    pub unsafe fn named(&self) -> Option<Stream<'static>> {
        // SAFETY: the caller's promise.
        unsafe { Stream::new(self.variable().load(Relaxed)) }
    }

    /// Whether a stream of ours stands there.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        !self.by.load(Relaxed).is_null()
    }

    /// Whether it is this one.
    #[must_use]
    pub fn is_replaced_by(&self, file: Stream<'_>) -> bool {
        self.by.load(Relaxed) == file.as_ptr()
    }

    /// Puts a stream of ours in the place of the one that was there.
    pub fn replace(&self, was: Stream<'static>, by: Stream<'static>) {
        self.was.store(was.as_ptr(), Relaxed);
        self.by.store(by.as_ptr(), Relaxed);
        self.variable().store(by.as_ptr(), Relaxed);
    }

    /// The stream that ours has replaced has its name again; `None` if there never was one.
    pub fn put_back(&self) -> Option<Stream<'static>> {
        let ours = self.by.swap(ptr::null_mut(), Relaxed);
        let was = self.was.load(Relaxed);
        if self.variable().load(Relaxed) == ours {
            self.variable().store(was, Relaxed);
        }
        // SAFETY: null, or what replace() was given, which stays.
        unsafe { Stream::new(was) }
    }
}

/// The stream of ours on `fd` is gone after this; a program may name it once more all the same.
fn closed(fd: c_int, file: *mut FILE) {
    if let Some(standard) = standard(fd)
        && !file.is_null()
        && standard.by.load(Relaxed) == file
    {
        standard.put_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_shows_its_descriptor_and_what_it_holds() {
        // SAFETY: a stream of our own, closed at the end.
        unsafe {
            let file = libc::tmpfile();
            let stream = Stream::new(file).unwrap();
            let fd = stream.descriptor();
            assert!(stream.is_fresh(fd) && !stream.is_fresh(fd + 1));
            assert_eq!(stream.buffering(), Buffering::Full);
            stream.set_buffering(Buffering::Lines);
            assert_eq!(stream.buffering(), Buffering::Lines);
            assert_eq!(libc::fputc(c_int::from(b'a'), file), c_int::from(b'a'));
            assert!(!stream.is_fresh(fd));
            stream.flush();
            assert_eq!(libc::lseek(fd, 0, libc::SEEK_END), 1);
            assert_eq!(libc::fclose(file), 0);
            assert!(Stream::new(ptr::null_mut()).is_none());
        }
    }

    #[test]
    fn a_standard_stream_gets_its_name_back() {
        let standard = standard(0).unwrap();
        // SAFETY: libc's own stream; a stream of our own, closed at the end.
        unsafe {
            let was = standard.named().unwrap();
            let by = Stream::new(libc::tmpfile()).unwrap();
            standard.replace(was, by);
            assert_eq!(standard.named(), Some(by));
            assert!(standard.is_replaced() && standard.is_replaced_by(by));
            closed(0, was.as_ptr());
            assert!(standard.is_replaced());
            closed(0, by.as_ptr());
            assert!(!standard.is_replaced());
            assert_eq!(standard.named(), Some(was));
            assert_eq!(libc::fclose(by.as_ptr()), 0);
        }
        assert!(super::standard(3).is_none() && super::standard(-1).is_none());
    }
}
