//! This machine's constants, as the simulator wants them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use cmwq_measure::spin::{Rate, chain};
use cmwq_sim::Costs;

use super::super::host::Host;
use super::super::way::pin;

/// Measured constants, ns unless the name says otherwise.
pub(crate) struct Constants {
    wake: f64,
    wake_call: f64,
    idle_exit: f64,
    switch: f64,
    request: f64,
    item: f64,
    line: f64,
    smt_share: f64,
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(0.0)
}

impl Constants {
    /// Measures all of them. Takes a second or two.
    pub(crate) fn measure(host: &Host, rate: Rate) -> anyhow::Result<Constants> {
        let cpus: Vec<usize> = host.usable.iter().collect();
        let first = *cpus.first().context("no CPU may be used")?;
        let second = cpus.get(1).copied().unwrap_or(first);
        let (wake, wake_call) = wake_up(first, second, Duration::from_micros(30))?;
        let (deep, _) = wake_up(first, second, Duration::from_millis(2))?;
        let (same, _) = wake_up(first, first, Duration::from_micros(30))?;
        let (request, item) = item_costs(host)?;
        Ok(Constants {
            wake,
            wake_call,
            idle_exit: (deep - wake).max(0.0),
            // On one CPU the woken thread runs when the waker, having made the call, goes to sleep.
            switch: (same - wake_call.min(same / 2.0)).max(100.0),
            request,
            item,
            line: if first == second {
                0.0
            } else {
                line_transfer(first, second)?
            },
            smt_share: if first == second {
                1.0
            } else {
                share(first, second, rate)?
            },
        })
    }

    /// By name.
    pub(crate) fn list(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("wake_ns", self.wake),
            ("wake_call_ns", self.wake_call),
            ("idle_exit_ns", self.idle_exit),
            ("switch_ns", self.switch),
            ("issue_ns", self.request),
            ("item_ns", self.item),
            ("line_ns", self.line),
            ("share_beside_a_busy_cpu", self.smt_share),
        ]
    }

    /// For the simulator. What the way `item` does not use keeps its value.
    pub(crate) fn costs(&self) -> Costs {
        let hold = Costs::default().lock_hold;
        let ns = |x: f64| x.round().max(0.0) as u64;
        Costs {
            smt_share: self.smt_share.clamp(0.3, 1.0),
            line_cache: self.line,
            line_node: self.line * 2.6,
            line_far: self.line * 5.0,
            // A closure, its entry, its queue's counters, its completion.
            item_lines: 6.0,
            wake: ns(self.wake),
            idle_exit: ns(self.idle_exit),
            switch: ns(self.switch),
            wake_call: ns(self.wake_call),
            // The model charges this once at the start of a request and half of it at the end, and the lock.
            request: ns((self.request - hold as f64).max(0.0) / 1.5),
            item: ns(self.item),
            wander: 0,
            ..Costs::default()
        }
    }
}

/// From the call that wakes a sleeping thread on CPU `to` until it runs, and what the call takes; medians. `pause`: how long it
/// had slept.
fn wake_up(from: usize, to: usize, pause: Duration) -> anyhow::Result<(f64, f64)> {
    const TRIES: u32 = 300;
    let start = Instant::now();
    let stamp = Arc::new(AtomicU64::new(0));
    let turn = Arc::new(AtomicU32::new(0));
    let sleeper = thread::spawn({
        let (stamp, turn) = (Arc::clone(&stamp), Arc::clone(&turn));
        move || -> anyhow::Result<Vec<f64>> {
            pin(to)?;
            let mut took = Vec::new();
            for n in 1..=TRIES {
                // Ordering: Acquire pairs with the Release of the waker: the stamp is that of this turn.
                while turn.load(Ordering::Acquire) < 2 * n - 1 {
                    thread::park();
                }
                let now = start.elapsed().as_nanos() as u64;
                took.push(now.saturating_sub(stamp.load(Ordering::Relaxed)) as f64);
                // Ordering: Release pairs with the waker's Acquire.
                turn.store(2 * n, Ordering::Release);
            }
            Ok(took)
        }
    });
    let waker = thread::spawn({
        let thread = sleeper.thread().clone();
        move || -> anyhow::Result<Vec<f64>> {
            pin(from)?;
            let mut calls = Vec::new();
            for n in 1..=TRIES {
                // The sleeper is on its way to sleep; long pauses are slept through, so that this CPU is idle too.
                if pause >= Duration::from_millis(1) {
                    thread::sleep(pause);
                } else {
                    let until = Instant::now() + pause;
                    while Instant::now() < until && from != to {
                        std::hint::spin_loop();
                    }
                }
                let now = start.elapsed().as_nanos() as u64;
                stamp.store(now, Ordering::Relaxed);
                // Ordering: Release pairs with the sleeper's Acquire.
                turn.store(2 * n - 1, Ordering::Release);
                thread.unpark();
                calls.push((start.elapsed().as_nanos() as u64 - now) as f64);
                // Ordering: Acquire pairs with the sleeper's Release.
                while turn.load(Ordering::Acquire) < 2 * n {
                    thread::yield_now();
                }
            }
            Ok(calls)
        }
    });
    let calls = waker.join().map_err(|_| anyhow!("the waker panicked"))??;
    let took = sleeper
        .join()
        .map_err(|_| anyhow!("the sleeper panicked"))??;
    Ok((median(took), median(calls)))
}

/// What an item costs who queues it, and what it costs the worker: medians of many lots. Nothing runs while they are queued.
fn item_costs(host: &Host) -> anyhow::Result<(f64, f64)> {
    const LOT: u32 = 500;
    let runtime = host.runtime()?;
    let wq = runtime.workqueue("costs").freezable().build()?;
    let (mut queueing, mut running) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        runtime.freeze();
        let start = Instant::now();
        for _ in 0..LOT {
            drop(wq.spawn(|| ()));
        }
        queueing.push(start.elapsed().as_nanos() as f64 / f64::from(LOT));
        let ran = Arc::new(AtomicBool::new(false));
        let last = {
            let ran = Arc::clone(&ran);
            // Ordering: Release pairs with the Acquire below.
            wq.spawn(move || ran.store(true, Ordering::Release))
        };
        let start = Instant::now();
        runtime.thaw();
        // Ordering: Acquire pairs with the item's Release.
        while !ran.load(Ordering::Acquire) {
            thread::yield_now();
        }
        running.push(start.elapsed().as_nanos() as f64 / f64::from(LOT));
        drop(last);
        wq.flush()?;
    }
    drop(wq);
    runtime.shutdown()?;
    Ok((median(queueing), median(running)))
}

/// One transfer of a cache line between two CPUs: half a round trip, the median of many lots.
fn line_transfer(a: usize, b: usize) -> anyhow::Result<f64> {
    const TRIPS: u32 = 200;
    let line = Arc::new(AtomicU32::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let (line, stop) = (Arc::clone(&line), Arc::clone(&stop));
        move || -> anyhow::Result<()> {
            pin(b)?;
            while !stop.load(Ordering::Relaxed) {
                let seen = line.load(Ordering::Relaxed);
                if seen % 2 == 1 {
                    line.store(seen.wrapping_add(1), Ordering::Relaxed);
                }
            }
            Ok(())
        }
    });
    let this = thread::spawn({
        let line = Arc::clone(&line);
        move || -> anyhow::Result<Vec<f64>> {
            pin(a)?;
            let mut lots = Vec::new();
            for _ in 0..200 {
                let start = Instant::now();
                for _ in 0..TRIPS {
                    let mine = line.load(Ordering::Relaxed).wrapping_add(1);
                    line.store(mine, Ordering::Relaxed);
                    while line.load(Ordering::Relaxed) == mine {
                        std::hint::spin_loop();
                    }
                }
                lots.push(start.elapsed().as_nanos() as f64 / f64::from(TRIPS) / 2.0);
            }
            Ok(lots)
        }
    });
    let lots = this.join().map_err(|_| anyhow!("a thread panicked"));
    stop.store(true, Ordering::Relaxed);
    other.join().map_err(|_| anyhow!("a thread panicked"))??;
    let mut lots = lots??;
    // What other load disturbed is far longer: the faster quarter counts.
    lots.sort_by(f64::total_cmp);
    lots.truncate(lots.len() / 4);
    Ok(median(lots))
}

/// What a CPU gets done beside a busy one, of what it gets done alone.
fn share(a: usize, b: usize, rate: Rate) -> anyhow::Result<f64> {
    let steps = rate.steps(Duration::from_micros(200));
    let timed = move |cpu: usize| -> anyhow::Result<f64> {
        pin(cpu)?;
        let all = (0..200).map(|_| {
            let start = Instant::now();
            chain(steps);
            start.elapsed().as_nanos() as f64
        });
        let mut all: Vec<f64> = all.collect();
        all.sort_by(f64::total_cmp);
        all.truncate(all.len() / 4);
        Ok(median(all))
    };
    let alone = thread::spawn(move || timed(a))
        .join()
        .map_err(|_| anyhow!("a thread panicked"))??;
    let stop = Arc::new(AtomicBool::new(false));
    let busy = thread::spawn({
        let stop = Arc::clone(&stop);
        move || -> anyhow::Result<()> {
            pin(b)?;
            while !stop.load(Ordering::Relaxed) {
                chain(10_000);
            }
            Ok(())
        }
    });
    let beside = thread::spawn(move || timed(a)).join();
    stop.store(true, Ordering::Relaxed);
    busy.join().map_err(|_| anyhow!("a thread panicked"))??;
    let beside = beside.map_err(|_| anyhow!("a thread panicked"))??;
    Ok(alone / beside)
}
