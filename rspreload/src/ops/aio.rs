//! POSIX asynchronous I/O. libc's own threads do the reading and writing, by its own names, so that
//! no hook sees them: such sockets are on TCP.

use core::ffi::c_int;

use rsocket_host::given::{In, Places};

use super::stdio::unseen;

/// What is asked of a descriptor, which is the first field of the control block.
pub(crate) fn seen(block: In<'_, c_int>) {
    if let Some(fd) = block.get() {
        unseen(fd);
    }
}

/// Many of those.
pub(crate) fn each(list: Places<'_, In<'_, c_int>>) {
    (0..list.len()).filter_map(|i| list.get(i)).for_each(seen);
}
