//! `cmwq bench queue`: each CPU's thread queues one item and waits for it, again and again. Where many CPUs share a pool, its lock
//! is what they wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use cmwq::{Work, Workqueue};
use cmwq_measure::{Latency, Observation, Row, Table, table, usage};

use super::grid::{Common, Sample, check};
use super::host::Host;
use super::setting::Setting;
use super::way::pin;

/// Queue one item, wait for it: from a thread on every CPU at once, in every scope
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Settings, separated by commas; see cmwq bench crypt --help
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "cpu,smt,cache-shard,cache,numa,system,default"
    )]
    scopes: Vec<Setting>,
    /// Items of each thread in each round
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    items: u32,
    #[command(flatten)]
    common: Common,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let host = Host::new(self.common.synthetic.as_deref())?;
        let settings: Vec<(String, Setting)> =
            self.scopes.iter().map(|s| (s.to_string(), *s)).collect();
        let measured = self
            .common
            .measure("queue", &settings, |s, _| sample(*s, &host, self.items))?;
        let system = measured.spread("system", "items_per_s");
        let mut table = Table::new([
            "setting",
            "items/s",
            "vs system",
            "p50 ns",
            "p90 ns",
            "p95 ns",
            "p99 ns",
            "CPU of machine",
        ]);
        let mut document = self
            .common
            .document("cmwq bench queue", &host)
            .setting("items", self.items)
            .setting("threads", host.cpus());
        for (name, _) in &settings {
            let mut row = measured.row(name);
            row.vs_system_percent = match (row.items_per_s, system) {
                (Some(ours), Some(s)) if s.mean > 0.0 => Some(100.0 * (ours.mean / s.mean - 1.0)),
                _ => None,
            };
            table.row(cells(&row));
            document.rows.push(row);
        }
        let threads = match host.cpus() {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads, each on a CPU of its own"),
        };
        let text = format!("queue one item and wait: {threads}\n{table}");
        self.common.output.finish(&document, &host, &text)?;
        check(&document.rows)
    }
}

fn cells(row: &Row) -> Vec<String> {
    if let Some(e) = &row.error {
        return vec![row.setting.clone(), format!("failed: {e}")];
    }
    let latency = row.latency_us.unwrap_or_default();
    let ns = |us: Option<f64>| us.map_or("-".into(), |us| format!("{:.0}", us * 1000.0));
    vec![
        row.setting.clone(),
        row.items_per_s.map_or("-".into(), |s| table::spread(&s)),
        row.vs_system_percent
            .map_or("-".into(), |v| format!("{v:+.1} %")),
        ns(latency.p50),
        ns(latency.p90),
        ns(latency.p95),
        ns(latency.p99),
        row.cpu_util_percent
            .map_or("-".into(), |v| format!("{v:.0} %")),
    ]
}

/// An item that wakes its thread.
struct Bell {
    rung: AtomicU32,
    thread: thread::Thread,
}

fn sample(setting: Setting, host: &Host, items: u32) -> anyhow::Result<Sample> {
    let runtime = host.runtime()?;
    let wq = setting
        .builder(&runtime)
        .with_context(|| format!("{setting} is no workqueue, and only those are compared here"))?
        .build()?;
    let barrier = Arc::new(std::sync::Barrier::new(host.cpus() + 1));
    let threads: Vec<_> = host
        .usable
        .iter()
        .map(|cpu| {
            let (wq, barrier) = (wq.clone(), Arc::clone(&barrier));
            thread::Builder::new()
                .name("issuer".into())
                .spawn(move || {
                    let warm = pin(cpu).and_then(|()| issue(&wq, items / 10 + 1));
                    // Whoever failed must not keep the others waiting.
                    barrier.wait();
                    let began = Instant::now();
                    let latency = warm.and_then(|_| issue(&wq, items))?;
                    anyhow::Ok((latency, began, Instant::now()))
                })
                .context("an issuing thread")
        })
        .collect::<Result<_, _>>()?;
    barrier.wait();
    let cpu = usage::process_cpu_time()?;
    let mut latency = Latency::new();
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    for t in threads {
        let (l, from, to) = t.join().map_err(|_| anyhow!("an issuer panicked"))??;
        latency.add(&l);
        begun.push(from);
        ended.push(to);
    }
    let cpu = usage::process_cpu_time()?.saturating_sub(cpu);
    drop(wq);
    runtime.shutdown()?;
    let (first, last) = (begun.iter().min(), ended.iter().max());
    let wall = match (first, last) {
        (Some(a), Some(b)) => (*b - *a).as_secs_f64(),
        _ => anyhow::bail!("no CPU may be used"),
    };
    let all = f64::from(items) * host.cpus() as f64;
    Ok(Sample {
        figures: Observation::from([
            ("items_per_s".into(), all / wall),
            (
                "cpu_percent".into(),
                100.0 * cpu.as_secs_f64() / wall / host.cpus() as f64,
            ),
        ]),
        latency,
    })
}

/// Queues one reusable item and sleeps until it has run, `items` times. No allocation in the loop.
fn issue(wq: &Workqueue, items: u32) -> anyhow::Result<Latency> {
    let bell = Arc::new(Bell {
        rung: AtomicU32::new(0),
        thread: thread::current(),
    });
    let work = Work::new({
        let bell = Arc::clone(&bell);
        move |_| {
            // Ordering: Release pairs with the Acquire of the waiting loop: what the item did is seen.
            bell.rung.fetch_add(1, Ordering::Release);
            bell.thread.unpark();
        }
    });
    let mut latency = Latency::new();
    for n in 1..=items {
        let queued = Instant::now();
        wq.queue(&work)?;
        // Ordering: Acquire pairs with the Release in the item.
        while bell.rung.load(Ordering::Acquire) < n {
            thread::park();
        }
        latency.record(queued.elapsed());
    }
    // The last run may still be on its way out.
    work.flush()?;
    let runs = bell.rung.load(Ordering::Relaxed);
    anyhow::ensure!(runs == items, "{items} items were queued, {runs} ran");
    Ok(latency)
}
