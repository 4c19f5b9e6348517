//! Which CPUs a queue may use, and which pool each CPU of an unbound queue leads to: pure
//! functions of CPU sets and pods, the same for the runtime and the simulator.
//!
//! Words: the *wq mask* is what the queue asked for, the *global mask* what all unbound queues
//! may use, the *effective mask* what comes of the two. A *pod mask* is what narrows one pool; the
//! queue's *default pool* has the whole effective mask.
//!
//! Nothing here blocks. Costs are those of set algebra, at most one pass over the pods.

#[cfg(test)]
mod tests;

use crate::{CpuSet, Pods};

/// The effective mask: the wq mask cut to the global mask, or the global mask where that leaves
/// nothing. Empty only if `global` is.
pub fn effective(wq: &CpuSet, global: &CpuSet) -> CpuSet {
    let cut = wq & global;
    if cut.is_empty() { global.clone() } else { cut }
}

/// The mask of a pod's own pool: the pod's possible CPUs inside the effective mask. `None` where
/// none of them is online: such a pod uses the queue's default pool.
///
/// While a CPU goes down, pass the online CPUs without it (see [`without`]).
pub fn pod_mask(pod: &CpuSet, effective: &CpuSet, online: &CpuSet) -> Option<CpuSet> {
    let mask = pod & effective;
    mask.intersects(online).then_some(mask)
}

/// `online` without a CPU that is going down.
pub fn without(online: &CpuSet, going_down: usize) -> CpuSet {
    let mut rest = online.clone();
    rest.remove(going_down);
    rest
}

/// The CPUs that a worker of a pool may run on. Strict: the pool's pod mask. Otherwise the whole
/// effective mask, the pod being only where it starts.
pub fn allowed<'a>(strict: bool, pod_mask: &'a CpuSet, effective: &'a CpuSet) -> &'a CpuSet {
    if strict { pod_mask } else { effective }
}

/// The affinity to set on a worker: its allowed CPUs that are online, or all allowed ones where
/// none is (they take effect when one comes up).
pub fn worker_affinity(allowed: &CpuSet, online: &CpuSet) -> CpuSet {
    let cut = allowed & online;
    if cut.is_empty() { allowed.clone() } else { cut }
}

/// Where the workers of a per-CPU pool may run once its CPU is down: the global mask if one of
/// its CPUs is online, else every possible CPU.
pub fn orphaned<'a>(global: &'a CpuSet, online: &CpuSet, possible: &'a CpuSet) -> &'a CpuSet {
    if global.intersects(online) {
        global
    } else {
        possible
    }
}

/// A restriction of the global mask that would have left nothing and was therefore ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredRestriction {
    /// The CPUs left by isolation (`housekeeping`).
    Housekeeping,
    /// The CPUs asked for by `unbound_cpus`.
    UnboundCpus,
}

/// The global mask to start with: the possible CPUs, cut to the housekeeping CPUs, then to
/// `unbound_cpus` where given. Each step that would leave nothing is skipped and reported.
pub fn initial_global(
    possible: &CpuSet,
    housekeeping: &CpuSet,
    unbound_cpus: Option<&CpuSet>,
) -> (CpuSet, Vec<IgnoredRestriction>) {
    let steps = [
        (Some(housekeeping), IgnoredRestriction::Housekeeping),
        (unbound_cpus, IgnoredRestriction::UnboundCpus),
    ];
    let mut mask = possible.clone();
    let mut ignored = Vec::new();
    for (restriction, which) in steps {
        let Some(restriction) = restriction else {
            continue;
        };
        let cut = &mask & restriction;
        if cut.is_empty() {
            ignored.push(which);
        } else {
            mask = cut;
        }
    }
    (mask, ignored)
}

/// The node whose CPUs include the whole mask: the node of a pool with that mask. `None` where
/// the mask spans nodes. `numa` are the pods of scope `numa`. An empty mask has no node.
pub fn node_of_mask(mask: &CpuSet, numa: &Pods) -> Option<usize> {
    let pod = numa.pod_at(mask.first()?)?;
    mask.is_subset(&pod.cpus).then_some(pod.node)?
}

/// The CPU whose slot of an unbound queue an item takes: the issuing CPU if the global mask has
/// it (the queue's own mask does not matter: the slots of CPUs outside it lead to fitting pools),
/// else the next online CPU of the global mask after `cursor`, round robin; the issuing CPU if
/// there is none. The caller keeps the result as its next `cursor` where it differs from `local`.
pub fn unbound_cpu(local: usize, global: &CpuSet, online: &CpuSet, cursor: usize) -> usize {
    if global.contains(local) {
        return local;
    }
    let mut from = cursor.saturating_add(1);
    loop {
        match global.next(from) {
            Some(cpu) if online.contains(cpu) => return cpu,
            Some(cpu) => from = cpu + 1,
            None => break,
        }
    }
    global.first_common(online).unwrap_or(local)
}

/// Which pool each CPU of an unbound queue leads to.
///
/// Recompute it when the queue's mask or scope, the global mask, the online CPUs or the pods
/// change: the slots that differ are the ones to re-link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMap {
    effective: CpuSet,
    /// The default pool's first, then one for each pod that has a pool of its own.
    masks: Vec<CpuSet>,
    /// By CPU number: index into `masks`.
    slots: Vec<u32>,
}

impl PoolMap {
    /// The map of a queue with wq mask `wq` over `pods`. CPUs that are not possible, and CPUs of
    /// a pod without an online CPU in the effective mask, lead to the default pool. While a CPU
    /// goes down, pass the online CPUs without it.
    pub fn new(pods: &Pods, wq: &CpuSet, global: &CpuSet, online: &CpuSet) -> Self {
        let mut map = Self::ordered(wq, global);
        let end = pods.cpu_pods().last().map_or(0, |(cpu, _)| cpu + 1);
        map.slots = vec![0; end];
        for pod in pods {
            let Some(mask) = pod_mask(&pod.cpus, &map.effective, online) else {
                continue;
            };
            if mask == map.effective {
                continue;
            }
            let slot = map.masks.len() as u32;
            for cpu in &pod.cpus {
                map.slots[cpu] = slot;
            }
            map.masks.push(mask);
        }
        map
    }

    /// The map of an ordered queue: every CPU leads to the default pool.
    pub fn ordered(wq: &CpuSet, global: &CpuSet) -> Self {
        let effective = effective(wq, global);
        Self {
            masks: vec![effective.clone()],
            effective,
            slots: Vec::new(),
        }
    }

    /// The queue's effective mask.
    pub fn effective(&self) -> &CpuSet {
        &self.effective
    }

    /// The distinct pod masks; the first is the default pool's, equal to the effective mask.
    pub fn masks(&self) -> &[CpuSet] {
        &self.masks
    }

    /// The index in [`masks`](Self::masks) of the pool that `cpu` leads to; 0 is the default pool.
    #[inline]
    pub fn slot(&self, cpu: usize) -> usize {
        self.slots.get(cpu).map_or(0, |slot| *slot as usize)
    }

    /// The pod mask of the pool that `cpu` leads to.
    pub fn mask(&self, cpu: usize) -> &CpuSet {
        &self.masks[self.slot(cpu)]
    }

    /// Does `cpu` lead to the default pool?
    pub fn is_default(&self, cpu: usize) -> bool {
        self.slot(cpu) == 0
    }
}
