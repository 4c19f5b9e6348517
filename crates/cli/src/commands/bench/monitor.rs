//! `cmwq bench monitor`: what a program pays for being watched.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cmwq::Workqueue;
use cmwq_measure::{Against, Bar, Latency, Observation, Relation, Table, table};

use super::crypt::seconds;
use super::grid::{Common, Sample, check};
use super::host::Host;

/// A program with and without a monitor attached
///
/// One program, served as by cmwq::control::listen(), in rounds that alternate: with a `cmwq monitor --json` of its own process
/// attached, and with nobody connected. Each round measures half its time spawning closures in batches, half of it handing over
/// one closure at a time and waiting for it. The monitor is attached before the round's time begins.
#[derive(clap::Args, Clone, Debug)]
#[command(mut_arg("rounds", |a| a.default_value("15")))]
pub(crate) struct Args {
    /// Seconds of each measurement; no shorter than the interval, or the monitor does not look while it lasts
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    runtime: Duration,
    /// Seconds between two looks of the monitor
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    interval: Duration,
    #[command(flatten)]
    common: Common,
}

/// Closures spawned before they are waited for.
const BATCH: u32 = 256;
/// The figures: nanoseconds an item of a batch, and from a spawn to the end of its join.
const ITEM: &str = "spawned_item_ns";
const ROUND_TRIP: &str = "round_trip_ns";
/// What watching may cost at most, as a factor of the time without.
const LIMIT: f64 = 1.01;
const ALONE: &str = "alone";
const WATCHED: &str = "monitor";

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        ensure!(
            self.runtime >= self.interval,
            "--runtime must be at least --interval, or the monitor does not look while it is measured"
        );
        let host = Host::new(self.common.synthetic.as_deref())?;
        let rt = host.runtime()?;
        let wq = rt.workqueue("measured").build().context("a workqueue")?;
        let dir = tempfile::tempdir().context("a directory for the control socket")?;
        let place = dir.path().join("run");
        let _control = cmwq::control::builder()
            .runtime(&rt)
            .dir(&place)
            .listen()
            .context("the program that is watched")?;
        let settings = [(ALONE.to_owned(), false), (WATCHED.to_owned(), true)];
        let measured = self.common.measure("monitor", &settings, |watched, _| {
            let _monitor = watched
                .then(|| Monitor::attach(&place, self.interval))
                .transpose()?;
            sample(&wq, self.runtime)
        })?;

        let mut document = self
            .common
            .document("cmwq bench monitor", &host)
            .setting("runtime_s", self.runtime.as_secs_f64())
            .setting("interval_s", self.interval.as_secs_f64())
            .setting("batch", BATCH);
        let mut table = Table::new(["", "spawned item, ns", "round trip, ns", "p99, us"]);
        for (name, _) in &settings {
            let mut row = measured.row(name);
            let mut cells = vec![name.clone()];
            for metric in [ITEM, ROUND_TRIP] {
                let spread = measured.spread(name, metric);
                cells.push(spread.map_or_else(|| "-".into(), |s| table::spread(&s)));
                if let Some(s) = spread {
                    row = row.figure(metric, "ns", s);
                }
            }
            let p99 = row.latency_us.and_then(|l| l.p99);
            cells.push(p99.map_or_else(|| "-".into(), table::number));
            if let Some(e) = &row.error {
                cells = vec![name.clone(), format!("failed: {e}")];
            }
            table.row(cells);
            document.rows.push(row);
        }
        let mut text = format!(
            "with and without a monitor that looks every {:?}; medians and spread of {} rounds\n{table}",
            self.interval, self.common.rounds
        );
        for metric in [ITEM, ROUND_TRIP] {
            let bar = Bar::new(
                "being watched costs less than 1 %",
                WATCHED,
                metric,
                Relation::AtMost,
                LIMIT,
                Against::Setting(ALONE.to_owned()),
            );
            let verdict = bar.judge(&measured.rounds);
            text += &format!("{}\n", verdict.line());
            document.verdicts.push(verdict);
        }
        self.common.output.finish(&document, &host, &text)?;
        check(&document.rows)
    }
}

/// A monitor in a process of its own, attached until it is dropped.
struct Monitor(Child);

impl Monitor {
    fn attach(place: &Path, interval: Duration) -> anyhow::Result<Monitor> {
        let command = std::env::current_exe().context("the path of this command")?;
        let child = Command::new(command)
            .arg("monitor")
            .arg(std::process::id().to_string())
            .arg("--dir")
            .arg(place)
            .args(["--json", "-i", &interval.as_secs_f64().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the monitor")?;
        let mut monitor = Monitor(child);
        let mut line = String::new();
        if let Some(out) = monitor.0.stdout.as_mut() {
            // Unbuffered beyond the line: what comes later stays in the pipe, which has room for it.
            BufReader::with_capacity(1, out).read_line(&mut line)?;
        }
        ensure!(line.starts_with('{'), "the monitor could not attach");
        Ok(monitor)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may have ended already; there is nothing to be done about an error here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sample(wq: &Workqueue, runtime: Duration) -> anyhow::Result<Sample> {
    let half = runtime / 2;
    let mut latency = Latency::new();
    let start = Instant::now();
    let mut items = 0_u64;
    while start.elapsed() < half {
        for _ in 0..BATCH {
            drop(wq.try_spawn(|| {}).map_err(|e| e.error)?);
        }
        wq.flush()?;
        items += u64::from(BATCH);
    }
    let item_ns = start.elapsed().as_nanos() as f64 / items as f64;
    let start = Instant::now();
    let mut trips = 0_u64;
    while start.elapsed() < half {
        let one = Instant::now();
        wq.try_spawn(|| {})
            .map_err(|e| e.error)?
            .join()
            .context("a closure")?;
        latency.record(one.elapsed());
        trips += 1;
    }
    let trip_ns = start.elapsed().as_nanos() as f64 / trips as f64;
    Ok(Sample {
        figures: Observation::from([(ITEM.to_owned(), item_ns), (ROUND_TRIP.to_owned(), trip_ns)]),
        latency,
    })
}
