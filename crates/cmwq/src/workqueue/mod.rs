//! Workqueues: what is queued where, how much of it may run, how it is waited for and changed.
//!
//! | file | what |
//! |---|---|
//! | `builder.rs` | making one |
//! | `attrs.rs` | settings that can change while it runs |
//! | `table.rs` | which pool each CPU leads to |
//! | `queue.rs` | the way of an item into a pool |
//! | `room.rs` | tasks that wait for room |
//! | `link.rs` | pwqs: making, retiring and releasing them |
//! | `slot.rs` | active limits |
//! | `flush.rs` | flush, drain, destroy |
//! | `handle.rs` | the public handle |
//! | `stats.rs` | counters and histograms |
//! | `report.rs` | what a snapshot shows of it |

mod attrs;
mod builder;
mod flush;
mod handle;
mod link;
#[cfg(all(test, loom))]
mod models;
mod queue;
mod report;
mod room;
mod slot;
mod stats;
mod table;

pub use attrs::{Attrs, AttrsChange};
pub use builder::{Concurrency, WorkqueueBuilder};
pub use handle::{Queued, Workqueue, WorkqueueKind};
pub(crate) use link::PwqLink;
pub(crate) use queue::Place;
pub(crate) use report::{WqReport, kind_of as wq_kind};
pub use stats::{Stats, TimeStats};

use crate::completion::Completion;
use crate::control::WqRecords;
use crate::pinned::PinnedArc;
use crate::runtime::RtInner;
use crate::shim::sync::{Mutex, MutexGuard, PoisonError};
use cmwq_policy::flush::Flush;
use cmwq_policy::pool::{Pwq, PwqCounters, PwqFlags};
use room::Room;
use slot::SlotShared;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use table::Table;

/// What does not change during a queue's life.
#[derive(Debug, Clone)]
pub(crate) struct WqConfig {
    pub(crate) name: Arc<str>,
    pub(crate) kind: WorkqueueKind,
    pub(crate) flags: PwqFlags,
    pub(crate) freezable: bool,
    pub(crate) highpri: bool,
    pub(crate) kernel_mode: bool,
    pub(crate) managed: bool,
    pub(crate) inline_wait: bool,
    /// 0: no limit.
    pub(crate) max_pending: usize,
    /// A queue of the runtime's own, which nobody may destroy.
    pub(crate) system: bool,
}

/// A workqueue.
pub(crate) struct WqInner {
    pub(crate) config: WqConfig,
    pub(crate) rt: Arc<RtInner>,
    /// Exchanged with `state` locked.
    table: PinnedArc<Table>,
    state: Mutex<WqState>,
    /// No item is accepted any more.
    closed: AtomicBool,
    /// Items queued and not started; counted only if `max_pending` is set.
    pending: AtomicUsize,
    /// Tasks that wait for room.
    room: Room,
    pub(crate) panicked: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) records: WqRecords,
    rescuer: crate::shim::leaf::OnceLock<Arc<crate::rescuer::Rescuer>>,
}

/// What the queue's lock guards.
pub(crate) struct WqState {
    pub(crate) attrs: Attrs,
    pub(crate) max_active: u32,
    pub(crate) min_active: u32,
    pub(crate) flush: Flush<Arc<Completion>>,
    /// All pwqs that are linked, oldest first, retiring ones too.
    pub(crate) links: Vec<Arc<PwqLink>>,
    /// One slot a node, the last for pools that span nodes. Empty unless unbound.
    pub(crate) slots: Vec<Arc<SlotShared>>,
    /// What released pwqs had counted.
    released: Released,
    drainers: u32,
    pub(crate) frozen: bool,
    /// Told when the last pwq of a closed queue is released.
    gone: Vec<Arc<Completion>>,
}

#[derive(Default)]
struct Released {
    counters: PwqCounters,
    wait: cmwq_policy::hist::Histogram,
    run: cmwq_policy::hist::Histogram,
    /// The largest of each pwq's.
    peak_active: u32,
    peak_waiting: u32,
}

impl Released {
    fn add(&mut self, pwq: &Pwq) {
        self.counters.add(&pwq.counters);
        self.wait.merge(&pwq.wait);
        self.run.merge(&pwq.run);
        self.peak_active = self.peak_active.max(pwq.peak_active);
        self.peak_waiting = self.peak_waiting.max(pwq.peak_waiting);
    }
}

impl WqInner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, WqState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.config.name
    }

    /// Whether it runs one item at a time, in order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.config.kind == WorkqueueKind::Ordered
    }

    /// An item panicked.
    pub(crate) fn note_panic(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }

    /// An item was taken to be run.
    #[inline]
    pub(crate) fn started_one(&self) {
        if self.config.max_pending != 0 {
            self.left_pending();
        }
    }

    /// Whether the queue is closed.
    pub(crate) fn is_closed(&self) -> bool {
        // Ordering: Acquire pairs with the Release of `close`.
        self.closed.load(Ordering::Acquire)
    }

    /// Has the rescuer look around, if there is one.
    pub(crate) fn wake_rescuer(&self) {
        if let Some(r) = self.rescuer.get() {
            r.wake();
        }
    }

    /// Calls the rescuer for this pwq.
    pub(crate) fn call_rescuer(&self, link: &Arc<PwqLink>) {
        if let Some(r) = self.rescuer.get() {
            r.call(link);
        }
    }
}

impl std::fmt::Debug for WqInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workqueue")
            .field("name", &self.config.name)
            .field("kind", &self.config.kind)
            .finish_non_exhaustive()
    }
}
