//! What a bridge knows of mappings: ours at the peer, and the peer's.
//!
//! Must not know how they are told. Entry point: [`Placements`].

use std::collections::VecDeque;

use crate::device::shm::layout::MAPS;
use crate::proto::stream::{Stream, StreamParams};
use crate::wire::iomap::Iomap;
use crate::wire::sge::Sge;

/// A mapping of ours, by its number at the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ours {
    #[default]
    Free,
    /// Registered by that name, mapped at that offset.
    Mapped(Iomap),
    /// Taken back; still registered by that name until the peer answers.
    Leaving(Sge),
    /// Not registered any more; the peer has not answered.
    Gone,
}

/// A mapping of the peer's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Theirs {
    /// Where the peer's device finds it; no bytes for none.
    pub(super) target: Sge,
    /// What the program calls it.
    pub(super) generation: u32,
}

/// What a bridge knows of mappings.
#[derive(Debug)]
pub(super) struct Placements {
    pub(super) ours: Vec<Ours>,
    pub(super) theirs: Vec<Theirs>,
    /// Our iomap table.
    pub(super) table: u64,
    pub(super) generation: u32,
    /// Mappings that the peer was not told of yet.
    pub(super) untold: VecDeque<u16>,
    /// Mappings of which it was not told yet that they are no more.
    pub(super) leaving: VecDeque<u16>,
    /// The peer was told of one, and has not answered. One at a time: the words cost no credit.
    /// Where there is no way to say "not yet" (iWARP) the peer's spare receives must hold all such
    /// words.
    pub(super) asked: bool,
    /// Mappings of the peer's of which it is to be told that they are forgotten; each at most once.
    pub(super) answers: VecDeque<u16>,
}

impl Placements {
    pub(super) fn new(params: &StreamParams, stream: &Stream) -> Self {
        let theirs = usize::from(params.iomaps).min(MAPS);
        let ours = usize::from(stream.peer_iomaps()).min(MAPS);
        Self {
            ours: vec![Ours::Free; ours],
            theirs: vec![Theirs::default(); theirs],
            table: params.table.addr + u64::from(params.table.len) * Sge::SIZE as u64,
            generation: 0,
            untold: VecDeque::new(),
            leaving: VecDeque::new(),
            asked: false,
            answers: VecDeque::new(),
        }
    }

    /// Whether there may be anything for `Pump::unmappings`.
    #[inline]
    pub(super) fn owes_control(&self) -> bool {
        !self.leaving.is_empty() || !self.answers.is_empty()
    }
}
