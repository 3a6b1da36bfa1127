//! Direct placement: memory that the peer writes.

use core::ffi::{c_int, c_void};

use libc::{off_t, size_t};
use rsocket_edge::edge::{done, fail, one, sent};
use rsocket_host::failure::Failure;

use crate::table;
use rsocket_edge::iomap;
use rsocket_edge::iomap::Memory;

/// Flags of `riowrite` that mean something here.
const WRITING: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

fn map(fd: c_int, memory: Memory, protection: c_int, offset: off_t) -> Result<off_t, Failure> {
    let slot = table::connection(fd)?;
    if protection & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 {
        return Err(Failure::Invalid);
    }
    iomap::map(slot, fd, memory, offset)
}

call! {
    /// `flags` have no meaning, as ever.
    fn riomap(
        fd: c_int,
        buffer: *mut c_void,
        size: size_t,
        protection: c_int,
        _flags: c_int,
        offset: off_t,
    ) -> off_t {
        let memory = Memory::new(buffer.cast(), size, protection & libc::PROT_WRITE != 0);
        match map(fd, memory, protection, offset) {
            Ok(offset) => offset,
            Err(e) => off_t::from(fail(e)),
        }
    }

    fn riounmap(fd: c_int, buffer: *mut c_void, size: size_t) -> c_int {
        done(table::rsocket(fd).and_then(|slot| iomap::unmap(slot, buffer.cast(), size)))
    }

    /// -1 is `(size_t) -1`.
    fn riowrite(
        fd: c_int,
        buffer: *const c_void,
        size: size_t,
        offset: off_t,
        flags: c_int,
    ) -> size_t {
        let result = table::connection(fd)
            .and_then(|slot| iomap::write(slot, fd, &one(buffer, size), offset, flags & WRITING));
        sent(result, flags).cast_unsigned()
    }
}
