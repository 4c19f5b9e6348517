//! The worker thread.

use super::batch::BatchWord;
use super::{RtPool, helper, link_of, run_todo};
use crate::current::{self, WorkerContext};
use crate::runtime::RtInner;
use crate::sys::cpu;
use crate::sys::parker::Parker;
use cmwq_policy::pool::{Here, Next, Taken, Time};
use cmwq_topology::CpuSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What others may touch of a worker.
#[repr(align(128))]
pub(crate) struct WorkerShared {
    pub(crate) parker: Parker,
    pub(crate) batch: BatchWord,
    pub(crate) tid: AtomicI32,
    /// What the running item calls itself, for dumps.
    description: Mutex<String>,
    /// CPU time of the thread when it last looked, ns.
    pub(crate) cpu_time: AtomicU64,
    /// The worker said that it is about to block.
    pub(crate) away: AtomicBool,
    /// When it was woken last, 0 if that was seen.
    pub(crate) woken_at: AtomicU64,
    /// The CPU where it went to sleep.
    slept_on: AtomicU32,
    /// It was moved to its pod when it was woken; it may roam again once it runs.
    pub(crate) homed: AtomicBool,
    /// Its mask was widened for the item that it runs.
    pub(crate) widened: AtomicBool,
    /// Somebody else set its mask: it is left alone.
    pub(crate) adopted: AtomicBool,
}

/// How often a worker that found nothing lets others run before it sleeps.
const YIELDS: u32 = 3;

/// A worker's first so many wake-ups are timed, of later ones one in [`WAKES_SAMPLE`].
const WAKES_ALL: u32 = 64;
const WAKES_SAMPLE: u32 = 4;

/// The longest worker description that is kept, bytes (kernel: WORKER_DESC_LEN 32, with the terminating zero).
pub(crate) const DESCRIPTION_BYTES: usize = 31;

impl WorkerShared {
    pub(crate) fn new() -> WorkerShared {
        WorkerShared {
            parker: Parker::new(),
            batch: BatchWord::new(),
            tid: AtomicI32::new(0),
            description: Mutex::new(String::new()),
            cpu_time: AtomicU64::new(0),
            away: AtomicBool::new(false),
            woken_at: AtomicU64::new(0),
            slept_on: AtomicU32::new(u32::MAX),
            homed: AtomicBool::new(false),
            widened: AtomicBool::new(false),
            adopted: AtomicBool::new(false),
        }
    }

    /// Whether it went to sleep on a CPU outside these.
    pub(super) fn sleeps_outside(&self, home: &CpuSet) -> bool {
        let cpu = self.slept_on.load(Ordering::Relaxed);
        cpu != u32::MAX && !home.contains(cpu as usize)
    }

    /// Sets the description; cut to what is kept, at a character's boundary.
    pub(crate) fn describe(&self, text: &str) {
        let mut end = text.len().min(DESCRIPTION_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut d = self
            .description
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        d.clear();
        d.push_str(&text[..end]);
    }

    /// The description; kept until the next item starts or sets another.
    pub(crate) fn description(&self) -> String {
        self.description
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The body of a worker thread: joins the pool, works, leaves.
pub(crate) fn worker_main(pool: &'static RtPool, rt: &Arc<RtInner>) {
    let shared = Arc::new(WorkerShared::new());
    let tid = cpu::gettid();
    shared.tid.store(tid, Ordering::Relaxed);
    let Some(pod) = pool.inspect(|inner| inner.key.as_ref().map(|k| k.pod())) else {
        unreachable!("a pool that asked for a worker stays until it came or failed")
    };
    let placed_for = rt.place_worker(pool, tid);
    let now = rt.time.now();
    let id = pool.inspect(|inner| {
        let id = inner.policy.worker_started(tid as u64, now);
        inner.seat(id, &shared);
        id
    });
    rt.place_again_if_changed(pool, tid, &placed_for);
    rt.live.stir();
    let context = Arc::new(WorkerContext {
        rt: Arc::clone(rt),
        pool,
        worker: id,
        shared,
    });
    current::enter(Arc::clone(&context));
    rt.worker_hook(true);
    work(&context, &pod);
    rt.worker_hook(false);
    current::leave();
    rt.worker_left(pool);
}

fn work(context: &Arc<WorkerContext>, pod: &CpuSet) {
    let WorkerContext {
        rt,
        pool,
        worker,
        shared,
    } = &**context;
    let mut batch = Vec::with_capacity(cmwq_policy::pool::BATCH);
    let mut todo = Vec::new();
    let mut wakes: u32 = 0;
    let mut woken_at = 0;
    let mut went_home = false;
    loop {
        let on = cpu::current_cpu().unwrap_or(u32::MAX);
        let here = Here {
            cpu: on,
            in_pod: pod.contains(on as usize),
        };
        let widened = std::mem::take(&mut went_home);
        let homed = shared.homed.load(Ordering::Relaxed);
        let mut looked_at = 0;
        let next = pool.step(&mut todo, |p, drv| {
            let now = drv.now();
            looked_at = now;
            if widened {
                p.count_repatriated(*worker);
            }
            let next = p.next(*worker, here, now, &mut batch, drv);
            if next == Next::Run {
                shared.batch.publish(batch.len(), now);
                if homed {
                    p.count_repatriated(*worker);
                }
            }
            next
        });
        if !todo.is_empty() {
            run_todo(std::mem::take(&mut todo));
        }
        if woken_at != 0 {
            rt.wakes.record(looked_at.saturating_sub(woken_at));
            woken_at = 0;
        }
        if homed && shared.homed.swap(false, Ordering::Relaxed) {
            rt.place_worker(pool, shared.tid.load(Ordering::Relaxed));
        }
        match next {
            Next::Run => {
                run_batch(rt, &batch, shared);
                went_home = shared.widened.load(Ordering::Relaxed) && rt.narrow(pool, shared);
            }
            Next::Idle => {
                if helper::help(context, &mut batch) {
                    continue;
                }
                // An issuer that keeps queueing finds this worker on its way to sleep again and again, at a wake-up (5-10 us
                // for the issuer) each. Letting others run once, at about half a microsecond, lets the queue fill instead.
                for _ in 0..YIELDS {
                    if !shared.parker.is_notified() {
                        crate::sys::sched::yield_now();
                    }
                }
                shared.slept_on.store(on, Ordering::Relaxed);
                let sleeps = !shared.parker.is_notified();
                shared.parker.park();
                rt.live.stir();
                wakes = wakes.wrapping_add(1);
                if sleeps && (wakes < WAKES_ALL || wakes.is_multiple_of(WAKES_SAMPLE)) {
                    woken_at = shared.woken_at.load(Ordering::Relaxed);
                }
            }
            Next::Exit => {
                pool.inspect(|inner| inner.unseat(*worker, shared));
                return;
            }
        }
    }
}

fn run_batch(rt: &RtInner, batch: &[Taken<crate::item::ItemPtr>], shared: &WorkerShared) {
    run_one(&batch[0]);
    for _ in 1..batch.len() {
        let now: Time = rt.time.now();
        let Some(i) = shared.batch.claim(now) else {
            return;
        };
        run_one(&batch[i]);
    }
}

/// Runs an item that this thread has claimed.
#[inline]
pub(crate) fn run_one(t: &Taken<crate::item::ItemPtr>) {
    // SAFETY: the entry is ours until it is counted out, which this thread does or allows only after the item ended.
    let link = unsafe { link_of(t.tag) };
    link.wq.started_one();
    // SAFETY: the policy gave the item to this thread alone, and it was queued.
    unsafe { current::run_item(t.item, link) };
}
