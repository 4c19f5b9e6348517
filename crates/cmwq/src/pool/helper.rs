//! A worker with nothing to do at home helps in another pod's pool.
//!
//! It leaves its own pool's idle list (*away*: it is not woken meanwhile), attaches to the other pool as a helper, as a rescuer
//! does, takes one item there, runs it on its own CPU, and settles it there: busy table, counters and limits are those of the
//! item's home pool. It goes on with the next item as long as a backlog stands there, its own pool has neither work nor a full CPU, and
//! nobody else wants the CPU. A worker that finds its own pool behind while others want its CPU makes room for them, if helpers can
//! be had.
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
use cmwq_policy::help::ASIDE_NS;
use cmwq_policy::pool::{Here, Taken, Time, WorkerId, WorkerKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A yield that takes this long has let somebody else run: alone it takes half a microsecond.
const WANTED_NS: u64 = 20_000;
/// A worker that helps, or whose pool is behind, looks this often whether others want its CPU: that costs it one part in a hundred.
const LOOK_NS: u64 = 50_000;

/// Looks into the near pools and helps in one of them. True if the worker should ask its own pool again: it helped, or was woken.
pub(super) fn help(context: &Arc<WorkerContext>, batch: &mut Vec<Taken<ItemPtr>>) -> bool {
    let WorkerContext {
        rt,
        pool,
        worker,
        shared,
        ..
    } = &**context;
    let hedge = rt.wakes.hedge_ns();
    let Some((other, this_use, far)) = pool.outward.whom_to_help(hedge, || rt.time.now()) else {
        return false;
    };
    if cpu_is_wanted(context) {
        // That it would have been called again and again is what the pod is spared now.
        pool.outward.came_in_vain(rt.time.now());
        return shared.parker.is_notified();
    }
    if !pool.with(|p, _| p.go_away(*worker)) {
        return true;
    }
    visit(context, other, this_use, far, batch);
    true
}

/// Whether others want the caller's CPU: it lets them run, and looks how long that took; if long, once again, as they may be done,
/// or the system may have moved the caller to a free CPU. About half a microsecond if nobody does.
fn cpu_is_wanted(context: &WorkerContext) -> bool {
    let yields_long = || {
        let before = context.rt.time.now();
        crate::sys::sched::yield_now();
        context.rt.time.now().saturating_sub(before) >= WANTED_NS
    };
    yields_long() && yields_long()
}

/// Between two batches: if more waits than the pool gets done, others want this worker's CPU, and near pods have CPUs to spare, the
/// pool leaves this CPU to the others for a while. Looks at most once in [`LOOK_NS`]; `looked` is when it last did.
#[inline]
pub(super) fn make_room(context: &Arc<WorkerContext>, looked: &mut Time) {
    let outward = &context.pool.outward;
    if outward.outlook().behind {
        make_room_slowly(context, looked);
    }
}

#[cold]
fn make_room_slowly(context: &Arc<WorkerContext>, looked: &mut Time) {
    let WorkerContext {
        rt, pool, worker, ..
    } = &**context;
    let now = rt.time.now();
    if now.saturating_sub(*looked) < LOOK_NS {
        return;
    }
    *looked = now;
    let old = now.saturating_sub(pool.outward.outlook().oldest) >= rt.wakes.hedge_ns();
    if !pool.outward.spare_near(old, now) {
        return;
    }
    // What was done is counted out first: the wait may be long.
    pool.with(|p, drv| {
        let now = drv.now();
        p.finish(*worker, now, drv);
    });
    if cpu_is_wanted(context) {
        pool.with(|p, drv| p.step_aside(ASIDE_NS, drv.now()));
    }
}

fn visit(
    context: &Arc<WorkerContext>,
    other: &'static RtPool,
    this_use: u64,
    far: bool,
    batch: &mut Vec<Taken<ItemPtr>>,
) {
    let WorkerContext {
        rt,
        pool,
        worker,
        shared,
        ..
    } = &**context;
    // Others' items are no reason to stay beside an issuer.
    shared.leave_company();
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
        home: Some((pool, *worker)),
    });
    current::enter(there);
    let hedge = rt.wakes.hedge_ns();
    let mut looked = rt.time.now();
    let mut todo = Vec::new();
    let mut first = true;
    let mut wanted_here = false;
    loop {
        let home = pool.outward.outlook();
        let needed_at_home = home.oldest != 0 || !home.spare || shared.parker.is_notified();
        let free = first || !(needed_at_home || wanted_here);
        let here = Here {
            cpu: cpu::current_cpu().unwrap_or(u32::MAX),
            in_pod: false,
        };
        let (took, at) = other.step(&mut todo, |p, drv| {
            let now = drv.now();
            // What was done is counted out before the look at what is left.
            p.finish(id, now, drv);
            if free
                && p.keeps_helper(far, hedge, now)
                && p.next_attached(id, None, here, now, batch, drv)
            {
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
        let now = rt.time.now();
        if now.saturating_sub(looked) >= LOOK_NS {
            looked = now;
            other.with(|p, drv| {
                let now = drv.now();
                p.finish(id, now, drv);
            });
            wanted_here = cpu_is_wanted(context);
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
