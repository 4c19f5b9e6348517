//! Where worker threads run: their CPU masks and nice, set by name and never inherited.
//!
//! The wish for a worker is its pod, cut to the affinity that the process's starter wished for. A cpuset is left to the system,
//! which cuts every wish to it by itself, also later: a mask is never read back and written.

use super::live::BELIEF;
use super::{Machine, RtInner};
use crate::control::probe;
use crate::pool::{PoolKey, RtPool, WorkerShared};
use crate::sys::clock::monotonic;
use crate::sys::{cpu, procstat};
use cmwq_policy::pool::{WorkerId, WorkerKind};
use cmwq_topology::{CpuSet, masks};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The mask to ask for.
fn wish(key: &PoolKey, machine: &Machine) -> CpuSet {
    let cpus = match key {
        PoolKey::PerCpu { .. } if machine.is_gone(key) => masks::orphaned(
            &machine.global,
            &machine.usable,
            machine.topology.possible(),
        )
        .clone(),
        PoolKey::Unbound {
            managed: false,
            strict: false,
            mask: Some(mask),
            ..
        } => mask.clone(),
        _ => key.pod(),
    };
    cut(cpus, machine)
}

/// What is left of a mask inside the process's affinity; all of it where that is nothing.
fn cut(cpus: CpuSet, machine: &Machine) -> CpuSet {
    match &machine.affinity {
        Some(a) if a.intersects(&cpus) => cpus.intersection(a),
        _ => cpus,
    }
}

impl RtInner {
    /// Lets the calling thread, one of the runtime's own that are no workers, run wherever the process may, whoever made it.
    pub(crate) fn roam(&self) {
        let machine = self.machine.load();
        let done = match &machine.affinity {
            Some(a) => cpu::set_affinity(0, &mask_words(a)),
            None => crate::sys::sched::unpin(0),
        };
        if done.is_err() {
            self.misplaced.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives a thread the CPU mask and nice of the pool's workers, for the machine as it is now, which is returned. What is not
    /// permitted is counted and left as it is.
    pub(crate) fn place_worker(&self, pool: &RtPool, tid: i32) -> Arc<Machine> {
        let machine = self.machine.load_full();
        let Some(key) = pool.key_hint() else {
            return machine;
        };
        self.set_mask(tid, &wish(&key, &machine), &machine);
        // 0 is the process's own.
        let nice = key.nice();
        if nice != 0 && cpu::set_nice(tid, nice).is_err() {
            self.misplaced.fetch_add(1, Ordering::Relaxed);
        }
        machine
    }

    /// [`place_worker`](Self::place_worker) for a worker of the pool; those who move it for a moment are told its mask.
    pub(crate) fn place_worker_of(&self, pool: &RtPool, shared: &WorkerShared) -> Arc<Machine> {
        let tid = shared.tid.load(Ordering::Relaxed);
        let machine = self.place_worker(pool, tid);
        self.note_place(pool, shared, &machine);
        machine
    }

    /// Tells those who move the worker for a moment which mask [`place_worker`](Self::place_worker) has given it.
    pub(crate) fn note_place(&self, pool: &RtPool, shared: &WorkerShared, machine: &Machine) {
        if let Some(key) = pool.key_hint() {
            let tid = shared.tid.load(Ordering::Relaxed);
            let mask = wish(&key, machine);
            shared.place.remember(tid, &mask_words(&mask));
            shared.company.end();
        }
    }

    /// The mask that the pool's workers have; none if the pool is not in use.
    pub(crate) fn worker_mask(&self, pool: &RtPool) -> Option<CpuSet> {
        Some(wish(&pool.key_hint()?, &self.machine.load()))
    }

    /// After a new worker is known to its pool: places it again if the machine has changed since.
    pub(crate) fn place_again_if_changed(
        &self,
        pool: &RtPool,
        shared: &WorkerShared,
        then: &Arc<Machine>,
    ) {
        let mut placed_for = Arc::clone(then);
        while !Arc::ptr_eq(&placed_for, &self.machine.load()) {
            placed_for = self.place_worker_of(pool, shared);
        }
    }

    fn set_mask(&self, tid: i32, wish: &CpuSet, machine: &Machine) {
        // A mask without a CPU that the thread may use now is refused by the system; it stays where the cpuset has put it.
        if wish.intersects(&machine.cpuset) && cpu::set_affinity(tid, &mask_words(wish)).is_err() {
            self.misplaced.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A sleeping worker that roams is to wake up in its pod. Moved by its mask; it widens it again when it runs.
    #[cold]
    pub(crate) fn bring_home(&self, pool: &RtPool, shared: &WorkerShared) {
        let tid = shared.tid.load(Ordering::Relaxed);
        let machine = self.machine.load();
        if let Some(key) = pool.key_hint() {
            self.set_mask(tid, &cut(key.pod(), &machine), &machine);
        }
    }

    /// The worker's item has been on CPU for longer than the hog threshold: if its pod has no CPU to spare and its queue's mask
    /// is wider, the worker may leave the pod for the rest of that item. Returns whether it may.
    pub(crate) fn widen(&self, pool: &'static RtPool, id: WorkerId) -> bool {
        let found = pool.inspect(|inner| {
            let Some(
                key @ PoolKey::Unbound {
                    mask: Some(mask), ..
                },
            ) = &inner.key
            else {
                return None;
            };
            let hog = inner.policy.worker(id).is_some_and(|w| w.is_hog());
            if !key.is_open() || !hog || inner.policy.outlook().spare {
                return None;
            }
            let shared = inner.workers.get(id as usize)?.as_ref()?;
            if shared.adopted.load(Ordering::Relaxed)
                || shared.widened.swap(true, Ordering::Relaxed)
            {
                return None;
            }
            let entry = inner.policy.worker(id)?.taken().first().copied();
            let pwq = entry.and_then(|e| inner.policy.entry(e)).map(|e| e.pwq);
            if let Some(Some(link)) = pwq.and_then(|pwq| inner.links.get(pwq as usize)) {
                link.wq.records.note_widened();
            }
            Some((mask.clone(), Arc::clone(shared)))
        });
        let Some((mask, shared)) = found else {
            return false;
        };
        let machine = self.machine.load();
        // Its thread stays as long as this is held, if it is there at all.
        let _held = shared.evidence.hold();
        let tid = shared.tid.load(Ordering::Relaxed);
        if tid == 0 {
            return false;
        }
        self.set_mask(tid, &cut(mask, &machine), &machine);
        probe::migrated(self, tid, "widened");
        // Ordering: Acquire pairs with the AcqRel of `narrow`. If the item has ended meanwhile, the worker went home before the
        // mask above was set: send it home again.
        if !shared.widened.load(Ordering::Acquire) {
            self.bring_home(pool, &shared);
        }
        true
    }

    /// The item for which the worker's mask was widened has ended: home. Returns whether it had been widened.
    pub(crate) fn narrow(&self, pool: &RtPool, shared: &WorkerShared) -> bool {
        // Ordering: AcqRel, see `widen`.
        if !shared.widened.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.bring_home(pool, shared);
        probe::migrated(self, shared.tid.load(Ordering::Relaxed), "repatriated");
        true
    }

    /// Gives all workers the masks for the machine as it is now. Those that somebody else has placed are left alone.
    pub(crate) fn replace_workers(&self) {
        for pool in self.pools() {
            for (_, shared) in own_workers(pool) {
                let _held = shared.evidence.hold();
                let there = shared.tid.load(Ordering::Relaxed) != 0;
                if there && !shared.adopted.load(Ordering::Relaxed) {
                    self.place_worker_of(pool, &shared);
                }
            }
        }
    }

    /// Looks for workers whose mask somebody else has set, at most [`LOOK`] of them: they are left alone from then on, and
    /// counted. The machine is the one that was read a moment ago; `suspects` are those that looked so at the look before, and
    /// after it those that are to be looked at again.
    pub(super) fn adopt_moved(&self, machine: &Arc<Machine>, suspects: &mut Vec<(i32, Suspicion)>) {
        let before = std::mem::take(suspects);
        let mut left = LOOK;
        for pool in self.pools() {
            let Some(key) = pool.key_hint() else { continue };
            let expected = expected(&wish(&key, machine), machine);
            for (id, shared) in own_workers(pool) {
                if left == 0 {
                    return;
                }
                left -= 1;
                let _held = shared.evidence.hold();
                let tid = shared.tid.load(Ordering::Relaxed);
                let busy_elsewhere = || {
                    shared.widened.load(Ordering::Relaxed)
                        || shared.homed.load(Ordering::Relaxed)
                        || shared.place.is_narrowed()
                        || shared.adopted.load(Ordering::Relaxed)
                };
                if tid == 0 || busy_elsewhere() {
                    continue;
                }
                let Some(now) = other_mask(tid, &expected, machine) else {
                    continue;
                };
                // It may be on its way home, or gone: only the same worker of the same machine.
                let settled = Arc::ptr_eq(machine, &self.machine.load())
                    && !busy_elsewhere()
                    && own_workers(pool)
                        .iter()
                        .any(|(i, s)| *i == id && Arc::ptr_eq(s, &shared));
                if !settled {
                    continue;
                }
                let mut suspicion = before
                    .iter()
                    .find(|s| s.0 == tid)
                    .map_or_else(Suspicion::default, |s| s.1.clone());
                let Some(now) = suspicion.believe(Some(now), monotonic()) else {
                    suspects.push((tid, suspicion));
                    continue;
                };
                shared.adopted.store(true, Ordering::Relaxed);
                self.adopted.fetch_add(1, Ordering::Relaxed);
                self.warn(format!(
                    "thread {tid} runs on CPUs {} because somebody else has set that; it is left alone",
                    now.list()
                ));
            }
        }
    }
}

/// A mask other than the one that was set, since when.
#[derive(Clone, Default)]
pub(super) struct Suspicion(Option<(CpuSet, Duration)>);

impl Suspicion {
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Takes what was found at a look; returns it if it has been the same for [`BELIEF`].
    pub(super) fn believe(&mut self, found: Option<CpuSet>, now: Duration) -> Option<CpuSet> {
        let since = match (&self.0, &found) {
            (Some((mask, since)), Some(f)) if mask == f => *since,
            _ => now,
        };
        self.0 = found.map(|f| (f, since));
        self.0.take_if(|_| now - since >= BELIEF).map(|s| s.0)
    }
}

/// How many workers one look visits.
const LOOK: usize = 256;

fn own_workers(pool: &RtPool) -> Vec<(WorkerId, Arc<WorkerShared>)> {
    pool.inspect(|inner| {
        let policy = &inner.policy;
        let own = policy
            .workers()
            .filter(|(_, w)| w.kind == WorkerKind::Normal);
        own.filter_map(|(id, _)| Some((id, inner.workers.get(id as usize)?.clone()?)))
            .collect()
    })
}

/// What the system makes of a wish.
pub(super) fn expected(wish: &CpuSet, machine: &Machine) -> CpuSet {
    let cut = wish.intersection(&machine.cpuset);
    if cut.is_empty() {
        machine.cpuset.clone()
    } else {
        cut
    }
}

/// The thread's mask if it is not the expected one on the CPUs that are online; none if it is, or if the thread is gone.
///
/// `sched_getaffinity` leaves out CPUs that are on their way up or down before anything else says so; `/proc` has the mask as it
/// was set, but reading it takes 20 us. So that is asked only if the first answer differs.
pub(super) fn other_mask(tid: i32, expected: &CpuSet, machine: &Machine) -> Option<CpuSet> {
    let differs = |m: &CpuSet| m.intersection(machine.topology.online()) != *expected;
    let active = from_words(&cpu::affinity(tid).ok()?);
    if !differs(&active) {
        return None;
    }
    let mask = procstat::allowed_cpus(tid).unwrap_or(active);
    differs(&mask).then_some(mask)
}

fn from_words(words: &[u64]) -> CpuSet {
    let mut set = CpuSet::new();
    for c in cpu::members(words) {
        set.insert(c as usize);
    }
    set
}

/// The mask as words for the system call.
pub(crate) fn mask_words(set: &CpuSet) -> Vec<u64> {
    let mut words = vec![0u64; set.last().map_or(0, |c| c / 64 + 1)];
    for cpu in set {
        words[cpu / 64] |= 1 << (cpu % 64);
    }
    words
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_believed_when_it_has_stayed_the_same() {
        let mask = |list| Some(CpuSet::parse_list(list).unwrap());
        let mut s = Suspicion::default();
        let t = Duration::from_secs(1);
        assert_eq!(s.believe(mask("0"), t), None);
        assert!(s.is_some());
        assert_eq!(s.believe(mask("0"), t + BELIEF / 2), None);
        assert_eq!(s.believe(mask("1"), t + BELIEF), None, "another one");
        assert_eq!(s.believe(mask("1"), t + 2 * BELIEF), mask("1"));
        assert!(!s.is_some(), "it has served");
        assert_eq!(s.believe(mask("1"), t + 3 * BELIEF), None);
        assert_eq!(s.believe(None, t + 4 * BELIEF), None, "all is as set again");
        assert_eq!(s.believe(mask("1"), t + 5 * BELIEF), None);
    }
}
