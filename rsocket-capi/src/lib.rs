//! librsocket.so: the calls of rsocket(7) for C and C++ (`include/rdma/rsocket.h`), for streams and
//! datagrams.
//!
//! An rsocket is a kernel TCP socket with a slot of `rsocket_edge::socket`, and never uses TCP for
//! data. How two of them meet is `rsocket_edge::native`. A datagram rsocket is a UDP socket with a
//! slot, and `rsocket_edge::datagram`. Moving bytes and waiting are the same code that the preload
//! library runs. So the modules here only translate: a descriptor to a slot ([`table`]), C's
//! arguments and results (`rsocket_edge::edge`), an option to the layer that knows it.
//!
//! - [`name`]: rsocket, rbind, rlisten, raccept, rconnect, rshutdown, rclose, rgetpeername,
//!   rgetsockname
//! - [`data`]: the rsend and rrecv families; [`datagram`]: the same for datagrams
//! - [`place`]: riomap, riounmap, riowrite
//! - [`ready`]: rpoll, rselect
//! - [`epoll`]: repoll_create, repoll_ctl, repoll_wait
//! - [`option`]: rsetsockopt, rgetsockopt, rfcntl
//!
//! Every call fails with -1 and `errno`. A descriptor that is no rsocket is `EBADF`, and is never
//! touched. An rsocket has no entry in any other table, and nothing here goes through libc's socket
//! calls. So the library can be loaded beside librdmacm (whose calls of the same names it then
//! replaces) and beside the preload library.
//!
//! # Fork
//!
//! A child has its parent's rsockets and may use them, in turns or instead of it. The connection
//! ends when the last owner has closed it or ended. `exec` loses the rsockets: the new program
//! finds a TCP socket that is good for nothing but to be closed. So open them with `SOCK_CLOEXEC`.
//!
//! # Threads and signals
//!
//! All calls may be made by any thread at any time. A call that blocks is a cancellation point.
//! Those that move bytes may be made in a signal handler.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// Unit tests build the calls but do not export them: nothing calls them there.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("rfcntl is sound on 64-bit Linux ABIs only: see option.rs");

#[macro_use]
mod call;
mod data;
mod datagram;
mod epoll;
mod init;
mod name;
mod option;
mod place;
mod ready;
mod table;
