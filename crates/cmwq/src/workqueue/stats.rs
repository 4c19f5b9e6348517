//! Counters and histograms of a queue.

use super::{PwqLink, WqInner};
use cmwq_policy::hist::Histogram;
use cmwq_policy::pool::PwqCounters;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A distribution of durations, kept in buckets at most 12.5 % wide.
#[derive(Debug, Clone, Default)]
pub struct TimeStats {
    pub(crate) histogram: Histogram,
}

impl TimeStats {
    /// How many items were measured.
    pub fn count(&self) -> u64 {
        self.histogram.count
    }

    /// Their mean; zero if there are none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(
            self.histogram
                .sum
                .checked_div(self.histogram.count)
                .unwrap_or(0),
        )
    }

    /// The smallest; zero if there are none.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(if self.histogram.count == 0 {
            0
        } else {
            self.histogram.min
        })
    }

    /// The largest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.histogram.max)
    }

    /// The `q`-quantile, `0.0..=1.0`: an upper bound within one bucket's width; zero if there are none.
    pub fn quantile(&self, q: f64) -> Duration {
        Duration::from_nanos(self.histogram.quantile(q.clamp(0.0, 1.0)))
    }

    /// The counts per bucket with each bucket's smallest value, ns.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram
            .buckets
            .iter()
            .enumerate()
            .map(|(i, &n)| (cmwq_policy::hist::bucket_low(i), n))
    }
}

/// A queue's numbers at one moment; from [`crate::Workqueue::stats`]. Counters only ever grow, across changes of settings
/// too (the kernel's restart when a pwq is replaced).
///
/// The numbers are those of one moment a pool, and exact after a [`flush`](crate::Workqueue::flush): a worker counts what it has
/// finished when it next takes its pool's lock, so right after a `join` the joined item may not be counted as completed yet. A
/// panic is counted before anybody can learn that the item is over.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Items accepted.
    pub queued: u64,
    /// Items whose function was started.
    pub started: u64,
    /// Items whose function has returned, panics included.
    pub completed: u64,
    /// Items taken out before they started.
    pub cancelled: u64,
    /// Items whose function panicked.
    pub panicked: u64,
    /// Queueings that were refused.
    pub refused: u64,
    /// Items started on the CPU that issued them.
    pub cpu_local: u64,
    /// Items started on a CPU of their pool's pod.
    pub in_pod: u64,
    /// Items found to hog their CPU.
    pub cpu_intensive: u64,
    /// Workers woken or made because one of the queue's items blocked.
    pub cm_wakeup: u64,
    /// Workers brought home to their pod.
    pub repatriated: u64,
    /// Calls of the rescuer.
    pub mayday: u64,
    /// Items that the rescuer ran.
    pub rescued: u64,
    /// Items that a worker of another pod ran.
    pub helped: u64,
    /// Items offered to other pods because they waited too long.
    pub hedged: u64,
    /// Items run by the thread that waited for them.
    pub inlined: u64,
    /// Extra workers added because the queue's first item waited too long.
    pub fairness: u64,
    /// Items held back by a limit when they were queued.
    pub throttled: u64,
    /// Items active now: on a worklist, with a worker or running.
    pub active: usize,
    /// Items held back now by `max_active`.
    pub inactive: usize,
    /// Pwqs, retiring ones too.
    pub pwqs: usize,
    /// From queueing to the start.
    pub queue_to_start: TimeStats,
    /// Run times.
    pub run: TimeStats,
}

impl WqInner {
    pub(crate) fn stats(&self) -> Stats {
        if self.rt.fork.is_stale() {
            return Stats::default();
        }
        let (links, mut counters, mut wait, mut run) = {
            let state = self.lock();
            let r = &state.released;
            (
                state.links.clone(),
                r.counters,
                r.wait.clone(),
                r.run.clone(),
            )
        };
        let (mut active, mut inactive) = (0, 0);
        for link in &links {
            self.add_link(
                link,
                &mut counters,
                &mut wait,
                &mut run,
                &mut active,
                &mut inactive,
            );
        }
        let PwqCounters {
            queued,
            started,
            completed,
            cancelled,
            cpu_local,
            in_pod,
            cpu_intensive,
            cm_wakeup,
            repatriated,
            mayday,
            rescued,
            helped,
            hedged,
            inlined,
            fairness,
            throttled,
        } = counters;
        Stats {
            queued,
            started,
            completed,
            cancelled,
            panicked: self.panicked.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            cpu_local,
            in_pod,
            cpu_intensive,
            cm_wakeup,
            repatriated,
            mayday,
            rescued,
            helped,
            hedged,
            inlined,
            fairness,
            throttled,
            active,
            inactive,
            pwqs: links.len(),
            queue_to_start: TimeStats { histogram: wait },
            run: TimeStats { histogram: run },
        }
    }

    fn add_link(
        &self,
        link: &Arc<PwqLink>,
        counters: &mut PwqCounters,
        wait: &mut Histogram,
        run: &mut Histogram,
        active: &mut usize,
        inactive: &mut usize,
    ) {
        // Batches hold items that are done but not counted out: settle them first, so that the numbers are exact.
        link.pool.with(|p, drv| {
            let now = drv.now();
            p.recall_all(now, drv);
            let Some(id) = link.id() else { return };
            let pwq = p.pwq(id);
            counters.add(&pwq.counters);
            wait.merge(&pwq.wait);
            run.merge(&pwq.run);
            *active += pwq.active() as usize;
            *inactive += pwq.inactive_len();
        });
    }
}
