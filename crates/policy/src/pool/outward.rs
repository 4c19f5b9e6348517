//! What other pods may see of a pool, and offers to them; see [`crate::help`] for who helps whom.

use super::{BirthReason, Driver, Pool, PwqTag, Time, Token, WorkerId, WorkerState};
use crate::list::NIL;

/// What a pool publishes for the workers of other pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outlook {
    /// Since when the first item that no worker has started could have been started; 0 if there is none.
    pub oldest: Time,
    /// Items wait that neither a running worker nor one on its way will start before another item is done, and they are worth
    /// another pod's visit.
    pub behind: bool,
    /// Fewer workers run than may: a CPU of the pod has nothing to do for this pool.
    pub spare: bool,
    /// As `spare`, and not even a worker that helps elsewhere keeps that CPU busy.
    pub idle: bool,
}

/// What waits must take longer than this, by what items have taken of late, to be worth a visit: attaching, settling and
/// detaching take about a microsecond, cache lines that move with the item a few more.
const VISIT_NS: u64 = 5_000;

/// How many worklist entries a look for one that may be helped visits.
const OFFER_SCAN: usize = 64;

impl<T: Token, W> Pool<T, W> {
    /// What other pods may see now. O(1).
    #[inline]
    pub fn outlook(&self) -> Outlook {
        let busy = self.counts.running + self.counts.waking;
        let full = busy >= self.limit_now();
        let oldest = match self.oldest_waiting() {
            Some(since) => since.max(1),
            // Behind the running item of a batch nothing was started since the batch was.
            None if self.open_batches > 0 => self.last_progress.max(1),
            None => 0,
        };
        Outlook {
            oldest,
            behind: full
                && self.worklist.len() > self.counts.waking as usize
                && self.worklist.len() as u64 * self.average_run_ns >= VISIT_NS,
            spare: !full,
            idle: busy + self.counts.away < self.limit_now(),
        }
    }

    /// Whether the first item has waited for `hedge_ns`, or the last one surely will: as many workers run as may, and what waits
    /// takes them longer than twice that, by what items have taken of late.
    #[inline]
    pub fn is_overdue(&self, hedge_ns: u64, now: Time) -> bool {
        let o = self.outlook();
        if o.oldest == 0 {
            return false;
        }
        let at_work = u64::from(self.counts.running + self.counts.waking).max(1);
        now.saturating_sub(o.oldest) >= hedge_ns
            || (o.behind
                && self.worklist.len() as u64 * self.average_run_ns >= 2 * hedge_ns * at_work)
    }

    /// If items that may be helped are overdue and none was offered during the last `hedge_ns` without a taker: counts the first
    /// as hedged (once) and returns its pwq, for which a worker of another pod is to be called.
    pub fn offer(&mut self, hedge_ns: u64, now: Time) -> Option<PwqTag> {
        if !self.is_overdue(hedge_ns, now)
            || (self.offered_at != 0 && now.saturating_sub(self.offered_at) < hedge_ns)
        {
            return None;
        }
        let waiting = self
            .entries
            .ids(&self.worklist)
            .take(OFFER_SCAN)
            .find(|&id| self.pwqs[self.entries[id].pwq].flags.helpable);
        let id = waiting.or_else(|| {
            let last = |w: &super::Worker<T>| w.open.then(|| w.taken().last().copied()).flatten();
            let id = self.workers.iter().find_map(|(_, w)| last(w))?;
            self.pwqs[self.entries[id].pwq].flags.helpable.then_some(id)
        })?;
        self.offered_at = now.max(1);
        let e = &mut self.entries[id];
        let pwq = &mut self.pwqs[e.pwq];
        if !std::mem::replace(&mut e.offered, true) {
            pwq.counters.hedged += 1;
        }
        Some(pwq.tag)
    }

    /// Somebody came for what was offered: more may be offered at once.
    pub(super) fn offer_taken(&mut self) {
        self.offered_at = 0;
    }

    /// Another pod wants help and a CPU of this one has nothing to do: an idle worker is woken, or one is made; it finds
    /// nothing here and looks around. Returns whether one comes.
    pub fn call_helper<D: Driver<W>>(&mut self, now: Time, drv: &mut D) -> bool {
        if self.counts.running + self.counts.waking + self.counts.away >= self.limit_now() {
            return false;
        }
        let w = self.workers.pop_front(&mut self.idle);
        if w != NIL {
            self.set_state(w, WorkerState::Waking);
            self.waking_since = now;
            drv.wake(w);
            return true;
        }
        self.create(BirthReason::Help, now, drv)
    }

    /// A worker of another pool was brought home, or this one's own was, before it starts the item it took last.
    pub fn count_repatriated(&mut self, w: WorkerId) {
        let Some(&e) = self.workers.get(w).and_then(|x| x.taken().first()) else {
            return;
        };
        let pwq = self.entries[e].pwq;
        self.pwqs[pwq].counters.repatriated += 1;
    }
}
