//! The always-on latency histogram: one thread records, anyone reads.
//!
//! Log-linear: values below 8 ns have a bucket each; above, every octave is cut into eight equal buckets, up to 2^47 ns
//! (39 hours); longer ones are counted in one last bucket. A bucket is at most 1/8 of its lower bound wide, so a quantile is
//! off by less than 12.5 %; the mean is exact. The layout is that of the control protocol's histograms, whose counts
//! can be filled from [`Snapshot::counts`].
//!
//! Recording is three plain loads and up to three stores, no read-modify-write: about 1-2 ns against 5 and more for a locked
//! instruction, and no cache line moves unless somebody reads. The price is that each histogram has one writer; a
//! workqueue has one per worker slot and merges them when asked. 2.9 KiB each, so they are made on first use.

use std::sync::atomic::{AtomicU64, Ordering};

const SUB_BITS: u32 = 3;
const SUBS: usize = 1 << SUB_BITS;
const TOP_BITS: u32 = 47;

/// How many buckets there are.
pub(crate) const BUCKETS: usize = SUBS + (TOP_BITS - SUB_BITS) as usize * SUBS + 1;

/// The bucket of a value: always below [`BUCKETS`].
#[inline]
pub(crate) const fn bucket_of(ns: u64) -> usize {
    if ns < SUBS as u64 {
        return ns as usize;
    }
    if ns >> TOP_BITS != 0 {
        return BUCKETS - 1;
    }
    let shift = ns.ilog2() - SUB_BITS;
    // The top four bits are 8..=15, so this is 8 * (shift + 1) + (top - 8).
    (shift as usize) * SUBS + (ns >> shift) as usize
}

/// Lowest and highest value of a bucket; the last one ends at `u64::MAX`. Indices beyond the last count as the last.
pub(crate) const fn bucket_range(index: usize) -> (u64, u64) {
    if index >= BUCKETS - 1 {
        return (1 << TOP_BITS, u64::MAX);
    }
    if index < SUBS {
        return (index as u64, index as u64);
    }
    let shift = (index / SUBS - 1) as u32;
    let low = ((SUBS + index % SUBS) as u64) << shift;
    (low, low + (1 << shift) - 1)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Histogram {
    /// Nothing recorded.
    pub(crate) const fn new() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    /// Counts a value in nanoseconds. Never blocks. By one thread at a time: of two that record at once, one value may be
    /// lost. The sum wraps after 584 years.
    #[inline]
    pub(crate) fn record(&self, ns: u64) {
        let bump = |cell: &AtomicU64, by: u64| {
            cell.store(
                cell.load(Ordering::Relaxed).wrapping_add(by),
                Ordering::Relaxed,
            );
        };
        bump(&self.counts[bucket_of(ns)], 1);
        bump(&self.sum, ns);
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.store(ns, Ordering::Relaxed);
        }
    }

    /// Adds what is recorded so far to `into`. Values that are being recorded may be seen in part (in the buckets and not yet
    /// in the sum). About 0.2 us; reading takes the writer's cache lines for a moment.
    pub(crate) fn add_to(&self, into: &mut Snapshot) {
        for (to, from) in into.counts.iter_mut().zip(&self.counts) {
            *to = to.saturating_add(from.load(Ordering::Relaxed));
        }
        into.sum = into.sum.wrapping_add(self.sum.load(Ordering::Relaxed));
        into.max = into.max.max(self.max.load(Ordering::Relaxed));
    }

    /// What is recorded so far.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut s = Snapshot::new();
        self.add_to(&mut s);
        s
    }
}

/// What one or several histograms held at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    counts: Box<[u64; BUCKETS]>,
    sum: u64,
    max: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// Empty.
    pub(crate) fn new() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            sum: 0,
            max: 0,
        }
    }

    /// Adds another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (to, from) in self.counts.iter_mut().zip(other.counts.iter()) {
            *to = to.saturating_add(*from);
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// The counts, by bucket.
    pub(crate) fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// How many values: the sum of the counts.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The sum of the values, ns.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// The mean, ns.
    pub(crate) fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    /// The lower bound of the lowest bucket in use: the smallest value is there or less than 12.5 % above.
    pub(crate) fn min_bound(&self) -> Option<u64> {
        self.counts
            .iter()
            .position(|n| *n > 0)
            .map(|i| bucket_range(i).0)
    }

    /// The largest value, exactly.
    pub(crate) fn max(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max)
    }

    /// The `q` quantile (0.5: the median; clamped to 0..=1): the highest value of the bucket that holds the value of rank
    /// ceil(q * count), but not more than the largest value. So never below the true quantile, and less than 12.5 % above.
    pub(crate) fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let q = if q.is_nan() { 0.0 } else { q.clamp(0.0, 1.0) };
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0_u64;
        for (i, n) in self.counts.iter().enumerate() {
            seen = seen.saturating_add(*n);
            if seen >= rank {
                return Some(bucket_range(i).1.min(self.max));
            }
        }
        Some(self.max)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
