use super::*;
use crate::bar::{Bar, Relation};
use crate::rounds::{Observation, Plan, run};

/// A document that has every member.
pub(crate) fn full() -> Document {
    let plan = Plan {
        min_rounds: 7,
        max_rounds: 7,
        ..Plan::new(["default", "system"])
    };
    let rounds = run(&plan, &[], |t| {
        Ok::<_, String>(Observation::from([(
            "mib".to_owned(),
            if t.setting == "default" { 9.0 } else { 8.0 },
        )]))
    })
    .unwrap();
    let bar = Bar::new(
        "ahead",
        "default",
        "mib",
        Relation::AtLeast,
        1.0,
        crate::Against::Setting("system".into()),
    );
    let mut row = Row::new("high", "default").figure("writes", "MiB/s", Spread::exact(3.0));
    row.bandwidth_mib_s = Spread::of(&[1159.0, 1160.0, 1158.0]);
    row.items_per_s = Some(Spread {
        mean: 10.0,
        stdev: 0.5,
        ..Spread::default()
    });
    row.cpu_util_percent = Some(290.8);
    row.cpu_util_of = Some(CpuUtilOf::OneCpu);
    row.vs_system_percent = Some(-2.03);
    row.latency_us = Some(LatencySummary {
        mean: Some(13.3),
        p50: Some(10.0),
        p99_9: Some(40.0),
        ..Default::default()
    });
    row.started_in_pod_percent = Some(97.5);
    row.migrations_per_item = Some(0.02);
    row.mechanism = Some("sentinel".into());
    row.hog = Some(false);
    row.handover_us = Some(LatencySummary {
        p50: Some(5.9),
        p99: Some(9.2),
        ..Default::default()
    });
    let mut document = Document::new(
        "cmwq bench crypt",
        Machine {
            name: Some("m".into()),
            simulated: true,
            ..Machine::detect()
        },
    )
    .setting("rounds", 7)
    .setting("scopes", serde_json::json!(["cache", "numa"]))
    .versioned("cmwq", "0.1.0");
    document.rows.push(row);
    document.verdicts = rounds.judge(&[bar]);
    document.extras.insert(
        "mix".into(),
        serde_json::json!({"warm": {"compute_ms": 1.9, "ideal_ms": 1.6, "workers": 19}}),
    );
    document
}

#[test]
fn a_full_document_survives_the_round_trip() {
    let document = full();
    let text = document.to_json().unwrap();
    assert_eq!(Document::from_json(&text).unwrap(), document);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["rows"][0]["cpu_util_of"], "one-cpu");
    assert_eq!(value["rows"][0]["latency_us"]["p99_9"], 40.0);
    assert_eq!(value["rows"][0]["figures"]["writes"]["unit"], "MiB/s");
    assert_eq!(value["mix"]["warm"]["workers"], 19);
    assert_eq!(value["verdicts"][0]["verdict"], "holds");
    assert!(
        value["rows"][0]["latency_us"].get("p95").is_none(),
        "absent figures are left out, not null"
    );
}

#[test]
fn the_readme_example_is_valid_and_complete() {
    let readme = include_str!("../../README.md");
    let example = readme
        .split("```json")
        .nth(1)
        .and_then(|r| r.split("```").next())
        .expect("README has a json block");
    let document = Document::from_json(example).unwrap_or_else(|e| panic!("{e}"));
    // Every member that the crate writes is shown in the README.
    for member in [
        "bandwidth_mib_s",
        "items_per_s",
        "cpu_util_percent",
        "cpu_util_of",
        "vs_system_percent",
        "latency_us",
        "started_in_pod_percent",
        "migrations_per_item",
        "mechanism",
        "hog",
        "handover_us",
        "figures",
        "error",
    ] {
        assert!(
            example.contains(&format!("\"{member}\"")),
            "{member} is not in the README's example"
        );
    }
    assert!(!document.verdicts.is_empty());
}

#[test]
fn a_nan_is_refused_when_writing() {
    let mut document = full();
    document.rows[0].vs_system_percent = Some(f64::NAN);
    let e = document.to_json().unwrap_err();
    assert_eq!(e.0[0].path, "$.rows[0].vs_system_percent");
    assert!(
        e.to_string().contains("expected a number, found null"),
        "{e}"
    );
}

#[test]
fn this_machine_is_described() {
    let machine = Machine::detect();
    assert!(machine.cpus >= 1);
    assert!(machine.line().contains("CPU"), "{}", machine.line());
    assert!(!machine.simulated);
}

#[test]
fn cells_cover_every_figure() {
    let document = full();
    let names: Vec<String> = document.rows[0]
        .cells()
        .into_iter()
        .map(|c| c.name)
        .collect();
    assert_eq!(
        names,
        [
            "bandwidth",
            "items/s",
            "CPU",
            "vs system",
            "latency mean",
            "latency p50",
            "latency p99.9",
            "hand-over p50",
            "hand-over p99",
            "started in pod",
            "migrations",
            "writes"
        ]
    );
    assert_eq!(document.scenarios(), ["high"]);
    assert_eq!(document.rows_of("high").count(), 1);
}
