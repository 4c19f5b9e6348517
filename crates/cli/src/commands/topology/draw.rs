//! The drawing of the machine, what the process may use, and what was wrong with the files.

use super::View;
use cmwq_topology::{CacheKind, CoreKind, CpuSet, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const WIDTH: usize = 100;

/// The machine as a tree: package, node, last-level cache, cores. A core is a bracket with its
/// hardware threads.
pub(super) fn machine(view: &View) -> String {
    let machine = &view.machine;
    let mut out = String::new();
    summary(&mut out, view);

    // By lowest CPU of package and cache, so that the order is that of the CPUs.
    let mut tree: BTreeMap<Package, BTreeMap<usize, BTreeMap<usize, CpuSet>>> = BTreeMap::new();
    let mut unknown = CpuSet::new();
    for cpu in &view.cpus {
        if !machine.is_known(cpu) && machine.siblings(cpu).is_some_and(|s| s.len() == 1) {
            unknown.insert(cpu);
            continue;
        }
        let first = |set: Option<&CpuSet>| set.and_then(CpuSet::first).unwrap_or(cpu);
        let package = package(machine, cpu);
        let node = machine.node_of(cpu).unwrap_or(0);
        let llc = first(machine.llc_cpus(cpu));
        let nodes = tree.entry(package).or_default();
        nodes
            .entry(node)
            .or_default()
            .entry(llc)
            .or_default()
            .insert(cpu);
    }
    let several = machine
        .nodes()
        .iter()
        .filter(|n| !n.cpus.is_empty())
        .count()
        > 1;
    for (package, nodes) in &tree {
        let cpus = nodes
            .values()
            .flat_map(BTreeMap::values)
            .fold(CpuSet::new(), |a, b| &a | b);
        let name = match package {
            Package::Id(id) => format!("package {id}"),
            Package::First(_) => "package ?".to_owned(),
            Package::Unknown => "package unknown".to_owned(),
        };
        let _ = writeln!(out, "{name}  CPUs {cpus}");
        for (node, caches) in nodes {
            let indent = if several { "    " } else { "  " };
            if several {
                let cpus = caches.values().fold(CpuSet::new(), |a, b| &a | b);
                let memory = machine.node(*node).and_then(|n| n.memory);
                let memory = memory.map_or(String::new(), |m| format!("  {}", bytes(m)));
                let _ = writeln!(out, "  node {node}  CPUs {cpus}{memory}");
            }
            let labels: Vec<_> = caches.values().map(|c| label(machine, c)).collect();
            let width = labels.iter().map(String::len).max().unwrap_or(0);
            for (cpus, label) in caches.values().zip(labels) {
                cores(&mut out, view, cpus, &format!("{indent}{label:width$}  "));
            }
        }
    }
    if !unknown.is_empty() {
        let offline = &unknown - machine.online();
        let state = if offline == unknown { "offline, " } else { "" };
        let _ = writeln!(out, "{state}no core or cache known: CPUs {unknown}");
    }
    for node in machine.nodes().iter().filter(|n| n.cpus.is_empty()) {
        let memory = node
            .memory
            .map_or(String::new(), |m| format!("  {}", bytes(m)));
        let _ = writeln!(out, "node {}  no CPUs{memory}", node.id);
    }
    legend(&mut out, view);
    distances(&mut out, machine);
    process(&mut out, view);
    out
}

/// What tells one package from another: its id, or where there is none its lowest CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Package {
    Id(i64),
    First(usize),
    Unknown,
}

fn package(machine: &Topology, cpu: usize) -> Package {
    let first = machine.package_cpus(cpu).and_then(CpuSet::first);
    match (machine.package_id(cpu), first) {
        (Some(id @ 0..), _) => Package::Id(id),
        (_, Some(first)) => Package::First(first),
        _ => Package::Unknown,
    }
}

fn summary(out: &mut String, view: &View) {
    let machine = &view.machine;
    let distinct = |key: &dyn Fn(usize) -> Option<usize>| {
        let firsts: CpuSet = machine.possible().iter().filter_map(key).collect();
        firsts.len()
    };
    let packages: BTreeSet<Package> = machine
        .possible()
        .iter()
        .map(|cpu| package(machine, cpu))
        .filter(|p| *p != Package::Unknown)
        .collect();
    let known = |cpu: usize| machine.is_known(cpu).then_some(cpu);
    let first = |set: Option<&CpuSet>| set.and_then(CpuSet::first);
    let counts = [
        (packages.len(), "package"),
        (machine.nodes().len(), "node"),
        (
            distinct(&|cpu| first(machine.llc_cpus(known(cpu)?))),
            "cache group",
        ),
        (
            distinct(&|cpu| first(machine.siblings(known(cpu)?))),
            "core",
        ),
        (machine.online().len(), "online CPU"),
    ];
    let parts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| match count {
            1 => format!("1 {name}"),
            _ => format!("{count} {name}s"),
        })
        .collect();
    let _ = writeln!(out, "{}: {}", machine.arch().name(), parts.join(", "));
    let _ = writeln!(out, "  possible {}", machine.possible());
    for (name, set) in [
        ("present ", machine.present()),
        ("online  ", machine.online()),
        ("isolated", machine.isolated()),
        ("shown   ", &view.cpus),
    ] {
        if !set.is_empty() && set != machine.possible() {
            let _ = writeln!(out, "  {name} {set}");
        }
    }
    out.push('\n');
}

/// What the group is: a cache, a part of one, or only a group.
fn label(machine: &Topology, group: &CpuSet) -> String {
    let Some(cpu) = group.first() else {
        return String::new();
    };
    let whole = machine.llc_cpus(cpu).unwrap_or(group);
    let caches = machine
        .caches(cpu)
        .filter(|c| c.kind != CacheKind::Instruction);
    let sharing = caches.filter_map(|c| Some((c, c.cpus.as_ref()?)));
    let online = |set: &CpuSet| set & machine.online();
    match sharing.max_by_key(|(c, _)| c.level) {
        Some((cache, cpus)) => {
            let size = cache
                .size
                .map_or(String::new(), |size| format!(" {}", bytes(size)));
            if online(cpus) == online(whole) {
                format!("L{}{size}", cache.level)
            } else if online(whole).is_subset(cpus) {
                format!("part of L{}{size}", cache.level)
            } else {
                format!("group over L{}s{size}", cache.level)
            }
        }
        None => "group".to_owned(),
    }
}

/// The cores of a group, in lines of bounded width, a new line for each capacity or kind.
fn cores(out: &mut String, view: &View, cpus: &CpuSet, prefix: &str) {
    let machine = &view.machine;
    let mut sorts: Vec<(String, Vec<String>)> = Vec::new();
    let mut done = CpuSet::new();
    for cpu in cpus {
        if done.contains(cpu) {
            continue;
        }
        let alone = CpuSet::of(cpu);
        let core = machine.siblings(cpu).unwrap_or(&alone) & cpus;
        done |= &core;
        let threads: Vec<String> = core.iter().map(|cpu| mark(view, cpu)).collect();
        let sort = sort(machine, cpu);
        let text = format!("[{}]", threads.join(" "));
        match sorts.last_mut() {
            Some((last, list)) if *last == sort => list.push(text),
            _ => sorts.push((sort, vec![text])),
        }
    }
    let mut prefix = prefix.to_owned();
    let blank = " ".repeat(prefix.len());
    for (sort, list) in sorts {
        let mut line = format!("{prefix}{sort}");
        let start = blank.len() + sort.len();
        let mut empty = true;
        for core in list {
            if !empty && line.len() + core.len() > WIDTH {
                let _ = writeln!(out, "{line}");
                line = " ".repeat(start);
            }
            line += &core;
            empty = false;
        }
        let _ = writeln!(out, "{line}");
        prefix.clone_from(&blank);
    }
}

fn sort(machine: &Topology, cpu: usize) -> String {
    let kind = machine.core_kind(cpu).map(|kind| match kind {
        CoreKind::Performance => "P ",
        CoreKind::Efficiency => "E ",
        CoreKind::LowPower => "LP ",
    });
    let strongest = Some(1024);
    let mut all = machine
        .possible()
        .iter()
        .filter_map(|cpu| machine.capacity(cpu));
    let differ = all.any(|capacity| Some(capacity) != strongest);
    let capacity = machine.capacity(cpu).filter(|_| differ);
    let capacity = capacity.map(|c| format!("capacity {c:4}  "));
    format!("{}{}", kind.unwrap_or(""), capacity.unwrap_or_default())
}

/// May the process not use this CPU, although it is online?
fn is_barred(view: &View, cpu: usize) -> bool {
    let usable = view.process.as_ref().map(|p| p.usable(&view.machine));
    view.machine.online().contains(cpu) && usable.is_some_and(|cpus| !cpus.contains(cpu))
}

fn mark(view: &View, cpu: usize) -> String {
    if !view.machine.online().contains(cpu) {
        format!("({cpu})")
    } else if view.machine.isolated().contains(cpu) {
        format!("{cpu}i")
    } else if is_barred(view, cpu) {
        format!("{cpu}x")
    } else {
        cpu.to_string()
    }
}

fn legend(out: &mut String, view: &View) {
    let machine = &view.machine;
    let any = |test: &dyn Fn(usize) -> bool| view.cpus.iter().any(test);
    let marks = [
        (any(&|cpu| !machine.online().contains(cpu)), "(n) offline"),
        (any(&|cpu| machine.isolated().contains(cpu)), "ni isolated"),
        (any(&|cpu| is_barred(view, cpu)), "nx not for this process"),
    ];
    let used: Vec<&str> = marks.iter().filter(|m| m.0).map(|m| m.1).collect();
    if !used.is_empty() {
        let _ = writeln!(out, "{}", used.join(", "));
    }
}

fn distances(out: &mut String, machine: &Topology) {
    let nodes = machine.nodes();
    if nodes.len() < 2 || nodes.iter().all(|n| n.distances.is_empty()) {
        return;
    }
    out.push_str("\nnode distances\n      ");
    for to in nodes {
        let _ = write!(out, " {:>4}", to.id);
    }
    out.push('\n');
    for from in nodes {
        let _ = write!(out, "  {:>4}", from.id);
        for to in nodes {
            match from.distance_to(to.id) {
                Some(distance) => _ = write!(out, " {distance:>4}"),
                None => out.push_str("    -"),
            }
        }
        out.push('\n');
    }
}

fn process(out: &mut String, view: &View) {
    let Some(process) = &view.process else {
        return;
    };
    if process.affinity.is_none() && process.cpuset.is_none() && process.quota.is_none() {
        return;
    }
    out.push_str("\nthis process\n");
    let shown = |set: &Option<CpuSet>| {
        set.as_ref()
            .map_or("not known".to_owned(), CpuSet::to_string)
    };
    let _ = writeln!(out, "  affinity  {}", shown(&process.affinity));
    match (&process.cpuset, &process.cpuset_group) {
        (Some(set), Some(group)) => _ = writeln!(out, "  cpuset    {set}  ({})", group.display()),
        _ => _ = writeln!(out, "  cpuset    none"),
    }
    match &process.quota {
        Some(q) => {
            let group = q.group.display();
            let _ = writeln!(out, "  quota     {:.2} CPUs  ({group})", q.cpus());
        }
        None => out.push_str("  quota     none\n"),
    }
    let usable = process.usable(&view.machine);
    let _ = writeln!(out, "  usable    {usable}");
    let _ = writeln!(out, "  at once   {}", process.parallelism(&view.machine));
}

fn bytes(n: u64) -> String {
    if n == 0 {
        return "no memory".to_owned();
    }
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 10.0 && value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Everything that was wrong with the files.
pub(super) fn notes(view: &View) -> String {
    let process = view.process.iter().flat_map(|p| &p.warnings);
    let all: Vec<_> = view.machine.warnings().iter().chain(process).collect();
    if all.is_empty() {
        return String::new();
    }
    let mut out = String::from("\nWarnings\n========\n");
    for warning in all {
        let _ = writeln!(out, "{warning}");
    }
    out
}
