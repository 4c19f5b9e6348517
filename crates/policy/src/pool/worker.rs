//! Worker states, the idle list, waking, creating and culling.

use super::{BATCH, Driver, EntryId, Next, Pool, Time, Token, WorkerId};
use crate::list::{List, NIL};

/// An idle worker is culled after this long, if there are too many (kernel: IDLE_WORKER_TIMEOUT, 300 s).
pub const IDLE_TIMEOUT_NS: u64 = 300_000_000_000;
/// Idle workers beyond two may be at most one in this many of the busy ones (kernel: MAX_IDLE_WORKERS_RATIO).
pub const MAX_IDLE_RATIO: u32 = 4;
/// After a worker could not be made, none is asked for during this time (kernel: CREATE_COOLDOWN, 1 s).
pub const CREATE_COOLDOWN_NS: u64 = 1_000_000_000;
/// A woken worker wakes the next one itself. If it has not come within this time (it waits for a CPU), others stop relying
/// on it. Ten times the wake-up of a busy CPU's worker, twice that of a halted one in a guest (measured 3 us and 20-30 us).
pub const WAKE_PATIENCE_NS: u64 = 50_000;

/// What a wake-up costs until the worker runs (measured: 20-30 us to a halted CPU of a guest, 3 us to a busy one).
pub const WAKE_COST_NS: u64 = 20_000;

/// A second worker comes for what waits behind one beside an issuer only if that is so many wake-ups' time: it would be on
/// another CPU, away from the issuer, which gives its CPU to the first one whenever it waits.
const BESIDE_PATIENCE: u64 = 4;

/// What a worker is to its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerKind {
    /// One of the pool's own.
    Normal,
    /// A queue's rescuer, attached for a while; never counts as running.
    Rescuer,
    /// Another pool's worker, attached for one item; never counts as running.
    Helper,
}

/// What a worker does, as far as counting goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// In the idle list.
    Idle,
    /// Woken, not seen yet. Counts as running.
    Waking,
    /// Runs items, counts.
    Running,
    /// Its item blocks: does not count.
    Blocked,
    /// Its item is CPU-intensive (said so, or found out): does not count.
    Intensive,
    /// Attached from elsewhere: does not count.
    Attached,
    /// Helps in another pool instead of being idle: does not count, and is not woken.
    Away,
    /// Told to leave.
    Dying,
}

/// Why a worker was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BirthReason {
    /// Items waited and fewer than the target ran.
    Demand = 0,
    /// The pool began to work without an idle worker in reserve.
    Reserve = 1,
    /// A worker blocked while items waited.
    Blocked = 2,
    /// A queue's first item had waited too long.
    Fairness = 3,
    /// A CPU-intensive item was set aside.
    Hog = 4,
    /// Nothing had finished for too long.
    Floor = 5,
    /// Another pod's items waited and this pod had a CPU to spare.
    Help = 6,
}

/// Why a worker left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DeathReason {
    /// Idle too long, too many idle.
    Culled = 0,
    /// The pool or the runtime shut down.
    Shutdown = 1,
    /// It could not take a changed setting and was replaced at an item boundary.
    Replaced = 2,
    /// Its thread was ended by an item.
    Lost = 3,
}

/// How many workers are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// In the idle list.
    pub idle: u32,
    /// Woken, not seen yet.
    pub waking: u32,
    /// Running and counted.
    pub running: u32,
    /// Blocked.
    pub blocked: u32,
    /// CPU-intensive.
    pub intensive: u32,
    /// Attached from elsewhere.
    pub attached: u32,
    /// Helping in another pool.
    pub away: u32,
    /// On their way out.
    pub dying: u32,
    /// Asked for, not there yet.
    pub creating: u32,
}

impl WorkerCounts {
    fn of(&mut self, state: WorkerState) -> &mut u32 {
        match state {
            WorkerState::Idle => &mut self.idle,
            WorkerState::Waking => &mut self.waking,
            WorkerState::Running => &mut self.running,
            WorkerState::Blocked => &mut self.blocked,
            WorkerState::Intensive => &mut self.intensive,
            WorkerState::Attached => &mut self.attached,
            WorkerState::Away => &mut self.away,
            WorkerState::Dying => &mut self.dying,
        }
    }

    pub(super) fn count(&mut self, state: WorkerState) {
        *self.of(state) += 1;
    }

    /// The pool's own workers, whatever they do.
    pub fn own(&self) -> u32 {
        self.idle + self.waking + self.running + self.blocked + self.intensive + self.away
    }

    /// Own workers that are not idle.
    pub fn busy(&self) -> u32 {
        self.own() - self.idle
    }
}

/// A worker's record.
#[derive(Debug, Clone)]
pub struct Worker<T> {
    /// What it is to the pool.
    pub kind: WorkerKind,
    /// What it does.
    pub state: WorkerState,
    /// The items it took, the first `settled` of them counted out.
    pub(super) taken: [EntryId; BATCH],
    pub(super) taken_len: u32,
    pub(super) settled: u32,
    /// How many of them were counted as started.
    pub(super) begun: u32,
    /// The batch may hold items that nobody has claimed.
    pub(super) open: bool,
    /// Whether it took its last batch in the pool's pod.
    pub(super) in_pod: bool,
    /// The reusable item it runs, for the busy table.
    pub(super) busy_item: Option<T>,
    pub(super) busy_next: u32,
    /// Items that it alone may run, next.
    pub(super) private: List,
    pub(super) idle_since: Time,
    /// The CPU where it took its last batch.
    pub cpu: u32,
    /// When it was made.
    pub born: Time,
    /// Counted as a hog that adds an extra worker (unbound pools).
    pub(super) hog: bool,
    /// The driver's thread id or other name, for reports.
    pub name: u64,
}

impl<T> Worker<T> {
    /// The entries it took and has not counted out, the running one first.
    pub fn taken(&self) -> &[EntryId] {
        &self.taken[self.settled as usize..self.taken_len as usize]
    }

    /// Items that it alone may run, next.
    pub fn private_len(&self) -> usize {
        self.private.len()
    }

    /// Since when it is idle; meaningless otherwise.
    pub fn idle_since(&self) -> Time {
        self.idle_since
    }

    /// Whether its running item was found to hog the CPU.
    pub fn is_hog(&self) -> bool {
        self.hog || self.state == WorkerState::Intensive
    }
}

impl<T: Token, W> Pool<T, W> {
    /// A thread made for [`Driver::create`] (or without being asked) joins the pool; it calls [`Pool::next`] right after.
    pub fn worker_started(&mut self, name: u64, now: Time) -> WorkerId {
        self.counts.creating = self.counts.creating.saturating_sub(1);
        self.waking_since = now;
        self.add_worker(WorkerKind::Normal, WorkerState::Waking, name, now)
    }

    /// A rescuer or helper attaches; it then calls [`Pool::next_attached`].
    pub fn attach(&mut self, kind: WorkerKind, name: u64, now: Time) -> WorkerId {
        debug_assert_ne!(kind, WorkerKind::Normal);
        self.add_worker(kind, WorkerState::Attached, name, now)
    }

    /// A rescuer or helper leaves. Its batch is settled; if it leaves work behind, others are woken (else concurrency could
    /// stay at 0).
    pub fn detach<D: Driver<W>>(&mut self, w: WorkerId, now: Time, drv: &mut D) {
        self.finish(w, now, drv);
        if self.workers[w].kind == WorkerKind::Helper && self.workers[w].cpu == u32::MAX {
            self.came_in_vain();
        }
        let mut private = self.workers[w].private;
        loop {
            let id = self.entries.pop_front(&mut private);
            if id == NIL {
                break;
            }
            self.entries[id].place = super::Place::Worklist;
            self.push_worklist(id, now);
        }
        *self.counts.of(self.workers[w].state) -= 1;
        self.workers.remove(w);
        self.manage.left(w);
        self.kick(now, drv);
    }

    /// The worker that was asked for could not be made. Nothing is asked for during the cooldown.
    pub fn creation_failed(&mut self, now: Time) {
        self.counts.creating = self.counts.creating.saturating_sub(1);
        self.no_create_before = now + CREATE_COOLDOWN_NS;
        self.manage.creation_failed(now);
    }

    /// What stood in the way of making a worker is gone: the cooldown ends.
    pub fn may_create_again<D: Driver<W>>(&mut self, now: Time, drv: &mut D) {
        self.no_create_before = 0;
        self.kick(now, drv);
    }

    /// Tells the longest idle worker to leave, for the sake of a pool that may have none otherwise. False if none is idle or
    /// items wait here.
    pub fn spare_one<D: Driver<W>>(&mut self, drv: &mut D) -> bool {
        if self.idle.is_empty() || !self.worklist.is_empty() {
            return false;
        }
        self.dismiss(self.idle.tail(), drv);
        true
    }

    /// When the next attempt to make a worker may be made; 0 if at once.
    pub fn no_create_before(&self) -> Time {
        self.no_create_before
    }

    fn add_worker(
        &mut self,
        kind: WorkerKind,
        state: WorkerState,
        name: u64,
        now: Time,
    ) -> WorkerId {
        self.counts.count(state);
        self.workers.insert(Worker {
            kind,
            state,
            taken: [NIL; BATCH],
            taken_len: 0,
            settled: 0,
            begun: 0,
            open: false,
            in_pod: false,
            busy_item: None,
            busy_next: NIL,
            private: List::default(),
            idle_since: now,
            cpu: u32::MAX,
            born: now,
            hog: false,
            name,
        })
    }

    #[inline]
    pub(super) fn set_state(&mut self, w: WorkerId, state: WorkerState) {
        let worker = &mut self.workers[w];
        if worker.state != state {
            *self.counts.of(worker.state) -= 1;
            *self.counts.of(state) += 1;
            worker.state = state;
        }
    }

    pub(super) fn go_idle(&mut self, w: WorkerId, now: Time) {
        self.set_state(w, WorkerState::Idle);
        self.workers[w].idle_since = now;
        self.workers.push_front(&mut self.idle, w);
    }

    /// An idle worker goes to help in another pool. It is not woken meanwhile; back home it calls [`Pool::next`]. No effect,
    /// and false, if it is not idle any more (it was woken or dismissed: it calls [`Pool::next`] now).
    pub fn go_away(&mut self, w: WorkerId) -> bool {
        if self
            .workers
            .get(w)
            .is_none_or(|x| x.state != WorkerState::Idle)
        {
            return false;
        }
        self.workers.unlink(&mut self.idle, w);
        self.set_state(w, WorkerState::Away);
        true
    }

    /// A worker that helps elsewhere blocks in an item there: its CPU is free for another helper. No effect unless it is away;
    /// returns whether it was.
    pub fn away_blocked(&mut self, w: WorkerId) -> bool {
        let away = self
            .workers
            .get(w)
            .is_some_and(|x| x.state == WorkerState::Away);
        if away {
            self.set_state(w, WorkerState::Blocked);
        }
        away
    }

    /// A worker for which [`Pool::away_blocked`] was true runs again.
    pub fn away_resumed(&mut self, w: WorkerId) {
        if self
            .workers
            .get(w)
            .is_some_and(|x| x.state == WorkerState::Blocked)
        {
            self.set_state(w, WorkerState::Away);
        }
    }

    /// Whether a running worker takes more items (kernel: keep_working).
    #[inline]
    pub(super) fn may_keep_working(&self, w: WorkerId, now: Time) -> bool {
        !self.worklist.is_empty() && (self.within_limit(now) || self.manage.is_owed(w))
    }

    /// Whether the workers that run now, the caller among them, are not too many.
    #[inline]
    pub(super) fn within_limit(&self, now: Time) -> bool {
        self.counts.running + self.counts.waking <= self.limit_now().saturating_add(self.slack(now))
    }

    /// Whether one more worker is needed (kernel: need_more_worker, with a target instead of 0).
    #[inline]
    pub fn needs_more(&self) -> bool {
        !self.worklist.is_empty() && self.counts.running + self.counts.waking < self.limit_now()
    }

    /// Whether items wait, on the worklist or in a batch, and a worker runs or is on its way: then somebody comes for one item
    /// more without being told, and the tick watches.
    #[inline]
    pub fn has_company(&self) -> bool {
        self.wants_tick() && self.counts.running + self.counts.waking > 0
    }

    /// Whether one more worker pays: nobody runs, or what waits would take those who run longer than a wake-up takes, or has
    /// waited that long already. Waking costs the issuer 5-10 us and the items nothing is gained before the worker is there.
    #[inline]
    fn pays(&self, now: Time) -> bool {
        let at_work = u64::from(self.counts.running + self.counts.waking);
        if at_work == 0 || self.target() == u32::MAX {
            return true;
        }
        let head = self.worklist.head();
        let mut cost = self.config.wake_cost_ns;
        if at_work == 1 && self.near.is_beside() {
            cost *= BESIDE_PATIENCE;
        }
        let waiting = (self.worklist.len() + self.expected) as u64;
        waiting * self.average_run_ns >= cost * at_work
            || now.saturating_sub(self.entries[head].active_at) >= cost
    }

    /// Wakes the most recently idle worker, or asks for a new one, if one more is needed and pays. One is on its way at a time: it
    /// wakes the next when it takes its first items. Returns whether something was done.
    #[inline]
    pub fn kick<D: Driver<W>>(&mut self, now: Time, drv: &mut D) -> bool {
        if !self.needs_more() || !self.pays(now) {
            return false;
        }
        self.start_one(BirthReason::Demand, now, drv)
    }

    pub(super) fn start_one<D: Driver<W>>(
        &mut self,
        reason: BirthReason,
        now: Time,
        drv: &mut D,
    ) -> bool {
        if self.counts.waking > 0 && now.saturating_sub(self.waking_since) < WAKE_PATIENCE_NS {
            return false;
        }
        self.wake_or_create(reason, now, drv)
    }

    /// Wakes the most recently idle worker, or asks for a new one. Returns whether one comes.
    pub(super) fn wake_or_create<D: Driver<W>>(
        &mut self,
        reason: BirthReason,
        now: Time,
        drv: &mut D,
    ) -> bool {
        let w = self.nearest_idle();
        if w != NIL {
            self.workers.unlink(&mut self.idle, w);
            self.set_state(w, WorkerState::Waking);
            self.waking_since = now;
            drv.wake(w);
            return true;
        }
        self.create(reason, now, drv)
    }

    pub(super) fn create<D: Driver<W>>(
        &mut self,
        reason: BirthReason,
        now: Time,
        drv: &mut D,
    ) -> bool {
        let at_once = 1 + u32::from(reason == BirthReason::Blocked && self.lacks_two());
        if self.counts.creating >= at_once
            || now < self.no_create_before
            || self.counts.own() >= self.config.max_workers
        {
            return false;
        }
        self.counts.creating += 1;
        drv.create(reason);
        true
    }

    /// A worker has blocked while another one is being made: both may be needed, one to run and one in reserve, where items that
    /// block follow one another. With the one that is asked for now there are still no more than the limit and one.
    fn lacks_two(&self) -> bool {
        let c = &self.counts;
        self.config.reserve && c.running + c.waking + c.idle + c.creating <= self.limit_now()
    }

    /// Keeps one idle worker in reserve while the pool works, so that a blocked one is replaced by a wake-up.
    pub(super) fn keep_reserve<D: Driver<W>>(&mut self, now: Time, drv: &mut D) {
        // A surplus worker, if one runs, is reserve enough.
        let surplus = self.counts.running > self.limit_now();
        if self.config.reserve && self.counts.idle == 0 && self.counts.waking == 0 && !surplus {
            self.create(BirthReason::Reserve, now, drv);
        }
    }

    /// Whether there are too many idle workers (kernel: too_many_workers).
    pub fn too_many_idle(&self) -> bool {
        let idle = self.counts.idle + self.counts.creating;
        idle > 2 && (idle - 2) * MAX_IDLE_RATIO >= self.counts.busy()
    }

    /// When [`Pool::cull`] has something to do, if nothing changes until then.
    pub fn cull_due(&self, timeout_ns: u64) -> Option<Time> {
        (self.too_many_idle() && !self.idle.is_empty())
            .then(|| self.workers[self.idle.tail()].idle_since + timeout_ns)
    }

    /// Tells workers that were idle for `timeout_ns` to leave, the longest idle first, until there are not too many any
    /// more. They are woken and find out in [`Pool::next`].
    pub fn cull<D: Driver<W>>(&mut self, timeout_ns: u64, now: Time, drv: &mut D) -> u32 {
        let mut n = 0;
        while self.cull_due(timeout_ns).is_some_and(|due| due <= now) {
            let w = self.idle.tail();
            self.dismiss(w, drv);
            n += 1;
        }
        n
    }

    /// Nobody uses the pool any more: idle workers are told to leave, the others leave once nothing is queued.
    pub fn close<D: Driver<W>>(&mut self, drv: &mut D) {
        self.closing = true;
        while !self.idle.is_empty() {
            let w = self.idle.head();
            self.dismiss(w, drv);
        }
    }

    /// Changes how many workers may run at once and how many hogs may add. Raised: more are started if items wait. Lowered:
    /// surplus workers retire at their next item boundary.
    pub fn set_target<D: Driver<W>>(
        &mut self,
        target: u32,
        hog_extra: u32,
        now: Time,
        drv: &mut D,
    ) {
        self.config.target = target.max(1);
        self.config.hog_extra = hog_extra;
        self.kick(now, drv);
    }

    fn dismiss<D: Driver<W>>(&mut self, w: WorkerId, drv: &mut D) {
        self.workers.unlink(&mut self.idle, w);
        self.set_state(w, WorkerState::Dying);
        drv.wake(w);
    }

    pub(super) fn leave(&mut self, w: WorkerId) -> Next {
        debug_assert!(self.workers[w].private.is_empty());
        *self.counts.of(self.workers[w].state) -= 1;
        self.workers.remove(w);
        Next::Exit
    }
}
