//! The modelled 3900X against the published figures:
//! `fit [SWEEPS [SEEDS MS [SEEDS MS]]] [CONSTANT=VALUE ...] [SCENARIO,...]`. Prints every cell, fitted or for checking only, next to
//! the published one (10 seeds of 300 ms, or the second pair); with a number of sweeps it looks for better constants before that, by coordinate descent within the bounds of
//! [`BOUNDS`]. Deterministic.

use cmwq_sim::cost::Costs;
use cmwq_sim::{Machine, Scenario, Setting, run};
use cmwq_topology::Topology;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A published row: scenario, setting, read bandwidth in MiB/s, CPU utilisation in percent (of the machine, or of one CPU where
/// the issuer is pinned), and whether its percentage against `system` is fitted; the others are for checking only.
type Cell = (&'static str, &'static str, f64, f64, bool);

const CELLS: [Cell; 33] = [
    ("high", "system", 1159.4, 99.31, false),
    ("high", "cache", 1166.4, 99.34, true),
    ("high", "cache-strict", 1166.0, 99.35, false),
    ("high", "system-local", 1157.4, 99.50, true),
    ("high", "cache-local", 1160.4, 99.50, false),
    ("med", "system", 1155.4, 97.41, false),
    ("med", "cache", 1154.4, 96.15, true),
    ("med", "cache-strict", 1112.0, 93.26, true),
    ("med", "system-local", 1066.8, 86.70, true),
    ("med", "cache-local", 1034.6, 83.00, false),
    ("low", "system", 993.6, 75.49, false),
    ("low", "cache", 973.4, 74.90, true),
    ("low", "cache-strict", 828.2, 66.84, true),
    ("low", "system-local", 884.2, 64.14, false),
    ("low", "cache-local", 860.6, 61.46, true),
    ("llow", "system", 55.08, 290.80, false),
    ("llow", "cache", 64.42, 291.51, true),
    ("llow", "cache-strict", 65.18, 303.74, false),
    ("llow", "cpu-strict", 32.86, 159.05, true),
    ("llow", "system-local", 56.76, 286.78, true),
    ("llow", "cache-local", 57.74, 291.65, false),
    ("sync", "system", 18.64, 88.41, false),
    ("sync", "cache", 21.46, 91.39, true),
    ("sync", "cache-strict", 20.80, 90.68, true),
    ("sync", "cpu-strict", 21.12, 95.29, true),
    ("sync", "system-local", 20.80, 90.12, false),
    ("sync", "cache-local", 21.46, 93.18, false),
    ("high", "cache-sn", 1169.0, 99.37, true),
    ("high", "cache-sn-local", 1165.0, 99.48, false),
    ("med", "cache-sn", 1163.8, 96.90, true),
    ("med", "cache-sn-local", 1052.0, 85.84, false),
    ("low", "cache-sn", 998.4, 74.91, true),
    ("low", "cache-sn-local", 957.6, 69.80, false),
];

/// The rows with the rule switched on have a baseline of their own.
const SN_BASE: [(&str, f64); 3] = [("high", 1162.8), ("med", 1157.2), ("low", 995.0)];

/// Setting, published mean latency in THINK, us; all fitted.
const THINK: [(&str, f64); 3] = [("system", 30.96), ("cpu-strict", 28.00), ("cache", 13.34)];

/// A constant that is fitted: its name, between what it makes sense, how to read and to set it.
struct Bound {
    name: &'static str,
    low: f64,
    high: f64,
    get: fn(&Costs) -> f64,
    set: fn(&mut Costs, f64),
}

macro_rules! bound {
    ($field:ident: $kind:ty, $low:expr, $high:expr) => {
        Bound {
            name: stringify!($field),
            low: $low,
            high: $high,
            get: |c| c.$field as f64,
            set: |c, x| c.$field = x as $kind,
        }
    };
}

/// What is fitted, within which bounds; times in ns. Two more are tied to these: see [`tie`].
const BOUNDS: [Bound; 15] = [
    // Gains of 1.2 to 1.6 by a second thread of a core.
    bound!(smt_share: f64, 0.6, 0.8),
    // Zen 2, core to core across caches, latency 70 to 120, of which a part is hidden.
    bound!(line_node: f64, 20.0, 120.0),
    bound!(item_lines: f64, 5.0, 60.0),
    // An inter-processor interrupt and the way out of a shallow idle state; a deep one's exit.
    bound!(wake: u64, 300.0, 3_000.0),
    bound!(idle_exit: u64, 5_000.0, 25_000.0),
    bound!(switch: u64, 200.0, 1_500.0),
    // SHA-512 at 250 to 1000 MB/s.
    bound!(verify_kib: f64, 1_000.0, 4_000.0),
    bound!(crypt_kib: f64, 3_000.0, 7_000.0),
    bound!(request: u64, 300.0, 3_500.0),
    bound!(item: u64, 200.0, 2_500.0),
    bound!(loop_item: u64, 300.0, 3_500.0),
    bound!(wander: u64, 2e6, 1e9),
    // The cost of a look at a domain.
    bound!(newidle_cache: u64, 500.0, 20_000.0),
    bound!(newidle_node: u64, 2_000.0, 100_000.0),
    // 3.8 GHz of at most 4.6 GHz.
    bound!(busy_util: f64, 0.8, 1.0),
];

/// What follows from what is fitted: cores of one cache are 2.6 times as near as published; generating costs what verifying does.
fn tie(c: &mut Costs) {
    c.line_cache = c.line_node / 2.6;
    c.generate_kib = c.verify_kib;
}

/// Tries each constant a step up and down, again and again with smaller steps.
fn descend(mut best: Costs, only: &str, sweeps: u64, seeds: u64, ms: u64) -> Costs {
    tie(&mut best);
    let mut err = error(&simulate(best, only, 0, seeds, ms));
    let mut steps = [0.25_f64; BOUNDS.len()];
    for sweep in 0..sweeps {
        for (b, step) in BOUNDS.iter().zip(&mut steps) {
            let mut better = false;
            for sign in [1.0_f64, -1.0] {
                let mut next = best;
                let x = (b.get)(&best) * (sign * *step).exp();
                (b.set)(&mut next, x.clamp(b.low, b.high));
                tie(&mut next);
                let e = error(&simulate(next, only, 0, seeds, ms));
                if e < err {
                    (best, err, better) = (next, e, true);
                    eprintln!("{sweep:3} {err:8.2} {} {:.3}", b.name, (b.get)(&best));
                    break;
                }
            }
            *step = (*step * if better { 1.4 } else { 0.6 }).clamp(0.01, 0.5);
        }
    }
    best
}

fn base(sc: &str, set: &str) -> f64 {
    let sn = SN_BASE.iter().find(|b| b.0 == sc && set.contains("-sn"));
    let plain = CELLS.iter().find(|c| c.0 == sc && c.1 == "system");
    sn.map_or_else(|| plain.expect("a baseline").2, |b| b.1)
}

type Known = BTreeMap<(&'static str, &'static str), (f64, f64, f64)>;

/// Bandwidth, utilisation, mean latency.
fn mean(
    m: &Arc<Machine>,
    scenario: &str,
    setting: &str,
    seeds: std::ops::Range<u64>,
    ms: u64,
) -> (f64, f64, f64) {
    let mut s = Scenario::named(scenario, 24).expect("a built-in scenario");
    s.measure_ms = match scenario {
        "think" => ms * 4,
        _ if s.pinned => ms / 6,
        _ => ms,
    };
    let set = Setting::named(setting).expect("a setting");
    let (mut bw, mut cpu, mut lat) = (0.0, 0.0, 0.0);
    let n = (seeds.end - seeds.start) as f64;
    for seed in seeds {
        let o = run(m, &s, &set, seed);
        bw += o.bandwidth_mib_s / n;
        cpu += o.cpu_percent / if s.pinned { 1.0 } else { 24.0 } / n;
        lat += o.latency.sum as f64 / o.latency.count.max(1) as f64 / 1e3 / n;
    }
    (bw, cpu, lat)
}

fn simulate(c: Costs, only: &str, from: u64, seeds: u64, ms: u64) -> Known {
    let t = Topology::synthetic("l3:4 core:3 thread:2 arch=x86-amd").expect("a valid shape");
    let m = Arc::new(Machine::new("fit", t, c));
    let think = THINK.iter().map(|t| ("think", t.0));
    let cells = CELLS.iter().map(|c| (c.0, c.1));
    cells
        .chain(think)
        .filter(|(sc, _)| only.is_empty() || only.split(',').any(|o| o == *sc))
        .map(|(sc, set)| ((sc, set), mean(&m, sc, set, from..from + seeds, ms)))
        .collect()
}

/// Percent against `system`, modelled and published.
fn percent(x: &Known, c: &Cell) -> (f64, f64) {
    let model = x[&(c.0, c.1)].0 / x[&(c.0, "system")].0;
    ((model - 1.0) * 100.0, (c.2 / base(c.0, c.1) - 1.0) * 100.0)
}

fn error(x: &Known) -> f64 {
    let mut e = 0.0;
    for c in CELLS.iter().filter(|c| x.contains_key(&(c.0, c.1))) {
        if c.4 {
            let (model, published) = percent(x, c);
            e += ((model - published) / 2.5).powi(2).min(60.0);
        }
        if c.1 == "system" {
            let got = x[&(c.0, c.1)];
            e += ((got.1 / c.3 - 1.0) / 0.05).powi(2).min(40.0) * 0.5;
            e += ((got.0 / c.2 - 1.0) / 0.10).powi(2).min(40.0) * 0.5;
        }
    }
    for &(set, us) in &THINK {
        if let Some(got) = x.get(&("think", set)) {
            e += ((got.2 / us - 1.0) / 0.25).powi(2);
        }
    }
    e
}

fn report(x: &Known) {
    let (mut fitted, mut checked) = ((0, 0), (0, 0));
    for c in &CELLS {
        let Some(got) = x.get(&(c.0, c.1)) else {
            continue;
        };
        print!(
            "{:5} {:15} {:8.2} MiB/s ({:8.2}) cpu {:6.2} ({:6.2})",
            c.0, c.1, got.0, c.2, got.1, c.3
        );
        if c.1 == "system" {
            println!();
            continue;
        }
        let (model, published) = percent(x, c);
        let off = model - published;
        let (n, limit) = if c.4 {
            (&mut fitted, 2.5)
        } else {
            (&mut checked, 4.0)
        };
        n.1 += 1;
        n.0 += u32::from(off.abs() <= limit);
        println!(
            " {model:+7.2} % ({published:+7.2}) off {off:+6.2} {}{}",
            if c.4 { "fitted" } else { "check" },
            if off.abs() <= limit { "" } else { " *" },
        );
    }
    for &(set, us) in &THINK {
        if let Some(got) = x.get(&("think", set)) {
            println!("think {set:15} {:8.2} us ({us:8.2})", got.2);
        }
    }
    if x.len() < CELLS.len() {
        return;
    }
    println!(
        "{} of {} fitted percentages within 2.5 points, {} of {} checked ones within 4; error {:.1}",
        fitted.0,
        fitted.1,
        checked.0,
        checked.1,
        error(x)
    );
}

fn main() {
    let (given, numbers): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.contains('='));
    let only = numbers.iter().find(|n| n.parse::<u64>().is_err());
    let only = only.map_or("", String::as_str);
    let numbers: Vec<u64> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
    let number = |i: usize, d| numbers.get(i).copied().unwrap_or(d);
    let (sweeps, seeds, ms) = (number(0, 0), number(1, 3), number(2, 120));
    let mut costs = Costs::RYZEN_3900X;
    for g in &given {
        let (name, value) = g.split_once('=').expect("partitioned");
        let bound = BOUNDS.iter().find(|b| b.name == name);
        let (Some(b), Ok(x)) = (bound, value.parse()) else {
            eprintln!("{g}: no constant that is fitted, or no number");
            std::process::exit(2);
        };
        (b.set)(&mut costs, x);
    }
    tie(&mut costs);
    if sweeps > 0 {
        costs = descend(costs, only, sweeps, seeds, ms);
        println!("{costs:#?}");
    }
    // Other seeds and longer runs than those of the fit.
    let (seeds, ms) = (number(3, 10), number(4, 300));
    report(&simulate(costs, only, 100, seeds, ms));
}
