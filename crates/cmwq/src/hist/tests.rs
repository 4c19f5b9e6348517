//! Against a sorted vector, and against hdrhistogram.

use proptest::prelude::*;

use super::*;

fn filled(values: &[u64]) -> Histogram {
    let h = Histogram::new();
    for v in values {
        h.record(*v);
    }
    h
}

/// Values of all magnitudes.
fn value() -> impl Strategy<Value = u64> {
    (0_u32..=64, any::<u64>()).prop_map(|(bits, v)| if bits == 0 { 0 } else { v >> (64 - bits) })
}

#[test]
fn buckets_are_adjacent_and_cover_everything() {
    assert_eq!(BUCKETS, 361);
    let mut next = 0;
    for i in 0..BUCKETS {
        let (low, high) = bucket_range(i);
        assert_eq!(low, next, "bucket {i}");
        assert_eq!((bucket_of(low), bucket_of(high)), (i, i));
        if (SUBS..BUCKETS - 1).contains(&i) {
            assert!(
                (high - low) as f64 <= low as f64 / 8.0,
                "bucket {i} is too wide"
            );
        }
        next = high.wrapping_add(1);
    }
    assert_eq!(next, 0);
    assert_eq!(bucket_range(usize::MAX), bucket_range(BUCKETS - 1));
    assert!(
        bucket_range(BUCKETS - 1).0 > 24 * 3600 * 1_000_000_000,
        "a day fits"
    );
}

#[test]
fn empty_is_empty() {
    let s = Histogram::new().snapshot();
    assert_eq!(
        (
            s.count(),
            s.sum(),
            s.mean(),
            s.min_bound(),
            s.max(),
            s.quantile(0.5)
        ),
        (0, 0, None, None, None, None)
    );
    assert_eq!(s, Snapshot::default());
}

#[test]
fn the_longest_values_saturate_into_the_last_bucket() {
    let s = filled(&[u64::MAX, 1 << 47, 5]).snapshot();
    assert_eq!(s.counts()[BUCKETS - 1], 2);
    assert_eq!(s.max(), Some(u64::MAX));
    assert_eq!(s.quantile(1.0), Some(u64::MAX));
    assert_eq!(s.quantile(0.0), Some(5));
    assert_eq!(s.quantile(f64::NAN), Some(5));
}

proptest! {
    #[test]
    fn quantiles_are_those_of_the_sorted_values(mut values in prop::collection::vec(value(), 1..300), q in 0.0..=1.0_f64) {
        let s = filled(&values).snapshot();
        values.sort_unstable();
        let n = values.len();
        prop_assert_eq!(s.count(), n as u64);
        prop_assert_eq!(s.sum(), values.iter().fold(0, |a: u64, b| a.wrapping_add(*b)));
        prop_assert_eq!(s.max(), values.last().copied());
        let min = s.min_bound().unwrap();
        prop_assert_eq!(bucket_of(min), bucket_of(values[0]));
        prop_assert!(min <= values[0]);
        let truth = values[((q * n as f64).ceil() as usize).clamp(1, n) - 1];
        let told = s.quantile(q).unwrap();
        prop_assert!(told >= truth, "{} told, {} true", told, truth);
        prop_assert_eq!(bucket_of(told), bucket_of(truth));
    }

    #[test]
    fn merging_shards_is_recording_in_one(a in prop::collection::vec(value(), 0..100), b in prop::collection::vec(value(), 0..100)) {
        let both = filled(&[a.clone(), b.clone()].concat()).snapshot();
        let mut merged = filled(&a).snapshot();
        merged.merge(&filled(&b).snapshot());
        prop_assert_eq!(&merged, &both);
        let mut added = Snapshot::new();
        filled(&a).add_to(&mut added);
        filled(&b).add_to(&mut added);
        prop_assert_eq!(added, both);
    }

    /// An independent implementation with 3 digits of precision agrees to within our bucket width and its own.
    #[test]
    fn agrees_with_hdrhistogram(values in prop::collection::vec(1_u64..1 << 46, 1..500), q in 0.0..=1.0_f64) {
        let s = filled(&values).snapshot();
        let mut other = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1 << 47, 3).unwrap();
        for v in &values {
            other.record(*v).unwrap();
        }
        let (ours, theirs) = (s.quantile(q).unwrap() as f64, other.value_at_quantile(q) as f64);
        prop_assert!(ours >= theirs * (1.0 - 0.002), "{} against {}", ours, theirs);
        prop_assert!(ours <= theirs * (1.125 + 0.002) + 1.0, "{} against {}", ours, theirs);
        prop_assert!((s.mean().unwrap() - other.mean()).abs() <= other.mean() * 0.002);
    }
}

/// A reader never sees more than was recorded, never less than before, and in the end everything.
#[test]
fn a_reader_beside_the_writer_sees_a_growing_count() {
    const N: u64 = 300_000;
    let h = std::sync::Arc::new(Histogram::new());
    let w = std::sync::Arc::clone(&h);
    let writer = std::thread::spawn(move || {
        for i in 0..N {
            w.record(i);
        }
    });
    let mut last = 0;
    while !writer.is_finished() {
        let now = h.snapshot().count();
        assert!(now >= last && now <= N);
        last = now;
    }
    writer.join().unwrap();
    let s = h.snapshot();
    assert_eq!(
        (s.count(), s.sum(), s.max()),
        (N, N * (N - 1) / 2, Some(N - 1))
    );
}

#[test]
#[ignore = "prints a figure; run with --release -- --ignored --nocapture"]
fn cost_of_recording() {
    use crate::sys::cpu::own_cpu_time;
    const N: u64 = 5_000_000;
    let h = Histogram::new();
    // CPU time, so that other load hardly counts; rounds with and without recording take turns.
    let round = |record: bool| {
        let start = own_cpu_time().unwrap();
        let mut x = 1_u64;
        for _ in 0..N {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let v = std::hint::black_box(x >> 44);
            if record {
                h.record(v);
            }
        }
        (own_cpu_time().unwrap() - start).as_nanos() as f64 / N as f64
    };
    let mut rounds: Vec<f64> = (0..15).map(|_| -round(false) + round(true)).collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "{:.2} [{:.2}..{:.2}] ns a value, without the making of the value",
        rounds[7], rounds[0], rounds[14]
    );
}
