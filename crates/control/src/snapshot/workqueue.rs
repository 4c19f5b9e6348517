//! Workqueues, their pool_workqueues and items.

use super::Counters;
use crate::histogram::HistogramSnapshot;
use crate::{CpuList, Label};

/// One workqueue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct WorkqueueSnapshot {
    /// Its number, unique in the runtime's life (two queues may have one name).
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Per-CPU, unbound or ordered.
    pub kind: WqKind,
    /// Flags.
    pub flags: WqFlags,
    /// Attributes.
    pub attrs: WqAttrs,
    /// The limit of active items: per CPU for a per-CPU queue, for the whole system otherwise.
    pub max_active: u32,
    /// The floor per node (unbound queues).
    pub min_active: u32,
    /// The most items that may wait, beyond which queueing is refused; `None` without a bound.
    pub max_pending: Option<u64>,
    /// Items active now, over all pools.
    pub nr_active: u32,
    /// Which pool serves which CPUs (empty unless asked for).
    pub cpu_pool: Vec<PoolSlot>,
    /// The pool of the default pool_workqueue, if it exists.
    pub default_pool: Option<u32>,
    /// Active items and limit of each node (unbound queues); the entry without a node is for pools that span nodes.
    pub nodes: Vec<NodeLimit>,
    /// Its pool_workqueues.
    pub pwqs: Vec<PwqSnapshot>,
    /// Items that run (empty unless asked for; the total is always filled).
    pub in_flight: ItemList,
    /// Items that are active and wait on a worklist.
    pub pending: ItemList,
    /// Items held back by a limit, first in first out.
    pub inactive: ItemList,
    /// Delayed items whose time has not come.
    pub delayed: u64,
    /// The rescuer, if it has one.
    pub rescuer: Option<RescuerSnapshot>,
    /// Counters.
    pub counters: Counters,
    /// From being queued (for delayed items: being due) to starting to run (empty unless asked for).
    pub queue_to_start: HistogramSnapshot,
    /// From start to end of the function (empty unless asked for).
    pub run_time: HistogramSnapshot,
}

/// The kind of a workqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WqKind {
    /// Items run on the CPU from which they were queued.
    PerCpu,
    /// Items run in the pod of the CPU from which they were queued.
    #[default]
    Unbound,
    /// Items run one at a time in the order of queueing.
    Ordered,
}

impl WqKind {
    /// The word that the dump shows (`percpu`, `unbound`, `ordered`).
    pub fn as_str(self) -> &'static str {
        match self {
            WqKind::PerCpu => "percpu",
            WqKind::Unbound => "unbound",
            WqKind::Ordered => "ordered",
        }
    }
}

/// Flags of a workqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct WqFlags {
    /// Held back while the runtime is frozen.
    pub freezable: bool,
    /// Has a rescuer.
    pub mem_reclaim: bool,
    /// Served before normal items.
    pub highpri: bool,
    /// Its items never count as running.
    pub cpu_intensive: bool,
    /// Runs in `kernel` mode: unmanaged, no helping, no inline waiting.
    pub kernel_mode: bool,
    /// A queue of the runtime itself.
    pub system: bool,
    /// Frozen now.
    pub frozen: bool,
    /// Draining now: only chained items are accepted.
    pub draining: bool,
    /// Closed: it goes away after its last item.
    pub destroying: bool,
}

impl WqFlags {
    /// The names of the flags that are set, in a fixed order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [
            ("freezable", self.freezable),
            ("mem_reclaim", self.mem_reclaim),
            ("highpri", self.highpri),
            ("cpu_intensive", self.cpu_intensive),
            ("kernel_mode", self.kernel_mode),
            ("system", self.system),
            ("frozen", self.frozen),
            ("draining", self.draining),
            ("destroying", self.destroying),
        ]
        .into_iter()
        .filter_map(|(name, set)| set.then_some(name))
    }
}

/// Attributes of a workqueue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct WqAttrs {
    /// Nice level asked for.
    pub nice: i32,
    /// CPUs allowed, as written.
    pub cpumask: CpuList,
    /// CPUs in force: allowed and in the global mask, or the global mask if that is empty.
    pub effective_cpumask: CpuList,
    /// The scope as set: `default`, `cpu`, `smt`, `cache_shard`, `cache`, `numa`, `system`.
    pub affinity_scope: Label,
    /// The scope in force (never `default`).
    pub effective_scope: Label,
    /// Whether workers are held to their pod.
    pub affinity_strict: bool,
    /// Whether items start on the issuing CPU itself.
    pub localize: bool,
}

/// CPUs of a queue that are served by one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct PoolSlot {
    /// The issuing CPUs.
    pub cpus: CpuList,
    /// The pool's number; `None` where none was made yet because nothing was queued from there.
    pub pool: Option<u32>,
}

/// Active items and limit of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct NodeLimit {
    /// The node; `None` for pools that span nodes.
    pub node: Option<u32>,
    /// Active items.
    pub nr: u32,
    /// Limit.
    pub max: u32,
}

/// One pool_workqueue: the link of a queue and a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct PwqSnapshot {
    /// The pool.
    pub pool: u32,
    /// References.
    pub refcnt: u32,
    /// Active items (running, or on the worklist).
    pub nr_active: u32,
    /// Items not yet finished, inactive ones and barriers included.
    pub nr_in_flight: u32,
    /// Inactive items.
    pub nr_inactive: u32,
    /// Waits for the rescuer.
    pub mayday: bool,
    /// Plugged: waits until an older pool_workqueue of an ordered queue has drained.
    pub plugged: bool,
}

/// Items of one kind: how many, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ItemList {
    /// How many there are.
    pub total: u64,
    /// The first ones, equal neighbours folded into one entry; at most [`ItemList::MAX`] entries.
    pub items: Vec<ItemSnapshot>,
}

impl ItemList {
    /// The most entries a list carries, so that a snapshot stays small while millions of items wait.
    pub const MAX: usize = 256;

    /// Appends one item, folded into the last entry if function, pool and worker are the same and it is no barrier; drops
    /// what is past [`ItemList::MAX`] and counts it in `total`.
    pub fn push(&mut self, item: ItemSnapshot) {
        if !item.barrier {
            self.total += u64::from(item.count.max(1));
        }
        if let Some(last) = self.items.last_mut() {
            let same = last.func == item.func && last.pool == item.pool && last.tid == item.tid;
            if same && item.tid.is_none() && !item.barrier && !last.barrier {
                last.count = last.count.max(1).saturating_add(item.count.max(1));
                last.age_ns = last.age_ns.max(item.age_ns);
                return;
            }
        }
        if self.items.len() < Self::MAX {
            self.items.push(item);
        }
    }
}

/// One item, or a run of equal neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ItemSnapshot {
    /// Its function: the type name of the closure or function, or the name that the program gave it.
    pub func: Label,
    /// How many equal neighbours this entry stands for (0 and 1 mean one).
    pub count: u32,
    /// In flight: for how long it has run. Otherwise: for how long it has waited (the longest of a folded run). ns.
    pub age_ns: u64,
    /// In flight: how long it had waited before it started, ns.
    pub waited_ns: Option<u64>,
    /// The pool.
    pub pool: u32,
    /// In flight: the thread that runs it.
    pub tid: Option<u32>,
    /// In flight: what that thread is.
    pub role: super::WorkerRole,
    /// No item, but those who wait for the one before it; `count`: how many. Not part of the list's total.
    pub barrier: bool,
    /// Of a barrier: the threads that wait, in the order in which they began; fewer than `count` while one begins.
    pub waiters: Vec<u32>,
}

/// The rescuer of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct RescuerSnapshot {
    /// Its thread id.
    pub tid: u32,
    /// The CPUs that it may use.
    pub cpus: CpuList,
    /// Whether it works at the moment.
    pub busy: bool,
}
