//! The folders `nodeN`.

use super::Files;
use crate::CpuSet;
use crate::machine::Node;
use crate::raw::RawMachine;

const DIR: &str = "sys/devices/system/node";

/// Linux can be built for at most 1024 nodes.
const MAX_NODES: usize = 1024;

pub(super) fn read(files: &mut Files, raw: &mut RawMachine, cpu_folders: &CpuSet) {
    let ids = files.numbered(DIR, "node", MAX_NODES);
    let mut list = |name: &str| -> Vec<usize> {
        let set = files.cpu_list(&format!("{DIR}/{name}"));
        set.unwrap_or_default().iter().collect()
    };
    let candidates = [list("online"), ids.clone(), list("possible")];
    for id in &ids {
        let folder = format!("{DIR}/node{id}");
        let mut cpus = files.cpu_list(&format!("{folder}/cpulist"));
        let cpumap = format!("{folder}/cpumap");
        if cpus.is_none() {
            cpus = files.cpu_mask(&cpumap);
        } else if files.cross_check
            && let (Some(list), Some(mask)) = (&cpus, files.cpu_mask(&cpumap))
            && list & &raw.online != &mask & &raw.online
        {
            files.warn(&cpumap, "contradicts the list beside it: the list is taken");
        }
        if cpus.is_none() {
            let text = "no usable list of CPUs: the CPUs' own links are taken";
            files.warn(&format!("{folder}/cpulist"), text);
        }
        let cpus = cpus.unwrap_or_default();
        let stray = &cpus - &raw.possible;
        if !stray.is_empty() {
            let text = format!("CPUs {stray} are not possible: left out");
            files.warn(&format!("{folder}/cpulist"), text);
        }
        raw.nodes.push(Node {
            id: *id,
            cpus: &cpus & &raw.possible,
            memory: memory(files, &format!("{folder}/meminfo")),
            distances: distances(files, &format!("{folder}/distance"), &candidates),
        });
    }
    links(files, raw, cpu_folders);
}

/// CPUs that no node lists, as offline ones, have a link to their node in their own folder.
fn links(files: &mut Files, raw: &mut RawMachine, cpu_folders: &CpuSet) {
    let mut listed = CpuSet::new();
    for node in &raw.nodes {
        listed |= &node.cpus;
    }
    for cpu in &(&(cpu_folders & &raw.possible) - &listed) {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        let links = files.numbered(&folder, "node", MAX_NODES);
        if links.len() > 1 {
            files.warn(
                &folder,
                format!("links to nodes {links:?}: the first is taken"),
            );
        }
        let Some(id) = links.first().copied() else {
            continue;
        };
        let at = raw.nodes.binary_search_by_key(&id, |n| n.id);
        let at = at.unwrap_or_else(|at| {
            let text = format!("missing, but CPU {cpu} links to it: taken as there");
            files.warn(&format!("{DIR}/node{id}"), text);
            raw.nodes.insert(
                at,
                Node {
                    id,
                    ..Node::default()
                },
            );
            at
        });
        raw.nodes[at].cpus.insert(cpu);
    }
}

/// One number for each online node, ascending by node. Where `online` does not fit, the folders or
/// the possible nodes may.
fn distances(files: &mut Files, file: &str, candidates: &[Vec<usize>; 3]) -> Vec<(usize, u32)> {
    let Some(text) = files.text(file).good() else {
        return Vec::new();
    };
    let numbers: Result<Vec<u32>, _> = text.split_ascii_whitespace().map(str::parse).collect();
    let Ok(numbers) = numbers else {
        files.warn(file, "expected numbers: distances left out");
        return Vec::new();
    };
    let nodes = candidates.iter().find(|n| n.len() == numbers.len());
    let Some(nodes) = nodes else {
        let text = format!(
            "has {} distances for {} nodes: left out",
            numbers.len(),
            candidates[1].len()
        );
        files.warn(file, text);
        return Vec::new();
    };
    nodes.iter().copied().zip(numbers).collect()
}

/// `Node 0 MemTotal:       67108864 kB`, in bytes.
fn memory(files: &mut Files, file: &str) -> Option<u64> {
    let text = files.head(file, 4096).good()?;
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let (_, value) = line.split_once("MemTotal:")?;
    let value = value.trim().strip_suffix("kB")?.trim();
    value.parse::<u64>().ok()?.checked_mul(1024)
}
