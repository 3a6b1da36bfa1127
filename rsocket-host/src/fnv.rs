//! FNV-1a, the hash of Fowler, Noll and Vo: for short input that no one who would gain by a
//! collision chooses. Must not know what is hashed. Entry point: [`hash`].

/// The hash of nothing.
pub const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of what was hashed to `before` and of these bytes behind it.
#[must_use]
pub fn hash(before: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(before, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_authors_publish() {
        assert_eq!(hash(EMPTY, *b""), EMPTY);
        assert_eq!(hash(EMPTY, *b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash(EMPTY, *b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(hash(hash(EMPTY, *b"foo"), *b"bar"), 0x8594_4171_f739_67e8);
    }
}
