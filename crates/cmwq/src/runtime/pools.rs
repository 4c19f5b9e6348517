//! The table of pools, who is near whom, and the counting of worker threads.

use super::{RtInner, neighbours};
use crate::detect::ThreadCounts;
use crate::error::QueueError;
use crate::pool::{PoolKey, RtPool, Todo, kind_of, run_todo, unused_pool};
use crate::shim::sync::{MutexGuard, PoisonError};
use crate::sys::thread::SpawnError;
use cmwq_policy::pool::{BirthReason, DeathReason, PoolConfig};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a worker thread while it exists or is being made.
pub(crate) struct ThreadTicket(Arc<AtomicUsize>);

impl Drop for ThreadTicket {
    fn drop(&mut self) {
        // Ordering: Release pairs with the Acquire of `admit_thread`: a thread that is counted out is over.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl RtInner {
    pub(super) fn lock_pools(&self) -> MutexGuard<'_, HashMap<PoolKey, &'static RtPool>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool of these attributes, made if there is none; its users are counted. What comes of it is appended to `todo`, to be
    /// worked off once the caller has dropped its locks.
    pub(crate) fn acquire_pool(
        self: &Arc<Self>,
        key: &PoolKey,
        todo: &mut Vec<Todo>,
    ) -> Result<&'static RtPool, QueueError> {
        let mut pools = self.lock_pools();
        let pool = match pools.get(key) {
            Some(pool) => {
                pool.inspect(|inner| inner.users += 1);
                pool
            }
            None => {
                let pool = unused_pool();
                pool.set_up(self, key.clone(), self.pool_config(key));
                pools.insert(key.clone(), pool);
                neighbours::joined(&self.machine.load(), &pools, key);
                pool
            }
        };
        let machine = self.machine.load();
        if machine.quota.is_some() {
            self.retarget(&pools, todo);
        }
        if machine.is_gone(key) {
            pool.step(todo, |p, drv| {
                let now = drv.now();
                p.set_disassociated(true, now, drv);
            });
        }
        Ok(pool)
    }

    /// One user less. A pool without users ends: its workers leave once nothing is queued.
    pub(crate) fn release_pool(self: &Arc<Self>, pool: &'static RtPool) {
        let mut pools = self.lock_pools();
        let Some(key) = pool.release() else { return };
        pools.remove(&key);
        neighbours::left(&self.machine.load(), &pools, pool.id);
        let mut todo = Vec::new();
        if self.machine.load().quota.is_some() {
            self.retarget(&pools, &mut todo);
        }
        drop(pools);
        run_todo(todo);
        if self.manual.is_some() {
            self.dismiss_by_hand(pool);
        }
        pool.try_tear_down();
    }

    /// A worker's thread has left its pool.
    pub(crate) fn worker_left(&self, pool: &'static RtPool) {
        pool.try_tear_down();
    }

    /// All pools, for reports.
    pub(crate) fn pools(&self) -> Vec<&'static RtPool> {
        self.lock_pools().values().copied().collect()
    }

    fn pool_config(&self, key: &PoolKey) -> PoolConfig {
        let machine = self.machine.load();
        let cpus = key.pod().intersection_len(&machine.usable).max(1) as u32;
        PoolConfig {
            kind: kind_of(key),
            target: if matches!(key, PoolKey::PerCpu { .. }) {
                1
            } else {
                cpus
            },
            histograms: self.histograms,
            hog_extra: cpus,
            hog_ns: self.detect.hog_ns.load(Ordering::Relaxed),
            fairness_ns: self.records.fairness_ns.load(Ordering::Relaxed),
            ..PoolConfig::default()
        }
    }

    /// Puts a changed tunable in force in all pools.
    pub(crate) fn reconfigure(&self, change: impl Fn(&mut PoolConfig)) {
        for pool in self.pools() {
            pool.with(|p, drv| {
                let mut config = *p.config();
                change(&mut config);
                let now = drv.now();
                p.configure(config, now, drv);
            });
        }
    }

    /// The machine has changed: targets, and which CPUs' pools have lost theirs.
    pub(crate) fn refit_pools(&self) {
        let pools = self.lock_pools();
        let machine = self.machine.load();
        let mut todo = Vec::new();
        self.retarget(&pools, &mut todo);
        for (key, pool) in &*pools {
            let gone = machine.is_gone(key);
            pool.step(&mut todo, |p, drv| {
                if p.is_disassociated() != gone {
                    let now = drv.now();
                    p.set_disassociated(gone, now, drv);
                }
            });
        }
        neighbours::all(&machine, &pools);
        drop(pools);
        run_todo(todo);
    }

    /// Splits a CPU quota over the pools in use; without a quota every pool may use its pod's CPUs.
    fn retarget(&self, pools: &HashMap<PoolKey, &'static RtPool>, todo: &mut Vec<Todo>) {
        let machine = self.machine.load();
        let cpus = |key: &PoolKey| key.pod().intersection_len(&machine.usable).max(1);
        let total: usize = pools
            .keys()
            .filter(|k| matches!(k, PoolKey::Unbound { .. }))
            .map(cpus)
            .sum();
        for (key, pool) in pools {
            if matches!(key, PoolKey::PerCpu { .. }) {
                continue;
            }
            let own = cpus(key);
            let target = match machine.quota {
                Some(q) if q < total => (q * own).div_ceil(total).clamp(1, own),
                _ => own,
            };
            pool.step(todo, |p, drv| {
                let now = drv.now();
                p.set_target(target as u32, own as u32, now, drv);
            });
        }
    }

    /// The ceiling on threads is reached and `pool` needs a worker: an idle one of another pool is told to leave.
    pub(crate) fn spare_a_thread(&self, pool: &RtPool) {
        for other in self.pools() {
            if !std::ptr::eq(other, pool) && other.with(|p, drv| p.spare_one(drv)) {
                return;
            }
        }
    }

    /// A worker is wanted.
    pub(crate) fn request_worker(
        self: &Arc<Self>,
        pool: &'static RtPool,
        reason: BirthReason,
        on: Option<u32>,
    ) {
        match &self.manual {
            Some(_) => self.births[reason as usize].fetch_add(1, Ordering::Relaxed),
            None => {
                self.spawner.request(self, pool, reason, on);
                0
            }
        };
    }

    pub(crate) fn note_birth(&self, reason: BirthReason) {
        self.births[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_death(&self, reason: DeathReason) {
        self.deaths[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// See [`super::Runtime::thread_counts`].
    pub(crate) fn thread_counts(&self) -> ThreadCounts {
        let born = |r: BirthReason| self.births[r as usize].load(Ordering::Relaxed);
        let left = |r: DeathReason| self.deaths[r as usize].load(Ordering::Relaxed);
        ThreadCounts {
            born_demand: born(BirthReason::Demand),
            born_reserve: born(BirthReason::Reserve),
            born_blocked: born(BirthReason::Blocked),
            born_fairness: born(BirthReason::Fairness),
            born_hog: born(BirthReason::Hog),
            born_floor: born(BirthReason::Floor),
            born_help: born(BirthReason::Help),
            left_culled: left(DeathReason::Culled),
            left_shutdown: left(DeathReason::Shutdown),
            failed: self.spawner.failures.load(Ordering::Relaxed),
            misplaced: self.misplaced.load(Ordering::Relaxed),
            adopted: self.adopted.load(Ordering::Relaxed),
        }
    }

    /// How long a surplus worker stays idle, ns.
    pub(crate) fn idle_timeout_ns(&self) -> u64 {
        u64::try_from(self.idle_timeout.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A worker could not be made.
    pub(crate) fn creation_failed(&self, pool: &'static RtPool, e: &SpawnError) {
        let now = self.time.now();
        pool.inspect(|inner| inner.policy.creation_failed(now));
        pool.try_tear_down();
        self.records.note_failure(e);
        self.warn_once(format!("a worker thread could not be made: {e}"));
    }

    /// There is no thread that looks after pools and none can be made: rescuers are threads too.
    pub(crate) fn wake_rescuers(&self) {
        self.wqs().iter().for_each(|wq| wq.wake_rescuer());
    }

    /// Counts one more thread in, unless the ceiling is reached.
    pub(crate) fn admit_thread(&self) -> Result<ThreadTicket, SpawnError> {
        let max = self.max_threads.load(Ordering::Relaxed);
        // Ordering: Acquire pairs with the Release of the ticket's drop.
        self.threads
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| {
                (n < max).then_some(n + 1)
            })
            .map(|before| {
                self.records.note_threads(before + 1);
                ThreadTicket(Arc::clone(&self.threads))
            })
            .map_err(|_| SpawnError::Ceiling)
    }

    /// A name like the kernel's: `cmwq/0:` for CPU 0's pool, `cmwq/u3:` for an unbound one.
    pub(crate) fn worker_name(&self, pool: &RtPool) -> String {
        let prefix = &self.thread_name;
        pool.inspect(|inner| match &inner.key {
            Some(PoolKey::PerCpu { cpu, nice }) => {
                format!("{prefix}/{cpu}{}", if *nice < 0 { "H" } else { "" })
            }
            _ => format!("{prefix}/u{}", pool.id),
        })
    }
}
