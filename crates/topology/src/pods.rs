//! [`Pods`]: the CPUs cut into groups that share a worker pool.

#[cfg(test)]
pub(crate) mod tests;

use crate::raw::SetId;
use crate::{AffinityScope, CpuSet, Topology, shard};
use std::collections::HashMap;

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its possible CPUs, online or not. Never empty.
    pub cpus: CpuSet,
    /// The NUMA node of its highest CPU; `None` for the pod of scope `system`.
    pub node: Option<usize>,
}

/// The pods of one scope: a partition of the possible CPUs, numbered by lowest CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    scope: AffinityScope,
    pods: Vec<Pod>,
    /// By CPU number.
    pod_of: Vec<u32>,
}

const NO_POD: u32 = u32::MAX;

impl Pods {
    /// The scope; never `default`.
    pub fn scope(&self) -> AffinityScope {
        self.scope
    }

    /// Number of pods. At least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// The pods, ascending by lowest CPU.
    pub fn as_slice(&self) -> &[Pod] {
        &self.pods
    }

    /// The pods, ascending by lowest CPU.
    pub fn iter(&self) -> std::slice::Iter<'_, Pod> {
        self.pods.iter()
    }

    /// The pod with this number.
    pub fn get(&self, pod: usize) -> Option<&Pod> {
        self.pods.get(pod)
    }

    /// The number of the pod of `cpu`; `None` if `cpu` is not possible. O(1).
    #[inline]
    pub fn pod_of(&self, cpu: usize) -> Option<usize> {
        let pod = *self.pod_of.get(cpu)?;
        (pod != NO_POD).then_some(pod as usize)
    }

    /// The pod of `cpu`; `None` if `cpu` is not possible. O(1).
    pub fn pod_at(&self, cpu: usize) -> Option<&Pod> {
        self.pods.get(self.pod_of(cpu)?)
    }

    /// The possible CPUs with the number of their pod, ascending by CPU.
    pub fn cpu_pods(&self) -> impl Iterator<Item = (usize, usize)> {
        let pods = self.pod_of.iter().enumerate();
        pods.filter(|(_, pod)| **pod != NO_POD)
            .map(|(cpu, pod)| (cpu, *pod as usize))
    }
}

impl<'a> IntoIterator for &'a Pods {
    type Item = &'a Pod;
    type IntoIter = std::slice::Iter<'a, Pod>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

pub(crate) fn build(topology: &Topology, scope: AffinityScope, shard_size: usize) -> Pods {
    let possible = topology.possible();
    let groups: Vec<CpuSet> = match scope {
        AffinityScope::Cpu => possible.iter().map(CpuSet::of).collect(),
        AffinityScope::Smt => distinct(topology, |c| c.smt),
        AffinityScope::Cache => distinct(topology, |c| c.llc),
        AffinityScope::CacheShard | AffinityScope::Default => shards(topology, shard_size),
        AffinityScope::Numa => topology.nodes().iter().map(|n| n.cpus.clone()).collect(),
        AffinityScope::System => vec![possible.clone()],
    };
    number(topology, scope, groups)
}

fn distinct(topology: &Topology, group: impl Fn(&crate::machine::Cpu) -> SetId) -> Vec<CpuSet> {
    let mut seen = std::collections::HashSet::new();
    let ids = topology.possible().iter().filter_map(|c| topology.cpu(c));
    ids.map(group)
        .filter(|id| seen.insert(*id))
        .map(|id| topology.set(id).clone())
        .collect()
}

/// A core belongs to the cache of its first CPU. With files that agree a core lies in one cache;
/// where they do not, the core stays whole.
fn shards(topology: &Topology, shard_size: usize) -> Vec<CpuSet> {
    let mut order = Vec::new();
    let mut cores: HashMap<SetId, Vec<&CpuSet>> = HashMap::new();
    for cpu in topology.possible() {
        let Some(info) = topology.cpu(cpu) else {
            continue;
        };
        let siblings = topology.set(info.smt);
        if siblings.first() == Some(cpu) {
            let cache = cores.entry(info.llc).or_insert_with(|| {
                order.push(info.llc);
                Vec::new()
            });
            cache.push(siblings);
        }
    }
    let mut pods = Vec::new();
    for llc in order {
        for shard in shard::cut(&cores[&llc], shard_size) {
            pods.push(shard.into_iter().flatten().collect());
        }
    }
    pods
}

fn number(topology: &Topology, scope: AffinityScope, mut groups: Vec<CpuSet>) -> Pods {
    groups.retain(|set| !set.is_empty());
    groups.sort_by_key(|set| set.first());
    let end = topology.possible().last().map_or(0, |last| last + 1);
    let mut pod_of = vec![NO_POD; end];
    for (index, set) in groups.iter().enumerate() {
        for cpu in set {
            pod_of[cpu] = index as u32;
        }
    }
    let node = |set: &CpuSet| match scope {
        AffinityScope::System => None,
        _ => set.last().and_then(|cpu| topology.node_of(cpu)),
    };
    let pods = groups
        .into_iter()
        .map(|cpus| Pod {
            node: node(&cpus),
            cpus,
        })
        .collect();
    Pods {
        scope,
        pods,
        pod_of,
    }
}
