//! Prints the published table of the 3900X and the model's beside each other.

use cmwq_sim::{Scenario, Setting, machines, run};
use std::sync::Arc;

fn main() {
    let m = Arc::new(machines::find("ryzen-3900x").unwrap());
    let only: Vec<String> = std::env::args().skip(1).collect();
    for name in ["high", "med", "low", "llow", "sync", "think"] {
        if !only.is_empty() && !only.iter().any(|o| o == name) {
            continue;
        }
        let s = Scenario::named(name, 24).unwrap();
        let mut base = 0.0;
        for set in [
            "system",
            "cache",
            "cache-strict",
            "cpu-strict",
            "system-local",
            "cache-local",
            "cache-sn",
            "cache-sn-local",
            "default",
        ] {
            let t = std::time::Instant::now();
            let mut bw = 0.0;
            let mut cpu = 0.0;
            let n = 3;
            let mut o = None;
            for seed in 0..n {
                let x = run(&m, &s, &Setting::named(set).unwrap(), seed);
                bw += x.bandwidth_mib_s / n as f64;
                cpu += x.cpu_percent / n as f64;
                o = Some(x);
            }
            let o = o.unwrap();
            if set == "system" {
                base = bw;
            }
            println!(
                "{name:6} {set:15} {bw:8.2} {:+6.2}%  cpu {:6.2}  lat avg {:7.2} p50 {:7.2}  wait {:8.2}us in-llc {:5.1}% migr {:.3} helped {:.1}%  [{:.2} M ev/s]",
                (bw / base - 1.0) * 100.0,
                if s.pinned { cpu } else { cpu / 24.0 },
                o.latency.sum as f64 / o.latency.count.max(1) as f64 / 1e3,
                o.latency.quantile(0.5) as f64 / 1e3,
                o.wait_ns / 1e3,
                o.in_pod_percent,
                o.migrations_per_item,
                o.helped_percent,
                o.item_events as f64 * n as f64 / t.elapsed().as_secs_f64() / 1e6
            );
        }
    }
}
