//! Noticing that workers block, and everything else that must happen without anybody calling: see the folder's README.
//!
//! | file | what |
//! |---|---|
//! | `watch.rs` | what a pool publishes for those who look after it |
//! | `service.rs` | the ordinary thread: the tick, culling, what it sleeps for |
//! | `sentinel.rs` | the idle-class thread per CPU in use |
//! | `confirm.rs` | is that worker blocked? |
//! | `place.rs` | two workers on one CPU beside an idle one |
//! | `hogs.rs` | items that keep their CPU |
//! | `watchdog.rs` | worklists that do not move |
//! | `report.rs` | what is told to the application |
//! | `switches.rs`, `status.rs` | what may be used, what is |

mod confirm;
mod hogs;
mod place;
mod report;
mod sentinel;
mod service;
mod status;
mod switches;
mod watch;
mod watchdog;

pub(crate) use confirm::Evidence;
pub(crate) use place::PlaceWords;
pub use report::{HogReport, Report, StallReport, StalledWorker};
pub(crate) use report::{ReportHook, Reports};
pub(crate) use service::{SERVICE_STACK, service_main};
pub use status::{DetectorState, DetectorStatus, ThreadCounts};
pub use switches::Detectors;
pub(crate) use watch::{PoolWatch, Watched};

use crate::pool::RtPool;
use crate::runtime::RtInner;
use crate::shim::leaf::OnceLock;
use crate::shim::leaf::{Mutex, MutexGuard, PoisonError};
use crate::sys::{SysError, cpu, perf};
use cmwq_policy::pool::{Time, WorkerId};
use sentinel::{Bell, Sentinel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// What a runtime has of all this.
pub(crate) struct Detect {
    pub(crate) switches: Detectors,
    state: Mutex<service::State>,
    /// The service's sleeping place.
    bell: Arc<Bell>,
    /// The service exists, or the spawner was asked for it.
    alive: AtomicBool,
    service_tid: AtomicI32,
    stop: AtomicBool,
    /// Where sentinels are, by CPU; made as CPUs come into use.
    sentinels: Mutex<Vec<&'static Sentinel>>,
    pub(crate) reports: Reports,
    pub(crate) counts: Counts,
    proc_broken: OnceLock<String>,
    records_broken: OnceLock<String>,
    /// On-CPU time that makes an item a hog, ns; 0: not looked for.
    pub(crate) hog_ns: AtomicU64,
    /// How long a worklist may stand still, ns; 0: for ever.
    pub(crate) watchdog_ns: AtomicU64,
    touched: AtomicU64,
    /// The find of one function from which on hogs are reported; 0: never.
    pub(crate) warn_at: AtomicU32,
    pub(crate) abort: watchdog::Abort,
}

/// What may be set of all this; see [`crate::RuntimeBuilder`].
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// How long a worklist may stand still; zero: for ever.
    pub(crate) watchdog: Duration,
    pub(crate) warn_at: u32,
    /// Abort at the n-th stall; 0: never.
    pub(crate) abort_at: u32,
    /// Abort when one stall lasts this long; zero: never.
    pub(crate) abort_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            watchdog: Duration::ZERO,
            warn_at: hogs::WARN_AT,
            abort_at: 0,
            abort_after: Duration::ZERO,
        }
    }
}

/// Counters; only ever grow.
#[derive(Default)]
pub(crate) struct Counts {
    pub(super) ticks: AtomicU64,
    pub(super) pokes: AtomicU64,
    pub(super) proc_looks: AtomicU64,
    pub(super) clock_looks: AtomicU64,
    pub(super) ring_looks: AtomicU64,
    pub(super) found: AtomicU64,
    pub(super) found_by_tick: AtomicU64,
    pub(super) resumed: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) fairness: AtomicU64,
    pub(super) hogs: AtomicU64,
    pub(super) stalls: AtomicU64,
    pub(super) culled: AtomicU64,
    pub(crate) said: AtomicU64,
}

impl Detect {
    pub(crate) fn new(switches: Detectors, reports: Reports, limits: &Limits) -> Detect {
        let hog_ns = if switches.hogs {
            hogs::threshold_ns()
        } else {
            0
        };
        Detect {
            switches,
            state: Mutex::default(),
            bell: Arc::new(Bell::new()),
            alive: AtomicBool::new(false),
            service_tid: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            sentinels: Mutex::default(),
            reports,
            counts: Counts::default(),
            proc_broken: OnceLock::new(),
            records_broken: OnceLock::new(),
            hog_ns: AtomicU64::new(hog_ns),
            watchdog_ns: AtomicU64::new(
                u64::try_from(limits.watchdog.as_nanos()).unwrap_or(u64::MAX),
            ),
            touched: AtomicU64::new(0),
            warn_at: AtomicU32::new(limits.warn_at),
            abort: watchdog::Abort::new(limits.abort_at, limits.abort_after),
        }
    }

    /// Where the service sleeps.
    pub(crate) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    fn lock(&self) -> MutexGuard<'_, service::State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sentinels(&self) -> Vec<&'static Sentinel> {
        self.sentinels
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The tick found a blocked worker on this CPU.
    fn missed_on(&self, cpu: u32) {
        let all = self
            .sentinels
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(s) = all.iter().find(|s| s.cpu() == cpu) {
            s.missed();
        }
    }

    fn use_records(&self) -> bool {
        self.switches.records && self.records_broken.get().is_none()
    }

    fn use_proc(&self) -> bool {
        self.switches.proc_stat && self.proc_broken.get().is_none()
    }

    /// A ring could not be had. Where none can be, no further one is tried.
    fn records_failed(&self, why: &str) {
        let why = perf::probe()
            .err()
            .map_or_else(|| why.to_owned(), |e| e.to_string());
        let _ = self.records_broken.set(why);
    }

    /// A `stat` file could not be opened. A thread that is gone says nothing about `/proc`.
    fn proc_failed(&self, e: &SysError) {
        if !std::path::Path::new("/proc/self/stat").exists() || e.is_refused() {
            let _ = self.proc_broken.set(e.to_string());
        }
    }

    /// Worklists are forgiven what they have stood still.
    pub(crate) fn touch(&self, now: Time) {
        self.touched.fetch_max(now, Ordering::Relaxed);
    }

    /// How long a thread's CPU clock must stand still.
    fn clock_patience(&self) -> u64 {
        self.switches.period.as_nanos() as u64 / 2
    }

    /// Everything ends with the runtime. Nobody is waited for.
    pub(crate) fn stop(&self, forked: bool) {
        self.stop.store(true, Ordering::Relaxed);
        if forked {
            return;
        }
        self.sentinels().iter().for_each(|s| s.end());
        self.bell.parker.unpark();
    }

    /// A sentinel of `on` woke this idle worker. Looks, and says whether the worker is to ask for work: a worker is blocked,
    /// or somebody else woke it meanwhile.
    pub(crate) fn answer_poke(
        &self,
        rt: &RtInner,
        pool: &'static RtPool,
        worker: WorkerId,
        on: u32,
    ) -> bool {
        self.counts.pokes.fetch_add(1, Ordering::Relaxed);
        let mut noted = Vec::new();
        confirm::note(rt, pool, false, &mut noted);
        let found = confirm::look(rt, pool, &mut noted, Some(on), 0);
        found.blocked > 0
            || pool.inspect(|inner| {
                inner
                    .policy
                    .worker(worker)
                    .is_none_or(|w| w.state != cmwq_policy::pool::WorkerState::Idle)
            })
    }

    /// What is in force; see [`crate::Runtime::detection`].
    pub(crate) fn status(&self) -> Vec<DetectorStatus> {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.counts;
        let row = |name, (state, reason): (DetectorState, String), looks, found| DetectorStatus {
            name,
            state,
            reason,
            cpu: Duration::ZERO,
            threads: 0,
            looks,
            found,
        };
        let used = |n: u64| {
            if n > 0 {
                DetectorState::InForce
            } else {
                DetectorState::Ready
            }
        };
        let mut said = row(
            "said",
            (
                DetectorState::InForce,
                "items that call cmwq::blocking, and our own waits".to_owned(),
            ),
            get(&c.said),
            get(&c.said),
        );
        said.looks = said.found;
        let sentinels = self.sentinels();
        let in_force = sentinels.iter().filter(|s| s.is_in_force()).count();
        let refused = sentinels.iter().any(|s| s.is_refused());
        let mut sentinel = row(
            "sentinel",
            match (self.switches.sentinel, refused && in_force == 0, in_force) {
                (false, ..) => (DetectorState::Off, "switched off".to_owned()),
                (_, true, _) => (
                    DetectorState::Refused,
                    sentinel::refusal().unwrap_or_else(|| "refused".to_owned()),
                ),
                (.., 0) => (
                    DetectorState::Ready,
                    "made for CPUs where items wait behind running ones".to_owned(),
                ),
                (.., n) => (
                    DetectorState::InForce,
                    format!(
                        "{n} CPUs, {} pauses, {} workers moved to an idle CPU; a hint only, confirmed before acting",
                        sentinels.iter().map(|s| get(&s.pauses)).sum::<u64>(),
                        get(&c.moved)
                    ),
                ),
            },
            sentinels.iter().map(|s| get(&s.runs)).sum(),
            sentinels.iter().map(|s| get(&s.found)).sum(),
        );
        sentinel.cpu = sentinels.iter().map(|s| s.cpu_time()).sum();
        sentinel.threads = in_force;
        let tid = self.service_tid.load(Ordering::Relaxed);
        let mut tick = row(
            "tick",
            match self.switches.tick {
                false => (
                    DetectorState::Off,
                    "switched off (fairness, floor and watchdog still tick)".to_owned(),
                ),
                true => (
                    used(get(&c.ticks)),
                    format!(
                        "every {} to {} us while items wait",
                        self.switches.period.as_micros(),
                        4 * self.switches.period.as_micros()
                    ),
                ),
            },
            get(&c.ticks),
            get(&c.found_by_tick),
        );
        if tid != 0 {
            tick.cpu = cpu::thread_cpu_time(tid).unwrap_or_default();
            tick.threads = 1;
        }
        let proc_stat = row(
            "proc-stat",
            match (self.switches.proc_stat, self.proc_broken.get()) {
                (false, _) => (DetectorState::Off, "switched off".to_owned()),
                (_, Some(why)) => (DetectorState::Refused, why.clone()),
                _ => (
                    used(get(&c.proc_looks)),
                    "/proc/self/task/TID/stat is readable".to_owned(),
                ),
            },
            get(&c.proc_looks),
            get(&c.found),
        );
        let clocks = get(&c.clock_looks);
        let cpu_clock = row(
            "cpu-clock",
            (
                used(clocks),
                "where neither records nor /proc can be had".to_owned(),
            ),
            clocks,
            0,
        );
        let records = row(
            "records",
            match (self.switches.records, self.records_broken.get()) {
                (false, _) => (DetectorState::Off, "not switched on".to_owned()),
                (_, Some(why)) => (DetectorState::Refused, why.clone()),
                _ => (
                    used(get(&c.ring_looks)),
                    "perf_event_open is permitted".to_owned(),
                ),
            },
            get(&c.ring_looks),
            0,
        );
        let hogs = row(
            "hogs",
            match get(&self.hog_ns) {
                0 => (DetectorState::Off, "switched off".to_owned()),
                ns => (
                    used(get(&c.hogs)),
                    format!("more than {} ms on CPU while items wait", ns / 1_000_000),
                ),
            },
            0,
            get(&c.hogs),
        );
        vec![said, sentinel, tick, proc_stat, cpu_clock, records, hogs]
    }
}
