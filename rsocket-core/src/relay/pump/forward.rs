//! What a pump carries from the window to the device, and how it says that nothing follows.
//!
//! Must not know what comes back. Entry point: [`Pump::forward`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::Pump;
use crate::channel::marks;
use crate::device::shm::copy;
use crate::device::{PostError, QueuePair};
use crate::proto::ramp::Ramp;
use crate::proto::state::Event;
use crate::relay::outgoing::Outgoing;
use crate::relay::port::Broken;

/// Bytes of messages of the program's that go to the device as one, at most.
const GATHERED: u32 = 65_536;

impl<Q: QueuePair> Pump<Q> {
    /// From the window to the device.
    pub(super) fn forward(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        let mut ramp = Ramp::FLAT;
        loop {
            // Before the lane: what was written before the program closed is in the lane by then.
            let closed = self.gone || marks::sender_closed(&self.port.ends().incoming);
            let next = self.port.outgoing()?;
            if !self.before_data(&mut moved)? {
                break;
            }
            match next {
                Outgoing::Bytes { at, len } => {
                    if !self.stream.state().writable() {
                        // Nobody takes it any more.
                        self.port.consumed(len)?;
                        moved = true;
                        continue;
                    }
                    // Short messages that had to wait go together: the peer sees a stream.
                    let len = len + self.port.behind(GATHERED.saturating_sub(len));
                    let most = len.min(self.pair.staging_room());
                    if most == 0 || !self.cut_told() {
                        break;
                    }
                    let Some(post) = self.stream.next_data(&mut ramp, most) else { break };
                    let n = post.target.len;
                    // SAFETY: the port promises `len` readable bytes in a row at `at`, and n is at
                    // most len. The window's other side may write there meanwhile: it only spoils
                    // its own stream.
                    let fill = |to: &mut [u8]| unsafe {
                        copy::near(to.as_mut_ptr(), at, to.len().min(n as usize));
                    };
                    match self.pair.post_filled(post.target, Some(post.word), post.token, fill) {
                        Ok(()) => {
                            self.outstanding += 1;
                            self.carried.0 += u64::from(n);
                        }
                        // Its end will be polled.
                        Err(PostError::Ended) => {}
                        Err(PostError::Full | PostError::Unsupported) => return Err(Broken),
                    }
                    self.port.consumed(n)?;
                    moved = true;
                }
                Outgoing::End => {
                    moved |= self.shut(closed);
                    break;
                }
                Outgoing::Nothing => {
                    // A direction that went back to TCP ends there, and says nothing here.
                    let closed = self.gone || closed && !self.port.goes_on_under();
                    if closed || self.went_back() && self.takes_nothing() {
                        moved |= self.shut(closed);
                    }
                    break;
                }
            }
        }
        Ok(moved)
    }

    /// The program sends no more, or has closed.
    fn shut(&mut self, closed: bool) -> bool {
        let before = self.stream.state();
        self.closing |= closed;
        let both = closed || self.takes_nothing();
        self.stream.on_event(if both { Event::ShutBoth } else { Event::ShutWrite });
        before != self.stream.state()
    }

    /// Whether the program has closed, or has shut both directions.
    fn takes_nothing(&self) -> bool {
        marks::receiver_closed(&self.port.ends().outgoing)
    }
}
