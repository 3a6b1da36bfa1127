//! Libraries that once were new to us and bound past us. Several threads at a time may unload such
//! a library and load it again. Then the library may be there already when a thread looks what
//! there is before its own `dlopen`. Its slots are unresolved all the same, until the thread that
//! has loaded it comes to point them at our hooks.
//!
//! Only hashes of paths are kept: another library with the same one is looked through for nothing.
//! Must not know what a slot is. Entry points: [`has`], [`add`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

/// So many are remembered; of those that come later, each counts as new once.
const MOST: usize = 64;

// Relaxed throughout: each word is all that there is to know.
static PATHS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// FNV-1a, never 0.
fn hash(path: &[u8]) -> u64 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    path.iter().fold(0xcbf2_9ce4_8422_2325, step) | 1
}

/// Whether a library of this path was added.
pub(super) fn has(path: &[u8]) -> bool {
    let hash = hash(path);
    !path.is_empty() && PATHS.iter().any(|p| p.load(Ordering::Relaxed) == hash)
}

/// Remembers a library.
pub(super) fn add(path: &[u8]) {
    let hash = hash(path);
    let takes =
        |p: &AtomicU64| match p.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(known) => known == hash,
        };
    let _ = PATHS.iter().any(takes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_known_once() {
        assert!(!has(b"/a.so") && !has(b""));
        add(b"/a.so");
        add(b"/a.so");
        assert!(has(b"/a.so") && !has(b"/b.so"));
        assert_eq!(PATHS.iter().filter(|p| p.load(Ordering::Relaxed) != 0).count(), 1);
        for i in 0..2 * MOST {
            add(i.to_string().as_bytes());
        }
        assert!(has(b"/a.so") && has(b"0") && !has(b"127"));
    }
}
