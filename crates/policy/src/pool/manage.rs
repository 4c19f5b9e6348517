//! Blocked workers, hogs, fairness, the liveness floor, mayday.
//!
//! The *limit now* of a pool is its target plus what these rules add: hogs (unbound pools: at most one worker more per
//! usable CPU), the liveness floor, and one worker that a waiting queue is owed. Each addition is taken back when its cause
//! is gone; surplus workers retire at their next item boundary.

use super::{
    BirthReason, Driver, EntryId, Place, Pool, PoolKind, PwqId, Time, Token, WorkerId, WorkerState,
};

/// First distress call after a worker was needed and could not be made (kernel: MAYDAY_INITIAL_TIMEOUT, about 10 ms).
pub const MAYDAY_INITIAL_NS: u64 = 10_000_000;
/// Repeated this often (kernel: MAYDAY_INTERVAL, 100 ms).
pub const MAYDAY_INTERVAL_NS: u64 = 100_000_000;
/// The liveness floor adds its first worker when nothing has finished for this long; then the time doubles.
pub const FLOOR_FIRST_NS: u64 = 1_000_000_000;
/// An item that runs for longer than this gives the rest of its batch back. Many times the cost of a recall, a fraction of
/// the tick's period.
pub const BATCH_PATIENCE_NS: u64 = 500_000;
/// When a tick comes by, an item that has waited for this long is not served well: half the shortest tick, so that the first tick
/// after the one that an item just missed is enough.
pub const LONG_WAIT_NS: u64 = 500_000;
/// A worker that came for a queue that was owed one stops being the pool's one extra after this many times `fairness_ns`.
const OWED_PATIENCE: u64 = 10;
/// How many worklist entries one look for an owed queue visits.
const FAIRNESS_SCAN: usize = 4096;

/// What fairness found; for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FairnessConfig {
    /// The queue that is owed a worker.
    pub pwq: PwqId,
    /// How long its first item has waited, ns.
    pub waited_ns: u64,
}

/// Whether items wait although nobody is on the way to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backlog {
    /// No item waits, or one for which a worker is on its way.
    None,
    /// Several items wait, and a worker is on its way.
    Coming,
    /// Items wait and one more worker may run, but none is idle: it is being made, or cannot be.
    Short,
    /// Items wait behind what runs, on the worklist or in a batch, because no more may run or a further worker would not pay:
    /// if a running one blocks, they should not.
    Behind,
}

/// What [`Pool::mark_hog`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HogVerdict {
    /// It had been marked before, or does not run an item.
    Known,
    /// Marked; it does not count as running any more.
    SetAside,
    /// Marked; one more worker may run beside it.
    ExtraAllowed,
    /// Marked; hogs have used up what they may add.
    NoExtra,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Manage {
    /// Workers that hogs add (unbound pools).
    hogs: u32,
    /// CPUs of the pod that others want while helpers can be had: so many workers fewer run. One
    /// less of them each time.
    aside: u32,
    aside_until: Time,
    aside_for: u64,
    /// Workers that the liveness floor adds.
    floor: u32,
    floor_wait: u64,
    floor_since: Time,
    last_done: Time,
    /// The queue that is owed a worker, and the worker that came for it.
    owed: Option<PwqId>,
    owed_worker: Option<WorkerId>,
    /// Since when a worker is needed and cannot be made; 0 = not so.
    distress_since: Time,
    last_mayday: Time,
    /// When a worker last blocked: for a short while after, one surplus worker may stay.
    last_block: Time,
}

impl Manage {
    #[inline]
    pub(super) fn completed(&mut self, now: Time) {
        self.last_done = self.last_done.max(now);
    }

    pub(super) fn creation_failed(&mut self, now: Time) {
        if self.distress_since == 0 {
            self.distress_since = now.max(1);
        }
    }

    pub(super) fn forget_pwq(&mut self, id: PwqId) {
        if self.owed == Some(id) {
            self.owed = None;
            self.owed_worker = None;
        }
    }

    pub(super) fn left(&mut self, w: WorkerId) {
        if self.owed_worker == Some(w) {
            self.owed = None;
            self.owed_worker = None;
        }
    }

    #[inline]
    pub(super) fn is_owed(&self, w: WorkerId) -> bool {
        self.owed.is_some() && self.owed_worker.is_none_or(|o| o == w)
    }
}

impl<T: Token, W> Pool<T, W> {
    /// How many workers may run now: the target and what the rules of this file add.
    #[inline]
    pub fn limit_now(&self) -> u32 {
        let m = &self.manage;
        let fair = u32::from(m.owed.is_some());
        let all = self
            .target()
            .saturating_add(m.hogs.min(self.config.hog_extra) + m.floor + fair);
        all.saturating_sub(m.aside).max(1)
    }

    /// A running worker of the pool found that others want its CPU, and there are CPUs to be had in other pods: one worker fewer
    /// runs; every `for_ns` one is tried again. Whoever is one too many finds out when it asks for work; this one, if it asks next.
    pub fn step_aside(&mut self, for_ns: u64, now: Time) {
        let m = &mut self.manage;
        m.aside_until = now + for_ns;
        m.aside_for = for_ns;
        m.aside = (m.aside + 1).min(self.config.target.saturating_sub(1));
        self.want_one_more(now);
    }

    /// Takes one step of [`Pool::step_aside`] back, if it is time.
    #[inline]
    pub(super) fn end_aside(&mut self, now: Time) {
        let m = &mut self.manage;
        if m.aside > 0 && now >= m.aside_until {
            m.aside -= 1;
            m.aside_until = now + m.aside_for;
        }
    }

    /// One worker above the limit may stay while blocks come in quick succession, so that short blocks do not make workers
    /// sleep and wake in turn.
    #[inline]
    pub(super) fn slack(&self, now: Time) -> u32 {
        let m = &self.manage;
        u32::from(m.last_block != 0 && now.saturating_sub(m.last_block) < self.config.linger_ns)
    }

    /// The worker's item is about to block, or was found blocked. The worker stops counting and its untouched items go
    /// back; one more is started if items wait. Returns whether that happened. No effect unless it runs an item.
    pub fn blocked<D: Driver<W>>(&mut self, w: WorkerId, now: Time, drv: &mut D) -> bool {
        if self
            .workers
            .get(w)
            .is_none_or(|x| x.state != WorkerState::Running || x.taken_len == 0)
        {
            return false;
        }
        self.manage.last_block = now;
        self.recall(w, now, drv);
        self.set_state(w, WorkerState::Blocked);
        // It does not count any more, so it is no extra either.
        self.manage.left(w);
        if self.workers[w].hog {
            self.workers[w].hog = false;
            self.manage.hogs -= 1;
        }
        let woke = self.needs_more() && self.start_one(BirthReason::Blocked, now, drv);
        if woke && let Some(&e) = self.workers[w].taken().first() {
            let pwq = self.entries[e].pwq;
            self.pwqs[pwq].counters.cm_wakeup += 1;
        }
        woke
    }

    /// The worker runs again: it counts, even if that is one too many.
    pub fn resumed(&mut self, w: WorkerId) {
        if self
            .workers
            .get(w)
            .is_some_and(|x| x.state == WorkerState::Blocked)
        {
            self.set_state(w, WorkerState::Running);
        }
    }

    /// The worker's item has been on CPU for longer than the threshold.
    pub fn mark_hog<D: Driver<W>>(&mut self, w: WorkerId, now: Time, drv: &mut D) -> HogVerdict {
        let Some(worker) = self.workers.get(w) else {
            return HogVerdict::Known;
        };
        if worker.state != WorkerState::Running || worker.hog || worker.taken_len == 0 {
            return HogVerdict::Known;
        }
        self.recall(w, now, drv);
        let Some(&e) = self.workers[w].taken().first() else {
            return HogVerdict::Known;
        };
        let pwq = self.entries[e].pwq;
        self.pwqs[pwq].counters.cpu_intensive += 1;
        match self.config.kind {
            PoolKind::PerCpu => {
                self.set_state(w, WorkerState::Intensive);
                if self.needs_more() {
                    self.start_one(BirthReason::Hog, now, drv);
                }
                HogVerdict::SetAside
            }
            PoolKind::Unbound => {
                self.workers[w].hog = true;
                self.manage.hogs += 1;
                if self.manage.hogs > self.config.hog_extra {
                    return HogVerdict::NoExtra;
                }
                if self.needs_more() {
                    self.start_one(BirthReason::Hog, now, drv);
                }
                HogVerdict::ExtraAllowed
            }
            PoolKind::Unmanaged => {
                self.workers[w].hog = true;
                self.manage.hogs += 1;
                HogVerdict::NoExtra
            }
        }
    }

    /// The hog's item ended.
    pub(super) fn unmark_hog(&mut self, w: WorkerId) {
        if std::mem::take(&mut self.workers[w].hog) {
            self.manage.hogs -= 1;
        }
    }

    /// Looks at what has waited too long; called by the driver's tick while items wait. Returns what fairness found.
    pub fn tick<D: Driver<W>>(&mut self, now: Time, drv: &mut D) -> Option<FairnessConfig> {
        self.recall_slow(now, drv);
        self.end_aside(now);
        if self.worklist.is_empty() {
            self.manage.floor = 0;
            self.manage.floor_wait = 0;
            self.manage.distress_since = 0;
            return None;
        }
        self.floor(now, drv);
        let found = self.fairness(now, drv);
        // Nearly every look finds an item that was queued just now; whatever the mean says of those that have waited for long.
        let waited = self.oldest_waiting().map_or(0, |t| now.saturating_sub(t));
        if waited < LONG_WAIT_NS {
            self.kick(now, drv);
        } else if self.needs_more() {
            self.start_one(BirthReason::Demand, now, drv);
        }
        self.distress(now, drv);
        found
    }

    /// Batches whose running item takes long are recalled: it may block unnoticed, or be awaited by what lies behind it.
    fn recall_slow<D: Driver<W>>(&mut self, now: Time, drv: &mut D) {
        if self.open_batches == 0 {
            return;
        }
        let slow: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(id, w)| {
                let running = drv.claimed(*id).saturating_sub(1);
                w.open && now.saturating_sub(drv.start_stamp(*id, running)) >= BATCH_PATIENCE_NS
            })
            .map(|(id, _)| id)
            .collect();
        for w in slow {
            self.recall(w, now, drv);
        }
    }

    fn floor<D: Driver<W>>(&mut self, now: Time, drv: &mut D) {
        let m = &mut self.manage;
        let base = m.last_done.max(self.waiting_since);
        if base > m.floor_since || m.floor_wait == 0 {
            // Something finished since the last addition: start anew, the extra workers retire.
            m.floor_since = base;
            m.floor_wait = FLOOR_FIRST_NS;
            m.floor = 0;
        }
        if now.saturating_sub(m.floor_since) >= m.floor_wait {
            m.floor += 1;
            m.floor_since = now;
            m.floor_wait *= 2;
            self.start_one(BirthReason::Floor, now, drv);
        }
    }

    fn fairness<D: Driver<W>>(&mut self, now: Time, drv: &mut D) -> Option<FairnessConfig> {
        if self.config.fairness_ns == 0 || self.config.kind == PoolKind::Unmanaged {
            return None;
        }
        if let Some(w) = self.manage.owed_worker
            && self.workers.get(w).is_some_and(|x| x.taken_len > 0)
        {
            let running = drv.claimed(w).saturating_sub(1);
            let ran = now.saturating_sub(drv.start_stamp(w, running));
            if ran >= self.config.fairness_ns.saturating_mul(OWED_PATIENCE) {
                // What it came for takes long, perhaps for ever: the next queue's turn.
                self.manage.left(w);
            }
        }
        if let Some(owed) = self.manage.owed {
            let waits = self.manage.owed_worker.is_some()
                || self
                    .entries
                    .ids(&self.worklist)
                    .take(FAIRNESS_SCAN)
                    .any(|id| self.entries[id].pwq == owed);
            if waits {
                return None;
            }
            self.manage.owed = None; // others have served it
        }
        let mut seen: Vec<PwqId> = Vec::new();
        let mut found: Option<FairnessConfig> = None;
        for id in self.entries.ids(&self.worklist).take(FAIRNESS_SCAN) {
            let e = &self.entries[id];
            if seen.contains(&e.pwq) {
                continue;
            }
            seen.push(e.pwq);
            // Time held back by a limit is not time that workers owe.
            let waited_ns = now.saturating_sub(e.active_at);
            let longest = found.is_none_or(|f| f.waited_ns < waited_ns);
            if self.pwqs[e.pwq].running == 0 && waited_ns >= self.config.fairness_ns && longest {
                found = Some(FairnessConfig {
                    pwq: e.pwq,
                    waited_ns,
                });
            }
            if seen.len() == self.pwqs.len() {
                break;
            }
        }
        let f = found?;
        self.manage.owed = Some(f.pwq);
        self.pwqs[f.pwq].counters.fairness += 1;
        self.start_one(BirthReason::Fairness, now, drv);
        Some(f)
    }

    /// The first waiting item of the queue that is owed a worker, if `w` is to serve it.
    pub(super) fn owed_entry(&mut self, w: WorkerId) -> Option<EntryId> {
        let pwq = self.manage.owed?;
        if self.manage.owed_worker.is_some_and(|o| o != w) {
            return None;
        }
        let found = self
            .entries
            .ids(&self.worklist)
            .take(FAIRNESS_SCAN)
            .find(|&id| self.entries[id].pwq == pwq && self.entries[id].place == Place::Worklist);
        match found {
            Some(id) => {
                self.manage.owed_worker = Some(w);
                Some(id)
            }
            None => {
                self.manage.owed = None;
                None
            }
        }
    }

    /// A worker is needed and cannot be made: call the rescuers of the queues whose items wait.
    fn distress<D: Driver<W>>(&mut self, now: Time, drv: &mut D) {
        if !(self.needs_more() && self.counts.idle == 0 && self.counts.waking == 0) {
            self.manage.distress_since = 0;
            return;
        }
        let m = &mut self.manage;
        if m.distress_since == 0 {
            m.distress_since = now.max(1);
        }
        if now.saturating_sub(m.distress_since) < MAYDAY_INITIAL_NS
            || (m.last_mayday >= m.distress_since
                && now.saturating_sub(m.last_mayday) < MAYDAY_INTERVAL_NS)
        {
            return;
        }
        m.last_mayday = now;
        for id in self.entries.ids(&self.worklist) {
            let p = &mut self.pwqs[self.entries[id].pwq];
            if p.flags.guaranteed && !p.mayday {
                p.mayday = true;
                p.counters.mayday += 1;
                drv.mayday(p.tag);
            }
        }
    }

    /// The rescuer has come for this pwq.
    pub fn rescue_begun(&mut self, id: PwqId) {
        self.pwqs[id].mayday = false;
    }

    /// Whether items wait although nobody is on the way to them; tells a driver when to look for blocked workers.
    #[inline]
    pub fn backlog(&self) -> Backlog {
        if self.counts.waking > 0 {
            if self.open_batches > 0 || self.worklist.len() > 1 {
                Backlog::Coming
            } else {
                Backlog::None
            }
        } else if self.open_batches > 0 {
            Backlog::Behind
        } else if self.worklist.is_empty() {
            Backlog::None
        } else if self.counts.running >= self.limit_now()
            || (self.counts.running > 0 && !self.idle.is_empty())
        {
            Backlog::Behind
        } else {
            Backlog::Short
        }
    }

    /// Whether [`Pool::tick`] should be called every few milliseconds: items wait, on the worklist or in a batch.
    #[inline]
    pub fn wants_tick(&self) -> bool {
        !self.worklist.is_empty() || self.open_batches > 0
    }
}
