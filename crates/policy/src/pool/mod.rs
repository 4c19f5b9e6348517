//! A worker pool: what is queued in it, who works in it, and how many may run.
//!
//! Everything here is guarded by one lock (the driver's), so it is plain data. Whatever must happen outside the lock goes
//! out through [`Driver`]; what concerns another lock (an active-limit slot, a queue's flush state) goes out as a request
//! that the driver carries out as a step of its own after it dropped this pool's lock.
//!
//! | file | what |
//! |---|---|
//! | [`entry`](self) | an item's entry, its places |
//! | `pwq.rs` | the link of one workqueue and this pool: limits, inactive items, colours, counters |
//! | `queue.rs` | enqueue, activate, remove, barriers, flush colours |
//! | `worker.rs` | worker states, the idle list, waking, creating, culling |
//! | `run.rs` | taking items, collisions, settling what was done |
//! | `manage.rs` | blocked workers, hogs, fairness, the liveness floor, mayday |
//! | `nearby.rs` | which item a worker takes first, which worker is woken and how |
//! | `outward.rs` | what other pods may see of the pool, and offers to them |

mod entry;
mod manage;
mod nearby;
#[cfg(test)]
mod notes;
mod outward;
mod pwq;
mod queue;
mod run;
mod worker;

pub use entry::{Entry, Place};
pub use manage::{
    BATCH_PATIENCE_NS, Backlog, FLOOR_FIRST_NS, FairnessConfig, HogVerdict, LONG_WAIT_NS,
    MAYDAY_INITIAL_NS, MAYDAY_INTERVAL_NS,
};
pub use outward::{CALL_PATIENCE_NS, Offer, Outlook};
pub use pwq::{COLOURS, Pwq, PwqConfig, PwqCounters, PwqFlags};
pub use queue::{Enqueue, Refused, Removed};
pub use run::{Here, Next, Taken};
pub use worker::{
    BirthReason, CREATE_COOLDOWN_NS, DeathReason, IDLE_TIMEOUT_NS, MAX_IDLE_RATIO, WAKE_COST_NS,
    WAKE_PATIENCE_NS, Worker, WorkerCounts, WorkerKind, WorkerState,
};

use crate::list::{Arena, List, NIL};

/// Nanoseconds on the driver's monotonic clock.
pub type Time = u64;
/// A worker of one pool.
pub type WorkerId = u32;
/// A link of one workqueue and one pool, within the pool.
pub type PwqId = u32;
/// An entry of the pool.
pub type EntryId = u32;
/// The driver's own name for a pwq, handed back in requests.
pub type PwqTag = u64;

/// The most items a worker takes per hold of the lock.
pub const BATCH: usize = 16;

/// What stands for a work item here. Copied around, compared, hashed; never looked into.
pub trait Token: Copy + Eq {
    /// Spreads items over the busy table.
    fn hash(self) -> usize;

    /// What [`Driver::activated`] is told of the item.
    #[inline]
    fn mark(self) -> u64 {
        0
    }
}

impl Token for u32 {
    fn hash(self) -> usize {
        self as usize
    }
}

/// What the policy asks of whoever drives it (the runtime or the simulator). `W` stands for somebody who waits for an item.
///
/// All calls are made with the pool's lock held and must not block; "later" means after the lock was dropped, in the order
/// of the calls.
pub trait Driver<W> {
    /// Later: make this idle worker run. Called once per wake-up; the worker then calls [`Pool::next`].
    fn wake(&mut self, worker: WorkerId);
    /// Later: have one more worker made; the answer is [`Pool::worker_started`] or [`Pool::creation_failed`].
    fn create(&mut self, reason: BirthReason);
    /// Later: this waiter's item is done or gone.
    fn barrier(&mut self, waiter: W);
    /// Later: nothing of this colour is in flight in this pwq any more (it had been armed).
    fn flushed(&mut self, pwq: PwqTag, colour: u8);
    /// Later: ask the pwq's slot for permits; the answer, perhaps much later, is [`Pool::grant`].
    fn ask(&mut self, pwq: PwqTag);
    /// Later: hand permits back to the pwq's slot.
    fn give_back(&mut self, pwq: PwqTag, n: u32);
    /// Later: this retiring pwq has nothing left.
    fn drained(&mut self, pwq: PwqTag);
    /// Later: the rescuer of this pwq's queue is wanted in this pool.
    fn mayday(&mut self, pwq: PwqTag);
    /// Now: an item (as its [`Token::mark`]) has become active: nothing but a free worker is missing. For traces.
    #[inline]
    fn activated(&mut self, item: u64, pwq: PwqTag) {
        let _ = (item, pwq);
    }
    /// Now: whether others wait for permits of this pwq's slot (a hint that may lag, see `slot.rs`).
    fn contended(&self, pwq: PwqTag) -> bool;
    /// Now: how many entries of its batch the worker has claimed.
    fn claimed(&self, worker: WorkerId) -> u32;
    /// Now: stop the worker from claiming more; returns how many it has claimed. Later calls return the same.
    fn recall(&mut self, worker: WorkerId) -> u32;
    /// Now: when the worker started the `i`-th entry of its batch. Called for claimed entries only.
    fn start_stamp(&self, worker: WorkerId, i: u32) -> Time;
}

/// What kind of pool; decides how it is managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// One CPU's pool: a hog stops counting, nobody helps.
    PerCpu,
    /// A pod's pool: managed up to the pod's usable CPUs.
    Unbound,
    /// A pod's pool without concurrency management: every active item gets a worker, as in the kernel.
    Unmanaged,
}

/// A pool's settings.
#[derive(Debug, Clone, Copy)]
pub struct PoolConfig {
    /// How it is managed.
    pub kind: PoolKind,
    /// How many workers may run at once; at least 1. Ignored by unmanaged pools.
    pub target: u32,
    /// The most workers this pool may have.
    pub max_workers: u32,
    /// Whether per-queue histograms are kept.
    pub histograms: bool,
    /// Whether a pool that works keeps one idle worker in reserve (kernel: may_start_working).
    pub reserve: bool,
    /// How long the first item of a queue may wait before the queue is owed a worker, ns; 0 = never.
    pub fairness_ns: u64,
    /// CPU time after which an item is a hog, ns; 0 = never.
    pub hog_ns: u64,
    /// The most extra workers that hogs may add in an unbound pool (its usable CPUs).
    pub hog_extra: u32,
    /// What a wake-up costs on this machine until the worker runs, ns; see [`WAKE_COST_NS`]. One more worker is called only
    /// if that pays.
    pub wake_cost_ns: u64,
    /// Whether workers that worked less than a millisecond ago may stay although one more than the target runs.
    pub linger_ns: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            kind: PoolKind::Unbound,
            target: 1,
            max_workers: u32::MAX,
            histograms: true,
            reserve: true,
            fairness_ns: 10_000_000,
            hog_ns: 10_000_000,
            hog_extra: 1,
            wake_cost_ns: WAKE_COST_NS,
            linger_ns: 200_000,
        }
    }
}

/// The state of a worker pool. `T` names items, `W` those who wait for one.
#[derive(Debug, Clone)]
pub struct Pool<T, W> {
    config: PoolConfig,
    entries: Arena<Entry<T>>,
    /// Active items that no worker has, first come first served.
    worklist: List,
    pwqs: Arena<Pwq>,
    workers: Arena<Worker<T>>,
    /// Idle workers, the most recently idle first.
    idle: List,
    /// Heads of the chains of workers that run a reusable item, by the item's hash.
    busy: [u32; BUSY_BUCKETS],
    barriers: Arena<Barrier<W>>,
    counts: WorkerCounts,
    manage: manage::Manage,
    /// How many pwqs have an armed colour: while there are any, workers take one item at a time.
    armed_pwqs: u32,
    /// What items took lately, ns; a mean over about the last sixteen.
    average_run_ns: u64,
    /// How many workers may have items in their batch that nobody has claimed.
    open_batches: u32,
    /// Items that the driver has still to queue; see [`Pool::expect`].
    expected: usize,
    near: crate::near::Near,
    last_progress: Time,
    /// The CPU where a worker began last.
    started_on: u32,
    /// Of every CPU its core; see [`Pool::set_cores`].
    cores: std::sync::Arc<[u32]>,
    /// Since when items wait without a break.
    waiting_since: Time,
    /// When the worker that is on its way was woken.
    waking_since: Time,
    no_create_before: Time,
    disassociated: bool,
    closing: bool,
    /// Calls for helpers of other pods.
    offers: outward::Offers,
}

const BUSY_BUCKETS: usize = 64;

#[derive(Debug, Clone)]
struct Barrier<W> {
    waiter: W,
    next: u32,
}

impl<T: Token, W> Pool<T, W> {
    /// An empty pool without workers.
    pub fn new(config: PoolConfig) -> Self {
        Pool {
            config,
            entries: Arena::default(),
            worklist: List::default(),
            pwqs: Arena::default(),
            workers: Arena::default(),
            idle: List::default(),
            busy: [NIL; BUSY_BUCKETS],
            barriers: Arena::default(),
            counts: WorkerCounts::default(),
            manage: manage::Manage::default(),
            armed_pwqs: 0,
            // Unknown items count as long ones.
            average_run_ns: 1_000_000,
            open_batches: 0,
            expected: 0,
            near: crate::near::Near::default(),
            last_progress: 0,
            started_on: u32::MAX,
            cores: std::sync::Arc::default(),
            waiting_since: 0,
            waking_since: 0,
            no_create_before: 0,
            disassociated: false,
            closing: false,
            offers: outward::Offers::default(),
        }
    }

    /// The settings in force.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Puts other settings in force: a changed target takes effect at once upwards, at item boundaries downwards.
    pub fn configure<D: Driver<W>>(&mut self, config: PoolConfig, now: Time, drv: &mut D) {
        self.config = config;
        self.kick(now, drv);
    }

    /// A per-CPU pool whose CPU went away (or came back): while it is disassociated its items are served anywhere and
    /// nobody counts workers.
    pub fn set_disassociated<D: Driver<W>>(&mut self, gone: bool, now: Time, drv: &mut D) {
        self.disassociated = gone;
        self.kick(now, drv);
    }

    /// Whether the pool's CPU is away.
    pub fn is_disassociated(&self) -> bool {
        self.disassociated
    }

    /// How many active items no worker has taken.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.worklist.len()
    }

    /// The driver has accepted so many items that it will queue here later, when the worklist gets shorter: they count in the
    /// decisions whether one more worker pays and how much one takes.
    #[inline]
    pub fn expect(&mut self, items: usize) {
        self.expected = items;
    }

    /// The driver is about to queue one of those.
    #[inline]
    pub fn expect_one_less(&mut self) {
        self.expected = self.expected.saturating_sub(1);
    }

    /// What a wake-up costs here, as measured by now; see [`PoolConfig::wake_cost_ns`].
    #[inline]
    pub fn set_wake_cost(&mut self, ns: u64) {
        self.config.wake_cost_ns = ns;
    }

    /// How many items of any state the pool holds.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The worker that the next wake-up goes to, if one is idle.
    #[inline]
    pub fn idle_head(&self) -> Option<WorkerId> {
        (!self.idle.is_empty()).then(|| self.idle.head())
    }

    /// Whether [`Pool::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// When the worklist last moved (or stopped being empty).
    pub fn last_progress(&self) -> Time {
        self.last_progress
    }

    /// How many workers may run at once, by kind and settings.
    #[inline]
    pub fn target(&self) -> u32 {
        match self.config.kind {
            PoolKind::Unmanaged => u32::MAX,
            _ if self.disassociated => u32::MAX,
            _ => self.config.target.max(1),
        }
    }

    /// The pwqs with their ids.
    pub fn pwqs(&self) -> impl Iterator<Item = (PwqId, &Pwq)> {
        self.pwqs.iter()
    }

    /// One pwq.
    ///
    /// # Panics
    /// If it is not linked.
    pub fn pwq(&self, id: PwqId) -> &Pwq {
        &self.pwqs[id]
    }

    /// The workers with their ids.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, &Worker<T>)> {
        self.workers.iter()
    }

    /// One worker, if it exists.
    pub fn worker(&self, id: WorkerId) -> Option<&Worker<T>> {
        self.workers.get(id)
    }

    /// One entry, if it exists.
    pub fn entry(&self, id: EntryId) -> Option<&Entry<T>> {
        self.entries.get(id)
    }

    /// Since when the first waiting item could have been started.
    #[inline]
    pub fn oldest_waiting(&self) -> Option<Time> {
        self.entries.get(self.worklist.head()).map(|e| e.active_at)
    }

    /// Whether as many workers run as may: none of the pool's own will start what waits before another is done.
    #[inline]
    pub fn is_saturated(&self) -> bool {
        self.counts.running + self.counts.waking >= self.limit_now()
    }

    /// The entries on the worklist, first to last.
    pub fn worklist(&self) -> impl Iterator<Item = &Entry<T>> {
        self.entries.ids(&self.worklist).map(|id| &self.entries[id])
    }

    /// The inactive entries of a pwq, first to last.
    pub fn inactive(&self, pwq: PwqId) -> impl Iterator<Item = &Entry<T>> {
        self.entries
            .ids(&self.pwqs[pwq].inactive)
            .map(|id| &self.entries[id])
    }

    /// How many workers there are and in which states.
    pub fn counts(&self) -> &WorkerCounts {
        &self.counts
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    /// With the invariant's name, if one is broken. O(everything); for tests and the simulator.
    pub fn check(&self) {
        let max = self
            .pwqs
            .iter()
            .map(|(i, _)| i as usize + 1)
            .max()
            .unwrap_or(0);
        let mut active = vec![0u32; max];
        let mut in_flight = vec![[0u32; COLOURS]; max];
        for (id, e) in self.entries.iter() {
            in_flight[e.pwq as usize][e.colour as usize] += 1;
            if e.place != Place::Inactive && !e.lent {
                active[e.pwq as usize] += 1;
            }
            if let Place::Taken(w) | Place::Private(w) = e.place {
                assert!(
                    self.workers.get(w).is_some(),
                    "entry {id} lies with a worker that exists"
                );
            }
        }
        for (id, p) in self.pwqs.iter() {
            assert_eq!(
                p.active, active[id as usize],
                "active count of pwq {id} is the number of its active entries"
            );
            assert_eq!(
                p.in_flight, in_flight[id as usize],
                "colour counts of pwq {id} are those of its entries"
            );
            assert!(
                p.active <= p.limit.max(p.overdrawn),
                "pwq {id} runs {} of at most {}",
                p.active,
                p.limit
            );
            if !p.inactive.is_empty() && p.active < p.limit && !p.frozen {
                panic!("pwq {id} holds items back although its limit allows more");
            }
            if p.leased && !p.inactive.is_empty() && !p.frozen {
                assert!(p.asking, "pwq {id} waits without having asked");
            }
        }
        let mut counts = WorkerCounts {
            creating: self.counts.creating,
            ..Default::default()
        };
        for (_, w) in self.workers.iter() {
            counts.count(w.state);
        }
        assert_eq!(
            counts.idle as usize,
            self.idle.len(),
            "idle list holds the idle workers"
        );
        assert_eq!(
            counts, self.counts,
            "worker counts are those of the workers"
        );
        for (id, w) in self.workers.iter() {
            if let Some(item) = w.busy_item {
                let same = self
                    .workers
                    .iter()
                    .filter(|(_, o)| o.busy_item == Some(item))
                    .count();
                assert_eq!(same, 1, "worker {id}: an item is in at most one busy entry");
            }
        }
        if self.needs_more() && self.counts.waking + self.counts.running == 0 {
            assert!(
                self.counts.idle == 0,
                "items wait, a worker is idle, and nobody runs or is on the way"
            );
        }
    }
}
