//! What a runtime and its queues remember for nobody but those who look at them.

use super::recorder::Tracer;
use super::waits::Waits;
use crate::shim::leaf::{Mutex, PoisonError};
use crate::sys::thread::SpawnError;
use cmwq_policy::pool::PoolConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// What a runtime remembers.
pub(crate) struct Records {
    /// When it was made: Unix time, ms.
    pub(super) started_unix_ms: u64,
    next_wq: AtomicU32,
    peak_threads: AtomicUsize,
    refused_by_ceiling: AtomicU64,
    last_failure: Mutex<String>,
    /// When the fairness rule grants an extra worker, ns; 0: never.
    pub(crate) fairness_ns: AtomicU64,
    /// Timeline recording.
    pub(crate) tracer: Tracer,
    /// Threads that wait for work items.
    pub(crate) waits: Waits,
}

impl Records {
    pub(crate) fn new() -> Records {
        Records {
            started_unix_ms: unix_ms(),
            next_wq: AtomicU32::new(0),
            peak_threads: AtomicUsize::new(0),
            refused_by_ceiling: AtomicU64::new(0),
            last_failure: Mutex::default(),
            fairness_ns: AtomicU64::new(PoolConfig::default().fairness_ns),
            tracer: Tracer::default(),
            waits: Waits::default(),
        }
    }

    /// The number of a new queue.
    pub(crate) fn number_wq(&self) -> u32 {
        self.next_wq.fetch_add(1, Ordering::Relaxed)
    }

    /// So many worker threads exist or are being made.
    pub(crate) fn note_threads(&self, n: usize) {
        self.peak_threads.fetch_max(n, Ordering::Relaxed);
    }

    /// The most worker threads there were at once.
    pub(super) fn peak_threads(&self) -> usize {
        self.peak_threads.load(Ordering::Relaxed)
    }

    /// A worker could not be made.
    pub(crate) fn note_failure(&self, e: &SpawnError) {
        if matches!(e, SpawnError::Ceiling) {
            self.refused_by_ceiling.fetch_add(1, Ordering::Relaxed);
        }
        *self
            .last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = e.to_string();
    }

    pub(super) fn refused_by_ceiling(&self) -> u64 {
        self.refused_by_ceiling.load(Ordering::Relaxed)
    }

    pub(super) fn last_failure(&self) -> String {
        self.last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// What a queue remembers besides its pwqs' counters.
pub(crate) struct WqRecords {
    /// Its number, unique in the runtime's life.
    pub(crate) id: u32,
    /// Requests that found the item pending.
    already_pending: AtomicU64,
    /// Delayed items whose time has not come.
    delayed: AtomicU64,
    /// Items whose worker was let out of its pod.
    widened: AtomicU64,
    /// CPU time of the threads that ran its items, as far as it was read, ns. See [`super::cpu_time`].
    pub(crate) cpu_time: Arc<AtomicU64>,
    /// The largest CPU time that was shown: what is shown next is not less.
    cpu_shown: AtomicU64,
}

impl WqRecords {
    pub(crate) fn new(id: u32) -> WqRecords {
        WqRecords {
            id,
            already_pending: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            widened: AtomicU64::new(0),
            cpu_time: Arc::default(),
            cpu_shown: AtomicU64::new(0),
        }
    }

    /// A request found the item pending.
    pub(crate) fn note_already_pending(&self) {
        self.already_pending.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn already_pending(&self) -> u64 {
        self.already_pending.load(Ordering::Relaxed)
    }

    /// An item was armed.
    pub(crate) fn note_armed(&self) {
        self.delayed.fetch_add(1, Ordering::Relaxed);
    }

    /// An item is not armed any more.
    pub(crate) fn note_disarmed(&self) {
        self.delayed.fetch_sub(1, Ordering::Relaxed);
    }

    /// An item's worker was let out of its pod.
    pub(crate) fn note_widened(&self) {
        self.widened.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn widened(&self) -> u64 {
        self.widened.load(Ordering::Relaxed)
    }

    pub(crate) fn delayed(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    /// The CPU time to show: `known`, read from [`cpu_time`](Self::cpu_time) before the workers were looked at, and what they
    /// have used since they last read their clocks. Never less than what was shown before.
    pub(super) fn show_cpu_time(&self, known: u64, running: u64) -> u64 {
        let now = known.saturating_add(running);
        self.cpu_shown.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

/// Unix time, ms; 0 before 1970.
pub(super) fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
