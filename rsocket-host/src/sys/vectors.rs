//! A place in the program's buffers: which of its `iovec`s comes next, and how far into it.

/// `vm.mmap_min_addr`, as every distribution sets it.
const LOWEST: usize = 65536;
/// The end of a process's addresses with four levels of page tables.
const HIGHEST: usize = 1 << 47;

/// One buffer as a scatter list. A length beyond what a call can move is cut, as the kernel cuts
/// it.
#[inline]
#[must_use]
pub fn one(base: *const core::ffi::c_void, len: usize) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: base.cast_mut(), iov_len: len.min(0x7fff_f000) }]
}

/// Walks over a list of buffers.
pub struct Cursor<'a> {
    vectors: &'a [libc::iovec],
    /// Bytes of the first vector that are used up.
    skip: usize,
    left: usize,
    done: usize,
}

/// Some of a cursor's buffers, for a call to the kernel.
pub struct Rest {
    ahead: [libc::iovec; Self::MOST],
    count: usize,
}

impl Rest {
    /// So many of them.
    pub const MOST: usize = 16;

    /// The buffers.
    #[must_use]
    pub fn list(&self) -> &[libc::iovec] {
        self.ahead.get(..self.count).unwrap_or(&[])
    }
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(vectors: &'a [libc::iovec]) -> Self {
        let left = vectors.iter().fold(0usize, |n, v| n.saturating_add(v.iov_len));
        Self { vectors, skip: 0, left, done: 0 }
    }

    /// Whether every buffer lies where a program can have memory at all. The kernel answers EFAULT
    /// for any bad address. We can tell only the addresses that can never be good. The copy stops a
    /// program that passes others.
    #[must_use]
    pub fn plausible(vectors: &[libc::iovec]) -> bool {
        vectors.iter().all(Self::is_plausible)
    }

    /// As [`Self::plausible`], for one buffer.
    #[inline]
    #[must_use]
    pub fn is_plausible(v: &libc::iovec) -> bool {
        const ALL: usize = HIGHEST - LOWEST;
        // From the lowest place on: one below it lies beyond all others.
        let start = (v.iov_base as usize).wrapping_sub(LOWEST);
        v.iov_len == 0 || v.iov_len <= ALL && start <= ALL - v.iov_len
    }

    /// Bytes of buffer that are left.
    #[inline]
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Bytes that were used so far.
    #[inline]
    #[must_use]
    pub const fn done(&self) -> usize {
        self.done
    }

    /// The next stretch of buffer: where, and how long (never 0).
    #[inline]
    pub fn stretch(&mut self) -> Option<(*mut u8, usize)> {
        loop {
            let v = self.vectors.first()?;
            if v.iov_len > self.skip {
                // SAFETY: skip is less than the vector's length, so this stays inside the buffer
                // that the program vouched for.
                return Some((
                    unsafe { v.iov_base.cast::<u8>().add(self.skip) },
                    v.iov_len - self.skip,
                ));
            }
            self.vectors = self.vectors.get(1..)?;
            self.skip = 0;
        }
    }

    /// Uses up `n` bytes.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.left);
        self.left -= n;
        self.done += n;
        let mut n = n;
        while let Some(v) = self.vectors.first() {
            let here = v.iov_len - self.skip.min(v.iov_len);
            if n < here {
                self.skip += n;
                return;
            }
            n -= here;
            self.vectors = self.vectors.get(1..).unwrap_or(&[]);
            self.skip = 0;
        }
    }

    /// What is left, as vectors for the kernel; at most 16 of them.
    #[must_use]
    pub fn rest(&self) -> Rest {
        let none = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut rest = Rest { ahead: [none; Rest::MOST], count: 0 };
        let mut skip = self.skip;
        for (from, into) in self.vectors.iter().zip(rest.ahead.iter_mut()) {
            // SAFETY: skip is at most the first vector's length.
            let base = unsafe { from.iov_base.cast::<u8>().add(skip) };
            *into = libc::iovec { iov_base: base.cast(), iov_len: from.iov_len - skip };
            skip = 0;
            rest.count += 1;
        }
        rest
    }

    /// Copies the next `n` bytes' worth of stretches to `f(pointer, length, offset)`, without using
    /// them up. False as soon as `f` is.
    pub fn each(&self, n: usize, mut f: impl FnMut(*const u8, usize, usize) -> bool) -> bool {
        let mut skip = self.skip;
        let mut at = 0;
        for v in self.vectors {
            if at == n {
                break;
            }
            let len = (v.iov_len - skip.min(v.iov_len)).min(n - at);
            if len > 0 {
                // SAFETY: skip + len is at most the vector's length.
                if !f(unsafe { v.iov_base.cast::<u8>().add(skip) }, len, at) {
                    return false;
                }
            }
            at += len;
            skip = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_plausible_where_memory_can_be() {
        let is = |at: usize, iov_len: usize| {
            Cursor::is_plausible(&libc::iovec { iov_base: at as *mut _, iov_len })
        };
        for (at, len) in [(LOWEST, 1), (LOWEST, HIGHEST - LOWEST), (HIGHEST - 1, 1), (HIGHEST, 0)] {
            assert!(is(at, len), "{at:#x}, {len:#x}");
        }
        let beyond = [(0, 1), (LOWEST - 1, 1), (LOWEST, HIGHEST - LOWEST + 1), (HIGHEST, 1)];
        for (at, len) in beyond.into_iter().chain([(HIGHEST - 1, 2), (LOWEST, usize::MAX)]) {
            assert!(!is(at, len), "{at:#x}, {len:#x}");
        }
        assert!(is(0, 0) && !is(usize::MAX, 1) && !is(usize::MAX, usize::MAX));
    }

    #[test]
    fn walks_over_empty_and_partial_vectors() {
        let mut bytes: Vec<u8> = (0..20).collect();
        let p = bytes.as_mut_ptr();
        let v = |o: usize, n: usize| libc::iovec { iov_base: p.wrapping_add(o).cast(), iov_len: n };
        let list = [v(0, 0), v(0, 7), v(7, 0), v(7, 13)];
        let mut c = Cursor::new(&list);
        assert_eq!((c.left(), c.done()), (20, 0));
        c.advance(5);
        let mut seen = Vec::new();
        assert!(c.each(10, |at, n, off| {
            assert_eq!(off, seen.len());
            // SAFETY: the cursor stays inside the vector above.
            seen.extend_from_slice(unsafe { core::slice::from_raw_parts(at, n) });
            true
        }));
        assert_eq!(seen, (5..15).collect::<Vec<u8>>());
        assert_eq!(c.stretch().map(|x| x.1), Some(2));
        assert_eq!(c.rest().list().iter().map(|v| v.iov_len).collect::<Vec<_>>(), [2, 0, 13]);
        c.advance(2);
        assert_eq!(c.stretch().map(|x| x.1), Some(13));
        c.advance(100);
        assert_eq!((c.left(), c.done()), (0, 20));
        assert!(c.stretch().is_none());
    }
}
