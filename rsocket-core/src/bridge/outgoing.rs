//! What the program has put into its window for a bridge to take out.
//!
//! Must not know who takes it. Entry point: [`Outgoing`].

/// What the program has put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Bytes of one message: `len` at `at`, readable until `Port::consumed` says that they were
    /// taken.
    Bytes {
        /// Where.
        at: *const u8,
        /// How many, at least one.
        len: u32,
    },
    /// Nothing now.
    Nothing,
    /// Nothing any more: the program shut its sending side.
    End,
}
