//! Fault runs: random machines, queues, loads and faults, all from one seed, with every invariant checked after every event.
//!
//! | fault | how |
//! |---|---|
//! | steps interleave | each request of the policy waits for a random while before it is carried out |
//! | a worker cannot be made | a share of the attempts fails |
//! | blocking goes unnoticed | a share of the sleeps is not told to the pool |
//! | wake-ups nobody sent | idle workers wake by themselves |
//! | CPUs go and come | threads move, per-CPU pools are disassociated, targets and node limits follow |
//! | quotas, limits and attributes change | targets, `max_active`, new pwqs beside old ones |
//! | workers stall | a running worker loses its CPU's attention for up to 60 ms |
//! | the clock jumps | up to 3 s forward, as after a pause of the virtual machine |
//! | the thread of the timer wheel comes late | up to 3 ms, and deals with a few timers at a time |
//! | items wait for items of their own queue | with their permits lent |
//! | delays, changes of delays, cancels, flushes, freezes, drains, inline waits, culling | as operations of users |
//!
//! A run is a list of operations made from the seed. A failing one is shrunk by leaving operations out, and printed as a
//! command that replays it.

mod check;
mod ops;
mod plan;

pub(crate) use plan::Plan;

use crate::sim::Sim;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a fault run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Events handled, every invariant checked after each.
    pub events: u64,
    /// Items that ran to their end.
    pub items: u64,
    /// Virtual time, ns.
    pub virtual_ns: u64,
    /// A hash of the order of things: equal seeds give equal hashes.
    pub trace: u64,
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The run's seed.
    pub seed: u64,
    /// The operations that were carried out, by number; `None`: all.
    pub only: Option<Vec<u32>>,
    /// What was broken.
    pub what: String,
}

impl Violation {
    /// Its operations, one a line.
    pub fn operations(&self) -> String {
        Plan::describe(self.seed, self.only.as_deref())
    }

    /// The command that replays it.
    pub fn replay(&self) -> String {
        let only = self.only.as_ref().map_or(String::new(), |o| {
            let list: Vec<String> = o.iter().map(u32::to_string).collect();
            format!(" --only {}", list.join(","))
        });
        format!("cmwq sim --faults 1 --seed {}{only}", self.seed)
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  replay: {}", self.what, self.replay())
    }
}

/// Runs one seed; `only`: of its operations, these.
///
/// # Errors
/// The broken invariant.
pub fn run_seed(seed: u64, only: Option<&[u32]>) -> Result<Report, Violation> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Plan::build(seed, only);
        sim.run_plan()
    }));
    result.map_err(|e| {
        let what = e
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| e.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap_or_else(|| String::from("a panic without a message"));
        Violation {
            seed,
            only: only.map(<[u32]>::to_vec),
            what,
        }
    })
}

/// Leaves out operations of a failing run for as long as it still fails, for at most `tries` runs.
pub fn shrink(v: &Violation, mut tries: u32) -> Violation {
    let mut best = v.clone();
    let mut ops: Vec<u32> = v
        .only
        .clone()
        .unwrap_or_else(|| (0..Plan::operations(v.seed)).collect());
    let mut chunk = ops.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < ops.len() && tries > 0 {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + chunk).min(fewer.len()));
            tries -= 1;
            match run_seed(v.seed, Some(&fewer)) {
                Err(smaller) => {
                    ops = fewer;
                    best = smaller;
                }
                Ok(_) => at += chunk,
            }
        }
        if chunk == 1 || tries == 0 {
            return best;
        }
        chunk = chunk.div_ceil(2);
    }
}

/// Runs seeds `from..from + n` on up to `threads` threads, with panics kept quiet; stops at the first violation of each
/// thread. Returns how many seeds ran without one, the sum of their reports, and the violations.
pub fn run_many(from: u64, n: u64, threads: usize) -> (u64, Report, Vec<Violation>) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let next = std::sync::atomic::AtomicU64::new(0);
    let parts: Vec<(u64, Report, Option<Violation>)> = std::thread::scope(|s| {
        let hands: Vec<_> = (0..threads.max(1))
            .map(|_| {
                s.spawn(|| {
                    let (mut good, mut sum) = (0, Report::default());
                    loop {
                        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if i >= n {
                            return (good, sum, None);
                        }
                        match run_seed(from + i, None) {
                            Ok(r) => {
                                good += 1;
                                sum.events += r.events;
                                sum.items += r.items;
                                sum.virtual_ns += r.virtual_ns;
                                sum.trace ^= r.trace;
                            }
                            Err(v) => return (good, sum, Some(v)),
                        }
                    }
                })
            })
            .collect();
        hands
            .into_iter()
            .map(|h| h.join().expect("a fault run catches its panics"))
            .collect()
    });
    let (mut good, mut sum, mut bad) = (0, Report::default(), Vec::new());
    for (g, r, v) in parts {
        good += g;
        sum.events += r.events;
        sum.items += r.items;
        sum.virtual_ns += r.virtual_ns;
        sum.trace ^= r.trace;
        bad.extend(v.map(|v| shrink(&v, 400)));
    }
    std::panic::set_hook(hook);
    (good, sum, bad)
}

impl Sim {
    /// An operation of the plan is due.
    pub(crate) fn fault_act(&mut self, i: u32) {
        let mut plan = self.load.plan.take().expect("a fault run has a plan");
        plan.apply(self, i);
        self.load.plan = Some(plan);
    }
}
