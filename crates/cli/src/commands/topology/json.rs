//! The result for programs. Keys are only ever added; `format` changes if one changes its meaning.

use super::View;
use cmwq_topology::{AffinityScope, CacheKind, CoreKind, CpuSet, ProcessCpus, Warning};
use serde_json::{Map, Value, json};

pub(super) fn text(view: &View) -> anyhow::Result<String> {
    let machine = &view.machine;
    let mut scopes = Map::new();
    for (scope, pods) in &view.scopes {
        let mut cpu_pod = Map::new();
        for (index, pod) in pods.iter().enumerate() {
            for cpu in &pod.cpus {
                cpu_pod.insert(cpu.to_string(), json!(index));
            }
        }
        let pods: Vec<Value> = pods
            .iter()
            .map(
                |pod| json!({ "cpus": list(&pod.cpus), "node": pod.node.map_or(-1, |n| n as i64) }),
            )
            .collect();
        let value = json!({ "nr_pods": pods.len(), "pods": pods, "cpu_pod": cpu_pod });
        scopes.insert(scope.name().to_owned(), value);
    }
    let nodes: Vec<Value> = machine.nodes().iter().map(node).collect();
    let details: Vec<Value> = view.cpus.iter().map(|cpu| self::cpu(view, cpu)).collect();
    let value = json!({
        "format": 1,
        "arch": machine.arch().name(),
        "cpus": {
            "possible": list(machine.possible()),
            "present": list(machine.present()),
            "online": list(machine.online()),
            "isolated": list(machine.isolated()),
            "shown": list(&view.cpus),
            "unbound": list(&view.unbound),
        },
        "default_scope": AffinityScope::DEFAULT.name(),
        "scopes": scopes,
        "nodes": nodes,
        "cpu": details,
        "process": view.process.as_ref().map(|p| process(view, p)),
        "warnings": warnings(machine.warnings()),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn list(set: &CpuSet) -> String {
    set.to_string()
}

fn node(node: &cmwq_topology::Node) -> Value {
    let distances = node.distances.iter();
    let distances: Map<String, Value> = distances
        .map(|(other, distance)| (other.to_string(), json!(distance)))
        .collect();
    json!({
        "id": node.id,
        "cpus": list(&node.cpus),
        "memory_bytes": node.memory,
        "distances": distances,
    })
}

fn cpu(view: &View, cpu: usize) -> Value {
    let machine = &view.machine;
    let caches: Vec<Value> = machine
        .caches(cpu)
        .map(|cache| {
            json!({
                "level": cache.level,
                "type": match cache.kind {
                    CacheKind::Data => "Data",
                    CacheKind::Instruction => "Instruction",
                    CacheKind::Unified => "Unified",
                },
                "id": cache.id,
                "size_bytes": cache.size,
                "cpus": cache.cpus.as_ref().map(list),
            })
        })
        .collect();
    json!({
        "cpu": cpu,
        "online": machine.online().contains(cpu),
        "known": machine.is_known(cpu),
        "node": machine.node_of(cpu),
        "package": machine.package_id(cpu),
        "die": machine.die_id(cpu),
        "cluster": machine.cluster_id(cpu),
        "core": machine.core_id(cpu),
        "siblings": machine.siblings(cpu).map(list),
        "capacity": machine.capacity(cpu),
        "kind": machine.core_kind(cpu).map(|kind| match kind {
            CoreKind::Performance => "performance",
            CoreKind::Efficiency => "efficiency",
            CoreKind::LowPower => "low-power",
        }),
        "caches": caches,
    })
}

fn process(view: &View, process: &ProcessCpus) -> Value {
    json!({
        "affinity": process.affinity.as_ref().map(list),
        "cpuset": process.cpuset.as_ref().map(list),
        "cpuset_group": process.cpuset_group,
        "quota": process.quota.as_ref().map(|quota| json!({
            "cpus": quota.cpus(),
            "quota_us": quota.quota_us,
            "period_us": quota.period_us,
            "group": quota.group,
        })),
        "usable": list(&process.usable(&view.machine)),
        "parallelism": process.parallelism(&view.machine),
        "warnings": warnings(&process.warnings),
    })
}

fn warnings(list: &[Warning]) -> Vec<Value> {
    list.iter()
        .map(|w| json!({ "path": w.path.to_string_lossy(), "text": w.text }))
        .collect()
}
