//! The events of a timeline: who queued, which pool, who ran it where, blocked spans, helps, migrations.
//!
//! The first four kinds carry the kernel's tracepoint names. Queue to activate is the delay by limits; activate to start is
//! the delay of dispatch.

#[cfg(feature = "protocol")]
pub mod chrome;

use crate::Label;

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct TraceOptions {
    /// The most events kept in memory between two polls; more are dropped and counted.
    pub buffer_events: u32,
    /// Only these queues (empty: all).
    pub workqueues: Vec<String>,
}

impl Default for TraceOptions {
    fn default() -> Self {
        TraceOptions {
            buffer_events: 1 << 16,
            workqueues: Vec::new(),
        }
    }
}

/// Events taken out of the buffers.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct TraceChunk {
    /// The events, in no particular order across threads, ascending in time within one thread.
    pub events: Vec<TraceEvent>,
    /// Events dropped since the trace started because buffers were full.
    pub lost: u64,
    /// Whether more are buffered.
    pub more: bool,
    /// The thread ids and names of the threads whose first events are in this chunk.
    pub threads: Vec<(u32, String)>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TraceEvent {
    /// `CLOCK_MONOTONIC`, ns.
    pub ns: u64,
    /// The thread that recorded it.
    pub tid: u32,
    /// The CPU on which it was recorded.
    pub cpu: u32,
    /// What happened.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub kind: TraceKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(tag = "event", rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum TraceKind {
    /// An item was queued.
    QueueWork {
        /// Identifies the item among those alive.
        item: u64,
        /// Its function.
        func: Label,
        /// Its workqueue.
        workqueue: Label,
        /// The CPU that was asked for; `None`: the local one.
        req_cpu: Option<u32>,
        /// The pool that was chosen.
        pool: u32,
    },
    /// An item became active (limits allow it to run).
    ActivateWork {
        /// The item.
        item: u64,
        /// Its function.
        func: Label,
    },
    /// An item starts to run.
    ExecuteStart {
        /// The item.
        item: u64,
        /// Its function.
        func: Label,
        /// Its workqueue.
        workqueue: Label,
        /// Its home pool.
        pool: u32,
        /// How long it waited since it was queued, ns.
        waited_ns: u64,
        /// Whether a worker of another pod (or a waiter, or the rescuer) runs it.
        helped: bool,
    },
    /// An item ended.
    ExecuteEnd {
        /// The item.
        item: u64,
        /// Its function.
        func: Label,
        /// Whether it panicked.
        panicked: bool,
    },
    /// The worker that recorded it, or the one named, was found blocked in its item.
    WorkerBlocked {
        /// The worker.
        worker_tid: u32,
        /// By which mechanism: `said`, `sentinel`, `tick`, `records`.
        by: Label,
    },
    /// A blocked worker runs again.
    WorkerResumed {
        /// The worker.
        worker_tid: u32,
    },
    /// A worker was made.
    WorkerCreated {
        /// The worker.
        worker_tid: u32,
        /// Its pool.
        pool: u32,
        /// Why (see [`reasons`](crate::snapshot::reasons)).
        reason: Label,
    },
    /// A worker ended.
    WorkerExited {
        /// The worker.
        worker_tid: u32,
        /// Its pool.
        pool: u32,
        /// Why.
        reason: Label,
    },
    /// A worker took an item of another pod.
    Help {
        /// The item's home pool.
        home_pool: u32,
        /// The helper's pool.
        helper_pool: u32,
    },
    /// A worker's affinity was changed.
    Migrate {
        /// The worker.
        worker_tid: u32,
        /// `widened` or `repatriated`.
        how: Label,
    },
    /// An item was found to hog its CPU.
    CpuIntensive {
        /// The worker that runs it.
        worker_tid: u32,
        /// The item's function.
        func: Label,
    },
    /// A queue's rescuer was called.
    Mayday {
        /// The queue.
        workqueue: Label,
        /// The pool in distress.
        pool: u32,
    },
}
