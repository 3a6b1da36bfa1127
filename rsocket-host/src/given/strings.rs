//! C strings: one, and lists of them.
//!
//! Must not know what they say. Entry points: [`string`], [`Strings`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::{CStr, c_char};
use core::marker::PhantomData;

use crate::probe::{present, string_is_present};

/// A list of C strings that ends with a null pointer, as an environment.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a>(*const *const c_char, PhantomData<&'a CStr>);

impl<'a> Strings<'a> {
    /// # Safety
    /// `list` is null or a list of C strings that ends with a null pointer; both last as long as
    /// the call.
    #[must_use]
    pub const unsafe fn new(list: *const *const c_char) -> Self {
        Self(list, PhantomData)
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: an element of the list, by the promise of new(): behind the last string stands
        // the null pointer, beyond which nothing goes.
        let (string, next) = unsafe { (*self.0, self.0.add(1)) };
        if string.is_null() {
            return None;
        }
        self.0 = next;
        // SAFETY: a string of the list, by the promise of new().
        Some(unsafe { CStr::from_ptr(string) })
    }
}

/// A C string, if memory is there.
///
/// # Safety
/// What `at` points to, if anything, stays as it is for the time of the call.
#[must_use]
pub unsafe fn string<'a>(at: *const c_char) -> Option<&'a CStr> {
    // SAFETY: memory is there up to a byte of zero. It stays, by the caller's promise.
    string_is_present(at).then(|| unsafe { CStr::from_ptr(at) })
}

impl Strings<'_> {
    /// Whether memory is there for the list and for its strings, up to the null pointer.
    #[must_use]
    pub fn are_there(self) -> bool {
        let mut at = self.0;
        while !at.is_null() {
            if !present(at, 1) {
                return false;
            }
            // SAFETY: memory is there, and holds a pointer by the promise of new(): nothing goes
            // beyond the null pointer.
            let (string, next) = unsafe { (*at, at.add(1)) };
            if string.is_null() {
                break;
            }
            if !string_is_present(string) {
                return false;
            }
            at = next;
        }
        true
    }

    /// To be passed on.
    #[must_use]
    pub const fn as_ptr(self) -> *const *const c_char {
        self.0
    }

    /// Where the null pointer stands that ends the list.
    #[must_use]
    pub const fn end(self) -> *const *const c_char {
        let mut at = self.0;
        // SAFETY: null, or a list by the promise of new(): nothing goes beyond its null pointer. No
        // string is looked at.
        while !at.is_null() && unsafe { !(*at).is_null() } {
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_up_to_the_null_pointer() {
        let list = [c"A=1".as_ptr(), c"B=2".as_ptr(), core::ptr::null()];
        // SAFETY: such a list.
        let strings = unsafe { Strings::new(list.as_ptr()) };
        assert_eq!(strings.end(), &raw const list[2]);
        assert!(strings.are_there());
        let low = [c"A=1".as_ptr(), core::ptr::without_provenance(16), core::ptr::null()];
        // SAFETY: a list whose second string is nowhere, and a list that is nowhere.
        let bad = unsafe { [Strings::new(low.as_ptr()), Strings::new(low[1].cast())] };
        assert_eq!(bad.map(Strings::are_there), [false; 2]);
        assert_eq!(strings.map(CStr::to_bytes).collect::<Vec<_>>(), [b"A=1", b"B=2"]);
    }
}
