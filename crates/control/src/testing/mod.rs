//! A small working registry: real queues, real threads, real counters, limits that are enforced. For tests that drive
//! the control plane and the commands end to end without the runtime; no part of the stable interface.

mod queue;

pub use queue::Queue;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::attr::{self, Attr, ParseContext, SetError, SetErrorKind, Setting};
use crate::snapshot::*;
use crate::trace::{TraceChunk, TraceEvent, TraceKind, TraceOptions};
use crate::{CpuList, Process, Target};

/// CPUs of its machine.
pub const CPUS: u32 = 8;
const THREADS: u32 = 8;

struct Globals {
    cpumask: CpuList,
    default_scope: &'static str,
    cpu_intensive_thresh_us: u64,
    watchdog_thresh: u64,
    debug_force_rr_cpu: bool,
}

#[derive(Default)]
struct Trace {
    on: bool,
    events: VecDeque<TraceEvent>,
    capacity: usize,
    lost: u64,
}

struct Shared {
    queues: Mutex<Vec<Arc<Queue>>>,
    globals: Mutex<Globals>,
    trace: Mutex<Trace>,
    quit: AtomicBool,
    items: AtomicU64,
    snapshots: AtomicU64,
    started_unix: Duration,
    name: String,
}

/// The registry. Its threads end when it is dropped.
pub struct Fake(Arc<Shared>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn hex(mask: &CpuList) -> String {
    mask.to_set().mask().width(CPUS as usize).to_string()
}

fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

impl Fake {
    /// A registry without queues; `name`: the process's.
    pub fn new(name: &str) -> Fake {
        Fake(Arc::new(Shared {
            queues: Mutex::new(Vec::new()),
            globals: Mutex::new(Globals {
                cpumask: CpuList::from_cpus(0..CPUS),
                default_scope: "cache_shard",
                cpu_intensive_thresh_us: 10_000,
                watchdog_thresh: 30,
                debug_force_rr_cpu: false,
            }),
            trace: Mutex::new(Trace::default()),
            quit: AtomicBool::new(false),
            items: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
            started_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap(),
            name: name.into(),
        }))
    }

    /// What the server serves.
    pub fn process(&self) -> Arc<dyn Process> {
        Arc::clone(&self.0) as Arc<dyn Process>
    }

    /// How many snapshots were taken.
    pub fn snapshots(&self) -> u64 {
        self.0.snapshots.load(Ordering::Relaxed)
    }

    /// Whether a trace runs.
    pub fn tracing(&self) -> bool {
        lock(&self.0.trace).on
    }

    /// A new queue with threads of its own.
    pub fn queue(&self, name: &str, kind: WqKind, max_active: u32) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(&self.0, name, kind, max_active));
        for _ in 0..THREADS {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || queue.work());
        }
        lock(&self.0.queues).push(Arc::clone(&queue));
        queue
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // Ordering: SeqCst, with the loads of the threads.
        self.0.quit.store(true, Ordering::SeqCst);
        for queue in lock(&self.0.queues).iter() {
            queue.changed.notify_all();
        }
    }
}

impl Shared {
    fn trace(&self, kind: TraceKind) {
        let mut trace = lock(&self.trace);
        if !trace.on {
            return;
        }
        if trace.events.len() >= trace.capacity {
            trace.lost += 1;
            return;
        }
        trace.events.push_back(TraceEvent {
            ns: monotonic_ns(),
            tid: tid(),
            cpu: 0,
            kind,
        });
    }

    fn find(&self, name: &str) -> Result<Arc<Queue>, SetError> {
        let queues = lock(&self.queues);
        queues
            .iter()
            .find(|q| q.name == name)
            .cloned()
            .ok_or_else(|| {
                let names: Vec<&str> = queues.iter().map(|q| q.name.as_str()).collect();
                SetError::not_found(format!(
                    "no workqueue `{name}`; there are: {}",
                    names.join(", ")
                ))
            })
    }

    fn topology(&self, globals: &Globals) -> TopologySummary {
        let pods = |cpus: u32| -> Vec<PodSnapshot> {
            (0..CPUS / cpus)
                .map(|i| PodSnapshot {
                    cpus: CpuList::from_cpus(i * cpus..(i + 1) * cpus),
                    node: Some(0),
                })
                .collect()
        };
        let scope = |name: &'static str, pods| ScopeSnapshot {
            name: name.into(),
            pods,
        };
        TopologySummary {
            nr_cpu_ids: CPUS,
            possible: CpuList::from_cpus(0..CPUS),
            online: CpuList::from_cpus(0..CPUS),
            unbound_cpumask: globals.cpumask.clone(),
            nodes: vec![NodeCpus {
                node: 0,
                cpus: CpuList::from_cpus(0..CPUS),
            }],
            default_scope: globals.default_scope.into(),
            scopes: vec![
                scope("cpu", pods(1)),
                scope("smt", pods(2)),
                scope("cache_shard", pods(4)),
                scope("cache", pods(4)),
                scope("numa", pods(8)),
                scope("system", pods(8)),
            ],
        }
    }
}

impl Process for Shared {
    fn info(&self) -> ProcessInfo {
        ProcessInfo {
            pid: std::process::id(),
            name: self.name.clone(),
            started_unix_ms: self.started_unix.as_millis() as u64,
            runtime: "main".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        }
    }

    fn snapshot(&self, detail: Detail) -> Snapshot {
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        let globals = lock(&self.globals);
        let queues = lock(&self.queues).clone();
        let busy: u32 = queues
            .iter()
            .map(|q| lock(&q.state).running.len() as u32)
            .sum();
        let worklist: u32 = queues
            .iter()
            .map(|q| lock(&q.state).waiting.len() as u32)
            .sum();
        let pool = |id: u32, running: u32, worklist: u32| PoolSnapshot {
            id,
            nice_in_force: 0,
            refcnt: queues.len() as u32,
            workers: THREADS,
            idle: THREADS.saturating_sub(running),
            cpus: CpuList::from_cpus(0..CPUS),
            pod_cpus: CpuList::from_cpus(id * 4..id * 4 + 4),
            node: Some(0),
            target: Some(4),
            running,
            worklist,
            oldest_ns: (worklist > 0).then_some(1_000_000),
            last_progress_ns: monotonic_ns(),
            hedge_delay_ns: Some(100_000),
            wakeup_p99_ns: Some(48_000),
            births: vec![ReasonCount {
                reason: reasons::CONCURRENCY.into(),
                count: u64::from(THREADS),
            }],
            ..Default::default()
        };
        Snapshot {
            process: self.info(),
            clock: Clock {
                monotonic_ns: monotonic_ns(),
                unix_ms: SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap()
                    .as_millis() as u64,
                build_ns: 0,
            },
            topology: if detail.topology {
                self.topology(&globals)
            } else {
                TopologySummary::default()
            },
            cpu: CpuView {
                usable: CpuList::from_cpus(0..CPUS),
                affinity_at_start: CpuList::from_cpus(0..CPUS),
                quota: Some(Quota {
                    cpus: 2.5,
                    quota_us: 250_000,
                    period_us: 100_000,
                    ..Default::default()
                }),
                ..Default::default()
            },
            pools: vec![
                pool(0, busy.min(4), worklist),
                pool(1, busy.saturating_sub(4), 0),
            ],
            workqueues: queues
                .iter()
                .enumerate()
                .map(|(i, q)| q.snapshot(i as u32, detail, &globals))
                .collect(),
            detection: Detection {
                said: Mechanism {
                    state: MechanismState::InForce,
                    reason: "always".into(),
                    ..Default::default()
                },
                records: Mechanism {
                    reason: "not asked for".into(),
                    ..Default::default()
                },
                ..Default::default()
            },
            threads: ThreadTotals {
                workers: 2 * THREADS,
                ceiling: 512,
                peak: 2 * THREADS,
                ..Default::default()
            },
            tunables: vec![Tunable {
                name: "watchdog_thresh".into(),
                value: globals.watchdog_thresh.to_string(),
                writable: true,
            }],
            ..Default::default()
        }
    }

    fn parse_context(&self) -> ParseContext {
        ParseContext { nr_cpu_ids: CPUS }
    }

    fn get(&self, target: &Target, attr: Attr) -> Result<String, SetError> {
        let globals = lock(&self.globals);
        let missing = || SetError::unsupported(format!("{}: not in this process", attr.name()));
        match target {
            Target::Global => Ok(match attr {
                Attr::GlobalCpumask => hex(&globals.cpumask),
                Attr::DefaultAffinityScope => globals.default_scope.into(),
                Attr::CpuIntensiveThreshUs => globals.cpu_intensive_thresh_us.to_string(),
                Attr::WatchdogThresh => globals.watchdog_thresh.to_string(),
                Attr::DebugForceRrCpu => attr::format_bool(attr, globals.debug_force_rr_cpu).into(),
                _ => return Err(missing()),
            }),
            Target::Workqueue(name) => {
                let queue = self.find(name)?;
                if !attr.exists_for(queue.kind) {
                    return Err(SetError::new(
                        SetErrorKind::WrongKind,
                        format!(
                            "{}: does not apply to a queue of kind `{}`",
                            attr.name(),
                            queue.kind.as_str()
                        ),
                    ));
                }
                let state = lock(&queue.state);
                Ok(match attr {
                    Attr::PerCpu => attr::format_bool(attr, queue.kind == WqKind::PerCpu).into(),
                    Attr::MaxActive => state.max_active.to_string(),
                    Attr::MinActive => state.min_active.to_string(),
                    Attr::Nice => state.nice.to_string(),
                    Attr::Cpumask => hex(&state.cpumask),
                    Attr::AffinityScope => attr::format_scope(state.scope, globals.default_scope),
                    Attr::AffinityStrict => attr::format_bool(attr, state.strict).into(),
                    Attr::Localize => attr::format_bool(attr, state.localize).into(),
                    _ => return Err(missing()),
                })
            }
        }
    }

    fn set(&self, target: &Target, setting: &Setting) -> Result<String, SetError> {
        match target {
            Target::Global => {
                let mut globals = lock(&self.globals);
                match setting {
                    Setting::GlobalCpumask(mask) => globals.cpumask = CpuList::from(mask),
                    Setting::DefaultAffinityScope(scope) => globals.default_scope = scope.name(),
                    Setting::CpuIntensiveThreshUs(us) => globals.cpu_intensive_thresh_us = *us,
                    Setting::WatchdogThresh(s) => globals.watchdog_thresh = *s,
                    Setting::DebugForceRrCpu(on) => globals.debug_force_rr_cpu = *on,
                    other => {
                        return Err(SetError::unsupported(format!(
                            "{}: not here",
                            other.attr().name()
                        )));
                    }
                }
            }
            Target::Workqueue(name) => {
                let queue = self.find(name)?;
                setting.attr().check_kind(queue.kind)?;
                let mut state = lock(&queue.state);
                match setting {
                    Setting::MaxActive(n) => {
                        state.max_active = *n;
                        state.min_active = state.min_active.min(*n);
                    }
                    Setting::MinActive(n) => state.min_active = (*n).min(state.max_active),
                    Setting::Nice(n) => state.nice = *n,
                    Setting::Cpumask(mask) => state.cpumask = CpuList::from(mask),
                    Setting::AffinityScope(scope) => state.scope = scope.name(),
                    Setting::AffinityStrict(on) => state.strict = *on,
                    Setting::Localize(on) => state.localize = *on,
                    other => {
                        return Err(SetError::unsupported(format!(
                            "{}: not here",
                            other.attr().name()
                        )));
                    }
                }
                queue.changed.notify_all();
            }
        }
        self.get(target, setting.attr())
    }

    fn trace_start(&self, options: &TraceOptions) -> Result<(), SetError> {
        let mut trace = lock(&self.trace);
        if trace.on {
            return Err(SetError::new(
                SetErrorKind::Busy,
                "a trace is running already",
            ));
        }
        *trace = Trace {
            on: true,
            capacity: options.buffer_events as usize,
            ..Default::default()
        };
        Ok(())
    }

    fn trace_poll(&self, max_events: usize) -> TraceChunk {
        let mut trace = lock(&self.trace);
        let n = trace.events.len().min(max_events);
        let events = trace.events.drain(..n).collect();
        TraceChunk {
            events,
            lost: trace.lost,
            more: !trace.events.is_empty(),
            threads: Vec::new(),
        }
    }

    fn trace_stop(&self) {
        lock(&self.trace).on = false;
    }
}
