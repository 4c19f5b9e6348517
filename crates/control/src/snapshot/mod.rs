//! The state of one runtime at one moment, as plain structs.
//!
//! A snapshot is not atomic over the whole runtime: each pool's lock is held briefly and one at a time, so counts of two
//! pools may be some microseconds apart. Counters only grow while the thing that they count lives.
//!
//! With the feature `serde` the field names are the documented JSON form: one object with `process`, `clock`, `topology`,
//! `cpu`, `pools`, `workqueues`, `detection`, `threads`, `tunables`. Fields are added, never renamed or removed, within one
//! [`SNAPSHOT_FORMAT`]; a reader ignores fields that it does not know and takes the default for missing ones.

mod counters;
mod detection;
mod machine;
mod pool;
mod workqueue;

pub use counters::Counters;
pub use detection::{Detection, Mechanism, MechanismState};
pub use machine::{CpuView, NodeCpus, PodSnapshot, Quota, ScopeSnapshot, TopologySummary};
pub use pool::{PoolKind, PoolSnapshot, WorkerRole, WorkerSnapshot, WorkerState};
pub use workqueue::{
    ItemList, ItemSnapshot, NodeLimit, PoolSlot, PwqSnapshot, RescuerSnapshot, WorkqueueSnapshot,
    WqAttrs, WqFlags, WqKind,
};

use crate::Label;

/// The version of the JSON form; raised when a field changes its meaning or goes away.
pub const SNAPSHOT_FORMAT: u32 = 1;

/// How much a snapshot carries. What is not asked for costs nothing to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Detail {
    /// The in-flight, pending and inactive items of each queue (at most [`ItemList::MAX`] folded entries a list).
    pub items: bool,
    /// The workers of each pool.
    pub workers: bool,
    /// The two histograms of each queue.
    pub histograms: bool,
    /// Topology, scopes and pods, and the per-CPU pool map of each queue.
    pub topology: bool,
}

impl Detail {
    /// Everything.
    pub const FULL: Detail = Detail {
        items: true,
        workers: true,
        histograms: true,
        topology: true,
    };
    /// Counters only: what a monitor asks for every second.
    pub const COUNTERS: Detail = Detail {
        items: false,
        workers: false,
        histograms: false,
        topology: false,
    };
}

impl Default for Detail {
    fn default() -> Self {
        Detail::FULL
    }
}

/// The state of one runtime.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Snapshot {
    /// [`SNAPSHOT_FORMAT`] of the process that built it.
    pub format: u32,
    /// Which process.
    pub process: ProcessInfo,
    /// When.
    pub clock: Clock,
    /// The machine as this process sees it (empty unless [`Detail::topology`]).
    pub topology: TopologySummary,
    /// CPU set, affinity and quota in force.
    pub cpu: CpuView,
    /// Every worker pool that exists.
    pub pools: Vec<PoolSnapshot>,
    /// Every workqueue, in order of creation.
    pub workqueues: Vec<WorkqueueSnapshot>,
    /// How blocked workers are noticed.
    pub detection: Detection,
    /// Threads of the whole runtime.
    pub threads: ThreadTotals,
    /// The runtime-wide tunables and what they are set to.
    pub tunables: Vec<Tunable>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Snapshot {
            format: SNAPSHOT_FORMAT,
            process: ProcessInfo::default(),
            clock: Clock::default(),
            topology: TopologySummary::default(),
            cpu: CpuView::default(),
            pools: Vec::new(),
            workqueues: Vec::new(),
            detection: Detection::default(),
            threads: ThreadTotals::default(),
            tunables: Vec::new(),
        }
    }
}

impl Snapshot {
    /// The queue of that name, if there is exactly one place to look: the first in order of creation.
    pub fn workqueue(&self, name: &str) -> Option<&WorkqueueSnapshot> {
        self.workqueues.iter().find(|wq| wq.name == name)
    }

    /// The pool of that id.
    pub fn pool(&self, id: u32) -> Option<&PoolSnapshot> {
        self.pools.iter().find(|p| p.id == id)
    }
}

/// Which process a snapshot is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ProcessInfo {
    /// Its process id, as it sees itself (another number outside its pid namespace).
    pub pid: u32,
    /// Its name: `comm` of its main thread unless the program chose another.
    pub name: String,
    /// When it started: clock ticks since boot, field 22 of `/proc/PID/stat`; 0 if unknown. With `pid`, names one process.
    pub start_ticks: u64,
    /// When the runtime started: Unix time, ms.
    pub started_unix_ms: u64,
    /// Name of the runtime within the process (a process may have more than one).
    pub runtime: String,
    /// The version of cmwq that it runs.
    pub version: Label,
    /// Whether attributes may be changed over the control socket.
    pub allow_set: bool,
}

/// When a snapshot was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Clock {
    /// `CLOCK_MONOTONIC`, ns. All ages of the snapshot refer to it; differences between two snapshots give rates.
    pub monotonic_ns: u64,
    /// Unix time, ms, for people.
    pub unix_ms: u64,
    /// How long building the snapshot took, ns.
    pub build_ns: u64,
}

/// Threads of the whole runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ThreadTotals {
    /// Worker threads alive, rescuers not included.
    pub workers: u32,
    /// The most workers that may be alive at once (0: no ceiling).
    pub ceiling: u32,
    /// The most workers that ever were alive at once.
    pub peak: u32,
    /// Other threads of the runtime (spawner, sentinels, tick, timer, control, rescuers).
    pub others: u32,
    /// How often a worker was wanted but the ceiling forbade it.
    pub refused_by_ceiling: u64,
    /// How often the OS refused a thread (EAGAIN, a limit of processes).
    pub create_failures: u64,
    /// Text of the last such failure; empty if none.
    pub last_failure: String,
    /// Workers made, by reason (see [`reasons`]), summed over pools that are gone as well.
    pub births: Vec<ReasonCount>,
    /// Workers that ended, by reason.
    pub deaths: Vec<ReasonCount>,
}

/// How often something happened for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ReasonCount {
    /// The reason: one of [`reasons`], or another word (readers must take any).
    pub reason: Label,
    /// How often.
    pub count: u64,
}

/// Words for [`ReasonCount::reason`] of births and deaths of workers.
pub mod reasons {
    /// Work waits and fewer workers run than the target.
    pub const CONCURRENCY: &str = "concurrency";
    /// A worker said that it blocks, or was seen blocked.
    pub const BLOCKED: &str = "blocked";
    /// One worker in reserve, so that the next blocked one is replaced at once.
    pub const RESERVE: &str = "reserve";
    /// A queue waited too long in a pool where none of its items ran.
    pub const FAIRNESS: &str = "fairness";
    /// An item hogs its CPU.
    pub const HOG: &str = "hog";
    /// Nothing finished for long: the liveness floor.
    pub const LIVENESS: &str = "liveness";
    /// To run items of another pod.
    pub const HELP: &str = "help";
    /// An unmanaged pool starts a worker for each active item.
    pub const UNMANAGED: &str = "unmanaged";
    /// Takes the place of one whose attributes could not be changed in place.
    pub const REPLACEMENT: &str = "replacement";
    /// Death: idle for long, and too many idle.
    pub const IDLE: &str = "idle";
    /// Death: its pool went away.
    pub const POOL_RELEASED: &str = "pool_released";
    /// Death: the runtime shuts down.
    pub const SHUTDOWN: &str = "shutdown";
    /// Death: a new limit.
    pub const LIMIT: &str = "limit";
}

/// A runtime-wide tunable as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Tunable {
    /// The attribute's name (see [`attr`](crate::attr)).
    pub name: Label,
    /// Its value as `get` would show it.
    pub value: String,
    /// Whether `set` can change it (in a process that allows changes at all).
    pub writable: bool,
}
