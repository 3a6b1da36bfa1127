//! Room for the arrays of one wait. A few elements stand on the stack, and what programs usually
//! ask for in memory of the library's own stacks; memory for more is mapped. The room is never
//! allocated, because `poll` and `select` are called in signal handlers. There is no destructor,
//! since a thread may be cancelled while it sleeps with this alive: the caller of [`Room::new`]
//! calls [`Room::release`].

use crate::sync::array::Array;

/// An array of `T`, all copies of one value; up to `SMALL` of them stand on the stack.
pub(crate) struct Room<T: Copy, const SMALL: usize> {
    small: [T; SMALL],
    len: usize,
    elsewhere: Option<Array<T>>,
}

impl<T: Copy, const SMALL: usize> Room<T, SMALL> {
    /// `None` when there is no memory for `len` elements.
    pub(crate) fn new(len: usize, value: T) -> Option<Self> {
        let elsewhere = if len > SMALL { Some(Array::lent(len, value)?) } else { None };
        Some(Self { small: [value; SMALL], len, elsewhere })
    }

    pub(crate) fn slice(&mut self) -> &mut [T] {
        match &mut self.elsewhere {
            Some(array) => array,
            None => self.small.get_mut(..self.len).unwrap_or_default(),
        }
    }

    pub(crate) fn release(self) {
        if let Some(array) = self.elsewhere {
            array.release();
        }
    }
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
