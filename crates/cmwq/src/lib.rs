//! The Linux kernel's concurrency-managed workqueue for one process.
//!
//! A program queues work items; a worker near the issuing CPU (same last-level cache) runs them; the number of running
//! workers follows the CPUs, not the number of items; blocked workers are replaced; limits, placement and priority change
//! while it runs.
//!
//! ```
//! use cmwq::{AffinityScope, DelayedWork, Work, Workqueue};
//! use std::time::Duration;
//!
//! // A queue: a name, a limit, a place.
//! let wq = Workqueue::builder("ingest").max_active(16).affinity_scope(AffinityScope::CacheShard).build()?;
//!
//! // One-shot closures give a handle: join it, await it, cancel it, or drop it to detach.
//! let sum = wq.spawn(|| (1..=100u64).sum::<u64>());
//! assert_eq!(sum.join()?, 5050);
//!
//! // Reusable items: pending at most once, never running concurrently with themselves.
//! let flush = Work::new(|_| { /* write dirty pages */ });
//! wq.queue(&flush)?;
//! flush.flush()?;
//!
//! // After a delay.
//! let tick = DelayedWork::new(|_| {});
//! wq.queue_delayed(&tick, Duration::from_millis(50))?;
//! assert!(tick.cancel());
//!
//! // Closures that borrow.
//! let parts = [1, 2, 3];
//! let total: i32 = wq.scope(|s| {
//!     let handles: Vec<_> = parts.iter().map(|p| s.spawn(move || p * 10)).collect();
//!     handles.into_iter().map(|h| h.join().unwrap()).sum()
//! });
//! assert_eq!(total, 60);
//!
//! // Everything queued before is done; then the queue is gone.
//! wq.flush()?;
//! wq.destroy()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//! - An accepted item runs exactly once, or is reported cancelled; a refused one is handed back or untouched.
//! - A panic of an item is caught, counted and given to who joins it or to the runtime's hook; the worker lives on.
//! - What was done before queueing is seen by the item; what the item did is seen by whoever waited for it.
//! - A waiting thread never runs anything but the item it waits for.
//!
//! # How calls are described
//! Unless its documentation says otherwise, a call does not wait for items ("does not block": it takes locks that are held for
//! microseconds at most), may be made from anywhere, a work item or an async task included, takes constant time, and panics
//! only if the process is out of memory. Calls that wait say "Blocks."; made by a worker they let its pool run another
//! worker meanwhile. Settings of a builder are only stored; `build` checks them.
//!
//! # After a fork
//! In a forked child the workers of the parent's runtimes do not exist. Queueing, waiting and changing settings return errors
//! ([`QueueError::Forked`] and its like), reusable items are idle, numbers read zero, and handles may be dropped: what they
//! stand for is left as it is. A child may make a runtime of its own. `Workqueue::attrs` and `Workqueue::limits` of an inherited
//! queue must not be called: they take a lock that a thread of the parent may have held.
//!
//! # Signals
//! Worker threads block all signals except those that an instruction of the thread itself raises (and `SIGPROF`), so that
//! signals for the process go to the application's own threads. The library installs no handler.

mod blocking;
mod completion;
pub mod control;
mod current;
mod delayed;
mod detect;
mod error;
mod inline;
mod issuer;
mod item;
mod pinned;
mod pool;
mod rescuer;
mod runtime;
mod scope;
pub(crate) mod shim;
#[allow(
    dead_code,
    reason = "the layer offers more than one build of the runtime uses"
)]
pub(crate) mod sys;
mod task;
pub mod testing;
mod timers;
mod work;
mod workqueue;

pub use blocking::blocking;
pub use cmwq_topology::{AffinityScope, CpuSet, Topology};
pub use current::{current_work, describe, is_worker};
pub use delayed::DelayedWork;
pub use detect::{
    DetectorState, DetectorStatus, Detectors, HogReport, Report, StallReport, StalledWorker,
    ThreadCounts,
};
pub use error::{
    AttrsError, BuildError, JoinError, PanicPayload, QueueError, TrySpawnError, WaitError,
};
pub use runtime::{
    CpuMaskError, Leftover, PanicInfo, Placement, Runtime, RuntimeBuilder, ShutdownTimeout, System,
};
pub use scope::{Scope, ScopedHandle};
pub use task::JoinHandle;
pub use work::{Busy, EnableQueueError, NotDisabled, WeakWork, Work};
pub use workqueue::{
    Attrs, AttrsChange, Concurrency, Queued, Stats, TimeStats, Workqueue, WorkqueueBuilder,
    WorkqueueKind,
};
