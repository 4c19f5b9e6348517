//! From a spec to the facts of a machine.

use super::spec::{Level, Spec, SpecError};
use crate::CpuSet;
use crate::machine::{CacheKind, Node};
use crate::raw::{CacheRef, RawCache, RawCpu, RawMachine};
use std::path::PathBuf;

pub(super) const MAX_NODES: usize = 1024;

/// One core: which instance of each level it belongs to, and its threads' CPU numbers.
struct Core {
    /// By position in `Spec::levels`.
    instances: Vec<usize>,
    kind: usize,
    node: usize,
    cpus: CpuSet,
}

fn error(offset: usize, text: impl Into<String>) -> SpecError {
    SpecError {
        offset,
        text: text.into(),
    }
}

pub(super) fn build(text: &str, spec: &Spec) -> Result<RawMachine, SpecError> {
    let threads = |kind: usize| spec.kinds[kind].threads.unwrap_or(spec.threads);
    let in_group = spec.kinds.iter().enumerate();
    let in_group = in_group
        .map(|(i, kind)| kind.count.saturating_mul(threads(i)))
        .fold(0, usize::saturating_add);
    let groups = spec.levels.iter().map(|l| l.1);
    let groups = groups.fold(1, usize::saturating_mul);
    let total = groups.saturating_mul(in_group);
    if total > CpuSet::MAX_CPUS {
        let max = CpuSet::MAX_CPUS;
        let text = format!("this machine has {total} CPUs, expected at most {max}");
        return Err(error(0, text));
    }

    let node_level = spec.levels.iter().position(|l| l.0 == Level::Node);
    let node_level = node_level.or(spec.levels.iter().position(|l| l.0 == Level::Package));
    let cpu_nodes = node_level.map_or(1, |at| spec.levels[..=at].iter().map(|l| l.1).product());
    if cpu_nodes + spec.memory_nodes > MAX_NODES {
        let nodes = cpu_nodes + spec.memory_nodes;
        let text = format!("this machine has {nodes} nodes, expected at most {MAX_NODES}");
        return Err(error(0, text));
    }

    let mut cores = Vec::new();
    for group in 0..groups {
        let mut below = groups;
        let instances: Vec<usize> = spec
            .levels
            .iter()
            .map(|(_, count)| {
                below /= count;
                group / below
            })
            .collect();
        for (kind, k) in spec.kinds.iter().enumerate() {
            cores.extend((0..k.count).map(|_| Core {
                node: node_level.map_or(0, |at| instances[at]),
                instances: instances.clone(),
                kind,
                cpus: CpuSet::new(),
            }));
        }
    }
    let numbers = match &spec.cpus {
        None => CpuSet::first_n(total),
        Some((at, set)) if set.len() != total => {
            let given = set.len();
            let text = format!("expected {total} CPU numbers, as the levels make, found {given}");
            return Err(error(*at, text));
        }
        Some((_, set)) => set.clone(),
    };
    give_numbers(spec, &mut cores, &numbers, threads);

    let (at, offline) = &spec.offline;
    let online = &numbers - offline;
    if online.is_empty() {
        return Err(error(*at, "expected at least one CPU to stay online"));
    }
    debug_assert!(text.len() >= *at);
    let mut raw = RawMachine::new(PathBuf::new(), spec.arch);
    raw.possible = &numbers | &spec.possible;
    raw.present = numbers;
    raw.online = online;
    raw.isolated = spec.isolated.clone();
    fill(spec, &cores, &mut raw);
    nodes(spec, &cores, cpu_nodes, node_level, &mut raw);
    Ok(raw)
}

fn give_numbers(
    spec: &Spec,
    cores: &mut [Core],
    numbers: &CpuSet,
    threads: impl Fn(usize) -> usize,
) {
    let mut order: Vec<usize> = (0..cores.len()).collect();
    if spec.round_robin {
        let mut turn = vec![0; MAX_NODES];
        let mut keys = vec![0; cores.len()];
        for (core, key) in cores.iter().zip(&mut keys) {
            *key = turn[core.node];
            turn[core.node] += 1;
        }
        order.sort_by_key(|core| (keys[*core], cores[*core].node));
    }
    let mut numbers = numbers.iter();
    let most = cores.iter().map(|c| threads(c.kind)).max().unwrap_or(1);
    let rounds = if spec.adjacent { 1 } else { most };
    for round in 0..rounds {
        for core in &order {
            let core = &mut cores[*core];
            let take = match spec.adjacent {
                true => threads(core.kind),
                false => usize::from(threads(core.kind) > round),
            };
            core.cpus.extend(numbers.by_ref().take(take));
        }
    }
}

/// The CPUs of each instance of a level.
fn members(spec: &Spec, cores: &[Core], level: Level) -> Option<(usize, Vec<CpuSet>)> {
    let at = spec.levels.iter().position(|l| l.0 == level)?;
    let count = spec.levels[..=at].iter().map(|l| l.1).product();
    let mut sets = vec![CpuSet::new(); count];
    for core in cores {
        sets[core.instances[at]] |= &core.cpus;
    }
    Some((at, sets))
}

fn fill(spec: &Spec, cores: &[Core], raw: &mut RawMachine) {
    let level = |level| members(spec, cores, level);
    let packages = level(Level::Package);
    let (dies, clusters) = (level(Level::Die), level(Level::Cluster));
    let (l2, l3) = (level(Level::L2), level(Level::L3));
    let everything = raw.present.clone();
    let mut core_ids = vec![0i64; packages.as_ref().map_or(1, |(_, sets)| sets.len())];
    for core in cores {
        let mut info = RawCpu::default();
        let package = packages.as_ref().map_or(0, |(at, _)| core.instances[*at]);
        let set = packages.as_ref().map_or(&everything, |(_, s)| &s[package]);
        info.package = Some(raw.sets.add(set.clone()));
        info.package_id = Some(package as i64);
        info.core_id = Some(core_ids[package]);
        core_ids[package] += 1;
        if let Some((at, sets)) = &dies {
            let die = core.instances[*at];
            info.die = Some(raw.sets.add(sets[die].clone()));
            info.die_id = Some(die as i64);
        }
        if let Some((at, sets)) = &clusters {
            let cluster = core.instances[*at];
            info.cluster = Some(raw.sets.add(sets[cluster].clone()));
            info.cluster_id = Some(cluster as i64);
        }
        for (number, caches) in [(2, &l2), (3, &l3)] {
            let Some((at, sets)) = caches else {
                continue;
            };
            let id = core.instances[*at];
            let cpus = Some(raw.sets.add(sets[id].clone()));
            let cache = raw.cache(RawCache {
                level: number,
                kind: CacheKind::Unified,
                id: Some(id as u32),
                size: None,
                cpus,
            });
            info.caches.push(CacheRef {
                index: info.caches.len() as u16,
                cache,
                from_mask: false,
            });
        }
        info.smt = Some(raw.sets.add(core.cpus.clone()));
        info.capacity = spec.kinds[core.kind].capacity;
        for cpu in &core.cpus {
            *raw.cpu(cpu) = info.clone();
        }
    }
}

fn nodes(
    spec: &Spec,
    cores: &[Core],
    cpu_nodes: usize,
    node_level: Option<usize>,
    raw: &mut RawMachine,
) {
    let mut sets = vec![CpuSet::new(); cpu_nodes + spec.memory_nodes];
    let mut package_of = vec![None; sets.len()];
    let package = spec.levels.iter().position(|l| l.0 == Level::Package);
    for core in cores {
        sets[core.node] |= &core.cpus;
        if package <= node_level {
            package_of[core.node] = package.map(|at| core.instances[at]);
        }
    }
    let [local, near, far] = spec.distances;
    for (id, cpus) in sets.into_iter().enumerate() {
        let distances = package_of.iter().enumerate().map(|(other, package)| {
            let distance = match package {
                _ if other == id => local,
                Some(_) if *package == package_of[id] => near,
                _ => far,
            };
            (other, distance)
        });
        raw.nodes.push(Node {
            id,
            cpus,
            memory: None,
            distances: distances.collect(),
        });
    }
}
