//! The machine as the process sees it.

use crate::{CpuList, Label};

/// The machine: CPUs, nodes and the pods of every affinity scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct TopologySummary {
    /// One more than the highest possible CPU number: the width of CPU masks.
    pub nr_cpu_ids: u32,
    /// CPUs that exist or may come.
    pub possible: CpuList,
    /// CPUs that are online.
    pub online: CpuList,
    /// The global mask of unbound queues as in force.
    pub unbound_cpumask: CpuList,
    /// The CPUs of each NUMA node, by node number.
    pub nodes: Vec<NodeCpus>,
    /// The scope that `default` means now.
    pub default_scope: Label,
    /// The pods of each scope, in the order `cpu`, `smt`, `cache_shard`, `cache`, `numa`, `system`.
    pub scopes: Vec<ScopeSnapshot>,
}

impl TopologySummary {
    /// The scope of that name.
    pub fn scope(&self, name: &str) -> Option<&ScopeSnapshot> {
        self.scopes.iter().find(|s| s.name == name)
    }
}

/// The CPUs of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct NodeCpus {
    /// The node's number.
    pub node: u32,
    /// Its CPUs.
    pub cpus: CpuList,
}

/// The pods of one affinity scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ScopeSnapshot {
    /// `cpu`, `smt`, `cache_shard`, `cache`, `numa` or `system`.
    pub name: Label,
    /// Its pods, by number.
    pub pods: Vec<PodSnapshot>,
}

/// One pod: CPUs that share one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct PodSnapshot {
    /// Its CPUs.
    pub cpus: CpuList,
    /// The NUMA node of its last CPU; `None` where it spans nodes or the node is unknown.
    pub node: Option<u32>,
}

/// CPU set, affinity and quota that the process lives under.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct CpuView {
    /// CPUs that the runtime uses now.
    pub usable: CpuList,
    /// The process's affinity at first use of the runtime; empty if it could not be read.
    pub affinity_at_start: CpuList,
    /// The cgroup's effective CPU set; empty if there is none or it could not be read.
    pub cpuset: CpuList,
    /// The cgroup quota in force; `None` without one.
    pub quota: Option<Quota>,
    /// How often CPU set, affinity or online CPUs changed since the start.
    pub changes: u64,
    /// Workers whose affinity was found changed from outside, and adopted.
    pub foreign_affinity: u64,
}

/// A cgroup CPU quota.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Quota {
    /// CPUs' worth of time: quota divided by period, the smallest of all ancestors.
    pub cpus: f64,
    /// Run time per period, us.
    pub quota_us: u64,
    /// Period, us.
    pub period_us: u64,
    /// The cgroup that sets it.
    pub cgroup: String,
    /// How often the group was throttled (`nr_throttled`), if known.
    pub throttled: Option<u64>,
}
