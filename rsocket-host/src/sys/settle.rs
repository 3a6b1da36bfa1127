//! Words that are put back in the child of a fork, where most of them are as they should be
//! already.
//!
//! A page that is not written is not copied, and to copy one costs as much as hundreds of looks.
//! Must not know what the words mean. Entry point: [`Settle`].
#![forbid(unsafe_code)]

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

/// A word of a process in which no other thread runs.
pub trait Settle {
    /// What it holds.
    type Value;
    /// Has it hold this, and writes only what is not so. Relaxed: there is one thread.
    fn settle(&self, value: Self::Value);
}

macro_rules! settles {
    ($($atomic:ty: $value:ty,)*) => {$(
        impl Settle for $atomic {
            type Value = $value;
            fn settle(&self, value: $value) {
                if self.load(Ordering::Relaxed) != value {
                    self.store(value, Ordering::Relaxed);
                }
            }
        }
    )*};
}

settles! { AtomicBool: bool, AtomicI32: i32, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize, }

impl<T> Settle for AtomicPtr<T> {
    type Value = *mut T;
    fn settle(&self, value: *mut T) {
        if self.load(Ordering::Relaxed) != value {
            self.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_so_afterwards() {
        let (word, flag) = (AtomicU32::new(7), AtomicBool::new(true));
        for value in [7, 0, 0, 9] {
            word.settle(value);
            assert_eq!(word.load(Ordering::Relaxed), value);
        }
        flag.settle(false);
        assert!(!flag.load(Ordering::Relaxed));
        let mut x = 3;
        let place = AtomicPtr::new(&raw mut x);
        place.settle(core::ptr::null_mut());
        assert!(place.load(Ordering::Relaxed).is_null());
    }
}
