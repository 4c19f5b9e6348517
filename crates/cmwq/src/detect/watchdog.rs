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
use std::sync::atomic::Ordering;
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

/// What is gathered under the lock.
struct Seen {
    stalled: Duration,
    queue: String,
    waiting: usize,
    idle: u32,
    creating: bool,
    workers: Vec<(Arc<WorkerShared>, WorkerState, Time, String)>,
}

/// Looks at one pool.
pub(super) fn look(rt: &RtInner, pool: &'static RtPool, stall: &mut Stall) {
    let threshold = rt.detect.watchdog_ns.load(Ordering::Relaxed);
    if threshold == 0 {
        return;
    }
    let touched = stall.touched.max(rt.detect.touched.load(Ordering::Relaxed));
    let now = rt.time.now();
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
    rt.detect.reports.send(&Report::Stall(StallReport {
        queue: seen.queue,
        pool: pool.id,
        stalled: seen.stalled,
        waiting: seen.waiting,
        idle_workers: seen.idle,
        creating: seen.creating,
        workers,
    }));
}
