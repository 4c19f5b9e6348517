use super::*;
use crate::rounds::{Observation, Plan, run};

/// Nine rounds with these values a setting; a value of NaN leaves the figure out.
fn rounds(values: &[(&str, [f64; 9])]) -> Rounds {
    let plan = Plan {
        min_rounds: 9,
        max_rounds: 9,
        ..Plan::new(values.iter().map(|(n, _)| *n))
    };
    run(&plan, &[], |t| {
        let value = values.iter().find(|(n, _)| *n == t.setting).unwrap().1[t.round];
        let mut figures = Observation::new();
        if !value.is_nan() {
            figures.insert("x".into(), value);
        }
        Ok::<_, String>(figures)
    })
    .unwrap()
}

const FLAT: [f64; 9] = [1.0; 9];

#[test]
fn both_sides_of_a_relation_are_judged() {
    let r = rounds(&[("a", [1.2; 9]), ("b", FLAT)]);
    let verdict = |relation, limit| {
        Bar::new("n", "a", "x", relation, limit, Against::Setting("b".into()))
            .judge(&r)
            .verdict
    };
    assert_eq!(verdict(Relation::AtMost, 1.3), Verdict::Holds);
    assert_eq!(verdict(Relation::AtMost, 1.1), Verdict::Fails);
    assert_eq!(verdict(Relation::AtLeast, 1.1), Verdict::Holds);
    assert_eq!(verdict(Relation::AtLeast, 1.3), Verdict::Fails);
    let wide = rounds(&[
        ("a", [0.5, 1.5, 0.6, 1.4, 0.7, 1.3, 0.8, 1.2, 1.0]),
        ("b", FLAT),
    ]);
    let j = Bar::new(
        "n",
        "a",
        "x",
        Relation::AtMost,
        1.1,
        Against::Setting("b".into()),
    )
    .judge(&wide);
    assert_eq!(j.verdict, Verdict::Undecided);
    assert!(j.lower.unwrap() < 1.1 && j.upper.unwrap() > 1.1);
    assert!(j.line().contains("limit <= 1.1"), "{}", j.line());
}

#[test]
fn an_absolute_bar_needs_no_reference() {
    let r = rounds(&[("a", [0.0; 9])]);
    let j = Bar::at_most("idle", "a", "x", 0.01).judge(&r);
    assert_eq!(
        (j.verdict, j.half_width, j.against),
        (Verdict::Holds, Some(0.0), None)
    );
}

#[test]
fn the_best_peer_is_chosen_by_its_median_and_the_side_of_the_bar() {
    let r = rounds(&[
        ("a", [1.0; 9]),
        ("slow", [3.0; 9]),
        ("fast", [0.9; 9]),
        ("absent", [f64::NAN; 9]),
    ]);
    let peers = vec!["slow".to_owned(), "fast".into(), "absent".into()];
    let j = Bar::new(
        "n",
        "a",
        "x",
        Relation::AtMost,
        1.05,
        Against::BestOf(peers.clone()),
    )
    .judge(&r);
    assert_eq!(
        (j.against.as_deref(), j.verdict),
        (Some("fast"), Verdict::Fails)
    );
    let j = Bar::new(
        "n",
        "a",
        "x",
        Relation::AtLeast,
        0.3,
        Against::BestOf(peers),
    )
    .judge(&r);
    assert_eq!(
        (j.against.as_deref(), j.verdict),
        (Some("slow"), Verdict::Holds)
    );
}

#[test]
fn the_best_peers_spread_widens_the_limit() {
    // The best varies by about +-10 %; 1.05 of its median in every round is within that.
    let best = [0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2];
    let ours = best.map(|v| v * 1.05);
    let r = rounds(&[("a", ours), ("best", best)]);
    let peers = vec!["best".to_owned()];
    let strict = Bar::new(
        "n",
        "a",
        "x",
        Relation::AtMost,
        1.0,
        Against::BestOf(peers.clone()),
    )
    .judge(&r);
    let lenient = Bar::new(
        "n",
        "a",
        "x",
        Relation::AtMost,
        1.0,
        Against::BestWithinSpread(peers),
    )
    .judge(&r);
    assert_eq!(
        (strict.verdict, lenient.verdict),
        (Verdict::Fails, Verdict::Holds)
    );
    assert!((lenient.limit - 1.1).abs() < 1e-9, "{lenient:?}");
}

#[test]
fn nothing_measured_is_undecided_with_a_reason() {
    let r = rounds(&[("a", [f64::NAN; 9]), ("b", FLAT)]);
    let j = Bar::at_most("n", "a", "x", 1.0).judge(&r);
    assert_eq!(
        (j.verdict, j.reason.as_deref()),
        (Verdict::Undecided, Some("not measured"))
    );
    let j = Bar::new(
        "n",
        "b",
        "x",
        Relation::AtMost,
        1.0,
        Against::BestOf(vec!["a".into()]),
    )
    .judge(&r);
    assert_eq!(j.verdict, Verdict::Undecided);
    assert!(j.reason.unwrap().contains("no peer"));
}

#[test]
fn left_out_rounds_are_told() {
    let mut some = FLAT;
    some[4] = f64::NAN;
    let r = rounds(&[("a", some), ("b", FLAT)]);
    let j = Bar::new(
        "n",
        "a",
        "x",
        Relation::AtMost,
        2.0,
        Against::Setting("b".into()),
    )
    .judge(&r);
    assert_eq!((j.verdict, j.rounds), (Verdict::Holds, 8));
    assert!(j.reason.unwrap().contains("1 rounds left out"));
}
