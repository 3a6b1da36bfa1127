//! Text of limited length on the stack, for messages and names: no allocation.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::fmt::{self, Write};

/// Text of limited length, on the stack. What does not fit is left out.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
    /// Something did not fit.
    pub cut: bool,
}

impl<const N: usize> Text<N> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; N], len: 0, cut: false }
    }

    /// Adds as much as there is room for.
    pub fn push(&mut self, more: &[u8]) {
        let room = self.bytes.get_mut(self.len..).unwrap_or(&mut []);
        let n = more.len().min(room.len());
        for (to, from) in room.iter_mut().zip(more) {
            *to = *from;
        }
        self.len += n;
        self.cut |= n < more.len();
    }

    /// What there is.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Puts something in the place of as many bytes at the end.
    pub(crate) fn replace_end(&mut self, end: &[u8]) {
        self.len = self.len.saturating_sub(end.len());
        self.push(end);
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_not_overrun() {
        let mut t = Text::<8>::new();
        assert!(write!(t, "{}", 1234).is_ok() && !t.cut);
        assert!(write!(t, "{}", 567_890).is_ok() && t.cut);
        assert_eq!(t.as_bytes(), b"12345678");
        t.replace_end(b"..\n");
        assert_eq!(t.as_bytes(), b"12345..\n");
    }
}
