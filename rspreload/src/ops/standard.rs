//! libc's standard streams over a connection: `stdin`, `stdout` and `stderr` of a program whose
//! descriptor 0, 1 or 2 is one. `inetd` and its kin start programs so, and a shell redirects so.
//!
//! libc reads and writes for its streams by calls of its own, which no hook sees. Their bytes would
//! travel by TCP while those of the program's `read` and `write` have left it. So when a connection
//! comes to stand on such a number, a stream of ours ([`cookie`]) replaces libc's. It is buffered
//! in the same way.
//!
//! A stream that holds bytes already, or has been used for wide characters, is left as it is. Must
//! not know what a connection is. Entry points: [`stands`], and [`own`] before `freopen`.

use core::ffi::c_int;

use rsocket_host::stdio::{Buffering, Stream, cookie, standard};

/// A connection has come to stand on `fd`. The calling process is the one whose table says so.
#[inline]
pub(crate) fn stands(fd: c_int) {
    if (0..=2).contains(&fd) {
        replace(fd);
    }
}

#[cold]
#[expect(unsafe_code, reason = "what libc's variable names is the program's promise")]
fn replace(fd: c_int) {
    let Some(place) = standard(fd).filter(|place| !place.is_replaced()) else { return };
    // SAFETY: libc's own variable, which libc's functions go by without being asked. A program that
    // puts a stream of its own there, and closes it, puts another there, or null.
    let Some(old) = unsafe { place.named() }.filter(|old| old.is_fresh(fd)) else { return };
    let mode = if fd == 0 { c"r" } else { c"w" };
    let Some(new) = cookie::open(fd, mode) else { return };
    let buffering = old.buffering();
    if buffering != Buffering::Full {
        new.set_buffering(buffering);
    }
    place.replace(old, new);
}

/// The stream that `freopen` is to open anew: libc can do that with its own only. So in place of a
/// stream of ours, which is flushed, it is the one that ours has replaced.
pub(crate) fn own(stream: Stream<'_>) -> Option<Stream<'_>> {
    match (0..=2).filter_map(standard).find(|place| place.is_replaced_by(stream)) {
        Some(place) => {
            stream.flush();
            place.put_back()
        }
        None => Some(stream),
    }
}
