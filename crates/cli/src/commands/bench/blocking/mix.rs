//! Computing items queued behind sleeping ones.

use super::median_ms;
use anyhow::Context;
use cmwq_measure::spin::{Rate, chain};
use cmwq_measure::stats;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SLEEP: Duration = Duration::from_millis(4);
const COMPUTE: Duration = Duration::from_micros(50);
/// Per CPU: 16 and 64 on two.
const SLEEPING: usize = 8;
const COMPUTING: usize = 32;
/// Warm passes a round.
const PASSES: usize = 5;

/// What was measured so far.
#[derive(Default)]
pub(super) struct Mixes {
    warm: Vec<Duration>,
    cold: Vec<Duration>,
    warm_workers: Vec<f64>,
    cold_workers: Vec<f64>,
    warm_all: Vec<Duration>,
    alone: Vec<Duration>,
    ideal: Duration,
    steps: Option<u64>,
}

struct Pass {
    computed: Duration,
    all: Duration,
    workers: usize,
}

impl Mixes {
    /// A new runtime: its first pass is cold, the next ones warm.
    pub(super) fn round(&mut self, cpus: usize) -> anyhow::Result<()> {
        let rt = cmwq::Runtime::builder().build()?;
        let wq = rt.workqueue("mix").build()?;
        self.ideal = COMPUTE * COMPUTING as u32;
        // The ideal has all CPUs compute at once, so that is when an item is to take its time.
        let steps = *self
            .steps
            .get_or_insert_with(|| Rate::measure_beside(cpus - 1).steps(COMPUTE));
        let cold = pass(&rt, &wq, cpus, SLEEPING * cpus, steps)?;
        self.cold.push(cold.computed);
        self.cold_workers.push(cold.workers as f64);
        for _ in 0..PASSES {
            std::thread::sleep(Duration::from_millis(10));
            let warm = pass(&rt, &wq, cpus, SLEEPING * cpus, steps)?;
            self.warm.push(warm.computed);
            self.warm_workers.push(warm.workers as f64);
            self.warm_all.push(warm.all);
            std::thread::sleep(Duration::from_millis(10));
            let alone = pass(&rt, &wq, cpus, 0, steps)?;
            self.alone.push(alone.computed);
        }
        wq.destroy()?;
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let one = |computed: &[Duration], workers: &[f64]| {
            json!({
                "compute_ms": median_ms(computed),
                "best_ms": computed.iter().min().map(|d| d.as_secs_f64() * 1e3),
                "ideal_ms": self.ideal.as_secs_f64() * 1e3,
                "workers": stats::median(workers),
            })
        };
        let mut warm = one(&self.warm, &self.warm_workers);
        warm["all_ms"] = json!(median_ms(&self.warm_all));
        // The same computing items without any that sleep: what this machine and its other load allow.
        warm["alone_ms"] = json!(median_ms(&self.alone));
        json!({ "warm": warm, "cold": one(&self.cold, &self.cold_workers) })
    }
}

fn pass(
    rt: &cmwq::Runtime,
    wq: &cmwq::Workqueue,
    cpus: usize,
    sleeping: usize,
    steps: u64,
) -> anyhow::Result<Pass> {
    let computing = COMPUTING * cpus;
    let left = Arc::new(AtomicU64::new(computing as u64));
    let main = std::thread::current();
    let began = Instant::now();
    let mut handles = Vec::with_capacity(sleeping + computing);
    for _ in 0..sleeping {
        handles.push(wq.spawn(|| std::thread::sleep(SLEEP)));
    }
    for _ in 0..computing {
        let (left, main) = (Arc::clone(&left), main.clone());
        handles.push(wq.spawn(move || {
            chain(steps);
            // Ordering: AcqRel: the last one sees all others' work.
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                main.unpark();
            }
        }));
    }
    // Ordering: pairs with the items' Release.
    while left.load(Ordering::Acquire) > 0 {
        std::thread::park_timeout(Duration::from_secs(1));
        anyhow::ensure!(
            began.elapsed() < Duration::from_secs(30),
            "the computing items are not done after 30 s"
        );
    }
    let computed = began.elapsed();
    let workers = rt.threads();
    for h in handles {
        h.join().context("an item of the mixed load")?;
    }
    Ok(Pass {
        computed,
        all: began.elapsed(),
        workers,
    })
}
