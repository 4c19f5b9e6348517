//! `cmwq bench reality`: the same scenarios for real, on this machine, and in the simulator with this machine's shape and measured
//! constants, side by side.
//!
//! What other load takes away is no fault of the model: of many short windows those with the highest throughput count, the same
//! share of all scenarios, and constants are medians or minima of many short measurements.

mod constants;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use cmwq::Workqueue;
use cmwq_measure::{Document, Row, Spread, Table};
use cmwq_sim::{Machine, Scenario, Setting};

use self::constants::{Constants, Spinner};
use super::host::Host;
use super::output::Output;
use super::way::pin;

/// The same scenarios for real and in the simulator, with this machine's measured constants
///
/// Pinned threads keep a number of items in flight on a queue with default settings; an item spins for a stated time and wakes its
/// thread. First the constants are measured that the model needs: wake-ups, switches, an item's cost to issuer and worker, the
/// transfer of a cache line, what a busy sibling leaves. The last column is the model's throughput over the real one.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Windows of each scenario; the best quarter counts, as other load disturbs the others
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(4..=100_000))]
    rounds: u32,
    /// Length of a window, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    window: u64,
    #[command(flatten)]
    output: Output,
}

/// Throughputs that are this close count as the same.
const GOAL: f64 = 0.15;
/// Seeds of the simulated runs.
const SEEDS: u64 = 4;

struct Load {
    name: &'static str,
    jobs: u32,
    depth: u32,
    item_us: f64,
}

fn loads(cpus: u32) -> Vec<Load> {
    vec![
        Load {
            name: "sync-20us",
            jobs: 1,
            depth: 1,
            item_us: 20.0,
        },
        Load {
            name: "one-issuer-50us",
            jobs: 1,
            depth: 32,
            item_us: 50.0,
        },
        Load {
            name: "all-issue-50us",
            jobs: cpus,
            depth: 16,
            item_us: 50.0,
        },
    ]
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let host = Host::new(None)?;
        let cpus = host.cpus() as u32;
        let spinner = Spinner::calibrate();
        let constants = Constants::measure(&host, &spinner)?;
        let machine = Arc::new(Machine::new(
            "this machine",
            host.topology.clone(),
            constants.costs(),
        ));
        let ours = Setting::named("default").context("the simulator's setting `default`")?;
        let mut document = Document::new("cmwq bench reality", host.machine())
            .setting("rounds", self.rounds)
            .setting("window_ms", self.window)
            .setting("goal", GOAL);
        for (name, ns) in constants.list() {
            document = document.setting(name, (ns * 100.0).round() / 100.0);
        }
        let mut table = Table::new([
            "scenario",
            "real, items/s",
            "of all windows",
            "model, items/s",
            "model / real",
            "",
        ]);
        for load in loads(cpus) {
            let windows = self.real(&load, &host, &spinner)?;
            let best = best_quarter(&windows);
            let scenario = Scenario {
                name: load.name.into(),
                jobs: load.jobs,
                depth: load.depth,
                bytes: 0,
                pinned: true,
                item_us: load.item_us,
                measure_ms: 100,
                warm_up_ms: 20,
                ..Scenario::default()
            };
            let modelled: Vec<f64> = (0..SEEDS)
                .map(|seed| cmwq_sim::run(&machine, &scenario, &ours, seed).items_per_s)
                .collect();
            let (real, model) = (Spread::of(&best), Spread::of(&modelled));
            let (Some(real), Some(model)) = (real, model) else {
                anyhow::bail!("{}: nothing was measured", load.name);
            };
            let ratio = model.mean / real.mean;
            let all = Spread::of(&windows).map_or(0.0, |s| s.median.unwrap_or(s.mean));
            table.row([
                load.name.to_owned(),
                format!("{:.0}", real.mean),
                format!("{all:.0}"),
                format!("{:.0}", model.mean),
                format!("{ratio:.2}"),
                if (ratio - 1.0).abs() <= GOAL {
                    "within 15 %".to_owned()
                } else {
                    "off by more than 15 %".to_owned()
                },
            ]);
            let mut row = Row::new(load.name, "real");
            row.items_per_s = Some(real);
            document
                .rows
                .push(row.figure("all_windows_median", "1/s", Spread::exact(all)));
            let mut row = Row::new(load.name, "model");
            row.items_per_s = Some(model);
            document
                .rows
                .push(row.figure("over_real", "", Spread::exact(ratio)));
        }
        let mut text = String::from("Constants of this machine, ns:");
        for (name, ns) in constants.list() {
            text += &format!(" {} {ns:.2},", name.trim_end_matches("_ns"));
        }
        text.pop();
        text += &format!(
            "\nThe best quarter of {} windows of {} ms counts, and the median of all is shown beside it: other load takes CPUs away.\n\n{}",
            self.rounds,
            self.window,
            table.render()
        );
        self.output.finish(&document, &host, &text)
    }

    /// Items a second, window by window.
    fn real(&self, load: &Load, host: &Host, spinner: &Spinner) -> anyhow::Result<Vec<f64>> {
        let runtime = host.runtime()?;
        let wq = runtime.workqueue("reality").build()?;
        let turns = spinner.turns(load.item_us * 1e3);
        let shared = Arc::new(Shared::default());
        let issuers: Vec<_> = host
            .usable
            .iter()
            .cycle()
            .take(load.jobs as usize)
            .map(|cpu| {
                let (wq, shared, depth) = (wq.clone(), Arc::clone(&shared), load.depth);
                thread::Builder::new()
                    .name("issuer".into())
                    .spawn(move || pin(cpu).map(|()| issue(&wq, &shared, depth, turns)))
                    .context("an issuing thread")
            })
            .collect::<Result<_, _>>()?;
        let window = Duration::from_millis(self.window);
        thread::sleep(window);
        let mut windows = Vec::new();
        for _ in 0..self.rounds {
            let (start, before) = (Instant::now(), shared.done.load(Ordering::Relaxed));
            thread::sleep(window);
            let done = shared.done.load(Ordering::Relaxed) - before;
            windows.push(done as f64 / start.elapsed().as_secs_f64());
        }
        shared.stop.store(true, Ordering::Relaxed);
        for t in issuers {
            t.join().map_err(|_| anyhow!("an issuer panicked"))??;
        }
        drop(wq);
        runtime.shutdown()?;
        Ok(windows)
    }
}

/// The quarter with the highest values.
fn best_quarter(windows: &[f64]) -> Vec<f64> {
    let mut sorted = windows.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.truncate(windows.len().div_ceil(4));
    sorted
}

#[derive(Default)]
struct Shared {
    done: AtomicU64,
    stop: AtomicBool,
}

/// What an issuer's items ring.
struct Bell {
    ended: AtomicU32,
    issuer: Thread,
}

/// Keeps `depth` items in flight until told to stop, and waits for the last ones.
fn issue(wq: &Workqueue, shared: &Arc<Shared>, depth: u32, turns: u64) {
    let bell = Arc::new(Bell {
        ended: AtomicU32::new(0),
        issuer: thread::current(),
    });
    let mut in_flight = 0;
    loop {
        // Ordering: Acquire pairs with the Release of the items.
        let ended = bell.ended.swap(0, Ordering::Acquire);
        in_flight -= ended;
        shared.done.fetch_add(u64::from(ended), Ordering::Relaxed);
        let stop = shared.stop.load(Ordering::Relaxed);
        if stop && in_flight == 0 {
            return;
        }
        if stop || in_flight == depth {
            thread::park();
            continue;
        }
        for _ in in_flight..depth {
            let bell = Arc::clone(&bell);
            drop(wq.spawn(move || {
                Spinner::spin(turns);
                // Ordering: Release pairs with the Acquire of the issuer.
                bell.ended.fetch_add(1, Ordering::Release);
                bell.issuer.unpark();
            }));
            in_flight += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_quarter_is_a_quarter_and_the_best() {
        assert_eq!(best_quarter(&[1.0, 9.0, 3.0, 7.0, 5.0]), [9.0, 7.0]);
        assert_eq!(best_quarter(&[1.0]), [1.0]);
    }
}
