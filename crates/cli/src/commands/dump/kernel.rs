//! The five sections of the kernel's `wq_dump`, with its columns.

use std::fmt::Write as _;
use std::io::{self, Write};

use cmwq_control::CpuList;
use cmwq_control::snapshot::{PoolKind, Snapshot, WorkqueueSnapshot, WqKind};

use super::heading;

/// A mask as the kernel's script prints it: groups of 32 bits in hexadecimal, the lowest first.
pub(super) fn mask(cpus: &CpuList, nr_cpu_ids: u32) -> String {
    let set = cpus.to_set();
    let bits = (set.last().map_or(1, |last| last + 1))
        .max(nr_cpu_ids as usize)
        .max(1);
    let groups: Vec<String> = (0..bits.div_ceil(32))
        .map(|g| {
            let group = (0..32)
                .filter(|bit| set.contains(g * 32 + bit))
                .fold(0_u32, |m, bit| m | 1 << bit);
            format!("{group:08x}")
        })
        .collect();
    groups.join(" ")
}

/// `[key]=value` pairs on one line.
fn pairs<V: std::fmt::Display>(name: &str, values: impl Iterator<Item = (usize, V)>) -> String {
    let mut line = format!("  {name:<8}");
    for (key, value) in values {
        // Writing to a String cannot fail.
        let _ = write!(line, " [{key}]={value}");
    }
    line
}

pub(super) fn scopes(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Affinity Scopes")?;
    let t = &s.topology;
    let width = t.nr_cpu_ids;
    writeln!(
        out,
        "wq_unbound_cpumask={}",
        mask(&t.unbound_cpumask, width)
    )?;
    for scope in &t.scopes {
        let default = if scope.name == t.default_scope {
            " (default)"
        } else {
            ""
        };
        writeln!(out, "\n{}{default}", scope.name.to_uppercase())?;
        writeln!(out, "  nr_pods  {}", scope.pods.len())?;
        let pods = || scope.pods.iter().enumerate();
        writeln!(
            out,
            "{}",
            pairs("pod_cpus", pods().map(|(i, p)| (i, mask(&p.cpus, width))))
        )?;
        let node = |n: Option<u32>| n.map_or(-1, i64::from);
        writeln!(
            out,
            "{}",
            pairs("pod_node", pods().map(|(i, p)| (i, node(p.node))))
        )?;
        let mut of_cpu: Vec<(usize, usize)> = pods()
            .flat_map(|(i, p)| p.cpus.cpus().map(move |cpu| (cpu as usize, i)))
            .collect();
        of_cpu.sort_unstable();
        writeln!(out, "{}", pairs("cpu_pod", of_cpu.into_iter()))?;
    }
    Ok(())
}

pub(super) fn pools(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Worker Pools")?;
    let digits = |n: u32| n.to_string().len();
    let width = s.pools.iter().map(|p| digits(p.id)).max().unwrap_or(1);
    let refs = s.pools.iter().map(|p| digits(p.refcnt)).max().unwrap_or(1);
    for p in &s.pools {
        write!(
            out,
            "pool[{:0width$}] flags={:#x} ref={:refs$} nice={:3} idle/workers={:3}/{:3} ",
            p.id, p.flags, p.refcnt, p.nice, p.idle, p.workers
        )?;
        match p.cpu {
            Some(cpu) if p.kind == PoolKind::PerCpu => writeln!(out, "cpu={cpu}")?,
            _ => writeln!(
                out,
                "cpus={} pod_cpus={}{}",
                mask(&p.cpus, s.topology.nr_cpu_ids),
                mask(&p.pod_cpus, s.topology.nr_cpu_ids),
                if p.strict { " strict" } else { "" }
            )?,
        }
    }
    Ok(())
}

/// The widest name, so that columns line up.
fn name_width(s: &Snapshot) -> usize {
    s.workqueues
        .iter()
        .map(|q| q.name.chars().count())
        .max()
        .unwrap_or(0)
        .max("workqueue".len())
}

fn kind(q: &WorkqueueSnapshot) -> &'static str {
    match q.kind {
        WqKind::Unbound if q.attrs.affinity_strict => "unbound,S",
        kind => kind.as_str(),
    }
}

pub(super) fn cpu_to_pool(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Workqueue CPU -> pool")?;
    let names = name_width(s);
    let width = s
        .pools
        .iter()
        .map(|p| p.id)
        .max()
        .unwrap_or(0)
        .max(s.topology.nr_cpu_ids)
        .to_string()
        .len()
        .max(3);
    let cpus: Vec<u32> = s.topology.possible.cpus().collect();
    write!(out, "{:<names$} {:<9}", "workqueue", "type CPU")?;
    for cpu in &cpus {
        write!(out, " {cpu:>width$}")?;
    }
    writeln!(out, " {:>width$}", "dfl")?;
    for q in &s.workqueues {
        write!(out, "{:<names$} {:<9}", q.name, kind(q))?;
        let slots: Vec<_> = q
            .cpu_pool
            .iter()
            .map(|slot| (slot.cpus.to_set(), slot.pool))
            .collect();
        for cpu in &cpus {
            let pool = slots
                .iter()
                .find(|(set, _)| set.contains(*cpu as usize))
                .and_then(|(_, pool)| *pool);
            write!(out, " {:>width$}", number(pool))?;
        }
        match q.kind {
            WqKind::PerCpu => writeln!(out)?,
            _ => writeln!(out, " {:>width$}", number(q.default_pool))?,
        }
    }
    Ok(())
}

fn number(n: Option<u32>) -> String {
    n.map_or_else(|| "-".into(), |n| n.to_string())
}

pub(super) fn rescuers(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Workqueue -> rescuer")?;
    let names = name_width(s);
    for q in &s.workqueues {
        if let Some(r) = &q.rescuer {
            writeln!(
                out,
                "{:<names$} wq_cpumask={} rescuer={} rescuer_cpumask={}{}",
                q.name,
                mask(&q.attrs.effective_cpumask, s.topology.nr_cpu_ids),
                r.tid,
                mask(&r.cpus, s.topology.nr_cpu_ids),
                if r.busy { " busy" } else { "" }
            )?;
        }
    }
    Ok(())
}

pub(super) fn node_limits(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Unbound workqueue -> node_nr/max_active")?;
    let names = name_width(s);
    writeln!(
        out,
        "online={}",
        mask(&s.topology.online, s.topology.nr_cpu_ids)
    )?;
    for node in &s.topology.nodes {
        writeln!(
            out,
            "NODE[{}]={}",
            node.node,
            mask(&node.cpus, s.topology.nr_cpu_ids)
        )?;
    }
    write!(out, "{:<names$} {:>4} {:>4}", "workqueue", "min", "max")?;
    for node in &s.topology.nodes {
        write!(out, " {:>9}", format!("NODE[{}]", node.node))?;
    }
    writeln!(out, " {:>9}", "dfl")?;
    for q in s.workqueues.iter().filter(|q| q.kind != WqKind::PerCpu) {
        write!(
            out,
            "{:<names$} {:>4} {:>4}",
            q.name, q.min_active, q.max_active
        )?;
        let wanted = s.topology.nodes.iter().map(|n| Some(n.node)).chain([None]);
        for node in wanted {
            let cell = match q.nodes.iter().find(|n| n.node == node) {
                Some(n) => format!("{}/{}", n.nr, n.max),
                None => "-".into(),
            };
            write!(out, " {cell:>9}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_their_lowest_group_first() {
        let list = CpuList::from_cpus([0, 1, 33]);
        assert_eq!(mask(&list, 64), "00000003 00000002");
        assert_eq!(mask(&CpuList::default(), 0), "00000000");
        assert_eq!(mask(&list, 1), "00000003 00000002");
    }
}
