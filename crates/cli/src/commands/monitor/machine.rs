//! The pools on a drawing of the machine: nodes, their pods, CPUs, and how loaded each pod is.

use cmwq_control::CpuSet;
use cmwq_control::snapshot::{PoolKind, PoolSnapshot, Snapshot, WorkerState};

/// One pod with what its pools do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodLoad {
    pub(super) node: Option<u32>,
    pub(super) cpus: CpuSet,
    /// Workers that run, over all pools of the pod.
    pub(super) running: u32,
    /// Workers that may run: at most one a CPU counts as full.
    pub(super) capacity: u32,
    pub(super) blocked: u32,
    pub(super) waiting: u32,
    pub(super) stalled: bool,
    /// For each CPU in ascending order, how many running workers were last seen on it.
    pub(super) on_cpu: Vec<u32>,
}

impl PodLoad {
    /// From 0 to 1 (and more where more run than there are CPUs).
    pub(super) fn load(&self) -> f64 {
        if self.capacity == 0 {
            0.0
        } else {
            f64::from(self.running) / f64::from(self.capacity)
        }
    }
}

/// The pods of the default scope in the order of their nodes. A pool that spans several pods (a `system` or default pool) is
/// counted on the pods where its workers were last seen, or on the first one if that is unknown.
pub(super) fn pods(s: &Snapshot) -> Vec<PodLoad> {
    let Some(scope) = s.topology.scope(&s.topology.default_scope) else {
        return Vec::new();
    };
    let mut loads: Vec<PodLoad> = scope
        .pods
        .iter()
        .map(|pod| {
            let cpus = pod.cpus.to_set();
            let capacity = cpus.len() as u32;
            PodLoad {
                node: pod.node,
                on_cpu: vec![0; cpus.len()],
                cpus,
                running: 0,
                capacity,
                blocked: 0,
                waiting: 0,
                stalled: false,
            }
        })
        .collect();
    for pool in &s.pools {
        add(&mut loads, pool);
    }
    loads.sort_by_key(|l| (l.node.unwrap_or(u32::MAX), l.cpus.first()));
    loads
}

fn add(loads: &mut [PodLoad], pool: &PoolSnapshot) {
    let cpus = match (pool.kind, pool.cpu) {
        (PoolKind::PerCpu, Some(cpu)) if (cpu as usize) < CpuSet::MAX_CPUS => {
            CpuSet::of(cpu as usize)
        }
        _ => pool.pod_cpus.to_set(),
    };
    for w in pool
        .worker_list
        .iter()
        .filter(|w| matches!(w.state, WorkerState::Running | WorkerState::CpuIntensive))
    {
        let Some(cpu) = w.cpu.map(|c| c as usize) else {
            continue;
        };
        if let Some(load) = loads.iter_mut().find(|l| l.cpus.contains(cpu)) {
            let at = load.cpus.iter().position(|c| c == cpu);
            if let Some(slot) = at.and_then(|at| load.on_cpu.get_mut(at)) {
                *slot += 1;
            }
        }
    }
    let Some(home) = loads.iter().position(|l| l.cpus.intersects(&cpus)) else {
        return;
    };
    let spans = loads.iter().filter(|l| l.cpus.intersects(&cpus)).count() > 1;
    let seen: Vec<usize> = pool
        .worker_list
        .iter()
        .filter(|w| matches!(w.state, WorkerState::Running | WorkerState::CpuIntensive))
        .filter_map(|w| {
            loads
                .iter()
                .position(|l| w.cpu.is_some_and(|c| l.cpus.contains(c as usize)))
        })
        .collect();
    if spans && seen.len() == pool.running as usize {
        seen.into_iter().for_each(|at| loads[at].running += 1);
    } else {
        loads[home].running += pool.running;
    }
    let home = &mut loads[home];
    home.blocked += pool.blocked;
    home.waiting += pool.worklist;
    home.stalled |= pool.stalled_ns.is_some();
}

/// CPUs as one character each: how many workers run there.
pub(super) fn cells(load: &PodLoad) -> String {
    load.on_cpu
        .iter()
        .map(|n| match n {
            0 => '·',
            1 => '■',
            _ => '▓',
        })
        .collect()
}

/// A bar of `width` characters.
pub(super) fn bar(load: f64, width: usize) -> String {
    let full = ((load * width as f64).round() as usize).min(width);
    "█".repeat(full) + &"░".repeat(width - full)
}

#[cfg(test)]
mod tests {
    use cmwq_control::CpuList;
    use cmwq_control::snapshot::{PodSnapshot, ScopeSnapshot, WorkerSnapshot};

    use super::*;

    fn machine() -> Snapshot {
        let mut s = Snapshot::default();
        s.topology.default_scope = "cache".into();
        let pod = |range, node| PodSnapshot {
            cpus: CpuList::from_cpus(range),
            node: Some(node),
        };
        s.topology.scopes = vec![ScopeSnapshot {
            name: "cache".into(),
            pods: vec![pod(4..8, 1), pod(0..4, 0)],
        }];
        s
    }

    fn worker(cpu: u32) -> WorkerSnapshot {
        WorkerSnapshot {
            state: WorkerState::Running,
            cpu: Some(cpu),
            ..Default::default()
        }
    }

    #[test]
    fn pools_are_drawn_on_their_pods() {
        let mut s = machine();
        s.pools = vec![
            PoolSnapshot {
                pod_cpus: CpuList::from_cpus(4..8),
                running: 2,
                worklist: 9,
                worker_list: vec![worker(5), worker(5)],
                ..Default::default()
            },
            PoolSnapshot {
                kind: PoolKind::PerCpu,
                cpu: Some(1),
                running: 1,
                stalled_ns: Some(1),
                ..Default::default()
            },
        ];
        let pods = pods(&s);
        assert_eq!(
            (pods[0].node, pods[0].running, pods[0].stalled),
            (Some(0), 1, true)
        );
        assert_eq!(
            (pods[1].running, pods[1].waiting, pods[1].load()),
            (2, 9, 0.5)
        );
        assert_eq!(cells(&pods[1]), "·▓··");
    }

    #[test]
    fn a_pool_of_the_whole_system_counts_where_its_workers_are() {
        let mut s = machine();
        s.pools = vec![PoolSnapshot {
            pod_cpus: CpuList::from_cpus(0..8),
            running: 2,
            worker_list: vec![worker(0), worker(6)],
            ..Default::default()
        }];
        assert_eq!(
            pods(&s).iter().map(|p| p.running).collect::<Vec<_>>(),
            [1, 1]
        );
        s.pools[0].worker_list.clear();
        assert_eq!(pods(&s).iter().map(|p| p.running).sum::<u32>(), 2);
    }

    #[test]
    fn odd_snapshots_do_no_harm() {
        assert!(pods(&Snapshot::default()).is_empty());
        let mut s = machine();
        s.pools = vec![PoolSnapshot {
            kind: PoolKind::PerCpu,
            cpu: Some(u32::MAX),
            running: 1,
            ..Default::default()
        }];
        assert_eq!(pods(&s).iter().map(|p| p.running).sum::<u32>(), 0);
        assert_eq!((bar(0.5, 4), bar(9.0, 4)), ("██░░".into(), "████".into()));
    }
}
