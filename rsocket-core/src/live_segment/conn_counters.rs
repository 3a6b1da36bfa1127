//! What a connection has moved, counted where it costs nothing and added to the process's counters
//! when it ends or when they are reported.
//!
//! A count is a plain load and store under the lock that the data path holds anyway. Two threads in
//! TCP calls at the same moment may lose a count, never a byte.

use crate::conn::conn_counters::ConnCounters;
use crate::conn::fork_group;
use crate::conn::slot::Slot;
use crate::live_segment::{self, Record, layout::record};
use crate::stats::{self, Transport};

/// Counts in the connection's record, where others may read it, or, without one, in its slot.
#[inline]
fn add(shown: Option<&Record>, number: usize, without: &ConnCounters, n: usize) {
    match shown {
        Some(r) => {
            r.add(number, n as u64);
            r.add(number + 1, 1);
        }
        None => without.add(n),
    }
}

/// What libc or we received from TCP.
#[inline]
pub fn received_tcp(s: &Slot, n: usize) {
    add(live_segment::record(s), record::TCP_IN, &s.tcp_in, n);
}

/// What libc or we sent into TCP.
#[inline]
pub fn sent_tcp(s: &Slot, n: usize) {
    add(live_segment::record(s), record::TCP_OUT, &s.tcp_out, n);
}

/// What was read out of the channel, by a caller that has looked for the record already.
#[inline]
pub fn received_shm(s: &Slot, shown: Option<&Record>, n: usize) {
    add(shown, record::DEVICE_IN, &s.shm_in, n);
}

/// What was put into the channel; as [`received_shm`].
#[inline]
pub fn sent_shm(s: &Slot, shown: Option<&Record>, n: usize) {
    add(shown, record::DEVICE_OUT, &s.shm_out, n);
}

/// Bytes that went out and came in beyond the channel, as far as they were counted and not added up
/// yet.
pub fn beyond(s: &Slot) -> [u64; 2] {
    let shown = |number| live_segment::record(s).map_or(0, |r| r.count(number));
    [shown(record::DEVICE_OUT) + s.shm_out.now().0, shown(record::DEVICE_IN) + s.shm_in.now().0]
}

/// Adds what a connection moved since the last time to the process's counters.
pub fn flush(s: &Slot) {
    let beyond = if s.has_bridge() { Transport::Rdma } else { Transport::Shm };
    let kept = [
        (Transport::Tcp, record::TCP_IN, s.tcp_in.take(), record::TCP_OUT, s.tcp_out.take()),
        (beyond, record::DEVICE_IN, s.shm_in.take(), record::DEVICE_OUT, s.shm_out.take()),
    ];
    let shown =
        |number| live_segment::record(s).map_or((0, 0), |r| (r.take(number), r.take(number + 1)));
    for (transport, number_in, slot_in, number_out, slot_out) in kept {
        let (shown_in, shown_out) = (shown(number_in), shown(number_out));
        stats::received(transport, slot_in.0 + shown_in.0, slot_in.1 + shown_in.1);
        stats::sent(transport, slot_out.0 + shown_out.0, slot_out.1 + shown_out.1);
    }
}

/// Adds what all connections of this process moved.
pub fn flush_all() {
    fork_group::each_local(|_, s| flush(s));
}
