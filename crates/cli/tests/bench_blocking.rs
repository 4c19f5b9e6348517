//! `cmwq bench blocking --json` has the members that others rely on.

use serde_json::Value;
use std::process::Command;

#[test]
fn the_json_has_a_row_for_each_mechanism_and_the_mixed_load() {
    let out = Command::new(env!("CARGO_BIN_EXE_cmwq"))
        .args(["bench", "blocking", "--quick", "--rounds", "1", "--json"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    let v: Value = serde_json::from_slice(&out.stdout).unwrap();
    let problems = cmwq_measure::validate(&v);
    assert!(problems.is_empty(), "{problems:?}");
    let rows = v["rows"].as_array().unwrap();
    for mechanism in ["said", "sentinel", "tick", "records", "auto"] {
        for hog in [false, true] {
            let row = rows
                .iter()
                .find(|r| r["mechanism"] == mechanism && r["hog"] == hog)
                .unwrap_or_else(|| panic!("no row {mechanism} hog {hog}"));
            if let Some(why) = row.get("error") {
                println!("skipped: {mechanism}: {why}");
                continue;
            }
            let (p50, p99) = (&row["handover_us"]["p50"], &row["handover_us"]["p99"]);
            assert!(p50.as_f64().unwrap() > 0.0, "{row}");
            assert!(p99.as_f64().unwrap() >= p50.as_f64().unwrap(), "{row}");
        }
    }
    for kind in ["warm", "cold"] {
        let m = &v["mix"][kind];
        let of = |key: &str| {
            m[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{kind} {key}: {m}"))
        };
        assert!((of("ideal_ms") - 1.6).abs() < 1e-9);
        assert!(of("compute_ms") > of("ideal_ms") / 2.0);
        assert!(of("workers") >= 1.0);
    }
}
