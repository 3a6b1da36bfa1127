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
