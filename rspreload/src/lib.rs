//! librspreload.so: interposes libc's socket calls and forwards what is ours to `rsocket_core`.
//!
//! # The tour of one intercepted call
//!
//! A program calls `read(7, buf, n)`.
//!
//! 1. The dynamic linker has bound `read` to [`hooks::recv`]'s function of that name (`calls.txt`
//!    lists all of them). It is a C function of a few lines without logic of its own; what it does
//!    stands in [`ops`].
//! 2. The hook asks [`shadow`] (`rsocket_edge::descriptors`) what descriptor 7 stands for: one
//!    relaxed load from a flat array. Nearly always the answer is "nothing of ours". The hook then
//!    jumps to the next definition of `read` in the process, through the pointer that [`real`]
//!    holds. That is the *miss path*: about ten instructions, no lock, no allocation, no system
//!    call. It is right in a signal handler, before our constructor, and in a `vfork` child.
//! 3. If 7 is one of our TCP connections, `socket::enter_receive` says by which route the call
//!    goes. `Route::Kernel`: the next `read`, between the enter and the leave call, so that the
//!    attach machine knows that a thread is inside the kernel. `Route::Device`: `socket::receive`.
//! 4. The answer becomes a C return value and `errno` in [`edge`] (`rsocket_edge::edge`), there and
//!    nowhere else.
//!
//! # What the modules must not know
//!
//! `hooks` never sees a queue pair, a lock or a byte of protocol; `shadow` never sees a socket.
//! `real` sees neither, and `handlers` only the program's signal handlers. What a socket is stands
//! in `rsocket_edge::socket`.
//!
//! # Rules of the house (each one was once a hang or a crash)
//!
//! - A thread may be cancelled inside any pass-through call: it then unwinds through our frames.
//!   Hooks are `extern "C-unwind"`, and nothing that has a destructor is alive across a
//!   pass-through. No `catch_unwind`.
//! - No `Once`, `OnceLock`, `LazyLock`, `Mutex`, no std I/O, no allocation, no thread-local with a
//!   destructor.
//! - A `vfork` child runs in its parent's memory: before a shadow entry is *changed*, `shadow`
//!   compares the process with the table's owner.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]
// Unit tests build the hooks but do not export them (`hazards H8`): nothing calls them there.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("variadic hooks are sound on 64-bit Linux ABIs only: see hook.rs");

#[macro_use]
mod hook;
mod adopted;
mod first_bytes_tap;
mod handlers;
mod hooks;
mod init;
mod ops;
mod policy;
mod real;
mod rebind;
mod room;
// Elsewhere libgcc_s comes with the library; unit tests have it anyway.
#[cfg(all(target_arch = "x86_64", not(test)))]
mod unwind;

use rsocket_edge::{descriptors as shadow, edge};
