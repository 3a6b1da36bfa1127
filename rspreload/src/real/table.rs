//! One line for each function of libc's that we call or hook. `certain`: in every libc that we run
//! on.
//!
//! Adding a hook starts here; then a function in `hooks/`, a line in `calls.txt`, and a test.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    DIR, FILE, aiocb, epoll_event, fd_set, iovec, loff_t, mmsghdr, mode_t, msghdr, nfds_t, off_t,
    pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t, sigevent, sigset_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use super::resolve::{self, Symbol, answer_absent};

macro_rules! real {
    ($($certain:ident fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            pub(crate) mod $name {
                #[allow(unused_imports)]
                use super::*;
                pub(crate) type Type = unsafe extern "C-unwind" fn($($type),*) $(-> $ret)?;
                pub(crate) static NEXT: AtomicPtr<()> = AtomicPtr::new(first as Type as *mut ());
                pub(super) const fn symbol() -> Symbol {
                    const NAME: &core::ffi::CStr =
                        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                    Symbol { name: NAME, next: &NEXT, absent: absent as Type as *const (), certain: real!(@ $certain) }
                }
                unsafe extern "C-unwind" fn first($($arg: $type),*) $(-> $ret)? {
                    let next = resolve::next(&symbol());
                    // SAFETY: the symbol of this name has this type, by libc's headers; so has
                    // `absent`.
                    unsafe { transmute::<*const (), Type>(next)($($arg),*) }
                }
                unsafe extern "C-unwind" fn absent($(_: $type),*) $(-> $ret)? {
                    answer_absent()
                }
            }
            /// The next definition of libc's function of this name.
            #[inline(always)]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $ret)? {
                // Relaxed: see resolve::next.
                let next = $name::NEXT.load(Ordering::Relaxed);
                // SAFETY: NEXT only ever holds functions of this type; the arguments are the
                // caller's promise.
                unsafe { transmute::<*mut (), $name::Type>(next)($($arg),*) }
            }
        )*
        const fn fixed() -> [Symbol; [$(stringify!($name)),*].len()] {
            [$($name::symbol()),*]
        }
    };
    (@ certain) => { true };
    (@ optional) => { false };
}

/// Functions with `...` and a bounded number of arguments: the pointer is called as variadic, which
/// tells the callee so (register al on x86-64).
macro_rules! variadic {
    ($(fn $name:ident($($arg:ident: $type:ty),*; $($more:ident: $rest:ty),*) -> $ret:ty;)*) => {
        $(
            pub(crate) mod $name {
                #[allow(unused_imports)]
                use super::*;
                pub(super) type Type = unsafe extern "C-unwind" fn($($type),*, ...) -> $ret;
                type Fixed = unsafe extern "C-unwind" fn($($type),*, $($rest),*) -> $ret;
                pub(super) static NEXT: AtomicPtr<()> = AtomicPtr::new(first as Fixed as *mut ());
                pub(super) const fn symbol() -> Symbol {
                    const NAME: &core::ffi::CStr =
                        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                    Symbol { name: NAME, next: &NEXT, absent: absent as Fixed as *const (), certain: true }
                }
                unsafe extern "C-unwind" fn first($($arg: $type),*, $($more: $rest),*) -> $ret {
                    let next = resolve::next(&symbol());
                    // SAFETY: as in `real!`.
                    unsafe { transmute::<*const (), Type>(next)($($arg),*, $($more),*) }
                }
                unsafe extern "C-unwind" fn absent($(_: $type),*, $(_: $rest),*) -> $ret {
                    answer_absent()
                }
            }
            /// The next definition of libc's function of this name.
            #[inline(always)]
            pub(crate) unsafe fn $name($($arg: $type),*, $($more: $rest),*) -> $ret {
                let next = $name::NEXT.load(Ordering::Relaxed);
                // SAFETY: as in `real!`. Before resolution NEXT holds `first`, of fixed arity, for
                // which a variadic call is the same on the ABIs that lib.rs admits.
                unsafe { transmute::<*mut (), $name::Type>(next)($($arg),*, $($more),*) }
            }
        )*
        const fn bounded() -> [Symbol; [$(stringify!($name)),*].len()] {
            [$($name::symbol()),*]
        }
    };
}

/// Functions with an unbounded argument list: only their address is of use.
macro_rules! address {
    ($(fn $name:ident;)*) => {
        $(
            /// The address of the next definition.
            pub(crate) fn $name() -> *const () {
                static NEXT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
                unsafe extern "C-unwind" fn absent() -> c_int {
                    answer_absent()
                }
                let known = NEXT.load(Ordering::Relaxed);
                if !known.is_null() {
                    return known;
                }
                const NAME: &core::ffi::CStr =
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                let absent = absent as unsafe extern "C-unwind" fn() -> c_int as *const ();
                resolve::next(&Symbol { name: NAME, next: &NEXT, absent, certain: true })
            }
        )*
        fn unbounded() {
            $($name();)*
        }
    };
}

real! {
    // life and name
    certain fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    certain fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    certain fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    certain fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    certain fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    certain fn listen(fd: c_int, backlog: c_int) -> c_int;
    certain fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    certain fn accept4(
        fd: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
        flags: c_int
    ) -> c_int;
    certain fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    certain fn shutdown(fd: c_int, how: c_int) -> c_int;
    certain fn sockatmark(fd: c_int) -> c_int;
    certain fn close(fd: c_int) -> c_int;
    optional fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    optional fn closefrom(first: c_int);
    certain fn mlockall(flags: c_int) -> c_int;
    certain fn pipe(pair: *mut c_int) -> c_int;
    certain fn pipe2(pair: *mut c_int, flags: c_int) -> c_int;
    certain fn eventfd(value: c_uint, flags: c_int) -> c_int;
    certain fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    certain fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    // recv
    certain fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    certain fn readv(fd: c_int, list: *const iovec, length: c_int) -> ssize_t;
    certain fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    certain fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_length: *mut socklen_t
    ) -> ssize_t;
    certain fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    certain fn recvmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        length: c_uint,
        flags: c_int,
        timeout: *mut timespec
    ) -> c_int;
    optional fn __read_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t) -> ssize_t;
    optional fn __recv_chk(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        room: size_t,
        flags: c_int
    ) -> ssize_t;
    optional fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        room: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_length: *mut socklen_t
    ) -> ssize_t;
    // send
    certain fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    certain fn writev(fd: c_int, list: *const iovec, length: c_int) -> ssize_t;
    certain fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    certain fn sendto(
        fd: c_int,
        buffer: *const c_void,
        length: size_t,
        flags: c_int,
        to: *const sockaddr,
        to_length: socklen_t
    ) -> ssize_t;
    certain fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    certain fn sendmmsg(fd: c_int, list: *mut mmsghdr, length: c_uint, flags: c_int) -> c_int;
    // transfer
    certain fn sendfile(to: c_int, from: c_int, offset: *mut off_t, length: size_t) -> ssize_t;
    certain fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, length: size_t) -> ssize_t;
    certain fn splice(
        from: c_int,
        from_offset: *mut loff_t,
        to: c_int,
        to_offset: *mut loff_t,
        length: size_t,
        flags: c_uint
    ) -> ssize_t;
    // option
    certain fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t
    ) -> c_int;
    certain fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t
    ) -> c_int;
    // ready
    certain fn poll(list: *mut pollfd, length: nfds_t, timeout: c_int) -> c_int;
    certain fn ppoll(
        list: *mut pollfd,
        length: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    optional fn __poll_chk(
        list: *mut pollfd,
        length: nfds_t,
        timeout: c_int,
        room: size_t
    ) -> c_int;
    optional fn __ppoll_chk(
        list: *mut pollfd,
        length: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t
    ) -> c_int;
    certain fn select(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    certain fn pselect(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    // epoll
    certain fn epoll_create(size: c_int) -> c_int;
    certain fn epoll_create1(flags: c_int) -> c_int;
    certain fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    certain fn epoll_wait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: c_int
    ) -> c_int;
    certain fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: c_int,
        mask: *const sigset_t
    ) -> c_int;
    optional fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    // dup
    certain fn dup(fd: c_int) -> c_int;
    certain fn dup2(old: c_int, new: c_int) -> c_int;
    certain fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    // stdio
    certain fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    certain fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    certain fn opendir(path: *const c_char) -> *mut DIR;
    certain fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    certain fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    certain fn fclose(file: *mut FILE) -> c_int;
    certain fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    optional fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    certain fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    optional fn __vdprintf_chk(
        fd: c_int,
        flag: c_int,
        format: *const c_char,
        list: *mut c_void
    ) -> c_int;
    // second names
    optional fn __read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    optional fn __write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    optional fn __send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    optional fn __connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    optional fn __close(fd: c_int) -> c_int;
    optional fn __poll(list: *mut pollfd, length: nfds_t, timeout: c_int) -> c_int;
    optional fn __select(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    // position
    optional fn preadv2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int
    ) -> ssize_t;
    optional fn preadv64v2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int
    ) -> ssize_t;
    optional fn pwritev2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int
    ) -> ssize_t;
    optional fn pwritev64v2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int
    ) -> ssize_t;
    // aio
    optional fn aio_read(block: *mut aiocb) -> c_int;
    optional fn aio_read64(block: *mut aiocb) -> c_int;
    optional fn aio_write(block: *mut aiocb) -> c_int;
    optional fn aio_write64(block: *mut aiocb) -> c_int;
    optional fn lio_listio(
        mode: c_int,
        list: *const *mut aiocb,
        length: c_int,
        event: *mut sigevent
    ) -> c_int;
    optional fn lio_listio64(
        mode: c_int,
        list: *const *mut aiocb,
        length: c_int,
        event: *mut sigevent
    ) -> c_int;
    // signal
    certain fn sigaction(
        number: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction
    ) -> c_int;
    // process
    certain fn fork() -> c_int;
    certain fn daemon(stay: c_int, keep: c_int) -> c_int;
    certain fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int;
    certain fn posix_spawnp(
        pid: *mut pid_t,
        file: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int;
    certain fn posix_spawn_file_actions_adddup2(
        actions: *mut posix_spawn_file_actions_t,
        old: c_int,
        new: c_int
    ) -> c_int;
    certain fn system(command: *const c_char) -> c_int;
    certain fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE;
    certain fn _exit(status: c_int);
    certain fn execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    certain fn execve(
        path: *const c_char,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int;
    certain fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    certain fn execvpe(
        file: *const c_char,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int;
    certain fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    optional fn execveat(
        dir: c_int,
        path: *const c_char,
        argv: *const *const c_char,
        envp: *const *const c_char,
        flags: c_int
    ) -> c_int;
}

variadic! {
    fn open(path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    fn openat(dir: c_int, path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    fn openat64(dir: c_int, path: *const c_char, flags: c_int; mode: mode_t) -> c_int;
    fn fcntl(fd: c_int, command: c_int; argument: c_long) -> c_int;
    fn fcntl64(fd: c_int, command: c_int; argument: c_long) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong; argument: *mut c_void) -> c_int;
    fn prctl(option: c_int; a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
}

address! {
    fn dprintf;
    fn __dprintf_chk;
    fn syscall;
    fn dlopen;
    fn dlmopen;
}

/// Hands every symbol to `each`.
pub(super) fn each_symbol(each: fn(&[Symbol])) {
    each(&fixed());
    each(&bounded());
    unbounded();
}
