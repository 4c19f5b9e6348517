//! The loads: who queues what, and what is counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cmwq::Workqueue;
use cmwq_measure::{Latency, Observation, usage};

use super::super::host::Host;
use super::super::setting::Setting;
use super::super::way::{current_cpu, pin};
use super::Scenario;

/// A load on a host.
pub(super) struct Load<'a> {
    pub(super) scenario: Scenario,
    pub(super) host: &'a Host,
    pub(super) runtime: Duration,
    pub(super) work: Duration,
}

/// Items in flight in the overload.
const WINDOW: u64 = 256;
/// Between two items of the calm load.
const CALM: Duration = Duration::from_millis(1);
/// Threads are made and caches are filled during this time, which is not measured.
const WARM_UP: Duration = Duration::from_millis(40);

/// What items count, shared by all of a measurement.
#[derive(Default)]
struct Counts {
    done: AtomicU64,
    moves: AtomicU64,
    room: Mutex<()>,
    bell: Condvar,
}

thread_local! {
    /// The CPU where this thread ran its last item.
    static LAST: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Counts {
    /// An item: computes for `work`.
    fn item(&self, work: Duration) {
        let cpu = current_cpu();
        let last = LAST.replace(cpu);
        if last != cpu && last != usize::MAX {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        let start = Instant::now();
        while start.elapsed() < work {
            std::hint::spin_loop();
        }
    }
}

/// What the issuers of one measurement saw.
#[derive(Default)]
struct Issued {
    latency: Latency,
    /// How often an issuer found itself on another CPU than before.
    moves: u64,
}

impl Load<'_> {
    /// One measurement of one setting, with a runtime of its own.
    pub(super) fn measure(&self, setting: Setting) -> anyhow::Result<Observation> {
        let runtime = self.host.runtime()?;
        let wq = setting
            .builder(&runtime)
            .context("a setting with a workqueue")?
            .build()
            .context("workqueue")?;
        self.issue(&wq, WARM_UP, &Arc::default())?;
        let counts = Arc::<Counts>::default();
        let (before, cpu_before) = (wq.stats(), usage::process_cpu_time()?);
        let began = Instant::now();
        let issued = self.issue(&wq, self.runtime, &counts)?;
        let wall = began.elapsed().as_secs_f64();
        let cpu = usage::process_cpu_time()?.saturating_sub(cpu_before);
        let after = wq.stats();
        let threads = runtime.threads();
        wq.destroy().context("the queue")?;
        runtime.shutdown().context("the runtime")?;
        let items = (after.completed - before.completed) as f64;
        anyhow::ensure!(items > 0.0, "no item was done");
        anyhow::ensure!(
            after.completed == after.queued,
            "{} items were queued and {} were done",
            after.queued,
            after.completed
        );
        let percent = |n: u64, m: u64| 100.0 * (n - m) as f64 / items;
        let moves = counts.moves.load(Ordering::Relaxed) + issued.moves;
        let mut figures = Observation::from([
            ("items_per_s".into(), items / wall),
            (
                "cpu_percent".into(),
                100.0 * cpu.as_secs_f64() / wall / self.host.cpus() as f64,
            ),
            (
                "in_pod_percent".into(),
                percent(after.in_pod, before.in_pod),
            ),
            ("migrations".into(), moves as f64 / items),
            (
                "hedged_percent".into(),
                percent(after.hedged, before.hedged),
            ),
            (
                "helped_percent".into(),
                percent(after.helped, before.helped),
            ),
            ("threads".into(), threads as f64),
        ]);
        let summary = issued.latency.summary();
        for (name, value) in [
            ("p50_us", summary.p50),
            ("p90_us", summary.p90),
            ("p95_us", summary.p95),
            ("p99_us", summary.p99),
        ] {
            figures.extend(value.map(|v| (name.into(), v)));
        }
        Ok(figures)
    }

    /// Issues for this long and waits until everything is done.
    fn issue(
        &self,
        wq: &Workqueue,
        time: Duration,
        counts: &Arc<Counts>,
    ) -> anyhow::Result<Issued> {
        let first = self.host.usable.first().context("a CPU")?;
        let cpus: Vec<Option<usize>> = match self.scenario {
            Scenario::Overload | Scenario::Sync => vec![Some(first)],
            Scenario::Pair | Scenario::Calm => vec![None],
            Scenario::EachCpu => self.host.usable.iter().map(Some).collect(),
        };
        let stop = AtomicBool::new(false);
        let issued = std::thread::scope(|s| {
            let issuers: Vec<_> = cpus
                .into_iter()
                .map(|cpu| {
                    let stop = &stop;
                    s.spawn(move || {
                        cpu.map_or(Ok(()), pin)?;
                        match self.scenario {
                            Scenario::Overload => self.overload(wq, counts, stop),
                            Scenario::Calm => self.calm(wq, counts, stop),
                            _ => self.wait_for_each(wq, counts, stop),
                        }
                    })
                })
                .collect();
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            let mut all = Issued::default();
            for issuer in issuers {
                let one = match issuer.join() {
                    Ok(one) => one?,
                    Err(payload) => std::panic::resume_unwind(payload),
                };
                all.latency.add(&one.latency);
                all.moves += one.moves;
            }
            anyhow::Ok(all)
        })?;
        wq.flush().context("flush")?;
        Ok(issued)
    }

    /// As many items in flight as the window holds; the issuer sleeps while it is full.
    fn overload(
        &self,
        wq: &Workqueue,
        counts: &Arc<Counts>,
        stop: &AtomicBool,
    ) -> anyhow::Result<Issued> {
        let mut queued = 0;
        let in_flight = |queued: u64| queued - counts.done.load(Ordering::Relaxed);
        loop {
            while in_flight(queued) < WINDOW {
                let (counts, work) = (Arc::clone(counts), self.work);
                let item = move || {
                    counts.item(work);
                    let done = counts.done.fetch_add(1, Ordering::Relaxed) + 1;
                    // Half a window at a time.
                    if done.is_multiple_of(WINDOW / 2) {
                        drop(counts.room.lock().unwrap_or_else(PoisonError::into_inner));
                        counts.bell.notify_one();
                    }
                };
                let item = wq.try_spawn(item);
                drop(item.map_err(|e| anyhow::anyhow!("{e}"))?);
                queued += 1;
            }
            let mut guard = counts.room.lock().unwrap_or_else(PoisonError::into_inner);
            // Never for long: the last bell before the end may have rung already.
            let limit = Duration::from_millis(20);
            let began = Instant::now();
            while in_flight(queued) > WINDOW / 2 && began.elapsed() < limit {
                guard = counts
                    .bell
                    .wait_timeout(guard, limit)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            drop(guard);
            // Here and not before: something is done however late this thread got to begin.
            if stop.load(Ordering::Relaxed) {
                return Ok(Issued::default());
            }
        }
    }

    fn calm(
        &self,
        wq: &Workqueue,
        counts: &Arc<Counts>,
        stop: &AtomicBool,
    ) -> anyhow::Result<Issued> {
        let mut next = Instant::now();
        loop {
            let (counts, work) = (Arc::clone(counts), self.work);
            let item = wq.try_spawn(move || counts.item(work));
            drop(item.map_err(|e| anyhow::anyhow!("{e}"))?);
            if stop.load(Ordering::Relaxed) {
                return Ok(Issued::default());
            }
            next += CALM;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn wait_for_each(
        &self,
        wq: &Workqueue,
        counts: &Arc<Counts>,
        stop: &AtomicBool,
    ) -> anyhow::Result<Issued> {
        let mut issued = Issued::default();
        let mut last = current_cpu();
        loop {
            let (c, work) = (Arc::clone(counts), self.work);
            let began = Instant::now();
            wq.try_spawn(move || c.item(work))
                .map_err(|e| anyhow::anyhow!("{e}"))?
                .join()
                .context("an item")?;
            issued.latency.record(began.elapsed());
            let cpu = current_cpu();
            issued.moves += u64::from(cpu != last);
            last = cpu;
            if stop.load(Ordering::Relaxed) {
                return Ok(issued);
            }
        }
    }
}
