//! The atomics that an algorithm needs, as traits: core's in the library, the scheduler's in a
//! model.
//!
//! A façade that swapped the types would not do: shared memory holds plain words of a fixed size,
//! and a scheduler's atomics are larger. The traits are monomorphised and inlined; they cost
//! nothing.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        pub trait $name {
            /// As core's `load`.
            fn load(&self, order: Ordering) -> $int;
            /// As core's `store`.
            fn store(&self, value: $int, order: Ordering);
            /// As core's `swap`.
            fn swap(&self, value: $int, order: Ordering) -> $int;
            /// As core's `compare_exchange`.
            ///
            /// # Errors
            /// The value that was there instead.
            fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int>;
            /// As core's `fetch_or`.
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int;
        }
    };
}

word!(
    /// A 32-bit atomic word.
    Word32,
    u32
);
word!(
    /// A 64-bit atomic word.
    Word64,
    u64
);

macro_rules! impl_word {
    ($trait:ident, $type:ty, $int:ty) => {
        impl $trait for $type {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $int {
                <$type>::load(self, order)
            }
            #[inline(always)]
            fn store(&self, value: $int, order: Ordering) {
                <$type>::store(self, value, order);
            }
            #[inline(always)]
            fn swap(&self, value: $int, order: Ordering) -> $int {
                <$type>::swap(self, value, order)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                <$type>::compare_exchange(self, old, new, success, failure)
            }
            #[inline(always)]
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                <$type>::fetch_or(self, bits, order)
            }
        }
    };
}

impl_word!(Word32, AtomicU32, u32);
impl_word!(Word64, AtomicU64, u64);
#[cfg(shuttle)]
impl_word!(Word32, shuttle::sync::atomic::AtomicU32, u32);
#[cfg(shuttle)]
impl_word!(Word64, shuttle::sync::atomic::AtomicU64, u64);

/// A full fence: what this thread did before it is visible to others before it looks at anything
/// after it. Callers name the partner fence.
#[inline(always)]
pub fn full_fence() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// As [`full_fence`], for a caller whose last access to shared memory was a read-modify-write that
/// succeeded (a lock given back). On x86-64 such an instruction is a full fence by itself. A second
/// one costs as much as the whole of a short message's copy.
#[inline(always)]
pub fn full_fence_after_exchange() {
    // Elsewhere, and for tools that know the language's rules only, there is no such promise.
    #[cfg(all(target_arch = "x86_64", not(miri), not(shuttle)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(shuttle))))]
    full_fence();
}
