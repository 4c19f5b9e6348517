//! The thread that makes worker threads.
//!
//! Making a thread takes 10-50 us and locks of the C library, so it never happens under our locks nor on an issuer's time,
//! and one at a time is made. The spawner is made at first need. If it cannot be made, whoever needs a worker next, or a
//! waiter that looks after itself, tries again: see [`Spawner::nudge`].

use super::RtPool;
use super::worker::worker_main;
use crate::detect::{SERVICE_STACK, service_main};
use crate::runtime::RtInner;
use crate::shim::sync::{Mutex, PoisonError};
use crate::sys::clock::monotonic;
use crate::sys::cpu;
use crate::sys::parker::Parker;
use crate::sys::thread::{SpawnError, ThreadSpec};
use cmwq_policy::pool::{BirthReason, CREATE_COOLDOWN_NS};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A thread could not be made some time in this process.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether some thread could not be made, ever, in any runtime: only then may one be without the threads that it needs.
#[inline]
pub(crate) fn ever_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// See the module text.
pub(crate) struct Spawner {
    queue: Mutex<State>,
    parker: Arc<Parker>,
    /// The thread exists.
    alive: AtomicBool,
    /// Threads that could not be made.
    pub(crate) failures: AtomicU64,
    /// A pool got no worker because of the ceiling: workers that find nothing to do make room.
    starved: AtomicBool,
}

#[derive(Default)]
struct State {
    /// With the CPU where the worker is to begin, if one has nothing to run.
    wanted: VecDeque<(&'static RtPool, BirthReason, Option<u32>)>,
    /// Pools whose creation failed and when to ask again.
    retry: Vec<(&'static RtPool, Duration)>,
    /// The runtime's service thread is wanted, not before then.
    service: Option<Duration>,
    /// The timer thread could not be made; it is tried again then.
    timers: Option<Duration>,
    stop: bool,
}

impl Spawner {
    pub(crate) fn new() -> Spawner {
        Spawner {
            queue: Mutex::new(State::default()),
            parker: Arc::new(Parker::new()),
            alive: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            starved: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> crate::shim::sync::MutexGuard<'_, State> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread could not be made. To be called before anybody relies on being told so.
    pub(crate) fn note_failure(&self) {
        FAILED.store(true, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// A worker is wanted in `pool`; it is to begin on the CPU `on`.
    pub(crate) fn request(
        &self,
        rt: &Arc<RtInner>,
        pool: &'static RtPool,
        reason: BirthReason,
        on: Option<u32>,
    ) {
        self.lock().wanted.push_back((pool, reason, on));
        self.nudge(rt);
    }

    /// The runtime's service thread is wanted.
    pub(crate) fn request_service(&self, rt: &Arc<RtInner>) {
        self.lock().service = Some(Duration::ZERO);
        self.nudge(rt);
    }

    /// The timer thread could not be made: try again later.
    pub(crate) fn retry_timers(&self, rt: &Arc<RtInner>) {
        let due = monotonic() + Duration::from_nanos(CREATE_COOLDOWN_NS);
        self.lock().timers.get_or_insert(due);
        self.nudge(rt);
    }

    /// Makes sure that the spawner looks at its queue: wakes it, or makes it if it does not exist yet.
    pub(crate) fn nudge(&self, rt: &Arc<RtInner>) {
        // Ordering: Acquire pairs with the Release below; the thread's parker is in use from then on.
        if self.alive.load(Ordering::Acquire) {
            self.parker.unpark();
            return;
        }
        let mut state = self.lock();
        // Ordering: as above.
        if self.alive.load(Ordering::Acquire) {
            self.parker.unpark();
            return;
        }
        if state.stop {
            return;
        }
        let weak = Arc::downgrade(rt);
        let parker = Arc::clone(&self.parker);
        let spec = ThreadSpec {
            name: "cmwq/spawner".to_owned(),
            stack: Some(SPAWNER_STACK),
        };
        match (rt.factory)(&spec, Box::new(move || spawner_main(&weak, &parker))) {
            // Ordering: Release pairs with the Acquire above.
            Ok(()) => self.alive.store(true, Ordering::Release),
            Err(e) => {
                self.note_failure();
                let pools: Vec<_> = state.wanted.drain(..).map(|(p, _, _)| p).collect();
                let due = monotonic() + Duration::from_nanos(CREATE_COOLDOWN_NS);
                state.retry.extend(pools.iter().map(|&p| (p, due)));
                let service = state.service.take().is_some();
                drop(state);
                if service {
                    rt.detect.service_failed();
                    rt.wake_rescuers();
                }
                for pool in pools {
                    rt.creation_failed(pool, &e);
                }
            }
        }
    }

    /// Whether a thread that can make others exists.
    pub(crate) fn is_alive(&self) -> bool {
        // Ordering: Acquire, as in `nudge`.
        self.alive.load(Ordering::Acquire)
    }

    /// Whether a pool could get no worker because of the ceiling on threads. Asked by a worker after it went idle under its
    /// pool's lock; who sets it looks at the pools afterwards: one of the two sees the other.
    #[inline]
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// A worker's thread is over: what failed because of the ceiling is tried again at once.
    pub(crate) fn thread_left(&self) {
        if !self.is_starved() {
            return;
        }
        self.starved.store(false, Ordering::Relaxed);
        for r in &mut self.lock().retry {
            r.1 = Duration::ZERO;
        }
        self.parker.unpark();
    }

    /// Whether workers are wanted or are to be asked for again.
    pub(crate) fn is_needed(&self) -> bool {
        let state = self.lock();
        !state.wanted.is_empty() || !state.retry.is_empty() || state.timers.is_some()
    }

    /// For a waiter while the spawner could not be made: pools whose cooldown is over ask again, which tries to make it.
    pub(crate) fn retry_now(&self, rt: &Arc<RtInner>) {
        let now = monotonic();
        let due: Vec<&'static RtPool> = {
            let mut state = self.lock();
            let due = state
                .retry
                .iter()
                .filter(|r| r.1 <= now)
                .map(|r| r.0)
                .collect();
            state.retry.retain(|r| r.1 > now);
            due
        };
        for pool in due {
            pool.with(|p, drv| {
                let now = drv.now();
                p.may_create_again(now, drv);
            });
        }
        self.nudge(rt);
    }

    /// The spawner ends once its queue is empty.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.parker.unpark();
    }
}

/// The spawner starts threads and, if need be, does what the service does, which calls the application's report hook.
const SPAWNER_STACK: usize = 256 << 10;
/// How often the spawner ticks in the service's place.
const STAND_IN: Duration = Duration::from_millis(4);

fn make_service(rt: &Arc<RtInner>) {
    let (weak, bell) = (Arc::downgrade(rt), rt.detect.bell());
    let spec = ThreadSpec {
        name: format!("{}/service", rt.thread_name),
        stack: Some(SERVICE_STACK),
    };
    if (rt.factory)(&spec, Box::new(move || service_main(&weak, &bell))).is_err() {
        rt.spawner.note_failure();
        rt.spawner.lock().service = Some(monotonic() + Duration::from_nanos(CREATE_COOLDOWN_NS));
    }
}

fn spawner_main(weak: &Weak<RtInner>, parker: &Parker) {
    if let Some(rt) = weak.upgrade() {
        rt.roam();
    }
    loop {
        let Some(rt) = weak.upgrade() else { return };
        let spawner = &rt.spawner;
        let now = monotonic();
        let (job, due, service, timers, stop) = {
            let mut state = spawner.lock();
            let due: Vec<&'static RtPool> = state
                .retry
                .iter()
                .filter(|r| r.1 <= now)
                .map(|r| r.0)
                .collect();
            state.retry.retain(|r| r.1 > now);
            let job = state.wanted.pop_front();
            // Workers first.
            let service = job.is_none() && state.service.take_if(|t| *t <= now).is_some();
            let timers = state.timers.take_if(|t| *t <= now).is_some();
            (job, due, service, timers, state.stop)
        };
        if timers {
            rt.timers.retry(&rt);
        }
        if service && !stop {
            make_service(&rt);
            continue;
        }
        for pool in due {
            // The cooldown is over: if a worker is still needed, the policy asks again.
            pool.with(|p, drv| {
                let now = drv.now();
                p.may_create_again(now, drv);
            });
        }
        match job {
            Some((pool, reason, on)) => {
                // The thread begins where its maker may run, and widens its mask itself. Otherwise the system, which sees this
                // thread and a sentinel on the idle CPU, begins it behind what runs on another one, and it waits there.
                let there = on.and_then(cpu::single);
                let narrowed = there.is_some_and(|m| cpu::set_affinity(0, &m).is_ok());
                make_worker(&rt, pool, reason);
                if narrowed {
                    rt.roam();
                }
            }
            None if stop => {
                // Ordering: Release: see `nudge`.
                spawner.alive.store(false, Ordering::Release);
                return;
            }
            None => {
                // While the service cannot be made, its work is done here.
                let stand_in = rt.detect.stand_in(&rt).then(|| monotonic() + STAND_IN);
                let state = spawner.lock();
                let next = state
                    .retry
                    .iter()
                    .map(|r| r.1)
                    .chain(state.service)
                    .chain(state.timers)
                    .chain(stand_in)
                    .min();
                drop(state);
                drop(rt);
                match next {
                    Some(t) => {
                        parker.park_until(t);
                    }
                    None => parker.park(),
                }
            }
        }
    }
}

fn make_worker(rt: &Arc<RtInner>, pool: &'static RtPool, reason: BirthReason) {
    let result = rt.admit_thread().and_then(|ticket| {
        let own = Arc::clone(rt);
        let spec = ThreadSpec {
            name: rt.worker_name(pool),
            stack: rt.stack_size,
        };
        (rt.factory)(
            &spec,
            Box::new(move || {
                worker_main(pool, &own, reason);
                drop(ticket);
                if !own.fork.is_stale() {
                    own.spawner.thread_left();
                }
            }),
        )
    });
    match result {
        Ok(()) => {
            rt.note_birth(reason);
            rt.live.start(rt);
        }
        Err(e) => {
            // A worker in reserve is not worth another one's leaving.
            if e == SpawnError::Ceiling && reason != BirthReason::Reserve {
                // Idle workers of other pools make room.
                // Ordering: SeqCst: a worker that goes idle after we looked at its pool sees this, see `is_starved`.
                rt.spawner.starved.store(true, Ordering::SeqCst);
                rt.spare_a_thread(pool);
            }
            rt.spawner.note_failure();
            rt.creation_failed(pool, &e);
            let due = monotonic() + Duration::from_nanos(CREATE_COOLDOWN_NS);
            rt.spawner.lock().retry.push((pool, due));
        }
    }
}
