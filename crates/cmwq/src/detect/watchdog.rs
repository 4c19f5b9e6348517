//! The watchdog: a worklist that does not move (kernel: wq_watchdog).
//!
//! It rides on the tick, which runs whenever items wait, and so costs nothing of its own. What it believes it reads again
//! under the lock; a stall is reported once per period; a machine that stood still (suspended, a paused guest) is no stall.

use super::report::{Report, StallReport, StalledWorker};
use crate::pool::{RtPool, WorkerShared, link_of};
use crate::runtime::RtInner;
use crate::sys::procstat;
use cmwq_policy::pool::{Time, WorkerKind, WorkerState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The most busy workers that a report describes.
const WORKERS: usize = 16;

/// When a pool was last found to move, or was reported.
#[derive(Default)]
pub(super) struct Stall {
    touched: Time,
}

impl Stall {
    /// Whatever did not move until `now` is forgiven.
    pub(super) fn touch(&mut self, now: Time) {
        self.touched = now;
    }
}

/// Whether a stall ends the process (kernel: `panic_on_stall`, `panic_on_stall_time`).
pub(crate) struct Abort {
    /// At the n-th stall; 0: never.
    count: AtomicU32,
    /// When one lasts this long, ns; 0: never.
    time_ns: AtomicU64,
    /// Stalls since `count` was set.
    seen: AtomicU32,
}

impl Abort {
    pub(super) fn new(count: u32, time: Duration) -> Abort {
        let abort = Abort {
            count: AtomicU32::new(0),
            time_ns: AtomicU64::new(0),
            seen: AtomicU32::new(0),
        };
        abort.set_count(count);
        abort.set_time(time);
        abort
    }

    pub(crate) fn set_count(&self, n: u32) {
        self.seen.store(0, Ordering::Relaxed);
        self.count.store(n, Ordering::Relaxed);
    }

    pub(crate) fn set_time(&self, limit: Duration) {
        let ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.time_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn time_ns(&self) -> u64 {
        self.time_ns.load(Ordering::Relaxed)
    }

    /// Another stall, which has lasted this long: why the process has to end, if it has to.
    fn reason(&self, stalled: Duration) -> Option<String> {
        let (count, limit) = (self.count(), self.time_ns());
        if count > 0 {
            let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if seen >= count {
                return Some(format!("this is stall {seen} (panic_on_stall={count})"));
            }
        }
        (limit > 0 && stalled.as_nanos() >= u128::from(limit)).then(|| {
            let limit = Duration::from_nanos(limit).as_secs_f64();
            format!("it has lasted {stalled:?} (panic_on_stall_time={limit})")
        })
    }
}

/// What is gathered under the lock.
struct Seen {
    stalled: Duration,
    queue: String,
    waiting: usize,
    idle: u32,
    creating: bool,
    workers: Vec<(Arc<WorkerShared>, WorkerState, Time, String)>,
}

/// Looks at one pool. `now`: when the tick began: should the machine stand still in the middle of it, that counts with the next
/// tick, which is late and says so.
pub(super) fn look(rt: &RtInner, pool: &'static RtPool, stall: &mut Stall, now: Time) {
    let threshold = rt.detect.watchdog_ns.load(Ordering::Relaxed);
    if threshold == 0 {
        return;
    }
    let touched = stall.touched.max(rt.detect.touched.load(Ordering::Relaxed));
    // A read without believing it: the lock is taken anyway, the rest only if it looks bad.
    let seen = pool.inspect(|inner| {
        let p = &inner.policy;
        let since = p.last_progress().max(touched);
        if p.waiting() == 0 || now.saturating_sub(since) < threshold {
            return None;
        }
        let first = p.worklist().next()?;
        // SAFETY: the pool's lock is held and an entry's pwq is linked.
        let queue = |pwq| unsafe { link_of(p.pwq(pwq).tag) }.wq.name().to_string();
        let workers = p
            .workers()
            .filter(|(_, w)| w.kind == WorkerKind::Normal && !w.taken().is_empty())
            .take(WORKERS)
            .filter_map(|(id, w)| {
                let shared = inner.workers.get(id as usize)?.as_ref()?;
                let entry = p.entry(*w.taken().first()?)?;
                Some((
                    Arc::clone(shared),
                    w.state,
                    shared.batch.mark().start,
                    queue(entry.pwq),
                ))
            })
            .collect();
        Some(Seen {
            stalled: Duration::from_nanos(now.saturating_sub(p.last_progress())),
            queue: queue(first.pwq),
            waiting: p.waiting(),
            idle: p.counts().idle,
            creating: p.counts().creating > 0,
            workers,
        })
    });
    let Some(seen) = seen else { return };
    stall.touch(now);
    rt.detect.counts.stalls.fetch_add(1, Ordering::Relaxed);
    let workers = seen
        .workers
        .into_iter()
        .map(|(shared, state, start, queue)| {
            let tid = shared.tid.load(Ordering::Relaxed);
            let why = procstat::StallReport::of(tid);
            StalledWorker {
                tid,
                queue,
                item: shared.item_name(),
                description: shared.description(),
                running_for: Duration::from_nanos(now.saturating_sub(start)),
                counted: state == WorkerState::Running,
                sleeping: why.state.map(procstat::ThreadState::is_blocked),
                waits_in: why.wchan,
                syscall: why.syscall,
            }
        })
        .collect();
    let stalled = seen.stalled;
    let report = Report::Stall(StallReport {
        queue: seen.queue,
        pool: pool.id,
        stalled: seen.stalled,
        waiting: seen.waiting,
        idle_workers: seen.idle,
        creating: seen.creating,
        workers,
    });
    rt.detect.reports.send(&report);
    if let Some(why) = rt.detect.abort.reason(stalled) {
        eprintln!("cmwq: {report}\ncmwq: the process ends: {why}");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_ends_at_the_nth_stall_or_a_long_one() {
        let short = Duration::from_secs(1);
        let never = Abort::new(0, Duration::ZERO);
        assert!((0..9).all(|_| never.reason(Duration::MAX).is_none()));
        let third = Abort::new(3, Duration::ZERO);
        assert!(third.reason(short).is_none() && third.reason(short).is_none());
        assert!(third.reason(short).is_some_and(|w| w.contains("stall 3")));
        third.set_count(2);
        assert!(third.reason(short).is_none(), "setting it counts anew");
        let long = Abort::new(0, Duration::from_secs(60));
        assert!(long.reason(short).is_none());
        assert!(long.reason(Duration::from_secs(60)).is_some());
    }
}
