//! How bytes get into the peer's channel and out of one's own.
//!
//! A store into a line that the other core has in its cache first fetches the line. A streaming
//! store does not. From a few KiB up it may be the faster one when bytes flow one way between two
//! cores (`rsocket-shm/src/stores.rs`). On one core, and for a reply that the peer waits for,
//! ordinary stores win. So the caller says which it is, and this module, which knows nothing but
//! bytes, chooses the instructions. Entry points: [`into_shared`], [`out_of_shared`] and [`near`];
//! [`Bytes`].
//!
//! A Release store does not order a streaming store. A streaming store does not pass through the
//! cache the same way, and x86 orders it only by a fence. One `sfence` ends each piece here, so
//! that whatever the caller publishes afterwards is seen after the bytes: callers need not know.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::marker::PhantomData;

/// Streaming stores pay from this size up.
pub const STREAM_FROM: usize = 4096;

/// What the caller knows about the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CopyHint {
    /// Request and response, or nothing known: the peer wants it now and in its cache.
    #[default]
    Ordinary,
    /// Bytes flow one way: several messages without an answer.
    Bulk,
    /// To or from a bridge, which runs on this CPU right before or after.
    Near,
}

/// Bytes that can be read. Another process may be writing them: what is copied may be any bytes,
/// and no reference to them exists.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    at: *const u8,
    len: usize,
    /// As long as that.
    life: PhantomData<&'a [u8]>,
}

impl<'a> Bytes<'a> {
    /// `len` bytes at `at`.
    ///
    /// # Safety
    /// They are readable during `'a`.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn new(at: *const u8, len: usize) -> Self {
        Self { at, len, life: PhantomData }
    }

    /// Where they are.
    #[inline(always)]
    #[must_use]
    pub const fn at(self) -> *const u8 {
        self.at
    }

    /// How many.
    #[inline(always)]
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// All of them but the first `n`.
    #[inline]
    #[must_use]
    pub fn behind(self, n: usize) -> Self {
        let n = n.min(self.len);
        Self { at: self.at.wrapping_add(n), len: self.len - n, life: PhantomData }
    }

    /// The first `n` of them.
    #[inline]
    #[must_use]
    pub fn first(self, n: usize) -> Self {
        Self { len: n.min(self.len), ..self }
    }

    /// Copies the first of them, as [`near`] does: as many as there are, and as there is room for.
    #[inline]
    pub fn copy_to(self, to: &mut [u8]) {
        let len = to.len().min(self.len);
        // SAFETY: both have `len` bytes, `self` by its maker's promise. `to` is a reference that
        // nothing else may read meanwhile, so that they do not overlap.
        unsafe { near(to.as_mut_ptr(), self.at, len) };
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { at: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }
}

/// Copies `len` bytes into memory that another process will read. `streams`: long copies are to be
/// made with streaming stores.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap. Another process
/// may write to `dst` at the same time; no reference to it may exist.
#[inline]
pub unsafe fn into_shared(dst: *mut u8, src: *const u8, len: usize, streams: bool) {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        if len < STREAM_FROM {
            core::ptr::copy_nonoverlapping(src, dst, len);
        } else if streams {
            streaming(dst, src, len);
        } else {
            near(dst, src, len);
        }
    }
}

/// Copies `len` bytes that another process has written. Prefetching ahead gained half as much again
/// at 4 KiB, nothing at 8, and lost a tenth from 16 KiB up.
///
/// # Safety
/// As for [`into_shared`], with the roles changed.
#[inline]
pub unsafe fn out_of_shared(dst: *mut u8, src: *const u8, len: usize, hint: CopyHint) {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        match hint {
            CopyHint::Near => near(dst, src, len),
            CopyHint::Ordinary | CopyHint::Bulk if len >= STREAM_FROM => near(dst, src, len),
            CopyHint::Ordinary | CopyHint::Bulk => core::ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}

/// Copies `len` bytes that are in this CPU's cache or are wanted there, by loads and stores. They
/// are of 16 bytes, or in long stretches of as many as a register of this processor has. The C
/// library moves long stretches by the processor's string moves. On many processors that is as
/// fast. On some it is a tenth as fast where the addresses are a few bytes apart modulo a page. An
/// emulated processor takes a step for each byte.
///
/// # Safety
/// As for [`into_shared`].
#[inline]
pub unsafe fn near(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passes on the caller's promises.
    let done = unsafe {
        if len < STREAM_FROM { x86::lines(dst, src, len) } else { x86::wide_lines(dst, src, len) }
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    if done < len {
        // SAFETY: `done` is less than `len`; the rest is the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done) };
    }
}

/// Asks for the cache line behind a pointer, to be written soon: it comes while the caller goes on.
/// Never faults, whatever the pointer.
#[inline(always)]
pub fn claim(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which touches no memory as far as any program can tell; processors that do
    // not know it pass over it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// The same, to be read soon.
#[inline(always)]
pub fn fetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in claim().
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in claim().
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn streaming(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promises.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
}

#[cfg(target_arch = "x86_64")]
use x86::streaming;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_sfence, _mm_storeu_si128,
        _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_storeu_si512, _mm512_stream_si512,
    };
    use core::sync::atomic::{AtomicU8, Ordering};

    /// What this machine can do: 0 not yet asked.
    static LEVEL: AtomicU8 = AtomicU8::new(0);
    const PLAIN: u8 = 1;
    const AVX2: u8 = 2;
    const AVX512: u8 = 3;

    #[inline]
    fn level() -> u8 {
        // Relaxed: every thread that asks finds the same answer.
        match LEVEL.load(Ordering::Relaxed) {
            0 => detect(),
            known => known,
        }
    }

    #[cold]
    fn detect() -> u8 {
        // Atomics and cpuid only: fit for a signal handler.
        let level = if std::arch::is_x86_feature_detected!("avx512f") {
            AVX512
        } else if std::arch::is_x86_feature_detected!("avx2") {
            AVX2
        } else {
            PLAIN
        };
        LEVEL.store(level, Ordering::Relaxed);
        level
    }

    /// Copies as many times 64 bytes as there are; how many bytes that was.
    ///
    /// # Safety
    /// As for `into_shared`.
    #[inline]
    pub(super) unsafe fn lines(dst: *mut u8, src: *const u8, len: usize) -> usize {
        let whole = len / 64 * 64;
        let mut at = 0;
        while at < whole {
            // SAFETY: at + 64 <= len; neither load nor store asks for an alignment, and every
            // x86-64 has them.
            unsafe {
                let (from, to) = (src.add(at).cast::<__m128i>(), dst.add(at).cast::<__m128i>());
                let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
                for (i, part) in line.into_iter().enumerate() {
                    _mm_storeu_si128(to.add(i), part);
                }
            }
            at += 64;
        }
        whole
    }

    /// The same with the widest registers that there are. Between two processors that is up to half
    /// as fast again: fewer instructions stand between two lines that are waited for.
    ///
    /// # Safety
    /// As for `into_shared`.
    pub(super) unsafe fn wide_lines(dst: *mut u8, src: *const u8, len: usize) -> usize {
        let whole = len / 64 * 64;
        // SAFETY: `whole` is no more than the caller vouched for. The level was detected.
        unsafe {
            match level() {
                AVX512 => wide_avx512(dst, src, whole),
                AVX2 => wide_avx2(dst, src, whole),
                _ => return lines(dst, src, len),
            }
        }
        whole
    }

    /// # Safety
    /// AVX-512 exists; `len` is a multiple of 64; both are valid for it.
    #[target_feature(enable = "avx512f")]
    unsafe fn wide_avx512(dst: *mut u8, src: *const u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: at + 64 <= len, since both are multiples of 64; no alignment is asked for.
            unsafe {
                let line = _mm512_loadu_si512(src.add(at).cast::<__m512i>());
                _mm512_storeu_si512(dst.add(at).cast::<__m512i>(), line);
            }
            at += 64;
        }
    }

    /// # Safety
    /// As `wide_avx512`, with AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn wide_avx2(dst: *mut u8, src: *const u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: at + 64 <= len, since both are multiples of 64; no alignment is asked for.
            unsafe {
                let (from, to) = (src.add(at).cast::<__m256i>(), dst.add(at).cast::<__m256i>());
                let line = [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))];
                _mm256_storeu_si256(to, line[0]);
                _mm256_storeu_si256(to.add(1), line[1]);
            }
            at += 64;
        }
    }

    /// Makes an ordinary copy up to the first line boundary of `dst`, streaming stores of whole
    /// lines, and an ordinary copy of the rest. The fence then orders all of it before the next
    /// store of this thread.
    ///
    /// # Safety
    /// As for `into_shared`.
    pub(super) unsafe fn streaming(dst: *mut u8, src: *const u8, len: usize) {
        let level = level();
        if level == PLAIN {
            // SAFETY: the caller's promises.
            unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
            return;
        }
        let head = dst.align_offset(64).min(len);
        let lines = (len - head) / 64 * 64;
        // SAFETY: head + lines <= len, so that all three parts lie inside what the caller promised.
        // The middle starts on a line boundary of dst and has whole lines. The level was detected.
        unsafe {
            core::ptr::copy_nonoverlapping(src, dst, head);
            if level == AVX512 {
                lines_avx512(dst.add(head), src.add(head), lines);
            } else {
                lines_avx2(dst.add(head), src.add(head), lines);
            }
            let done = head + lines;
            core::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
            _mm_sfence();
        }
    }

    /// # Safety
    /// AVX-512 exists; `dst` is aligned to 64; `len` is a multiple of 64; both are valid for it.
    #[target_feature(enable = "avx512f")]
    unsafe fn lines_avx512(dst: *mut u8, src: *const u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: at + 64 <= len, since both are multiples of 64; dst is aligned.
            unsafe {
                let line = _mm512_loadu_si512(src.add(at).cast::<__m512i>());
                _mm512_stream_si512(dst.add(at).cast::<__m512i>(), line);
            }
            at += 64;
        }
    }

    /// # Safety
    /// As `lines_avx512`, with AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn lines_avx2(dst: *mut u8, src: *const u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: at + 64 <= len, since both are multiples of 64; dst is aligned.
            unsafe {
                let low = _mm256_loadu_si256(src.add(at).cast::<__m256i>());
                let high = _mm256_loadu_si256(src.add(at + 32).cast::<__m256i>());
                _mm256_stream_si256(dst.add(at).cast::<__m256i>(), low);
                _mm256_stream_si256(dst.add(at + 32).cast::<__m256i>(), high);
            }
            at += 64;
        }
    }

    #[cfg(test)]
    #[allow(clippy::indexing_slicing)]
    mod tests {
        use super::*;

        // No fence: a thread always sees its own streaming stores.
        #[test]
        fn each_way_of_copying_lines() {
            let src: Vec<u8> = (0..8192_u32).map(|i| (i * 7 + i / 256) as u8).collect();
            for skew in [0, 1, 31, 63] {
                let mut dst = vec![0_u8; 8192 + 64];
                let start = dst.as_ptr().align_offset(64);
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: 4096 bytes lie inside both, dst starts on a line.
                    unsafe {
                        lines_avx2(dst.as_mut_ptr().add(start), src.as_ptr().add(skew), 4096)
                    };
                    assert_eq!(dst[start..start + 4096], src[skew..skew + 4096]);
                    dst.fill(0);
                    // SAFETY: as above; here no start is asked for.
                    unsafe { wide_avx2(dst.as_mut_ptr().add(skew), src.as_ptr(), 4096) };
                    assert_eq!(dst[skew..skew + 4096], src[..4096]);
                }
                dst.fill(0);
                if std::arch::is_x86_feature_detected!("avx512f") {
                    // SAFETY: as above.
                    unsafe {
                        lines_avx512(dst.as_mut_ptr().add(start), src.as_ptr().add(skew), 4096)
                    };
                    assert_eq!(dst[start..start + 4096], src[skew..skew + 4096]);
                    dst.fill(0);
                    // SAFETY: as above; here no start is asked for.
                    unsafe { wide_avx512(dst.as_mut_ptr().add(skew), src.as_ptr(), 4096) };
                    assert_eq!(dst[skew..skew + 4096], src[..4096]);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_from_the_front() {
        let all = [1, 2, 3, 4, 5];
        let bytes = Bytes::from(&all[..]);
        let mut to = [0; 3];
        bytes.behind(1).copy_to(&mut to);
        assert_eq!(to, [2, 3, 4]);
        bytes.behind(4).copy_to(&mut to);
        assert_eq!((to, bytes.first(2).len()), ([5, 3, 4], 2));
        assert!(bytes.behind(9).is_empty() && bytes.first(9).len() == 5);
    }

    #[test]
    fn all_sizes_and_alignments() {
        let src: Vec<u8> = (0..70_000_u32).map(|i| (i * 31 + i / 251) as u8).collect();
        let sizes = (0..130).chain([4095, 4096, 4097, 4159, 4160, 8191, 16_384, 65_535, 65_536]);
        for len in sizes {
            for (skew_to, skew_from) in
                [(0, 0), (1, 0), (0, 1), (63, 5), (64, 64), (33, 31), (17, 47)]
            {
                for streams in [false, true] {
                    let mut dst = vec![0xee_u8; len + 256];
                    let at = dst.as_ptr().align_offset(64) + skew_to;
                    // SAFETY: at + len and skew_from + len lie inside the two vectors.
                    unsafe {
                        into_shared(
                            dst.as_mut_ptr().add(at),
                            src.as_ptr().add(skew_from),
                            len,
                            streams,
                        );
                    }
                    assert_eq!(dst[at..at + len], src[skew_from..skew_from + len]);
                    assert!(dst[..at].iter().chain(&dst[at + len..]).all(|&b| b == 0xee));
                }
                let mut dst = vec![0xee_u8; len + 256];
                let at = dst.as_ptr().align_offset(64) + skew_to;
                // SAFETY: as above.
                unsafe { near(dst.as_mut_ptr().add(at), src.as_ptr().add(skew_from), len) };
                assert_eq!(dst[at..at + len], src[skew_from..skew_from + len]);
                assert!(dst[..at].iter().chain(&dst[at + len..]).all(|&b| b == 0xee));
            }
        }
    }
}
