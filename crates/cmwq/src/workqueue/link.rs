//! Pwqs of the runtime: making, retiring and releasing them.

use super::slot::SlotShared;
use super::table::{self, Table};
use super::{WorkqueueKind, WqInner, WqState};
use crate::error::QueueError;
use crate::pool::{PoolKey, RtPool, Todo, run_todo};
use cmwq_policy::help::FAR_HEDGES;
use cmwq_policy::pool::{PwqConfig, PwqFlags, PwqId, PwqTag};
use cmwq_topology::Distance;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

const UNLINKED: u32 = u32::MAX;

/// The link of one workqueue and one pool. Its changing state lies in the pool's policy.
pub(crate) struct PwqLink {
    pub(crate) wq: Arc<WqInner>,
    pub(crate) pool: &'static RtPool,
    pub(crate) key: PoolKey,
    pub(crate) slot: Option<Arc<SlotShared>>,
    /// Its items start on the issuing CPU and are never helped.
    pub(crate) localize: bool,
    /// The policy's id; written with the pool's lock held.
    id: AtomicU32,
    /// The queue drains: nothing goes through the submission lane. Written with the pool's lock held.
    draining: AtomicBool,
    /// How many tables name this pwq: issuers may be on their way to it as long as there are any.
    pub(super) tables: AtomicUsize,
}

impl PwqLink {
    /// The name under which the policy knows it: its address.
    #[inline]
    pub(crate) fn tag(&self) -> PwqTag {
        std::ptr::from_ref(self).addr() as PwqTag
    }

    /// Whether the queue drains.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// It is not linked any more. With the pool's lock held.
    pub(crate) fn unlinked(&self) {
        self.id.store(UNLINKED, Ordering::Relaxed);
    }

    /// Notes that the queue drains, or does not any more. With the pool's lock held.
    pub(super) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    /// The policy's id, if it is linked. With the pool's lock held.
    #[inline]
    pub(crate) fn id(&self) -> Option<PwqId> {
        let id = self.id.load(Ordering::Relaxed);
        (id != UNLINKED).then_some(id)
    }
}

impl WqInner {
    /// The pwq of index `i` of `table`, made if it does not exist yet. None if the table was replaced meanwhile.
    pub(super) fn make_link(
        self: &Arc<Self>,
        table: &Table,
        i: usize,
    ) -> Result<Option<Arc<PwqLink>>, QueueError> {
        let mut state = self.lock();
        if !self.table.is(table) {
            return Ok(None);
        }
        if self.is_closed() {
            return Err(QueueError::Closed {
                wq: self.name().clone(),
            });
        }
        if let Some(link) = table.links[i].get() {
            return Ok(Some(Arc::clone(link)));
        }
        let mut todo = Vec::new();
        let link = self.link(&mut state, &table.keys[i], &mut todo)?;
        // Only made under the queue's lock, so this is the first.
        table.set(i, &link);
        drop(state);
        run_todo(todo);
        Ok(Some(link))
    }

    fn link(
        self: &Arc<Self>,
        state: &mut WqState,
        key: &PoolKey,
        todo: &mut Vec<Todo>,
    ) -> Result<Arc<PwqLink>, QueueError> {
        let pool = self.rt.acquire_pool(key, todo)?;
        let leased = self.config.kind == WorkqueueKind::Unbound;
        let slot = leased.then(|| {
            let machine = self.rt.machine.load();
            Arc::clone(&state.slots[table::slot_index(&machine, &key.pod())])
        });
        let limit = match self.config.kind {
            WorkqueueKind::Unbound => 0,
            WorkqueueKind::PerCpu => state.max_active,
            // Plugged until every older pwq has been released.
            WorkqueueKind::Ordered => u32::from(state.links.is_empty()),
        };
        let link = Arc::new(PwqLink {
            wq: Arc::clone(self),
            pool,
            key: key.clone(),
            slot,
            localize: state.attrs.localize,
            id: AtomicU32::new(UNLINKED),
            draining: AtomicBool::new(state.drainers > 0),
            tables: AtomicUsize::new(0),
        });
        if let Some(slot) = &link.slot {
            slot.join(&link);
        }
        pool.inspect(|inner| {
            let id = inner.policy.link_pwq(PwqConfig {
                tag: link.tag(),
                limit,
                leased,
                colour: state.flush.colour(),
                flags: PwqFlags {
                    helpable: self.config.flags.helpable && !state.attrs.localize,
                    ..self.config.flags
                },
                draining: state.drainers > 0,
                frozen: state.frozen,
            });
            let i = id as usize;
            if inner.links.len() <= i {
                inner.links.resize_with(i + 1, || None);
            }
            inner.links[i] = Some(Arc::clone(&link));
            link.id.store(id, Ordering::Relaxed);
        });
        state.links.push(Arc::clone(&link));
        Ok(link)
    }

    /// Items of this pwq have waited too long in their pod: the nearest pool with a CPU to spare sends a worker, or a pool is
    /// made for the nearest pod that has none yet. An offer that nobody can take is no error: it is made again later.
    pub(crate) fn call_helper(
        self: &Arc<Self>,
        link: &Arc<PwqLink>,
        wait_ns: u64,
        todo: &mut Vec<Todo>,
    ) {
        let hedge = self.rt.wakes.hedge_ns();
        // It may be offered because it will be overdue.
        let age = wait_ns.max(hedge);
        let far = age >= hedge.saturating_mul(FAR_HEDGES);
        let now = self.rt.time.now();
        let near = link.pool.outward.whom_to_offer(hedge, age, now);
        let target = match near {
            Some((pool, this_use, false)) => Some((pool, this_use, false)),
            // A pod of this node without a pool comes before another node's.
            found => self
                .open_up(link, far)
                .map(|(l, far)| (l.pool, l.pool.outward.this_use(), far))
                .or(found),
        };
        let Some((pool, this_use, far)) = target else {
            link.pool.inspect(|inner| inner.policy.nobody_to_call());
            return;
        };
        let home = link.pool.outward.this_use();
        pool.step(todo, |p, drv| {
            if pool.outward.this_use() == this_use {
                // Who comes looks into the caller's pool first, which may not be among those near to its own.
                pool.outward.called_by(link.pool.id, home, far);
                let now = drv.now();
                p.call_helper(now, drv);
            }
        });
    }

    /// Makes the pwq, and so the pool, of the nearest pod that this queue has not used yet; whether that is on another node.
    fn open_up(self: &Arc<Self>, link: &PwqLink, far: bool) -> Option<(Arc<PwqLink>, bool)> {
        let table = self.table.load_full();
        let machine = self.rt.machine.load();
        let home = link.key.pod();
        let at = home.first()?;
        let distances = machine.distances();
        let (d, i) = (0..table.keys.len())
            .filter(|&i| table.links[i].get().is_none())
            .filter_map(|i| {
                let pod = table.keys[i].pod();
                let usable = pod.is_disjoint(&home) && pod.intersects(&machine.usable);
                let d = distances.between(at, pod.first()?)?;
                (usable && (far || d <= Distance::NODE)).then_some((d, i))
            })
            .min()?;
        let link = self.make_link(&table, i).ok().flatten()?;
        Some((link, d > Distance::NODE))
    }

    /// The pwqs of an old table that the new one does not use are retired: they take nothing new and are released once empty.
    pub(super) fn retire(links: Vec<Arc<PwqLink>>) {
        for link in links {
            link.pool.with(|p, drv| {
                if let Some(id) = link.id() {
                    p.retire_pwq(id, drv);
                }
            });
        }
    }

    /// A retiring pwq is empty: release it.
    pub(crate) fn release_link(self: &Arc<Self>, link: &Arc<PwqLink>, todo: &mut Vec<Todo>) {
        let mut state = self.lock();
        // Ordering: Acquire pairs with the AcqRel of the table's drop: an issuer's push happened before its table went.
        // As long as a table names it, issuers may be on their way to it; the last one's end calls this again.
        if link.tables.load(Ordering::Acquire) > 0 {
            return;
        }
        // A self-requeueing item may have come back meanwhile; then this is called again later.
        let pwq = link.pool.unlink_if_empty(link, todo);
        let Some(pwq) = pwq else { return };
        state.released.add(&pwq);
        state.links.retain(|l| !Arc::ptr_eq(l, link));
        if let Some(slot) = &link.slot {
            slot.leave(link, pwq.limit(), todo);
        }
        if self.is_ordered()
            && let Some(oldest) = state.links.first()
        {
            let oldest = Arc::clone(oldest);
            oldest.pool.step(todo, |p, drv| {
                if let Some(id) = oldest.id() {
                    let now = drv.now();
                    p.set_limit(id, 1, now, drv);
                }
            });
        }
        let gone = if state.links.is_empty() && self.is_closed() {
            std::mem::take(&mut state.gone)
        } else {
            Vec::new()
        };
        let last = state.links.is_empty() && self.is_closed();
        drop(state);
        self.rt.release_pool(link.pool);
        if last {
            self.rt.forget_wq(self);
        }
        for waiter in gone {
            waiter.complete();
        }
    }
}
