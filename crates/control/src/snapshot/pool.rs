//! Worker pools and workers.

use super::ReasonCount;
use crate::{CpuList, Label};

/// One worker pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct PoolSnapshot {
    /// Its number, unique among the pools that exist.
    pub id: u32,
    /// Per-CPU or unbound.
    pub kind: PoolKind,
    /// The CPU of a per-CPU pool; `None` for unbound ones.
    pub cpu: Option<u32>,
    /// Kernel bits: 2 = a manager is at work, 4 = disassociated (its CPU is offline).
    pub flags: u32,
    /// How many pool_workqueues use it.
    pub refcnt: u32,
    /// The nice level asked for.
    pub nice: i32,
    /// The nice level that the workers have (differs where the system forbids a lower one).
    pub nice_in_force: i32,
    /// Workers, idle ones included.
    pub workers: u32,
    /// Idle workers.
    pub idle: u32,
    /// CPUs that the pool's workers may use (non-strict: the queue's whole mask).
    pub cpus: CpuList,
    /// The CPUs of its pod.
    pub pod_cpus: CpuList,
    /// Whether workers are held to the pod.
    pub strict: bool,
    /// NUMA node of the pod, if it lies in one.
    pub node: Option<u32>,
    /// How many workers may run at once; `None` for an unmanaged pool.
    pub target: Option<u32>,
    /// Workers that run an item and are counted as running.
    pub running: u32,
    /// Workers that run an item that is known to be blocked.
    pub blocked: u32,
    /// Workers whose item is CPU-intensive.
    pub cpu_intensive: u32,
    /// Items on the worklist (active, not started).
    pub worklist: u32,
    /// Age of the first item on the worklist, ns; `None` when the list is empty.
    pub oldest_ns: Option<u64>,
    /// `CLOCK_MONOTONIC` of the last progress (an item started, or the list went from empty to not empty), ns.
    pub last_progress_ns: u64,
    /// For how long the worklist has not moved, ns, if that is longer than the watchdog's threshold; else `None`.
    pub stalled_ns: Option<u64>,
    /// Items of other pools that this pool's workers ran.
    pub help_given: u64,
    /// Items of this pool that workers of other pools ran.
    pub help_received: u64,
    /// The hedge delay in force, ns; `None` where items are never offered outward.
    pub hedge_delay_ns: Option<u64>,
    /// The measured 99th percentile from wake-up to running, ns; `None` before the first measure.
    pub wakeup_p99_ns: Option<u64>,
    /// Workers made here, by reason.
    pub births: Vec<ReasonCount>,
    /// Workers that ended here, by reason.
    pub deaths: Vec<ReasonCount>,
    /// Its workers (empty unless asked for).
    pub worker_list: Vec<WorkerSnapshot>,
}

/// The kind of a worker pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum PoolKind {
    /// Bound to one CPU.
    PerCpu,
    /// Found by attributes.
    #[default]
    Unbound,
}

/// One worker thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct WorkerSnapshot {
    /// Its number within the pool.
    pub id: u32,
    /// Its thread id; 0 if it did not start yet.
    pub tid: u32,
    /// Its thread name.
    pub name: String,
    /// What it is at this pool.
    pub role: WorkerRole,
    /// What it does.
    pub state: WorkerState,
    /// The workqueue whose item it runs; empty when idle.
    pub workqueue: String,
    /// The function of that item; empty when idle.
    pub func: Label,
    /// For how long it has been in this item, or idle, ns.
    pub for_ns: u64,
    /// What it is blocked on, where known: a system call, a kernel function, or what the program said; empty otherwise.
    pub blocked_on: Label,
    /// What its item calls itself, if it does (kernel: worker description).
    pub description: String,
    /// CPU on which it was last seen.
    pub cpu: Option<u32>,
}

/// What a worker is at the pool that it is attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WorkerRole {
    /// An ordinary worker of this pool.
    #[default]
    Worker,
    /// A worker of another pool that helps for one item.
    Helper,
    /// The rescuer of a queue.
    Rescuer,
    /// A thread that runs the item that it waits for.
    Waiter,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WorkerState {
    /// Parked, waits for work.
    #[default]
    Idle,
    /// Was made and has not run yet.
    Starting,
    /// Runs an item and counts as running.
    Running,
    /// Runs an item that is blocked.
    Blocked,
    /// Runs an item that is CPU-intensive.
    CpuIntensive,
    /// Makes workers.
    Managing,
    /// Ends.
    Dying,
}

impl WorkerState {
    /// The word that the dump and the JSON form show.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerState::Idle => "idle",
            WorkerState::Starting => "starting",
            WorkerState::Running => "running",
            WorkerState::Blocked => "blocked",
            WorkerState::CpuIntensive => "cpu_intensive",
            WorkerState::Managing => "managing",
            WorkerState::Dying => "dying",
        }
    }
}
