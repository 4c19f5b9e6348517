//! The runtime: pools found by their attributes, threads, queues, and what ends them.
//!
//! | file | what |
//! |---|---|
//! | `builder.rs` | settings |
//! | `machine.rs` | CPUs, masks, pods |
//! | `pools.rs` | the table of pools, the counting of worker threads |
//! | `neighbours.rs` | which pools are near which |
//! | `placing.rs` | where worker threads run |
//! | `wakes.rs` | measured wake-up times and the hedge delay |
//! | `live.rs` | following changes of the CPUs |
//! | `settings.rs` | settings that can change while it runs |
//! | `shutdown.rs` | ending it, freezing it |
//! | `system.rs` | the system workqueues |
//! | `manual.rs` | driving it by hand, by a seed |

mod builder;
mod live;
mod machine;
pub(crate) mod manual;
#[cfg(all(test, shuttle))]
#[path = "tests/models.rs"]
mod models;
mod neighbours;
mod placing;
mod pools;
mod settings;
mod shutdown;
mod system;
mod wakes;

pub use builder::RuntimeBuilder;
pub(crate) use machine::Machine;
pub(crate) use placing::mask_words;
pub use settings::{CpuMaskError, Placement};
pub use shutdown::{Leftover, ShutdownTimeout};
pub use system::System;

use crate::completion::Completion;
use crate::control::Records;
use crate::current;
use crate::detect::{Detect, DetectorStatus, Report, ThreadCounts};
use crate::error::{BuildError, WaitError, drop_payload, quietly};
use crate::pool::{PoolKey, RtPool, Spawner};
use crate::shim::leaf::OnceLock;
use crate::shim::sync::{Mutex, PoisonError};
use crate::sys::clock::Clock;
use crate::sys::cpu;
use crate::sys::fork::ForkStamp;
use crate::sys::futex::Timeout;
use crate::sys::thread::ThreadFactory;
use crate::timers::Timers;
use crate::workqueue::WqInner;
use crate::{blocking, workqueue::WorkqueueBuilder};
use arc_swap::ArcSwap;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Where a runtime's time comes from.
#[derive(Debug, Clone)]
pub(crate) enum TimeSource {
    /// The machine's clock.
    Real,
    /// A number that a test moves.
    Virtual(Arc<AtomicU64>),
}

impl TimeSource {
    /// Nanoseconds, monotonic.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            TimeSource::Real => Clock::now(),
            TimeSource::Virtual(t) => t.load(Ordering::Relaxed),
        }
    }
}

/// What a panic hook is told.
#[derive(Debug)]
#[non_exhaustive]
pub struct PanicInfo<'a> {
    /// The function that panicked.
    pub item: &'static str,
    /// The message, if the payload was a string.
    pub message: &'a str,
}

type Hook = Arc<dyn Fn() + Send + Sync>;
type PanicHook = Arc<dyn Fn(&PanicInfo<'_>) + Send + Sync>;

pub(crate) struct Hooks {
    pub(crate) start: Option<Hook>,
    pub(crate) stop: Option<Hook>,
    pub(crate) panic: Option<PanicHook>,
}

/// The shared state of a runtime.
pub(crate) struct RtInner {
    pub(crate) time: TimeSource,
    pub(crate) factory: ThreadFactory,
    pub(crate) stack_size: Option<usize>,
    pub(crate) thread_name: String,
    pub(crate) hooks: Hooks,
    pub(crate) max_threads: AtomicUsize,
    pub(crate) power_efficient: bool,
    /// Items queued without a CPU go round the CPUs of the global mask.
    pub(crate) force_rr: AtomicBool,
    /// Where that is.
    next_cpu: AtomicUsize,
    pub(crate) idle_timeout: Duration,
    pub(crate) histograms: bool,
    /// Worker threads that exist or are being made.
    pub(crate) threads: Arc<AtomicUsize>,
    pub(crate) machine: ArcSwap<Machine>,
    /// The affinity that the process had when the runtime was made, if it could be read.
    pub(crate) affinity_at_start: Option<cmwq_topology::CpuSet>,
    pools: Mutex<HashMap<PoolKey, &'static RtPool>>,
    /// Pools made so far.
    pub(crate) pools_made: AtomicU64,
    wqs: Mutex<Wqs>,
    pub(crate) spawner: Spawner,
    pub(crate) detect: Detect,
    pub(crate) timers: Arc<Timers>,
    pub(crate) fork: ForkStamp,
    warnings: Mutex<Vec<String>>,
    pub(crate) manual: Option<manual::Manual>,
    pub(crate) births: [AtomicU64; 7],
    pub(crate) deaths: [AtomicU64; 4],
    pub(crate) records: Records,
    /// Threads whose CPU mask or nice could not be set as wished.
    pub(crate) misplaced: AtomicU64,
    /// Threads whose CPU mask somebody else has set.
    pub(crate) adopted: AtomicU64,
    /// How often the CPUs or their limits changed while it ran.
    pub(crate) changes: AtomicU64,
    pub(crate) wakes: wakes::Wakes,
    pub(crate) live: Arc<live::Live>,
}

#[derive(Default)]
struct Wqs {
    list: Vec<Weak<WqInner>>,
    frozen: bool,
    closing: bool,
}

/// A runtime: the pools and threads that run the items of its workqueues.
///
/// Most programs use the process-wide one, [`Runtime::global`], without naming it. A runtime without work has no threads.
/// Handles are cheap to clone. A runtime lives as long as a handle or one of its queues; dropping the last one never blocks
/// and is allowed anywhere, in a work item or an async task too: queued items still run, then the threads end.
/// [`shutdown`](Runtime::shutdown) waits.
///
/// When `main` returns the process ends, and with it all workers, whatever they run and whatever is queued: call
/// `shutdown` (or destroy the queues) first if that matters.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<RtInner>,
    /// Here and not inside: a queue keeps its runtime alive.
    system: Arc<OnceLock<System>>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

static GLOBAL: OnceLock<Runtime> = OnceLock::new();

impl Runtime {
    /// Settings of a further runtime.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
    }

    /// The process-wide runtime, made with default settings at first use (reads the machine's topology: a millisecond or so),
    /// or by [`RuntimeBuilder::build_global`].
    pub fn global() -> &'static Runtime {
        GLOBAL.get_or_init(|| {
            RuntimeBuilder::new()
                .build()
                .expect("the default settings are valid")
        })
    }

    pub(crate) fn from_inner(inner: Arc<RtInner>) -> Runtime {
        Runtime {
            inner,
            system: Arc::default(),
        }
    }

    pub(crate) fn inner(&self) -> &Arc<RtInner> {
        &self.inner
    }

    /// Starts the settings of a workqueue of this runtime.
    pub fn workqueue(&self, name: impl Into<String>) -> WorkqueueBuilder {
        WorkqueueBuilder::new(name).runtime(self)
    }

    /// Worker threads that exist or are being made; rescuers, the spawner and the timer thread are not counted.
    pub fn threads(&self) -> usize {
        self.inner.threads.load(Ordering::Relaxed)
    }

    /// What was clamped, cut or ignored so far, oldest first, at most 100.
    pub fn warnings(&self) -> Vec<String> {
        self.inner
            .warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Which detectors of blocked workers are in force, and why. Reads CPU clocks; takes the locks of no pool.
    pub fn detection(&self) -> Vec<DetectorStatus> {
        self.inner.detect.status()
    }

    /// Hogs and stalls reported so far, oldest first, at most the last 64.
    pub fn reports(&self) -> Vec<Report> {
        self.inner.detect.reports.kept()
    }

    /// Why worker threads were made and why they left.
    pub fn thread_counts(&self) -> ThreadCounts {
        self.inner.thread_counts()
    }

    /// Changes how long a worklist may stand still before it is reported; zero: for ever. See
    /// [`RuntimeBuilder::watchdog`].
    pub fn set_watchdog(&self, threshold: Duration) {
        let ns = u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX);
        self.inner.detect.watchdog_ns.store(ns, Ordering::Relaxed);
    }

    /// From which find on a function that hogs its CPU is reported; zero: never. See [`RuntimeBuilder::hog_warning`].
    pub fn set_hog_warning(&self, finds: u32) {
        self.inner.detect.warn_at.store(finds, Ordering::Relaxed);
    }

    /// Whether the process aborts at the `n`-th stall from now on; zero: never. See [`RuntimeBuilder::abort_on_stall`].
    pub fn set_abort_on_stall(&self, n: u32) {
        self.inner.detect.abort.set_count(n);
    }

    /// Whether the process aborts when one stall lasts this long; zero: never. See [`RuntimeBuilder::abort_on_stall_time`].
    pub fn set_abort_on_stall_time(&self, limit: Duration) {
        self.inner.detect.abort.set_time(limit);
    }

    /// Whether items of unbound queues that are queued without a CPU go to the CPUs of the global mask in turn instead of the
    /// local one. Takes effect for what is queued from now on; placement by an explicit CPU, per-CPU and ordered queues are
    /// not concerned. See [`RuntimeBuilder::force_round_robin`].
    pub fn force_round_robin(&self, on: bool) {
        self.inner.force_round_robin(on);
    }

    /// Forgives all worklists what they have stood still so far: for those who stop the process on purpose (kernel:
    /// `wq_watchdog_touch`).
    pub fn touch_watchdog(&self) {
        self.inner.detect.touch(self.inner.time.now());
    }

    /// The machine as the runtime sees it.
    pub fn topology(&self) -> Arc<cmwq_topology::Topology> {
        Arc::clone(&self.inner.machine.load().topology)
    }
}

impl RtInner {
    /// The CPU that the calling thread runs on, which decides where what it queues goes. In a runtime driven by hand that of
    /// the worker whose item runs, so that the machine has no part in it.
    #[inline]
    pub(crate) fn here(&self) -> usize {
        match &self.manual {
            None => cpu::current_cpu().unwrap_or(0) as usize,
            Some(manual) => manual.cpu.load(Ordering::Relaxed),
        }
    }

    /// See [`Runtime::force_round_robin`].
    pub(crate) fn force_round_robin(&self, on: bool) {
        if on {
            let what = "items are queued round robin over the CPUs, which is slow";
            self.warn_once(what.to_owned());
        }
        self.force_rr.store(on, Ordering::Relaxed);
    }

    /// The next CPU in turn of those in the global mask that are online; none if there is none. O(CPUs).
    #[cold]
    pub(crate) fn next_in_turn(&self) -> Option<usize> {
        let machine = self.machine.load();
        let cpus = machine.global.intersection(machine.topology.online());
        let n = self.next_cpu.fetch_add(1, Ordering::Relaxed);
        let at = n.checked_rem(cpus.len())?;
        cpus.iter().nth(at)
    }

    /// Keeps a warning for [`Runtime::warnings`].
    pub(crate) fn warn(&self, text: String) {
        let mut w = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if w.len() < 100 {
            w.push(text);
        }
    }

    /// As [`warn`](Self::warn), unless the same was said before.
    pub(crate) fn warn_once(&self, text: String) {
        let known = self
            .warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&text);
        if !known {
            self.warn(text);
        }
    }

    fn lock_wqs(&self) -> crate::shim::sync::MutexGuard<'_, Wqs> {
        self.wqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember_wq(&self, wq: &Arc<WqInner>) -> Result<(), BuildError> {
        let mut wqs = self.lock_wqs();
        if wqs.closing {
            return Err(BuildError::ShutDown);
        }
        wqs.list.retain(|w| w.strong_count() > 0);
        wqs.list.push(Arc::downgrade(wq));
        if wqs.frozen {
            wq.set_frozen(true);
        }
        Ok(())
    }

    pub(crate) fn forget_wq(&self, wq: &WqInner) {
        self.lock_wqs()
            .list
            .retain(|w| w.strong_count() > 0 && !std::ptr::eq(w.as_ptr(), wq));
    }

    /// The queues that exist.
    pub(crate) fn wqs(&self) -> Vec<Arc<WqInner>> {
        self.lock_wqs()
            .list
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Sleeps until `done`. A worker hands its CPU on meanwhile. In a runtime driven by hand, the caller drives it.
    pub(crate) fn wait(
        self: &Arc<Self>,
        done: &Completion,
        what: impl Fn() -> String,
    ) -> Result<(), WaitError> {
        self.wait_until(done, None, what).map(|_| ())
    }

    /// As `wait`, until the deadline at most: false if that came first.
    pub(crate) fn wait_until(
        self: &Arc<Self>,
        done: &Completion,
        deadline: Option<std::time::Instant>,
        what: impl Fn() -> String,
    ) -> Result<bool, WaitError> {
        if done.is_done() {
            return Ok(true);
        }
        if self.fork.is_stale() {
            return Err(WaitError::Forked);
        }
        if self.manual.is_some() {
            return self
                .run_until(|| done.is_done())
                .map(|()| true)
                .map_err(|_| WaitError::Stuck { what: what() });
        }
        let _away = current::is_running().then(blocking::enter);
        loop {
            let helpless = self.nudge_if_helpless();
            let left = deadline.map(|d| d.saturating_duration_since(std::time::Instant::now()));
            let timeout = match (helpless, left) {
                (true, Some(l)) => Timeout::After(l.min(HELPLESS_RETRY)),
                (true, None) => Timeout::After(HELPLESS_RETRY),
                (false, Some(l)) => Timeout::After(l),
                (false, None) => Timeout::Never,
            };
            if done.wait(timeout) {
                return Ok(true);
            }
            if left.is_some_and(|l| l.is_zero()) {
                return Ok(false);
            }
        }
    }

    /// If the runtime has no thread that could make workers or fire timers although one is needed, tries to get it. True if
    /// it still has none: waiters then look after themselves now and then.
    pub(crate) fn nudge_if_helpless(self: &Arc<Self>) -> bool {
        if self.manual.is_some() {
            return false;
        }
        self.timers.retry(self);
        self.detect.stand_in(self);
        if self.spawner.is_needed() && !self.spawner.is_alive() {
            self.spawner.retry_now(self);
        }
        (self.spawner.is_needed() && !self.spawner.is_alive()) || self.timers.is_helpless()
    }

    pub(crate) fn timers_failed(self: &Arc<Self>, e: &crate::sys::thread::SpawnError) {
        self.warn_once(format!(
            "the timer thread could not be made: {e}; it is tried again every second, and waiters fire timers meanwhile"
        ));
        self.spawner.note_failure();
        self.spawner.retry_timers(self);
    }

    /// Calls the start or stop hook on a worker thread; a panic of the hook ends there.
    pub(crate) fn worker_hook(&self, start: bool) {
        let hook = if start {
            &self.hooks.start
        } else {
            &self.hooks.stop
        };
        if let Some(h) = hook
            && quietly(|| h())
        {
            self.warn(format!(
                "the thread {} hook panicked",
                if start { "start" } else { "stop" }
            ));
        }
    }
}

/// How often a waiter of a runtime without threads tries to get one.
const HELPLESS_RETRY: Duration = Duration::from_millis(20);

/// Gives a panic of an item to the hook of the runtime whose worker this is.
pub(crate) fn report_panic(item: &'static str, payload: Box<dyn Any + Send>) {
    let message = crate::error::panic_message(&*payload);
    if let Some(hook) = current::link().and_then(|l| l.wq.rt.hooks.panic.clone()) {
        let info = PanicInfo {
            item,
            message: &message,
        };
        quietly(|| hook(&info));
    }
    drop_payload(payload);
}

impl Drop for RtInner {
    fn drop(&mut self) {
        self.detect.stop(self.fork.is_stale());
        if self.fork.is_stale() {
            return; // its threads do not exist here, and they may have held any lock
        }
        self.spawner.stop();
        self.timers.stop();
        self.live.stop();
    }
}
