//! Keeping what an earlier read knew of CPUs whose files are gone now.
//!
//! The kernel takes the topology files of an offline CPU away, and takes the CPU out of the sharing
//! files of the others. So both are put back: the offline CPU into the sets of those that shared
//! with it, and those sets into the offline CPU.

use super::assemble::Slot;
use super::{Cpu, Topology};
use crate::CpuSet;
use crate::raw::{CacheRef, RawCache, RawCpu, RawMachine, SetId};

type Known = fn(&Cpu) -> Option<SetId>;

const LEVELS: [(Slot, Known); 4] = [
    (|c| &mut c.smt, |c| Some(c.smt)),
    (|c| &mut c.cluster, |c| c.cluster),
    (|c| &mut c.die, |c| c.die),
    (|c| &mut c.package, |c| c.package),
];

pub(super) fn keep_known(raw: &mut RawMachine, old: &Topology) {
    let known = |cpu: usize| old.cpu(cpu).filter(|c| c.known);
    let possible = raw.possible.clone();
    let gone: CpuSet = possible
        .iter()
        .filter(|cpu| known(*cpu).is_some() && !raw.cpu(*cpu).is_known())
        .collect();
    if gone.is_empty() {
        return;
    }
    for cpu in &(&possible - &gone) {
        if let Some(before) = known(cpu) {
            put_back(raw, old, cpu, before, &gone);
        }
    }
    for cpu in &gone {
        if let Some(before) = known(cpu) {
            restore(raw, old, cpu, before, &gone);
            keep_node(raw, cpu, before.node);
        }
    }
}

/// An offline CPU that no node names any more stays where it was.
fn keep_node(raw: &mut RawMachine, cpu: usize, id: usize) {
    if raw.nodes.iter().any(|node| node.cpus.contains(cpu)) {
        return;
    }
    if let Ok(at) = raw.nodes.binary_search_by_key(&id, |n| n.id) {
        raw.nodes[at].cpus.insert(cpu);
    }
}

/// Puts the offline CPUs back into the sets of a CPU that shared with them.
fn put_back(raw: &mut RawMachine, old: &Topology, cpu: usize, before: &Cpu, gone: &CpuSet) {
    for (slot, known) in LEVELS {
        let now = *slot(raw.cpu(cpu));
        let (Some(now), Some(before)) = (now, known(before)) else {
            continue;
        };
        let lost = old.set(before) & gone;
        if !lost.is_empty() {
            let all = raw.sets.get(now) | &lost;
            *slot(raw.cpu(cpu)) = Some(raw.sets.add(all));
        }
    }
    for at in 0..raw.cpu(cpu).caches.len() {
        let index = raw.cpu(cpu).caches[at].cache as usize;
        let mut cache = raw.caches[index].clone();
        let same = |c: &&crate::Cache| c.level == cache.level && c.kind == cache.kind;
        let lost = old.caches(cpu).find(same).and_then(|c| c.cpus.as_ref());
        let lost = lost.map(|cpus| cpus & gone).unwrap_or_default();
        if let Some(now) = cache.cpus.filter(|_| !lost.is_empty()) {
            let all = raw.sets.get(now) | &lost;
            cache.cpus = Some(raw.sets.add(all));
            raw.cpu(cpu).caches[at].cache = raw.cache(cache);
        }
    }
}

/// Gives an offline CPU what was known of it. Where a CPU that shared with it is still there, the
/// two have the same set; otherwise the set is the old one.
fn restore(raw: &mut RawMachine, old: &Topology, cpu: usize, before: &Cpu, gone: &CpuSet) {
    let mut fresh = RawCpu {
        core_id: before.core_id,
        cluster_id: before.cluster_id,
        die_id: before.die_id,
        package_id: before.package_id,
        capacity: before.capacity,
        kind: before.kind,
        smt_file: "core_cpus_list",
        package_file: "package_cpus_list",
        stale: true,
        ..RawCpu::default()
    };
    for (slot, known) in LEVELS {
        let Some(before) = known(before).map(|id| old.set(id)) else {
            continue;
        };
        let peers = &(before & &raw.possible) - gone;
        let current = peers.iter().find_map(|peer| {
            let now = *slot(raw.cpu(peer));
            now.filter(|now| raw.sets.get(*now).contains(cpu))
        });
        *slot(&mut fresh) = Some(current.unwrap_or_else(|| raw.sets.add(before.clone())));
    }
    for (index, cache) in old.caches(cpu).enumerate() {
        let peers = cache
            .cpus
            .as_ref()
            .map(|cpus| &(cpus & &raw.possible) - gone);
        let current = peers.unwrap_or_default().iter().find_map(|peer| {
            let refs = raw.cpu(peer).caches.clone();
            let mut caches = refs.iter().map(|c| &raw.caches[c.cache as usize]);
            let same = |c: &&RawCache| c.level == cache.level && c.kind == cache.kind;
            let now = caches.find(same)?.cpus?;
            raw.sets.get(now).contains(cpu).then_some(now)
        });
        let cpus = match (current, &cache.cpus) {
            (None, Some(before)) => Some(raw.sets.add(before.clone())),
            (current, _) => current,
        };
        let cache = raw.cache(RawCache {
            level: cache.level,
            kind: cache.kind,
            id: cache.id,
            size: cache.size,
            cpus,
        });
        fresh.caches.push(CacheRef {
            index: index as u16,
            cache,
            from_mask: false,
        });
    }
    *raw.cpu(cpu) = fresh;
}
