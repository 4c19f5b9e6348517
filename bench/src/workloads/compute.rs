//! Items that only compute, each longer than the CPU-hog threshold of 10 ms: do compute loads breed threads, and do they cost throughput?

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cmwq_measure::{Observation, usage};

use super::tally::Tally;
use super::{Job, figures, start};
use crate::pools::Pool;

pub(super) fn run<P: Pool>(job: &Job) -> Result<Observation> {
    let before = usage::thread_count()?;
    let pool = start::<P>(job.threads)?;
    let (n, each) = if job.quick { (12, 15) } else { (40, 25) };
    let n = n * job.threads as u64 / 2;
    let steps = job.rate.steps(Duration::from_millis(each));
    let tally = Tally::leaked();
    let began = Instant::now();
    for id in 0..n {
        pool.spawn(move || {
            cmwq_measure::spin::chain(steps);
            tally.hit(id);
        });
    }
    // The most threads seen, looked at every 10 ms from the side.
    let watcher = thread::spawn(move || -> std::io::Result<usize> {
        let mut most = 0;
        let end = Instant::now() + Duration::from_secs(60);
        while !tally.reached(n) && Instant::now() < end {
            most = most.max(usage::thread_count()?);
            thread::sleep(Duration::from_millis(10));
        }
        Ok(most)
    });
    let end = tally.wait(n)?;
    let most = watcher
        .join()
        .map_err(|_| anyhow::anyhow!("the watching thread panicked"))??;
    tally.check(n)?;
    let threads = most.saturating_sub(before + 1); // less the watcher
    Ok(figures([
        (
            "compute_items_per_s",
            n as f64 / (end - began).as_secs_f64(),
        ),
        ("compute_threads", threads as f64),
    ]))
}
