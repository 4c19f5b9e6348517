//! What a snapshot shows of a queue without asking its pools.

use super::{WorkqueueKind, WqInner};
use crate::runtime::Machine;
use crate::shim::leaf::OnceLock;
use cmwq_control::CpuList;
use cmwq_control::snapshot::{
    Counters, Detail, NodeLimit, PoolSlot, WorkqueueSnapshot, WqAttrs, WqFlags, WqKind,
};
use cmwq_policy::hist::Histogram;
use cmwq_policy::pool::PwqCounters;
use cmwq_topology::{AffinityScope, CpuSet};
use std::sync::atomic::Ordering;

/// A queue's part of a snapshot, to which its pools add theirs.
pub(crate) struct WqReport {
    pub(crate) shown: WorkqueueSnapshot,
    /// Items that run.
    pub(crate) running: u64,
    pub(crate) counters: PwqCounters,
    pub(crate) wait: Histogram,
    pub(crate) run: Histogram,
    pub(crate) peak_active: u32,
    pub(crate) peak_waiting: u32,
    /// CPU time read before the workers were looked at.
    pub(crate) cpu_time_ns: u64,
}

/// The kind in the words of the control plane.
pub(crate) fn kind_of(kind: WorkqueueKind) -> WqKind {
    match kind {
        WorkqueueKind::PerCpu => WqKind::PerCpu,
        WorkqueueKind::Unbound => WqKind::Unbound,
        WorkqueueKind::Ordered => WqKind::Ordered,
    }
}

impl WqInner {
    /// Takes the queue's lock, and then its slots' one after the other, briefly.
    pub(crate) fn report(&self, detail: Detail, machine: &Machine) -> WqReport {
        let config = &self.config;
        // Ordering: Acquire pairs with the Release of `cpu_time.rs`; see `survey.rs`.
        let cpu_time_ns = self.records.cpu_time.load(Ordering::Acquire);
        let table = self.table.load_full();
        let state = self.lock();
        let released = &state.released;
        let counters = released.counters;
        // Histograms are 3 KiB each: not copied where nobody asked.
        let (wait, run) = match detail.histograms {
            true => (released.wait.clone(), released.run.clone()),
            false => (
                Histogram::default(),
                Histogram {
                    sum: released.run.sum,
                    ..Histogram::default()
                },
            ),
        };
        let (peak_active, peak_waiting) = (released.peak_active, released.peak_waiting);
        let slots = state.slots.clone();
        let attrs = state.attrs.clone();
        let flags = WqFlags {
            freezable: config.freezable,
            mem_reclaim: config.flags.guaranteed,
            highpri: config.highpri,
            cpu_intensive: config.flags.cpu_intensive,
            kernel_mode: config.kernel_mode,
            system: config.system,
            frozen: state.frozen && config.freezable,
            draining: state.drainers > 0,
            destroying: self.is_closed(),
        };
        let (max_active, min_active) = (state.max_active, state.min_active);
        drop(state);

        let possible = machine.topology.possible();
        let scope = match (config.kind, attrs.scope) {
            (WorkqueueKind::PerCpu, _) => AffinityScope::Cpu,
            (WorkqueueKind::Ordered, _) => AffinityScope::System,
            (_, scope) => scope.resolve(machine.default_scope),
        };
        let nodes = slots
            .iter()
            .enumerate()
            .map(|(i, slot)| {
                let (nr, max) = slot.usage();
                NodeLimit {
                    node: machine.nodes.get(i).map(|n| n.0 as u32),
                    nr,
                    max,
                }
            })
            .collect();
        let mut shown = WorkqueueSnapshot {
            id: self.records.id,
            name: config.name.to_string(),
            kind: kind_of(config.kind),
            flags,
            attrs: WqAttrs {
                nice: attrs.nice,
                cpumask: CpuList::from(attrs.cpumask.as_ref().unwrap_or(possible)),
                effective_cpumask: CpuList::from(&table.effective),
                affinity_scope: attrs.scope.name().into(),
                effective_scope: scope.name().into(),
                affinity_strict: attrs.strict || config.kind == WorkqueueKind::PerCpu,
                localize: attrs.localize,
            },
            max_active,
            min_active: if config.kind == WorkqueueKind::Unbound {
                min_active
            } else {
                0
            },
            max_pending: (config.max_pending > 0).then_some(config.max_pending as u64),
            nodes,
            delayed: self.records.delayed(),
            ..WorkqueueSnapshot::default()
        };
        if detail.topology {
            shown.cpu_pool = self.cpu_pools(machine);
        }
        WqReport {
            shown,
            running: 0,
            counters,
            wait,
            run,
            peak_active,
            peak_waiting,
            cpu_time_ns,
        }
    }

    /// Which pool serves which CPUs, pools that exist first by their first CPU. O(CPUs).
    fn cpu_pools(&self, machine: &Machine) -> Vec<PoolSlot> {
        let table = self.table.load_full();
        if table.links.is_empty() {
            return Vec::new();
        }
        let mut cpus = vec![CpuSet::new(); table.links.len()];
        // CPUs outside the global mask take turns: no pool is theirs.
        let served = match self.config.kind {
            WorkqueueKind::PerCpu => machine.topology.possible().clone(),
            _ => machine.global.intersection(machine.topology.possible()),
        };
        for cpu in &served {
            if let Some(i) = table.index(cpu) {
                cpus[i].insert(cpu);
            }
        }
        let mut slots: Vec<(usize, PoolSlot)> = cpus
            .iter()
            .zip(table.links.iter().map(OnceLock::get))
            .filter_map(|(cpus, link)| {
                let slot = PoolSlot {
                    cpus: CpuList::from(cpus),
                    pool: link.map(|l| l.pool.id),
                };
                cpus.first().map(|first| (first, slot))
            })
            .collect();
        slots.sort_by_key(|s| s.0);
        slots.into_iter().map(|s| s.1).collect()
    }

    /// The counters that the control plane shows.
    pub(crate) fn shown_counters(&self, c: &PwqCounters, run_time_ns: u64) -> Counters {
        Counters {
            queued: c.queued,
            started: c.started,
            completed: c.completed,
            cancelled: c.cancelled,
            panicked: self.panicked.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            already_pending: self.records.already_pending(),
            run_time_ns,
            cpu_local: c.cpu_local,
            cpu_intensive: c.cpu_intensive,
            cm_wakeup: c.cm_wakeup,
            repatriated: c.repatriated,
            mayday: c.mayday,
            rescued: c.rescued,
            helped: c.helped,
            hedged: c.hedged,
            widened: self.records.widened(),
            inline_run: c.inlined,
            throttled: c.throttled,
            fairness_extra: c.fairness,
            ..Counters::default()
        }
    }

    /// The rescuer's thread, if there is one that has begun.
    pub(crate) fn rescuer_tid(&self) -> Option<i32> {
        self.rescuer.get().map(|r| r.tid()).filter(|tid| *tid != 0)
    }
}
