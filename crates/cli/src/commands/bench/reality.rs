//! `cmwq bench reality`: the same scenarios for real, on this machine, and in the simulator with this machine's shape and measured
//! constants, side by side.
//!
//! What other load does is no fault of the model: windows count in which other processes used next to no CPU time. If there are too
//! few, the best quarter counts, and the table says so. Constants are medians of many short measurements.

mod constants;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use cmwq::Workqueue;
use cmwq_measure::spin::{Rate, chain};
use cmwq_measure::{Document, Row, Spread, Table, usage};
use cmwq_sim::{Machine, Scenario, Setting};

use self::constants::Constants;
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
    /// Windows of each scenario; those count in which nothing else used the CPUs
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(4..=100_000))]
    rounds: u32,
    /// Length of a window, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    window: u64,
    #[command(flatten)]
    output: Output,
}

/// Throughputs that are this close count as the same.
const GOAL: f64 = 0.15;
/// A window is undisturbed if other processes use at most this share of the machine.
const QUIET: f64 = 0.06;
/// So many windows have to be undisturbed.
const ENOUGH: usize = 4;
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
        let rate = Rate::measure();
        let constants = Constants::measure(&host, rate)?;
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
            "others' CPU",
            "model, items/s",
            "model / real",
            "",
        ]);
        for load in loads(cpus) {
            let windows = self.real(&load, &host, rate)?;
            let (counted, undisturbed) = counted(&windows);
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
            let (real, model) = (Spread::of(&counted), Spread::of(&modelled));
            let (Some(real), Some(model)) = (real, model) else {
                anyhow::bail!("{}: nothing was measured", load.name);
            };
            let ratio = model.mean / real.mean;
            let others = windows.iter().map(|w| w.others).sum::<f64>() / windows.len() as f64;
            table.row([
                load.name.to_owned(),
                format!("{:.0}", real.mean),
                format!("{:.0} %", others * 100.0),
                format!("{:.0}", model.mean),
                format!("{ratio:.2}"),
                match ((ratio - 1.0).abs() <= GOAL, undisturbed) {
                    (true, true) => "within 15 %".to_owned(),
                    (false, true) => "off by more than 15 %".to_owned(),
                    (_, false) => "other load: says little".to_owned(),
                },
            ]);
            let mut row = Row::new(load.name, "real");
            row.items_per_s = Some(real);
            document
                .rows
                .push(row.figure("others_cpu", "percent", Spread::exact(others * 100.0)));
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
            "\nOf {} windows of {} ms those count in which others used at most {:.0} % of the machine; if these are too few, the best quarter.\n\n{}",
            self.rounds,
            self.window,
            QUIET * 100.0,
            table.render()
        );
        self.output.finish(&document, &host, &text)
    }

    /// Items a second, window by window.
    fn real(&self, load: &Load, host: &Host, rate: Rate) -> anyhow::Result<Vec<Window>> {
        let runtime = host.runtime()?;
        let wq = runtime.workqueue("reality").build()?;
        let steps = rate.steps(Duration::from_secs_f64(load.item_us / 1e6));
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
                    .spawn(move || pin(cpu).map(|()| issue(&wq, &shared, depth, steps)))
                    .context("an issuing thread")
            })
            .collect::<Result<_, _>>()?;
        let window = Duration::from_millis(self.window);
        thread::sleep(window);
        let mut windows = Vec::new();
        for _ in 0..self.rounds {
            let (start, before) = (Instant::now(), shared.done.load(Ordering::Relaxed));
            let (all, own) = (machine_cpu_time()?, usage::process_cpu_time()?);
            thread::sleep(window);
            let done = shared.done.load(Ordering::Relaxed) - before;
            let wall = start.elapsed().as_secs_f64();
            let all = machine_cpu_time()?.saturating_sub(all);
            let own = usage::process_cpu_time()?.saturating_sub(own);
            windows.push(Window {
                per_s: done as f64 / wall,
                others: all.saturating_sub(own).as_secs_f64() / wall / host.cpus() as f64,
            });
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

/// Items a second during a window, and the share of the machine that others used.
#[derive(Clone, Copy)]
struct Window {
    per_s: f64,
    others: f64,
}

/// What counts, and whether that was undisturbed.
fn counted(windows: &[Window]) -> (Vec<f64>, bool) {
    let quiet: Vec<f64> = windows
        .iter()
        .filter(|w| w.others <= QUIET)
        .map(|w| w.per_s)
        .collect();
    if quiet.len() >= ENOUGH {
        return (quiet, true);
    }
    let mut sorted: Vec<f64> = windows.iter().map(|w| w.per_s).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.truncate(windows.len().div_ceil(4));
    (sorted, false)
}

/// CPU time that all CPUs together have used so far, by the system's ticks of 1/100 s.
fn machine_cpu_time() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    busy_time(&stat).context("/proc/stat has no line `cpu` as expected")
}

fn busy_time(stat: &str) -> Option<Duration> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    // user nice system idle iowait irq softirq steal; guests are counted in user and nice.
    let busy = fields.iter().take(8).sum::<u64>() - fields.get(3)? - fields.get(4)?;
    Some(Duration::from_millis(busy * 10))
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
fn issue(wq: &Workqueue, shared: &Arc<Shared>, depth: u32, steps: u64) {
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
        while in_flight < depth {
            let bell = Arc::clone(&bell);
            drop(wq.spawn(move || {
                chain(steps);
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
    fn undisturbed_windows_count_and_the_best_quarter_without_them() {
        let w = |per_s, others| Window { per_s, others };
        let busy = [1.0, 9.0, 3.0, 7.0, 5.0].map(|x| w(x, 0.5));
        assert_eq!(counted(&busy), (vec![9.0, 7.0], false));
        let mixed = [
            w(1.0, 0.0),
            w(2.0, 0.05),
            w(9.0, 0.3),
            w(3.0, 0.0),
            w(4.0, 0.01),
        ];
        assert_eq!(counted(&mixed), (vec![1.0, 2.0, 3.0, 4.0], true));
    }

    #[test]
    fn busy_time_is_all_but_idle_and_waiting() {
        let stat = "cpu  10 20 30 1000 500 4 5 6 7 8\ncpu0 1 2 3\n";
        assert_eq!(busy_time(stat), Some(Duration::from_millis(750)));
        assert_eq!(busy_time("intr 1"), None);
        assert_eq!(busy_time("cpu  1 2"), None);
    }
}
