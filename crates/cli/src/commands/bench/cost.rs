//! `cmwq bench cost`: what queueing costs on machines of any size, among many queues and many armed timers.
//!
//! The machines are made up, the code is the real one: tables, pods and limits are those of a machine with that many CPUs,
//! while threads run on the CPUs that there are. Three figures each, in interleaved rounds, as ratios to one plain setting:
//! queueing a reusable item on a frozen queue (no worker takes part, so this is the issuer's cost alone), a closure from
//! spawning it to its end, and arming and disarming a timer. The queues are strict: on CPUs that are only made up, helpers
//! from other pods would all sit on the same few real ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cmwq::{DelayedWork, Queued, Runtime, Topology, Work, Workqueue};
use cmwq_measure::{Document, Machine, Observation, Plan, Row, Spread, Table};

use crate::commands::live;

/// Cost of queueing against the number of CPUs, queues and armed timers
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// Interleaved rounds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
    /// Items a round and setting
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    items: u32,
    /// Queues of the settings with many
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    queues: u32,
    /// Armed timers of the setting with many
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    timers: u32,
}

/// The setting that the others are compared with.
const PLAIN: &str = "256 CPUs";
const QUEUE: &str = "queue_ns";
const RUN: &str = "spawn_and_run_ns";
const ARM: &str = "arm_and_disarm_ns";

/// One runtime with what belongs to it.
struct Place {
    rt: Runtime,
    /// Frozen ones, and those that run.
    held: Vec<Workqueue>,
    free: Vec<Workqueue>,
    works: Vec<Work>,
    tick: DelayedWork,
    /// Armed all the time.
    armed: Vec<DelayedWork>,
}

impl Place {
    /// `used`: how many queues take turns.
    fn new(cpus: u32, exist: u32, used: u32, timers: u32, items: u32) -> anyhow::Result<Place> {
        // Pods of eight CPUs, as on machines of that size.
        let spec = match cpus {
            n if n >= 8 => format!("l3:{} core:8", n / 8),
            n => format!("core:{n}"),
        };
        let rt = Runtime::builder()
            .topology(Topology::synthetic(&spec)?)
            .build()?;
        let queues = |freezable: bool| -> anyhow::Result<Vec<Workqueue>> {
            (0..exist)
                .map(|i| {
                    let b = rt.workqueue(format!("q{i}")).affinity_strict(true);
                    let b = if freezable { b.freezable() } else { b };
                    b.build().context("making a workqueue")
                })
                .collect()
        };
        let (mut held, mut free) = (queues(true)?, queues(false)?);
        rt.freeze();
        let armed: Vec<DelayedWork> = (0..timers).map(|_| DelayedWork::new(|_| {})).collect();
        for (i, timer) in armed.iter().enumerate() {
            // Spread over three hours, as timeouts are.
            let delay = Duration::from_millis(3_600_000 + (i as u64 * 7919) % 10_800_000);
            free[0].queue_delayed(timer, delay)?;
        }
        held.rotate_left(exist as usize / 2);
        free.rotate_left(exist as usize / 2);
        let keep = used as usize;
        // The others exist, but nobody queues on them.
        let rest: Vec<Workqueue> = held.drain(keep..).chain(free.drain(keep..)).collect();
        let place = Place {
            rt,
            held,
            free,
            works: (0..items).map(|_| Work::new(|_| {})).collect(),
            tick: DelayedWork::new(|_| {}),
            armed,
        };
        for wq in rest {
            // Until the process ends.
            std::mem::forget(wq);
        }
        Ok(place)
    }

    fn measure(&self) -> anyhow::Result<Observation> {
        let items = self.works.len();
        let per = |start: Instant| start.elapsed().as_nanos() as f64 / items as f64;
        let mut seen = BTreeMap::new();

        let start = Instant::now();
        for (i, work) in self.works.iter().enumerate() {
            let queued = self.held[i % self.held.len()].queue(work)?;
            anyhow::ensure!(queued == Queued::New, "the item was still pending");
        }
        seen.insert(QUEUE.to_owned(), per(start));
        anyhow::ensure!(
            self.works.iter().all(Work::cancel),
            "an item on a frozen queue has run"
        );

        let start = Instant::now();
        for i in 0..items {
            drop(self.free[i % self.free.len()].spawn(|| {}));
        }
        for wq in self.free.iter().take(items) {
            wq.flush()?;
        }
        seen.insert(RUN.to_owned(), per(start));

        let start = Instant::now();
        for _ in 0..items {
            self.free[0].queue_delayed(&self.tick, Duration::from_secs(3600))?;
            anyhow::ensure!(self.tick.cancel(), "the timer was not armed");
        }
        seen.insert(ARM.to_owned(), per(start));
        Ok(seen)
    }
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Args {
            items,
            queues,
            timers,
            rounds,
            ..
        } = self;
        let places: Vec<(String, Place)> = [
            ("1 CPU".to_owned(), Place::new(1, 1, 1, 0, items)?),
            (PLAIN.to_owned(), Place::new(256, 1, 1, 0, items)?),
            ("4096 CPUs".to_owned(), Place::new(4096, 1, 1, 0, items)?),
            (
                format!("{queues} queues exist"),
                Place::new(256, queues, 1, 0, items)?,
            ),
            (
                format!("{queues} queues in turn"),
                Place::new(256, queues, queues, 0, items)?,
            ),
            (
                format!("{timers} timers armed"),
                Place::new(256, 1, 1, timers, items)?,
            ),
        ]
        .into_iter()
        .collect();
        let plan = Plan {
            min_rounds: rounds as usize,
            max_rounds: rounds as usize,
            decide_early: false,
            ..Plan::new(places.iter().map(|p| p.0.clone()))
        };
        let measured = cmwq_measure::rounds::run(&plan, &[], |trial| {
            let place = places.iter().find(|p| p.0 == trial.setting);
            place
                .context("a setting of the plan")
                .and_then(|p| p.1.measure())
        })?;

        let mut document = Document::new("cmwq bench cost", Machine::detect())
            .setting("rounds", rounds)
            .setting("items", items)
            .setting("compared_with", PLAIN);
        let mut table = Table::new([
            "",
            "queue, ns",
            "x",
            "spawn and run, ns",
            "x",
            "arm and disarm, ns",
            "x",
        ]);
        for (name, place) in &places {
            let mut row = Row::new("cost", name.clone());
            let mut cells = vec![name.clone()];
            for metric in [QUEUE, RUN, ARM] {
                let values = measured.values(name, metric);
                let Some(spread) = Spread::of(&values) else {
                    continue;
                };
                let ratio = measured.ratio_bounds(name, PLAIN, metric, plan.confidence);
                cells.push(format!(
                    "{:.0} [{:.0}..{:.0}]",
                    spread.median.unwrap_or(spread.mean),
                    spread.min.unwrap_or(spread.mean),
                    spread.max.unwrap_or(spread.mean)
                ));
                cells.push(ratio.map_or_else(String::new, |r| format!("{:.2}", r.estimate)));
                row = row.figure(metric, "ns", spread);
                if let Some(r) = ratio {
                    row = row.figure(format!("{metric}_ratio"), "", Spread::exact(r.estimate));
                }
            }
            row.error = measured.errors(name).first().map(|(_, e)| (*e).to_owned());
            if let Some(e) = &row.error {
                cells.push(e.clone());
            }
            table.row(cells);
            document.rows.push(row);
            anyhow::ensure!(
                place.armed.iter().all(|t| t.is_pending()),
                "a timer was lost"
            );
        }
        let failed = document.rows.iter().any(|r| r.error.is_some());
        live::to_stdout(|out| {
            if self.json {
                writeln!(out, "{}", document.to_json()?)?;
            } else {
                writeln!(
                    out,
                    "Medians of {rounds} interleaved rounds of {items} items; x: against `{PLAIN}`."
                )?;
                writeln!(out, "{}", table.render())?;
            }
            Ok(())
        })?;
        for (_, place) in places {
            place.armed.iter().for_each(|t| {
                t.cancel();
            });
            place.rt.thaw();
        }
        anyhow::ensure!(!failed, "a setting failed");
        Ok(())
    }
}
