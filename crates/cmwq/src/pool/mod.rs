//! A worker pool of the runtime: the policy's state under a lock, its threads, and the table that finds pools by number.
//!
//! | file | what |
//! |---|---|
//! | `effects.rs` | carries out what the policy asks for, after the lock was dropped |
//! | `batch.rs` | the word through which a worker claims the items of its batch |
//! | `lane.rs`, `submissions.rs` | how items get in without the lock while every worker is busy |
//! | `registry.rs` | pools by number |
//! | `worker.rs` | the worker thread |
//! | `outward.rs` | what other pods see of the pool, and which pools are near |
//! | `helper.rs` | a worker that helps in another pod's pool |
//! | `spawner.rs` | the thread that makes worker threads |

mod batch;
mod company;
mod effects;
mod helper;
mod lane;
mod outward;
pub(crate) mod registry;
mod spawner;
mod submissions;
pub(crate) mod worker;

pub(crate) use batch::BatchMark;
pub(crate) use effects::{Driver, Todo, run_todo};
use lane::{Lane, Reach};
pub(crate) use outward::Near;
use outward::Outward;
pub(crate) use registry::{pool_by_id, unused_pool};
pub(crate) use spawner::{Spawner, ever_failed};
pub(crate) use worker::WorkerShared;

use crate::completion::Completion;
use crate::detect::{PoolWatch, Watched};
use crate::item::ItemPtr;
use crate::runtime::{RtInner, TimeSource};
use crate::shim::MutexGuard;
use crate::workqueue::PwqLink;
use cmwq_policy::pool::{DeathReason, Pool, PoolConfig, PoolKind, Pwq, PwqTag, Time, WorkerId};
use cmwq_topology::CpuSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The policy's pool, as the runtime drives it.
pub(crate) type Policy = Pool<ItemPtr, Arc<Completion>>;

/// What makes two requests for a pool the same pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PoolKey {
    /// One CPU's pool.
    PerCpu {
        /// The CPU.
        cpu: usize,
        /// Nice of its workers.
        nice: i32,
    },
    /// A pod's pool (kernel: nice + strict + pod mask + cpumask unless strict).
    Unbound {
        /// Nice of its workers.
        nice: i32,
        /// Whether workers may never leave the pod.
        strict: bool,
        /// Where its workers start.
        pod: CpuSet,
        /// The whole mask of its queues; none if strict.
        mask: Option<CpuSet>,
        /// Whether concurrency is managed.
        managed: bool,
    },
}

impl PoolKey {
    /// The CPUs of the pod.
    pub(crate) fn pod(&self) -> CpuSet {
        match self {
            PoolKey::PerCpu { cpu, .. } => CpuSet::of(*cpu),
            PoolKey::Unbound { pod, .. } => pod.clone(),
        }
    }

    /// Nice of the workers.
    pub(crate) fn nice(&self) -> i32 {
        match self {
            PoolKey::PerCpu { nice, .. } | PoolKey::Unbound { nice, .. } => *nice,
        }
    }

    /// Whether workers of other pods may run its items and its own may run theirs: a pod that is a part of its queues' mask,
    /// managed, not strict.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, PoolKey::Unbound { strict: false, managed: true, pod, mask: Some(mask), .. } if pod != mask)
    }

    /// Whether workers may roam the whole mask and are brought home when they are woken, as in the kernel.
    pub(crate) fn is_roaming(&self) -> bool {
        matches!(self, PoolKey::Unbound { strict: false, managed: false, pod, mask: Some(mask), .. } if pod != mask)
    }
}

/// A pool. Its memory is never given back, only used again for another pool, so a reference never dangles: an item's word
/// may name a pool long after the item left it.
#[repr(align(128))]
pub(crate) struct RtPool {
    pub(crate) id: u32,
    pub(crate) outward: Outward,
    /// What sentinels read.
    pub(crate) watch: PoolWatch,
    /// The fork stamp of the runtime that uses it; 0 before its first use.
    made_in: AtomicU32,
    lane: Lane,
    inner: crate::shim::Mutex<Inner>,
}

/// The pwqs linked in a pool, by the policy's id.
type Links = Vec<Option<Arc<PwqLink>>>;

/// What the pool's lock guards.
pub(crate) struct Inner {
    pub(crate) policy: Policy,
    /// The lane's side of the lock's holder.
    submissions: submissions::Blocks,
    pub(crate) workers: Vec<Option<Arc<WorkerShared>>>,
    /// The pwqs linked here, by the policy's id; keeps them alive.
    pub(crate) links: Links,
    pub(crate) key: Option<PoolKey>,
    pub(crate) rt: Option<Arc<RtInner>>,
    pub(crate) time: TimeSource,
    /// How many pools the runtime had made before.
    pub(crate) serial: u64,
    /// Workers that came, by `BirthReason`, and went, by `DeathReason`.
    pub(crate) births: [u64; 7],
    pub(crate) deaths: [u64; 4],
    /// How many pwqs use the pool; guarded by the runtime's pool table, not by this lock.
    pub(crate) users: usize,
    /// Who looks after the pool.
    pub(crate) watched: Watched,
    /// Other pods' workers may run its items: the outlook is published.
    open: bool,
    /// Workers roam and are brought home to this pod when they are woken.
    home: Option<Box<CpuSet>>,
}

impl Inner {
    /// The worker's record is found under this id.
    pub(crate) fn seat(&mut self, id: WorkerId, shared: &Arc<WorkerShared>) {
        let i = id as usize;
        if self.workers.len() <= i {
            self.workers.resize_with(i + 1, || None);
        }
        self.workers[i] = Some(Arc::clone(shared));
    }

    /// The worker has left. False if the policy has given its id to another one already, or the pool is over.
    pub(crate) fn unseat(&mut self, id: WorkerId, shared: &Arc<WorkerShared>) -> bool {
        match self.workers.get_mut(id as usize) {
            Some(seat) if seat.as_ref().is_some_and(|w| Arc::ptr_eq(w, shared)) => {
                *seat = None;
                true
            }
            _ => false,
        }
    }
}

impl RtPool {
    fn new(id: u32) -> RtPool {
        let (lane, submissions) = Lane::new();
        RtPool {
            id,
            outward: Outward::new(),
            watch: PoolWatch::new(),
            made_in: AtomicU32::new(0),
            lane,
            inner: crate::shim::Mutex::new(Inner {
                policy: Pool::new(PoolConfig::default()),
                submissions,
                workers: Vec::new(),
                links: Vec::new(),
                key: None,
                rt: None,
                time: TimeSource::Real,
                serial: 0,
                births: [0; 7],
                deaths: [0; 4],
                users: 0,
                open: false,
                home: None,
                watched: Watched::default(),
            }),
        }
    }

    /// Runs one step under the lock and then carries out what came of it. Takes the pool's lock and, afterwards, perhaps
    /// other pools', slots' and queues' locks, one at a time: call it with none of them held.
    #[inline]
    pub(crate) fn with<R>(
        &'static self,
        step: impl FnOnce(&mut Policy, &mut Driver<'_>) -> R,
    ) -> R {
        self.with_locked(self.inner.lock_busily(), Reach::All, step)
    }

    /// [`Self::with`] for the tick: of a deep submission lane only a part is linked.
    #[inline]
    pub(crate) fn with_tick<R>(
        &'static self,
        step: impl FnOnce(&mut Policy, &mut Driver<'_>) -> R,
    ) -> R {
        self.with_locked(self.inner.lock_busily(), Reach::Tick, step)
    }

    #[inline]
    fn with_locked<R>(
        &'static self,
        guard: MutexGuard<'_, Inner>,
        reach: Reach,
        step: impl FnOnce(&mut Policy, &mut Driver<'_>) -> R,
    ) -> R {
        let mut todo = Vec::new();
        let r = self.step_locked(guard, reach, &mut todo, |p, _, drv| step(p, drv));
        if !todo.is_empty() {
            run_todo(todo);
        }
        r
    }

    /// Runs one step under the lock; what concerns this pool is carried out, what concerns other locks is appended to `todo`.
    #[inline]
    pub(crate) fn step<R>(
        &'static self,
        todo: &mut Vec<Todo>,
        step: impl FnOnce(&mut Policy, &mut Driver<'_>) -> R,
    ) -> R {
        self.step_locked(self.inner.lock_busily(), Reach::All, todo, |p, _, drv| {
            step(p, drv)
        })
    }

    /// [`Self::step`] of a worker that comes for items: of a deep submission lane only what it may take is linked.
    #[inline]
    pub(crate) fn step_for_items<R>(
        &'static self,
        todo: &mut Vec<Todo>,
        step: impl FnOnce(&mut Policy, &mut Driver<'_>) -> R,
    ) -> R {
        self.step_locked(self.inner.lock_busily(), Reach::Lot, todo, |p, _, drv| {
            step(p, drv)
        })
    }

    /// Links what lies in a deep submission lane in parts, the lock let go in between: before a look that wants to see all of
    /// it. O(items in the lane).
    pub(crate) fn link_in_parts(&'static self) {
        let parts = {
            let inner = self.inner.lock();
            self.lane.ticks(&inner.submissions)
        };
        for _ in 0..parts {
            self.with_tick(|_, _| ());
        }
    }

    /// One hold of the lock: absorb the lane, the step, publish, note what was asked for; then, without the lock, carry it out.
    #[inline]
    fn step_locked<R>(
        &'static self,
        mut guard: MutexGuard<'_, Inner>,
        reach: Reach,
        todo: &mut Vec<Todo>,
        step: impl FnOnce(&mut Policy, &mut Links, &mut Driver<'_>) -> R,
    ) -> R {
        let inner = &mut *guard;
        let mut drv = Driver::new(&inner.workers, &inner.time, inner.home.as_deref(), todo);
        let (policy, blocks) = (&mut inner.policy, &mut inner.submissions);
        self.lane.absorb(self.id, reach, blocks, policy, &mut drv);
        let r = step(policy, &mut inner.links, &mut drv);
        self.lane.publish(self.id, blocks, policy, &mut drv);
        if inner.open {
            look_outward(
                &self.outward,
                &mut inner.policy,
                inner.rt.as_deref(),
                &mut drv,
            );
        }
        let effects = drv.into_effects();
        let notice = inner
            .watched
            .observe(&inner.policy, &inner.workers, &self.watch);
        let rt = (effects.needs_runtime() || notice.needs_runtime())
            .then(|| inner.rt.clone())
            .flatten();
        drop(guard);
        effects.carry_out(self, rt.as_ref());
        notice.carry_out(self, rt.as_ref());
        r
    }

    /// Unlinks a retiring pwq that no table names any more, if it is empty with the submission lane absorbed.
    pub(crate) fn unlink_if_empty(
        &'static self,
        link: &PwqLink,
        todo: &mut Vec<Todo>,
    ) -> Option<Pwq> {
        let guard = self.inner.lock_busily();
        self.step_locked(guard, Reach::All, todo, |policy, links, _| {
            let id = link
                .id()
                .filter(|&id| policy.pwq(id).is_empty() && !policy.pwq(id).is_asking())?;
            link.unlinked();
            links[id as usize] = None;
            Some(policy.unlink_pwq(id))
        })
    }

    /// Under the lock it is decided now whether one more worker has to be started.
    #[inline]
    pub(crate) fn visited(&self, now: Time) {
        self.lane.visited(now);
    }

    /// Takes the lock once, so that what lies in the submission lane is linked.
    pub(crate) fn absorb(&'static self) {
        self.with(|_, _| ());
    }

    /// Hands an item in without the lock; see `lane.rs`. False if the lane is closed: then nothing was done.
    ///
    /// # Safety
    /// The caller owns the item, which is a one-shot one, and `link` is a pwq of this pool that stays linked during the call.
    #[inline]
    pub(crate) unsafe fn submit(
        &'static self,
        item: ItemPtr,
        link: &PwqLink,
        issuer_cpu: u32,
        now: Time,
    ) -> bool {
        // One block is left full by others, the next one is ours to use in all but the worst of luck.
        for _ in 0..2 {
            // SAFETY: passed on to the caller; `Full` says that the item is still its own.
            match unsafe { self.lane.submit(self.id, item, link, issuer_cpu, now) } {
                lane::Submitted::Closed => return false,
                lane::Submitted::Done => return true,
                lane::Submitted::LookAfterIt => {
                    self.absorb();
                    return true;
                }
                lane::Submitted::Decide => {
                    // Whoever holds the lock now decides as well, or the next issuer, or the tick.
                    if let Some(guard) = self.inner.try_lock() {
                        self.decide(guard, now);
                    }
                    return true;
                }
                lane::Submitted::Full => self.decide(self.inner.lock_busily(), now),
            }
        }
        false
    }

    /// Whether one more worker has to be started, and room in the lane.
    #[cold]
    fn decide(&'static self, guard: MutexGuard<'_, Inner>, now: Time) {
        self.with_locked(guard, Reach::Lot, |p, drv| {
            self.visited(now);
            p.kick(now, drv);
        });
    }

    /// Items wait while a tick comes by: no worker is kept on one CPU any longer.
    pub(crate) fn part_company(&self) {
        let kept: Vec<_> = self.inspect(|inner| {
            let workers = inner.workers.iter().flatten();
            workers
                .filter(|w| w.company.with().is_some())
                .map(Arc::clone)
                .collect()
        });
        for w in kept {
            // Its thread stays as long as this is held.
            let _held = w.evidence.hold();
            w.leave_company();
        }
    }

    /// Looks at or changes what the lock guards, without asking the policy anything that has effects.
    pub(crate) fn inspect<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// One of the pool's own workers has left: forget what others may touch of it, and count it out. Says why it left.
    ///
    /// Since the worker left, the policy may have given its id to another one, and the pool may have been torn down, even set
    /// up for another use.
    pub(crate) fn forget_worker(&self, id: WorkerId, shared: &Arc<WorkerShared>) -> DeathReason {
        self.inspect(|inner| {
            if inner.unseat(id, shared) {
                let why = if inner.policy.is_closing() {
                    DeathReason::Shutdown
                } else {
                    DeathReason::Culled
                };
                inner.deaths[why as usize] += 1;
                return why;
            }
            match inner.workers.get(id as usize) {
                // Another one has the id: the pool goes on.
                Some(Some(_)) => DeathReason::Culled,
                _ => DeathReason::Shutdown,
            }
        })
    }

    /// The key, if the pool is in use.
    pub(crate) fn key_hint(&self) -> Option<PoolKey> {
        self.inspect(|inner| inner.key.clone())
    }

    /// Whether it belongs to a runtime that was left behind by a fork: its lock may be held for ever.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        let made_in = self.made_in.load(Ordering::Relaxed);
        made_in != 0 && !crate::sys::fork::is_from_here(made_in)
    }

    /// One user less; without any, the pool ends: its workers leave once nothing is queued. The key, if that was the last one.
    /// The caller holds the runtime's pool table.
    pub(crate) fn release(&'static self) -> Option<PoolKey> {
        let mut todo = Vec::new();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.users -= 1;
        if inner.users > 0 {
            return None;
        }
        let mut drv = Driver::new(
            &inner.workers,
            &inner.time,
            inner.home.as_deref(),
            &mut todo,
        );
        inner.policy.close(&mut drv);
        let effects = drv.into_effects();
        let key = inner.key.clone();
        drop(guard);
        // Idle workers are told to leave, nothing else can come of it.
        debug_assert!(todo.is_empty());
        effects.carry_out(self, None);
        key
    }

    /// Prepares a free pool for new use, by one user: a late [`try_tear_down`](Self::try_tear_down) meant for its former life
    /// finds it in use.
    pub(crate) fn set_up(&self, rt: &Arc<RtInner>, key: PoolKey, config: PoolConfig) {
        self.made_in.store(rt.fork.value(), Ordering::Relaxed);
        let cores = rt.machine.load().cores();
        self.inspect(|inner| {
            debug_assert!(inner.key.is_none() && inner.policy.entries() == 0);
            inner.policy = Pool::new(config);
            inner.policy.set_cores(cores);
            inner.workers.clear();
            inner.links.clear();
            inner.open = key.is_open() && rt.manual.is_none();
            inner.home = key.is_roaming().then(|| Box::new(key.pod()));
            inner.key = Some(key);
            self.outward.next_use();
            inner.time = rt.time.clone();
            inner.rt = Some(Arc::clone(rt));
            inner.serial = rt.pools_made.fetch_add(1, Ordering::Relaxed);
            inner.births = [0; 7];
            inner.deaths = [0; 4];
            inner.users = 1;
            inner.watched = Watched::default();
        });
    }

    /// Frees the pool if nothing and nobody is left in it and no pwq uses it. May come at any time, and late.
    pub(crate) fn try_tear_down(&self) -> bool {
        let rt = self.inspect(|inner| {
            let done = inner.users == 0
                && inner.key.is_some()
                && inner.policy.workers().next().is_none()
                && inner.policy.counts().creating == 0;
            if !done {
                return None;
            }
            inner.key = None;
            inner.open = false;
            inner.home = None;
            self.outward.next_use();
            inner.links = Vec::new();
            inner.workers = Vec::new();
            inner.policy = Pool::new(PoolConfig::default());
            inner.rt.take()
        });
        if rt.is_none() {
            return false;
        }
        registry::give_back(self);
        true
    }
}

/// At the end of a hold of an open pool's lock: publishes what other pods may see, and offers what has waited too long.
#[inline]
fn look_outward(
    outward: &Outward,
    policy: &mut Policy,
    rt: Option<&RtInner>,
    drv: &mut Driver<'_>,
) {
    let oldest = outward.publish(policy);
    let now = drv.last_stamp();
    if oldest == 0 || now <= oldest {
        return;
    }
    let Some(rt) = rt else { return };
    let hedge = match policy.counts().waking {
        0 => rt.wakes.hedge_ns(),
        _ => rt.wakes.patience_ns(),
    };
    if policy.is_overdue(hedge, now)
        && let Some(offer) = policy.offer(hedge, now)
    {
        drv.offer(offer);
    }
}

/// How the policy manages a pool of this key.
pub(crate) fn kind_of(key: &PoolKey) -> PoolKind {
    match key {
        PoolKey::PerCpu { .. } => PoolKind::PerCpu,
        PoolKey::Unbound { managed: true, .. } => PoolKind::Unbound,
        PoolKey::Unbound { managed: false, .. } => PoolKind::Unmanaged,
    }
}

/// The pwq behind a tag.
///
/// # Safety
/// The pool that handed out the tag has the pwq linked at this moment (its lock is held, or an entry of the pwq is in the
/// caller's hands).
pub(crate) unsafe fn link_of<'a>(tag: PwqTag) -> &'a PwqLink {
    // SAFETY: tags are addresses of `PwqLink`s that `Inner::links` keeps alive while they are linked.
    unsafe { &*(tag as usize as *const PwqLink) }
}

/// [`link_of`], owned.
///
/// # Safety
/// As for [`link_of`].
pub(crate) unsafe fn link_arc(tag: PwqTag) -> Arc<PwqLink> {
    let p = tag as usize as *const PwqLink;
    // SAFETY: as for `link_of`; the address came from `Arc::as_ptr`.
    unsafe {
        Arc::increment_strong_count(p);
        Arc::from_raw(p)
    }
}
