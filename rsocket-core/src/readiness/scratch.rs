//! Room for the arrays of one wait: on the stack for a few elements, in memory of the library's own
//! stacks for what programs usually ask, mapped for more. Never allocated, because `poll` and
//! `select` are called in signal handlers. There is no destructor, since a thread may be cancelled
//! while it sleeps with this alive; whoever made it calls [`Room::release`].

use core::ffi::c_void;
use core::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags};

use crate::sync::stack;

/// An array of `T`, all copies of one value; up to `SMALL` of them stand on the stack.
pub(crate) struct Room<T: Copy, const SMALL: usize> {
    small: [T; SMALL],
    elsewhere: *mut T,
    len: usize,
}

impl<T: Copy, const SMALL: usize> Room<T, SMALL> {
    const ALIGNED: () = assert!(align_of::<T>() <= crate::sys::PAGE_SIZE);

    /// `None` when there is no memory for `len` elements.
    pub(crate) fn new(len: usize, value: T) -> Option<Self> {
        let () = Self::ALIGNED;
        let mut room = Self { small: [value; SMALL], elsewhere: null_mut(), len };
        if len > SMALL {
            let bytes = len.checked_mul(size_of::<T>())?;
            room.elsewhere = if bytes <= stack::LENT { stack::lend()? } else { map(bytes)? }.cast();
            for i in 0..len {
                // SAFETY: inside what was just got, which is page aligned.
                unsafe { room.elsewhere.add(i).write(value) };
            }
        }
        Some(room)
    }

    pub(crate) fn slice(&mut self) -> &mut [T] {
        if self.elsewhere.is_null() {
            let len = self.len.min(SMALL);
            self.small.get_mut(..len).unwrap_or_default()
        } else {
            // SAFETY: `len` elements were written there by `new`, and the borrow of self keeps them
            // ours.
            unsafe { core::slice::from_raw_parts_mut(self.elsewhere, self.len) }
        }
    }

    pub(crate) fn release(self) {
        let bytes = self.len * size_of::<T>();
        if self.elsewhere.is_null() {
            return;
        }
        if bytes <= stack::LENT {
            stack::take_back(self.elsewhere.cast());
        } else {
            // SAFETY: mapped by `new` with this length; `self` is consumed, so nobody uses it any
            // more.
            let _ = unsafe { rustix::mm::munmap(self.elsewhere.cast::<c_void>(), bytes) };
        }
    }
}

fn map(bytes: usize) -> Option<*mut c_void> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh anonymous mapping touches nothing that exists.
    unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, prot, MapFlags::PRIVATE) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large() {
        for len in [0, 1, 8, 9, 60_000, 70_000] {
            let mut room = Room::<_, 8>::new(len, 7_u32).unwrap();
            assert_eq!(room.slice().len(), len);
            assert!(room.slice().iter().all(|v| *v == 7));
            room.release();
        }
    }
}
