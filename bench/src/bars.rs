//! What cmwq promises against its peers, as bars: name, figure, relation, limit. Judged at the end of every run in which the
//! settings they speak of were measured.

use cmwq_measure::{Against, Bar, Relation};

use crate::pools::ALL;
use crate::workloads::Job;

/// Pools that every figure of an empty item must be ahead of.
const SLOWER: &[&str] = &[
    "threadpool",
    "rusty_pool",
    "rayon",
    "tokio",
    "async-executor",
    "onetbb",
    "libdispatch",
];

/// What is counted is the threads of the process. Those of a runtime that are no workers: the spawner, the service, the one that
/// watches which CPUs there are; and a sentinel a CPU.
const OTHERS: usize = 3;

/// The bars of one workload among the settings that are measured: those whose candidate is measured, with peers that are. A bar against
/// a peer that is not measured is left out.
pub fn of(workload: &str, settings: &[String], job: &Job) -> Vec<Bar> {
    let measured = |name: &str| settings.iter().any(|s| s == name);
    let peers: Vec<String> = ALL
        .iter()
        .filter(|e| e.peer && measured(e.name))
        .map(|e| e.name.to_owned())
        .collect();
    all(workload, &peers, job)
        .into_iter()
        .filter(|bar| bar.settings().count() > 0 && bar.settings().all(measured))
        .collect()
}

fn all(workload: &str, peers: &[String], job: &Job) -> Vec<Bar> {
    let mut bars = Bars(Vec::new());
    match workload {
        "ext" | "int" => {
            let place = if workload == "ext" {
                "from outside"
            } else {
                "from inside"
            };
            for (figure, kind) in [("ns", "time"), ("cpu_ns", "CPU")] {
                let metric = format!("{workload}_{figure}");
                for peer in SLOWER {
                    bars.ratio(
                        &format!("empty item {place}, {kind}: ahead of {peer}"),
                        "cmwq",
                        &metric,
                        1.0,
                        peer,
                    );
                }
                bars.ratio(
                    &format!("empty item {place}, {kind}: near the bare channel"),
                    "cmwq",
                    &metric,
                    2.0,
                    "crossbeam",
                );
                let name =
                    format!("empty item {place}, {kind}, no statistics: near the bare channel");
                bars.ratio(&name, "cmwq-nostats", &metric, 1.3, "crossbeam");
            }
        }
        "lat" => {
            for (metric, what) in [
                ("lat_p50_us", "p50"),
                ("lat_p99_us", "p99"),
                ("lat_p99_9_us", "p99.9"),
                ("lat_switches", "context switches"),
                ("lat_cpu_percent", "CPU"),
            ] {
                let name = format!(
                    "queue to start, {what}: no worse than the best peer within its spread"
                );
                bars.best(
                    &name,
                    "cmwq",
                    metric,
                    1.0,
                    Against::BestWithinSpread(peers.to_vec()),
                );
            }
        }
        "pp" => bars.best(
            "round trip: near the best peer",
            "cmwq",
            "pp_p50_us",
            1.1,
            Against::BestOf(peers.to_vec()),
        ),
        "mix" => {
            bars.absolute(
                "mixed load, workers made: computed near the ideal",
                "mix_warm_x_ideal",
                1.3,
            );
            bars.absolute(
                "mixed load, cold: computed near the ideal",
                "mix_cold_x_ideal",
                2.0,
            );
            let (sleeping, _) = crate::workloads::mix_counts(job);
            let workers = sleeping as usize + job.threads + 1;
            let most = (workers + OTHERS + job.threads) as f64;
            bars.absolute(
                "mixed load, workers made: at most blocked + CPUs + 1 workers, and the runtime's own threads",
                "mix_warm_threads",
                most,
            );
            bars.absolute(
                "mixed load, cold: at most blocked + CPUs + 1 workers, and the runtime's own threads",
                "mix_cold_threads",
                most,
            );
        }
        "compute" => {
            bars.absolute(
                "pure computing: workers at most twice the CPUs",
                "compute_threads",
                2.0 * job.threads as f64,
            );
            bars.0.push(Bar::new(
                "pure computing: throughput of a fixed pool",
                "cmwq",
                "compute_items_per_s",
                Relation::AtLeast,
                0.98,
                Against::Setting("crossbeam".into()),
            ));
        }
        "sleepers" => bars.absolute(
            "sleeping items cost computing ones little",
            "sleepers_loss_percent",
            2.0,
        ),
        "handover" => {
            bars.ratio(
                "hand-over without a word, p50",
                "cmwq",
                "handover_p50_us",
                4.0,
                "cmwq-said",
            );
            bars.ratio(
                "hand-over without a word, p99",
                "cmwq",
                "handover_p99_us",
                6.0,
                "cmwq-said",
            );
        }
        "idle" => {
            // Two pairs of clock reads differ by up to some microseconds without anybody using the CPU.
            bars.absolute("idle: no CPU", "idle_cpu_ms", 0.02);
            bars.absolute("idle: no wake-ups", "idle_switches", 0.0);
        }
        _ => {}
    }
    bars.0
}

struct Bars(Vec<Bar>);

impl Bars {
    fn ratio(&mut self, name: &str, setting: &str, metric: &str, limit: f64, peer: &str) {
        self.0.push(Bar::new(
            name,
            setting,
            metric,
            Relation::AtMost,
            limit,
            Against::Setting(peer.into()),
        ));
    }

    fn best(&mut self, name: &str, setting: &str, metric: &str, limit: f64, against: Against) {
        self.0.push(Bar::new(
            name,
            setting,
            metric,
            Relation::AtMost,
            limit,
            against,
        ));
    }

    fn absolute(&mut self, name: &str, metric: &str, limit: f64) {
        self.0.push(Bar::at_most(name, "cmwq", metric, limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads;
    use cmwq_measure::spin::Rate;

    const JOB: Job = Job {
        threads: 2,
        quick: true,
        rate: Rate { steps_per_us: 1.0 },
    };

    #[test]
    fn every_bar_names_a_figure_of_its_workload_and_known_pools() {
        let peers: Vec<String> = ALL
            .iter()
            .filter(|e| e.peer)
            .map(|e| e.name.to_owned())
            .collect();
        let mut count = 0;
        for workload in workloads::ALL {
            for bar in all(workload.name, &peers, &JOB) {
                assert!(
                    workload.metrics.iter().any(|m| m.name == bar.metric),
                    "{bar:?}"
                );
                assert!(
                    bar.settings().all(|s| crate::pools::entry(s).is_some()),
                    "{bar:?}"
                );
                count += 1;
            }
        }
        assert!(count > 40, "{count}");
    }

    #[test]
    fn only_what_is_measured_is_judged() {
        let settings = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(of("ext", &settings(&["crossbeam", "rayon"]), &JOB), []);
        let bars = of("ext", &settings(&["cmwq", "crossbeam", "rayon"]), &JOB);
        assert_eq!(bars.len(), 4, "{bars:?}");
        let bars = of("pp", &settings(&["cmwq", "rayon"]), &JOB);
        assert_eq!(bars[0].against, Against::BestOf(vec!["rayon".into()]));
    }

    #[test]
    fn the_mixed_load_may_have_19_workers_and_5_other_threads_on_two_cpus() {
        let bars = all("mix", &[], &JOB);
        assert!(
            bars.iter()
                .any(|b| b.metric == "mix_warm_threads" && b.limit == 24.0)
        );
    }
}
