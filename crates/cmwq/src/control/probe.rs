//! Where the runtime says what it does: to a trace that is being recorded, and to `tracing` subscribers (feature `tracing`).
//!
//! The first four events carry the kernel's tracepoint names and are told to both. While nobody listens, each call is one
//! relaxed load (two with the feature). Subscribers are called with no lock of the runtime held, so they may do anything
//! that the calling thread may.

use super::recorder::{self, Event};
use crate::current;
use crate::item::ItemPtr;
use crate::pool::{RtPool, WorkerShared};
use crate::runtime::RtInner;
use crate::workqueue::{PwqLink, WqInner};
use cmwq_control::Label;
use cmwq_control::trace::TraceKind;
use cmwq_policy::pool::WorkerKind;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    /// The item that this thread runs has panicked.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether anybody listens.
#[inline]
pub(crate) fn on() -> bool {
    recorder::on() || subscribed()
}

#[cfg(feature = "tracing")]
#[inline]
fn subscribed() -> bool {
    tracing::enabled!(target: "cmwq", tracing::Level::TRACE)
}

#[cfg(not(feature = "tracing"))]
#[inline]
const fn subscribed() -> bool {
    false
}

// Without the feature nobody can subscribe: the compiler knows, so nothing is left of it.
#[cfg(not(feature = "tracing"))]
const _: () = assert!(!subscribed());

/// What is said of an item.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    id: u64,
    func: &'static str,
}

/// The item's number and function, if anybody listens.
///
/// # Safety
/// The item is alive.
#[inline]
pub(crate) unsafe fn name(item: ItemPtr) -> Option<Named> {
    on().then(|| Named {
        id: item.as_ptr().addr().get() as u64,
        // SAFETY: passed on to the caller.
        func: unsafe { item.name() },
    })
}

/// An item was queued: `queue_work`. The item may be gone.
#[cold]
pub(crate) fn queue_work(item: Named, wq: &WqInner, req_cpu: Option<usize>, pool: u32) {
    let req_cpu = req_cpu.map(|cpu| cpu as u32);
    wq.rt
        .records
        .tracer
        .record(Some(wq.name()), || Event::Queue {
            item: item.id,
            func: item.func,
            wq: Arc::clone(wq.name()),
            req_cpu,
            pool,
        });
    #[cfg(feature = "tracing")]
    tracing::trace!(
        name: "queue_work",
        target: "cmwq",
        work = item.id,
        function = item.func,
        workqueue = &**wq.name(),
        req_cpu,
        pool,
        "queue_work"
    );
}

/// The limits allow an item to run: `activate_work`. The item may be gone.
#[cold]
pub(crate) fn activate_work(item: Named, wq: &WqInner) {
    wq.rt.records.tracer.record(Some(wq.name()), || {
        Event::Other(TraceKind::ActivateWork {
            item: item.id,
            func: item.func.into(),
        })
    });
    #[cfg(feature = "tracing")]
    tracing::trace!(name: "activate_work", target: "cmwq", work = item.id, function = item.func, "activate_work");
}

/// An item starts to run: `execute_start`. `entry`: where its pool keeps it.
#[cold]
pub(crate) fn execute_start(item: Named, link: &PwqLink, entry: u32) {
    PANICKED.set(false);
    let wq = &link.wq;
    let worker = current::worker();
    let (waited_ns, kind) = link.pool.inspect(|inner| {
        let queued_at = inner.policy.entry(entry).map(|e| e.queued_at);
        let kind = worker
            .as_ref()
            .filter(|w| std::ptr::eq(w.pool, link.pool))
            .and_then(|w| inner.policy.worker(w.worker))
            .map(|w| w.kind);
        (
            queued_at.map_or(0, |at| wq.rt.time.now().saturating_sub(at)),
            kind,
        )
    });
    let helped = kind != Some(WorkerKind::Normal);
    let pool = link.pool.id;
    wq.rt
        .records
        .tracer
        .record(Some(wq.name()), || Event::Start {
            item: item.id,
            func: item.func,
            wq: Arc::clone(wq.name()),
            pool,
            waited_ns,
            helped,
        });
    #[cfg(feature = "tracing")]
    tracing::trace!(
        name: "execute_start",
        target: "cmwq",
        work = item.id,
        function = item.func,
        workqueue = &**wq.name(),
        pool,
        waited_ns,
        helped,
        "execute_start"
    );
}

/// The item ended: `execute_end`. It may be gone.
#[cold]
pub(crate) fn execute_end(item: Named, link: &PwqLink) {
    let panicked = PANICKED.replace(false);
    let wq = &link.wq;
    if wq.rt.fork.is_stale() {
        // The item forked and came back in the child: what others held at that moment may be held for ever here.
        return;
    }
    wq.rt.records.tracer.record(Some(wq.name()), || {
        Event::Other(TraceKind::ExecuteEnd {
            item: item.id,
            func: item.func.into(),
            panicked,
        })
    });
    #[cfg(feature = "tracing")]
    tracing::trace!(
        name: "execute_end",
        target: "cmwq",
        work = item.id,
        function = item.func,
        panicked,
        "execute_end"
    );
}

/// The item that this thread runs has panicked.
pub(crate) fn note_panic() {
    if on() {
        let _ = PANICKED.try_with(|p| p.set(true));
    }
}

/// Something about a worker happened.
#[inline]
pub(crate) fn worker_event(rt: &RtInner, kind: impl FnOnce() -> TraceKind) {
    if recorder::on() {
        rt.records.tracer.record(None, || Event::Other(kind()));
    }
}

/// A worker came into a pool, or left it.
pub(crate) fn worker_lives(
    rt: &RtInner,
    pool: &RtPool,
    tid: i32,
    born: bool,
    reason: &'static str,
) {
    worker_event(rt, || {
        let (worker_tid, pool, reason) = (tid as u32, pool.id, Label::from(reason));
        if born {
            TraceKind::WorkerCreated {
                worker_tid,
                pool,
                reason,
            }
        } else {
            TraceKind::WorkerExited {
                worker_tid,
                pool,
                reason,
            }
        }
    });
}

/// Another thread than the worker's found it blocked in its item, or running again after that; `by`: which mechanism.
pub(crate) fn noticed(rt: &RtInner, worker: &WorkerShared, blocked: Option<&'static str>) {
    worker_event(rt, || {
        let worker_tid = worker.tid.load(Ordering::Relaxed) as u32;
        match blocked {
            Some(by) => TraceKind::WorkerBlocked {
                worker_tid,
                by: by.into(),
            },
            None => TraceKind::WorkerResumed { worker_tid },
        }
    });
}

/// An item was found to keep its CPU.
pub(crate) fn cpu_intensive(rt: &RtInner, worker: &WorkerShared, func: &'static str) {
    worker_event(rt, || TraceKind::CpuIntensive {
        worker_tid: worker.tid.load(Ordering::Relaxed) as u32,
        func: func.into(),
    });
}

/// A worker's CPU mask was changed for an item: `widened`, or `repatriated` afterwards.
pub(crate) fn migrated(rt: &RtInner, tid: i32, how: &'static str) {
    worker_event(rt, || TraceKind::Migrate {
        worker_tid: tid as u32,
        how: how.into(),
    });
}

/// A queue's rescuer was called.
pub(crate) fn mayday(wq: &WqInner, pool: u32) {
    if recorder::on() {
        wq.rt
            .records
            .tracer
            .record(Some(wq.name()), || Event::Mayday {
                wq: Arc::clone(wq.name()),
                pool,
            });
    }
}
