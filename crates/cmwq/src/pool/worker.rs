//! The worker thread.

use super::batch::BatchWord;
use super::company::Company;
use super::{RtPool, helper, link_of, run_todo};
use crate::control::{cpu_time, probe, words};
use crate::current::{self, WorkerContext};
use crate::detect::{Evidence, PlaceWords};
use crate::item::{ItemPtr, VTable};
use crate::runtime::RtInner;
use crate::shim::leaf::{Mutex, PoisonError};
use crate::sys::cpu;
use crate::sys::parker::Parker;
use cmwq_policy::pool::{BirthReason, Here, Next, Taken, Time};
use cmwq_topology::CpuSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What others may touch of a worker.
#[repr(align(128))]
pub(crate) struct WorkerShared {
    pub(crate) parker: Parker,
    pub(crate) batch: BatchWord,
    pub(crate) tid: AtomicI32,
    /// What the running item calls itself, for dumps.
    description: Mutex<String>,
    /// That item is still the one that runs.
    described: AtomicBool,
    /// CPU time of the thread when it last looked, ns.
    pub(crate) cpu_time: AtomicU64,
    /// The worker said that it is about to block.
    pub(crate) away: AtomicBool,
    /// When it was woken last, and by which CPU.
    woken_at: AtomicU64,
    woken_from: AtomicU32,
    /// The CPU where it went to sleep.
    slept_on: AtomicU32,
    /// It was moved to its pod when it was woken; it may roam again once it runs.
    pub(crate) homed: AtomicBool,
    /// Its mask was widened for the item that it runs.
    pub(crate) widened: AtomicBool,
    /// Somebody else set its mask: it is left alone.
    pub(crate) adopted: AtomicBool,
    /// How others find out whether it is blocked.
    pub(crate) evidence: Evidence,
    /// A sentinel woke it to look after its pool: the sentinel's CPU plus 1.
    poked: AtomicU32,
    /// Where it was when it last asked for work.
    last_cpu: AtomicU32,
    /// Which CPUs its thread may use.
    pub(crate) place: PlaceWords,
    /// Whether it stays beside an issuer.
    pub(crate) company: Company,
    /// The kind of the item that runs or ran last.
    kind: AtomicPtr<VTable>,
    /// The name of the reusable item that ran last, and its address for the worker to see whether it must be changed.
    name: Mutex<&'static str>,
    name_key: AtomicPtr<u8>,
    /// The NUMA node where its memory was written first, and so is.
    node: u32,
}

/// Records of workers that have left, for further ones. A record's memory is never given back, so that a sentinel, which may
/// hold no lock and count no reference, can always wake the worker that it read from a pool.
static SPARE: Mutex<Vec<Arc<WorkerShared>>> = Mutex::new(Vec::new());

/// How often a worker that found nothing lets others run before it sleeps.
const YIELDS: u32 = 3;
/// Somebody else took the CPU for this long when it was offered: then a worker that yields gives up its place in the queue for it,
/// and is late when the next item comes (measured beside a busy process: by 4 ms)...
const CROWDED_NS: Time = 100_000;
/// ...so it does not yield for this long.
const CROWDED_FOR_NS: Time = 500_000_000;
/// Nor for this long when it let an issuer go on that waits for its items, and several had gathered: such an issuer does better if it
/// is preempted for each item than if it queues until it has to sleep (measured with four items under way: 8 %).
const GATHERED_FOR_NS: Time = 50_000_000;

/// A worker's first so many wake-ups are timed, of later ones one in [`WAKES_SAMPLE`].
const WAKES_ALL: u32 = 64;
const WAKES_SAMPLE: u32 = 4;

/// The longest worker description that is kept, bytes (kernel: WORKER_DESC_LEN 32, with the terminating zero).
pub(crate) const DESCRIPTION_BYTES: usize = 31;

impl WorkerShared {
    pub(crate) fn new() -> WorkerShared {
        WorkerShared {
            node: cpu::current_node(),
            parker: Parker::new(),
            batch: BatchWord::new(),
            tid: AtomicI32::new(0),
            description: Mutex::new(String::new()),
            described: AtomicBool::new(false),
            cpu_time: AtomicU64::new(0),
            away: AtomicBool::new(false),
            woken_at: AtomicU64::new(0),
            woken_from: AtomicU32::new(u32::MAX),
            slept_on: AtomicU32::new(u32::MAX),
            homed: AtomicBool::new(false),
            widened: AtomicBool::new(false),
            adopted: AtomicBool::new(false),
            evidence: Evidence::default(),
            poked: AtomicU32::new(0),
            last_cpu: AtomicU32::new(u32::MAX),
            place: PlaceWords::default(),
            company: Company::default(),
            kind: AtomicPtr::new(std::ptr::null_mut()),
            name: Mutex::new(""),
            name_key: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// A record for a worker of a pool, in the memory of the NUMA node where the caller is. O(spare records of other nodes).
    pub(crate) fn obtain() -> Arc<WorkerShared> {
        if cfg!(any(loom, shuttle)) {
            return Arc::new(WorkerShared::new());
        }
        let node = cpu::current_node();
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = spare.iter().rposition(|w| w.node == node);
        let found = at.map(|i| spare.swap_remove(i));
        drop(spare);
        found.unwrap_or_else(|| Arc::new(WorkerShared::new()))
    }

    /// The worker has left: its record waits for another one.
    pub(crate) fn give_back(self: Arc<Self>) {
        self.tid.store(0, Ordering::Relaxed);
        self.evidence.forget();
        self.cpu_time.store(0, Ordering::Relaxed);
        self.away.store(false, Ordering::Relaxed);
        self.poked.store(0, Ordering::Relaxed);
        self.slept_on.store(u32::MAX, Ordering::Relaxed);
        for flag in [&self.homed, &self.widened, &self.adopted] {
            flag.store(false, Ordering::Relaxed);
        }
        self.place.forget();
        self.company.forget();
        self.describe("");
        if cfg!(any(loom, shuttle)) {
            return; // a model keeps nothing from one execution to the next
        }
        SPARE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self);
    }

    /// Wakes the worker to look after its pool. For sentinels: takes no lock, allocates nothing.
    pub(crate) fn poke(&self, cpu: u32) {
        if self.parker.is_parked() {
            self.come_to(cpu);
        }
        // Ordering: Release, and the parker's own: who wakes sees the poke.
        self.poked.store(cpu.saturating_add(1), Ordering::Release);
        self.parker.unpark();
    }

    /// Has the worker, which sleeps, wake up on this CPU, which is about to be free. Without this the system wakes it where it
    /// ran last, behind whatever runs there, if all CPUs look busy at that moment. About 1.6 us unless it ran here last.
    pub(crate) fn come_to(&self, cpu: u32) {
        if self.last_cpu.load(Ordering::Relaxed) != cpu {
            self.place.narrow(self.tid.load(Ordering::Relaxed), cpu);
        }
    }

    /// Has the worker, which sleeps, wake up on the CPU of an issuer that waits for it, and stay there as long as that goes on.
    pub(crate) fn keep_company(&self, cpu: u32) {
        if self.company.with() == Some(cpu) {
            return;
        }
        self.leave_company();
        if self.place.narrow(self.tid.load(Ordering::Relaxed), cpu) {
            self.company.begin(cpu);
        }
    }

    /// The worker may run on all its CPUs again, wherever it is. One load if it did.
    #[inline]
    pub(crate) fn leave_company(&self) {
        if self.company.with().is_some() {
            self.company.end();
            self.place.widen_other(self.tid.load(Ordering::Relaxed));
        }
    }

    fn take_poke(&self) -> Option<u32> {
        if self.poked.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Ordering: Acquire pairs with the Release of `poke`.
        self.poked.swap(0, Ordering::Acquire).checked_sub(1)
    }

    /// The worker is about to run this item, which it has claimed.
    ///
    /// # Safety
    /// The item is alive.
    #[inline]
    pub(crate) unsafe fn about_to_run(&self, item: ItemPtr) {
        // SAFETY: passed on to the caller.
        let kind = unsafe { item.header() }.vtable();
        if kind.fixed_name.is_none() {
            // SAFETY: the item is alive.
            let name = unsafe { item.name() };
            let key = name.as_ptr().cast_mut();
            if self.name_key.load(Ordering::Relaxed) != key {
                *self.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
                self.name_key.store(key, Ordering::Relaxed);
            }
        }
        if self.described.load(Ordering::Relaxed) {
            self.described.store(false, Ordering::Relaxed);
        }
        self.kind
            .store(std::ptr::from_ref(kind).cast_mut(), Ordering::Relaxed);
    }

    /// The name of the function that runs, or ran last. Never looks at the item itself, which may be gone.
    pub(crate) fn item_name(&self) -> &'static str {
        // SAFETY: null or a table that lives for ever.
        let Some(kind) = (unsafe { self.kind.load(Ordering::Relaxed).as_ref() }) else {
            return "";
        };
        match kind.fixed_name {
            Some(name) => name(),
            None => *self.name.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// It is woken now.
    #[inline]
    pub(super) fn note_wake(&self, now: Time) {
        self.woken_at.store(now, Ordering::Relaxed);
        self.woken_from
            .store(cpu::current_cpu().unwrap_or(u32::MAX), Ordering::Relaxed);
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
        self.described.store(true, Ordering::Relaxed);
    }

    /// The description; kept until the next item starts or sets another.
    pub(crate) fn description(&self) -> String {
        if !self.described.load(Ordering::Relaxed) {
            return String::new();
        }
        self.description
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The body of a worker thread: joins the pool, works, leaves.
pub(crate) fn worker_main(pool: &'static RtPool, rt: &Arc<RtInner>, why: BirthReason) {
    let tid = cpu::gettid();
    // In its pod first: what it writes to from now on, its stack and its record, is that node's memory.
    let placed_for = rt.place_worker(pool, tid);
    let shared = WorkerShared::obtain();
    shared.tid.store(tid, Ordering::Relaxed);
    let Some(pod) = pool.inspect(|inner| inner.key.as_ref().map(|k| k.pod())) else {
        unreachable!("a pool that asked for a worker stays until it came or failed")
    };
    rt.detect.prepare(&shared);
    rt.note_place(pool, &shared, &placed_for);
    let now = rt.time.now();
    let (id, own) = pool.inspect(|inner| {
        let id = inner.policy.worker_started(tid as u64, now);
        inner.seat(id, &shared);
        inner.births[why as usize] += 1;
        (id, inner.policy.counts().own())
    });
    probe::worker_lives(rt, pool, tid, true, words::birth(why));
    rt.place_again_if_changed(pool, &shared, &placed_for);
    rt.live.stir();
    if own > 2 {
        rt.detect.may_cull(rt, pool);
    }
    let context = Arc::new(WorkerContext {
        rt: Arc::clone(rt),
        pool,
        worker: id,
        shared: Arc::clone(&shared),
        home: None,
    });
    current::enter(Arc::clone(&context));
    rt.worker_hook(true);
    work(&context, &pod);
    if rt.fork.is_stale() {
        return;
    }
    rt.worker_hook(false);
    current::leave();
    shared.give_back();
    rt.worker_left(pool);
}

fn work(context: &Arc<WorkerContext>, pod: &CpuSet) {
    let WorkerContext {
        rt,
        pool,
        worker,
        shared,
        ..
    } = &**context;
    let mut batch = Vec::with_capacity(cmwq_policy::pool::BATCH);
    let mut todo = Vec::new();
    let mut wakes: u32 = 0;
    let mut woken_at = 0;
    let mut went_home = false;
    let mut looked = 0;
    // Its last item was a short one, and little waited behind it.
    let mut brief = false;
    let mut crowded_until: Time = 0;
    // It has let others run before it slept.
    let mut let_others = false;
    loop {
        if !brief || shared.company.with().is_none() {
            shared.company.end();
            shared.place.widen();
        }
        let on = cpu::current_cpu().unwrap_or(u32::MAX);
        shared.last_cpu.store(on, Ordering::Relaxed);
        let here = Here {
            cpu: on,
            in_pod: pod.contains(on as usize),
        };
        let widened = std::mem::take(&mut went_home);
        let homed = shared.homed.load(Ordering::Relaxed);
        let mut looked_at = 0;
        let mut lone = false;
        // Where its waker goes on, a wake-up takes as long as that does: that is not to be measured.
        let elsewhere = shared.woken_from.load(Ordering::Relaxed) != on;
        let (next, at) = pool.step_for_items(&mut todo, |p, drv| {
            let now = drv.now();
            looked_at = now;
            if widened {
                p.count_repatriated(*worker);
            }
            pool.visited(now);
            p.set_wake_cost(rt.wakes.typical_ns());
            if let Some((way, at)) = shared.company.take_woken(elsewhere) {
                p.came(way, now.saturating_sub(at));
            }
            let next = p.next(*worker, here, now, &mut batch, drv);
            brief = p.is_brief();
            if next == Next::Run {
                shared.batch.publish(batch.len(), now);
                lone = batch.len() == 1 && p.waiting() == 0;
                if homed {
                    p.count_repatriated(*worker);
                }
            }
            (next, now)
        });
        match batch.first() {
            // SAFETY: the entry is ours until it is counted out.
            Some(first) => cpu_time::run(&unsafe { link_of(first.tag) }.wq.records.cpu_time, at),
            None => cpu_time::pause(at),
        }
        if !todo.is_empty() {
            run_todo(std::mem::take(&mut todo));
        }
        let gathered = next == Next::Run && !lone;
        if std::mem::take(&mut let_others) && gathered && shared.company.with().is_some() {
            crowded_until = looked_at.saturating_add(GATHERED_FOR_NS);
        }
        // Where more than one item had gathered, the CPU was busy: that says nothing about wake-ups.
        let since = std::mem::take(&mut woken_at);
        if since != 0 && lone && elsewhere {
            rt.wakes.record(looked_at.saturating_sub(since));
        }
        if homed && shared.homed.swap(false, Ordering::Relaxed) {
            rt.place_worker_of(pool, shared);
        }
        match next {
            Next::Run => {
                run_batch(rt, &batch, shared);
                if rt.fork.is_stale() {
                    // The item forked and returned in the child, which has no business with our items.
                    return;
                }
                helper::make_room(context, &mut looked);
                went_home = shared.widened.load(Ordering::Relaxed) && rt.narrow(pool, shared);
            }
            Next::Idle => {
                if helper::help(context, &mut batch) {
                    if rt.fork.is_stale() {
                        return;
                    }
                    continue;
                }
                if rt.spawner.is_starved() {
                    // Another pool can have no thread because of the ceiling: this one, or one that is idle longer, leaves.
                    pool.with(|p, drv| p.spare_one(drv));
                }
                // An issuer that keeps queueing finds this worker on its way to sleep again and again, at a wake-up (5-10 us
                // for the issuer) each. Letting others run once, at about half a microsecond, lets the queue fill instead.
                if looked_at >= crowded_until {
                    for _ in 0..YIELDS {
                        if shared.parker.is_notified() {
                            break;
                        }
                        let_others = true;
                        let before = rt.time.now();
                        crate::sys::sched::yield_now();
                        let after = rt.time.now();
                        if after.saturating_sub(before) > CROWDED_NS {
                            crowded_until = after.saturating_add(CROWDED_FOR_NS);
                            break;
                        }
                    }
                }
                shared.slept_on.store(on, Ordering::Relaxed);
                let sleeps = !shared.parker.is_notified();
                let mut poked = false;
                loop {
                    shared.parker.park();
                    // A sentinel may have woken it, which is only a hint.
                    let Some(cpu) = shared.take_poke() else { break };
                    poked = true;
                    if rt.detect.answer_poke(rt, pool, *worker, cpu) {
                        break;
                    }
                }
                rt.live.stir();
                wakes = wakes.wrapping_add(1);
                let sampled = wakes < WAKES_ALL || wakes.is_multiple_of(WAKES_SAMPLE);
                if sleeps && !poked && sampled {
                    woken_at = shared.woken_at.load(Ordering::Relaxed);
                }
            }
            Next::Exit => {
                let why = pool.forget_worker(*worker, shared);
                rt.note_death(why);
                probe::worker_lives(
                    rt,
                    pool,
                    shared.tid.load(Ordering::Relaxed),
                    false,
                    words::death(why),
                );
                return;
            }
        }
    }
}

fn run_batch(rt: &RtInner, batch: &[Taken<crate::item::ItemPtr>], shared: &WorkerShared) {
    // SAFETY: the item was queued, and this worker has claimed it.
    unsafe { shared.about_to_run(batch[0].item) };
    run_one(&batch[0]);
    for _ in 1..batch.len() {
        if rt.fork.is_stale() {
            return;
        }
        let now: Time = rt.time.now();
        let Some(i) = shared.batch.claim(now) else {
            return;
        };
        if batch[i].tag != batch[i - 1].tag {
            // SAFETY: the entry is ours until it is counted out.
            cpu_time::run(&unsafe { link_of(batch[i].tag) }.wq.records.cpu_time, now);
        }
        // SAFETY: as above.
        unsafe { shared.about_to_run(batch[i].item) };
        run_one(&batch[i]);
    }
}

/// Runs an item that this thread has claimed.
#[inline]
pub(crate) fn run_one(t: &Taken<crate::item::ItemPtr>) {
    // SAFETY: the entry is ours until it is counted out, which this thread does or allows only after the item ended.
    let link = unsafe { link_of(t.tag) };
    link.wq.started_one();
    // SAFETY: the queue's side, which we are, holds the item.
    let named = unsafe { probe::name(t.item) };
    if let Some(named) = named {
        probe::execute_start(named, link, t.entry);
    }
    // SAFETY: the policy gave the item to this thread alone, and it was queued.
    unsafe { current::run_item(t.item, link) };
    if let Some(named) = named {
        probe::execute_end(named, link);
    }
}
