//! Is that worker blocked? Evidence first, then the pool is told.
//!
//! Three sources, the best that is in force first: context-switch records (two loads), the state letter of
//! `/proc/self/task/TID/stat` (2.7 us, descriptor kept open), the thread's CPU clock between two looks. Only the last can take a
//! preempted worker for a blocked one.
//!
//! A look takes three steps: under the lock, note what each running worker is at (its *mark*: batch word and start stamp);
//! without it, gather the evidence; under the lock again, act on what is still at the same mark. So a verdict never hits
//! another item than the one that was looked at.

use super::{Detect, place};
use crate::control::probe;
use crate::pool::{BatchMark, RtPool, WorkerShared};
use crate::runtime::RtInner;
use crate::shim::leaf::Mutex;
use crate::sys::cpu;
use crate::sys::perf::ThreadRing;
use crate::sys::procstat::{StateProbe, ThreadStat, ThreadState};
use cmwq_policy::pool::{Time, WorkerId, WorkerKind, WorkerState};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most `/proc` descriptors that all runtimes of the process keep open; workers beyond are judged by their CPU clocks.
/// Few enough to leave an application with the usual limit of 1024 descriptors its own.
const MAX_DESCRIPTORS: usize = 128;

/// Descriptors kept open now.
static DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);

/// A worker's means of evidence, made at the first look and kept until the worker leaves.
#[derive(Default)]
pub(crate) struct Evidence {
    place: Mutex<Means>,
    /// Start stamp of the item that the CPU clock was read for, when, and what it said (ns).
    clock_mark: AtomicU64,
    clock_at: AtomicU64,
    clock: AtomicU64,
    /// The same for the hog detector: the item, and the clock at its first look.
    pub(super) hog_mark: AtomicU64,
    pub(super) hog_base: AtomicU64,
}

#[derive(Default)]
enum Means {
    #[default]
    Untried,
    Ring(ThreadRing),
    Stat(ThreadStat),
    Clock,
}

impl Means {
    fn close(&mut self) {
        if matches!(self, Means::Stat(_)) {
            DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
        }
        *self = Means::Untried;
    }
}

impl Evidence {
    /// The worker leaves: what was opened for its thread is closed.
    pub(crate) fn forget(&self) {
        self.lock().close();
        for w in [&self.clock_mark, &self.hog_mark] {
            w.store(0, Ordering::Relaxed);
        }
    }

    /// The worker's thread does not end while this is held.
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    fn lock(&self) -> crate::shim::leaf::MutexGuard<'_, Means> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Detect {
    /// The means that will do for thread `tid`.
    fn open(&self, tid: i32) -> Means {
        if self.use_records() {
            match ThreadRing::open(tid) {
                Ok(ring) => return Means::Ring(ring),
                Err(e) => self.records_failed(&e.to_string()),
            }
        }
        if self.use_proc() {
            if DESCRIPTORS.fetch_add(1, Ordering::Relaxed) < MAX_DESCRIPTORS {
                match ThreadStat::open(tid) {
                    Ok(stat) => return Means::Stat(stat),
                    Err(e) => self.proc_failed(&e),
                }
            }
            DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
        }
        Means::Clock
    }

    /// A worker begins: where records are kept its ring is opened now, since what happened before that is not in it. 10-60 us.
    pub(crate) fn prepare(&self, w: &WorkerShared) {
        if self.use_records() {
            let mut means = w.evidence.lock();
            if matches!(*means, Means::Untried) {
                *means = self.open(w.tid.load(Ordering::Relaxed));
            }
        }
    }

    /// What the worker does now, and on which CPU if that is known. `start`: the stamp of its item.
    fn state_of(&self, w: &WorkerShared, start: Time, now: Time) -> (ThreadState, Option<u32>) {
        let tid = w.tid.load(Ordering::Relaxed);
        if tid == 0 {
            return (ThreadState::Unknown, None);
        }
        let mut means = w.evidence.lock();
        if matches!(*means, Means::Untried) {
            *means = self.open(tid);
        }
        match &*means {
            Means::Ring(ring) => {
                self.counts.ring_looks.fetch_add(1, Ordering::Relaxed);
                match ring.state() {
                    // No switch since the ring was opened: the thread may have blocked before that.
                    ThreadState::Unknown if self.use_proc() => ThreadStat::open(tid)
                        .and_then(|s| s.read())
                        .map_or((ThreadState::Unknown, None), |l| (l.state, l.cpu)),
                    state => (state, None),
                }
            }
            Means::Stat(stat) => {
                self.counts.proc_looks.fetch_add(1, Ordering::Relaxed);
                match stat.read() {
                    Ok(line) => (line.state, line.cpu),
                    Err(_) => (stat.state(), None),
                }
            }
            Means::Clock | Means::Untried => {
                drop(means);
                self.counts.clock_looks.fetch_add(1, Ordering::Relaxed);
                (self.by_clock(w, tid, start, now), None)
            }
        }
    }

    /// Blocked, as far as a clock can tell, if it has not advanced for a tick's length within one item.
    fn by_clock(&self, w: &WorkerShared, tid: i32, start: Time, now: Time) -> ThreadState {
        let Ok(cpu) = cpu::thread_cpu_time(tid) else {
            return ThreadState::Unknown;
        };
        let cpu = cpu.as_nanos() as u64;
        let e = &w.evidence;
        let same =
            e.clock_mark.load(Ordering::Relaxed) == start && e.clock.load(Ordering::Relaxed) == cpu;
        if same {
            let since = now.saturating_sub(e.clock_at.load(Ordering::Relaxed));
            return if since >= self.clock_patience() {
                ThreadState::Blocked
            } else {
                ThreadState::Unknown
            };
        }
        e.clock_mark.store(start, Ordering::Relaxed);
        e.clock.store(cpu, Ordering::Relaxed);
        e.clock_at.store(now, Ordering::Relaxed);
        ThreadState::Runnable
    }
}

/// A worker as it was noted under the lock.
pub(super) struct Noted {
    pub(super) id: WorkerId,
    pub(super) shared: Arc<WorkerShared>,
    pub(super) mark: BatchMark,
    pub(super) state: WorkerState,
    pub(super) cpu: u32,
}

/// Notes all workers of the pool that run an item and count, or are on their way, and with `all` those found blocked, too. Into
/// `out`, which is emptied first. False if the pool is not this runtime's any more.
pub(super) fn note(rt: &RtInner, pool: &RtPool, all: bool, out: &mut Vec<Noted>) -> bool {
    out.clear();
    pool.inspect(|inner| {
        if !inner.rt.as_ref().is_some_and(|r| std::ptr::eq(&**r, rt)) {
            return false;
        }
        for (id, w) in inner.policy.workers() {
            let counts = match w.state {
                WorkerState::Running => true,
                WorkerState::Blocked | WorkerState::Intensive => all,
                _ => false,
            } && !w.taken().is_empty();
            // One that is on its way may be stuck behind another on its CPU.
            if w.kind != WorkerKind::Normal || !(counts || w.state == WorkerState::Waking) {
                continue;
            }
            let Some(Some(shared)) = inner.workers.get(id as usize) else {
                continue;
            };
            out.push(Noted {
                id,
                shared: Arc::clone(shared),
                mark: shared.batch.mark(),
                state: w.state,
                cpu: w.cpu,
            });
        }
        true
    })
}

/// What a look came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) blocked: u32,
    pub(super) resumed: u32,
    /// A worker that waited for a CPU was moved to the one that asked.
    pub(super) moved: bool,
}

/// Looks at the noted workers and tells the pool. `first_on`: a sentinel of this CPU asks: workers last seen there are looked
/// at first, and the look ends with the first blocked one. `min_ran`: items younger than this are left alone, ns.
pub(super) fn look(
    rt: &RtInner,
    pool: &'static RtPool,
    noted: &mut [Noted],
    first_on: Option<u32>,
    min_ran: Time,
) -> Found {
    let detect = &rt.detect;
    let mut found = Found::default();
    if let Some(cpu) = first_on {
        noted.sort_by_key(|n| n.cpu != cpu);
    }
    let mut runnable: Vec<(usize, u32)> = Vec::new();
    for (i, n) in noted.iter().enumerate() {
        let now = rt.time.now();
        if now.saturating_sub(n.mark.start) < min_ran {
            continue;
        }
        match n.state {
            WorkerState::Running => {
                let (state, cpu) = detect.state_of(&n.shared, n.mark.start, now);
                if !state.is_blocked() {
                    if state == ThreadState::Runnable
                        && let Some(cpu) = cpu
                    {
                        runnable.push((i, cpu));
                    }
                    continue;
                }
                let did = pool.with_tick(|p, drv| {
                    if n.shared.batch.mark() != n.mark {
                        return false;
                    }
                    let now = drv.now();
                    let full = p.counts().running >= p.target();
                    if p.blocked(n.id, now, drv) {
                        drv.hand_over(first_on.filter(|_| full));
                        drv.born_on(first_on);
                    }
                    p.worker(n.id)
                        .is_some_and(|w| w.state == WorkerState::Blocked)
                });
                if did {
                    n.shared.evidence.hog_mark.store(0, Ordering::Relaxed);
                    let by = if first_on.is_some() {
                        "sentinel"
                    } else {
                        "tick"
                    };
                    probe::noticed(rt, &n.shared, Some(by));
                    found.blocked += 1;
                    if first_on.is_some() {
                        break;
                    }
                    detect.missed_on(n.cpu);
                }
            }
            // Found blocked some time ago; those that said so come back by themselves.
            WorkerState::Blocked
                if !n.shared.away.load(Ordering::Relaxed) && first_on.is_none() =>
            {
                if detect.state_of(&n.shared, n.mark.start, now).0 != ThreadState::Runnable {
                    continue;
                }
                let resumed = pool.with_tick(|p, _| {
                    let same = n.shared.batch.mark().start == n.mark.start;
                    if same && !n.shared.away.load(Ordering::Relaxed) {
                        p.resumed(n.id);
                        found.resumed += 1;
                        true
                    } else {
                        false
                    }
                });
                if resumed {
                    probe::noticed(rt, &n.shared, None);
                }
            }
            WorkerState::Waking if first_on.is_some() => {
                if let (ThreadState::Runnable, Some(cpu)) =
                    detect.state_of(&n.shared, n.mark.start, now)
                {
                    runnable.push((i, cpu));
                }
            }
            _ => {}
        }
    }
    if found.blocked == 0
        && let Some(cpu) = first_on
    {
        found.moved = place::unstack(rt, pool, noted, &runnable, cpu);
    }
    detect
        .counts
        .found
        .fetch_add(u64::from(found.blocked), Ordering::Relaxed);
    detect
        .counts
        .resumed
        .fetch_add(u64::from(found.resumed), Ordering::Relaxed);
    let busy = first_on.is_some_and(|cpu| runnable.iter().any(|r| r.1 == cpu));
    pool.watch
        .answer(found.blocked > 0 || found.moved, busy && found.blocked == 0);
    found
}
