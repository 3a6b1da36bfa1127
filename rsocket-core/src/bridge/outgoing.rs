//! What the program has put into its channel for a bridge to take out.
//!
//! Must not know who takes it. Entry point: [`Outgoing`].

/// What the program has put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// So many bytes of one message, at least one.
    Bytes(u32),
    /// Nothing now.
    Nothing,
    /// Nothing any more: the program shut its sending side.
    End,
}
