use super::*;
use crate::seed::SplitMix64;

fn close(a: f64, b: f64, tolerance: f64) {
    assert!(
        (a - b).abs() <= tolerance,
        "{a} is not within {tolerance} of {b}"
    );
}

#[test]
fn moments_and_quantiles_of_a_known_sample() {
    let v = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
    close(mean(&v).unwrap(), 5.0, 0.0);
    close(stdev(&v).unwrap(), (32.0_f64 / 7.0).sqrt(), 1e-12);
    close(median(&v).unwrap(), 4.5, 0.0);
    close(quantile(&v, 0.25).unwrap(), 4.0, 0.0);
    close(quantile(&v, 0.75).unwrap(), 5.5, 1e-12);
    close(relative_spread(&v).unwrap(), 0.75 / 4.5, 1e-12);
}

#[test]
fn empty_and_out_of_range_input_gives_none() {
    assert_eq!(mean(&[]), None);
    assert_eq!(stdev(&[]), None);
    assert_eq!(stdev(&[3.0]), Some(0.0));
    assert_eq!(median(&[]), None);
    assert_eq!(quantile(&[1.0], 1.5), None);
    assert_eq!(bounds(&[], Method::Median, 0.95), None);
    assert_eq!(bounds(&[1.0; 9], Method::Median, 1.0), None);
    assert_eq!(bounds(&[1.0; 9], Method::Median, f64::NAN), None);
    assert_eq!(relative_spread(&[0.0, 0.0]), None);
}

#[test]
fn student_t_matches_the_printed_table() {
    // One-sided 95 % and 97.5 % points of the usual tables.
    for (p, df, t) in [
        (0.95, 1.0, 6.313_752),
        (0.95, 4.0, 2.131_847),
        (0.95, 10.0, 1.812_461),
        (0.95, 120.0, 1.657_651),
        (0.975, 1.0, 12.706_205),
        (0.975, 9.0, 2.262_157),
        (0.975, 30.0, 2.042_272),
        (0.995, 5.0, 4.032_143),
    ] {
        close(student_t_quantile(p, df).unwrap(), t, 2e-6);
        close(student_t_quantile(1.0 - p, df).unwrap(), -t, 2e-6);
    }
    close(student_t_quantile(0.975, 1e6).unwrap(), 1.959_966, 1e-5);
    assert_eq!(student_t_quantile(0.0, 3.0), None);
    assert_eq!(student_t_quantile(0.9, 0.0), None);
}

#[test]
fn sign_ranks_match_the_binomial_table() {
    // One-sided 5 %: P(Bin(5, 1/2) = 0) = 0.031; P(Bin(10) <= 1) = 0.011, <= 2 = 0.055; P(Bin(20) <= 5) = 0.0207, <= 6 = 0.058.
    assert_eq!(sign_rank(4, 0.05), None);
    assert_eq!(sign_rank(5, 0.05), Some(1));
    assert_eq!(sign_rank(10, 0.05), Some(2));
    assert_eq!(sign_rank(20, 0.05), Some(6));
    assert_eq!(sign_rank(1, 0.5), Some(1));
    assert_eq!(sign_rank(0, 0.05), None);
    // 2^-2000 is no double: the sum must still come out (normal approximation: 1000 - 1.645 * sqrt(500) = 963).
    let k = sign_rank(2000, 0.05).unwrap();
    assert!((961..=965).contains(&k), "{k}");
    assert_eq!(values_needed(Method::Median, 0.95), 5);
    assert_eq!(values_needed(Method::Median, 0.9875), 7);
    assert_eq!(values_needed(Method::Mean, 0.95), 2);
}

#[test]
fn median_bounds_ignore_one_wild_round_and_mean_bounds_do_not() {
    let calm: Vec<f64> = (0..15).map(|i| 1.0 + 0.001 * f64::from(i % 5)).collect();
    let mut wild = calm.clone();
    wild[3] = 50.0;
    let by_median = bounds(&wild, Method::Median, 0.95).unwrap();
    let by_mean = bounds(&wild, Method::Mean, 0.95).unwrap();
    assert!(by_median.upper < 1.01, "{by_median:?}");
    assert!(by_mean.upper > 5.0, "{by_mean:?}");
}

/// Both kinds of bound must cover the true centre at least about as often as they say.
#[test]
fn bounds_cover_the_true_centre_as_often_as_promised() {
    let mut random = SplitMix64::new(42);
    let mut uniform = || (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    // Sum of 12 uniforms less 6: close to a standard normal, symmetric around 0.
    let mut sample = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
    for method in [Method::Median, Method::Mean] {
        let (mut low, mut high, tries) = (0, 0, 4000);
        for _ in 0..tries {
            let values: Vec<f64> = (0..11).map(|_| sample()).collect();
            let b = bounds(&values, method, 0.95).unwrap();
            low += usize::from(b.lower <= 0.0);
            high += usize::from(b.upper >= 0.0);
        }
        for covered in [low, high] {
            let part = f64::from(covered as u32) / f64::from(tries);
            assert!(part > 0.94, "{method:?}: {part}");
            assert!(
                method == Method::Median || part < 0.96,
                "{method:?}: {part}"
            );
        }
    }
}

proptest::proptest! {
    #[test]
    fn bounds_enclose_the_estimate(values in proptest::collection::vec(-1e6..1e6f64, 5..60)) {
        for method in [Method::Median, Method::Mean] {
            let b = bounds(&values, method, 0.95).unwrap();
            proptest::prop_assert!(b.lower <= b.estimate && b.estimate <= b.upper, "{:?}", b);
        }
    }

    #[test]
    fn more_confidence_never_narrows(values in proptest::collection::vec(0.1..10.0f64, 10..60)) {
        for method in [Method::Median, Method::Mean] {
            let wide = bounds(&values, method, 0.99).unwrap();
            let narrow = bounds(&values, method, 0.9).unwrap();
            proptest::prop_assert!(wide.lower <= narrow.lower && narrow.upper <= wide.upper);
        }
    }
}
