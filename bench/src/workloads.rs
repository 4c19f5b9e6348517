//! What is run on a pool, and which figures come out. Each workload runs in a process of its own that does nothing else.

mod compute;
mod empty;
pub mod floor;
mod handover;
mod idle;
mod latency;
mod mix;
mod sleepers;
mod tally;

use std::time::{Duration, Instant};

use anyhow::Result;
use cmwq_measure::Observation;

use crate::pools::{self, Pool, Visitor};
use cmwq_measure::spin::Rate;

pub use empty::{From, count_down};
pub(crate) use mix::counts as mix_counts;

/// What a child is told.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// CPUs to use.
    pub threads: usize,
    /// Shorter and rougher.
    pub quick: bool,
    /// Speed of computing, measured by the parent.
    pub rate: Rate,
}

/// A workload by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Name in tables and on the command line; the scenario of its rows.
    pub name: &'static str,
    /// One line for `--list` and above the table.
    pub about: &'static str,
    /// Its figures, in the order of columns.
    pub metrics: &'static [Metric],
}

/// A figure of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name in the JSON form.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Column head.
    pub head: &'static str,
    /// Whether ratios to the other pools are worth printing.
    pub compared: bool,
}

const fn compared(name: &'static str, unit: &'static str, head: &'static str) -> Metric {
    Metric {
        name,
        unit,
        head,
        compared: true,
    }
}

const fn told(name: &'static str, unit: &'static str, head: &'static str) -> Metric {
    Metric {
        name,
        unit,
        head,
        compared: false,
    }
}

/// All workloads, in the order in which they run.
pub const ALL: &[Workload] = &[
    Workload {
        name: "ext",
        about: "empty items queued by one outside thread, a burst at a time",
        metrics: &[
            compared("ext_ns", "ns", "ns/item"),
            compared("ext_cpu_ns", "ns", "CPU ns/item"),
        ],
    },
    Workload {
        name: "int",
        about: "empty items queued from inside items, one queueing item a CPU",
        metrics: &[
            compared("int_ns", "ns", "ns/item"),
            compared("int_cpu_ns", "ns", "CPU ns/item"),
        ],
    },
    Workload {
        name: "lat",
        about: "queue to start at 1,000 items/s on an idle pool; the producer's own CPU time and switches are left out",
        metrics: &[
            compared("lat_p50_us", "us", "p50 us"),
            compared("lat_p99_us", "us", "p99 us"),
            compared("lat_p99_9_us", "us", "p99.9 us"),
            told("submit_us", "us", "submit us"),
            compared("lat_cpu_percent", "percent", "CPU %"),
            compared("lat_switches", "1/item", "switches/item"),
        ],
    },
    Workload {
        name: "pp",
        about: "one item queued and waited for, again and again",
        metrics: &[
            compared("pp_p50_us", "us", "p50 us"),
            compared("pp_p99_us", "us", "p99 us"),
        ],
    },
    Workload {
        name: "mix",
        about: "8 items a CPU that sleep 4 ms, 32 a CPU that compute 50 us queued behind them",
        metrics: &[
            compared("mix_warm_ms", "ms", "warm: computed ms"),
            told("mix_warm_x_ideal", "", "x ideal"),
            told("mix_warm_all_ms", "ms", "all ms"),
            told("mix_warm_threads", "", "threads"),
            compared("mix_cold_ms", "ms", "cold: computed ms"),
            told("mix_cold_x_ideal", "", "x ideal"),
            told("mix_cold_all_ms", "ms", "all ms"),
            told("mix_cold_threads", "", "threads"),
        ],
    },
    Workload {
        name: "compute",
        about: "items that only compute, each longer than the CPU-hog threshold",
        metrics: &[
            compared("compute_items_per_s", "1/s", "items/s"),
            told("compute_threads", "", "threads"),
        ],
    },
    Workload {
        name: "sleepers",
        about: "computing items while others sleep, against the same without sleepers",
        metrics: &[
            told("sleepers_loss_percent", "percent", "throughput lost %"),
            told("sleepers_threads", "", "threads"),
        ],
    },
    Workload {
        name: "handover",
        about: "on one CPU: an item blocks for 10 ms; until the next item runs",
        metrics: &[
            compared("handover_p50_us", "us", "p50 us"),
            compared("handover_p99_us", "us", "p99 us"),
        ],
    },
    Workload {
        name: "idle",
        about: "a pool that has worked and now rests; the main thread left out",
        metrics: &[
            told("idle_cpu_ms", "ms", "CPU ms"),
            told("idle_switches", "", "switches"),
            told("idle_threads", "", "threads"),
            told("idle_s", "s", "seconds"),
        ],
    },
    Workload {
        name: "remote",
        about: "empty items queued by 1, 2, 4 and 8 outside threads at once",
        metrics: &[
            compared("remote_1_ns", "ns", "1: ns/item"),
            told("remote_2_ns", "ns", "2: ns/item"),
            compared("remote_4_ns", "ns", "4: ns/item"),
            told("remote_8_ns", "ns", "8: ns/item"),
        ],
    },
];

/// The workload of this name.
pub fn find(name: &str) -> Option<&'static Workload> {
    ALL.iter().find(|w| w.name == name)
}

/// Runs a workload on a pool in this process and gives its figures. Starts threads that never end: for a process that ends after it.
///
/// # Errors
/// An unknown name, a pool that is missing, items that were lost or ran twice, a figure that the system does not give.
pub fn run(pool: &str, workload: &str, job: &Job) -> Result<Observation> {
    anyhow::ensure!(
        find(workload).is_some(),
        "no workload {workload:?}; `--list` names them"
    );
    let figures = pools::visit(pool, Run { workload, job })??;
    tally::recheck()?;
    Ok(figures)
}

struct Run<'a> {
    workload: &'a str,
    job: &'a Job,
}

impl Visitor for Run<'_> {
    type Out = Result<Observation>;

    fn visit<P: Pool>(self) -> Self::Out {
        let job = self.job;
        match self.workload {
            "ext" => empty::outside::<P>(job),
            "int" => empty::inside::<P>(job),
            "remote" => empty::remote::<P>(job),
            "lat" => latency::queue_to_start::<P>(job),
            "pp" => latency::round_trip::<P>(job),
            "mix" => mix::run::<P>(job),
            "compute" => compute::run::<P>(job),
            "sleepers" => sleepers::run::<P>(job),
            "handover" => handover::run::<P>(job),
            "idle" => idle::run::<P>(job),
            other => anyhow::bail!("workload {other:?} is listed but has no code"),
        }
    }
}

/// Starts a pool that lives as long as the process.
fn start<P: Pool>(threads: usize) -> Result<&'static P> {
    Ok(Box::leak(Box::new(P::start(threads)?)))
}

/// A list of figures.
fn figures<const N: usize>(list: [(&str, f64); N]) -> Observation {
    list.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Nanoseconds since `base`.
fn since(base: Instant) -> u64 {
    u64::try_from(base.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
