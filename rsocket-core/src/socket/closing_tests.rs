//! A connection is closed by one thread while another is inside a call on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::call::Call;
use super::send::Into;
use super::taking::Got;
use super::{attempt, life, ready, send};
use crate::attach::remote;
use crate::bridge::pump_tests::{program, program_born};
use crate::channel::guard::{RecvGuard, SendGuard};
use crate::channel::{handover_state, link};
use crate::conn::slot::flag;
use crate::conn::{fork_group, pending};
use crate::failure::Failure;
use crate::host::events::Events;
use crate::native;
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;

/// Until the closing thread waits for the lock.
fn until_closing(s: &super::Slot) {
    let end = Instant::now() + Duration::from_secs(5);
    while link::has_channel(s) && Instant::now() < end {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn a_channel_is_free_when_nobody_is_inside() {
    for sending in [true, false] {
        let (fd, _tie, id, _port) = program();
        let number = fd.as_raw_fd();
        let s = fork_group::slot(id).unwrap();
        let ends = link::ends(s).unwrap();
        let closed = || {
            (
                handover_state::sender_closed(&ends.outgoing),
                handover_state::receiver_closed(&ends.incoming),
            )
        };
        let sends = sending.then(|| SendGuard::take(s, &ends).unwrap());
        let receives = (!sending).then(|| RecvGuard::take(s, &ends).unwrap());
        if !sending {
            // Else the closing thread would wait for us before it begins.
            s.set_receive_mode(crate::conn::machine::ReceiveMode::Kernel);
        }
        std::thread::scope(|scope| {
            let closer = scope.spawn(move || life::closing(id, number));
            until_closing(s);
            let too_early = closed();
            drop((sends, receives));
            closer.join().unwrap();
            assert_eq!(
                too_early,
                (false, false),
                "the peer may give the channel to another connection"
            );
        });
        assert_eq!(closed(), (true, true));
        // A thread that found the channel before comes too late.
        assert!(SendGuard::take(s, &ends).is_none() && RecvGuard::take(s, &ends).is_none());
    }
}

/// It fails as on a closed descriptor. That its channel is gone is no inconsistency: whatever has
/// the slot, or the number, by now is left alone.
#[test]
fn a_call_that_was_awake_at_the_close_fails() {
    let (fd, _tie, id, _port) = program();
    let number = fd.as_raw_fd();
    let s = fork_group::slot(id).unwrap();
    let mut receiving = CallDeadline::new(s, libc::SO_RCVTIMEO);
    let mut sending = CallDeadline::new(s, libc::SO_SNDTIMEO);
    let mut byte = 0_u8;
    let list = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    let mut tries = || {
        let call = Call { id, s, fd: number, flags: 0 };
        let got = attempt::attempt(&call, &mut Cursor::new(&list), &mut receiving);
        (got, send::attempt(&call, &mut Cursor::new(&list), Into::Stream, &mut sending))
    };
    assert_eq!(tries(), (Ok(Got::Nothing), Ok(())));
    s.set(flag::OVER);
    assert_eq!(
        tries(),
        (Err(Failure::BadDescriptor), Err(Failure::BadDescriptor)),
        "it is being closed"
    );
    s.clear(flag::OVER);
    life::closing(id, number);
    assert_eq!(tries(), (Err(Failure::BadDescriptor), Err(Failure::BadDescriptor)));
    s.generation.fetch_add(1, Ordering::AcqRel);
    s.clear(flag::OVER);
    assert_eq!(
        tries(),
        (Err(Failure::BadDescriptor), Err(Failure::BadDescriptor)),
        "it is another connection's"
    );
    assert!(!s.has(flag::BROKEN) && !link::distrusted());
}

/// A broken connection says so first, as in TCP. Only a program that goes on sending hears of a
/// broken pipe, which is a signal that kills. The channel is closed before the kernel knows
/// anything; it takes one send, as TCP does after a close, but not of an rsocket.
#[test]
fn a_reset_is_said_before_a_broken_pipe() {
    let (reset, pipe) = (Err(Failure::Reset), Err(Failure::Ended));
    for (kind, broken, said) in [
        (flag::RSOCKET, true, [reset, pipe]),
        (flag::RSOCKET, false, [pipe, pipe]),
        (0, true, [reset, Ok(1)]),
        (0, false, [Ok(1), Ok(1)]),
    ] {
        let (fd, _tie, id, port) = program_born(kind);
        let s = fork_group::slot(id).unwrap();
        let mut byte = 0_u8;
        let list = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        let send = || send::send(id, s, fd.as_raw_fd(), &list, libc::MSG_DONTWAIT);
        assert_eq!(send(), Ok(1));
        if broken {
            pending::note_reset(s, Failure::Reset);
        }
        port.close();
        assert_eq!([send(), send()], said);
    }
}

/// One between hosts whose device is gone after bytes have travelled; the kernel, whose TCP is
/// well, knows nothing.
#[test]
fn a_loss_is_said_before_a_broken_pipe() {
    let (fd, _tie, id, _port) = program();
    let s = fork_group::slot(id).unwrap();
    s.set(flag::TCP_ANCHORED);
    let mut byte = 0_u8;
    let list = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    let send = || send::send(id, s, fd.as_raw_fd(), &list, libc::MSG_DONTWAIT);
    assert_eq!(send(), Ok(1));
    remote::lost(s, true);
    assert_eq!((send(), send()), (Err(Failure::Reset), Err(Failure::Ended)));
    remote::lost(s, true);
    assert_eq!(native::rdma::error(id, fd.as_raw_fd()), Some(libc::ECONNRESET));
    assert_eq!(send(), Err(Failure::Ended));
}

/// What is sent from then on goes to TCP, which may answer by a reset before any look has heard of
/// the end.
#[test]
fn a_look_asks_the_kernel_as_soon_as_the_peer_has_closed() {
    let (fd, _tie, id, port) = program();
    let s = fork_group::slot(id).unwrap();
    let asked = || ready::look(id, s, fd.as_raw_fd()).ask;
    s.clear(flag::BRIDGED);
    assert!(asked().is_empty());
    port.close();
    assert!(asked().contains(Events::IN | Events::OUT));
}
