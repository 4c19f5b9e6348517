use super::*;
use std::collections::BTreeSet;

fn job() -> Job {
    Job {
        threads: 2,
        quick: true,
        rate: Rate { steps_per_us: 50.0 },
    }
}

/// Every workload gives exactly the figures it is listed with, each a number that can be.
#[test]
fn every_workload_gives_its_figures() {
    for workload in ALL.iter().filter(|w| w.name != "handover") {
        let figures = run("crossbeam", workload.name, &job())
            .unwrap_or_else(|e| panic!("{}: {e:#}", workload.name));
        let names: BTreeSet<&str> = figures.keys().map(String::as_str).collect();
        let listed: BTreeSet<&str> = workload.metrics.iter().map(|m| m.name).collect();
        assert_eq!(names, listed, "{}", workload.name);
        for (name, value) in &figures {
            assert!(
                value.is_finite() && (*value >= 0.0 || name.contains("loss")),
                "{name} = {value}"
            );
        }
    }
}

/// In a thread of its own, whose mask ends with it: the workload binds its caller to one CPU.
#[test]
fn a_fixed_pool_hands_over_only_when_the_sleep_ends() {
    let figures = std::thread::spawn(|| run("crossbeam", "handover", &job()))
        .join()
        .unwrap()
        .unwrap();
    assert!(figures["handover_p50_us"] > 8_000.0, "{figures:?}");
    assert!(figures["handover_p99_us"] >= figures["handover_p50_us"]);
}

#[test]
fn the_floor_has_its_figures() {
    let figures = floor::measure(true).unwrap();
    for metric in floor::METRICS {
        assert!(figures[metric.name] > 0.0, "{}: {figures:?}", metric.name);
    }
    assert_eq!(figures.len(), floor::METRICS.len());
}

#[test]
fn unknown_names_are_refused() {
    assert!(
        run("crossbeam", "nosuch", &job())
            .unwrap_err()
            .to_string()
            .contains("no workload")
    );
    assert!(
        run("nosuch", "ext", &job())
            .unwrap_err()
            .to_string()
            .contains("no pool")
    );
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<&str> = ALL.iter().map(|w| w.name).collect();
    assert_eq!(names.len(), ALL.len());
    let metrics: Vec<&str> = ALL.iter().flat_map(|w| w.metrics).map(|m| m.name).collect();
    assert_eq!(metrics.iter().collect::<BTreeSet<_>>().len(), metrics.len());
}
