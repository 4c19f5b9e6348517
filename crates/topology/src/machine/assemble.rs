//! From the facts as found to a [`Topology`]: checks them against each other, fills what is
//! missing as the kernel would, and says so.

use super::{Cache, Cpu, Topology};
use crate::raw::{RawCpu, RawMachine, SetId};
use crate::{CpuSet, llc};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

pub(super) fn assemble(mut raw: RawMachine) -> Topology {
    settle_cpu_sets(&mut raw);
    let possible = raw.possible.clone();
    if let Some(last) = possible.last() {
        raw.cpu(last);
    }
    drop_offline_leftovers(&mut raw);
    fill_from_ids(&mut raw);
    cut_to_possible(&mut raw);
    check_package_ids(&mut raw);
    let node_of = settle_nodes(&mut raw);
    let smt = smt_groups(&mut raw);
    let llc = llc::groups(&mut raw, &node_of, &smt);

    let cpus = (0..raw.cpus.len())
        .map(|cpu| {
            let found = std::mem::take(&mut raw.cpus[cpu]);
            possible.contains(cpu).then(|| Cpu {
                smt: smt[cpu],
                llc: llc[cpu],
                known: found.is_known(),
                cluster: found.cluster,
                die: found.die,
                package: found.package,
                core_id: found.core_id,
                cluster_id: found.cluster_id,
                die_id: found.die_id,
                package_id: found.package_id,
                node: node_of[cpu],
                capacity: found.capacity,
                kind: found.kind,
                caches: found.caches.iter().map(|c| c.cache).collect(),
            })
        })
        .collect();
    let caches = raw
        .caches
        .iter()
        .map(|c| Cache {
            level: c.level,
            kind: c.kind,
            id: c.id,
            size: c.size,
            cpus: c.cpus.map(|id| raw.sets.get(id).clone()),
        })
        .collect();
    raw.sets.seal();
    Topology {
        arch: raw.arch,
        possible,
        present: raw.present,
        online: raw.online,
        isolated: raw.isolated,
        cpus,
        caches,
        nodes: raw.nodes,
        sets: raw.sets,
        warnings: raw.warnings.finish(&raw.root),
        root: raw.root,
    }
}

fn settle_cpu_sets(raw: &mut RawMachine) {
    let folder = raw.cpu_root();
    if raw.possible.is_empty() {
        raw.possible.insert(0);
        raw.warnings
            .add(&folder, "no CPU found: CPU 0 alone is assumed");
    }
    for (name, set) in [("present", &mut raw.present), ("online", &mut raw.online)] {
        let extra = &*set - &raw.possible;
        if !extra.is_empty() {
            let text = format!("CPUs {extra} are not in 'possible': taken as possible");
            raw.warnings.add(folder.join(name), text);
            raw.possible |= &extra;
        }
    }
    let extra = &raw.online - &raw.present;
    if !extra.is_empty() {
        if !raw.present.is_empty() {
            let text = format!("CPUs {extra} are online but not in 'present': taken as present");
            raw.warnings.add(folder.join("present"), text);
        }
        raw.present |= &extra;
    }
    if raw.present.is_empty() {
        raw.present = raw.possible.clone();
    }
    if raw.online.is_empty() {
        raw.online = raw.present.clone();
        let text = "no CPU is online: the present CPUs are taken as online";
        raw.warnings.add(folder.join("online"), text);
    }
    raw.isolated &= &raw.possible;
}

/// Old kernels leave an offline CPU's files in place, with the CPU taken out of its own sets. Such
/// a set says nothing.
fn drop_offline_leftovers(raw: &mut RawMachine) {
    let sets = &raw.sets;
    for (cpu, found) in raw.cpus.iter_mut().enumerate() {
        if raw.online.contains(cpu) || found.stale {
            continue;
        }
        let levels = [
            &mut found.smt,
            &mut found.cluster,
            &mut found.die,
            &mut found.package,
        ];
        for slot in levels {
            *slot = slot.filter(|id| sets.get(*id).contains(cpu));
        }
    }
}

/// The kernel makes package ids and package sets from one thing, so equal ids have equal sets.
fn check_package_ids(raw: &mut RawMachine) {
    let mut first: HashMap<i64, usize> = HashMap::new();
    let mut wrong = Vec::new();
    for cpu in &raw.online {
        let found = &raw.cpus[cpu];
        let Some(id) = found.package_id.filter(|id| *id >= 0) else {
            continue;
        };
        let other = *first.entry(id).or_insert(cpu);
        if raw.cpus[other].package != found.package {
            wrong.push((cpu, other, id));
        }
    }
    if let Some((cpu, other, id)) = wrong.first().copied() {
        let path = raw.topology_file(cpu, raw.cpus[cpu].package_file);
        let text = format!(
            "CPU {cpu} and CPU {other} have package id {id} but not the same package CPUs \
             ({} such CPUs): the CPU sets are taken",
            wrong.len()
        );
        raw.warnings.add(path, text);
    }
}

/// One of the sharing sets of a CPU.
pub(super) type Slot = fn(&mut RawCpu) -> &mut Option<SetId>;

/// Where a CPU lacks a sharing file but has the id that the file is made from, equal ids share.
fn fill_from_ids(raw: &mut RawMachine) {
    type Key = (Option<i64>, Option<i64>);
    type Level = (&'static str, fn(&RawCpu) -> Option<Key>, Slot);
    let usable = |id: Option<i64>| id.filter(|id| *id >= 0);
    let levels: [Level; 2] = [
        (
            "physical_package_id",
            |cpu| Some((None, cpu.package_id)),
            |cpu| &mut cpu.package,
        ),
        (
            "core_id",
            |cpu| Some((Some(cpu.package_id?), cpu.core_id)),
            |cpu| &mut cpu.smt,
        ),
    ];
    for (file, key, slot) in levels {
        let missing: CpuSet = (0..raw.cpus.len())
            .filter(|cpu| {
                let found = &mut raw.cpus[*cpu];
                slot(found).is_none() && key(found).is_some_and(|k| usable(k.1).is_some())
            })
            .collect();
        let Some(first) = missing.first() else {
            continue;
        };
        let mut groups: HashMap<Key, CpuSet> = HashMap::new();
        for (cpu, found) in raw.cpus.iter().enumerate() {
            if let Some(key) = key(found).filter(|k| usable(k.1).is_some()) {
                groups.entry(key).or_default().insert(cpu);
            }
        }
        if missing.intersects(&raw.online) {
            let text = format!("CPUs {missing} have no file that says who shares: equal ids share");
            let path = raw.topology_file(first, file);
            raw.warnings.add(path, text);
        }
        for cpu in &missing {
            if let Some(set) = key(&raw.cpus[cpu]).and_then(|key| groups.get(&key)) {
                *slot(&mut raw.cpus[cpu]) = Some(raw.sets.add(set.clone()));
            }
        }
    }
}

/// Sharing files may name CPUs that cannot exist, and may forget their own CPU.
fn cut_to_possible(raw: &mut RawMachine) {
    let possible = raw.possible.clone();
    let mut good: HashMap<SetId, (SetId, bool)> = HashMap::new();
    let mut cut = |raw: &mut RawMachine, id: SetId| -> (SetId, bool) {
        *good.entry(id).or_insert_with(|| {
            let set = raw.sets.get(id);
            if set.is_subset(&possible) {
                return (id, false);
            }
            let set = set & &possible;
            (raw.sets.add(set), true)
        })
    };
    for cpu in 0..raw.cpus.len() {
        let levels: [(Slot, &str); 4] = [
            (|c| &mut c.smt, raw.cpus[cpu].smt_file),
            (|c| &mut c.cluster, "cluster_cpus"),
            (|c| &mut c.die, "die_cpus"),
            (|c| &mut c.package, raw.cpus[cpu].package_file),
        ];
        for (slot, file) in levels {
            let Some(id) = *slot(&mut raw.cpus[cpu]) else {
                continue;
            };
            let (mut id, was_cut) = cut(raw, id);
            if was_cut {
                let path = raw.topology_file(cpu, file);
                raw.warnings
                    .add(path, "names CPUs that are not possible: left out");
            }
            if raw.online.contains(cpu) && !raw.sets.get(id).contains(cpu) {
                let path = raw.topology_file(cpu, file);
                let text = format!("does not name CPU {cpu} itself: taken as named");
                raw.warnings.add(path, text);
                let mut set = raw.sets.get(id).clone();
                set.insert(cpu);
                id = raw.sets.add(set);
            }
            *slot(&mut raw.cpus[cpu]) = Some(id);
        }
    }
    for index in 0..raw.caches.len() {
        if let Some(id) = raw.caches[index].cpus {
            let (id, was_cut) = cut(raw, id);
            raw.caches[index].cpus = Some(id);
            if was_cut {
                let at = |c: &RawCpu| c.caches.iter().any(|c| c.cache as usize == index);
                let cpu = raw.cpus.iter().position(at).unwrap_or(0);
                let path = raw.cache_file(cpu, index as u32);
                raw.warnings
                    .add(path, "names CPUs that are not possible: left out");
            }
        }
    }
}

/// The node of every CPU. Afterwards the nodes' CPU sets are disjoint and cover the possible CPUs.
fn settle_nodes(raw: &mut RawMachine) -> Vec<usize> {
    let folder = raw.root.join("sys/devices/system/node");
    let mut node_of: Vec<Option<usize>> = vec![None; raw.cpus.len()];
    let mut nodes: BTreeMap<usize, _> = std::mem::take(&mut raw.nodes)
        .into_iter()
        .map(|node| (node.id, node))
        .collect();
    for node in nodes.values() {
        let mut twice = CpuSet::new();
        for cpu in &(&node.cpus & &raw.possible) {
            match node_of[cpu] {
                None => node_of[cpu] = Some(node.id),
                Some(_) => _ = twice.insert(cpu),
            }
        }
        if !twice.is_empty() {
            let path = folder.join(format!("node{}/cpulist", node.id));
            let text = format!("CPUs {twice} also belong to a lower node: the lower node is taken");
            raw.warnings.add(path, text);
        }
    }
    let lost: CpuSet = raw
        .possible
        .iter()
        .filter(|cpu| node_of[*cpu].is_none())
        .collect();
    if !nodes.is_empty() && lost.intersects(&raw.online) {
        let text = format!(
            "online CPUs {} belong to no node: taken as node 0",
            &lost & &raw.online
        );
        raw.warnings.add(&folder, text);
    }
    let node_of: Vec<usize> = node_of.into_iter().map(|n| n.unwrap_or(0)).collect();
    for node in nodes.values_mut() {
        node.cpus.clear();
    }
    for cpu in &raw.possible {
        let id = node_of[cpu];
        let node = nodes.entry(id).or_insert_with(|| crate::Node {
            id,
            ..crate::Node::default()
        });
        node.cpus.insert(cpu);
    }
    raw.nodes = nodes.into_values().collect();
    node_of
}

/// The SMT pod of every CPU: a CPU joins the pod of the lowest CPU whose siblings file names it.
/// A CPU of which nothing is known is in a core only if a CPU of that core says so.
fn smt_groups(raw: &mut RawMachine) -> Vec<SetId> {
    const NONE: usize = usize::MAX;
    let mut group = vec![NONE; raw.cpus.len()];
    let mut groups: Vec<CpuSet> = Vec::new();
    let mut contradictions = Vec::new();
    let mut seen = HashSet::new();
    for cpu in &raw.possible {
        if group[cpu] == NONE {
            group[cpu] = groups.len();
            groups.push(CpuSet::of(cpu));
        }
        let Some(own) = raw.cpus[cpu].smt else {
            continue;
        };
        // The same set a second time can neither group anybody nor contradict in a new way.
        if !seen.insert(own) {
            continue;
        }
        for other in raw.sets.get(own) {
            if group[other] == NONE {
                group[other] = group[cpu];
                groups[group[cpu]].insert(other);
            }
            let theirs = raw.cpus[other].smt;
            if other > cpu && theirs.is_some_and(|id| !raw.sets.get(id).contains(cpu)) {
                contradictions.push((cpu, other));
            }
        }
    }
    for (cpu, other) in contradictions {
        if raw.online.contains(cpu) && raw.online.contains(other) {
            let path = raw.topology_file(cpu, raw.cpus[cpu].smt_file);
            let text = format!("CPU {cpu} names CPU {other} as a sibling, which does not name it");
            raw.warnings.add(path, text);
        }
    }
    let ids: Vec<SetId> = groups.into_iter().map(|set| raw.sets.add(set)).collect();
    let alone = raw.sets.add(CpuSet::new());
    group
        .into_iter()
        .map(|g| ids.get(g).copied().unwrap_or(alone))
        .collect()
}

impl RawMachine {
    fn cpu_root(&self) -> PathBuf {
        self.root.join("sys/devices/system/cpu")
    }

    pub(crate) fn topology_file(&self, cpu: usize, file: &str) -> PathBuf {
        self.cpu_root().join(format!("cpu{cpu}/topology/{file}"))
    }

    /// The file by which `cpu` knows who shares the cache.
    pub(crate) fn cache_file(&self, cpu: usize, cache: u32) -> PathBuf {
        let folder = self.cpu_root().join(format!("cpu{cpu}/cache"));
        let found = self.cpus.get(cpu).map_or(&[][..], |c| &c.caches);
        match found.iter().find(|c| c.cache == cache) {
            None => folder,
            Some(c) if c.from_mask => folder.join(format!("index{}/shared_cpu_map", c.index)),
            Some(c) => folder.join(format!("index{}/shared_cpu_list", c.index)),
        }
    }
}
