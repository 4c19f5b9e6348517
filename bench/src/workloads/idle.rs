//! A pool that has worked and now rests.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cmwq_measure::{Observation, Usage, usage};

use super::tally::Tally;
use super::{Job, figures, ms, start};
use crate::pools::Pool;

pub(super) fn run<P: Pool>(job: &Job) -> Result<Observation> {
    let before = usage::thread_count()?;
    let pool = start::<P>(job.threads)?;
    let tally = Tally::leaked();
    (0..1000).for_each(|id| pool.spawn(move || tally.hit(id)));
    tally.wait(1000)?;
    tally.check(1000)?;
    thread::sleep(Duration::from_millis(300));
    let rest = Duration::from_secs(if job.quick { 1 } else { 5 });
    let switches = (Usage::of_process()?, Usage::of_thread()?);
    // The two clocks are read back to back, twice, so that what this thread does in between cancels but for a microsecond.
    let cpu = (usage::process_cpu_time()?, usage::thread_cpu_time()?);
    let began = Instant::now();
    thread::sleep(rest);
    let after = (usage::process_cpu_time()?, usage::thread_cpu_time()?);
    let slept = began.elapsed();
    let all = Usage::of_process()?.since(&switches.0).switches();
    let own = Usage::of_thread()?.since(&switches.1).switches();
    let others = (after.0 - cpu.0).saturating_sub(after.1 - cpu.1);
    Ok(figures([
        ("idle_cpu_ms", ms(others)),
        ("idle_switches", all.saturating_sub(own) as f64),
        (
            "idle_threads",
            usage::thread_count()?.saturating_sub(before) as f64,
        ),
        ("idle_s", slept.as_secs_f64()),
    ]))
}
