//! The default against every static setting in the kernel's way, column by column: `ours [SEEDS] [MS] [COLUMNS] [all]`. The last number
//! of a line is the default's share of the best static setting's requests a second; latency's inverse for THINK.

use cmwq_sim::{Machine, Scenario, Setting, machines, run, setting};
use std::sync::Arc;

struct Column {
    name: String,
    machine: &'static str,
    scenario: Scenario,
}

/// All issuers on the CPUs of one cache, the rest of the machine idle.
fn lopsided(jobs: u32, item_us: f64, depth: u32) -> Scenario {
    Scenario {
        name: "lopsided".into(),
        jobs,
        depth,
        pinned: true,
        item_us,
        measure_ms: 40,
        ..Scenario::default()
    }
}

fn columns() -> Vec<Column> {
    let mut all = Vec::new();
    let mut add = |name: String, machine: &'static str, scenario: Scenario| {
        all.push(Column {
            name,
            machine,
            scenario,
        });
    };
    for s in ["high", "med", "low", "llow", "sync", "think"] {
        let named = Scenario::named(s, 24).expect("a built-in scenario");
        add(s.to_string(), "ryzen-3900x", named);
    }
    for (us, depth) in [(10.0, 16), (40.0, 16), (40.0, 64), (200.0, 16)] {
        let name = format!("one-{us}us-{depth}");
        add(name, "l3:4 core:4", lopsided(4, us, depth));
    }
    add(
        "one-epyc-40us".into(),
        "epyc-7713-nps4",
        lopsided(8, 40.0, 64),
    );
    for machine in ["epyc-7713-nps1", "epyc-7713-nps2", "epyc-7713-nps4"] {
        for jobs in [1, 4, 16, 64, 128, 256, 512] {
            let mut s = Scenario::named("low", 256).expect("a built-in scenario");
            s.jobs = jobs;
            s.measure_ms = 20;
            s.warm_up_ms = 10;
            add(format!("{}-{jobs}", &machine[10..]), machine, s);
        }
    }
    all
}

/// Mean over the seeds of what is compared: more is better.
fn merit(m: &Arc<Machine>, s: &Scenario, set: &Setting, seeds: u64) -> (f64, f64) {
    let (mut sum, mut helped) = (0.0, 0.0);
    for seed in 0..seeds {
        let o = run(m, s, set, seed);
        sum += if s.think_us > 0 {
            o.latency.count.max(1) as f64 / o.latency.sum.max(1) as f64 * 1e9
        } else {
            o.requests_per_s
        };
        helped += o.helped_percent;
    }
    (sum / seeds as f64, helped / seeds as f64)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, d: u64| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(d);
    let seeds = number(0, 3);
    let ms = number(1, 0);
    let only = args.get(2);
    let verbose = args.get(3).is_some_and(|s| s == "all");
    let ours = Setting::named("default").expect("a setting");
    let start = std::time::Instant::now();
    println!(
        "{:16} {:>10} {:>20} {:>10} {:>8} {:>7}",
        "column", "default", "best static", "", "helped", "ratio"
    );
    let mut behind = 0;
    for c in columns() {
        if only.is_some_and(|o| !o.split(',').any(|p| c.name.starts_with(p))) {
            continue;
        }
        let m = Arc::new(machines::find(c.machine).expect("a machine"));
        let mut s = c.scenario;
        if ms > 0 {
            s.measure_ms = ms;
        }
        let (best, name) = setting::ALL
            .iter()
            .filter(|set| set.kernel && !set.sis_node)
            .map(|set| {
                let got = merit(&m, &s, set, seeds).0;
                if verbose {
                    println!("    {:18} {got:10.0}", set.name);
                }
                (got, set.name)
            })
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("there are settings");
        let (got, helped) = merit(&m, &s, &ours, seeds);
        let ratio = got / best;
        behind += u32::from(ratio < 0.995);
        println!(
            "{:16} {got:10.0} {name:>20} {best:10.0} {helped:7.2}% {ratio:7.3}",
            c.name
        );
    }
    println!(
        "{behind} columns where the default is more than 0.5 % behind; {:.0} s",
        start.elapsed().as_secs_f64()
    );
}
