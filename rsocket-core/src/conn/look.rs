//! What a look at a socket says.
//!
//! Must not know who looks. Entry point: [`Look`].

use crate::host::events::Events;

/// What is ready, and what only the kernel can say.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Ready now.
    pub ready: Events,
    /// To be asked of the kernel about the TCP socket; `RDHUP` always beside it. With `RDHUP` it
    /// has something to say, and is asked whatever is ready.
    pub ask: Events,
}

impl Default for Look {
    /// Nothing.
    fn default() -> Self {
        Self { ready: Events::empty(), ask: Events::empty() }
    }
}

impl Look {
    /// With what another look says.
    pub fn add(&mut self, other: Self) {
        self.ready |= other.ready;
        self.ask |= other.ask;
    }
}
