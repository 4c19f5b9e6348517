//! Enqueue, activate, remove, barriers and flush colours.

use super::{
    Barrier, COLOURS, Driver, Entry, EntryId, Place, Pool, PwqConfig, PwqId, Time, Token, WorkerId,
    pwq::Pwq,
};
use crate::list::NIL;

/// An item on its way into a pool.
#[derive(Debug, Clone, Copy)]
pub struct Enqueue<T> {
    /// The item.
    pub item: T,
    /// Through which pwq.
    pub pwq: PwqId,
    /// It can be queued only once, ever.
    pub oneshot: bool,
    /// The caller runs an item of the same queue.
    pub chained: bool,
    /// The CPU that queues it.
    pub issuer_cpu: u32,
}

/// Why an item was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The queue drains and the caller does not run one of its items.
    Draining,
}

/// What became of a request to take an item out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is out and will not run from this queueing.
    Removed,
    /// A worker has it; it runs or is about to.
    Started,
}

impl<T: Token, W> Pool<T, W> {
    /// Links a pwq to this pool.
    pub fn link_pwq(&mut self, config: PwqConfig) -> PwqId {
        self.pwqs.insert(Pwq::new(config))
    }

    /// Takes an empty pwq out and returns its last state.
    ///
    /// # Panics
    /// If items are left in it, or if its slot owes it an answer ([`Driver::drained`] waits for both).
    pub fn unlink_pwq(&mut self, id: PwqId) -> Pwq {
        assert!(self.pwqs[id].is_empty(), "a pwq with items stays");
        assert!(!self.pwqs[id].asking, "a pwq that waits for permits stays");
        self.manage.forget_pwq(id);
        self.pwqs.remove(id)
    }

    /// Queues an item: active if its pwq has a permit and holds nothing back, else inactive behind the others.
    #[inline]
    pub fn enqueue<D: Driver<W>>(
        &mut self,
        q: Enqueue<T>,
        now: Time,
        drv: &mut D,
    ) -> Result<EntryId, Refused> {
        self.end_aside(now);
        let pwq = &mut self.pwqs[q.pwq];
        if pwq.draining && !q.chained {
            return Err(Refused::Draining);
        }
        pwq.counters.queued += 1;
        let colour = pwq.colour;
        pwq.in_flight[colour as usize] += 1;
        let active = pwq.inactive.is_empty() && pwq.active < pwq.limit && !pwq.frozen;
        let id = self.entries.insert(Entry {
            item: q.item,
            pwq: q.pwq,
            place: if active {
                Place::Worklist
            } else {
                Place::Inactive
            },
            colour,
            oneshot: q.oneshot,
            queued_at: now,
            active_at: now,
            offered: false,
            issuer_cpu: q.issuer_cpu,
            lent: false,
            barriers: NIL,
        });
        if active {
            pwq.active += 1;
            pwq.note_peaks();
            drv.activated(q.item.mark(), pwq.tag);
            self.push_worklist(id, now);
            self.kick(now, drv);
        } else {
            self.entries.push_back(&mut self.pwqs[q.pwq].inactive, id);
            let pwq = &mut self.pwqs[q.pwq];
            pwq.counters.throttled += 1;
            pwq.note_peaks();
            self.ask_if_needed(q.pwq, drv);
        }
        Ok(id)
    }

    pub(super) fn push_worklist(&mut self, id: EntryId, now: Time) {
        if self.worklist.is_empty() {
            self.last_progress = now;
            self.waiting_since = now;
        }
        self.entries.push_back(&mut self.worklist, id);
    }

    /// Items that the limit allows become active, in order. Returns how many.
    pub(super) fn activate<D: Driver<W>>(&mut self, id: PwqId, now: Time, drv: &mut D) -> u32 {
        let mut n = 0;
        loop {
            let pwq = &mut self.pwqs[id];
            if pwq.frozen || pwq.active >= pwq.limit || pwq.inactive.is_empty() {
                break;
            }
            let e = self.entries.pop_front(&mut pwq.inactive);
            pwq.active += 1;
            pwq.note_peaks();
            drv.activated(self.entries[e].item.mark(), pwq.tag);
            self.entries[e].place = Place::Worklist;
            self.entries[e].active_at = now;
            self.push_worklist(e, now);
            n += 1;
        }
        if n > 0 {
            self.kick(now, drv);
        }
        n
    }

    pub(super) fn ask_if_needed<D: Driver<W>>(&mut self, id: PwqId, drv: &mut D) {
        let pwq = &mut self.pwqs[id];
        if pwq.leased
            && !pwq.asking
            && !pwq.frozen
            && !pwq.inactive.is_empty()
            && pwq.active >= pwq.limit
        {
            pwq.asking = true;
            drv.ask(pwq.tag);
        }
    }

    /// Active items left the pwq: their permits go to the next items, to the slot, or stay as spares.
    pub(super) fn permits_freed<D: Driver<W>>(
        &mut self,
        id: PwqId,
        n: u32,
        now: Time,
        drv: &mut D,
    ) {
        let pwq = &mut self.pwqs[id];
        pwq.active -= n;
        pwq.overdrawn = if pwq.active > pwq.limit {
            pwq.active
        } else {
            0
        };
        if !pwq.leased {
            if !pwq.inactive.is_empty() {
                self.activate(id, now, drv);
            }
            return;
        }
        if drv.contended(pwq.tag) {
            self.return_spare(id, 0, drv);
            self.ask_if_needed(id, drv);
        } else {
            if !self.pwqs[id].inactive.is_empty() {
                self.activate(id, now, drv);
                self.ask_if_needed(id, drv);
            }
            let keep = self.pwqs[id].keep;
            self.return_spare(id, keep, drv);
        }
    }

    fn return_spare<D: Driver<W>>(&mut self, id: PwqId, keep: u32, drv: &mut D) {
        let pwq = &mut self.pwqs[id];
        let spare = pwq.limit.saturating_sub(pwq.active);
        // Spares come and go in lots, not one by one.
        if spare > 2 * keep {
            pwq.limit -= spare - keep;
            drv.give_back(pwq.tag, spare - keep);
        }
    }

    /// The slot grants `n` permits (an answer to [`Driver::ask`]; `n` may be 0 when it only ends the asking) and says how
    /// many spare ones the pwq may keep.
    pub fn grant<D: Driver<W>>(&mut self, id: PwqId, n: u32, keep: u32, now: Time, drv: &mut D) {
        let pwq = &mut self.pwqs[id];
        pwq.asking = false;
        let keep = if std::mem::take(&mut pwq.swept) {
            0
        } else {
            keep
        };
        pwq.limit += n;
        pwq.keep = keep;
        pwq.overdrawn = if pwq.active > pwq.limit {
            pwq.active
        } else {
            0
        };
        self.activate(id, now, drv);
        self.ask_if_needed(id, drv);
        self.return_spare(id, keep, drv);
        self.report_if_drained(id, drv);
    }

    /// Takes all spare permits away for the slot; returns how many. The caller hands them to the slot itself.
    pub fn reclaim(&mut self, id: PwqId) -> u32 {
        let pwq = &mut self.pwqs[id];
        pwq.keep = 0;
        pwq.swept = pwq.asking;
        let spare = pwq.limit.saturating_sub(pwq.active);
        pwq.limit -= spare;
        spare
    }

    /// Sets the fixed limit of a pwq that does not lease (per-CPU: `max_active`; ordered: 1, or 0 while plugged). Raised:
    /// held-back items become active in order. Lowered: what is active stays so.
    pub fn set_limit<D: Driver<W>>(&mut self, id: PwqId, limit: u32, now: Time, drv: &mut D) {
        let pwq = &mut self.pwqs[id];
        debug_assert!(!pwq.leased);
        pwq.limit = limit;
        pwq.overdrawn = if pwq.active > limit { pwq.active } else { 0 };
        self.activate(id, now, drv);
    }

    /// Freezes or thaws: a frozen pwq activates nothing; what is active finishes.
    pub fn set_frozen<D: Driver<W>>(&mut self, id: PwqId, frozen: bool, now: Time, drv: &mut D) {
        self.pwqs[id].frozen = frozen;
        if !frozen {
            self.activate(id, now, drv);
            self.ask_if_needed(id, drv);
        }
    }

    /// While draining, only chained queueing is accepted.
    pub fn set_draining(&mut self, id: PwqId, draining: bool) {
        self.pwqs[id].draining = draining;
    }

    /// The pwq was replaced: [`Driver::drained`] is called once it is empty and waits for no permits (at once if so). An
    /// item that still runs may be queued here again between the call and the driver's step, and then end: the step looks
    /// again, and the call may come more than once.
    pub fn retire_pwq<D: Driver<W>>(&mut self, id: PwqId, drv: &mut D) {
        self.pwqs[id].retiring = true;
        self.report_if_drained(id, drv);
    }

    pub(super) fn report_if_drained<D: Driver<W>>(&mut self, id: PwqId, drv: &mut D) {
        let pwq = &mut self.pwqs[id];
        if pwq.retiring && pwq.is_empty() && !pwq.asking {
            drv.drained(pwq.tag);
        }
    }

    /// Takes a queued item out. Its waiters are told; it counts as cancelled.
    pub fn remove<D: Driver<W>>(&mut self, id: EntryId, now: Time, drv: &mut D) -> Removed {
        if let Place::Taken(w) = self.entries[id].place {
            self.recall(w, now, drv);
        }
        // The recall may have settled it.
        let Some(pwq) = self.entries.get(id).map(|e| e.pwq) else {
            return Removed::Started;
        };
        match self.entries[id].place {
            Place::Inactive => self.entries.unlink(&mut self.pwqs[pwq].inactive, id),
            Place::Worklist => self.entries.unlink(&mut self.worklist, id),
            Place::Private(w) => self.entries.unlink(&mut self.workers[w].private, id),
            Place::Taken(_) | Place::Inline => return Removed::Started,
        }
        let lent = self.entries[id].lent;
        let active = self.entries[id].place != Place::Inactive && !lent;
        self.pwqs[pwq].lent -= u32::from(lent);
        self.pwqs[pwq].counters.cancelled += 1;
        self.drop_entry(id, drv);
        if active {
            self.permits_freed(pwq, 1, now, drv);
        }
        self.report_if_drained(pwq, drv);
        Removed::Removed
    }

    /// Removes an entry that is in no list: wakes its waiters and counts it out of its colour.
    pub(super) fn drop_entry<D: Driver<W>>(&mut self, id: EntryId, drv: &mut D) -> Entry<T> {
        let e = self.entries.remove(id);
        let mut b = e.barriers;
        while b != NIL {
            let barrier = self.barriers.remove(b);
            b = barrier.next;
            drv.barrier(barrier.waiter);
        }
        let pwq = &mut self.pwqs[e.pwq];
        let c = e.colour as usize;
        pwq.in_flight[c] -= 1;
        if pwq.in_flight[c] == 0 && pwq.armed & (1 << c) != 0 {
            pwq.armed &= !(1 << c);
            if pwq.armed == 0 {
                self.armed_pwqs -= 1;
            }
            drv.flushed(pwq.tag, e.colour);
        }
        e
    }

    /// A thread that waits for this queued item runs it itself. `lend`: the caller runs an item of the same queue whose
    /// permit serves for both, so a held-back item may start too. True if the caller now has it: it must run it and call
    /// [`Pool::inline_end`].
    pub fn inline_begin<D: Driver<W>>(
        &mut self,
        id: EntryId,
        lend: bool,
        now: Time,
        drv: &mut D,
    ) -> bool {
        if let Place::Taken(w) = self.entries[id].place {
            self.recall(w, now, drv);
        }
        // The recall may have settled it.
        let Some(pwq) = self.entries.get(id).map(|e| e.pwq) else {
            return false;
        };
        match self.entries[id].place {
            Place::Worklist => self.entries.unlink(&mut self.worklist, id),
            Place::Inactive if lend && !self.pwqs[pwq].frozen => {
                let p = &mut self.pwqs[pwq];
                self.entries.unlink(&mut p.inactive, id);
                p.active += 1;
                p.overdrawn = if p.active > p.limit { p.active } else { 0 };
            }
            _ => return false,
        }
        self.entries[id].place = Place::Inline;
        self.pwqs[pwq].running += 1;
        self.pwqs[pwq].counters.inlined += 1;
        self.pwqs[pwq].counters.started += 1;
        true
    }

    /// The item of [`Pool::inline_begin`] has returned.
    pub fn inline_end<D: Driver<W>>(&mut self, id: EntryId, start: Time, end: Time, drv: &mut D) {
        let pwq = self.complete(id, start, end, drv);
        self.row_done(Some((pwq, 1)), end, drv);
    }

    /// The running item of this entry waits for others of its queue: its permit serves for them meanwhile. Nothing happens if
    /// it has been lent already. Returns whether it is lent now; then [`Pool::take_permit_back`] comes when the wait is over.
    /// The item's next run on the same worker's private list lends its own, too, until it starts.
    pub fn lend_permit<D: Driver<W>>(&mut self, id: EntryId, now: Time, drv: &mut D) -> bool {
        let Some(e) = self.entries.get_mut(id) else {
            return false;
        };
        if e.lent || matches!(e.place, Place::Worklist | Place::Inactive) {
            return false;
        }
        e.lent = true;
        let (pwq, place) = (e.pwq, e.place);
        self.pwqs[pwq].lent += 1;
        self.permits_freed(pwq, 1, now, drv);
        // The item's next run, if it is queued again, waits for this one.
        if let Place::Taken(w) = place
            && self.workers[w].taken[0] == id
        {
            let private = &self.workers[w].private;
            let next: Vec<EntryId> = self.entries.ids(private).collect();
            for id in next {
                if self.lends_along(pwq, self.entries[id].pwq) {
                    self.lend_permit(id, now, drv);
                }
            }
        }
        true
    }

    /// Whether an item's next run, through pwq `next`, lends its permit while what runs, through `runs`, does: through the same pwq,
    /// or one that has replaced it (only pwqs with leased permits are ever replaced, but for ordered ones, where nothing is lent).
    #[inline]
    pub(super) fn lends_along(&self, runs: PwqId, next: PwqId) -> bool {
        runs == next || (self.pwqs[runs].leased && self.pwqs[next].leased)
    }

    /// The wait of [`Pool::lend_permit`] is over: the item counts again, even if that is one too many.
    pub fn take_permit_back(&mut self, id: EntryId) {
        let e = &mut self.entries[id];
        debug_assert!(e.lent);
        e.lent = false;
        let p = &mut self.pwqs[e.pwq];
        p.lent -= 1;
        p.active += 1;
        p.overdrawn = if p.active > p.limit { p.active } else { 0 };
    }

    /// The worker that runs this reusable item in this pool now, its entry and pwq.
    pub fn running(&self, item: T) -> Option<(WorkerId, EntryId, PwqId)> {
        let w = self.busy_worker(item)?;
        let e = self.workers[w].taken[0];
        Some((w, e, self.entries[e].pwq))
    }

    /// `waiter` is told when the item of this entry is settled or taken out. An item in the middle of a worker's batch is
    /// settled with the batch: a caller that cannot wait for that calls [`Pool::recall`] first.
    pub fn attach_barrier(&mut self, id: EntryId, waiter: W) {
        let next = self.entries[id].barriers;
        let b = self.barriers.insert(Barrier { waiter, next });
        self.entries[id].barriers = b;
    }

    /// How many wait for the item of this entry ([`Self::attach_barrier`]). O(that number).
    pub fn waiters_of(&self, entry: &Entry<T>) -> u32 {
        let (mut b, mut n) = (entry.barriers, 0);
        while b != NIL {
            b = self.barriers[b].next;
            n += 1;
        }
        n
    }

    /// Starts or joins a flush: items queued from now on get `next`; if items of `flush` are left, they are armed and
    /// [`Driver::flushed`] will tell. Returns whether they are. Finished work of batches is settled first.
    pub fn arm_flush<D: Driver<W>>(
        &mut self,
        id: PwqId,
        flush: u8,
        next: u8,
        now: Time,
        drv: &mut D,
    ) -> bool {
        debug_assert!((flush as usize) < COLOURS && (next as usize) < COLOURS);
        self.recall_all(now, drv);
        let pwq = &mut self.pwqs[id];
        pwq.colour = next;
        let armed = pwq.in_flight[flush as usize] > 0;
        if armed {
            if pwq.armed == 0 {
                self.armed_pwqs += 1;
            }
            pwq.armed |= 1 << flush;
        }
        armed
    }
}
