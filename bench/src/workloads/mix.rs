//! Sleeping items first, computing ones queued behind: who notices that the sleepers need no CPU?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cmwq_measure::{Observation, stats, usage};

use super::tally::Tally;
use super::{Job, figures, ms, start};
use crate::pools::Pool;

const SLEEP: Duration = Duration::from_millis(4);
const COMPUTE: Duration = Duration::from_micros(50);

/// One pass.
struct Pass {
    computed: Duration,
    all: Duration,
    threads: f64,
}

/// Cold is the first pass of the process; warm the median of those that follow.
pub(super) fn run<P: Pool>(job: &Job) -> Result<Observation> {
    let before = usage::thread_count()?;
    let pool = start::<P>(job.threads)?;
    let cold = pass(pool, job, before)?;
    let repeats = if job.quick { 3 } else { 9 };
    let warm: Vec<Pass> = (0..repeats)
        .map(|_| {
            thread::sleep(Duration::from_millis(5));
            pass(pool, job, before)
        })
        .collect::<Result<_>>()?;
    let middle = |of: fn(&Pass) -> f64| {
        stats::median(&warm.iter().map(of).collect::<Vec<_>>()).unwrap_or_default()
    };
    let (_, computing) = counts(job);
    let ideal = ms(COMPUTE) * computing as f64 / job.threads as f64;
    let warm_ms = middle(|p| ms(p.computed));
    Ok(figures([
        ("mix_warm_ms", warm_ms),
        ("mix_warm_x_ideal", warm_ms / ideal),
        ("mix_warm_all_ms", middle(|p| ms(p.all))),
        ("mix_warm_threads", middle(|p| p.threads)),
        ("mix_cold_ms", ms(cold.computed)),
        ("mix_cold_x_ideal", ms(cold.computed) / ideal),
        ("mix_cold_all_ms", ms(cold.all)),
        ("mix_cold_threads", cold.threads),
    ]))
}

/// Sleeping and computing items: 16 and 64 on two CPUs.
pub(crate) fn counts(job: &Job) -> (u64, u64) {
    (8 * job.threads as u64, 32 * job.threads as u64)
}

fn pass<P: Pool>(pool: &'static P, job: &Job, before: usize) -> Result<Pass> {
    let (sleeping, computing) = counts(job);
    let tally = Tally::leaked();
    let left = Arc::new(AtomicU64::new(computing));
    let main = thread::current();
    let steps = job.rate.steps(COMPUTE);
    let began = Instant::now();
    for id in 0..sleeping {
        pool.spawn(move || {
            P::block(|| thread::sleep(SLEEP));
            tally.hit(id);
        });
    }
    for id in sleeping..sleeping + computing {
        let (left, main) = (Arc::clone(&left), main.clone());
        pool.spawn(move || {
            cmwq_measure::spin::chain(steps);
            tally.hit(id);
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                main.unpark();
            }
        });
    }
    // A lost item ends this wait too; the tally then says so.
    let limit = Duration::from_secs(10);
    while left.load(Ordering::Relaxed) > 0 && began.elapsed() < limit {
        thread::park_timeout(limit);
    }
    let computed = began.elapsed();
    let threads = usage::thread_count()?.saturating_sub(before) as f64;
    let end = tally.wait(sleeping + computing)?;
    tally.check(sleeping + computing)?;
    Ok(Pass {
        computed,
        all: end - began,
        threads,
    })
}
