//! One CPU, two items: the first blocks; how soon does the second run?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cmwq_measure::{Latency, Observation};

use super::tally::Tally;
use super::{Job, figures, since, start};
use crate::pools::Pool;

pub(super) fn run<P: Pool>(job: &Job) -> Result<Observation> {
    // Before the pool starts, so that its threads inherit it and it counts one CPU.
    one_cpu().context("binding the process to one CPU")?;
    let pool = start::<P>(1)?;
    let n = if job.quick { 20 } else { 100 };
    let mut latency = Latency::new();
    let base = Instant::now();
    for round in 0..n + 3 {
        let tally = Tally::leaked();
        let blocked = Arc::new(AtomicU64::new(0));
        let started = Arc::new(AtomicU64::new(0));
        let (at, begin) = (Arc::clone(&blocked), Arc::clone(&started));
        pool.spawn(move || {
            at.store(since(base), Ordering::Relaxed);
            P::block(|| thread::sleep(Duration::from_millis(10)));
            tally.hit(0);
        });
        let queued = since(base);
        pool.spawn(move || {
            begin.store(since(base), Ordering::Relaxed);
            tally.hit(1);
        });
        tally.wait(2)?;
        tally.check(2)?;
        let (blocked, started) = (
            blocked.load(Ordering::Relaxed),
            started.load(Ordering::Relaxed),
        );
        if round >= 3 {
            // Where the first one blocked before the second was queued, the second could not have started before that.
            latency.record_ns(started.saturating_sub(blocked.max(queued)));
        }
    }
    let us = |p| latency.percentile_us(p).unwrap_or_default();
    Ok(figures([
        ("handover_p50_us", us(50.0)),
        ("handover_p99_us", us(99.0)),
    ]))
}

/// Binds the calling thread, and with it the threads it starts, to the first CPU that it may use.
fn one_cpu() -> std::io::Result<()> {
    // SAFETY: a zeroed set is a valid empty one, of the size that is passed; the calls keep no reference.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &set));
        let first = first.ok_or_else(|| std::io::Error::other("no CPU in the affinity mask"))?;
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut one);
        if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}
