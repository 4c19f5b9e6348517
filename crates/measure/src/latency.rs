//! A latency recorder: an HDR histogram of nanoseconds with three significant digits, and the summary that goes into rows.
//!
//! Recording costs a few nanoseconds and never allocates. A recorder belongs to one thread; merge those of several with [`Latency::add`].

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told apart: one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Latencies recorded so far. Relative error of percentiles at most 0.1 %; mean and deviation are of the same buckets.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
}

/// Summary in microseconds: the `latency_us`, `handover_us`, ... of a row.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencySummary {
    /// Number of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Arithmetic mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Standard deviation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdev: Option<f64>,
    /// Smallest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// 90th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// 95th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95: Option<f64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// 99.9th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_9: Option<f64>,
    /// Largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

impl LatencySummary {
    /// The figures that are there, in the order mean, stdev, min, percentiles, max, with their JSON names. Without the count.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, f64)> {
        [
            ("mean", self.mean),
            ("stdev", self.stdev),
            ("min", self.min),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("p99_9", self.p99_9),
            ("max", self.max),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    /// An empty recorder; about 260 KiB, allocated here and never again.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the bounds are constants that the histogram accepts"
    )]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .expect("1 <= high / 2, and 3 digits of at most 5");
        Self { histogram }
    }

    /// Records one latency; longer than an hour counts as an hour.
    pub fn record(&mut self, latency: Duration) {
        self.record_ns(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records one latency in nanoseconds; longer than an hour counts as an hour.
    pub fn record_ns(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// Takes over everything that `other` recorded.
    #[expect(
        clippy::missing_panics_doc,
        reason = "all recorders have the same bounds"
    )]
    pub fn add(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("both histograms have the same bounds");
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// A percentile (0-100) in microseconds; `None` of an empty recorder.
    pub fn percentile_us(&self, percentile: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.histogram.value_at_percentile(percentile) as f64 / 1000.0)
    }

    /// All figures in microseconds; all absent but a count of 0 for an empty recorder.
    pub fn summary(&self) -> LatencySummary {
        let h = &self.histogram;
        if h.is_empty() {
            return LatencySummary {
                count: Some(0),
                ..LatencySummary::default()
            };
        }
        let us = |ns: f64| Some(ns / 1000.0);
        LatencySummary {
            count: Some(h.len()),
            mean: us(h.mean()),
            stdev: us(h.stdev()),
            min: us(h.min() as f64),
            p50: self.percentile_us(50.0),
            p90: self.percentile_us(90.0),
            p95: self.percentile_us(95.0),
            p99: self.percentile_us(99.0),
            p99_9: self.percentile_us(99.9),
            max: us(h.max() as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: Option<f64>, b: f64) {
        let a = a.unwrap();
        assert!((a - b).abs() <= b * 0.002 + 0.001, "{a} for {b}");
    }

    #[test]
    fn percentiles_of_one_to_a_thousand_microseconds() {
        let mut l = Latency::new();
        for us in 1..=1000 {
            l.record(Duration::from_micros(us));
        }
        let s = l.summary();
        assert_eq!(s.count, Some(1000));
        close(s.p50, 500.0);
        close(s.p90, 900.0);
        close(s.p95, 950.0);
        close(s.p99, 990.0);
        close(s.p99_9, 999.0);
        close(s.mean, 500.5);
        close(s.stdev, 288.7);
        close(s.min, 1.0);
        close(s.max, 1000.0);
        assert_eq!(s.figures().count(), 9);
    }

    #[test]
    fn an_empty_recorder_has_no_figures() {
        let s = Latency::new().summary();
        assert_eq!((s.count, s.figures().count()), (Some(0), 0));
        assert_eq!(Latency::new().percentile_us(50.0), None);
    }

    #[test]
    fn merging_equals_recording_all_in_one() {
        let (mut a, mut b, mut all) = (Latency::new(), Latency::new(), Latency::new());
        for ns in (0..200_000).step_by(37) {
            if ns % 2 == 0 {
                a.record_ns(ns)
            } else {
                b.record_ns(ns)
            }
            all.record_ns(ns);
        }
        a.add(&b);
        assert_eq!(a.summary(), all.summary());
    }

    #[test]
    fn absurd_values_are_clamped_not_lost() {
        let mut l = Latency::new();
        l.record(Duration::MAX);
        l.record_ns(0);
        assert_eq!(l.count(), 2);
        close(l.summary().max, 3.6e9);
        assert_eq!(l.summary().min, Some(0.0));
    }
}
