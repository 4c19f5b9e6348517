//! Settings of a runtime.

use super::live::Live;
use super::wakes::Wakes;
use super::{Hooks, Machine, PanicInfo, RtInner, Runtime, TimeSource, Wqs, manual};
use crate::control::Records;
use crate::detect::{Detect, Detectors, Limits, Report, ReportHook, Reports};
use crate::error::BuildError;
use crate::pool::Spawner;
use crate::shim::sync::Mutex;
use crate::sys::fork::ForkStamp;
use crate::sys::thread::{SpawnError, ThreadFactory, default_factory};
use crate::timers::Timers;
use arc_swap::ArcSwap;
use cmwq_topology::{AffinityScope, DEFAULT_CACHE_SHARD_SIZE, ProcessCpus, Topology};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

/// The most worker threads a runtime makes unless told otherwise. The kernel has no such limit besides its own on threads;
/// 10,000 is where Go gives up and is far beyond what managed pools reach.
const DEFAULT_MAX_THREADS: usize = 10_000;

/// A worklist that stands still for this long is reported (kernel: wq_watchdog_thresh, 30 s).
const WATCHDOG: Duration = Duration::from_secs(30);

/// Settings of a new [`Runtime`]; start with [`Runtime::builder`].
#[must_use = "nothing is made until build() is called"]
pub struct RuntimeBuilder {
    max_threads: usize,
    stack_size: Option<usize>,
    thread_name: String,
    hooks: Hooks,
    topology: Option<Topology>,
    process: Option<ProcessCpus>,
    power_efficient: bool,
    default_scope: AffinityScope,
    shard_size: usize,
    idle_timeout: Duration,
    histograms: bool,
    factory: Option<ThreadFactory>,
    detectors: Detectors,
    on_report: Option<ReportHook>,
    limits: Limits,
    manual: Option<manual::Manual>,
    time: TimeSource,
    follow: Option<bool>,
    force_rr: bool,
}

impl std::fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("max_threads", &self.max_threads)
            .field("stack_size", &self.stack_size)
            .field("thread_name", &self.thread_name)
            .finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    pub(super) fn new() -> RuntimeBuilder {
        RuntimeBuilder {
            max_threads: DEFAULT_MAX_THREADS,
            stack_size: None,
            thread_name: "cmwq".to_owned(),
            hooks: Hooks {
                start: None,
                stop: None,
                panic: None,
            },
            topology: None,
            process: None,
            power_efficient: false,
            default_scope: AffinityScope::DEFAULT,
            shard_size: DEFAULT_CACHE_SHARD_SIZE,
            idle_timeout: Duration::from_nanos(cmwq_policy::pool::IDLE_TIMEOUT_NS),
            histograms: true,
            factory: None,
            detectors: Detectors::default(),
            on_report: None,
            limits: Limits {
                watchdog: WATCHDOG,
                ..Limits::default()
            },
            manual: None,
            time: TimeSource::Real,
            follow: None,
            force_rr: false,
        }
    }

    /// The most worker threads, at least 1. When it is reached no worker is made until one has left; idle workers leave for
    /// pools that have none, so all get through as long as items end. Queueing never fails for that. Rescuers, the spawner
    /// and the timer thread come on top.
    pub fn max_threads(mut self, n: usize) -> Self {
        self.max_threads = n;
        self
    }

    /// Stack size of workers and rescuers, bytes; the standard library's default (2 MiB, or `RUST_MIN_STACK`) if not given.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// What names of worker threads begin with, `cmwq` if not given: `cmwq/0` works for CPU 0, `cmwq/0H` with high priority,
    /// `cmwq/u3` for the unbound pool 3, `cmwq/R-name` rescues the queue "name". The system keeps 15 bytes.
    pub fn thread_name(mut self, prefix: impl Into<String>) -> Self {
        self.thread_name = prefix.into();
        self
    }

    /// Called on each worker thread before its first item. A panic of it ends there and is kept as a warning.
    pub fn on_thread_start(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks.start = Some(Arc::new(f));
        self
    }

    /// Called on each worker thread after its last item. A panic of it ends there and is kept as a warning.
    pub fn on_thread_stop(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks.stop = Some(Arc::new(f));
        self
    }

    /// Called, on the worker, for each panic of an item that no joiner gets: reusable items', and those of detached closures.
    /// The standard panic hook has run by then.
    pub fn on_panic(mut self, f: impl Fn(&PanicInfo<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.panic = Some(Arc::new(f));
        self
    }

    /// The machine to assume, instead of reading it: for tests and for what the system does not know. The CPUs that the
    /// process may use are then all of its online ones.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.process = Some(ProcessCpus::default());
        self.topology = Some(topology);
        self
    }

    /// What the process may use of the machine, instead of reading it.
    pub fn process_cpus(mut self, process: ProcessCpus) -> Self {
        self.process = Some(process);
        self
    }

    /// Whether changes of what the process may use are followed while the runtime lives: CPUs going off and on line, its cgroup's
    /// cpuset and quota, the affinity of its threads set from outside. On unless [`topology`](Self::topology) or
    /// [`process_cpus`](Self::process_cpus) were given; on with a given topology, what the system says is applied to that.
    ///
    /// Costs a thread that sleeps in `poll`, made with the first worker, and a look of some 100 us at most once a second while
    /// items run; nothing while none do.
    pub fn follow_changes(mut self, on: bool) -> Self {
        self.follow = Some(on);
        self
    }

    /// Per-CPU queues built `power_efficient` become unbound (kernel: `workqueue.power_efficient`).
    pub fn power_efficient(mut self, on: bool) -> Self {
        self.power_efficient = on;
        self
    }

    /// The scope of queues that do not choose one; `cache_shard` if not given. [`AffinityScope::Default`] is taken for that.
    pub fn default_affinity_scope(mut self, scope: AffinityScope) -> Self {
        self.default_scope = if scope == AffinityScope::Default {
            AffinityScope::DEFAULT
        } else {
            scope
        };
        self
    }

    /// How many cores a pod of scope `cache_shard` should have; [`DEFAULT_CACHE_SHARD_SIZE`] if not given (kernel:
    /// `workqueue.cache_shard_size`, 8). Shards of one cache are made of equal size, so they may have one core less.
    pub fn cache_shard_size(mut self, cores: usize) -> Self {
        self.shard_size = cores;
        self
    }

    /// Items queued without a CPU go to the next CPU of the global mask in turn instead of the local one, in unbound queues: for
    /// finding code that relies on local execution (kernel: `workqueue.debug_force_rr_cpu`). Slow. Off if not given; see
    /// [`Runtime::force_round_robin`].
    pub fn force_round_robin(mut self, on: bool) -> Self {
        self.force_rr = on;
        self
    }

    /// How long a surplus worker stays idle before it ends; 300 s if not given, as in the kernel.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Whether queue-to-start and run times are recorded per queue; on if not given. Costs a few nanoseconds an item.
    pub fn histograms(mut self, on: bool) -> Self {
        self.histograms = on;
        self
    }

    pub(crate) fn manual(mut self, manual: manual::Manual, time: TimeSource) -> Self {
        self.manual = Some(manual);
        self.time = time;
        self
    }

    /// Which means of noticing blocked workers may be used.
    pub fn detectors(mut self, detectors: Detectors) -> Self {
        self.detectors = detectors;
        self
    }

    /// Called for each hog and stall that is worth a report, besides keeping it for [`Runtime::reports`]. On the runtime's
    /// service thread: it must not block, nor wait for items. A panic of the hook is swallowed.
    pub fn on_report(mut self, f: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.on_report = Some(Arc::new(f));
        self
    }

    /// How long a worklist may stand still before it is reported as stalled, once per that period; 30 s if not given, as in
    /// the kernel; zero: never.
    pub fn watchdog(mut self, threshold: Duration) -> Self {
        self.limits.watchdog = threshold;
        self
    }

    /// From which find on a function that hogs its CPU is reported: with this one and, after it, with growing distance; 4 if not
    /// given, zero: never (kernel: `workqueue.cpu_intensive_warning_thresh`).
    pub fn hog_warning(mut self, finds: u32) -> Self {
        self.limits.warn_at = finds;
        self
    }

    /// Aborts the process with a message on standard error at the `n`-th stall that the watchdog finds, after it was reported;
    /// zero, which holds if not given: never (kernel: `workqueue.panic_on_stall`).
    pub fn abort_on_stall(mut self, n: u32) -> Self {
        self.limits.abort_at = n;
        self
    }

    /// Aborts the process with a message on standard error when the watchdog finds that a worklist has stood still for at
    /// least this long, after it was reported; zero, which holds if not given: never (kernel: `workqueue.panic_on_stall_time`).
    pub fn abort_on_stall_time(mut self, limit: Duration) -> Self {
        self.limits.abort_after = limit;
        self
    }

    /// For fault tests: before each thread is made, `allow` is asked with its name; false is taken for a limit of the system
    /// (`EAGAIN`). No part of the stable interface.
    #[doc(hidden)]
    pub fn thread_faults(mut self, allow: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        let make = default_factory();
        self.factory = Some(Arc::new(move |spec, body| {
            if allow(&spec.name) {
                make(spec, body)
            } else {
                Err(SpawnError::Limit)
            }
        }));
        self
    }

    /// A model's threads, and a clock that moves when the model says so.
    #[cfg(all(test, shuttle))]
    pub(crate) fn modelled(mut self, factory: ThreadFactory, time: TimeSource) -> Self {
        self.factory = Some(factory);
        self.time = time;
        self
    }

    /// Makes the runtime. No thread is made; the machine is read (a millisecond or so) unless it was given.
    ///
    /// # Errors
    /// [`BuildError::Invalid`] for a thread limit or a shard size of 0, or an empty thread name.
    pub fn build(self) -> Result<Runtime, BuildError> {
        crate::sys::barrier::prepare();
        if self.max_threads == 0 {
            return Err(BuildError::Invalid {
                setting: "max_threads",
                expected: "at least 1".to_owned(),
            });
        }
        if self.shard_size == 0 {
            return Err(BuildError::Invalid {
                setting: "cache_shard_size",
                expected: "at least 1".to_owned(),
            });
        }
        if self.thread_name.is_empty() || self.thread_name.contains('\0') {
            return Err(BuildError::Invalid {
                setting: "thread_name",
                expected: "at least one character, none of them NUL".to_owned(),
            });
        }
        let given = self.topology.is_some() || self.process.is_some();
        let follow = self.follow.unwrap_or(!given) && self.manual.is_none();
        let real_topology = self.topology.is_none();
        let topology = Arc::new(self.topology.unwrap_or_else(Topology::current));
        let process = match self.process {
            Some(p) if self.follow != Some(true) => p,
            _ => ProcessCpus::current(),
        };
        let machine = Machine::new(topology, &process, self.default_scope, self.shard_size);
        let fork = ForkStamp::new();
        let inner = RtInner {
            timers: Arc::new(Timers::new(self.time.clone(), fork)),
            time: self.time,
            factory: self.factory.unwrap_or_else(default_factory),
            stack_size: self.stack_size,
            thread_name: self.thread_name,
            hooks: self.hooks,
            max_threads: AtomicUsize::new(self.max_threads),
            power_efficient: self.power_efficient,
            force_rr: AtomicBool::new(self.force_rr),
            next_cpu: AtomicUsize::new(0),
            idle_timeout: self.idle_timeout,
            histograms: self.histograms,
            threads: Arc::new(AtomicUsize::new(0)),
            machine: ArcSwap::from_pointee(machine),
            affinity_at_start: process.affinity.clone(),
            pools: Mutex::new(HashMap::new()),
            pools_made: AtomicU64::new(0),
            wqs: Mutex::new(Wqs::default()),
            spawner: Spawner::new(),
            detect: Detect::new(self.detectors, Reports::new(self.on_report), &self.limits),
            fork,
            warnings: Mutex::new(Vec::new()),
            manual: self.manual,
            births: std::array::from_fn(|_| AtomicU64::new(0)),
            deaths: std::array::from_fn(|_| AtomicU64::new(0)),
            records: Records::new(),
            misplaced: AtomicU64::new(0),
            adopted: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            wakes: Wakes::new(),
            live: Arc::new(Live::new(follow, real_topology)),
        };
        Ok(Runtime::from_inner(Arc::new(inner)))
    }

    /// Makes the runtime the process-wide one.
    ///
    /// # Errors
    /// As for [`build`](Self::build), and [`BuildError::Invalid`] if the process-wide runtime exists already.
    pub fn build_global(self) -> Result<&'static Runtime, BuildError> {
        let runtime = self.build()?;
        if super::GLOBAL.set(runtime).is_err() {
            return Err(BuildError::Invalid {
                setting: "build_global",
                expected: "to be called once, before the process-wide runtime is used".to_owned(),
            });
        }
        Ok(Runtime::global())
    }
}
