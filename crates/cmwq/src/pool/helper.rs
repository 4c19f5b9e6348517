//! A worker with nothing to do at home helps in another pod's pool.
//!
//! It leaves its own pool's idle list (*away*: it is not woken meanwhile), attaches to the other pool as a helper, as a rescuer
//! does, takes one item there, runs it on its own CPU, and settles it there: busy table, counters and limits are those of the
//! item's home pool. It goes on with the next item as long as that waits too and its own pool has neither work nor a full CPU.
//!
//! - H1: a worker that is away counts in neither pool. What is queued at home meanwhile finds another worker.
//! - H2: no two locks are held together: away, attach, take, detach and home are steps of their own.
//! - H3: the memory of the other pool may have been put to another use since it was noted as near: the use is compared with
//!   its lock held, before anything is done.

use super::{RtPool, link_of, run_todo, worker::run_one};
use crate::control::{cpu_time, probe};
use crate::current::{self, WorkerContext};
use crate::item::ItemPtr;
use crate::sys::cpu;
use cmwq_control::trace::TraceKind;
use cmwq_policy::help::FAR_HEDGES;
use cmwq_policy::pool::{Here, Taken, WorkerId, WorkerKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Looks into the near pools and helps in one of them. True if the worker should ask its own pool again: it helped, or was woken.
pub(super) fn help(context: &Arc<WorkerContext>, batch: &mut Vec<Taken<ItemPtr>>) -> bool {
    let WorkerContext {
        rt, pool, worker, ..
    } = &**context;
    let hedge = rt.wakes.hedge_ns();
    let Some((other, this_use, far)) = pool.outward.whom_to_help(hedge, || rt.time.now()) else {
        return false;
    };
    if !pool.with(|p, _| p.go_away(*worker)) {
        return true;
    }
    visit(context, other, this_use, far, batch);
    true
}

fn visit(
    context: &Arc<WorkerContext>,
    other: &'static RtPool,
    this_use: u64,
    far: bool,
    batch: &mut Vec<Taken<ItemPtr>>,
) {
    let WorkerContext {
        rt, pool, shared, ..
    } = &**context;
    let tid = shared.tid.load(Ordering::Relaxed);
    let Some(id) = other.inspect(|inner| {
        if other.outward.this_use() != this_use || inner.key.is_none() {
            return None;
        }
        let now = inner.time.now();
        let id = inner.policy.attach(WorkerKind::Helper, tid as u64, now);
        inner.seat(id, shared);
        Some(id)
    }) else {
        return;
    };
    let there = Arc::new(WorkerContext {
        rt: Arc::clone(rt),
        pool: other,
        worker: id,
        shared: Arc::clone(shared),
    });
    current::enter(there);
    let patience = rt.wakes.hedge_ns() * if far { FAR_HEDGES } else { 1 };
    let mut todo = Vec::new();
    let mut first = true;
    loop {
        let home = pool.outward.outlook();
        let free = first || (home.oldest == 0 && home.spare && !shared.parker.is_notified());
        let here = Here {
            cpu: cpu::current_cpu().unwrap_or(u32::MAX),
            in_pod: false,
        };
        let (took, at) = other.step(&mut todo, |p, drv| {
            let now = drv.now();
            // What was done is counted out before the look at what is left.
            p.finish(id, now, drv);
            let o = p.outlook();
            let old = o.oldest != 0 && now.saturating_sub(o.oldest) >= patience;
            let wanted = old || (o.behind && !far);
            if free && wanted && p.next_attached(id, None, here, now, batch, drv) {
                shared.batch.publish(batch.len(), now);
                return (true, now);
            }
            p.detach(id, now, drv);
            (false, now)
        });
        if !todo.is_empty() {
            run_todo(std::mem::take(&mut todo));
        }
        if !took {
            cpu_time::pause(at);
            break;
        }
        // SAFETY: the entry is ours until it is counted out.
        cpu_time::run(&unsafe { link_of(batch[0].tag) }.wq.records.cpu_time, at);
        pool.outward.note_given();
        probe::worker_event(rt, || TraceKind::Help {
            home_pool: other.id,
            helper_pool: pool.id,
        });
        first = false;
        // SAFETY: the item was queued, and this thread has claimed it.
        unsafe { shared.about_to_run(batch[0].item) };
        run_one(&batch[0]);
        if rt.fork.is_stale() {
            // The item forked and returned in the child, which has no business with our items.
            return;
        }
    }
    current::enter(Arc::clone(context));
    leave_seat(other, id, context);
}

/// The thread has detached; if it was the last one in a pool that nobody uses, the pool is freed.
fn leave_seat(other: &'static RtPool, id: WorkerId, context: &WorkerContext) {
    let unused = other.inspect(|inner| {
        inner.unseat(id, &context.shared);
        inner.users == 0
    });
    if unused {
        context.rt.worker_left(other);
    }
}
