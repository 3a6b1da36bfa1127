//! What is said of a setting that means nothing.
//!
//! Must not know what would mean something. Entry point: [`Complaints`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::fmt;

use super::FIELDS;

/// A file or a variable whose content means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Its name, without the directory.
    pub file: &'static str,
    content: [u8; 40],
    len: u8,
}

impl Complaint {
    /// The first bytes of what was found.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        self.content.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: \"{}\" means nothing here; the default is used",
            self.file,
            self.content().escape_ascii()
        )
    }
}

/// All that [`Config::load`] complains about, each file and variable at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaints([Option<Complaint>; 2 * FIELDS.len() + 6]);

impl Complaints {
    pub(super) const NONE: Self = Self([None; 2 * FIELDS.len() + 6]);

    pub(super) fn add(&mut self, file: &'static str, content: &[u8]) {
        let mut complaint = Complaint { file, content: [0; 40], len: 0 };
        for (to, from) in complaint.content.iter_mut().zip(content.trim_ascii()) {
            *to = *from;
            complaint.len += 1;
        }
        if let Some(slot) = self.0.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(complaint);
        }
    }

    /// In the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Complaint> {
        self.0.iter().flatten()
    }
}
