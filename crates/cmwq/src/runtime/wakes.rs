//! How long wake-ups take, measured all the time, and the hedge delay that follows from it.

use cmwq_policy::help::hedge_delay;
use cmwq_policy::hist::{BUCKETS, bucket_low, bucket_of};
use cmwq_policy::pool::WAKE_COST_NS;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The hedge delay is worked out anew after this many wake-ups, the price of one also after the first so many.
const REVIEW: u32 = 64;
const FIRST_REVIEW: u32 = 8;
/// When this many are in the histogram all counts are halved, so that old ones fade.
const FADE: u32 = 4096;
/// The hedge delay never exceeds this. On a CPU that others keep busy wake-ups take milliseconds, and that is when an offer is
/// wanted most; the tick that watches waiting items comes every 1-4 ms anyway.
pub(crate) const MAX_HEDGE_NS: u64 = 1_000_000;

/// The hedge delay while nothing is known: longer than nearly all wake-ups on the slowest machine seen (a guest whose idle CPUs halt: 30 us
/// in the median, 130 us at p99).
const UNKNOWN_HEDGE_NS: u64 = 400_000;

/// More than this is never taken for the price of a wake-up: then the CPUs are busy, and it is the wait for one that was measured.
const MAX_WAKE_COST_NS: u64 = 50_000;

/// Wake-up times of a runtime: from the decision to wake a worker to its look at the pool.
pub(crate) struct Wakes {
    counts: Box<[AtomicU32]>,
    n: AtomicU32,
    typical: AtomicU64,
    p99: AtomicU64,
    hedge: AtomicU64,
    patience: AtomicU64,
}

impl Wakes {
    pub(crate) fn new() -> Wakes {
        Wakes {
            counts: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            n: AtomicU32::new(0),
            typical: AtomicU64::new(WAKE_COST_NS),
            p99: AtomicU64::new(0),
            hedge: AtomicU64::new(UNKNOWN_HEDGE_NS),
            patience: AtomicU64::new(UNKNOWN_HEDGE_NS),
        }
    }

    /// Records one wake-up. A few atomic adds; callers sample.
    pub(crate) fn record(&self, ns: u64) {
        self.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        let n = self.n.fetch_add(1, Ordering::Relaxed) + 1;
        if n.is_multiple_of(REVIEW) {
            self.review(n >= FADE);
        } else if n == FIRST_REVIEW {
            self.review_price(u64::from(n));
        }
    }

    fn review_price(&self, total: u64) {
        let typical = self
            .exceeded_by(total / 2)
            .clamp(WAKE_COST_NS, MAX_WAKE_COST_NS);
        self.typical.store(typical, Ordering::Relaxed);
    }

    #[cold]
    fn review(&self, fade: bool) {
        let total: u64 = self
            .counts
            .iter()
            .map(|c| u64::from(c.load(Ordering::Relaxed)))
            .sum();
        let (p99, p999) = (
            self.exceeded_by(total / 100),
            self.exceeded_by(total / 1000),
        );
        self.p99.store(p99, Ordering::Relaxed);
        self.review_price(total);
        let hedge = hedge_delay(p99).min(MAX_HEDGE_NS);
        self.hedge.store(hedge, Ordering::Relaxed);
        self.patience
            .store(hedge.max(p999).min(MAX_HEDGE_NS), Ordering::Relaxed);
        if fade {
            for c in &self.counts {
                let half = c.load(Ordering::Relaxed) / 2;
                c.store(half, Ordering::Relaxed);
            }
            self.n.store(FADE / 2, Ordering::Relaxed);
        }
    }

    /// The least bucket bound that at most `n` of the recorded wake-ups exceed.
    fn exceeded_by(&self, n: u64) -> u64 {
        let mut left = n;
        let mut i = self.counts.len() - 1;
        while i > 0 {
            let c = u64::from(self.counts[i].load(Ordering::Relaxed));
            if c > left {
                break;
            }
            left -= c;
            i -= 1;
        }
        bucket_low((i + 1).min(BUCKETS - 1))
    }

    /// What a wake-up costs: the median, within bounds, ns.
    #[inline]
    pub(crate) fn typical_ns(&self) -> u64 {
        self.typical.load(Ordering::Relaxed)
    }

    /// 99 of 100 wake-ups take at most this long, ns; 0 until 64 were measured.
    pub(crate) fn p99_ns(&self) -> u64 {
        self.p99.load(Ordering::Relaxed)
    }

    /// The hedge delay while a worker is on its way to what waits, ns: one wake-up in a thousand takes longer, so at a calm pace no
    /// more items than that are offered.
    #[inline]
    pub(crate) fn patience_ns(&self) -> u64 {
        self.patience.load(Ordering::Relaxed)
    }

    /// After how long an item that nobody has started is offered to other pods, ns.
    #[inline]
    pub(crate) fn hedge_ns(&self) -> u64 {
        self.hedge.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmwq_policy::help::MIN_HEDGE_NS;

    #[test]
    fn the_hedge_delay_is_twice_the_99th_percentile_within_its_bounds() {
        let w = Wakes::new();
        assert_eq!(w.hedge_ns(), UNKNOWN_HEDGE_NS);
        for i in 0..640u64 {
            w.record(if i % 50 == 0 { 200_000 } else { 20_000 });
        }
        let hedge = w.hedge_ns();
        assert!((400_000..=460_000).contains(&hedge), "{hedge}");
        (0..10_000).for_each(|_| w.record(3_000));
        assert_eq!(w.hedge_ns(), MIN_HEDGE_NS, "old wake-ups fade");
        // One in five hundred is late: twice the p99 would offer each of those.
        (0..20_000u64).for_each(|i| w.record(if i % 500 == 0 { 300_000 } else { 3_000 }));
        let patience = w.patience_ns();
        assert!((300_000..=350_000).contains(&patience), "{patience}");
        assert_eq!(w.hedge_ns(), MIN_HEDGE_NS);
        (0..10_000).for_each(|_| w.record(1 << 40));
        assert_eq!(w.hedge_ns(), MAX_HEDGE_NS);
    }
}
