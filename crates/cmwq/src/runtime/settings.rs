//! Settings of a runtime that can change while it runs, and what is known of its placing.

use super::Runtime;
use cmwq_topology::{AffinityScope, CpuSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Why a CPU mask was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuMaskError {
    /// It has none of the machine's possible CPUs.
    Empty {
        /// The mask.
        mask: CpuSet,
        /// What would have been possible.
        possible: CpuSet,
    },
    /// The calling process is a fork of the one that made the runtime.
    Forked,
}

impl fmt::Display for CpuMaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuMaskError::Empty { mask, possible } => write!(
                f,
                "the CPU mask \"{}\" has none of the possible CPUs {}",
                mask.list(),
                possible.list()
            ),
            CpuMaskError::Forked => f.write_str("the runtime belongs to the parent process"),
        }
    }
}

impl std::error::Error for CpuMaskError {}

/// Where a runtime's threads may run and how well they get there; from [`Runtime::placement`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Placement {
    /// CPUs that are online and that the process may use.
    pub usable: CpuSet,
    /// The global unbound mask.
    pub cpumask: CpuSet,
    /// CPUs kept free of unbound work by the system's administrator (`isolcpus=`).
    pub isolated: CpuSet,
    /// The cgroup's CPU time limit in CPUs, rounded up.
    pub quota: Option<usize>,
    /// The scope of queues that do not choose one.
    pub default_scope: AffinityScope,
    /// Whether changes of these are followed.
    pub follows: bool,
    /// How often the CPUs or their limits have changed; counted once pools, queues and workers have followed.
    pub changes: u64,
    /// Threads whose CPU mask or nice could not be set as wished.
    pub misplaced: u64,
    /// Workers whose CPU mask somebody else has set; they are left alone.
    pub adopted: u64,
    /// 99 of 100 wake-ups of workers take at most this long; zero until some were measured.
    pub wake_p99: Duration,
    /// Items that nobody has started for this long are offered to other pods.
    pub hedge_delay: Duration,
}

impl Runtime {
    /// The scope of queues that do not choose one.
    pub fn default_affinity_scope(&self) -> AffinityScope {
        self.inner().machine.load().default_scope
    }

    /// Changes the scope of queues that do not choose one (kernel: `workqueue.default_affinity_scope`). Queues that use it are
    /// podded anew before the call returns: new items go to the new pods, what is queued is done where it is. Takes the locks
    /// of all queues, one after the other; may be called from a work item. [`AffinityScope::Default`] stands for what a new
    /// runtime has.
    pub fn set_default_affinity_scope(&self, scope: AffinityScope) {
        let scope = match scope {
            AffinityScope::Default => AffinityScope::DEFAULT,
            s => s,
        };
        self.inner()
            .change_machine(|m| m.reset(m.requested.clone(), scope));
    }

    /// The CPUs that unbound queues may use (kernel: the file `cpumask`): at first the possible CPUs without the isolated ones,
    /// inside the process's affinity.
    pub fn cpumask(&self) -> CpuSet {
        self.inner().machine.load().global.clone()
    }

    /// Sets the CPUs that unbound queues may use, isolated ones too if the mask has them. Impossible CPUs are left out. Queues
    /// are podded anew before the call returns; an item that runs outside the new mask is not stopped. Cost and locks as for
    /// [`set_default_affinity_scope`](Self::set_default_affinity_scope).
    ///
    /// # Errors
    /// [`CpuMaskError::Empty`] if no possible CPU is left; [`CpuMaskError::Forked`].
    pub fn set_cpumask(&self, mask: &CpuSet) -> Result<(), CpuMaskError> {
        let rt = self.inner();
        if rt.fork.is_stale() {
            return Err(CpuMaskError::Forked);
        }
        let possible = rt.machine.load().topology.possible().clone();
        if !mask.intersects(&possible) {
            return Err(CpuMaskError::Empty {
                mask: mask.clone(),
                possible,
            });
        }
        rt.change_machine(|m| m.reset(Some(mask.clone()), m.default_scope));
        Ok(())
    }

    /// Where the runtime's threads may run and how well they get there.
    pub fn placement(&self) -> Placement {
        let rt = self.inner();
        // Ordering: Acquire pairs with the Release of `RtInner::follow`.
        let changes = rt.changes.load(Ordering::Acquire);
        let m = rt.machine.load();
        Placement {
            usable: m.usable.clone(),
            cpumask: m.global.clone(),
            isolated: m.topology.isolated().clone(),
            quota: m.quota,
            default_scope: m.default_scope,
            follows: rt.live.follows(),
            changes,
            misplaced: rt.misplaced.load(Ordering::Relaxed),
            adopted: rt.adopted.load(Ordering::Relaxed),
            wake_p99: Duration::from_nanos(rt.wakes.p99_ns()),
            hedge_delay: Duration::from_nanos(rt.wakes.hedge_ns()),
        }
    }
}
