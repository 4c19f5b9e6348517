//! The pods in the layout of wq_dump's section "Affinity Scopes".

use super::View;
use cmwq_topology::{AffinityScope, CpuSet};
use std::fmt::Write;

/// 32-bit groups in hex, lowest first, as wq_dump prints masks.
fn mask(set: &CpuSet) -> String {
    let mut groups = Vec::new();
    let top = set.last().unwrap_or(0) / 32;
    for group in 0..=top {
        let low = group * 32;
        let word = (0..32)
            .filter(|bit| set.contains(low + bit))
            .fold(0u32, |word, bit| word | 1 << bit);
        groups.push(format!("{word:08x}"));
    }
    groups.join(" ")
}

pub(super) fn text(view: &View) -> String {
    let mut out = String::from("Affinity Scopes\n===============\n");
    let _ = writeln!(out, "wq_unbound_cpumask={}", mask(&view.unbound));
    for (scope, pods) in &view.scopes {
        let mark = match *scope == AffinityScope::DEFAULT {
            true => " (default)",
            false => "",
        };
        let _ = writeln!(out, "\n{}{mark}", scope.name().to_uppercase());
        let _ = writeln!(out, "  nr_pods  {}", pods.len());
        let mut cpu_pod = Vec::new();
        out += "  pod_cpus";
        for (index, pod) in pods.iter().enumerate() {
            let _ = write!(out, " [{index}]={}", mask(&pod.cpus));
            cpu_pod.extend(pod.cpus.iter().map(|cpu| (cpu, index)));
        }
        out += "\n  pod_node";
        for (index, pod) in pods.iter().enumerate() {
            let node = pod.node.map_or(-1, |node| node as i64);
            let _ = write!(out, " [{index}]={node}");
        }
        out += "\n  cpu_pod ";
        cpu_pod.sort_unstable();
        for (cpu, pod) in cpu_pod {
            let _ = write!(out, " [{cpu}]={pod}");
        }
        out.push('\n');
    }
    out
}
