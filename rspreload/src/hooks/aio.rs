//! POSIX asynchronous I/O. libc's own threads do the reading and writing, by its own names, so that
//! no hook sees them: such sockets are on TCP.

use core::ffi::c_int;
use core::mem::offset_of;

use libc::{aiocb, sigevent};
use rsocket_host::given::{In, Places};

use crate::ops::aio as ops;
use crate::real;

// A pointer to a block is one to its descriptor.
const _: () = assert!(offset_of!(aiocb, aio_fildes) == 0);

hook! {
    fn aio_read(block: *mut aiocb) -> c_int {
        ops::seen(In::new(block.cast()));
        real::aio_read(block)
    }

    fn aio_read64(block: *mut aiocb) -> c_int {
        ops::seen(In::new(block.cast()));
        real::aio_read64(block)
    }

    fn aio_write(block: *mut aiocb) -> c_int {
        ops::seen(In::new(block.cast()));
        real::aio_write(block)
    }

    fn aio_write64(block: *mut aiocb) -> c_int {
        ops::seen(In::new(block.cast()));
        real::aio_write64(block)
    }

    fn lio_listio(
        mode: c_int,
        list: *const *mut aiocb,
        length: c_int,
        event: *mut sigevent,
    ) -> c_int {
        ops::each(Places::new(list.cast_mut().cast(), usize::try_from(length).unwrap_or(0)));
        real::lio_listio(mode, list, length, event)
    }

    fn lio_listio64(
        mode: c_int,
        list: *const *mut aiocb,
        length: c_int,
        event: *mut sigevent,
    ) -> c_int {
        ops::each(Places::new(list.cast_mut().cast(), usize::try_from(length).unwrap_or(0)));
        real::lio_listio64(mode, list, length, event)
    }
}
