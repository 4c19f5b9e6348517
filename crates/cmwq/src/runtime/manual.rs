//! Driving a runtime by hand: no threads, a clock that a test moves, and a seed that decides every choice.
//!
//! The policy is asked exactly as by real workers; only who runs next is chosen here. A worker is a stack frame of the driving
//! thread: an item that waits for another one drives the rest from within its own call.

use super::RtInner;
use crate::current::{self, WorkerContext};
use crate::pool::{RtPool, WorkerShared, worker::run_one};
use crate::shim::sync::{Mutex, PoisonError};
use cmwq_policy::pool::{Here, Next, WorkerId, WorkerState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Nothing is left to do, and what was waited for has not happened.
pub(crate) struct Stuck;

/// The state of a runtime that is driven by hand.
pub(crate) struct Manual {
    rng: Mutex<u64>,
    pub(crate) clock: Arc<AtomicU64>,
    /// Items that have run.
    pub(crate) steps: AtomicU64,
    /// The CPU of the worker whose item runs; 0 outside items.
    pub(crate) cpu: AtomicUsize,
}

impl Manual {
    pub(crate) fn new(seed: u64, clock: Arc<AtomicU64>) -> Manual {
        Manual {
            rng: Mutex::new(seed ^ 0x9e37_79b9_7f4a_7c15),
            clock,
            steps: AtomicU64::new(0),
            cpu: AtomicUsize::new(0),
        }
    }

    /// A number below `n`, from the seed (splitmix64: Steele, Lea, Flood 2014).
    fn below(&self, n: usize) -> usize {
        let mut s = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        *s = s.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *s;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

enum Candidate {
    Worker(&'static RtPool, WorkerId),
    Create(&'static RtPool),
}

impl RtInner {
    fn the_manual(&self) -> &Manual {
        self.manual.as_ref().expect("driven by hand")
    }

    /// Lets one worker, chosen by the seed, make one step. False if none has anything to do.
    pub(crate) fn step_once(self: &Arc<Self>) -> bool {
        self.timers.fire_due();
        let mut candidates = Vec::new();
        for pool in self.pools() {
            pool.inspect(|inner| {
                let serial = inner.serial;
                for (id, w) in inner.policy.workers() {
                    if w.state == WorkerState::Waking {
                        candidates.push((serial, id, Candidate::Worker(pool, id)));
                    }
                }
                if inner.policy.counts().creating > 0 {
                    candidates.push((serial, u32::MAX, Candidate::Create(pool)));
                }
            });
        }
        if candidates.is_empty() {
            return false;
        }
        // Pools come out of a hash table, and their ids are those of the process: sort by what this runtime made when, so that
        // the seed alone decides.
        candidates.sort_by_key(|c| (c.0, c.1));
        let i = self.the_manual().below(candidates.len());
        match candidates.swap_remove(i).2 {
            Candidate::Worker(pool, id) => self.work(pool, id),
            Candidate::Create(pool) => {
                let now = self.time.now();
                let shared = Arc::new(WorkerShared::new());
                let id = pool.inspect(|inner| {
                    let id = inner.policy.worker_started(0, now);
                    let i = id as usize;
                    if inner.workers.len() <= i {
                        inner.workers.resize_with(i + 1, || None);
                    }
                    inner.workers[i] = Some(shared);
                    id
                });
                self.work(pool, id);
            }
        }
        true
    }

    /// One worker works until it has nothing left; other workers may be driven from within its items only.
    fn work(self: &Arc<Self>, pool: &'static RtPool, id: WorkerId) {
        let Some(shared) = pool.inspect(|inner| inner.workers[id as usize].clone()) else {
            return;
        };
        let pod = pool
            .inspect(|inner| inner.key.as_ref().map(|k| k.pod()))
            .unwrap_or_default();
        let cpu = pod.first().unwrap_or(0) as u32;
        let outer_cpu = self.the_manual().cpu.swap(cpu as usize, Ordering::Relaxed);
        let outer = current::worker();
        current::enter(Arc::new(WorkerContext {
            rt: Arc::clone(self),
            pool,
            worker: id,
            shared: Arc::clone(&shared),
            home: None,
        }));
        let mut batch = Vec::new();
        loop {
            let next = pool.with(|p, drv| {
                let now = drv.now();
                let next = p.next(id, Here { cpu, in_pod: true }, now, &mut batch, drv);
                if next == Next::Run {
                    shared.batch.publish(batch.len(), now);
                }
                next
            });
            match next {
                Next::Run => {
                    self.the_manual().steps.fetch_add(1, Ordering::Relaxed);
                    run_one(&batch[0]);
                    for _ in 1..batch.len() {
                        let Some(i) = shared.batch.claim(self.time.now()) else {
                            break;
                        };
                        self.the_manual().steps.fetch_add(1, Ordering::Relaxed);
                        run_one(&batch[i]);
                    }
                }
                Next::Idle => break,
                Next::Exit => {
                    pool.forget_worker(id, &shared);
                    self.worker_left(pool);
                    break;
                }
            }
        }
        self.the_manual().cpu.store(outer_cpu, Ordering::Relaxed);
        match outer {
            Some(context) => current::enter(context),
            None => current::leave(),
        }
    }

    /// Workers of a pool that ends, which have no thread to leave by.
    pub(crate) fn dismiss_by_hand(self: &Arc<Self>, pool: &'static RtPool) {
        loop {
            let leaving = pool.inspect(|inner| {
                inner
                    .policy
                    .workers()
                    .find(|(_, w)| w.state == WorkerState::Dying)
                    .map(|(id, _)| id)
            });
            match leaving {
                Some(id) => self.work(pool, id),
                None => return,
            }
        }
    }

    /// Steps until `done`; moves the clock to the next timer when nothing else is left.
    pub(crate) fn run_until(self: &Arc<Self>, done: impl Fn() -> bool) -> Result<(), Stuck> {
        let _away = current::is_running().then(crate::blocking::enter);
        while !done() {
            if self.step_once() {
                continue;
            }
            let Some(due) = self.timers.next_due() else {
                return Err(Stuck);
            };
            self.the_manual().clock.fetch_max(due, Ordering::Relaxed);
        }
        Ok(())
    }
}
