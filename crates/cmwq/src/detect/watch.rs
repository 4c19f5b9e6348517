//! What a pool publishes for those who look after it, and how they are called.
//!
//! Kept up at the end of every step under the pool's lock, by a compare when nothing changed. The words that sentinels read lie
//! in the pool's own memory, which is never given back, and point to worker records, which are never given back either
//! (see [`WorkerShared::obtain`](crate::pool::WorkerShared::obtain)): a stale one costs a needless wake-up and nothing else.

use super::sentinel::Crew;
use crate::pool::{Policy, RtPool, WorkerShared};
use crate::runtime::RtInner;
use cmwq_policy::pool::{Backlog, WorkerId};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};

const COMING: u8 = 1;
const BEHIND: u8 = 2;

/// The words that sentinels read.
pub(crate) struct PoolWatch {
    /// How the backlog is: 0, or one of the two below.
    backlog: AtomicU8,
    /// The idle worker to wake; null if there is none.
    standby: AtomicPtr<WorkerShared>,
    /// Looks that were asked for and have been made, and how many of them found a blocked worker.
    answered: AtomicU32,
    confirmed: AtomicU32,
    /// The last one found that the CPU which was asked about has a worker to run.
    busy: AtomicBool,
    /// All that is at work is one worker that stays beside an issuer on this CPU: its sentinel alone is wanted. Plus 1; 0: all are.
    only: AtomicU32,
}

/// What the pool's lock guards of it.
#[derive(Default)]
pub(crate) struct Watched {
    backlog: Option<Backlog>,
    standby: Option<WorkerId>,
    /// The service has the pool on its list.
    pub(super) armed: bool,
    /// Sentinels of the CPUs where its workers run.
    pub(super) crew: Option<Arc<Crew>>,
    /// The worker that stays beside an issuer, as published.
    beside: Option<WorkerId>,
}

/// What is to be done after the lock was dropped.
#[must_use]
pub(crate) enum Notice {
    Nothing,
    /// The service must put the pool on its list.
    Arm,
    /// Sentinels are needed, all or that of one CPU.
    Rouse(Arc<Crew>, Option<u32>),
}

impl PoolWatch {
    pub(crate) fn new() -> PoolWatch {
        PoolWatch {
            backlog: AtomicU8::new(0),
            standby: AtomicPtr::new(ptr::null_mut()),
            answered: AtomicU32::new(0),
            confirmed: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            only: AtomicU32::new(0),
        }
    }

    /// Whether a sentinel is wanted: items wait behind what runs, or a worker is on its way to them.
    pub(super) fn is_wanted(&self) -> bool {
        self.backlog.load(Ordering::Relaxed) != 0
    }

    /// Whether the one of this CPU is.
    pub(super) fn is_wanted_on(&self, cpu: u32) -> bool {
        let only = self.only.load(Ordering::Relaxed);
        self.is_wanted() && (only == 0 || only == cpu.saturating_add(1))
    }

    /// Whether a worker is on its way to waiting items: one that is stuck behind another on a busy CPU takes long.
    pub(super) fn is_coming(&self) -> bool {
        self.backlog.load(Ordering::Relaxed) == COMING
    }

    /// The worker to wake.
    pub(super) fn standby(&self) -> Option<&'static WorkerShared> {
        // Ordering: Acquire pairs with the Release of `publish`: the record is set up.
        let p = self.standby.load(Ordering::Acquire);
        // SAFETY: null or a record that is never given back.
        unsafe { p.as_ref() }
    }

    /// Looks made so far and those that found something.
    pub(super) fn answers(&self) -> (u32, u32) {
        // Ordering: Acquire pairs with the Release of `answer`: the count of finds belongs to it.
        let n = self.answered.load(Ordering::Acquire);
        (n, self.confirmed.load(Ordering::Relaxed))
    }

    /// Whether the last look found that the CPU has a worker to run.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// A look was made.
    pub(super) fn answer(&self, found: bool, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
        if found {
            self.confirmed.fetch_add(1, Ordering::Relaxed);
        }
        // Ordering: Release pairs with the Acquire of `answers`.
        self.answered.fetch_add(1, Ordering::Release);
    }
}

impl Watched {
    /// Compares what is published with what is so; called with the pool's lock held, after every step.
    #[inline]
    pub(crate) fn observe(
        &mut self,
        policy: &Policy,
        workers: &[Option<Arc<WorkerShared>>],
        words: &PoolWatch,
    ) -> Notice {
        let backlog = policy.backlog();
        let same = match self.backlog {
            Some(b) => b == backlog && (b == Backlog::None || self.standby == policy.idle_head()),
            None => backlog == Backlog::None,
        };
        // One that left its issuer has done so on its own.
        let left = self.beside.is_some_and(|w| stays_on(workers, w).is_none());
        if same && !left {
            return Notice::Nothing;
        }
        self.publish(backlog, policy, workers, words)
    }

    #[inline(never)]
    fn publish(
        &mut self,
        backlog: Backlog,
        policy: &Policy,
        workers: &[Option<Arc<WorkerShared>>],
        words: &PoolWatch,
    ) -> Notice {
        let before = self.backlog.replace(backlog);
        let level = match backlog {
            Backlog::Behind => BEHIND,
            Backlog::Coming => COMING,
            Backlog::None | Backlog::Short => 0,
        };
        if level != 0 {
            self.standby = policy.idle_head();
            let record = self
                .standby
                .and_then(|w| workers.get(w as usize)?.as_ref())
                .map_or(ptr::null_mut(), |w| Arc::as_ptr(w).cast_mut());
            // Ordering: Release pairs with the Acquire of `standby`.
            words.standby.store(record, Ordering::Release);
        }
        let beside = policy.lone_worker().filter(|_| level != 0);
        let only = beside.and_then(|w| stays_on(workers, w));
        self.beside = beside.filter(|_| only.is_some());
        words.only.store(
            only.map_or(0, |cpu| cpu.saturating_add(1)),
            Ordering::Relaxed,
        );
        words.backlog.store(level, Ordering::Relaxed);
        if backlog == Backlog::None || (backlog == Backlog::Coming && !self.armed) {
            return Notice::Nothing;
        }
        if !self.armed {
            self.armed = true;
            return Notice::Arm;
        }
        match &self.crew {
            Some(crew)
                if level != 0 && !matches!(before, Some(Backlog::Behind | Backlog::Coming)) =>
            {
                Notice::Rouse(Arc::clone(crew), only)
            }
            _ => Notice::Nothing,
        }
    }
}

/// The CPU on which the worker stays beside an issuer.
fn stays_on(workers: &[Option<Arc<WorkerShared>>], w: WorkerId) -> Option<u32> {
    workers.get(w as usize)?.as_ref()?.company.with()
}

impl Notice {
    /// Whether carrying it out needs the runtime.
    #[inline]
    pub(crate) fn needs_runtime(&self) -> bool {
        matches!(self, Notice::Arm)
    }

    /// With no lock held.
    #[inline]
    pub(crate) fn carry_out(self, pool: &'static RtPool, rt: Option<&Arc<RtInner>>) {
        match self {
            Notice::Nothing => {}
            Notice::Arm => {
                if let Some(rt) = rt {
                    rt.detect.arm(rt, pool);
                }
            }
            Notice::Rouse(crew, only) => crew.rouse(only),
        }
    }
}
