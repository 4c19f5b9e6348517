//! What the runtime knows of the machine: CPUs it may use, nodes, pods per scope.

use cmwq_topology::masks;
use cmwq_topology::{AffinityScope, CpuSet, Pods, ProcessCpus, Topology};
use std::sync::{Arc, OnceLock};

/// One state of the machine; replaced as a whole when CPUs or masks change.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) topology: Arc<Topology>,
    /// What the process may use of it, as it was read.
    pub(crate) process: ProcessCpus,
    /// The global unbound mask.
    pub(crate) global: CpuSet,
    /// CPUs that are online and that the process may run on.
    pub(crate) usable: CpuSet,
    /// CPU time the process may use, in CPUs, rounded up; none if unlimited.
    pub(crate) quota: Option<usize>,
    /// Nodes that have CPUs, with them.
    pub(crate) nodes: Vec<(usize, CpuSet)>,
    pub(crate) default_scope: AffinityScope,
    pods: [OnceLock<Arc<Pods>>; 6],
}

impl Machine {
    /// The machine as the topology and the process's limits say.
    pub(crate) fn new(
        topology: Arc<Topology>,
        process: &ProcessCpus,
        default_scope: AffinityScope,
    ) -> Machine {
        let mut usable = process.usable(&topology);
        if usable.is_empty() {
            usable = topology.online().clone();
        }
        let housekeeping = topology.possible().difference(topology.isolated());
        let (global, _ignored) = masks::initial_global(
            topology.possible(),
            &housekeeping,
            process.affinity.as_ref(),
        );
        let nodes = topology
            .nodes()
            .iter()
            .filter(|n| !n.cpus.is_empty())
            .map(|n| (n.id, n.cpus.clone()))
            .collect();
        Machine {
            quota: process
                .quota
                .as_ref()
                .map(cmwq_topology::Quota::cpus_rounded_up),
            topology,
            process: process.clone(),
            global,
            usable,
            nodes,
            default_scope,
            pods: Default::default(),
        }
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
        Arc::clone(self.pods[i].get_or_init(|| Arc::new(self.topology.pods(scope))))
    }

    /// The position of a node in `nodes`, or their number if it has no CPUs.
    pub(crate) fn node_index(&self, node: usize) -> usize {
        self.nodes
            .iter()
            .position(|n| n.0 == node)
            .unwrap_or(self.nodes.len())
    }
}
