//! The simulator itself: one seed decides everything, any size runs, faults find nothing.

use cmwq_sim::{Scenario, Setting, faults, machines, run};
use std::sync::Arc;

fn short(name: &str, cpus: usize) -> Scenario {
    let mut s = Scenario::named(name, cpus).unwrap();
    s.warm_up_ms = 2;
    s.measure_ms = 10;
    s
}

#[test]
fn the_same_seed_gives_the_same_outcome_bit_for_bit_and_another_seed_another_one() {
    let m = Arc::new(machines::find("ryzen-3900x").unwrap());
    for setting in ["system", "cache", "default"] {
        let set = Setting::named(setting).unwrap();
        let one = |seed| {
            let o = run(&m, &short("low", 24), &set, seed);
            (
                o.item_events,
                o.latency.sum,
                o.latency.max,
                o.cpu_percent.to_bits(),
                o.migrations_per_item.to_bits(),
            )
        };
        assert_eq!(one(7), one(7));
        assert_ne!(one(7), one(8));
    }
}

#[test]
fn a_fault_run_of_one_seed_has_one_trace() {
    for seed in 40..44 {
        assert_eq!(faults::run_seed(seed, None), faults::run_seed(seed, None));
    }
}

#[test]
fn a_machine_of_4096_cpus_runs() {
    let m = Arc::new(machines::find("package:8 l3:16 core:16 thread:2").unwrap());
    assert_eq!(m.topology.online().len(), 4096);
    let mut s = short("queue", 4096);
    (s.jobs, s.warm_up_ms, s.measure_ms) = (256, 0, 1);
    let o = run(&m, &s, &Setting::named("default").unwrap(), 1);
    assert!(
        o.requests_per_s > 256_000.0,
        "every issuer got something done"
    );
}

#[test]
fn every_setting_gets_every_scenario_done() {
    let m = Arc::new(machines::find("l3:2 core:2 thread:2").unwrap());
    for name in cmwq_sim::scenario::NAMES {
        for set in cmwq_sim::setting::ALL {
            let mut s = short(name, 8);
            (s.jobs, s.depth) = (s.jobs.min(8), s.depth.min(8));
            let o = run(&m, &s, &set, 1);
            assert!(
                o.requests_per_s > 0.0,
                "{name} with {} got nothing done",
                set.name
            );
        }
    }
}

#[test]
fn an_open_loop_load_arrives_at_its_rate() {
    let m = Arc::new(machines::find("l3:1 core:8").unwrap());
    let s = Scenario {
        jobs: 4,
        every_us: 50.0,
        item_us: 5.0,
        measure_ms: 200,
        ..Scenario::default()
    };
    let o = run(&m, &s, &Setting::named("default").unwrap(), 3);
    let rate = 4.0 / 50e-6;
    assert!(
        (o.requests_per_s / rate - 1.0).abs() < 0.05,
        "{} of {rate} a second",
        o.requests_per_s
    );
}

#[test]
fn a_strict_scope_loses_work_conservation_and_helping_wins_it_back() {
    // All issuers on one cache: with a strict scope the other caches idle.
    let m = Arc::new(machines::find("l3:4 core:4").unwrap());
    let s = Scenario {
        jobs: 4,
        depth: 16,
        pinned: true,
        item_us: 40.0,
        measure_ms: 40,
        ..Scenario::default()
    };
    let rate = |name| run(&m, &s, &Setting::named(name).unwrap(), 1).requests_per_s;
    let (strict, system, ours) = (rate("cache-strict"), rate("system"), rate("default"));
    assert!(strict < 0.5 * system, "{strict} {system}");
    assert!(ours > 0.95 * system, "{ours} {system}");
}

#[test]
fn random_machines_loads_and_faults_break_no_invariant() {
    let (good, sum, bad) = faults::run_many(1_000_000, 60, 2);
    assert!(bad.is_empty(), "{}", bad[0]);
    assert_eq!(good, 60);
    assert!(sum.items > 1000);
}

#[test]
fn a_violation_names_a_command_that_replays_it() {
    let v = faults::Violation {
        seed: 5,
        only: Some(vec![1, 3]),
        what: "x".to_string(),
    };
    assert_eq!(v.replay(), "cmwq sim --faults 1 --seed 5 --only 1,3");
}

/// Figure E, published: 2,939,917 and 602,096 items a second.
#[test]
fn one_pool_for_72_cores_of_a_cache_is_as_much_slower_as_published() {
    let m = Arc::new(machines::find("grace-72").unwrap());
    let s = Scenario {
        measure_ms: 5,
        ..short("queue", 72)
    };
    let rate = |name| run(&m, &s, &Setting::named(name).unwrap(), 1).items_per_s;
    let factor = rate("cache-shard") / rate("cache");
    assert!((factor / 4.88 - 1.0).abs() < 0.3, "{factor}");
}

/// Figure B, published: 2495, 1736 and 1276 MiB/s with 8, 16 and 768.
#[test]
fn limits_that_are_too_wide_cost_what_was_published() {
    let m = Arc::new(machines::find("btrfs-96").unwrap());
    let set = Setting::named("system").unwrap();
    let rate = |max_active| {
        let s = Scenario {
            max_active,
            ..Scenario::named("limit", 96).unwrap()
        };
        run(&m, &s, &set, 1).bandwidth_mib_s
    };
    let narrow = rate(8);
    for (max_active, published) in [(16, 1736.0 / 2495.0), (768, 1276.0 / 2495.0)] {
        let ratio = rate(max_active) / narrow;
        assert!(
            (ratio / published - 1.0).abs() < 0.15,
            "{max_active}: {ratio} instead of {published}"
        );
    }
}
