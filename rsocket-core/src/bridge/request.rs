//! What one of ours asks of a peer on another host over RDMA, and what it is answered. Both stand
//! in the private data of a connection (`wire-protocol §2.2`). Also how many ask at a time.
//!
//! Must not know what is asked for. Entry points: [`Request`], [`answer`], [`elsewhere`], [`Open`].

use core::sync::atomic::{AtomicU32, Ordering};

use crate::attach::fingerprint::Proof;
use crate::sys::settle::Settle;
use crate::wire::private_data::PrivateData;

/// What follows the protocol's own private data when one of ours asks.
const ASKS: [u8; 2] = *b"rA";

/// When one of ours answers.
const ANSWERS: [u8; 2] = *b"rB";

/// In a refusal: ask at this port.
const ASK_THERE: [u8; 2] = *b"rC";

/// Bytes of ours behind the protocol's.
pub const EXTRA: usize = 16;

/// What one of ours asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The TCP ports of the end that asks, and of the end that is asked.
    pub ports: [u16; 2],
    /// That it is at the other end.
    pub proof: Proof,
}

impl Request {
    /// As private data.
    #[must_use]
    pub fn to_bytes(&self, own: &PrivateData) -> [u8; PrivateData::SIZE + EXTRA] {
        let [from, to] = self.ports.map(u16::to_be_bytes);
        joined(own, &[&ASKS, &from, &to, &self.proof.seen, &self.proof.digest])
    }

    /// Reads it; `None` when this is no request of ours.
    #[must_use]
    pub fn parse(private: &[u8]) -> Option<Self> {
        let extra: &[u8; EXTRA] = private.get(PrivateData::SIZE..)?.first_chunk()?;
        let [m0, m1, f0, f1, t0, t1, a, b, digest @ ..] = *extra;
        ([m0, m1] == ASKS).then_some(Self {
            ports: [u16::from_be_bytes([f0, f1]), u16::from_be_bytes([t0, t1])],
            proof: Proof { seen: [a, b], digest },
        })
    }
}

/// The answer as private data.
#[must_use]
pub fn answer(own: &PrivateData, proof: &Proof) -> [u8; PrivateData::SIZE + EXTRA] {
    joined(own, &[&ANSWERS, &[0; 4], &proof.seen, &proof.digest])
}

/// Whether the answer is the one that only the other end can give.
#[must_use]
pub fn is_answer(private: &[u8], expected: &Proof) -> bool {
    let extra = private.get(PrivateData::SIZE..).and_then(|p| p.first_chunk::<EXTRA>());
    extra.is_some_and(|[m0, m1, _, _, _, _, a, b, digest @ ..]| {
        [*m0, *m1] == ANSWERS && [*a, *b] == expected.seen && *digest == expected.digest
    })
}

pub(super) fn joined(own: &PrivateData, parts: &[&[u8]]) -> [u8; PrivateData::SIZE + EXTRA] {
    let mut bytes = [0; PrivateData::SIZE + EXTRA];
    let own = own.to_bytes();
    for (to, from) in bytes.iter_mut().zip(own.iter().chain(parts.iter().copied().flatten())) {
        *to = *from;
    }
    bytes
}

/// A refusal that says where to ask.
#[must_use]
pub fn elsewhere(port: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (ASK_THERE, port.to_be_bytes());
    [a, b, c, d]
}

/// Where a refusal says to ask.
#[must_use]
pub fn ask_there(private: &[u8]) -> Option<u16> {
    let [a, b, c, d] = *private.first_chunk::<4>()?;
    ([a, b] == ASK_THERE).then_some(u16::from_be_bytes([c, d])).filter(|port| *port != 0)
}

/// Peers that a process asks at a time: each costs a queue pair and its memory.
const MOST_OPEN: u32 = 16;

pub(super) static OPEN: AtomicU32 = AtomicU32::new(0);

/// One peer that is being asked.
#[derive(Debug)]
pub struct Open(());

impl Open {
    /// One more, unless there are enough.
    pub(super) fn one() -> Option<Self> {
        // Relaxed: a count that orders nothing.
        if OPEN.fetch_add(1, Ordering::Relaxed) >= MOST_OPEN {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In the child of a fork: what its parent asks is the parent's.
pub fn forked() {
    OPEN.settle(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sge::{Endian, Sge};

    fn own() -> PrivateData {
        let buffer = Sge { addr: 4096, rkey: 2, len: 65536 };
        PrivateData {
            endian: Endian::NATIVE,
            credits: 384,
            iomap: None,
            notes: true,
            table: Sge { addr: 64, rkey: 1, len: 2 },
            buffer,
        }
    }

    #[test]
    fn requests_and_answers_come_back_and_upstream_reads_its_own() {
        let proof = Proof { seen: [128, 17], digest: *b"ABCDEFGH" };
        let request = Request { ports: [40000, 80], proof };
        let bytes = request.to_bytes(&own());
        assert_eq!(bytes.len(), 56, "the most that a request can carry");
        assert_eq!(Request::parse(&bytes), Some(request));
        assert_eq!(PrivateData::parse(&bytes).unwrap(), own());
        assert_eq!(Request::parse(&own().to_bytes()), None);
        let answer = answer(&own(), &proof);
        assert!(is_answer(&answer, &proof));
        assert!(!is_answer(&bytes, &proof) && !is_answer(&own().to_bytes(), &proof));
        assert!(!is_answer(&answer, &Proof { digest: *b"ABCDEFGI", ..proof }));
    }

    #[test]
    fn a_refusal_may_say_where_to_ask() {
        assert_eq!(ask_there(&elsewhere(1234)), Some(1234));
        assert_eq!(ask_there(&elsewhere(0)), None);
        assert_eq!(ask_there(b"rC"), None);
        assert_eq!(ask_there(&[0; 148]), None);
    }
}
