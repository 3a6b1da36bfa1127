//! Lists of messages, as `sendmmsg` and `recvmmsg` take them.
//!
//! Made once, where the call comes in; making one is the promise. Must not know which way they go.
//! Entry point: [`Messages`].

use core::ffi::{c_int, c_uint};
use core::mem::offset_of;

use libc::mmsghdr;
use rsocket_host::given::Places;
use rsocket_host::probe::{present, readable};

use crate::message::{Message, nowhere};

/// The list.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a>(Places<'a, mmsghdr>);

impl<'a> Messages<'a> {
    /// # Safety
    /// `at` is null or points to `length` headers as [`Message::new`] asks for each, for the time
    /// of the call.
    #[must_use]
    pub const unsafe fn new(at: *mut mmsghdr, length: c_uint) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Places::new(at, length as usize) })
    }

    /// Whether it is where no program can have memory.
    #[must_use]
    pub fn is_nowhere(self) -> bool {
        nowhere(self.0.as_ptr())
    }

    /// How many there are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The first so many of them.
    #[must_use]
    pub fn first(self, most: usize) -> Self {
        Self(self.0.first(most))
    }

    /// Whether all of it can be read, as the kernel says.
    #[must_use]
    pub fn is_readable(self) -> bool {
        readable(self.0.as_ptr(), self.len() * size_of::<mmsghdr>())
    }

    /// Whether there is one of this number, which can be read.
    #[must_use]
    pub fn is_present(self, i: usize) -> bool {
        self.0.at(i).is_some_and(|at| present(at, 1))
    }

    /// The message of this number.
    #[must_use]
    pub fn get(self, i: usize) -> Option<Message<'a>> {
        const { assert!(offset_of!(mmsghdr, msg_hdr) == 0) };
        // SAFETY: an entry of the list begins with its message, by the promise of new().
        self.0.at(i).map(|at| unsafe { Message::new(at.cast()) })
    }

    /// How many bytes the message of this number has moved.
    #[must_use]
    pub fn moved(self, i: usize) -> usize {
        // SAFETY: as in set_moved().
        let said = |at: *mut mmsghdr| unsafe { (&raw const (*at).msg_len).read_unaligned() };
        self.0.at(i).map_or(0, |at| said(at) as usize)
    }

    /// Says so.
    pub fn set_moved(self, i: usize, bytes: usize) {
        let bytes = c_uint::try_from(bytes).unwrap_or(c_uint::MAX);
        if let Some(at) = self.0.at(i) {
            // SAFETY: an entry of the list, by the promise of new().
            unsafe { (&raw mut (*at).msg_len).write_unaligned(bytes) };
        }
    }

    /// Whether any of them that can be read has control data.
    #[must_use]
    pub fn any_control(self) -> bool {
        let there = (0..self.len()).take_while(|i| self.is_present(*i));
        there.filter_map(|i| self.get(i)).any(Message::has_control)
    }

    /// The bytes that the first `result` messages have moved, or the error that `result` is.
    #[must_use]
    pub fn total(self, result: c_int) -> isize {
        let Ok(n) = usize::try_from(result) else { return -1 };
        (0..n).fold(0, |sum: isize, i| sum.saturating_add_unsigned(self.moved(i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(control: usize, moved: c_uint) -> mmsghdr {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut entry: mmsghdr = unsafe { core::mem::zeroed() };
        entry.msg_hdr.msg_controllen = control as _;
        entry.msg_len = moved;
        entry
    }

    #[test]
    fn a_list_ends_where_it_was_said_to() {
        let mut all = [entry(0, 3), entry(0, 4), entry(9, 5)];
        // SAFETY: a local, of three.
        let list = unsafe { Messages::new(all.as_mut_ptr(), 3) };
        assert!(list.any_control() && !list.first(2).any_control());
        assert!(list.is_present(2) && !list.is_present(3) && list.get(3).is_none());
        assert_eq!([list.total(-1), list.total(0), list.total(2), list.total(7)], [-1, 0, 7, 12]);
        list.set_moved(1, usize::MAX);
        list.set_moved(3, 1);
        assert_eq!(list.moved(1), c_uint::MAX as usize);
    }

    #[test]
    fn null_is_no_list() {
        // SAFETY: null.
        let list = unsafe { Messages::new(core::ptr::null_mut(), 4) };
        assert!(list.is_nowhere() && list.is_empty() && list.get(0).is_none());
    }
}
