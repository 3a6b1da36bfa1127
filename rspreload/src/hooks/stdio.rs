//! Sockets that are handed to libc's own input and output. What becomes of them is
//! [`crate::ops::stdio`]'s.

use core::ffi::{c_char, c_int, c_void};

use libc::FILE;
use rsocket_host::given::string;
use rsocket_host::stdio::Stream;

use super::streams;
use crate::ops::stdio as ops;
use crate::real;

hook! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        // Our constructor may be still to come.
        streams::install();
        ops::fdopen(fd, string(mode), || real::fdopen(fd, mode))
    }

    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        ops::sends_unseen(fd);
        real::vdprintf(fd, format, list)
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        ops::sends_unseen(fd);
        real::__vdprintf_chk(fd, flag, format, list)
    }

    fn fclose(file: *mut FILE) -> c_int {
        ops::before_stream_closes(Stream::new(file));
        real::fclose(file)
    }

    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        let close = |file| real::fclose(file);
        ops::opened_anew(Stream::new(file), close, |file| real::freopen(path, mode, file))
    }

    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        let close = |file| real::fclose(file);
        ops::opened_anew(Stream::new(file), close, |file| real::freopen64(path, mode, file))
    }
}

passing_on! {
    /// `dprintf`, as in its manual page.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dprintf => before_dprintf;
    /// `dprintf` in programs that are built with fortification.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    __dprintf_chk => before_dprintf_chk;
}

extern "C-unwind" fn before_dprintf(fd: c_int) -> *const () {
    ops::sends_unseen(fd);
    real::dprintf()
}

extern "C-unwind" fn before_dprintf_chk(fd: c_int) -> *const () {
    ops::sends_unseen(fd);
    real::__dprintf_chk()
}
