//! `cmwq bench monitor`: what a program pays for being watched.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cmwq::control::snapshot::Detail;
use cmwq::{Runtime, Workqueue};
use cmwq_measure::{Against, Bar, Latency, Observation, Relation, Table, table, usage};

use super::crypt::seconds;
use super::grid::{Common, Sample, check};
use super::host::Host;

/// A program with and without a monitor attached
///
/// One program, served as by cmwq::control::listen(), in rounds that alternate: with a `cmwq monitor --json` of its own process
/// attached, with one that looks a hundred times as often, and with nobody connected. Each round measures half its time spawning
/// closures in batches, half of it handing over one closure at a time and waiting for it. The monitor is attached before the
/// round's time begins.
///
/// Three answers, since a machine may be too noisy for the first: what items cost more, in time and in CPU time; the same for a
/// hundred looks, which bounds one; and what a look takes for itself, CPU time of the thread that answers and the time in which
/// it may hold locks of pools, as a part of the interval. By default it takes some 70 seconds.
#[derive(clap::Args, Clone, Debug)]
#[command(mut_arg("rounds", |a| a.default_value("10")))]
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
/// The figures: nanoseconds an item of a batch, and from a spawn to the end of its join; the same in CPU time of the whole
/// program, which other programs on the machine disturb less; CPU time of the thread that answers, per second.
const ITEM: &str = "spawned_item_ns";
const ROUND_TRIP: &str = "round_trip_ns";
const ITEM_CPU: &str = "spawned_item_cpu_ns";
const ROUND_TRIP_CPU: &str = "round_trip_cpu_ns";
const SERVING: &str = "serving_us_per_s";
/// Microseconds in which a look may hold one pool's lock after the other: all of what taking it lasts.
const LOOK: &str = "look_us";
/// What a look takes for itself, per cent of the interval: its CPU time, and its whole duration as though every pool stood
/// still meanwhile. Without what it costs others indirectly (caches).
const OWN: &str = "look_percent";
/// How often that is measured in a round.
const LOOKS: u32 = 20;
const TIMES: [&str; 4] = [ITEM, ROUND_TRIP, ITEM_CPU, ROUND_TRIP_CPU];
/// What watching may cost at most, as a factor of the time without.
const LIMIT: f64 = 1.01;
const ALONE: &str = "alone";
const WATCHED: &str = "monitor";
/// How much more often the third setting is looked at, and its name. Each look costs the same, so if it costs less than this
/// times 1 %, one costs less than 1 %.
const TIMES_MORE: u32 = 100;
const WATCHED_MORE: &str = "monitor-x100";

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
        let settings = [
            (ALONE.to_owned(), None),
            (WATCHED.to_owned(), Some(self.interval)),
            (WATCHED_MORE.to_owned(), Some(self.interval / TIMES_MORE)),
        ];
        let log = dir.path().join("looks");
        let measured = self.common.measure("monitor", &settings, |interval, _| {
            let _monitor = interval
                .map(|interval| Monitor::attach(&place, interval, &log))
                .transpose()?;
            settle();
            let mut sample = sample(&wq, self.runtime)?;
            if let Some(interval) = interval {
                let look = look_time(&rt, &wq)?;
                let serving = sample.figures.get(SERVING).copied().unwrap_or(0.0) / 1e6;
                let own = serving + look.as_secs_f64() / interval.as_secs_f64();
                sample
                    .figures
                    .insert(LOOK.to_owned(), look.as_secs_f64() * 1e6);
                sample.figures.insert(OWN.to_owned(), own * 100.0);
            }
            Ok(sample)
        })?;

        let mut document = self
            .common
            .document("cmwq bench monitor", &host)
            .setting("runtime_s", self.runtime.as_secs_f64())
            .setting("interval_s", self.interval.as_secs_f64())
            .setting("batch", BATCH);
        let mut table = Table::new([
            "",
            "spawned item, ns",
            "round trip, ns",
            "its p99, us",
            "spawned item, CPU ns",
            "round trip, CPU ns",
            "serving, CPU us/s",
            "a look, us",
            "a look's own, %",
        ]);
        for (name, _) in &settings {
            let mut row = measured.row(name);
            let mut cells = vec![name.clone()];
            for (metric, unit) in TIMES.map(|t| (t, "ns")).into_iter().chain([
                (SERVING, "us/s"),
                (LOOK, "us"),
                (OWN, "percent"),
            ]) {
                let spread = measured.spread(name, metric);
                cells.push(spread.map_or_else(|| "-".into(), shown));
                if let Some(s) = spread {
                    row = row.figure(metric, unit, s);
                }
            }
            let p99 = row.latency_us.and_then(|l| l.p99);
            cells.insert(3, p99.map_or_else(|| "-".into(), table::number));
            if let Some(e) = &row.error {
                cells = vec![name.clone(), format!("failed: {e}")];
            }
            table.row(cells);
            document.rows.push(row);
        }
        let mut text = format!(
            "with and without a monitor that looks every {:?}; medians of {} rounds, with the least and the most\n{table}",
            self.interval, self.common.rounds
        );
        for metric in TIMES {
            let more = 1.0 + (LIMIT - 1.0) * f64::from(TIMES_MORE);
            for (name, setting, limit) in [
                ("being watched costs less than 1 %", WATCHED, LIMIT),
                (
                    "a hundred looks cost less than a hundred times 1 %",
                    WATCHED_MORE,
                    more,
                ),
            ] {
                let bar = Bar::new(
                    name,
                    setting,
                    metric,
                    Relation::AtMost,
                    limit,
                    Against::Setting(ALONE.to_owned()),
                );
                let verdict = bar.judge(&measured.rounds);
                text += &format!("{}\n", verdict.line());
                if let (WATCHED_MORE, Some(estimate), Some(upper)) =
                    (setting, verdict.estimate, verdict.upper)
                {
                    let percent = |ratio: f64| (ratio - 1.0) * 100.0 / f64::from(TIMES_MORE);
                    text += &format!(
                        "           that is {:.3} % for one look each {:?}, at most {:.3} %\n",
                        percent(estimate),
                        self.interval,
                        percent(upper)
                    );
                }
                document.verdicts.push(verdict);
            }
        }
        let own = Bar::at_most(
            "a look takes less than 1 % of the interval for itself",
            WATCHED,
            OWN,
            (LIMIT - 1.0) * 100.0,
        )
        .judge(&measured.rounds);
        text += &format!("{}\n", own.line());
        document.verdicts.push(own);
        self.common.output.finish(&document, &host, &text)?;
        check(&document.rows)
    }
}

/// A monitor in a process of its own, attached until it is dropped.
struct Monitor(Child);

impl Monitor {
    /// Starts it and waits for its first look. What it prints goes to `log`: a pipe would have to be emptied.
    fn attach(place: &Path, interval: Duration, log: &Path) -> anyhow::Result<Monitor> {
        let out = std::fs::File::create(log).context("a file for what the monitor prints")?;
        let command = std::env::current_exe().context("the path of this command")?;
        let child = Command::new(command)
            .arg("monitor")
            .arg(std::process::id().to_string())
            .arg("--dir")
            .arg(place)
            .args(["--json", "-i", &interval.as_secs_f64().to_string()])
            .stdin(Stdio::null())
            .stdout(out)
            .spawn()
            .context("starting the monitor")?;
        let mut monitor = Monitor(child);
        while std::fs::metadata(log)?.len() == 0 {
            ensure!(
                monitor.0.try_wait()?.is_none(),
                "the monitor could not attach"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
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

/// A median with what lies around it: single rounds may be far off on a machine that does other things.
fn shown(s: cmwq_measure::Spread) -> String {
    let number = |v: Option<f64>| v.map_or_else(|| "-".into(), table::number);
    format!(
        "{} [{}..{}]",
        number(s.median),
        number(s.min),
        number(s.max)
    )
}

/// CPU time of the thread that answers so far, ns; 0 where the system does not say.
fn serving_ns() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let of_thread = |dir: std::path::PathBuf| -> Option<u64> {
        let name = std::fs::read_to_string(dir.join("comm")).ok()?;
        let stat = std::fs::read_to_string(dir.join("schedstat")).ok()?;
        let first = stat.split_whitespace().next()?;
        (name.trim() == "cmwq-control")
            .then(|| first.parse().ok())
            .flatten()
    };
    tasks.flatten().filter_map(|t| of_thread(t.path())).sum()
}

/// Waits, not for long, until the thread that answers has nothing left to do (it may still take leave of the last monitor).
fn settle() {
    let mut before = u64::MAX;
    for _ in 0..50 {
        let now = serving_ns();
        if now == before {
            return;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How long the runtime takes to be looked at as a monitor does, while items are queued: the mean of some looks.
fn look_time(rt: &Runtime, wq: &Workqueue) -> anyhow::Result<Duration> {
    let mut ns = 0;
    for _ in 0..LOOKS {
        for _ in 0..BATCH {
            drop(wq.try_spawn(|| {}).map_err(|e| e.error)?);
        }
        ns += rt.snapshot_with(Detail::COUNTERS).clock.build_ns;
        wq.flush()?;
    }
    Ok(Duration::from_nanos(ns / u64::from(LOOKS)))
}

fn sample(wq: &Workqueue, runtime: Duration) -> anyhow::Result<Sample> {
    let half = runtime / 2;
    let mut latency = Latency::new();
    let served = serving_ns();
    let begun = Instant::now();
    let cpu = usage::process_cpu_time()?;
    let start = Instant::now();
    let mut items = 0_u64;
    while start.elapsed() < half {
        for _ in 0..BATCH {
            drop(wq.try_spawn(|| {}).map_err(|e| e.error)?);
        }
        wq.flush()?;
        items += u64::from(BATCH);
    }
    let per = |d: Duration, n: u64| d.as_nanos() as f64 / n as f64;
    let item_ns = per(start.elapsed(), items);
    let item_cpu_ns = per(usage::process_cpu_time()?.saturating_sub(cpu), items);
    let cpu = usage::process_cpu_time()?;
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
    let trip_ns = per(start.elapsed(), trips);
    let trip_cpu_ns = per(usage::process_cpu_time()?.saturating_sub(cpu), trips);
    let serving_us = serving_ns().saturating_sub(served) as f64 / 1e3;
    Ok(Sample {
        figures: Observation::from([
            (ITEM.to_owned(), item_ns),
            (ROUND_TRIP.to_owned(), trip_ns),
            (ITEM_CPU.to_owned(), item_cpu_ns),
            (ROUND_TRIP_CPU.to_owned(), trip_cpu_ns),
            (
                SERVING.to_owned(),
                serving_us / begun.elapsed().as_secs_f64(),
            ),
        ]),
        latency,
    })
}
