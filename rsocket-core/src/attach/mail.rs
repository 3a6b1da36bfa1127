//! Messages of the other end's while two ends meet, with the descriptors that come along. What is
//! not taken out is closed.
//!
//! Must not know what a message says. Entry point: [`open_mail`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::OwnedFd;

use super::retry::later;
use crate::conn::slot::Slot;
use crate::reason::Reason;
use crate::seqpacket::{Channel, MAX_FDS, ReceiveError};
use crate::sys;

/// One message.
pub(crate) struct Mail {
    bytes: [u8; 256],
    len: usize,
    fds: [Option<OwnedFd>; MAX_FDS],
}

impl Mail {
    pub(crate) fn text(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// A descriptor that came with it.
    pub(crate) fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.fds.get_mut(index)?.take()
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        self.fds.iter_mut().filter_map(Option::take).for_each(sys::discard);
    }
}

/// The message that is awaited, if it has come; else the next look is put off.
pub(crate) fn open_mail(s: &Slot, channel: &Channel) -> Result<Option<Mail>, Reason> {
    let mut mail = Mail { bytes: [0; 256], len: 0, fds: Default::default() };
    match channel.receive(&mut mail.bytes, &mut mail.fds) {
        Ok(got) => {
            mail.len = got.len;
            Ok(Some(mail))
        }
        Err(ReceiveError::NothingYet) => {
            later(s);
            Ok(None)
        }
        Err(ReceiveError::Closed) => Err(Reason::OfferLapsed),
        Err(_) => Err(Reason::LayoutMismatch),
    }
}
