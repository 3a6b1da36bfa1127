//! Which of libc's standard streams has been replaced by one of ours, and by which.
//!
//! Must not know how a stream reads or writes. Entry points: [`place`], [`closed`], [`put_back`].

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::FILE;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// A stream of ours, and what it has replaced; null where there is none. Relaxed: a thread that
/// uses a stream has it from libc's variable, which is as plain as the program's own use of it.
pub(crate) struct Replaced {
    pub(crate) by: AtomicPtr<FILE>,
    pub(crate) was: AtomicPtr<FILE>,
}

static STREAMS: [Replaced; 3] = [const {
    Replaced { by: AtomicPtr::new(ptr::null_mut()), was: AtomicPtr::new(ptr::null_mut()) }
}; 3];

/// The stream's place here, and libc's variable for it.
pub(crate) fn place(fd: c_int) -> Option<(&'static Replaced, *mut *mut FILE)> {
    let variable = match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        2 => &raw mut stderr,
        _ => return None,
    };
    Some((STREAMS.get(usize::try_from(fd).ok()?)?, variable))
}

/// The stream of ours on `fd` is gone after this; a program may name it once more all the same.
pub(crate) fn closed(fd: c_int, file: *mut FILE) {
    if let Some((stream, variable)) = place(fd)
        && stream.by.load(Relaxed) == file
    {
        // SAFETY: libc's variable for the stream.
        unsafe { put_back(stream, variable) };
    }
}

/// The stream that ours has replaced has its name again.
///
/// # Safety
/// `variable` is libc's for this stream.
pub(crate) unsafe fn put_back(stream: &Replaced, variable: *mut *mut FILE) -> *mut FILE {
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
