//! Trace events as a timeline that a browser's trace viewer opens (`chrome://tracing`, Perfetto): the JSON trace event form.
//!
//! One track a thread, with its name. Items are slices named by their function, with an arrow from where they were queued;
//! blocked spans are slices inside them; helps, migrations, hogs and calls for the rescuer are marks.
//!
//! | phase | name | arguments |
//! |---|---|---|
//! | `X` | the function; category `item` | `workqueue`, `item`, `pool`, `cpu`, `waited_us`, `helped`; `panicked`, `unfinished`, `begun_before_us` where they hold |
//! | `X` | `blocked`; category `blocked` | `seen_by`: `said`, `sentinel`, `tick`, or `snapshot` for one that was blocked when the trace began |
//! | `s`, `f` | `queued`; category `queue` | an arrow: the item's `id` |
//! | `i` | `queue_work` | `workqueue`, `func`, `cpu`, `req_cpu`, `pool` |
//! | `i` | `activate_work`, `worker_created`, `worker_exited`, `help`, `widened`, `repatriated`, `cpu_intensive`, `mayday` | what the event carries |
//! | `M` | `process_name`, `thread_name` | `name` |

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{TraceEvent, TraceKind};
use crate::snapshot::{ProcessInfo, Snapshot, WorkerState};

/// What was recorded of a process.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Which process.
    pub process: ProcessInfo,
    /// What happened, in any order.
    pub events: Vec<TraceEvent>,
    /// Events that were dropped.
    pub lost: u64,
    /// Names of threads (see [`TraceChunk::threads`](super::TraceChunk::threads)).
    pub threads: Vec<(u32, String)>,
    /// The workers just after the recording began: items that were running already are drawn from there, and threads without an
    /// event have their name from it.
    pub begun: Option<Snapshot>,
    /// The workqueues recorded (empty: all).
    pub workqueues: Vec<String>,
}

impl Recording {
    fn names(&self) -> BTreeMap<u32, &str> {
        let pools = self.begun.iter().flat_map(|s| &s.pools);
        let workers = pools.flat_map(|p| &p.worker_list);
        let seen = workers.map(|w| (w.tid, w.name.as_str()));
        let said = self.threads.iter().map(|(tid, name)| (*tid, name.as_str()));
        let named = |(tid, name): &(u32, &str)| *tid != 0 && !name.is_empty();
        seen.chain(said).filter(named).collect()
    }
}

/// Writes a whole timeline. Spans that are open at the end are closed at the last event.
///
/// # Errors
/// Only those of `out`.
pub fn write(recording: &Recording, mut out: impl Write) -> io::Result<()> {
    let Recording {
        process,
        events,
        lost,
        ..
    } = recording;
    let mut order: Vec<&TraceEvent> = events.iter().collect();
    order.sort_by_key(|e| e.ns);
    let mut t = Timeline {
        pid: process.pid,
        start: order.first().map_or(0, |e| e.ns),
        items: HashMap::new(),
        blocked: HashMap::new(),
        out: &mut out,
        first: true,
    };
    writeln!(
        t.out,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[",
        json!({
            "program": process.name, "version": process.version, "events_lost": lost,
        })
    )?;
    t.emit(json!({"name": "process_name", "ph": "M", "pid": t.pid, "tid": 0, "args": {"name": process.name}}))?;
    for (tid, name) in recording.names() {
        t.name(tid, name)?;
    }
    if let Some(begun) = &recording.begun {
        t.begin(begun, &order, &recording.workqueues);
    }
    for event in &order {
        t.event(event)?;
    }
    t.finish(order.last().map_or(0, |e| e.ns))?;
    writeln!(t.out, "\n]}}")?;
    out.flush()
}

struct Open {
    name: String,
    from: u64,
    args: Value,
}

struct Timeline<'a, W> {
    pid: u32,
    start: u64,
    /// Per thread: the items that it runs (an item may run another one that it waits for).
    items: HashMap<u32, Vec<Open>>,
    /// Per thread: the blocked span.
    blocked: HashMap<u32, Open>,
    out: &'a mut W,
    first: bool,
}

impl<W: Write> Timeline<'_, W> {
    fn emit(&mut self, value: Value) -> io::Result<()> {
        if !self.first {
            self.out.write_all(b",\n")?;
        }
        self.first = false;
        serde_json::to_writer(&mut self.out, &value)?;
        Ok(())
    }

    fn name(&mut self, tid: u32, name: &str) -> io::Result<()> {
        self.emit(json!({"name": "thread_name", "ph": "M", "pid": self.pid, "tid": tid, "args": {"name": name}}))
    }

    /// Opens the items that ran when the recording began.
    fn begin(&mut self, begun: &Snapshot, order: &[&TraceEvent], wanted: &[String]) {
        if order.is_empty() {
            self.start = begun.clock.monotonic_ns;
        }
        // Whose first event is a start was between two items (or the start is in the recording, too).
        let mut starts = HashSet::new();
        let mut ended = HashSet::new();
        for e in order {
            match e.kind {
                TraceKind::ExecuteStart { .. } if !ended.contains(&e.tid) => {
                    starts.insert(e.tid);
                }
                TraceKind::ExecuteEnd { .. } if !starts.contains(&e.tid) => {
                    ended.insert(e.tid);
                }
                _ => {}
            }
        }
        for pool in &begun.pools {
            for w in &pool.worker_list {
                let recorded = wanted.is_empty() || wanted.contains(&w.workqueue);
                if w.func.is_empty() || !recorded || starts.contains(&w.tid) {
                    continue;
                }
                let before = w.for_ns as f64 / 1000.0;
                let args = json!({
                    "workqueue": w.workqueue, "pool": pool.id, "cpu": w.cpu, "begun_before_us": before,
                });
                self.items.entry(w.tid).or_default().push(Open {
                    name: w.func.to_string(),
                    from: self.start,
                    args,
                });
                if w.state == WorkerState::Blocked {
                    let open = Open {
                        name: "blocked".into(),
                        from: self.start,
                        args: json!({"seen_by": "snapshot", "blocked_on": w.blocked_on}),
                    };
                    self.blocked.insert(w.tid, open);
                }
            }
        }
    }

    /// Microseconds since the first event.
    fn us(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.start) as f64 / 1000.0
    }

    fn slice(&mut self, tid: u32, open: &Open, to: u64, category: &str) -> io::Result<()> {
        let (ts, dur) = (
            self.us(open.from),
            (to.saturating_sub(open.from)) as f64 / 1000.0,
        );
        self.emit(json!({
            "name": open.name, "cat": category, "ph": "X", "pid": self.pid, "tid": tid, "ts": ts, "dur": dur, "args": open.args,
        }))
    }

    fn mark(&mut self, e: &TraceEvent, tid: u32, name: &str, args: Value) -> io::Result<()> {
        let ts = self.us(e.ns);
        self.emit(json!({"name": name, "ph": "i", "s": "t", "pid": self.pid, "tid": tid, "ts": ts, "args": args}))
    }

    fn unblock(&mut self, tid: u32, at: u64) -> io::Result<()> {
        match self.blocked.remove(&tid) {
            Some(open) => self.slice(tid, &open, at, "blocked"),
            None => Ok(()),
        }
    }

    fn event(&mut self, e: &TraceEvent) -> io::Result<()> {
        let ts = self.us(e.ns);
        match &e.kind {
            TraceKind::QueueWork {
                item,
                func,
                workqueue,
                req_cpu,
                pool,
            } => {
                let args = json!({"workqueue": workqueue, "func": func, "cpu": e.cpu, "req_cpu": req_cpu, "pool": pool});
                self.mark(e, e.tid, "queue_work", args)?;
                self.emit(json!({
                    "name": "queued", "cat": "queue", "ph": "s", "id": item, "pid": self.pid, "tid": e.tid, "ts": ts,
                }))
            }
            TraceKind::ActivateWork { item, func } => self.mark(
                e,
                e.tid,
                "activate_work",
                json!({"item": item, "func": func}),
            ),
            TraceKind::ExecuteStart {
                item,
                func,
                workqueue,
                pool,
                waited_ns,
                helped,
            } => {
                let args = json!({
                    "workqueue": workqueue, "item": item, "pool": pool, "cpu": e.cpu,
                    "waited_us": *waited_ns as f64 / 1000.0, "helped": helped,
                });
                self.items.entry(e.tid).or_default().push(Open {
                    name: func.to_string(),
                    from: e.ns,
                    args,
                });
                self.emit(json!({
                    "name": "queued", "cat": "queue", "ph": "f", "bp": "e", "id": item, "pid": self.pid, "tid": e.tid, "ts": ts,
                }))
            }
            TraceKind::ExecuteEnd { panicked, .. } => {
                self.unblock(e.tid, e.ns)?;
                // Without its start (lost, or before the trace) there is no span to draw.
                let Some(mut open) = self.items.get_mut(&e.tid).and_then(Vec::pop) else {
                    return Ok(());
                };
                if *panicked {
                    open.args["panicked"] = true.into();
                }
                self.slice(e.tid, &open, e.ns, "item")
            }
            TraceKind::WorkerBlocked { worker_tid, by } => {
                // Noticed from outside when the item had just ended, or the item of a queue that was not asked for.
                if self.items.get(worker_tid).is_none_or(Vec::is_empty) {
                    return Ok(());
                }
                self.unblock(*worker_tid, e.ns)?;
                let open = Open {
                    name: "blocked".into(),
                    from: e.ns,
                    args: json!({"seen_by": by}),
                };
                self.blocked.insert(*worker_tid, open);
                Ok(())
            }
            TraceKind::WorkerResumed { worker_tid } => self.unblock(*worker_tid, e.ns),
            TraceKind::WorkerCreated {
                worker_tid,
                pool,
                reason,
            } => {
                let name = format!("worker {worker_tid} of pool {pool}");
                self.name(*worker_tid, &name)?;
                self.mark(
                    e,
                    *worker_tid,
                    "worker_created",
                    json!({"reason": reason, "pool": pool}),
                )
            }
            TraceKind::WorkerExited {
                worker_tid,
                pool,
                reason,
            } => self.mark(
                e,
                *worker_tid,
                "worker_exited",
                json!({"reason": reason, "pool": pool}),
            ),
            TraceKind::Help {
                home_pool,
                helper_pool,
            } => self.mark(
                e,
                e.tid,
                "help",
                json!({"home_pool": home_pool, "helper_pool": helper_pool}),
            ),
            TraceKind::Migrate { worker_tid, how } => self.mark(e, *worker_tid, how, json!({})),
            TraceKind::CpuIntensive { worker_tid, func } => {
                self.mark(e, *worker_tid, "cpu_intensive", json!({"func": func}))
            }
            TraceKind::Mayday { workqueue, pool } => self.mark(
                e,
                e.tid,
                "mayday",
                json!({"workqueue": workqueue, "pool": pool}),
            ),
        }
    }

    fn finish(&mut self, end: u64) -> io::Result<()> {
        for (tid, open) in std::mem::take(&mut self.blocked) {
            self.slice(tid, &open, end, "blocked")?;
        }
        for (tid, items) in std::mem::take(&mut self.items) {
            for mut open in items.into_iter().rev() {
                open.args["unfinished"] = true.into();
                self.slice(tid, &open, end, "item")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64, tid: u32, kind: TraceKind) -> TraceEvent {
        TraceEvent {
            ns,
            tid,
            cpu: 0,
            kind,
        }
    }

    fn timeline(events: &[TraceEvent]) -> Vec<Value> {
        timeline_from(events, None)
    }

    fn timeline_from(events: &[TraceEvent], begun: Option<Snapshot>) -> Vec<Value> {
        let mut bytes = Vec::new();
        let recording = Recording {
            process: ProcessInfo {
                pid: 9,
                name: "p".into(),
                ..Default::default()
            },
            events: events.to_vec(),
            lost: 3,
            threads: vec![(1, "main".into())],
            begun,
            ..Default::default()
        };
        write(&recording, &mut bytes).unwrap();
        let all: Value = serde_json::from_slice(&bytes).expect("valid JSON");
        assert_eq!(all["otherData"]["events_lost"], 3);
        all["traceEvents"].as_array().unwrap().clone()
    }

    fn start(item: u64) -> TraceKind {
        TraceKind::ExecuteStart {
            item,
            func: "f".into(),
            workqueue: "q".into(),
            pool: 1,
            waited_ns: 500,
            helped: false,
        }
    }

    fn end(item: u64) -> TraceKind {
        TraceKind::ExecuteEnd {
            item,
            func: "f".into(),
            panicked: false,
        }
    }

    #[test]
    fn items_are_slices_with_arrows_and_blocked_spans() {
        let queue = TraceKind::QueueWork {
            item: 5,
            func: "f".into(),
            workqueue: "q".into(),
            req_cpu: None,
            pool: 1,
        };
        // Out of order on purpose.
        let t = timeline(&[
            at(9_000, 2, end(5)),
            at(1_000, 1, queue),
            at(2_000, 2, start(5)),
            at(
                3_000,
                7,
                TraceKind::WorkerBlocked {
                    worker_tid: 2,
                    by: "tick".into(),
                },
            ),
            at(4_000, 7, TraceKind::WorkerResumed { worker_tid: 2 }),
        ]);
        let find = |ph: &str, name: &str| {
            t.iter()
                .find(|e| e["ph"] == ph && e["name"] == name)
                .unwrap()
                .clone()
        };
        let item = find("X", "f");
        assert_eq!(
            (
                item["ts"].as_f64(),
                item["dur"].as_f64(),
                item["tid"].as_u64()
            ),
            (Some(1.0), Some(7.0), Some(2))
        );
        let blocked = find("X", "blocked");
        assert_eq!(
            (blocked["ts"].as_f64(), blocked["dur"].as_f64()),
            (Some(2.0), Some(1.0))
        );
        assert_eq!(find("s", "queued")["id"], find("f", "queued")["id"]);
    }

    #[test]
    fn items_that_ran_before_are_drawn_from_the_beginning() {
        use crate::snapshot::{PoolSnapshot, WorkerSnapshot};
        let worker = |tid: u32, func: &'static str, state| WorkerSnapshot {
            tid,
            name: format!("cmwq/u{tid}"),
            func: func.into(),
            workqueue: "q".into(),
            for_ns: 4_000,
            state,
            ..Default::default()
        };
        let begun = Snapshot {
            pools: vec![PoolSnapshot {
                worker_list: vec![
                    worker(2, "stuck", WorkerState::Blocked),
                    worker(3, "ends", WorkerState::Running),
                    worker(4, "", WorkerState::Idle),
                    worker(5, "raced", WorkerState::Running),
                ],
                ..Default::default()
            }],
            ..Default::default()
        };
        let t = timeline_from(
            &[
                at(1_000, 5, start(8)),
                at(3_000, 3, end(7)),
                at(4_000, 3, start(9)),
                at(5_000, 3, end(9)),
                at(9_000, 5, end(8)),
            ],
            Some(begun),
        );
        let spans = |name: &str| -> Vec<&Value> {
            t.iter()
                .filter(|e| e["ph"] == "X" && e["name"] == name)
                .collect()
        };
        let stuck = spans("stuck")[0];
        assert_eq!(
            (stuck["ts"].as_f64(), stuck["dur"].as_f64()),
            (Some(0.0), Some(8.0))
        );
        assert_eq!(stuck["args"]["begun_before_us"].as_f64(), Some(4.0));
        assert_eq!(spans("blocked")[0]["tid"], 2);
        assert_eq!(spans("ends")[0]["dur"].as_f64(), Some(2.0));
        assert_eq!(spans("raced").len(), 0, "its start is in the recording");
        assert_eq!(spans("f").len(), 2);
        let named = |tid: u64, name: &str| {
            t.iter()
                .any(|e| e["name"] == "thread_name" && e["tid"] == tid && e["args"]["name"] == name)
        };
        assert!(named(1, "main") && named(2, "cmwq/u2") && named(4, "cmwq/u4"));
    }

    #[test]
    fn a_block_noticed_too_late_is_not_drawn_over_the_next_item() {
        let blocked = TraceKind::WorkerBlocked {
            worker_tid: 2,
            by: "tick".into(),
        };
        let t = timeline(&[
            at(1_000, 2, start(1)),
            at(2_000, 2, end(1)),
            at(2_100, 7, blocked),
            at(3_000, 2, start(2)),
            at(4_000, 2, end(2)),
        ]);
        assert!(!t.iter().any(|e| e["name"] == "blocked"));
        assert_eq!(t.iter().filter(|e| e["ph"] == "X").count(), 2);
    }

    #[test]
    fn lost_starts_and_ends_do_no_harm() {
        let t = timeline(&[at(1, 1, end(1)), at(2, 1, start(2)), at(50, 1, start(3))]);
        let open: Vec<_> = t.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(open.len(), 2);
        assert!(open.iter().all(|e| e["args"]["unfinished"] == true));
        assert_eq!(
            timeline(&[]).len(),
            2,
            "the names of the process and of a thread"
        );
    }
}
