//! What scope `cache` groups: the CPUs of the highest scheduler domain that shares a last-level
//! cache. The cache files are its usual input, not its definition.
//!
//! | architecture | last-level cache | cut by | without it |
//! |---|---|---|---|
//! | x86 | level 3, else level 2 | the CPU's NUMA node | SMT siblings |
//! | x86, AMD and Hygon | level 3; where there is none, the die, else the package | the CPU's NUMA node | SMT siblings |
//! | Arm, RISC-V | the highest cache, if it lies inside the smaller of package and node | | the smaller of package and node |
//! | s390 | the package (book and drawer are above it) | | SMT siblings |
//! | other | the highest data or unified cache | the CPU's NUMA node | SMT siblings |
//!
//! SMT siblings always share: a smaller group is widened to them. CPUs belong together when the
//! lowest CPU of their groups is the same, which is how the kernel names a group; so files that
//! contradict each other still give a partition.

use crate::CpuSet;
use crate::machine::{Arch, CacheKind};
use crate::raw::{RawCpu, RawMachine, SetId};
use std::collections::{HashMap, HashSet};

/// The `cache` pod of every CPU.
pub(crate) fn groups(raw: &mut RawMachine, node_of: &[usize], smt: &[SetId]) -> Vec<SetId> {
    let mut memo = HashMap::new();
    let mut masks: Vec<Option<SetId>> = vec![None; raw.cpus.len()];
    for cpu in &raw.possible.clone() {
        if raw.cpus[cpu].is_known() {
            masks[cpu] = Some(mask_of(raw, cpu, node_of[cpu], smt[cpu], &mut memo));
        }
    }
    warn_missing(raw);
    adopt_offline(raw, &mut masks, smt);
    warn_contradictions(raw, &masks);

    let mut by_key: HashMap<usize, CpuSet> = HashMap::new();
    let key = |cpu: usize, sets: &crate::raw::Sets| {
        let id = masks[cpu].unwrap_or(smt[cpu]);
        sets.get(id).first().unwrap_or(cpu)
    };
    for cpu in &raw.possible {
        by_key.entry(key(cpu, &raw.sets)).or_default().insert(cpu);
    }
    let ids: HashMap<usize, SetId> = by_key
        .into_iter()
        .map(|(first, set)| (first, raw.sets.add(set)))
        .collect();
    let nobody = raw.sets.add(CpuSet::new());
    (0..raw.cpus.len())
        .map(|cpu| match raw.possible.contains(cpu) {
            true => ids[&key(cpu, &raw.sets)],
            false => nobody,
        })
        .collect()
}

/// Which inputs led to a mask, so that equal ones are computed once.
type Memo = HashMap<(Option<SetId>, Option<SetId>, usize, SetId), SetId>;

fn mask_of(raw: &mut RawMachine, cpu: usize, node: usize, smt: SetId, memo: &mut Memo) -> SetId {
    let found = &raw.cpus[cpu];
    let cache = last_level(raw, found);
    let package = match raw.arch {
        Arch::X86Amd if cache.is_none() && !found.caches.is_empty() => found.die.or(found.package),
        Arch::Arm | Arch::RiscV | Arch::S390 => found.package,
        _ => None,
    };
    let inputs = (cache, package, node, smt);
    if let Some(mask) = memo.get(&inputs) {
        return *mask;
    }
    let get = |id: Option<SetId>| id.map(|id| raw.sets.get(id));
    let siblings = raw.sets.get(smt);
    let node_cpus = raw
        .nodes
        .binary_search_by_key(&node, |n| n.id)
        .map_or(siblings, |at| &raw.nodes[at].cpus);
    let mut mask = match raw.arch {
        Arch::X86 | Arch::X86Amd | Arch::Power | Arch::Other => {
            get(cache.or(package)).unwrap_or(siblings) & node_cpus
        }
        Arch::Arm | Arch::RiscV => {
            let mut group = node_cpus;
            if let Some(package) = get(package).filter(|p| p.is_subset(group)) {
                group = package;
            }
            if let Some(cache) = get(cache).filter(|c| c.is_subset(group)) {
                group = cache;
            }
            group.clone()
        }
        Arch::S390 => get(package).unwrap_or(siblings).clone(),
    };
    mask |= siblings;
    let id = raw.sets.add(mask);
    memo.insert(inputs, id);
    id
}

/// The CPUs that share the cache which counts as the last level, if the files name one.
fn last_level(raw: &RawMachine, cpu: &RawCpu) -> Option<SetId> {
    let caches = cpu.caches.iter().map(|c| &raw.caches[c.cache as usize]);
    let data = caches.filter(|c| c.kind != CacheKind::Instruction);
    let found = match raw.arch {
        Arch::X86 => data
            .filter(|c| matches!(c.level, 2 | 3))
            .max_by_key(|c| c.level),
        Arch::X86Amd => data.filter(|c| c.level == 3).max_by_key(|c| c.level),
        Arch::S390 => None,
        _ => data.max_by_key(|c| c.level),
    };
    found?.cpus
}

/// The kernel takes offline CPUs out of the sets of online ones. So an offline CPU of which
/// something is known goes where the first online CPU that it names goes; one of which nothing is
/// known, where some other CPU says it is. Else it is alone.
fn adopt_offline(raw: &RawMachine, masks: &mut [Option<SetId>], smt: &[SetId]) {
    let offline = &raw.possible - &raw.online;
    if offline.is_empty() {
        return;
    }
    for cpu in &offline {
        let peer = masks[cpu].and_then(|id| raw.sets.get(id).first_common(&raw.online));
        if let Some(peer) = peer {
            masks[cpu] = masks[peer];
        }
    }
    let unknown: CpuSet = offline.iter().filter(|c| masks[*c].is_none()).collect();
    let mut seen = HashSet::new();
    for cpu in &(&raw.possible - &unknown) {
        let Some(id) = masks[cpu].filter(|id| seen.insert(*id)) else {
            continue;
        };
        for other in &(raw.sets.get(id) & &unknown) {
            masks[other].get_or_insert(id);
        }
    }
    for cpu in &unknown {
        masks[cpu].get_or_insert(smt[cpu]);
    }
}

fn warn_missing(raw: &mut RawMachine) {
    if !matches!(
        raw.arch,
        Arch::X86 | Arch::X86Amd | Arch::Other | Arch::Power
    ) {
        return;
    }
    let bare: CpuSet = raw
        .online
        .iter()
        .filter(|cpu| raw.cpus[*cpu].is_known() && raw.cpus[*cpu].caches.is_empty())
        .collect();
    if let Some(first) = bare.first() {
        let path = raw.cache_file(first, u32::MAX);
        let text = format!("CPUs {bare} name no cache: only SMT siblings are taken to share one");
        raw.warnings.add(path, text);
    }
}

fn warn_contradictions(raw: &mut RawMachine, masks: &[Option<SetId>]) {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for cpu in &raw.online {
        let Some(id) = masks[cpu].filter(|id| seen.insert(*id)) else {
            continue;
        };
        let differs = |other: &usize| masks[*other].is_some_and(|theirs| theirs != id);
        let online = raw.sets.get(id) & &raw.online;
        if let Some(other) = online.iter().find(differs) {
            found.push((cpu, other));
        }
    }
    for (cpu, other) in found {
        let cache = raw.cpus[cpu].caches.iter().map(|c| c.cache);
        let top = cache.max_by_key(|c| raw.caches[*c as usize].level);
        let path = raw.cache_file(cpu, top.unwrap_or(u32::MAX));
        let text = format!(
            "does not agree with CPU {other}'s about who shares the last-level cache: grouped by \
             the lowest CPU that each names"
        );
        raw.warnings.add(path, text);
    }
}
