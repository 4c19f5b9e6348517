//! A log-linear histogram of durations, plain integers, recorded under the pool's lock.
//!
//! Bucket bounds: values below 8 ns have a bucket each; above, every octave `[2^k, 2^(k+1))` is cut into 8 equal parts, so a
//! bucket is at most 12.5 % wide. 2^47 ns (39 hours) and more fall into the last bucket.

/// Linear parts an octave is cut into, as a power of two.
const SUB_BITS: u32 = 3;
/// Values from `2^MAX_BITS` nanoseconds on share the last bucket.
const MAX_BITS: u32 = 47;
/// How many buckets there are.
pub const BUCKETS: usize = (((MAX_BITS - SUB_BITS) << SUB_BITS) + (1 << SUB_BITS) + 1) as usize;

/// Counts per bucket with count, sum and maximum. About 3 KiB.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// Recordings per bucket.
    pub buckets: Box<[u64; BUCKETS]>,
    /// How many values were recorded.
    pub count: u64,
    /// Their sum, ns, saturating.
    pub sum: u64,
    /// The smallest, ns; `u64::MAX` if none.
    pub min: u64,
    /// The largest, ns.
    pub max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: Box::new([0; BUCKETS]),
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

/// The bucket of `ns`.
#[inline]
pub fn bucket_of(ns: u64) -> usize {
    if ns < 1 << SUB_BITS {
        return ns as usize;
    }
    let octave = 63 - ns.leading_zeros();
    if octave >= MAX_BITS {
        return BUCKETS - 1;
    }
    let sub = (ns >> (octave - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((octave - SUB_BITS + 1) << SUB_BITS) as u64 + sub) as usize
}

/// The smallest value of bucket `i`, ns.
pub fn bucket_low(i: usize) -> u64 {
    let i = i as u64;
    if i < 1 << SUB_BITS {
        return i;
    }
    let octave = (i >> SUB_BITS) as u32 + SUB_BITS - 1;
    let sub = i & ((1 << SUB_BITS) - 1);
    (1 << octave) + (sub << (octave - SUB_BITS))
}

impl Histogram {
    /// Records one duration. A few instructions, no allocation.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.buckets[bucket_of(ns)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(ns);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// Adds the recordings of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (a, b) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *a += b;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// An upper bound of the `q`-quantile (0..=1), within one bucket's width; 0 if nothing was recorded.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank && *n > 0 {
                let high = if i + 1 < BUCKETS {
                    bucket_low(i + 1) - 1
                } else {
                    self.max
                };
                return high.min(self.max);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_are_contiguous() {
        for i in 0..BUCKETS {
            assert_eq!(bucket_of(bucket_low(i)), i);
            if i > 0 {
                assert_eq!(bucket_of(bucket_low(i) - 1), i - 1);
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_bucket_of_the_sorted_values(mut v in proptest::collection::vec(0u64..1 << 40, 1..300), q in 0.0..=1.0f64) {
            let mut h = Histogram::default();
            v.iter().for_each(|&x| h.record(x));
            v.sort_unstable();
            let exact = v[((v.len() as f64 * q).ceil() as usize).clamp(1, v.len()) - 1];
            let got = h.quantile(q);
            prop_assert!(got >= exact && got as f64 <= exact as f64 * 1.126 + 1.0, "{} for {}", got, exact);
            prop_assert_eq!(h.count as usize, v.len());
            prop_assert_eq!((h.min, h.max), (v[0], v[v.len() - 1]));
        }
    }
}
