//! Empty items: the cost of queueing and running as such.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cmwq_measure::{Observation, stats, usage};

use super::tally::Tally;
use super::{Job, figures, start};
use crate::pools::{self, Pool, Visitor};

/// Wall and CPU nanoseconds an item, of one burst.
struct Cost {
    wall: f64,
    cpu: f64,
}

/// Repeats a burst until enough time has gone by, after a smaller one to warm up, and takes medians. `queue` queues items 0 to n - 1.
fn bursts(job: &Job, mut queue: impl FnMut(&'static Tally, u64) -> Result<()>) -> Result<Cost> {
    let (n, least) = if job.quick {
        (20_000, Duration::from_millis(20))
    } else {
        (200_000, Duration::from_millis(250))
    };
    let mut burst = |n: u64| -> Result<Cost> {
        let tally = Tally::leaked();
        let (cpu, began) = (usage::process_cpu_time()?, Instant::now());
        queue(tally, n)?;
        let end = tally.wait(n)?;
        let cpu = usage::process_cpu_time()? - cpu;
        tally.check(n)?;
        Ok(Cost {
            wall: (end - began).as_nanos() as f64 / n as f64,
            cpu: cpu.as_nanos() as f64 / n as f64,
        })
    };
    burst(n / 10)?;
    let began = Instant::now();
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    while wall.is_empty() || began.elapsed() < least {
        let cost = burst(n)?;
        wall.push(cost.wall);
        cpu.push(cost.cpu);
    }
    let middle = |v: &[f64]| stats::median(v).unwrap_or_default();
    Ok(Cost {
        wall: middle(&wall),
        cpu: middle(&cpu),
    })
}

/// One outside thread queues.
pub(super) fn outside<P: Pool>(job: &Job) -> Result<Observation> {
    let pool = start::<P>(job.threads)?;
    let cost = bursts(job, |tally, n| {
        (0..n).for_each(|id| pool.spawn(move || tally.hit(id)));
        Ok(())
    })?;
    Ok(figures([("ext_ns", cost.wall), ("ext_cpu_ns", cost.cpu)]))
}

/// One item a CPU queues.
pub(super) fn inside<P: Pool>(job: &Job) -> Result<Observation> {
    let pool = start::<P>(job.threads)?;
    let seeds = job.threads as u64;
    let cost = bursts(job, |tally, n| {
        for seed in 0..seeds {
            pool.spawn(move || {
                (seed..n)
                    .step_by(seeds as usize)
                    .for_each(|id| pool.spawn(move || tally.hit(id)));
            });
        }
        Ok(())
    })?;
    Ok(figures([("int_ns", cost.wall), ("int_cpu_ns", cost.cpu)]))
}

/// Several outside threads queue at once.
pub(super) fn remote<P: Pool>(job: &Job) -> Result<Observation> {
    let pool = start::<P>(job.threads)?;
    let mut all = Observation::new();
    for producers in [1_u64, 2, 4, 8] {
        let cost = bursts(job, |tally, n| {
            let ready = Arc::new(Barrier::new(producers as usize));
            let threads: Vec<_> = (0..producers)
                .map(|first| {
                    let ready = Arc::clone(&ready);
                    thread::spawn(move || {
                        ready.wait();
                        (first..n)
                            .step_by(producers as usize)
                            .for_each(|id| pool.spawn(move || tally.hit(id)));
                    })
                })
                .collect();
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a producer panicked"))?;
            }
            Ok(())
        })?;
        all.insert(format!("remote_{producers}_ns"), cost.wall);
    }
    Ok(all)
}

/// Who queues the items of [`count_down`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The main thread.
    Outside,
    /// An item a CPU.
    Inside,
    /// The main thread, which waits for each.
    Waiter,
}

/// Queues `n` empty items and sleeps until the last has run: nothing else, for counting instructions.
///
/// # Errors
/// An unknown or missing pool.
pub fn count_down(pool: &str, from: From, threads: usize, n: u64) -> Result<()> {
    pools::visit(pool, CountDown { from, threads, n })?
}

struct CountDown {
    from: From,
    threads: usize,
    n: u64,
}

impl Visitor for CountDown {
    type Out = Result<()>;

    fn visit<P: Pool>(self) -> Result<()> {
        let pool: &'static P = Box::leak(Box::new(start::<P>(self.threads)?));
        let left: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(self.n)));
        let main = thread::current();
        let waiter: &'static thread::Thread = Box::leak(Box::new(main));
        let hit = move || {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                waiter.unpark();
            }
        };
        match self.from {
            From::Outside => (0..self.n).for_each(|_| pool.spawn(hit)),
            From::Waiter => (0..self.n).for_each(|_| pool.run_one(hit)),
            From::Inside => {
                let seeds = self.threads as u64;
                for seed in 0..seeds {
                    let n = self.n;
                    pool.spawn(move || {
                        (seed..n)
                            .step_by(seeds as usize)
                            .for_each(|_| pool.spawn(hit));
                    });
                }
            }
        }
        while left.load(Ordering::Relaxed) > 0 {
            thread::park();
        }
        Ok(())
    }
}
