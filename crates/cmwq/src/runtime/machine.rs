//! What the runtime knows of the machine: CPUs it may use, nodes, pods per scope.

use crate::pool::PoolKey;
use crate::shim::leaf::OnceLock;
use cmwq_topology::masks;
use cmwq_topology::{AffinityScope, CpuSet, Distances, Pods, ProcessCpus, Topology};
use std::sync::Arc;

/// One state of the machine; replaced as a whole when CPUs or masks change.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) topology: Arc<Topology>,
    /// What the process may use of it, as it was read.
    pub(crate) process: ProcessCpus,
    /// The global unbound mask.
    pub(crate) global: CpuSet,
    /// The global unbound mask that somebody asked for.
    pub(crate) requested: Option<CpuSet>,
    /// CPUs that are online and that the process may run on.
    pub(crate) usable: CpuSet,
    /// Where the process's threads may run by the wish of whoever started it or changed it since (`taskset`); none: anywhere.
    pub(crate) affinity: Option<CpuSet>,
    /// What the cgroup allows of the online CPUs, whatever threads wish.
    pub(crate) cpuset: CpuSet,
    /// CPU time the process may use, in CPUs, rounded up; none if unlimited.
    pub(crate) quota: Option<usize>,
    /// Nodes that have CPUs, with them.
    pub(crate) nodes: Vec<(usize, CpuSet)>,
    pub(crate) default_scope: AffinityScope,
    /// Cores wanted in a pod of scope `cache_shard`.
    pub(crate) shard_size: usize,
    pods: [OnceLock<Arc<Pods>>; 6],
    distances: OnceLock<Arc<Distances>>,
    cores: OnceLock<Arc<[u32]>>,
}

impl Machine {
    /// The machine as the topology and the process's limits say.
    pub(crate) fn new(
        topology: Arc<Topology>,
        process: &ProcessCpus,
        default_scope: AffinityScope,
        shard_size: usize,
    ) -> Machine {
        let cpuset = cpuset_of(&topology, process);
        // What is read for a thread that asked for nothing is its cpuset: no wish.
        let affinity = process
            .affinity
            .clone()
            .filter(|a| !cpuset.is_subset(a) && a.intersects(&cpuset));
        let scopes = (default_scope, shard_size);
        Machine::with(topology, affinity, process, None, scopes, Vec::new())
    }

    /// The same runtime's machine after a change.
    pub(crate) fn changed(
        &self,
        topology: Arc<Topology>,
        affinity: Option<CpuSet>,
        process: &ProcessCpus,
    ) -> Machine {
        let nodes = self.nodes.iter().map(|n| n.0).collect();
        let requested = self.requested.clone();
        Machine::with(
            topology,
            affinity,
            process,
            requested,
            (self.default_scope, self.shard_size),
            nodes,
        )
    }

    /// The same machine with other settings.
    pub(crate) fn reset(&self, requested: Option<CpuSet>, default_scope: AffinityScope) -> Machine {
        let possible = self.topology.possible();
        Machine {
            topology: Arc::clone(&self.topology),
            process: self.process.clone(),
            global: global_of(&self.topology, requested.as_ref(), self.affinity.as_ref()),
            requested: requested.map(|r| r.intersection(possible)),
            usable: self.usable.clone(),
            affinity: self.affinity.clone(),
            cpuset: self.cpuset.clone(),
            quota: self.quota,
            nodes: self.nodes.clone(),
            default_scope,
            shard_size: self.shard_size,
            pods: self.pods.clone(),
            distances: self.distances.clone(),
            cores: self.cores.clone(),
        }
    }

    fn with(
        topology: Arc<Topology>,
        affinity: Option<CpuSet>,
        process: &ProcessCpus,
        requested: Option<CpuSet>,
        (default_scope, shard_size): (AffinityScope, usize),
        known_nodes: Vec<usize>,
    ) -> Machine {
        let cpuset = cpuset_of(&topology, process);
        let mut usable = cpuset.clone();
        if let Some(a) = &affinity
            && a.intersects(&usable)
        {
            usable = usable.intersection(a);
        }
        let mut nodes: Vec<(usize, CpuSet)> = topology
            .nodes()
            .iter()
            .filter(|n| !n.cpus.is_empty())
            .map(|n| (n.id, n.cpus.clone()))
            .collect();
        if !known_nodes.is_empty() {
            // Queues keep a slot for each node that they were made with.
            nodes = known_nodes
                .into_iter()
                .map(|id| {
                    let cpus = nodes.iter().find(|n| n.0 == id).map(|n| n.1.clone());
                    (id, cpus.unwrap_or_default())
                })
                .collect();
        }
        Machine {
            global: global_of(&topology, requested.as_ref(), affinity.as_ref()),
            requested,
            usable,
            affinity,
            cpuset,
            quota: process
                .quota
                .as_ref()
                .map(cmwq_topology::Quota::cpus_rounded_up),
            topology,
            process: process.clone(),
            nodes,
            default_scope,
            shard_size,
            pods: Default::default(),
            distances: OnceLock::new(),
            cores: OnceLock::new(),
        }
    }

    /// Whether a change between the two concerns pools, queues or threads.
    pub(crate) fn is_same(&self, other: &Machine) -> bool {
        self.usable == other.usable
            && self.affinity == other.affinity
            && self.cpuset == other.cpuset
            && self.global == other.global
            && self.quota == other.quota
            && self.topology.online() == other.topology.online()
    }

    /// The pods of a scope; `Default` is resolved. Computed at first use.
    pub(crate) fn pods(&self, scope: AffinityScope) -> Arc<Pods> {
        let scope = if scope == AffinityScope::Default {
            self.default_scope
        } else {
            scope
        };
        let i = AffinityScope::ALL
            .iter()
            .position(|s| *s == scope)
            .expect("the default scope is one of the six");
        let make = || Arc::new(self.topology.pods_with_shard_size(scope, self.shard_size));
        Arc::clone(self.pods[i].get_or_init(make))
    }

    /// How far CPUs are from each other. Computed at first use.
    pub(crate) fn distances(&self) -> Arc<Distances> {
        let make = || Arc::new(Distances::new(&self.topology, self.shard_size));
        Arc::clone(self.distances.get_or_init(make))
    }

    /// Of every CPU a number of its core, the same for CPUs that share one; empty where none do. Computed at first use.
    pub(crate) fn cores(&self) -> Arc<[u32]> {
        let make = || {
            let width = self.topology.possible().last().map_or(0, |last| last + 1);
            let first = |cpu: usize| self.topology.siblings(cpu).and_then(CpuSet::first);
            let cores = (0..width).map(|cpu| first(cpu).unwrap_or(cpu) as u32);
            let cores: Vec<u32> = cores.collect();
            let shared = cores.iter().enumerate().any(|(cpu, &c)| c != cpu as u32);
            if shared { cores.into() } else { Arc::default() }
        };
        Arc::clone(self.cores.get_or_init(make))
    }

    /// Whether this is the pool of a CPU that is away: offline, or taken from the process.
    pub(crate) fn is_gone(&self, key: &PoolKey) -> bool {
        matches!(key, PoolKey::PerCpu { cpu, .. } if !self.usable.contains(*cpu))
    }

    /// The position of a node in `nodes`, or their number if it has no CPUs.
    pub(crate) fn node_index(&self, node: usize) -> usize {
        self.nodes
            .iter()
            .position(|n| n.0 == node)
            .unwrap_or(self.nodes.len())
    }
}

/// What the cgroup allows of the online CPUs; all of them where that is none.
fn cpuset_of(topology: &Topology, process: &ProcessCpus) -> CpuSet {
    let online = topology.online();
    match &process.cpuset {
        Some(c) if c.intersects(online) => c.intersection(online),
        _ => online.clone(),
    }
}

fn global_of(topology: &Topology, requested: Option<&CpuSet>, affinity: Option<&CpuSet>) -> CpuSet {
    let possible = topology.possible();
    if let Some(r) = requested.map(|r| r.intersection(possible))
        && !r.is_empty()
    {
        return r;
    }
    let housekeeping = possible.difference(topology.isolated());
    masks::initial_global(possible, &housekeeping, affinity).0
}
