//! The C-ABI functions, by family. Each is a few lines: look up, route, call.
//!
//! Must not know anything of the protocol, the device or how a connection attaches. `exports.txt` lists
//! every name that is defined here, and a test compares it with the library.
//!
//! # What is not hooked, and why
//!
//! - The `fstat` family: the program's descriptor is a real TCP socket, so that the kernel's answer is right.
//! - `pread`, `pwrite`, `preadv`, `pwritev` and their relatives: `ESPIPE` on every socket, on a device or not.
//! - `tee` and `vmsplice`: both take pipes only.
//! - `open` and its family: they would be hooked only to clear stale entries, and `fopen` opens without them;
//!   what makes entries stale is `fclose`, which is hooked.
//! - `posix_spawn`, `vfork`: the child is libc's own, or runs in our memory, and is foreign to the table.
//! - `unshare`, `setns`: nothing of ours depends on them once a connection stands.
//! - `seccomp`: libc has no such function. Whoever installs a filter calls `prctl` first, or is root.
//! - `syscall`: std's own futex goes through it, and so do sandboxes.
//! - `read`, `write` and friends inside libc (stdio, resolvers): no preload library sees them.

pub(crate) mod dup;
pub(crate) mod epoll;
pub(crate) mod life;
pub(crate) mod name;
pub(crate) mod option;
pub(crate) mod process;
pub(crate) mod ready;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod stdio;
pub(crate) mod transfer;
