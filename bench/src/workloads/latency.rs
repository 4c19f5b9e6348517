//! How long an item waits on an idle pool, and how long a round trip takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cmwq_measure::{Latency, Observation, Usage, usage};

use super::tally::Tally;
use super::{Job, figures, since, start};
use crate::pools::Pool;

/// 1,000 items a second, one at a time.
pub(super) fn queue_to_start<P: Pool>(job: &Job) -> Result<Observation> {
    let pool = start::<P>(job.threads)?;
    let n: u64 = if job.quick { 300 } else { 3000 };
    warm_up(pool)?;
    let base = Instant::now();
    let starts: &'static [AtomicU64] = Box::leak((0..n).map(|_| AtomicU64::new(0)).collect());
    let tally = Tally::leaked();
    let mut queued = Vec::with_capacity(n as usize);
    let mut submit = Latency::new();
    let cpu = (usage::process_cpu_time()?, usage::thread_cpu_time()?);
    let switches = (Usage::of_process()?, Usage::of_thread()?);
    let began = Instant::now();
    for i in 0..n {
        let due = began + Duration::from_millis(1) * u32::try_from(i)?;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let at = since(base);
        pool.spawn(move || {
            starts[i as usize].store(since(base), Ordering::Relaxed);
            tally.hit(i);
        });
        submit.record_ns(since(base) - at);
        queued.push(at);
    }
    tally.wait(n)?;
    let wall = began.elapsed();
    let own = (
        usage::thread_cpu_time()?.saturating_sub(cpu.1),
        Usage::of_thread()?.since(&switches.1).switches(),
    );
    let all = (
        usage::process_cpu_time()?.saturating_sub(cpu.0),
        Usage::of_process()?.since(&switches.0).switches(),
    );
    tally.check(n)?;
    let mut latency = Latency::new();
    for (at, started) in queued.into_iter().zip(starts) {
        let started = started.load(Ordering::Relaxed);
        ensure!(
            started >= at,
            "an item started {} ns before it was queued",
            at - started
        );
        latency.record_ns(started - at);
    }
    let us = |l: &Latency, p| l.percentile_us(p).unwrap_or_default();
    Ok(figures([
        ("lat_p50_us", us(&latency, 50.0)),
        ("lat_p99_us", us(&latency, 99.0)),
        ("lat_p99_9_us", us(&latency, 99.9)),
        ("submit_us", us(&submit, 50.0)),
        (
            "lat_cpu_percent",
            all.0.saturating_sub(own.0).as_secs_f64() / wall.as_secs_f64() * 100.0,
        ),
        (
            "lat_switches",
            all.1.saturating_sub(own.1) as f64 / n as f64,
        ),
    ]))
}

/// Submit one, wait for it.
pub(super) fn round_trip<P: Pool>(job: &Job) -> Result<Observation> {
    let pool = start::<P>(job.threads)?;
    let n: u64 = if job.quick { 500 } else { 5000 };
    warm_up(pool)?;
    let tally = Tally::leaked();
    let mut latency = Latency::new();
    for i in 0..n {
        let began = Instant::now();
        pool.run_one(move || tally.hit(i));
        latency.record(began.elapsed());
    }
    tally.check(n)?;
    let us = |p| latency.percentile_us(p).unwrap_or_default();
    Ok(figures([("pp_p50_us", us(50.0)), ("pp_p99_us", us(99.0))]))
}

/// A hundred items, one at a time, and a short rest.
fn warm_up<P: Pool>(pool: &'static P) -> Result<()> {
    let tally = Tally::leaked();
    (0..100).for_each(|i| pool.run_one(move || tally.hit(i)));
    tally.check(100)?;
    thread::sleep(Duration::from_millis(20));
    Ok(())
}
