use super::*;
use crate::bar::{Against, Relation, Verdict};

fn one(metric: &str, value: f64) -> Observation {
    Observation::from([(metric.to_owned(), value)])
}

fn ratio_bar(limit: f64) -> Bar {
    Bar::new(
        "a over b",
        "a",
        "ns",
        Relation::AtMost,
        limit,
        Against::Setting("b".into()),
    )
}

/// Noise that both settings of a round share, as on a busy machine.
fn shared_noise(round: usize) -> f64 {
    1.0 + SplitMix64::new(round as u64).below(1000) as f64 / 250.0
}

#[test]
fn every_round_runs_every_setting_once_in_changing_order() {
    for order in [Order::Shuffled, Order::Rotated] {
        let plan = Plan {
            order,
            min_rounds: 12,
            max_rounds: 12,
            ..Plan::new(["a", "b", "c", "d"])
        };
        let mut seen: Vec<Vec<String>> = vec![Vec::new(); 12];
        let rounds = run(&plan, &[], |t| {
            assert_eq!(seen[t.round].len(), t.position);
            seen[t.round].push(t.setting.to_owned());
            Ok::<_, String>(one("ns", 1.0))
        })
        .unwrap();
        assert_eq!(
            (rounds.len(), rounds.stop_reason()),
            (12, StopReason::RoundCap)
        );
        for round in &seen {
            let mut sorted = round.clone();
            sorted.sort();
            assert_eq!(sorted, ["a", "b", "c", "d"]);
        }
        let firsts: std::collections::BTreeSet<_> = seen.iter().map(|r| r[0].clone()).collect();
        assert_eq!(
            firsts.len(),
            4,
            "{order:?}: every setting is first some time: {seen:?}"
        );
    }
}

#[test]
fn the_order_follows_the_seed() {
    let orders = |seed| {
        let plan = Plan {
            seed,
            ..Plan::new(["a", "b", "c", "d", "e"])
        };
        (0..8).map(|r| plan.order_of(r)).collect::<Vec<_>>()
    };
    assert_eq!(orders(7), orders(7));
    assert_ne!(orders(7), orders(8));
}

#[test]
fn pairing_cancels_noise_that_both_settings_share() {
    let plan = Plan::new(["a", "b"]);
    let rounds = run(&plan, &[ratio_bar(0.95)], |t| {
        let true_cost = if t.setting == "a" { 90.0 } else { 100.0 };
        Ok::<_, String>(one("ns", true_cost * shared_noise(t.round)))
    })
    .unwrap();
    // Values vary five-fold; the ratio does not, so the first look settles it.
    assert!(stats::relative_spread(&rounds.values("a", "ns")).unwrap() > 0.1);
    assert_eq!(
        (rounds.len(), rounds.stop_reason()),
        (plan.min_rounds, StopReason::Settled)
    );
    let judged = &rounds.judge(&[ratio_bar(0.95)])[0];
    assert_eq!(judged.verdict, Verdict::Holds);
    assert!((judged.estimate.unwrap() - 0.9).abs() < 1e-9);
    assert!((rounds.versus_percent("a", "b", "ns").unwrap() + 10.0).abs() < 1e-9);
}

#[test]
fn rounds_are_added_until_the_half_width_is_small() {
    // Independent noise of +-5 %: 7 rounds are not precise, many are.
    let mut random = SplitMix64::new(3);
    let mut noisy = |base: f64| base * (0.95 + random.below(1001) as f64 / 10_000.0);
    let plan = Plan {
        decide_early: false,
        max_rounds: 4000,
        ..Plan::new(["a", "b"])
    };
    let rounds = run(&plan, &[ratio_bar(1.0)], |_| {
        Ok::<_, String>(one("ns", noisy(100.0)))
    })
    .unwrap();
    assert_eq!(rounds.stop_reason(), StopReason::Settled);
    assert!(
        rounds.len() > plan.min_rounds && rounds.len() < 4000,
        "{}",
        rounds.len()
    );
    assert!(rounds.judge(&[ratio_bar(1.0)])[0].half_width.unwrap() < 0.01);
}

#[test]
fn a_cap_leaves_the_bar_undecided() {
    let mut random = SplitMix64::new(5);
    let mut noisy = || 50.0 + random.below(1000) as f64;
    let plan = Plan {
        max_rounds: 14,
        ..Plan::new(["a", "b"])
    };
    let rounds = run(&plan, &[ratio_bar(1.0)], |_| {
        Ok::<_, String>(one("ns", noisy()))
    })
    .unwrap();
    assert_eq!(
        (rounds.len(), rounds.stop_reason()),
        (14, StopReason::RoundCap)
    );
    let judged = &rounds.judge(&[ratio_bar(1.0)])[0];
    assert_eq!(judged.verdict, Verdict::Undecided);
    assert!(
        judged
            .reason
            .as_ref()
            .unwrap()
            .contains("within the bounds"),
        "{judged:?}"
    );

    let plan = Plan {
        max_time: Some(Duration::ZERO),
        ..Plan::new(["a", "b"])
    };
    let rounds = run(&plan, &[ratio_bar(1.0)], |_| {
        Ok::<_, String>(one("ns", 1.0))
    })
    .unwrap();
    assert_eq!(
        (rounds.len(), rounds.stop_reason()),
        (1, StopReason::TimeCap)
    );
    let judged = &rounds.judge(&[ratio_bar(1.0)])[0];
    assert_eq!(judged.verdict, Verdict::Undecided);
    assert!(
        judged.reason.as_ref().unwrap().contains("needs"),
        "{judged:?}"
    );
}

#[test]
fn a_failed_trial_is_kept_and_its_pair_left_out() {
    let plan = Plan {
        min_rounds: 9,
        max_rounds: 9,
        ..Plan::new(["a", "b"])
    };
    let rounds = run(&plan, &[], |t| match (t.setting, t.round) {
        ("a", 2) => Err("killed after 10 s".to_owned()),
        ("b", 4) => Ok(one("ns", f64::NAN)),
        ("b", 5) => Ok(one("other", 1.0)),
        _ => Ok(one("ns", 2.0)),
    })
    .unwrap();
    assert_eq!(rounds.errors("a"), [(2, "killed after 10 s")]);
    assert_eq!(rounds.errors("b").len(), 1);
    let pairs = rounds.pairs("a", "b", "ns");
    assert_eq!((pairs.ratios.len(), pairs.left_out), (6, 3));
    assert_eq!(rounds.metrics("b"), ["ns", "other"]);
}

#[test]
fn zeros_pair_without_a_nan() {
    let plan = Plan {
        min_rounds: 7,
        max_rounds: 7,
        ..Plan::new(["a", "b"])
    };
    let rounds = run(&plan, &[], |t| {
        let zero = t.round < 5 || t.setting == "b";
        Ok::<_, String>(one("ns", if zero { 0.0 } else { 3.0 }))
    })
    .unwrap();
    let ratios = rounds.pairs("a", "b", "ns").ratios;
    assert_eq!(
        ratios,
        [1.0, 1.0, 1.0, 1.0, 1.0, f64::INFINITY, f64::INFINITY]
    );
    assert_eq!(rounds.versus_percent("a", "b", "ns"), Some(0.0));
}

#[test]
fn an_impossible_plan_is_refused_with_its_reason() {
    let go = |plan: &Plan, bars: &[Bar]| {
        run(plan, bars, |_| Ok::<_, String>(Observation::new())).unwrap_err()
    };
    assert_eq!(
        go(&Plan::new(Vec::<String>::new()), &[]),
        PlanError::NoSettings
    );
    assert_eq!(
        go(&Plan::new(["a", "a"]), &[]),
        PlanError::Duplicate("a".into())
    );
    let e = go(
        &Plan {
            min_rounds: 3,
            max_rounds: 2,
            ..Plan::new(["a"])
        },
        &[],
    );
    assert!(e.to_string().contains("at least 3"), "{e}");
    let e = go(&Plan::new(["a"]), &[ratio_bar(1.0)]);
    assert_eq!(
        e,
        PlanError::UnknownSetting {
            bar: "a over b".into(),
            setting: "b".into()
        }
    );
    assert_eq!(
        go(
            &Plan {
                confidence: 1.0,
                ..Plan::new(["a"])
            },
            &[]
        ),
        PlanError::Precision
    );
}

/// The promise of early decisions: under no difference, a bar at exactly 1.0 is rarely called either way.
#[test]
fn looking_early_errs_no_more_often_than_promised() {
    let mut random = SplitMix64::new(11);
    let plan = Plan {
        max_rounds: 28,
        half_width: 1e-9,
        ..Plan::new(["a", "b"])
    };
    let (mut holds, mut fails, tries) = (0, 0, 2000);
    for _ in 0..tries {
        let mut noisy = || 100.0 + random.below(1000) as f64;
        let rounds = run(&plan, &[ratio_bar(1.0)], |_| {
            Ok::<_, String>(one("ns", noisy()))
        })
        .unwrap();
        match rounds.judge(&[ratio_bar(1.0)])[0].verdict {
            Verdict::Holds => holds += 1,
            Verdict::Fails => fails += 1,
            Verdict::Undecided => {}
        }
    }
    assert!(
        holds <= tries * 5 / 100 && fails <= tries * 5 / 100,
        "{holds} and {fails} of {tries}"
    );
}
