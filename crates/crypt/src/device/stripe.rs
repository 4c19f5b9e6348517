//! Locks by range, so that calls which overlap at the same time see whole blocks, as a disk shows whole sectors.
//!
//! A read that runs while a write to the same block runs could otherwise see half of it: neither files nor memory promise
//! more than single bytes. Each 4096-byte block of the device has one of [`STRIPES`] read-write locks; a call takes those of
//! its blocks in ascending order of their place in the table, and waits for a lock only while it holds lower ones, so no
//! two calls can wait for each other.

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;
/// Locks in the table. 4096 of them make 16 MiB of device before two blocks share one; a range of [`MAX_LEN`] has 257 at
/// most, so it never meets itself.
const STRIPES: u64 = 4096;
/// The longest range that is locked in one piece.
pub(crate) const MAX_LEN: u64 = 1 << 20;

/// The table: 32 KiB or so.
#[derive(Debug)]
pub(crate) struct Stripes(Box<[RwLock<()>]>);

/// Guards of one range. Dropping releases them. Allocates for ranges over [`SMALL`] blocks only.
pub(crate) struct Held<G> {
    _small: [Option<G>; SMALL],
    _large: Vec<G>,
}

/// Blocks of a 32 KiB range that is not aligned to blocks.
const SMALL: usize = 9;

impl Stripes {
    pub(crate) fn new() -> Stripes {
        Stripes((0..STRIPES).map(|_| RwLock::new(())).collect())
    }

    /// The two runs of table places, lower one first, for `len` bytes at `offset`; the second is empty unless it wraps.
    fn places(offset: u64, len: u64) -> (std::ops::Range<u64>, std::ops::Range<u64>) {
        debug_assert!(len > 0 && len <= MAX_LEN);
        let first = offset / BLOCK;
        let count = (offset + len - 1) / BLOCK - first + 1;
        let start = first % STRIPES;
        let end = start + count;
        if end <= STRIPES {
            (start..end, 0..0)
        } else {
            (0..end - STRIPES, start..STRIPES)
        }
    }

    fn hold<'a, G>(
        &'a self,
        offset: u64,
        len: u64,
        lock: impl Fn(&'a RwLock<()>) -> Option<G>,
    ) -> Option<Held<G>> {
        let (low, high) = Self::places(offset, len);
        let mut held = Held {
            _small: [const { None }; SMALL],
            _large: Vec::new(),
        };
        for (n, place) in low.chain(high).enumerate() {
            let guard = lock(&self.0[place as usize])?;
            match held._small.get_mut(n) {
                Some(slot) => *slot = Some(guard),
                None => held._large.push(guard),
            }
        }
        Some(held)
    }

    /// Shares the range with other readers; waits for writers. `len` is 1 to [`MAX_LEN`].
    pub(crate) fn read(&self, offset: u64, len: u64) -> Option<Held<RwLockReadGuard<'_, ()>>> {
        self.hold(offset, len, |l| {
            Some(l.read().unwrap_or_else(|e| e.into_inner()))
        })
    }

    /// As [`read`](Self::read), or nothing where a writer has a part of the range.
    pub(crate) fn try_read(&self, offset: u64, len: u64) -> Option<Held<RwLockReadGuard<'_, ()>>> {
        self.hold(offset, len, |l| match l.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// Has the range alone; waits for readers and writers. `len` is 1 to [`MAX_LEN`].
    pub(crate) fn write(&self, offset: u64, len: u64) -> Option<Held<RwLockWriteGuard<'_, ()>>> {
        self.hold(offset, len, |l| {
            Some(l.write().unwrap_or_else(|e| e.into_inner()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Ascending and without repetition: the two conditions that exclude deadlock.
        #[test]
        fn places_ascend_and_cover_each_block_once(offset in 0u64..1 << 60, len in 1u64..=MAX_LEN) {
            let (low, high) = Stripes::places(offset, len);
            let all: Vec<u64> = low.chain(high).collect();
            prop_assert!(all.windows(2).all(|w| w[0] < w[1]));
            prop_assert!(all.iter().all(|&p| p < STRIPES));
            let mut blocks: Vec<u64> = (offset / BLOCK..=(offset + len - 1) / BLOCK).map(|b| b % STRIPES).collect();
            blocks.sort_unstable();
            prop_assert_eq!(all, blocks);
        }
    }
}
