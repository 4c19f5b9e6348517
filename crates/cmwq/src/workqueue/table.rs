//! Which pool each CPU of a queue leads to. Read at every queueing, swapped as a whole when settings change.

use super::{Attrs, PwqLink, WorkqueueKind, WqConfig};
use crate::pool::PoolKey;
use crate::runtime::Machine;
use crate::shim::leaf::OnceLock;
use cmwq_topology::masks::{self, PoolMap};
use cmwq_topology::{AffinityScope, CpuSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Per CPU: index into `links`. Made once per settings; the pwqs in it are made when a CPU first uses them.
pub(crate) struct Table {
    slots: Vec<u32>,
    /// Where CPUs outside the global mask go in turn (unbound queues).
    others: Vec<u32>,
    cursor: AtomicUsize,
    pub(super) keys: Vec<PoolKey>,
    pub(super) links: Vec<OnceLock<Arc<PwqLink>>>,
    pub(super) effective: CpuSet,
}

/// In `slots`: the CPU is outside the global mask.
const OUTSIDE: u32 = u32::MAX;

impl Table {
    /// The table of a queue with these settings on this machine.
    pub(super) fn new(config: &WqConfig, attrs: &Attrs, machine: &Machine) -> Table {
        match config.kind {
            WorkqueueKind::PerCpu => Table::per_cpu(config, attrs, machine),
            WorkqueueKind::Unbound | WorkqueueKind::Ordered => {
                Table::unbound(config, attrs, machine)
            }
        }
    }

    /// The table of a closed queue: it leads nowhere.
    pub(super) fn closed() -> Table {
        Table {
            slots: Vec::new(),
            others: Vec::new(),
            cursor: AtomicUsize::new(0),
            keys: Vec::new(),
            links: Vec::new(),
            effective: CpuSet::new(),
        }
    }

    fn per_cpu(config: &WqConfig, attrs: &Attrs, machine: &Machine) -> Table {
        let nice = if config.highpri {
            HIGHPRI_NICE
        } else {
            attrs.nice
        };
        let possible = machine.topology.possible();
        let end = possible.last().map_or(1, |c| c + 1);
        let mut slots = vec![0; end];
        let mut keys = Vec::new();
        for cpu in possible {
            slots[cpu] = keys.len() as u32;
            keys.push(PoolKey::PerCpu { cpu, nice });
        }
        Table::with(slots, Vec::new(), keys, possible.clone())
    }

    fn unbound(config: &WqConfig, attrs: &Attrs, machine: &Machine) -> Table {
        let wq_mask = attrs
            .cpumask
            .as_ref()
            .unwrap_or(machine.topology.possible());
        let nice = if config.highpri && attrs.nice == 0 {
            HIGHPRI_NICE
        } else {
            attrs.nice
        };
        let map = if config.kind == WorkqueueKind::Ordered {
            PoolMap::ordered(wq_mask, &machine.global)
        } else {
            let scope = match attrs.scope {
                // An item starts on the issuing CPU itself, wherever it may go from there.
                _ if attrs.localize => AffinityScope::Cpu,
                AffinityScope::Default => machine.default_scope,
                s => s,
            };
            PoolMap::new(
                &machine.pods(scope),
                wq_mask,
                &machine.global,
                &machine.usable,
            )
        };
        let key = |pod: &CpuSet| PoolKey::Unbound {
            nice,
            strict: attrs.strict,
            pod: pod.clone(),
            mask: (!attrs.strict).then(|| map.effective().clone()),
            managed: config.managed,
        };
        let keys: Vec<PoolKey> = map.masks().iter().map(key).collect();
        let end = machine.topology.possible().last().map_or(1, |c| c + 1);
        let slots = (0..end)
            .map(|cpu| {
                if machine.global.contains(cpu) {
                    map.slot(cpu) as u32
                } else {
                    OUTSIDE
                }
            })
            .collect();
        let mut others: Vec<u32> = machine
            .global
            .intersection(&machine.usable)
            .iter()
            .map(|cpu| map.slot(cpu) as u32)
            .collect();
        if others.is_empty() {
            others.push(0);
        }
        Table::with(slots, others, keys, map.effective().clone())
    }

    fn with(slots: Vec<u32>, others: Vec<u32>, keys: Vec<PoolKey>, effective: CpuSet) -> Table {
        let links = keys.iter().map(|_| OnceLock::new()).collect();
        Table {
            slots,
            others,
            cursor: AtomicUsize::new(0),
            keys,
            links,
            effective,
        }
    }

    /// The index for items issued on `cpu`; none if the table is that of a closed queue.
    #[inline]
    pub(super) fn index(&self, cpu: usize) -> Option<usize> {
        match self.slots.get(cpu) {
            Some(&OUTSIDE) | None => {
                if self.links.is_empty() {
                    return None;
                }
                if self.others.is_empty() {
                    return Some(0);
                }
                let i = self.cursor.fetch_add(1, Ordering::Relaxed);
                Some(self.others[i % self.others.len()] as usize)
            }
            Some(&slot) => Some(slot as usize),
        }
    }

    /// Puts a pwq that was made, or is kept from an older table, in its place.
    pub(super) fn set(&self, i: usize, link: &Arc<PwqLink>) {
        if self.links[i].set(Arc::clone(link)).is_ok() {
            link.tables.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The links that exist.
    pub(super) fn existing(&self) -> impl Iterator<Item = &Arc<PwqLink>> {
        self.links.iter().filter_map(OnceLock::get)
    }
}

/// Nice of highpri pools (kernel: HIGHPRI_NICE_LEVEL, the lowest nice).
pub(crate) const HIGHPRI_NICE: i32 = -20;

/// The index of the active-limit slot for a pool with this pod: its node's, or the last one.
pub(super) fn slot_index(machine: &Machine, pod: &CpuSet) -> usize {
    match masks::node_of_mask(pod, &machine.pods(AffinityScope::Numa)) {
        Some(node) => machine.node_index(node),
        None => machine.nodes.len(),
    }
}

/// CPUs per node that a queue with this effective mask may use now.
pub(super) fn cpus_per_node(machine: &Machine, effective: &CpuSet) -> Vec<u32> {
    let usable = effective.intersection(&machine.usable);
    machine
        .nodes
        .iter()
        .map(|n| n.1.intersection_len(&usable) as u32)
        .collect()
}

impl Drop for Table {
    /// The last issuer that could be on its way to the pwqs of this table has left. Those that no newer table names can be
    /// released. Takes pools' and queues' locks: a table must not be dropped with one of them held.
    fn drop(&mut self) {
        for link in self.links.iter_mut().filter_map(OnceLock::take) {
            // Ordering: AcqRel: all issuers' pushes happen before the release, see `WqInner::release_link`.
            if link.tables.fetch_sub(1, Ordering::AcqRel) == 1 {
                link.pool.with(|p, drv| {
                    if let Some(id) = link.id() {
                        p.retire_pwq(id, drv);
                    }
                });
            }
        }
    }
}
