//! Room for the arrays of one wait: on the stack for what programs usually ask, mapped for more. Mapped and
//! not allocated, because `poll` and `select` are called in signal handlers. There is no destructor, since a
//! thread may be cancelled while it sleeps with this alive; whoever made it calls [`Room::release`].

use core::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags};

/// Elements that fit on the stack.
pub(crate) const SMALL: usize = 128;

/// An array of `T`, all copies of one value.
pub(crate) struct Room<T: Copy> {
    small: [T; SMALL],
    mapped: *mut T,
    len: usize,
}

impl<T: Copy> Room<T> {
    /// `None` when there is no memory for `len` elements.
    pub(crate) fn new(len: usize, value: T) -> Option<Self> {
        let mut room = Self { small: [value; SMALL], mapped: core::ptr::null_mut(), len };
        if len > SMALL {
            // SAFETY: a fresh anonymous mapping touches nothing that exists.
            let at = unsafe {
                rustix::mm::mmap_anonymous(
                    core::ptr::null_mut(),
                    len.checked_mul(size_of::<T>())?,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )
            };
            room.mapped = at.ok()?.cast();
            for i in 0..len {
                // SAFETY: inside the mapping just made, which is page aligned.
                unsafe { room.mapped.add(i).write(value) };
            }
        }
        Some(room)
    }

    pub(crate) fn slice(&mut self) -> &mut [T] {
        if self.mapped.is_null() {
            let len = self.len.min(SMALL);
            self.small.get_mut(..len).unwrap_or_default()
        } else {
            // SAFETY: `len` elements were written there by `new`, and the borrow of self keeps them ours.
            unsafe { core::slice::from_raw_parts_mut(self.mapped, self.len) }
        }
    }

    pub(crate) fn release(self) {
        if !self.mapped.is_null() {
            // SAFETY: mapped by `new` with this length; `self` is consumed, so nobody uses it any more.
            let _ = unsafe { rustix::mm::munmap(self.mapped.cast::<c_void>(), self.len * size_of::<T>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large() {
        for len in [0, 1, SMALL, SMALL + 1, 70_000] {
            let mut room = Room::new(len, 7_u32).unwrap();
            assert_eq!(room.slice().len(), len);
            assert!(room.slice().iter().all(|v| *v == 7));
            room.release();
        }
    }
}
