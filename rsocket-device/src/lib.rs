//! The only place that knows queue pairs, completions and memory that a peer can write.
//!
//! A device moves bytes and words between two connected ends; it has never heard of sockets,
//! streams or options. Entry point: [`QueuePair`]. On the data path a device is a type parameter or
//! an enum, never a `dyn`. [`sim`] is the device that tests run on, rsocket-shm the one between
//! processes of a host, rsocket-rdma the one between hosts.
//!
//! # The contract
//!
//! The numbers are cited by the tests in [`conformance`], which are generic over the device.
//!
//! 1. **Memory.** [`QueuePair::register`] gives memory that is zero and keeps its address for the
//!    life of the pair. It is named by an [`Sge`]; the peer learns the name by other means. Only
//!    its owner ([`QueuePair::store`]) and the peer's writes change it. Memory that is
//!    [exposed](QueuePair::expose) is the program's instead, and changes as the two programs like.
//! 2. **Reading it** is one copy by [`QueuePair::load`]. What was copied is checked and used; it is
//!    not read again, since the peer may have changed it.
//! 3. **Posts are whole.** A post is accepted and carried out wholly, or refused and without any
//!    effect. Once accepted, the caller's bytes are the device's: they were copied.
//! 4. **Order.** Writes and words of one end take effect at the other in the order in which they
//!    were posted. Only bytes may be in place before their turn (rule 6). When a word is reported,
//!    the bytes of its own write and of all earlier ones can be loaded.
//! 5. **Bounds.** A write outside memory that the peer registered, or with a wrong key, changes
//!    nothing at the peer and ends the pair. A write of no bytes names no memory: address and key
//!    mean nothing.
//! 6. **Receives.** A word uses up one receive that the other end posted. Without one it waits for
//!    as long as it takes. Every later word, and every report of a later post, waits with it.
//!    Nothing is lost and nothing fails. The bytes of later writes may be in place already. The
//!    reason is a device on which a post is a copy into the peer's memory. There no other place
//!    could hold what was accepted, whatever its length (rules 3, 8 and 13). A write without a word
//!    uses none. iWARP is the exception: its transport has no way to say "not yet", so that there a
//!    word without a receive ends the pair. Spare receives are what helps.
//! 7. **Completions.** Each accepted post is reported once, in order, at the end that posted it: as
//!    [`Completion::Sent`] or, when the pair ended first, [`Completion::Failed`]. Each delivered
//!    word is reported once at the other, as [`Completion::Word`].
//! 8. **Room.** At least [`QueuePair::room`] more posts are accepted now, unless the pair ends or
//!    their bytes find no place ([`QueuePair::staging_room`]). Both come back with completions that
//!    were polled. A refusal for want of room is [`PostError::Full`] and means nothing else.
//! 9. **Polling** never blocks.
//! 10. **Waking.** After [`QueuePair::arm`], the event comes when there is something to poll that
//!     was not polled before arming, and when the pair ends. So: arm, poll once more, then sleep.
//!     An event may come without a cause; none is lost. One event uses up one arming.
//! 11. **The end.** The pair ends when either end closes, dies or breaks rule 5. What had arrived
//!     before can still be polled and loaded; then the end is reported once, as
//!     [`Completion::Ended`], last of all. From the end on every post is refused with
//!     [`PostError::Ended`]. A device that cannot see a death is told of it by the caller that
//!     watches the process.
//! 12. **Accepted bytes.** When [`QueuePair::SURVIVES`] is true, what was accepted reaches the
//!     other end even if the poster dies. Otherwise it may be lost, from some post on: never a post
//!     in the middle.
//! 13. **No surprises.** After set-up no call blocks, allocates or panics, whatever the peer does.

// A panic in here kills the program that uses the library.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::c_int;

use rsocket_host::copy::Bytes;
use rsocket_wire::proto::control::Mode;
use rsocket_wire::sge::Sge;
use rsocket_wire::word::Word;

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// for tests
pub mod conformance;
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// for tests
pub mod sim;

/// One end of a connected pair. The rules are in the [module's documentation](self).
pub trait QueuePair {
    /// Whether accepted posts outlive their poster (rule 12).
    const SURVIVES: bool;

    /// How words travel here. Both ends say the same.
    fn mode(&self) -> Mode;

    /// Memory that the peer may write (rule 1).
    ///
    /// # Errors
    /// There is none left.
    fn register(&mut self, len: u32) -> Result<Sge, MemoryError>;

    /// Copies our own registered memory out, once (rule 2).
    ///
    /// # Errors
    /// The range is not registered.
    fn load(&self, addr: u64, into: &mut [u8]) -> Result<(), MemoryError>;

    /// Changes our own registered memory.
    ///
    /// # Errors
    /// The range is not registered.
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError>;

    /// Lets the peer write to `len` bytes of the program's own memory at `at`, by a name of its
    /// own, until [`withdraw`](Self::withdraw). Blocks for as long as pinning takes.
    ///
    /// # Errors
    /// [`MemoryError::Range`]: it is not the program's, or cannot be written.
    /// [`MemoryError::Exhausted`]: no more can be pinned, or the device has no such thing.
    ///
    /// # Safety
    /// The memory stays mapped until `withdraw`, or until the pair is dropped; it may change at any
    /// time until then.
    unsafe fn expose(&mut self, at: *mut u8, len: u32) -> Result<Sge, MemoryError> {
        let _ = (at, len);
        Err(MemoryError::Exhausted)
    }

    /// From now on nothing is written by this name any more, which [`expose`](Self::expose) gave. A
    /// write of the peer's that is under way breaks rule 5.
    fn withdraw(&mut self, name: Sge) {
        let _ = name;
    }

    /// Posts `count` more receives (rule 6).
    ///
    /// # Errors
    /// There are already as many as the device can hold, or the pair has ended.
    fn post_receives(&mut self, count: u16) -> Result<(), PostError>;

    /// Posts that are accepted now (rule 8); 0 once the pair has ended.
    fn room(&self) -> u16;

    /// Posts an RDMA write to the peer's memory, with the word as its immediate data if there is
    /// one. The length of `target` is not used, the length of `bytes` is. In [`Mode::Message`]
    /// there is no immediate data: a word is refused as [`PostError::Unsupported`].
    ///
    /// # Errors
    /// It was refused (rule 3).
    fn post_write(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError>;

    /// Posts a 4-byte SEND of the word, in this host's byte order.
    ///
    /// # Errors
    /// It was refused (rule 3).
    fn post_send(&mut self, word: Word, token: u64) -> Result<(), PostError>;

    /// Takes completions, oldest first (rule 7); how many.
    fn poll(&mut self, into: &mut [Completion]) -> usize;

    /// Asks for one event (rule 10).
    fn arm(&mut self);

    /// Whether an event came since the last call. On a device with an [`event_fd`](Self::event_fd)
    /// this also makes it unreadable again.
    fn take_event(&mut self) -> bool;

    /// The descriptor that becomes readable with the event; `None` where there is nothing to sleep
    /// on.
    fn event_fd(&self) -> Option<c_int>;

    /// Ends the pair (rule 11), after all that was accepted before has been carried out.
    fn close(&mut self);

    /// Posts a message in either [`Mode`] (`wire-protocol §4.2`): all of it, or nothing. The
    /// completion of the whole message carries `token`; in message mode that of its first half
    /// carries [`HALF`].
    ///
    /// # Errors
    /// It was refused.
    fn post_message(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        if self.mode() == Mode::Immediate {
            return self.post_write(bytes, target, Some(word), token);
        }
        if !bytes.is_empty() {
            // With room for one, the half would be accepted and the whole refused.
            if self.room() == 1 {
                return Err(PostError::Full);
            }
            self.post_write(bytes, target, None, HALF)?;
        }
        self.post_send(word, token)
    }

    /// As [`post_message`](Self::post_message), or without a word as
    /// [`post_write`](Self::post_write), with as many bytes as `target` has. `fill` writes all of
    /// them, right into where the device sends them from, so no copy of them need exist. `fill` is
    /// not called when the message is refused, except by devices that have no such place.
    ///
    /// # Errors
    /// It was refused.
    fn post_filled(
        &mut self,
        target: Sge,
        word: Option<Word>,
        token: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), PostError>
    where
        Self: Sized,
    {
        let post = |pair: &mut Self, bytes: &[u8]| match word {
            Some(word) => pair.post_message(bytes, target, word, token),
            None => pair.post_write(bytes, target, None, token),
        };
        let mut small = [0; 4096];
        if let Some(bytes) = small.get_mut(..target.len as usize) {
            fill(bytes);
            return post(self, bytes);
        }
        let mut bytes = vec![0; target.len as usize];
        fill(&mut bytes);
        post(self, &bytes)
    }

    /// How many bytes [`post_at_once`](Self::post_at_once) takes.
    fn most_at_once(&self) -> u32 {
        64
    }

    /// As [`post_message`](Self::post_message), with 1 to [`most_at_once`](Self::most_at_once)
    /// bytes, which need not be kept when it returns.
    ///
    /// # Errors
    /// It was refused.
    ///
    /// # Safety
    /// The bytes are readable.
    unsafe fn post_at_once(
        &mut self,
        from: *const [u8],
        target: Sge,
        word: Word,
        token: u64,
    ) -> Result<(), PostError> {
        let mut bytes = [0; 64];
        let bytes = bytes.get_mut(..from.len()).ok_or(PostError::Unsupported)?;
        // SAFETY: the caller's promise, and as many bytes of our own.
        unsafe { core::ptr::copy_nonoverlapping(from.cast(), bytes.as_mut_ptr(), bytes.len()) };
        self.post_message(bytes, target, word, token)
    }

    /// Hands `sink` our own registered memory, `len` bytes from `addr` on, in pieces, in order. The
    /// peer may be writing there: copy, then check (rule 2).
    ///
    /// # Errors
    /// The range is not registered.
    fn each_chunk(
        &self,
        addr: u64,
        len: u32,
        sink: &mut dyn FnMut(Bytes<'_>),
    ) -> Result<(), MemoryError> {
        let mut piece = [0; 4096];
        let mut done = 0;
        while done < u64::from(len) {
            let count = (u64::from(len) - done).min(4096) as usize;
            let Some(bytes) = piece.get_mut(..count) else { return Err(MemoryError::Range) };
            self.load(addr.checked_add(done).ok_or(MemoryError::Range)?, bytes)?;
            sink(Bytes::from(&*bytes));
            done += count as u64;
        }
        Ok(())
    }

    /// The most bytes that one post may have now (rule 8). A device that keeps the bytes of posts
    /// in memory of its own until they are sent has such a limit. A word takes none of that memory.
    /// 0 is only ever so until completions are polled.
    fn staging_room(&self) -> u32 {
        u32::MAX
    }
}

/// The token of a write whose word follows in a SEND of its own.
pub const HALF: u64 = u64::MAX;

/// What became of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// A place in an array for completions that holds none.
    #[default]
    None,
    /// A post of ours was carried out.
    Sent {
        /// What it was posted with.
        token: u64,
    },
    /// A post of ours was not carried out, or it is not known whether it was.
    Failed {
        /// What it was posted with.
        token: u64,
    },
    /// A word of the peer arrived.
    Word(Word),
    /// The pair has ended. Nothing comes after this.
    Ended,
}

/// Why a post is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No room; poll completions first.
    Full,
    /// The pair has ended.
    Ended,
    /// This device has no such post.
    Unsupported,
}

/// What is wrong with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// There is none left.
    Exhausted,
    /// No registered memory lies there.
    Range,
}
