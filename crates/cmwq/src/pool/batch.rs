//! The word through which a worker claims the items of its batch, and others stop it.
//!
//! The pool's lock holder fills a batch of `end` items, the first of which is claimed at once. The worker then claims the
//! next by raising `claimed`; whoever holds the pool's lock may *recall* the batch by lowering `end` to `claimed`. Both are
//! compare-and-swaps on one word, so every item is either claimed by the worker or recalled, never both (policy invariant
//! P7). Claimed items are finished in order, so `claimed - 1` of them are done for sure.

use crate::shim::atomic::{AtomicU32, AtomicU64, Ordering};
use cmwq_policy::pool::{BATCH, Time};

/// What a worker is at: equal marks mean the same item of the same batch, neither ended nor recalled in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchMark {
    word: u32,
    /// When the item was started.
    pub(crate) start: Time,
}

/// See the module text.
pub(crate) struct BatchWord {
    /// Low half: claimed; high half: end.
    word: AtomicU32,
    /// When each claimed item was started.
    starts: [AtomicU64; BATCH],
}

impl BatchWord {
    pub(crate) fn new() -> BatchWord {
        BatchWord {
            word: AtomicU32::new(0),
            starts: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// A new batch of `len` items; the first is claimed and starts `now`. Called by the worker with the pool's lock held.
    #[inline]
    pub(crate) fn publish(&self, len: usize, now: Time) {
        self.starts[0].store(now, Ordering::Relaxed);
        // Ordering: Release pairs with the Acquire of `claimed` and `recall`: the start stamp is in place.
        self.word.store(1 | (len as u32) << 16, Ordering::Release);
    }

    /// Claims the next item, which starts `now`: its index, or none if the batch is used up or recalled. Only the worker.
    #[inline]
    pub(crate) fn claim(&self, now: Time) -> Option<usize> {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let (claimed, end) = (seen & 0xffff, seen >> 16);
            if claimed >= end {
                return None;
            }
            self.starts[claimed as usize].store(now, Ordering::Relaxed);
            // Ordering: Release: the stamp above, and everything the finished item did, is seen by whoever settles it after
            // an Acquire read of this word.
            match self.word.compare_exchange_weak(
                seen,
                seen + 1,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(claimed as usize),
                Err(now_seen) => seen = now_seen,
            }
        }
    }

    /// How many items are claimed. With the pool's lock held.
    pub(crate) fn claimed(&self) -> u32 {
        // Ordering: Acquire pairs with the Release of `claim` and `publish`.
        self.word.load(Ordering::Acquire) & 0xffff
    }

    /// Stops further claims; returns how many items are claimed. With the pool's lock held.
    pub(crate) fn recall(&self) -> u32 {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let claimed = seen & 0xffff;
            // Ordering: Acquire pairs with the Release of `claim` and `publish`.
            match self.word.compare_exchange_weak(
                seen,
                claimed | claimed << 16,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return claimed,
                Err(now) => seen = now,
            }
        }
    }

    /// What the worker is at. With the pool's lock held: only the worker's own claims may come in between, and then the mark
    /// is one that has been.
    pub(crate) fn mark(&self) -> BatchMark {
        loop {
            // Ordering: Acquire pairs with the Release of `claim` and `publish`: the stamp belongs to the word.
            let word = self.word.load(Ordering::Acquire);
            let start = self.start((word & 0xffff).saturating_sub(1));
            if self.word.load(Ordering::Relaxed) == word {
                return BatchMark { word, start };
            }
        }
    }

    /// When the `i`-th item started; meaningful if it is claimed.
    pub(crate) fn start(&self, i: u32) -> Time {
        self.starts[i as usize].load(Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::shim::{Arc, thread};

    /// P7: each item of a batch is claimed or recalled, never both, never neither.
    #[test]
    fn loom_an_item_is_claimed_or_recalled() {
        loom::model(|| {
            let b = Arc::new(BatchWord::new());
            b.publish(3, 1);
            let worker = {
                let b = Arc::clone(&b);
                thread::spawn(move || {
                    let mut n = 1;
                    while b.claim(n + 1).is_some() {
                        n += 1;
                    }
                    n as u32
                })
            };
            let recalled_at = b.recall();
            assert!(
                (0..recalled_at).all(|i| b.start(i) == u64::from(i) + 1),
                "stamps of claimed items are in place"
            );
            assert_eq!(worker.join().unwrap(), recalled_at);
            assert_eq!(b.claimed(), recalled_at);
        });
    }
}
