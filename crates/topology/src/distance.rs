//! [`Distances`]: how far two CPUs are from each other.

use crate::{AffinityScope, CpuSet, Pods, Topology};
use std::fmt;

/// How far two CPUs are from each other: a small number whose order is the order of closeness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Distance(u32);

impl Distance {
    /// The same CPU.
    pub const SAME: Distance = Distance(0);
    /// Hardware threads of one core.
    pub const SMT: Distance = Distance(1);
    /// Cores of one cache shard.
    pub const SHARD: Distance = Distance(2);
    /// Cores of one last-level cache.
    pub const CACHE: Distance = Distance(3);
    /// CPUs of one NUMA node.
    pub const NODE: Distance = Distance(4);

    /// Different NUMA nodes at this node distance (10 = local, 20 = twice the latency).
    pub const fn remote(node_distance: u32) -> Distance {
        Distance(node_distance.saturating_add(5))
    }

    /// The number itself: 0 to 4 as the constants, from 5 on 5 + the node distance.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The node distance, for CPUs of different nodes.
    pub const fn node_distance(self) -> Option<u32> {
        self.0.checked_sub(5)
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.node_distance()) {
            (_, Some(distance)) => write!(f, "node distance {distance}"),
            (Self::SAME, _) => f.write_str("same CPU"),
            (Self::SMT, _) => f.write_str("same core"),
            (Self::SHARD, _) => f.write_str("same shard"),
            (Self::CACHE, _) => f.write_str("same cache"),
            _ => f.write_str("same node"),
        }
    }
}

/// Distances between the CPUs of a machine, ready to be looked up.
#[derive(Clone, Debug)]
pub struct Distances {
    smt: Pods,
    shard: Pods,
    cache: Pods,
    numa: Pods,
    /// `nodes x nodes`, by NUMA pod number.
    remote: Vec<u32>,
}

impl Distances {
    /// Distances on `topology` with shards of `shard_size` cores. O(CPUs + nodes squared).
    pub fn new(topology: &Topology, shard_size: usize) -> Self {
        let pods = |scope| topology.pods_with_shard_size(scope, shard_size);
        let numa = pods(AffinityScope::Numa);
        let ids: Vec<usize> = numa.iter().map(|pod| pod.node.unwrap_or(0)).collect();
        let remote = ids
            .iter()
            .flat_map(|from| ids.iter().map(|to| topology.node_distance(*from, *to)))
            .collect();
        Self {
            smt: pods(AffinityScope::Smt),
            shard: pods(AffinityScope::CacheShard),
            cache: pods(AffinityScope::Cache),
            numa,
            remote,
        }
    }

    /// The distance from `from` to `to`. `None` unless both are possible. O(1). Symmetric within
    /// a node; between nodes as the machine's tables say.
    pub fn between(&self, from: usize, to: usize) -> Option<Distance> {
        let (a, b) = (self.numa.pod_of(from)?, self.numa.pod_of(to)?);
        let share = |pods: &Pods| pods.pod_of(from) == pods.pod_of(to);
        Some(if from == to {
            Distance::SAME
        } else if share(&self.smt) {
            Distance::SMT
        } else if a != b {
            Distance::remote(self.remote[a * self.numa.len() + b])
        } else if share(&self.shard) {
            Distance::SHARD
        } else if share(&self.cache) {
            Distance::CACHE
        } else {
            Distance::NODE
        })
    }

    /// The pods of `pods` other than `pod`, nearest first: by the least distance from a CPU of
    /// `pod` to one of theirs, then by number. Empty if there is no such pod. O(pods x CPUs of
    /// the pod): meant to be computed once and kept.
    pub fn nearest_pods(&self, pods: &Pods, pod: usize) -> Vec<(Distance, usize)> {
        let Some(home) = pods.get(pod) else {
            return Vec::new();
        };
        let gap = |cpus: &CpuSet| {
            let pairs = home
                .cpus
                .iter()
                .flat_map(|a| cpus.iter().filter_map(move |b| self.between(a, b)));
            pairs.min()
        };
        let mut order: Vec<_> = pods
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != pod)
            .filter_map(|(other, p)| Some((gap(&p.cpus)?, other)))
            .collect();
        order.sort();
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearer_is_smaller_on_a_machine_with_every_level() {
        let machine = Topology::synthetic(
            "package:2 node:2 l3:2 core:12 thread:2 threads=adjacent distance=10,12,32",
        )
        .unwrap();
        let d = Distances::new(&machine, 8);
        let order = [0, 1, 2, 12, 24, 48, 96].map(|cpu| d.between(0, cpu).unwrap());
        assert_eq!(
            order,
            [
                Distance::SAME,
                Distance::SMT,
                Distance::SHARD,
                Distance::CACHE,
                Distance::NODE,
                Distance::remote(12),
                Distance::remote(32),
            ]
        );
        assert!(order.is_sorted());
        assert_eq!(d.between(0, 4000), None);
    }

    #[test]
    fn nearest_pods_come_first() {
        let machine = Topology::synthetic("package:2 l3:2 core:2").unwrap();
        let d = Distances::new(&machine, 8);
        let pods = machine.pods(AffinityScope::Cache);
        let near = d.nearest_pods(&pods, 3);
        assert_eq!(
            near,
            [
                (Distance::NODE, 2),
                (Distance::remote(20), 0),
                (Distance::remote(20), 1)
            ]
        );
        assert!(d.nearest_pods(&pods, 9).is_empty());
    }
}
