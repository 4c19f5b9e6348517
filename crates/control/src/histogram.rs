//! The layout of the latency histograms and all their maths.
//!
//! Times are nanoseconds. The layout is log-linear: values below 8 ns have a bucket each; above, every octave (a
//! doubling) is cut into eight equal buckets, up to 2^47 ns (39 hours); anything longer is counted in one last bucket. A
//! bucket is at most 1/8 of its lower bound wide, so a quantile, which is interpolated inside its bucket, is off by less than
//! 12.5 % and usually by a few per cent. The mean is exact: it comes from the sum.
//!
//! A recorder (the runtime) keeps [`BUCKETS`] counters and bumps the one at [`bucket_index`], the sum, and optionally
//! minimum and maximum; a snapshot carries the non-zero ones.

/// Each octave has `1 << SUB_SHIFT` buckets.
const SUB_SHIFT: u32 = 3;
/// Values of `1 << TOP_SHIFT` ns and more fall into the last bucket.
const TOP_SHIFT: u32 = 47;
const SUBS: usize = 1 << SUB_SHIFT;

/// How many buckets there are.
pub const BUCKETS: usize = SUBS + (TOP_SHIFT - SUB_SHIFT) as usize * SUBS + 1;

/// The bucket that counts a value of `ns` nanoseconds; always below [`BUCKETS`]. A few instructions.
#[inline]
pub const fn bucket_index(ns: u64) -> usize {
    if ns < SUBS as u64 {
        return ns as usize;
    }
    if ns >> TOP_SHIFT != 0 {
        return BUCKETS - 1;
    }
    let octave = ns.ilog2() - SUB_SHIFT;
    SUBS + octave as usize * SUBS + ((ns >> octave) as usize - SUBS)
}

/// The bounds of a bucket in nanoseconds: lower inclusive, upper exclusive. The last bucket, which also holds everything
/// above, is given the width of one octave. Indices beyond the last bucket give the last bucket's bounds.
pub const fn bucket_bounds(index: usize) -> (u64, u64) {
    if index >= BUCKETS - 1 {
        return (1 << TOP_SHIFT, 2 << TOP_SHIFT);
    }
    if index < SUBS {
        return (index as u64, index as u64 + 1);
    }
    let octave = (index / SUBS - 1) as u32;
    let sub = (index % SUBS + SUBS) as u64;
    (sub << octave, (sub + 1) << octave)
}

/// A histogram of durations at one moment, or over an interval ([`since`](HistogramSnapshot::since)).
///
/// `count` is the sum of the bucket counts if the recorder was quiet; a recorder that bumps counters one by one may be
/// caught between two of them, so the maths here uses the buckets' own sum and never divides by `count`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct HistogramSnapshot {
    /// How many values were recorded.
    pub count: u64,
    /// The sum of all values, ns (wraps after 584 years of accumulated time).
    pub sum_ns: u64,
    /// The smallest value, ns, if the recorder keeps it.
    pub min_ns: Option<u64>,
    /// The largest value, ns, if the recorder keeps it.
    pub max_ns: Option<u64>,
    /// The non-zero buckets: (index as of [`bucket_index`], count), ascending by index, each index at most once.
    pub buckets: Vec<(u16, u64)>,
}

impl HistogramSnapshot {
    /// Builds a snapshot from a recorder's counters; `counts` may be shorter than [`BUCKETS`] and must not be longer
    /// (what is beyond is added to the last bucket). O(buckets), one allocation.
    pub fn from_counts(
        counts: impl IntoIterator<Item = u64>,
        sum_ns: u64,
        min_ns: Option<u64>,
        max_ns: Option<u64>,
    ) -> Self {
        let mut snapshot = HistogramSnapshot {
            sum_ns,
            min_ns,
            max_ns,
            ..Default::default()
        };
        for (i, n) in counts.into_iter().enumerate().filter(|&(_, n)| n > 0) {
            snapshot.add(i, n);
        }
        snapshot
    }

    /// Records one value: for recorders that are not shared (tests, the simulator, benches). O(log buckets) for a known
    /// bucket.
    pub fn record(&mut self, ns: u64) {
        self.add(bucket_index(ns), 1);
        self.sum_ns = self.sum_ns.wrapping_add(ns);
        self.min_ns = Some(self.min_ns.map_or(ns, |m| m.min(ns)));
        self.max_ns = Some(self.max_ns.map_or(ns, |m| m.max(ns)));
    }

    fn add(&mut self, index: usize, n: u64) {
        let index = index.min(BUCKETS - 1) as u16;
        self.count = self.count.saturating_add(n);
        match self.buckets.binary_search_by_key(&index, |b| b.0) {
            Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(n),
            Err(at) => self.buckets.insert(at, (index, n)),
        }
    }

    /// Adds `other` to this one (another shard, another queue).
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        let was_empty = self.is_empty();
        for &(i, n) in &other.buckets {
            self.add(i as usize, n);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        if was_empty {
            (self.min_ns, self.max_ns) = (other.min_ns, other.max_ns);
        } else if !other.is_empty() {
            // Unknown on either side is unknown for both.
            self.min_ns = self.min_ns.zip(other.min_ns).map(|(a, b)| a.min(b));
            self.max_ns = self.max_ns.zip(other.max_ns).map(|(a, b)| a.max(b));
        }
    }

    /// What was recorded after `earlier` was taken from the same recorder. Counters that went backwards (the recorder was
    /// replaced) count from zero. Minimum and maximum of an interval are unknown and left to the bucket bounds.
    pub fn since(&self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let restarted = earlier.count > self.count;
        let mut diff = HistogramSnapshot {
            sum_ns: if restarted {
                self.sum_ns
            } else {
                self.sum_ns.wrapping_sub(earlier.sum_ns)
            },
            ..Default::default()
        };
        for &(i, n) in &self.buckets {
            let before = match earlier.buckets.binary_search_by_key(&i, |b| b.0) {
                Ok(at) if !restarted => earlier.buckets[at].1,
                _ => 0,
            };
            if n > before {
                diff.add(i as usize, n - before);
            }
        }
        diff
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// The sum of the bucket counts: what quantiles refer to.
    pub fn total(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum: u64, b| sum.saturating_add(b.1))
    }

    /// The mean, ns; `None` when empty.
    pub fn mean_ns(&self) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| self.sum_ns as f64 / total as f64)
    }

    /// The standard deviation, ns, from the buckets (each taken as spread evenly over its width, clipped to the known
    /// minimum and maximum); `None` when empty.
    pub fn stdev_ns(&self) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let spread = |i: u16| {
            let (low, high) = self.clipped(i);
            ((low + high) / 2.0, high - low)
        };
        let n = total as f64;
        let mean = self
            .buckets
            .iter()
            .map(|&(i, c)| spread(i).0 * c as f64)
            .sum::<f64>()
            / n;
        let variance = self
            .buckets
            .iter()
            .map(|&(i, c)| {
                let (mid, width) = spread(i);
                c as f64 * ((mid - mean).powi(2) + width * width / 12.0)
            })
            .sum::<f64>()
            / n;
        Some(variance.sqrt())
    }

    /// The `q` quantile (0.5 is the median), ns, interpolated inside its bucket; `q` is clamped to 0..=1. `None` when empty.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let q = if q.is_nan() { 0.0 } else { q.clamp(0.0, 1.0) };
        let rank = q * total as f64;
        let mut below = 0.0;
        for &(i, c) in &self.buckets {
            let c = c as f64;
            if below + c >= rank && c > 0.0 {
                let (low, high) = self.clipped(i);
                return Some(low + (high - low) * ((rank - below) / c).clamp(0.0, 1.0));
            }
            below += c;
        }
        self.max_bound_ns().map(|m| m as f64)
    }

    /// The smallest value, ns: exact if the recorder keeps it, else the lower bound of the lowest bucket.
    pub fn min_bound_ns(&self) -> Option<u64> {
        self.min_ns
            .or_else(|| self.buckets.first().map(|b| bucket_bounds(b.0 as usize).0))
    }

    /// The largest value, ns: exact if the recorder keeps it, else the upper bound of the highest bucket.
    pub fn max_bound_ns(&self) -> Option<u64> {
        self.max_ns
            .or_else(|| self.buckets.last().map(|b| bucket_bounds(b.0 as usize).1))
    }

    /// The count of values at or below `ns`, interpolated inside the bucket that holds it: for cumulative expositions.
    pub fn count_at_most(&self, ns: u64) -> u64 {
        let at = bucket_index(ns);
        let mut sum = 0_u64;
        for &(i, c) in &self.buckets {
            if (i as usize) < at {
                sum = sum.saturating_add(c);
            } else if i as usize == at {
                let (low, high) = bucket_bounds(at);
                let share = (ns.saturating_sub(low) + 1) as f64 / (high - low) as f64;
                sum = sum.saturating_add((c as f64 * share.min(1.0)) as u64);
            }
        }
        sum
    }

    /// Bucket bounds as floats, clipped to the known minimum and maximum.
    fn clipped(&self, index: u16) -> (f64, f64) {
        let (mut low, mut high) = bucket_bounds(index as usize);
        if index as usize >= BUCKETS - 1 {
            high = high.max(self.max_ns.unwrap_or(high));
        }
        if let Some(min) = self.min_ns.filter(|&m| m > low && m < high) {
            low = min;
        }
        if let Some(max) = self.max_ns.filter(|&m| m >= low && m < high) {
            high = max;
        }
        (low as f64, high as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let mut values: Vec<u64> = (0..5000).collect();
        for shift in 0..47 {
            for d in [-17_i64, -1, 0, 1, 17] {
                values.push((1_i64 << shift).saturating_add(d).max(0) as u64);
            }
        }
        for v in values.into_iter().filter(|&v| v < 1 << TOP_SHIFT) {
            let (low, high) = bucket_bounds(bucket_index(v));
            assert!((low..high).contains(&v), "{v} not in {low}..{high}");
        }
        assert_eq!(bucket_index(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_bounds(BUCKETS - 2).1, 1 << TOP_SHIFT);
        assert_eq!(BUCKETS, 361);
    }

    #[test]
    fn buckets_tile_the_line_and_are_narrow() {
        for i in 1..BUCKETS {
            let (low, high) = bucket_bounds(i);
            assert_eq!(bucket_bounds(i - 1).1, low);
            assert!(
                i < SUBS || i == BUCKETS - 1 || (high - low) * 8 <= low,
                "bucket {i}"
            );
        }
    }

    fn of(values: impl IntoIterator<Item = u64>) -> HistogramSnapshot {
        let mut h = HistogramSnapshot::default();
        values.into_iter().for_each(|v| h.record(v));
        h
    }

    #[test]
    fn maths_against_exact_values() {
        // 1..=10_000 microseconds: mean 5000.5, stdev 2886.75, quantiles known.
        let h = of((1..=10_000).map(|v| v * 1000));
        let near = |got: f64, want: f64, tolerance: f64| {
            assert!(
                (got / want - 1.0).abs() < tolerance,
                "{got} is not within {tolerance} of {want}"
            );
        };
        near(h.mean_ns().unwrap(), 5_000_500.0, 1e-9);
        near(h.stdev_ns().unwrap(), 2_886_751.0, 0.01);
        for (q, want) in [(0.5, 5e6), (0.9, 9e6), (0.99, 9.9e6), (0.999, 9.99e6)] {
            near(h.quantile_ns(q).unwrap(), want, 0.01);
        }
        assert_eq!(
            (h.min_bound_ns(), h.max_bound_ns()),
            (Some(1000), Some(10_000_000))
        );
        assert_eq!(h.quantile_ns(1.0), Some(1e7));
    }

    #[test]
    fn one_value_is_its_own_quantiles() {
        let h = of([777]);
        assert_eq!(h.quantile_ns(0.0), Some(777.0));
        assert_eq!(h.quantile_ns(1.0), Some(777.0));
        assert_eq!(h.stdev_ns(), Some(0.0));
    }

    #[test]
    fn empty_has_no_statistics() {
        let h = HistogramSnapshot::default();
        assert!(h.is_empty() && h.mean_ns().is_none() && h.stdev_ns().is_none());
        assert!(
            h.quantile_ns(0.5).is_none()
                && h.min_bound_ns().is_none()
                && h.max_bound_ns().is_none()
        );
    }

    #[test]
    fn merge_and_since_are_inverse() {
        let (a, b) = (of([100, 2000, 2000]), of([50, 1 << 20]));
        let mut both = a.clone();
        both.merge(&b);
        assert_eq!(
            (both.min_ns, both.max_ns, both.count),
            (Some(50), Some(1 << 20), 5)
        );
        let back = both.since(&a);
        assert_eq!(
            (back.buckets.clone(), back.sum_ns, back.count),
            (b.buckets.clone(), b.sum_ns, 2)
        );
        assert!(both.since(&both).is_empty());
    }

    #[test]
    fn a_replaced_recorder_counts_from_zero() {
        let (old, new) = (of([100; 10]), of([100; 3]));
        assert_eq!(new.since(&old).count, 3);
    }

    #[test]
    fn beyond_the_top_saturates() {
        let h = of([u64::MAX / 2]);
        assert_eq!(h.buckets, [(BUCKETS as u16 - 1, 1)]);
        assert_eq!(h.max_bound_ns(), Some(u64::MAX / 2));
        assert!(h.quantile_ns(1.0).unwrap() > 1e18);
    }

    #[test]
    fn unsorted_or_huge_indices_from_a_peer_do_no_harm() {
        let h = HistogramSnapshot {
            buckets: vec![(65535, u64::MAX), (65535, u64::MAX), (3, 1)],
            ..Default::default()
        };
        let _ = (
            h.mean_ns(),
            h.stdev_ns(),
            h.quantile_ns(0.99),
            h.total(),
            h.count_at_most(5),
        );
        let mut other = of([5]);
        other.merge(&h);
        let _ = other.since(&h);
    }

    #[test]
    fn cumulative_counts_grow() {
        let h = of([100, 1000, 10_000, 100_000]);
        assert_eq!(h.count_at_most(99_999_999), 4);
        assert_eq!(h.count_at_most(2000), 2);
        assert_eq!(h.count_at_most(0), 0);
    }
}
