//! What sleeping items cost the computing ones: throughput with sleepers against throughput without, in the same process.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cmwq_measure::{Observation, stats, usage};

use super::tally::Tally;
use super::{Job, figures, start};
use crate::pools::Pool;

/// Long enough for the sleepers to be noticed by anything that reacts within some ticks.
const NOTICE: Duration = Duration::from_millis(30);

pub(super) fn run<P: Pool>(job: &Job) -> Result<Observation> {
    let before = usage::thread_count()?;
    let pool = start::<P>(job.threads)?;
    let repeats = if job.quick { 1 } else { 3 };
    let mut losses = Vec::new();
    compute(pool, job)?; // warm up
    let mut threads = 0;
    for _ in 0..repeats {
        let alone = compute(pool, job)?;
        // Longer than the computing takes by far, so that they sleep all the while.
        let sleep = NOTICE + alone * 2;
        let sleeping = 2 * job.threads as u64 + 2;
        let asleep = Tally::leaked();
        for id in 0..sleeping {
            pool.spawn(move || {
                P::block(|| thread::sleep(sleep));
                asleep.hit(id);
            });
        }
        thread::sleep(NOTICE);
        let with = compute(pool, job)?;
        threads = threads.max(usage::thread_count()?.saturating_sub(before));
        asleep.wait(sleeping)?;
        asleep.check(sleeping)?;
        let again = compute(pool, job)?;
        let alone = (alone + again) / 2;
        losses.push((1.0 - alone.as_secs_f64() / with.as_secs_f64()) * 100.0);
    }
    Ok(figures([
        (
            "sleepers_loss_percent",
            stats::median(&losses).unwrap_or_default(),
        ),
        ("sleepers_threads", threads as f64),
    ]))
}

/// How long the computing items take.
fn compute<P: Pool>(pool: &'static P, job: &Job) -> Result<Duration> {
    let n = if job.quick { 20 } else { 60 } * job.threads as u64;
    let steps = job.rate.steps(Duration::from_millis(1));
    let tally = Tally::leaked();
    let began = Instant::now();
    for id in 0..n {
        pool.spawn(move || {
            cmwq_measure::spin::chain(steps);
            tally.hit(id);
        });
    }
    let end = tally.wait(n)?;
    tally.check(n)?;
    Ok(end - began)
}
