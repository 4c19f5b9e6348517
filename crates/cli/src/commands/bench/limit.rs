//! `cmwq bench limit`: what an effective limit that is wider than meant costs when items contend on one lock, and that the limit of
//! an unbound queue holds for the whole machine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use cmwq::Workqueue;
use cmwq_crypt::digest::sha512;
use cmwq_measure::{Against, Bar, Latency, Observation, Relation, Row, Table, table, usage};

use super::crypt::seconds;
use super::grid::{Common, Sample, check};
use super::host::Host;
use super::setting::Setting;

/// Items that contend on one lock, under narrow and wide limits
///
/// Each item digests 16 KiB, then 8 KiB more under a lock that all items share. 1024 of them wait at any time. A limit that
/// is exceeded anywhere is an error.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Limits (max_active), separated by commas [default: 8, 16, the number of CPUs times 8, and 768, as on the published machine]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=2048))]
    limits: Vec<u32>,
    /// Settings, separated by commas; see cmwq bench crypt --help
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "default,cache"
    )]
    scopes: Vec<Setting>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    runtime: Duration,
    #[command(flatten)]
    common: Common,
}

/// Items in flight: 32 writers with 32 requests each, as published.
const IN_FLIGHT: usize = 1024;
/// Bytes digested before the lock and under it.
const ALONE: usize = 16 << 10;
const LOCKED: usize = 8 << 10;
/// Throughput that the widest limit must keep, against the narrowest: the published collapse left 0.51.
const KEPT: f64 = 0.9;

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let host = Host::new(self.common.synthetic.as_deref())?;
        let mut limits = self.limits.clone();
        if limits.is_empty() {
            let wide = u32::try_from(host.cpus() * 8).unwrap_or(2048).min(2048);
            limits = vec![8, 16, wide, 768];
        }
        limits.sort_unstable();
        limits.dedup();
        let settings: Vec<(String, (Setting, u32))> = self
            .scopes
            .iter()
            .flat_map(|s| limits.iter().map(move |l| (format!("{s}-{l}"), (*s, *l))))
            .collect();
        let measured = self.common.measure("limit", &settings, |(s, limit), _| {
            sample(*s, *limit, self.runtime, &host)
        })?;
        let mut table = Table::new([
            "setting",
            "items/s",
            "most at once",
            "most workers",
            "CPU of machine",
            "wait p50 us",
            "wait p99 us",
        ]);
        let mut document = self
            .common
            .document("cmwq bench limit", &host)
            .setting("runtime_s", self.runtime.as_secs_f64())
            .setting("in_flight", IN_FLIGHT)
            .setting("limits", limits.clone());
        for (name, _) in &settings {
            let mut row = measured.row(name);
            for (figure, unit) in [("most_at_once", "items"), ("most_workers", "threads")] {
                if let Some(s) = measured.spread(name, figure) {
                    row = row.figure(figure, unit, s);
                }
            }
            table.row(cells(&row));
            document.rows.push(row);
        }
        let mut text = format!(
            "items that contend on one lock, {IN_FLIGHT} in flight; most at once never exceeded the limit\n{table}"
        );
        if let [narrow, .., wide] = limits[..] {
            for setting in self.scopes.iter().filter(|s| !s.is_static()) {
                let bar = Bar::new(
                    &format!("{setting}: no collapse under a limit of {wide}"),
                    &format!("{setting}-{wide}"),
                    "items_per_s",
                    Relation::AtLeast,
                    KEPT,
                    Against::Setting(format!("{setting}-{narrow}")),
                );
                let verdict = bar.judge(&measured.rounds);
                text += &format!("{}\n", verdict.line());
                document.verdicts.push(verdict);
            }
        }
        self.common.output.finish(&document, &host, &text)?;
        check(&document.rows)
    }
}

fn cells(row: &Row) -> Vec<String> {
    if let Some(e) = &row.error {
        return vec![row.setting.clone(), format!("failed: {e}")];
    }
    let figure = |name: &str| {
        let found = row.figures.get(name);
        found.map_or("-".into(), |f| {
            table::number(f.spread.max.unwrap_or(f.spread.mean))
        })
    };
    let latency = row.latency_us.unwrap_or_default();
    vec![
        row.setting.clone(),
        row.items_per_s.map_or("-".into(), |s| table::spread(&s)),
        figure("most_at_once"),
        figure("most_workers"),
        row.cpu_util_percent
            .map_or("-".into(), |v| format!("{v:.0} %")),
        latency.p50.map_or("-".into(), table::number),
        latency.p99.map_or("-".into(), table::number),
    ]
}

/// What items share.
#[derive(Default)]
struct Shared {
    running: AtomicUsize,
    most: AtomicUsize,
    finished: AtomicUsize,
    /// The lock that they contend on, and what it guards.
    lock: Mutex<u64>,
    in_flight: Mutex<usize>,
    room: Condvar,
    data: Vec<u8>,
    latency: Mutex<Latency>,
}

impl Shared {
    fn item(&self, queued: Instant) {
        let waited = queued.elapsed();
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(running, Ordering::Relaxed);
        let digest = sha512(&self.data[..ALONE]);
        {
            let mut guarded = self.lock.lock().unwrap_or_else(|e| e.into_inner());
            let inner = sha512(&self.data[..LOCKED]);
            *guarded = guarded.wrapping_add(u64::from(digest[0] ^ inner[0]));
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
        self.latency
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .record(waited);
        self.finished.fetch_add(1, Ordering::Relaxed);
        let mut in_flight = self.in_flight.lock().unwrap_or_else(|e| e.into_inner());
        *in_flight -= 1;
        let wake = *in_flight == IN_FLIGHT / 2 || *in_flight == 0;
        drop(in_flight);
        if wake {
            self.room.notify_all();
        }
    }

    /// Waits until at most `most` items are in flight, and says how many are.
    fn wait(&self, most: usize) -> usize {
        let mut n = self.in_flight.lock().unwrap_or_else(|e| e.into_inner());
        while *n > most {
            n = self.room.wait(n).unwrap_or_else(|e| e.into_inner());
        }
        *n
    }
}

fn sample(setting: Setting, limit: u32, time: Duration, host: &Host) -> anyhow::Result<Sample> {
    let runtime = host.runtime()?;
    let wq = setting
        .builder(&runtime)
        .with_context(|| format!("{setting} is no workqueue, and only those have a limit"))?
        .max_active(limit)
        .build()?;
    let shared = Arc::new(Shared {
        data: vec![3; ALONE],
        ..Shared::default()
    });
    let (done, most_workers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (issued, wall, cpu) = std::thread::scope(|s| {
        // Workers are counted beside the run, now and then.
        let watcher = s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most_workers.fetch_max(runtime.threads(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let began = Instant::now();
        let outcome = usage::process_cpu_time()
            .map_err(anyhow::Error::from)
            .and_then(|before| {
                let issued = issue(&wq, &shared, began + time)?;
                let wall = began.elapsed();
                Ok((
                    issued,
                    wall,
                    usage::process_cpu_time()?.saturating_sub(before),
                ))
            });
        done.store(true, Ordering::Relaxed);
        watcher
            .join()
            .map_err(|_| anyhow!("the watcher panicked"))?;
        outcome
    })?;
    drop(wq);
    runtime.shutdown()?;
    let finished = shared.finished.load(Ordering::Relaxed);
    let most = shared.most.load(Ordering::Relaxed);
    ensure!(
        finished == issued,
        "{issued} items were queued, {finished} ran"
    );
    ensure!(
        most <= limit as usize,
        "{most} items ran at once, the limit is {limit}"
    );
    let wall = wall.as_secs_f64();
    let latency = std::mem::take(&mut *shared.latency.lock().unwrap_or_else(|e| e.into_inner()));
    Ok(Sample {
        figures: Observation::from([
            ("items_per_s".into(), finished as f64 / wall),
            ("most_at_once".into(), most as f64),
            (
                "most_workers".into(),
                most_workers.load(Ordering::Relaxed) as f64,
            ),
            (
                "cpu_percent".into(),
                100.0 * cpu.as_secs_f64() / wall / host.cpus() as f64,
            ),
        ]),
        latency,
    })
}

/// Keeps the queue full until `end`, then waits for all.
fn issue(wq: &Workqueue, shared: &Arc<Shared>, end: Instant) -> anyhow::Result<usize> {
    let mut issued = 0;
    while Instant::now() < end {
        let in_flight = shared.wait(IN_FLIGHT / 2);
        for _ in in_flight..IN_FLIGHT {
            *shared.in_flight.lock().unwrap_or_else(|e| e.into_inner()) += 1;
            let (item, queued) = (Arc::clone(shared), Instant::now());
            match wq.try_spawn(move || item.item(queued)) {
                Ok(_detached) => issued += 1,
                Err(e) => {
                    *shared.in_flight.lock().unwrap_or_else(|e| e.into_inner()) -= 1;
                    shared.wait(0);
                    return Err(anyhow!("the workqueue refused an item: {}", e.error));
                }
            }
        }
    }
    shared.wait(0);
    Ok(issued)
}
