//! The counters of one workqueue.

/// Counters of one workqueue since it was made. They only grow; changing attributes does not restart them.
///
/// Kernel names where the kernel has the counter (`started` .. `rescued`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Counters {
    /// Items accepted (each acceptance of a reusable item counts).
    pub queued: u64,
    /// Items that started running, wherever and by whomever.
    pub started: u64,
    /// Items that ended, by a panic too. `started - completed` is what is in flight.
    pub completed: u64,
    /// Accepted items that were cancelled before they started.
    pub cancelled: u64,
    /// Items that panicked (also counted in `completed`).
    pub panicked: u64,
    /// Items refused: draining, closed, disabled, full, forked.
    pub refused: u64,
    /// Requests that found the item already pending and therefore changed nothing.
    pub already_pending: u64,
    /// CPU time of the threads while they ran items of this queue, ns.
    pub cpu_time_ns: u64,
    /// Wall time that items of this queue ran, ns.
    pub run_time_ns: u64,
    /// Items that started on the CPU from which they were queued.
    pub cpu_local: u64,
    /// Items that were on their CPU for longer than the CPU-intensive threshold.
    pub cpu_intensive: u64,
    /// Workers woken because one that ran an item of this queue blocked (concurrency-management wake-ups).
    pub cm_wakeup: u64,
    /// Workers brought back to their pod after an item of this queue had been widened, or in `kernel` mode at wake-up.
    pub repatriated: u64,
    /// Calls for help to the rescuer.
    pub mayday: u64,
    /// Items run by the rescuer.
    pub rescued: u64,
    /// Items that a worker of another pod ran for their home pool. Each is received by the home pool and given by the
    /// helper's pool; per-pool sums of either kind are in the pool's snapshot.
    pub helped: u64,
    /// Items offered to other pods because no worker of their pod started them within the hedge delay.
    pub hedged: u64,
    /// Items that outlived the CPU-intensive threshold with no idle CPU in their pod, and whose worker was widened to the
    /// queue's whole mask.
    pub widened: u64,
    /// Items run by a thread that waited for them.
    pub inline_run: u64,
    /// Items that had to wait as inactive because a limit was reached.
    pub throttled: u64,
    /// Extra workers granted to this queue by the fairness rule.
    pub fairness_extra: u64,
    /// Reports by the watchdog about this queue.
    pub stalls: u64,
    /// The most items that were active at once.
    pub peak_active: u64,
    /// The most items that waited (pending and inactive) at once.
    pub peak_waiting: u64,
}

impl Counters {
    /// Items in flight: started and not yet completed (never negative, though the two are read one after the other).
    pub fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.completed)
    }
}
