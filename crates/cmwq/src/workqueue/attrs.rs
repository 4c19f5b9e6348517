//! Settings that can change while a queue runs.

use super::slot::SlotShared;
use super::table::{self, Table};
use super::{PwqLink, WorkqueueKind, WqInner};
use crate::error::AttrsError;
use crate::pinned::Replaced;
use crate::pool::{PoolKey, run_todo};
use cmwq_policy::limits;
use cmwq_topology::{AffinityScope, CpuSet};
use std::sync::Arc;

/// The attributes of an unbound or ordered workqueue (kernel: `struct workqueue_attrs`).
///
/// The defaults are the kernel's: nice 0, all CPUs, the default scope, not strict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attrs {
    pub(crate) nice: i32,
    pub(crate) cpumask: Option<CpuSet>,
    pub(crate) scope: AffinityScope,
    pub(crate) strict: bool,
    pub(crate) localize: bool,
}

impl Default for Attrs {
    fn default() -> Self {
        Attrs {
            nice: 0,
            cpumask: None,
            scope: AffinityScope::Default,
            strict: false,
            localize: false,
        }
    }
}

impl Attrs {
    /// The defaults.
    pub fn new() -> Attrs {
        Attrs::default()
    }

    /// Nice of the workers, -20..=19. Without privilege a nice below the process's own cannot be had: items of such a queue
    /// are then taken before others by the pod's workers instead.
    pub fn nice(mut self, nice: i32) -> Attrs {
        self.nice = nice;
        self
    }

    /// The CPUs that items may run on. CPUs that the runtime may not use are left out; if none is left, all that the runtime
    /// may use are taken, as in the kernel.
    pub fn cpumask(mut self, mask: CpuSet) -> Attrs {
        self.cpumask = Some(mask);
        self
    }

    /// All CPUs that the runtime may use.
    pub fn any_cpu(mut self) -> Attrs {
        self.cpumask = None;
        self
    }

    /// Which CPUs share a pool.
    pub fn affinity_scope(mut self, scope: AffinityScope) -> Attrs {
        self.scope = scope;
        self
    }

    /// Whether items never leave the pod of their issuer.
    pub fn affinity_strict(mut self, strict: bool) -> Attrs {
        self.strict = strict;
        self
    }

    /// Whether items start on the issuing CPU itself.
    pub fn localize(mut self, localize: bool) -> Attrs {
        self.localize = localize;
        self
    }

    /// Nice of the workers.
    pub fn get_nice(&self) -> i32 {
        self.nice
    }

    /// The mask asked for; none means all CPUs.
    pub fn get_cpumask(&self) -> Option<&CpuSet> {
        self.cpumask.as_ref()
    }

    /// The scope asked for, perhaps [`AffinityScope::Default`].
    pub fn get_affinity_scope(&self) -> AffinityScope {
        self.scope
    }

    /// Whether items never leave the pod of their issuer.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Whether items start on the issuing CPU itself.
    pub fn is_localized(&self) -> bool {
        self.localize
    }

    pub(crate) fn check(&self) -> Result<(), AttrsError> {
        if !(-20..=19).contains(&self.nice) {
            return Err(AttrsError::OutOfRange {
                setting: "nice",
                value: i64::from(self.nice),
                expected: "-20..=19",
            });
        }
        Ok(())
    }
}

/// What [`crate::Workqueue::apply_attrs`] did. New items follow the new attributes from the moment the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttrsChange {
    /// Pwqs that stay as they are because their pool is the same under the new settings.
    pub kept: usize,
    /// Pwqs that take nothing new and are released once their items are done.
    pub retired: usize,
    /// The new attributes cannot be given to the queue's living workers (another nice, another pod): what was queued before is done
    /// by them as they are, item by item, then they leave; new items get other workers. False if the queue had no workers or
    /// they fit as they are.
    pub workers_replaced: bool,
}

/// What a new table left over, to be dealt with once the queue's lock was dropped.
pub(super) struct Retired {
    links: Vec<Arc<PwqLink>>,
    /// Dropped last: their pwqs are released with them.
    _tables: Vec<Replaced<Table>>,
}

impl WqInner {
    /// Applies attributes: all or nothing; see [`super::Workqueue::apply_attrs`].
    pub(crate) fn apply_attrs(self: &Arc<Self>, attrs: Attrs) -> Result<AttrsChange, AttrsError> {
        let done = self.apply_attrs_if(None, attrs)?;
        Ok(done.expect("without a condition it is done"))
    }

    /// None if the attributes are not `only_if` any more.
    fn apply_attrs_if(
        self: &Arc<Self>,
        only_if: Option<&Attrs>,
        attrs: Attrs,
    ) -> Result<Option<AttrsChange>, AttrsError> {
        self.check_attrs(&attrs)?;
        let mut state = self.lock();
        if only_if.is_some_and(|a| *a != state.attrs) {
            return Ok(None);
        }
        if self.is_closed() {
            return Err(AttrsError::Closed {
                wq: self.name().clone(),
            });
        }
        state.attrs = attrs;
        let (change, retired) = self.rebuild(&mut state);
        drop(state);
        self.settle_limits();
        WqInner::retire(retired.links);
        Ok(Some(change))
    }

    /// Changes some attributes and leaves the others as they are at that moment; else as `apply_attrs`.
    pub(crate) fn change_attrs(
        self: &Arc<Self>,
        change: impl Fn(&mut Attrs),
    ) -> Result<AttrsChange, AttrsError> {
        loop {
            let before = self.lock().attrs.clone();
            let mut after = before.clone();
            change(&mut after);
            if let Some(done) = self.apply_attrs_if(Some(&before), after)? {
                return Ok(done);
            }
        }
    }

    pub(crate) fn check_attrs(&self, attrs: &Attrs) -> Result<(), AttrsError> {
        if self.rt.fork.is_stale() {
            return Err(AttrsError::Forked);
        }
        if self.config.kind == WorkqueueKind::PerCpu {
            return Err(AttrsError::WrongKind {
                wq: self.name().clone(),
                setting: "attributes",
                expected: "unbound and ordered workqueues",
            });
        }
        attrs.check()
    }

    /// A new table for the settings and the machine as they are now. Pwqs whose pool is the same are kept; the others are
    /// returned for retiring, to be done without the queue's lock.
    pub(super) fn rebuild(self: &Arc<Self>, state: &mut super::WqState) -> (AttrsChange, Retired) {
        let machine = self.rt.machine.load();
        let new = Table::new(&self.config, &state.attrs, &machine);
        // SAFETY: `state` is locked.
        let old = unsafe { self.table.steady() };
        let mut retired = Vec::new();
        let mut kept = 0;
        for link in old.existing() {
            let same = |k: &PoolKey| *k == link.key && link.localize == state.attrs.localize;
            match new.keys.iter().position(same) {
                Some(i) => {
                    new.set(i, link);
                    kept += 1;
                }
                None => retired.push(Arc::clone(link)),
            }
        }
        let new_keys = new.keys.clone();
        let tables = self.table.store(Arc::new(new));
        let change = AttrsChange {
            kept,
            retired: retired.len(),
            workers_replaced: retired.iter().any(|l| new_keys.iter().all(|k| *k != l.key)),
        };
        (
            change,
            Retired {
                links: retired,
                _tables: tables,
            },
        )
    }

    /// The machine changed (CPUs, masks, the default scope): re-pod if that concerns this queue.
    pub(crate) fn machine_changed(self: &Arc<Self>) {
        let mut state = self.lock();
        if self.is_closed() {
            return;
        }
        let (_, retired) = self.rebuild(&mut state);
        drop(state);
        self.settle_limits();
        WqInner::retire(retired.links);
    }

    /// The node limits that follow from `max_active`, `min_active`, the mask and the machine.
    pub(super) fn node_limits(&self, state: &super::WqState) -> Vec<u32> {
        let machine = self.rt.machine.load();
        // SAFETY: `state` is locked.
        let effective = unsafe { self.table.steady() }.effective.clone();
        let mut limits = limits::node_limits(
            state.max_active,
            state.min_active,
            &table::cpus_per_node(&machine, &effective),
        );
        limits.push(state.max_active);
        limits
    }

    /// Brings slots and per-CPU limits in line with the settings.
    pub(crate) fn settle_limits(self: &Arc<Self>) {
        let state = self.lock();
        let mut todo = Vec::new();
        match self.config.kind {
            WorkqueueKind::Unbound => {
                let limits = self.node_limits(&state);
                let slots: Vec<Arc<SlotShared>> = state.slots.clone();
                for (slot, max) in slots.iter().zip(limits) {
                    if slot.usage().1 != max {
                        slot.set_max(max, &mut todo);
                    }
                }
            }
            WorkqueueKind::PerCpu => {
                let max = state.max_active;
                for link in state.links.clone() {
                    link.pool.step(&mut todo, |p, drv| {
                        if let Some(id) = link.id() {
                            let now = drv.now();
                            p.set_limit(id, max, now, drv);
                        }
                    });
                }
            }
            WorkqueueKind::Ordered => {}
        }
        drop(state);
        run_todo(todo);
    }

    /// See [`super::Workqueue::set_max_active`].
    pub(crate) fn set_max_active(self: &Arc<Self>, n: u32) -> Result<u32, AttrsError> {
        if self.rt.fork.is_stale() {
            return Err(AttrsError::Forked);
        }
        if self.is_ordered() {
            return Err(AttrsError::WrongKind {
                wq: self.name().clone(),
                setting: "max_active",
                expected: "per-CPU and unbound workqueues (an ordered one runs one item at a time)",
            });
        }
        let max = n.clamp(1, limits::MAX_ACTIVE);
        {
            let mut state = self.lock();
            state.max_active = max;
            // It sticks: raising the limit later does not bring it back (kernel rule).
            state.min_active = state.min_active.min(max);
        }
        self.settle_limits();
        Ok(max)
    }

    /// See [`super::Workqueue::set_min_active`].
    pub(crate) fn set_min_active(self: &Arc<Self>, n: u32) -> Result<u32, AttrsError> {
        if self.rt.fork.is_stale() {
            return Err(AttrsError::Forked);
        }
        if self.config.kind != WorkqueueKind::Unbound {
            return Err(AttrsError::WrongKind {
                wq: self.name().clone(),
                setting: "min_active",
                expected: "unbound workqueues",
            });
        }
        let min = {
            let mut state = self.lock();
            state.min_active = n.min(state.max_active);
            state.min_active
        };
        self.settle_limits();
        Ok(min)
    }
}
