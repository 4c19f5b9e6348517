//! The modelled machine: which CPUs share what, and what things cost.

use crate::cost::Costs;
use cmwq_topology::{AffinityScope, CpuSet, Pods, Topology};

/// How far two CPUs are from each other, as far as costs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Near {
    /// The same CPU.
    Same,
    /// Threads of one core.
    Core,
    /// Cores of one last-level cache.
    Cache,
    /// CPUs of one NUMA node.
    Node,
    /// Anything else.
    Far,
}

/// Where a CPU lies.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its core.
    pub core: u32,
    /// Its last-level cache.
    pub llc: u32,
    /// Its node.
    pub node: u32,
}

/// A machine to simulate: its shape and its costs.
#[derive(Debug, Clone)]
pub struct Machine {
    /// A short name for reports.
    pub name: String,
    /// The shape.
    pub topology: Topology,
    /// What things cost on it.
    pub costs: Costs,
    places: Vec<Place>,
    /// CPUs of each core, cache and node.
    cores: Vec<Vec<u32>>,
    llcs: Vec<Vec<u32>>,
    nodes: Vec<Vec<u32>>,
}

fn groups(pods: &Pods, online: &CpuSet) -> Vec<Vec<u32>> {
    pods.iter()
        .map(|p| {
            p.cpus
                .iter()
                .filter(|&c| online.contains(c))
                .map(|c| c as u32)
                .collect()
        })
        .collect()
}

impl Machine {
    /// A machine of this shape with these costs.
    pub fn new(name: impl Into<String>, topology: Topology, costs: Costs) -> Machine {
        let smt = topology.pods(AffinityScope::Smt);
        let llc = topology.pods(AffinityScope::Cache);
        let node = topology.pods(AffinityScope::Numa);
        let last = topology.possible().last().unwrap_or(0);
        let places = (0..=last)
            .map(|c| Place {
                core: smt.pod_of(c).unwrap_or(0) as u32,
                llc: llc.pod_of(c).unwrap_or(0) as u32,
                node: node.pod_of(c).unwrap_or(0) as u32,
            })
            .collect();
        let online = topology.online();
        Machine {
            name: name.into(),
            places,
            cores: groups(&smt, online),
            llcs: groups(&llc, online),
            nodes: groups(&node, online),
            costs,
            topology,
        }
    }

    /// Highest CPU number + 1.
    pub fn width(&self) -> usize {
        self.places.len()
    }

    /// Where a CPU lies.
    #[inline]
    pub fn place(&self, cpu: u32) -> Place {
        self.places[cpu as usize]
    }

    /// Of every CPU its core.
    pub fn core_of_cpus(&self) -> std::sync::Arc<[u32]> {
        self.places.iter().map(|p| p.core).collect()
    }

    /// The CPUs of a core.
    #[inline]
    pub fn core(&self, core: u32) -> &[u32] {
        &self.cores[core as usize]
    }

    /// The CPUs of a last-level cache.
    #[inline]
    pub fn llc(&self, llc: u32) -> &[u32] {
        &self.llcs[llc as usize]
    }

    /// The CPUs of a node.
    #[inline]
    pub fn node(&self, node: u32) -> &[u32] {
        &self.nodes[node as usize]
    }

    /// How many last-level caches there are.
    pub fn llc_count(&self) -> usize {
        self.llcs.len()
    }

    /// How many nodes with CPUs there are.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// How far two CPUs are from each other.
    #[inline]
    pub fn near(&self, a: u32, b: u32) -> Near {
        if a == b {
            return Near::Same;
        }
        let (x, y) = (self.place(a), self.place(b));
        if x.core == y.core {
            Near::Core
        } else if x.llc == y.llc {
            Near::Cache
        } else if x.node == y.node {
            Near::Node
        } else {
            Near::Far
        }
    }

    /// One line about it, for people.
    pub fn line(&self) -> String {
        format!(
            "{} CPUs, {} cores, {} last-level caches, {} nodes",
            self.topology.online().len(),
            self.cores.iter().filter(|c| !c.is_empty()).count(),
            self.llcs.iter().filter(|c| !c.is_empty()).count(),
            self.nodes.iter().filter(|c| !c.is_empty()).count(),
        )
    }
}
