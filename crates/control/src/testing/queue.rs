//! A queue of the registry: items wait, threads run them, limits hold.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::{CPUS, Globals, Shared, lock, ns, tid};
use crate::histogram::HistogramSnapshot;
use crate::snapshot::{
    Counters, Detail, ItemList, ItemSnapshot, NodeLimit, PoolSlot, PwqSnapshot, WorkqueueSnapshot,
    WqAttrs, WqKind,
};
use crate::trace::TraceKind;
use crate::{CpuList, Label};

type Task = Box<dyn FnOnce() + Send>;

pub(super) struct Waiting {
    id: u64,
    func: &'static str,
    since: Instant,
    task: Task,
}

pub(super) struct Running {
    func: &'static str,
    since: Instant,
    waited: Duration,
    tid: u32,
}

pub(super) struct State {
    pub(super) max_active: u32,
    pub(super) min_active: u32,
    pub(super) nice: i32,
    pub(super) cpumask: CpuList,
    pub(super) scope: &'static str,
    pub(super) strict: bool,
    pub(super) localize: bool,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) running: Vec<Running>,
    counters: Counters,
    queue_to_start: HistogramSnapshot,
    run_time: HistogramSnapshot,
}

/// A queue. Its threads end with the registry.
pub struct Queue {
    pub(super) name: String,
    pub(super) kind: WqKind,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    registry: Arc<Shared>,
}

impl Queue {
    pub(super) fn new(registry: &Arc<Shared>, name: &str, kind: WqKind, max_active: u32) -> Queue {
        Queue {
            name: name.into(),
            kind,
            state: Mutex::new(State {
                max_active,
                min_active: max_active.min(8),
                nice: 0,
                cpumask: CpuList::from_cpus(0..CPUS),
                scope: "default",
                strict: false,
                localize: false,
                waiting: VecDeque::new(),
                running: Vec::new(),
                counters: Counters::default(),
                queue_to_start: HistogramSnapshot::default(),
                run_time: HistogramSnapshot::default(),
            }),
            changed: Condvar::new(),
            registry: Arc::clone(registry),
        }
    }

    /// Queues an item. Never blocks.
    pub fn push(&self, func: &'static str, task: impl FnOnce() + Send + 'static) {
        let id = self.registry.items.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.counters.queued += 1;
        if state.running.len() as u32 >= state.max_active {
            state.counters.throttled += 1;
        }
        state.waiting.push_back(Waiting {
            id,
            func,
            since: Instant::now(),
            task: Box::new(task),
        });
        let waiting = state.waiting.len() as u64;
        state.counters.peak_waiting = state.counters.peak_waiting.max(waiting);
        drop(state);
        self.registry.trace(TraceKind::QueueWork {
            item: id,
            func: func.into(),
            workqueue: self.name.clone().into(),
            req_cpu: None,
            pool: 0,
        });
        self.changed.notify_one();
    }

    /// Items that have not started.
    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting.len()
    }

    /// What each of its threads does.
    pub(super) fn work(&self) {
        let me = tid();
        loop {
            let mut state = lock(&self.state);
            let item = loop {
                // Ordering: SeqCst, with the store where the registry is dropped; nothing depends on the cost.
                if self.registry.quit.load(Ordering::SeqCst) {
                    return;
                }
                if (state.running.len() as u32) < state.max_active
                    && let Some(item) = state.waiting.pop_front()
                {
                    break item;
                }
                state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
            };
            let start = Instant::now();
            let waited = start - item.since;
            state.counters.started += 1;
            state.queue_to_start.record(ns(waited));
            state.running.push(Running {
                func: item.func,
                since: start,
                waited,
                tid: me,
            });
            let active = state.running.len() as u64;
            state.counters.peak_active = state.counters.peak_active.max(active);
            drop(state);
            let func: Label = item.func.into();
            self.registry.trace(TraceKind::ExecuteStart {
                item: item.id,
                func: func.clone(),
                workqueue: self.name.clone().into(),
                pool: 0,
                waited_ns: ns(waited),
                helped: false,
            });
            (item.task)();
            self.registry.trace(TraceKind::ExecuteEnd {
                item: item.id,
                func,
                panicked: false,
            });
            let ran = start.elapsed();
            let mut state = lock(&self.state);
            state.running.retain(|r| r.tid != me);
            state.counters.completed += 1;
            state.counters.run_time_ns += ns(ran);
            state.counters.cpu_time_ns += ns(ran) / 2;
            state.counters.cpu_local = state.counters.completed / 2;
            state.run_time.record(ns(ran));
            drop(state);
            self.changed.notify_all();
        }
    }

    pub(super) fn snapshot(&self, id: u32, detail: Detail, globals: &Globals) -> WorkqueueSnapshot {
        let state = lock(&self.state);
        let effective: &'static str = if state.scope == "default" {
            globals.default_scope
        } else {
            state.scope
        };
        let mut snapshot = WorkqueueSnapshot {
            id,
            name: self.name.clone(),
            kind: self.kind,
            attrs: WqAttrs {
                nice: state.nice,
                cpumask: state.cpumask.clone(),
                effective_cpumask: state.cpumask.clone(),
                affinity_scope: state.scope.into(),
                effective_scope: effective.into(),
                affinity_strict: state.strict,
                localize: state.localize,
            },
            max_active: state.max_active,
            min_active: state.min_active,
            nr_active: state.running.len() as u32,
            default_pool: Some(1),
            counters: state.counters,
            ..Default::default()
        };
        snapshot.pwqs.push(PwqSnapshot {
            pool: 0,
            refcnt: 1,
            nr_active: state.running.len() as u32,
            nr_in_flight: (state.running.len() + state.waiting.len()) as u32,
            nr_inactive: state.waiting.len() as u32,
            ..Default::default()
        });
        if self.kind == WqKind::Unbound {
            let nr = state.running.len() as u32;
            snapshot.nodes = vec![
                NodeLimit {
                    node: Some(0),
                    nr,
                    max: state.max_active,
                },
                NodeLimit {
                    node: None,
                    nr: 0,
                    max: state.max_active,
                },
            ];
        }
        if detail.topology {
            snapshot.cpu_pool = vec![
                PoolSlot {
                    cpus: CpuList::from_cpus(0..CPUS / 2),
                    pool: Some(0),
                },
                PoolSlot {
                    cpus: CpuList::from_cpus(CPUS / 2..CPUS),
                    pool: None,
                },
            ];
        }
        snapshot.in_flight.total = state.running.len() as u64;
        snapshot.inactive.total = state.waiting.len() as u64;
        if detail.items {
            snapshot.in_flight = ItemList::default();
            snapshot.inactive = ItemList::default();
            for r in &state.running {
                snapshot.in_flight.push(ItemSnapshot {
                    func: r.func.into(),
                    age_ns: ns(r.since.elapsed()),
                    waited_ns: Some(ns(r.waited)),
                    tid: Some(r.tid),
                    ..Default::default()
                });
            }
            for w in &state.waiting {
                snapshot.inactive.push(ItemSnapshot {
                    func: w.func.into(),
                    age_ns: ns(w.since.elapsed()),
                    ..Default::default()
                });
            }
        }
        if detail.histograms {
            snapshot.queue_to_start = state.queue_to_start.clone();
            snapshot.run_time = state.run_time.clone();
        }
        snapshot
    }
}
