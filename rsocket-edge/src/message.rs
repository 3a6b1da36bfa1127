//! Scatter lists, and the header of `sendmsg` and `recvmsg` that has one.
//!
//! Made once, where the call comes in; making one is the promise. Must not know what a call does.
//! Entry points: [`List`], [`Message`]; the
//! control data are [`crate::control`]'s, lists of messages [`crate::messages`]'.

use core::ffi::c_int;

use libc::{iovec, msghdr};
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Bytes, Place};
use rsocket_host::probe::present;

/// The most elements that the kernel takes in one scatter list (`UIO_MAXIOV`).
const MOST_IOVECS: usize = 1024;

/// A scatter list of the program's, as it was given.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    at: *const iovec,
    len: usize,
    time: core::marker::PhantomData<&'a [iovec]>,
}

impl<'a> List<'a> {
    /// # Safety
    /// `at` points to `len` elements, as `readv(2)` asks of its caller, for the time of the call.
    #[must_use]
    pub const unsafe fn new(at: *const iovec, len: usize) -> Self {
        Self { at, len, time: core::marker::PhantomData }
    }

    /// As [`Self::new`], by a number that C counts with. A negative one is more than can be.
    ///
    /// # Safety
    /// As there, where the number is not negative.
    #[must_use]
    pub unsafe fn counted(at: *const iovec, len: c_int) -> Self {
        // SAFETY: the caller's promise. Of a list that is too long nothing is read.
        unsafe { Self::new(at, usize::try_from(len).unwrap_or(usize::MAX)) }
    }

    /// The list, if the kernel would take it. `None` means: let the kernel say what is wrong with
    /// it, which it does before it moves a byte.
    #[must_use]
    pub fn taken(self) -> Option<&'a [iovec]> {
        if self.len == 0 {
            return Some(&[]);
        }
        if nowhere(self.at) || self.len > MOST_IOVECS || !present(self.at, self.len) {
            return None;
        }
        // SAFETY: not null, and new() was promised the length. The elements are plain integers and
        // pointers.
        let all = unsafe { core::slice::from_raw_parts(self.at, self.len) };
        let mut total = 0_usize;
        for one in all {
            total = total.checked_add(one.iov_len).filter(|t| isize::try_from(*t).is_ok())?;
        }
        Some(all)
    }

    /// The list, or what is wrong with it; `too_long` is what the call says to one that has too
    /// many elements.
    ///
    /// # Errors
    /// That, `EFAULT`, or `EINVAL` for too many bytes.
    pub fn checked(self, too_long: Failure) -> Result<&'a [iovec], Failure> {
        match self.len {
            1.. if self.len > MOST_IOVECS => Err(too_long),
            1.. if nowhere(self.at) => Err(Failure::BadAddress),
            _ => self.taken().ok_or(Failure::Invalid),
        }
    }
}

/// Whether a pointer is one that no program can have memory at: the kernel says EFAULT, we let it.
#[inline]
pub fn nowhere<T>(p: *const T) -> bool {
    // vm.mmap_min_addr, as every distribution sets it.
    (p as usize) < 65536
}

/// The header.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a>(Place<'a, msghdr>);

impl<'a> Message<'a> {
    /// # Safety
    /// `at` is null or a header as `sendmsg(2)` and `recvmsg(2)` ask for, with all that it points
    /// to, for the time of the call.
    #[must_use]
    pub const unsafe fn new(at: *mut msghdr) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Place::new(at) })
    }

    /// Where it is.
    #[inline]
    #[must_use]
    pub const fn as_ptr(self) -> *mut msghdr {
        self.0.as_ptr()
    }

    /// Whether it is where no program can have memory.
    #[inline]
    #[must_use]
    pub fn is_nowhere(self) -> bool {
        nowhere(self.as_ptr())
    }

    /// Whether it can be read.
    #[inline]
    #[must_use]
    pub fn is_present(self) -> bool {
        present(self.as_ptr(), 1)
    }

    #[inline]
    pub(crate) fn header(self) -> Option<msghdr> {
        if self.is_nowhere() { None } else { self.0.get() }
    }

    /// Its scatter list.
    ///
    /// # Errors
    /// `EFAULT`, `EMSGSIZE`, `EINVAL`.
    pub fn list(self) -> Result<&'a [iovec], Failure> {
        self.as_given().ok_or(Failure::BadAddress)?.checked(Failure::MessageTooLong)
    }

    /// Its scatter list, as [`List::taken`].
    #[inline]
    #[must_use]
    pub fn pieces(self) -> Option<&'a [iovec]> {
        self.as_given()?.taken()
    }

    /// Why it has no [`Self::pieces`].
    #[must_use]
    pub fn why_no_pieces(self) -> Failure {
        let Some(header) = self.header() else { return Failure::BadAddress };
        let there = present(header.msg_iov, header.msg_iovlen.min(MOST_IOVECS));
        if there { Failure::MessageTooLong } else { Failure::BadAddress }
    }

    #[inline]
    fn as_given(self) -> Option<List<'a>> {
        let header = self.header()?;
        // SAFETY: a list of that length, by the promise of new().
        Some(unsafe { List::new(header.msg_iov, header.msg_iovlen) })
    }

    /// Whether it has control data, or room for them.
    #[inline]
    #[must_use]
    pub fn has_control(self) -> bool {
        self.header().is_some_and(|header| header.msg_controllen != 0)
    }

    /// The name that it is sent to.
    #[must_use]
    pub fn name(self) -> Option<Bytes<'a>> {
        let header = self.header()?;
        // SAFETY: null or a name of that length, by the promise of new().
        Some(unsafe { Bytes::new(header.msg_name, header.msg_namelen) })
    }

    /// Whether memory is there for the name that it is sent to, if it has one.
    #[must_use]
    pub fn has_name_or_none(self) -> bool {
        !self.name().is_some_and(Bytes::are_nowhere)
    }

    /// Where the name of its sender goes.
    #[must_use]
    pub fn sender(self) -> Option<Answer<'a>> {
        let (header, at) = (self.header()?, self.as_ptr());
        // SAFETY: the header is there, and the name has room for the length that stands in it, by
        // the promise of new().
        Some(unsafe { Answer::new(header.msg_name, &raw mut (*at).msg_namelen) })
    }

    /// What a received one has beside bytes and name: these flags, and no control data. Gives how
    /// many bytes of control data there was room for.
    pub fn finish(self, flags: i32) -> usize {
        let Some(header) = self.header() else { return 0 };
        self.say(0, flags);
        header.msg_controllen
    }

    /// As [`Self::finish`], for bytes that have no sender to be named.
    pub fn finish_nameless(self, flags: i32) -> usize {
        if let Some(sender) = self.sender().filter(|sender| !sender.is_null()) {
            sender.no_name();
        }
        self.finish(flags)
    }

    /// How much control data it has now, and these flags.
    pub(crate) fn say(self, control: usize, flags: i32) {
        if !self.is_nowhere() {
            let at = self.as_ptr();
            // SAFETY: the header is there, by the promise of new().
            unsafe {
                (&raw mut (*at).msg_controllen).write_unaligned(control as _);
                (&raw mut (*at).msg_flags).write_unaligned(flags);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_lists_that_the_kernel_refuses_are_left_to_it() {
        let v = iovec { iov_base: core::ptr::null_mut(), iov_len: usize::MAX / 2 };
        let list = [v, v, v];
        // SAFETY: the pointers are to `list`, or null.
        let of = |at: Option<&iovec>, len| unsafe {
            List::new(at.map_or(core::ptr::null(), core::ptr::from_ref), len)
        };
        assert!(of(list.first(), 3).taken().is_none());
        assert!(of(list.first(), 1025).taken().is_none());
        assert!(of(None, 1).taken().is_none());
        assert!(of(None, 0).taken().is_some());
        assert_eq!(of(list.first(), 1).taken().map(crate::edge::length), Some(usize::MAX / 2));
        let errors = [(Some(&v), 1025), (None, 1), (list.first(), 3)];
        let said = errors.map(|(at, len)| of(at, len).checked(Failure::MessageTooLong).err());
        let wanted = [Failure::MessageTooLong, Failure::BadAddress, Failure::Invalid];
        assert_eq!(said, wanted.map(Some));
    }
}
