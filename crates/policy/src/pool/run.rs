//! Taking items, collisions, settling what was done.
//!
//! A worker takes up to [`BATCH`] one-shot items per hold of the lock and claims them one by one without it. Whoever holds
//! the lock may *recall* the rest: the worker can claim no more, what it finished is settled, and what it has not started
//! goes back to the head of the worklist in order. A reusable item is always taken alone, so its running entry is exact.

use super::{
    BATCH, BUSY_BUCKETS, Driver, EntryId, Place, Pool, PoolKind, PwqId, PwqTag, Time, Token,
    WorkerId, WorkerKind, WorkerState,
};
use crate::list::NIL;

/// Where the calling worker runs.
#[derive(Debug, Clone, Copy)]
pub struct Here {
    /// The CPU.
    pub cpu: u32,
    /// Whether it belongs to the pool's pod.
    pub in_pod: bool,
}

/// One item of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Taken<T> {
    /// The pool's entry.
    pub entry: EntryId,
    /// The item.
    pub item: T,
    /// Its pwq's tag; the pwq stays linked until the entry is counted out.
    pub tag: PwqTag,
}

/// What the calling worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run the items of the batch, in order; the first is claimed already.
    Run,
    /// Sleep until woken.
    Idle,
    /// Leave: the pool does not know this worker any more.
    Exit,
}

/// In the mean of what items take, one counts for at most so many times the mean...
const OUTLIER: u64 = 4;
/// ...or this long, ns.
const OUTLIER_FLOOR_NS: u64 = 1_000;

impl<T: Token, W> Pool<T, W> {
    /// The worker has nothing of its batch left to run (or never had): settles it and says what to do next. `out` is
    /// emptied and filled with the new batch.
    pub fn next<D: Driver<W>>(
        &mut self,
        w: WorkerId,
        here: Here,
        now: Time,
        out: &mut Vec<Taken<T>>,
        drv: &mut D,
    ) -> Next {
        out.clear();
        self.end_aside(now);
        match self.workers[w].state {
            WorkerState::Dying => return self.leave(w),
            // Nobody woke it: it looks for work all the same.
            WorkerState::Idle => self.workers.unlink(&mut self.idle, w),
            _ => {}
        }
        debug_assert_eq!(self.workers[w].kind, WorkerKind::Normal);
        // It counts again before what it did is counted out, so that what becomes active then wakes nobody in its place.
        self.set_state(w, WorkerState::Running);
        self.finish(w, now, drv);
        self.manage.left(w);
        if self.take_private(w, out)
            || (self.may_keep_working(w, now) && self.take(w, here, now, out, drv))
            || (self.steal(now, drv) && self.take(w, here, now, out, drv))
        {
            self.start(w, here, now, out, drv);
            return Next::Run;
        }
        if self.closing {
            return self.leave(w);
        }
        self.go_idle(w, now);
        // This worker may have been the one on its way that others counted on.
        self.kick(now, drv);
        Next::Idle
    }

    /// A helper or rescuer attached to this pool takes one item: of `only` if given, else of the first queue that may be
    /// helped. False if there is none.
    pub fn next_attached<D: Driver<W>>(
        &mut self,
        w: WorkerId,
        only: Option<PwqId>,
        here: Here,
        now: Time,
        out: &mut Vec<Taken<T>>,
        drv: &mut D,
    ) -> bool {
        out.clear();
        self.finish(w, now, drv);
        if self.take_private(w, out) {
            self.start(w, here, now, out, drv);
            return true;
        }
        if self.take_for_attached(w, only, now, out) {
            self.start(w, here, now, out, drv);
            return true;
        }
        // What lies behind a long item in a batch is for helpers too.
        if self.workers[w].kind == WorkerKind::Helper
            && self.recall_fullest(now, drv)
            && self.take_for_attached(w, only, now, out)
        {
            self.start(w, here, now, out, drv);
            return true;
        }
        false
    }

    fn take_for_attached(
        &mut self,
        w: WorkerId,
        only: Option<PwqId>,
        now: Time,
        out: &mut Vec<Taken<T>>,
    ) -> bool {
        let mut at = self.worklist.head();
        while at != NIL {
            let (pwq, item, oneshot) = (
                self.entries[at].pwq,
                self.entries[at].item,
                self.entries[at].oneshot,
            );
            let wanted = only.map_or(self.pwqs[pwq].flags.helpable, |o| o == pwq);
            let free = oneshot || self.busy_worker(item).is_none();
            if wanted && free {
                self.entries.unlink(&mut self.worklist, at);
                self.put_taken(w, at, out);
                let counters = &mut self.pwqs[pwq].counters;
                match self.workers[w].kind {
                    WorkerKind::Rescuer => counters.rescued += 1,
                    _ => {
                        counters.helped += 1;
                        if self.workers[w].cpu == u32::MAX {
                            self.offer_taken(now); // it has just come
                        }
                    }
                }
                return true;
            }
            at = self.entries.next(at);
        }
        false
    }

    fn take_private(&mut self, w: WorkerId, out: &mut Vec<Taken<T>>) -> bool {
        let worker = &mut self.workers[w];
        let id = self.entries.pop_front(&mut worker.private);
        if id == NIL {
            return false;
        }
        self.put_taken(w, id, out);
        true
    }

    /// Before a worker goes idle it has a batch recalled, the one with the most unclaimed items: no CPU idles while items
    /// lie behind others in a batch. Returns whether some came back.
    fn steal<D: Driver<W>>(&mut self, now: Time, drv: &mut D) -> bool {
        self.within_limit(now) && self.recall_fullest(now, drv)
    }

    /// With nothing on the worklist: has the batch with the most unclaimed items recalled. Returns whether some came back.
    fn recall_fullest<D: Driver<W>>(&mut self, now: Time, drv: &mut D) -> bool {
        if self.open_batches == 0 || !self.worklist.is_empty() {
            return false;
        }
        let fullest = self
            .workers
            .iter()
            .filter(|(_, w)| w.open)
            .map(|(id, w)| (w.taken_len - drv.claimed(id).min(w.taken_len), id))
            .max_by_key(|&(n, _)| n);
        match fullest {
            Some((n, victim)) if n > 0 => {
                self.recall(victim, now, drv);
                !self.worklist.is_empty()
            }
            _ => false,
        }
    }

    /// Fills a batch from the head of the worklist, near items first.
    fn take<D: Driver<W>>(
        &mut self,
        w: WorkerId,
        here: Here,
        now: Time,
        out: &mut Vec<Taken<T>>,
        drv: &mut D,
    ) -> bool {
        if let Some(first) = self.owed_entry(w) {
            self.entries.unlink(&mut self.worklist, first);
            let (item, oneshot) = (self.entries[first].item, self.entries[first].oneshot);
            if let Some(other) = (!oneshot).then(|| self.busy_worker(item)).flatten() {
                self.put_private(other, first, now, drv);
            } else {
                self.put_taken(w, first, out);
                return true;
            }
        }
        if !self.within_limit(now) {
            return false; // it was here for the owed queue only
        }
        // Where every active item gets a worker, none lies behind another.
        let max = if self.armed_pwqs > 0 || self.target() == u32::MAX {
            1
        } else {
            // Leave the others their share.
            let sharers = u64::from(self.target().min(self.workers.len() as u32)).max(1) * 2;
            let waiting = (self.worklist.len() + self.expected) as u64;
            ((waiting / sharers) as usize).clamp(1, BATCH)
        };
        let (near_first, mut far) = (self.near_first(), false);
        while out.len() < max {
            // Where none was near for the first, none is looked for behind it.
            let id = if far {
                self.worklist.head()
            } else {
                self.nearest(here.cpu)
            };
            if id == NIL {
                break;
            }
            let e = &self.entries[id];
            // A batch is all near or all far, and a far one short: near ones may come meanwhile.
            let is_far = near_first && e.issuer_cpu != here.cpu;
            if !out.is_empty() && (is_far != far || is_far && out.len() >= self.far_batch()) {
                break;
            }
            far = is_far;
            let (pwq, item, oneshot) = (e.pwq, e.item, e.oneshot);
            if !oneshot {
                if let Some(other) = self.busy_worker(item) {
                    // Rule 2.2 (b): the worker that runs the item runs it again, right after.
                    self.entries.unlink(&mut self.worklist, id);
                    self.put_private(other, id, now, drv);
                    continue;
                }
                if !out.is_empty() {
                    break;
                }
            }
            let p = &self.pwqs[pwq];
            let alone = !oneshot || p.flags.cpu_intensive || (p.leased && drv.contended(p.tag));
            if alone && !out.is_empty() {
                break;
            }
            self.entries.unlink(&mut self.worklist, id);
            self.put_taken(w, id, out);
            if alone {
                break;
            }
        }
        if out.len() > 1 {
            self.workers[w].open = true;
            self.open_batches += 1;
        }
        !out.is_empty()
    }

    /// The item runs on this worker, which will run it again. If what runs waits with its permit lent, the next run, which
    /// cannot start before that is over, holds none either: what is waited for may need it.
    fn put_private<D: Driver<W>>(&mut self, w: WorkerId, id: EntryId, now: Time, drv: &mut D) {
        self.entries[id].place = Place::Private(w);
        self.entries.push_back(&mut self.workers[w].private, id);
        let runs = &self.entries[self.workers[w].taken[0]];
        if runs.lent && self.lends_along(runs.pwq, self.entries[id].pwq) {
            self.lend_permit(id, now, drv);
        }
    }

    fn put_taken(&mut self, w: WorkerId, id: EntryId, out: &mut Vec<Taken<T>>) {
        if self.entries[id].lent {
            self.take_permit_back(id);
        }
        let e = &mut self.entries[id];
        e.place = Place::Taken(w);
        let item = e.item;
        let oneshot = e.oneshot;
        let pwq = &mut self.pwqs[e.pwq];
        pwq.running += 1;
        let tag = pwq.tag;
        let worker = &mut self.workers[w];
        worker.taken[out.len()] = id;
        worker.taken_len = out.len() as u32 + 1;
        worker.settled = 0;
        worker.begun = 0;
        if !oneshot {
            worker.busy_item = Some(item);
            let bucket = item.hash() % BUSY_BUCKETS;
            worker.busy_next = self.busy[bucket];
            self.busy[bucket] = w;
        }
        out.push(Taken {
            entry: id,
            item,
            tag,
        });
    }

    /// What happens when a batch is started: counting, chain wake-up, the reserve.
    fn start<D: Driver<W>>(
        &mut self,
        w: WorkerId,
        here: Here,
        now: Time,
        out: &[Taken<T>],
        drv: &mut D,
    ) {
        let first = self.entries[out[0].entry].pwq;
        self.pwqs[first].served_at = now;
        self.last_progress = now;
        self.workers[w].cpu = here.cpu;
        self.started_on = here.cpu;
        self.workers[w].in_pod = here.in_pod;
        self.count_started(w, 1);
        if self.workers[w].kind == WorkerKind::Normal {
            if self.config.kind == PoolKind::PerCpu && self.pwqs[first].flags.cpu_intensive {
                self.set_state(w, WorkerState::Intensive);
            }
            self.kick(now, drv);
            self.keep_reserve(now, drv);
        }
    }

    /// Counts the first `claimed` items of the batch as started.
    fn count_started(&mut self, w: WorkerId, claimed: u32) {
        let worker = &mut self.workers[w];
        let from = worker.begun;
        worker.begun = claimed.max(from);
        for i in from..claimed {
            let worker = &self.workers[w];
            let e = &self.entries[worker.taken[i as usize]];
            let c = &mut self.pwqs[e.pwq].counters;
            c.started += 1;
            c.cpu_local += u64::from(e.issuer_cpu == worker.cpu);
            c.in_pod += u64::from(worker.in_pod);
        }
    }

    /// Settles everything the worker claimed; what it did not start goes back. Called by the worker itself.
    pub fn finish<D: Driver<W>>(&mut self, w: WorkerId, now: Time, drv: &mut D) {
        if self.workers[w].taken_len == 0 {
            return;
        }
        let claimed = drv.recall(w);
        self.unmark_hog(w);
        self.take_back(w, claimed, now, drv);
        self.settle(w, claimed, claimed, now, drv);
        let worker = &mut self.workers[w];
        worker.taken_len = 0;
        worker.settled = 0;
    }

    /// Completes the entries `settled..done` of the batch.
    fn settle<D: Driver<W>>(
        &mut self,
        w: WorkerId,
        done: u32,
        claimed: u32,
        now: Time,
        drv: &mut D,
    ) {
        // Permits of one queue's items in a row are dealt with together.
        let mut row: Option<(PwqId, u32)> = None;
        while self.workers[w].settled < done {
            let i = self.workers[w].settled;
            self.workers[w].settled = i + 1;
            let id = self.workers[w].taken[i as usize];
            let start = drv.start_stamp(w, i);
            let end = if i + 1 < claimed {
                drv.start_stamp(w, i + 1)
            } else {
                now
            };
            if let Some(item) = self.workers[w].busy_item.take() {
                self.busy_unlink(w, item);
            }
            let pwq = self.complete(id, start, end, drv);
            // Its next run, which has lent its permit while it could not start, gets this one; if its pwq is another one, it may be
            // one too many there for now.
            let next = self.workers[w].private.head();
            if next != NIL && self.entries[next].lent {
                self.take_permit_back(next);
            }
            row = match row {
                Some((same, n)) if same == pwq => Some((pwq, n + 1)),
                other => {
                    self.row_done(other, now, drv);
                    Some((pwq, 1))
                }
            };
        }
        self.row_done(row, now, drv);
    }

    /// So many items of a pwq were completed: deal with their permits, and last of all say if it is drained, as it may be gone
    /// right after.
    pub(super) fn row_done<D: Driver<W>>(
        &mut self,
        row: Option<(PwqId, u32)>,
        now: Time,
        drv: &mut D,
    ) {
        if let Some((pwq, n)) = row {
            self.permits_freed(pwq, n, now, drv);
            self.report_if_drained(pwq, drv);
        }
    }

    fn take_back<D: Driver<W>>(&mut self, w: WorkerId, claimed: u32, now: Time, drv: &mut D) {
        if std::mem::take(&mut self.workers[w].open) {
            self.open_batches -= 1;
        }
        self.count_started(w, claimed);
        let len = self.workers[w].taken_len;
        if claimed >= len {
            return;
        }
        if self.worklist.is_empty() {
            self.last_progress = now;
            self.waiting_since = now;
        }
        for i in (claimed..len).rev() {
            let id = self.workers[w].taken[i as usize];
            let e = &mut self.entries[id];
            e.place = Place::Worklist;
            let p = &mut self.pwqs[e.pwq];
            p.running -= 1;
            self.entries.push_front(&mut self.worklist, id);
        }
        self.workers[w].taken_len = claimed;
        self.kick(now, drv);
    }

    /// Stops a worker's batch: what it finished is settled, what it has not started goes back to the worklist.
    pub fn recall<D: Driver<W>>(&mut self, w: WorkerId, now: Time, drv: &mut D) {
        if !self.workers[w].open {
            return;
        }
        let claimed = drv.recall(w);
        self.take_back(w, claimed, now, drv);
        self.settle(w, claimed.saturating_sub(1), claimed, now, drv);
    }

    /// [`Pool::recall`] for every worker.
    pub fn recall_all<D: Driver<W>>(&mut self, now: Time, drv: &mut D) {
        let ids: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, w)| w.open)
            .map(|(id, _)| id)
            .collect();
        for w in ids {
            self.recall(w, now, drv);
        }
    }

    /// An item is done; returns its pwq, whose permit the caller deals with, see [`Pool::row_done`].
    pub(super) fn complete<D: Driver<W>>(
        &mut self,
        id: EntryId,
        start: Time,
        end: Time,
        drv: &mut D,
    ) -> PwqId {
        let e = self.drop_entry(id, drv);
        let p = &mut self.pwqs[e.pwq];
        p.running -= 1;
        p.counters.completed += 1;
        if self.config.histograms {
            p.wait.record(start.saturating_sub(e.queued_at));
            p.run.record(end.saturating_sub(start));
        }
        // One that was held up (by whoever shares the CPU, say) says little about the others.
        let took = end.saturating_sub(start).min(
            self.average_run_ns
                .saturating_mul(OUTLIER)
                .max(OUTLIER_FLOOR_NS),
        );
        self.average_run_ns = self.average_run_ns - (self.average_run_ns >> 4) + (took >> 4);
        self.manage.completed(end);
        e.pwq
    }

    pub(super) fn busy_worker(&self, item: T) -> Option<WorkerId> {
        let mut at = self.busy[item.hash() % BUSY_BUCKETS];
        while at != NIL {
            let w = &self.workers[at];
            if w.busy_item == Some(item) {
                return Some(at);
            }
            at = w.busy_next;
        }
        None
    }

    fn busy_unlink(&mut self, w: WorkerId, item: T) {
        let bucket = item.hash() % BUSY_BUCKETS;
        let next = self.workers[w].busy_next;
        self.workers[w].busy_next = NIL;
        if self.busy[bucket] == w {
            self.busy[bucket] = next;
            return;
        }
        let mut at = self.busy[bucket];
        while self.workers[at].busy_next != w {
            at = self.workers[at].busy_next;
        }
        self.workers[at].busy_next = next;
    }
}
