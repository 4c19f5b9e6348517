//! What other pods may see of a pool, and offers to them; see [`crate::help`] for who helps whom.

use super::worker::WAKE_PATIENCE_NS;
use super::{BirthReason, Driver, Pool, PwqTag, Time, Token, WorkerId};

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
    /// From when on a worker of the pod may be called to help elsewhere; 0: now, [`u64::MAX`]: not until something changes. As
    /// `spare`, and not even a worker that helps elsewhere keeps that CPU busy. While one is on its way it is later: whoever is
    /// called next would be put behind it if all sleep on one CPU.
    pub idle_from: Time,
}

impl Outlook {
    /// Whether a worker of the pod may be called to help elsewhere.
    #[inline]
    pub fn is_idle(&self, now: Time) -> bool {
        self.idle_from <= now
    }
}

/// A worker that was woken this long ago and has not come (its CPU is busy, or stands still as a virtual one may) no longer keeps
/// others of its pod from being called. Far longer than wake-ups take where a CPU is idle (`WAKE_PATIENCE_NS` is twenty times less); as
/// long as a pod is left alone whose helper came in vain.
pub const CALL_PATIENCE_NS: u64 = 1_000_000;

/// What waits must take longer than this, by what items have taken of late, to be worth a visit: attaching, settling and
/// detaching take about a microsecond, cache lines that move with the item a few more.
const VISIT_NS: u64 = 5_000;

/// A backlog that takes those at work less than this many wake-ups is not worth calling for.
const STANDING_WAKES: u64 = 2;

/// Each helper that comes and finds work has so many further ones called.
const CALLS_PER_HELPER: u32 = 2;

/// So many helpers as were of use within this time are called again as soon as a backlog is worth it.
const HELPERS_KEPT_NS: u64 = 1_000_000;

/// At most so many helpers are called at once.
const MAX_CALLS: u32 = 4;

/// What [`Pool::offer`] wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Whose items are offered.
    pub pwq: PwqTag,
    /// How long the first item has waited or the last one is going to, ns.
    pub wait_ns: u64,
    /// So many helpers are to be called.
    pub calls: u32,
}

/// The calls that went out to other pods.
#[derive(Debug, Clone, Default)]
pub(super) struct Offers {
    /// When the last one was made; 0 = since the last taker none.
    at: Time,
    /// So many have not been answered.
    called: u32,
    /// So many times in a row nobody came.
    unanswered: u32,
    /// So many helpers are of use.
    wanted: u32,
    /// When one last came and took an item.
    taken_at: Time,
}

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
            idle_from: self.callable_from(),
        }
    }

    /// See [`Outlook::idle_from`]. The CPU of a worker that is late may be had by another one: as many may be on their way as the pod
    /// has CPUs, and one.
    #[inline]
    fn callable_from(&self) -> Time {
        let c = &self.counts;
        let on_their_way = c.waking.saturating_sub(1);
        if c.running + on_their_way + c.away >= self.limit_now() {
            Time::MAX
        } else if c.waking == 0 {
            0
        } else {
            self.waking_since.saturating_add(CALL_PATIENCE_NS)
        }
    }

    /// How long what waits will take those who are at work, helpers among them, by what items have taken of late; 0 if more of the
    /// pool's own may run, and come when they are woken.
    #[inline]
    fn expected_wait(&self, now: Time) -> u64 {
        let at_work = self.counts.running + self.counts.waking;
        let stuck =
            self.counts.waking > 0 && now.saturating_sub(self.waking_since) >= WAKE_PATIENCE_NS;
        if at_work < self.limit_now() && !stuck {
            return 0;
        }
        let all = u64::from(at_work + self.counts.attached).max(1);
        self.worklist.len() as u64 * self.average_run_ns / all
    }

    /// A backlog stands: as many workers run as may, items have waited without a break for `hedge_ns` (or helpers were here a moment
    /// ago and there are fewer now than were of use then), each is worth a visit, and what waits takes those at work far longer
    /// than a helper takes to come.
    #[inline]
    fn backlog_stands(&self, hedge_ns: u64, now: Time) -> bool {
        !self.worklist.is_empty()
            && (now.saturating_sub(self.waiting_since) >= hedge_ns || self.calls_due(now) > 0)
            && self.average_run_ns >= VISIT_NS
            && self.expected_wait(now) >= STANDING_WAKES * self.config.wake_cost_ns
    }

    /// How many helpers may be called now without waiting for the hedge delay.
    #[inline]
    fn calls_due(&self, now: Time) -> u32 {
        let o = &self.offers;
        if now.saturating_sub(o.taken_at) >= HELPERS_KEPT_NS {
            return 0;
        }
        o.wanted.saturating_sub(self.counts.attached + o.called)
    }

    /// Whether helpers are to be called: the first item has waited for `hedge_ns`, the last one surely will, or a backlog stands.
    #[inline]
    pub fn is_overdue(&self, hedge_ns: u64, now: Time) -> bool {
        let o = self.outlook();
        if o.oldest == 0 {
            return false;
        }
        now.saturating_sub(o.oldest) >= hedge_ns
            || (o.behind && self.expected_wait(now) >= 2 * hedge_ns)
            || self.backlog_stands(hedge_ns, now)
    }

    /// How long the first item has waited or the last one is going to, whichever is longer; what decides about other nodes.
    #[inline]
    fn longest_wait(&self, now: Time) -> u64 {
        let waited = self.oldest_waiting().map_or(0, |t| now.saturating_sub(t));
        waited.max(self.expected_wait(now))
    }

    /// Whether a helper that is here takes one more item: what waits is worth it, and for a `far` one, of another node, has waited
    /// for the hedge delay or is going to (it was called when that was `FAR_HEDGES` times as much).
    #[inline]
    pub fn keeps_helper(&self, far: bool, hedge_ns: u64, now: Time) -> bool {
        let o = self.outlook();
        if o.oldest == 0 {
            return false;
        }
        let waited = now.saturating_sub(o.oldest);
        if far {
            waited.max(self.expected_wait(now)) >= hedge_ns
        } else {
            o.behind || waited >= hedge_ns
        }
    }

    /// If items that may be helped are overdue, and a call is due: fewer helpers are here or called than are of
    /// use (`CALLS_PER_HELPER`), or none was called for `hedge_ns`. Counts the first item as hedged (once) and returns its pwq, for which a worker of
    /// another pod is to be called. If earlier calls were not answered, more than one worker, so that busy pods do not hold the others
    /// up.
    pub fn offer(&mut self, hedge_ns: u64, now: Time) -> Option<Offer> {
        if !self.is_overdue(hedge_ns, now) {
            return None;
        }
        let quiet = now.saturating_sub(self.offers.at) < hedge_ns && self.offers.at != 0;
        if quiet && self.calls_due(now) == 0 {
            return None;
        }
        let o = &mut self.offers;
        if !quiet {
            // Whoever was called has not come, and counts no more.
            o.unanswered = if o.called > 0 {
                (o.unanswered + 1).min(MAX_CALLS - 1)
            } else {
                0
            };
            o.called = 0;
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
        self.offers.at = now.max(1);
        let calls = 1 + if quiet { 0 } else { self.offers.unanswered };
        self.offers.called += calls;
        let wait_ns = self.longest_wait(now);
        let e = &mut self.entries[id];
        let pwq = &mut self.pwqs[e.pwq];
        if !std::mem::replace(&mut e.offered, true) {
            pwq.counters.hedged += 1;
        }
        Some(Offer {
            pwq: pwq.tag,
            wait_ns,
            calls,
        })
    }

    /// Nobody could be called: the nearest pods have no CPU to spare. Calls that are due would be in vain too.
    pub fn nobody_to_call(&mut self) {
        self.offers.wanted = self.counts.attached;
    }

    /// Somebody came for what was offered, and took an item: while a backlog stands, `CALLS_PER_HELPER` more are called, so that
    /// the number of helpers grows exponentially.
    pub(super) fn offer_taken(&mut self, now: Time) {
        let o = &mut self.offers;
        o.at = 0;
        o.taken_at = now;
        o.called = o.called.saturating_sub(1);
        o.unanswered = 0;
        let here = self.counts.attached;
        let more = (here * CALLS_PER_HELPER).min(self.worklist.len() as u32);
        o.wanted = o.wanted.max(here + more);
    }

    /// A worker steps aside: a helper is called in its place, at once.
    pub(super) fn want_one_more(&mut self, now: Time) {
        let here = self.counts.attached + self.offers.called;
        self.offers.wanted = self.offers.wanted.max(here + 1);
        self.offers.taken_at = now;
    }

    /// A helper came, and nothing was left that it could run.
    pub(super) fn came_in_vain(&mut self) {
        let o = &mut self.offers;
        o.called = o.called.saturating_sub(1);
        o.wanted = o.wanted.saturating_sub(1);
    }

    /// Another pod wants help and a CPU of this one has nothing to do: an idle worker is woken, or one is made; it finds
    /// nothing here and looks around. Returns whether one comes; none does while another is on its way, unless that is late
    /// ([`CALL_PATIENCE_NS`]).
    pub fn call_helper<D: Driver<W>>(&mut self, now: Time, drv: &mut D) -> bool {
        self.callable_from() <= now && self.wake_or_create(BirthReason::Help, now, drv)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::notes::{HERE, Notes, pool, queue, start};
    use crate::pool::{Next, PwqId, WorkerKind};

    const HEDGE: u64 = 100_000;
    #[test]
    fn an_item_is_offered_once_it_is_overdue_and_counted_once() {
        let (mut p, q, mut d) = pool(true);
        queue(&mut p, q, 1, 1_000, &mut d);
        assert_eq!(p.offer(HEDGE, 1_000 + HEDGE - 1), None);
        let tag = |o: Option<Offer>| o.map(|o| (o.pwq, o.calls));
        assert_eq!(tag(p.offer(HEDGE, 1_000 + HEDGE)), Some((7, 1)));
        assert_eq!(p.offer(HEDGE, 1_000 + HEDGE + 1), None, "one at a time");
        let again = tag(p.offer(HEDGE, 1_000 + 2 * HEDGE));
        assert_eq!(again, Some((7, 2)), "nobody came");
        assert_eq!(p.pwq(q).counters.hedged, 1);
    }

    /// A pool whose one worker runs one of `n` items of 40 us each.
    fn behind(n: u32) -> (Pool<u32, u32>, PwqId, Notes) {
        let (mut p, q, mut d) = pool(true);
        p.average_run_ns = 40_000;
        for i in 0..n {
            queue(&mut p, q, i, 0, &mut d);
        }
        start(&mut p, 0, &mut d);
        p.recall_all(0, &mut d);
        (p, q, d)
    }

    /// A helper comes and takes an item.
    fn come(p: &mut Pool<u32, u32>, now: Time, d: &mut Notes) -> WorkerId {
        let w = p.attach(WorkerKind::Helper, 0, now);
        assert!(p.next_attached(w, None, HERE, now, &mut Vec::new(), d));
        w
    }

    #[test]
    fn helpers_that_come_to_a_standing_backlog_have_more_called_at_once() {
        let (mut p, _, mut d) = behind(40);
        assert!(p.offer(HEDGE, 1).is_some(), "it would take 1.6 ms");
        assert!(p.offer(HEDGE, 2).is_none(), "one call at first");
        let mut calls = vec![1];
        for round in 1..4 {
            let now = round * 10_000;
            (0..calls[calls.len() - 1]).for_each(|_| {
                come(&mut p, now, &mut d);
            });
            let n = std::iter::from_fn(|| p.offer(HEDGE, now)).count();
            calls.push(n);
        }
        assert!(calls.windows(2).all(|w| w[1] >= w[0]), "{calls:?}");
        assert!(calls.iter().sum::<usize>() >= 8, "{calls:?}");
    }

    #[test]
    fn a_backlog_that_is_not_worth_it_calls_nobody_before_the_hedge_delay() {
        let (mut p, q, mut d) = behind(4);
        p.average_run_ns = VISIT_NS - 1;
        assert!(p.offer(HEDGE, HEDGE / 2).is_none());
        // Long items, but nobody had to wait for long.
        p.average_run_ns = 15_000;
        queue(&mut p, q, 100, HEDGE / 2, &mut d);
        assert!(p.offer(HEDGE, HEDGE / 2 + 1).is_none());
    }

    #[test]
    fn as_many_helpers_as_were_of_use_a_moment_ago_are_called_again_at_once() {
        let (mut p, q, mut d) = behind(5);
        assert!(p.offer(HEDGE, HEDGE).is_some());
        let helpers: Vec<WorkerId> = (0..4).map(|_| come(&mut p, HEDGE, &mut d)).collect();
        for w in helpers {
            p.detach(w, HEDGE + 1_000, &mut d);
        }
        assert!(p.offer(HEDGE, HEDGE + 1_000).is_none(), "nothing waits");
        for i in 10..20 {
            queue(&mut p, q, i, HEDGE + 2_000, &mut d);
        }
        let at = HEDGE + 3_000;
        let n = std::iter::from_fn(|| p.offer(HEDGE, at)).count();
        assert!(n >= 2, "{n}");
        // Long after nobody remembers them.
        let (mut p, q, mut d) = behind(2);
        come(&mut p, 0, &mut d);
        for i in 10..13 {
            queue(&mut p, q, i, 2 * HELPERS_KEPT_NS, &mut d);
        }
        assert!(p.offer(HEDGE, 2 * HELPERS_KEPT_NS + 1).is_none());
    }

    #[test]
    fn a_helper_stays_while_a_backlog_stands_and_one_from_afar_while_it_is_long() {
        let (mut p, _, mut d) = behind(9);
        let w = come(&mut p, 0, &mut d);
        assert!(p.keeps_helper(false, HEDGE, 1), "8 of 40 us wait");
        assert!(p.keeps_helper(true, HEDGE, 1), "for 160 us");
        while p.waiting() > 3 {
            assert!(p.next_attached(w, None, HERE, 1, &mut Vec::new(), &mut d));
        }
        assert!(p.keeps_helper(false, HEDGE, 1));
        assert!(!p.keeps_helper(true, HEDGE, 1));
        while p.next_attached(w, None, HERE, 1, &mut Vec::new(), &mut d) {}
        assert!(!p.keeps_helper(false, HEDGE, 10 * HEDGE), "nothing waits");
        p.detach(w, 1, &mut d);
        p.check();
    }

    #[test]
    fn a_worker_that_steps_aside_leaves_and_has_a_helper_called_and_is_tried_again_later() {
        let (mut p, q, mut d) = pool(true);
        p.config.target = 2;
        p.average_run_ns = 40_000;
        for i in 0..20 {
            queue(&mut p, q, i, 0, &mut d);
        }
        let (a, next) = start(&mut p, 0, &mut d);
        assert_eq!(next, Next::Run);
        let (b, next) = start(&mut p, 0, &mut d);
        assert_eq!(next, Next::Run);
        p.step_aside(1_000_000, 10);
        assert_eq!(p.limit_now(), 1);
        let mut out = Vec::new();
        assert_eq!(p.next(b, HERE, 10, &mut out, &mut d), Next::Idle);
        assert!(p.offer(HEDGE, 11).is_some(), "at once");
        assert_eq!(p.next(a, HERE, 20, &mut out, &mut d), Next::Run);
        p.step_aside(1_000_000, 30);
        assert_eq!(p.limit_now(), 1, "one always runs");
        assert_eq!(p.next(a, HERE, 1_000_031, &mut out, &mut d), Next::Run);
        assert_eq!(p.limit_now(), 2);
        p.check();
    }

    #[test]
    fn a_helper_that_blocks_elsewhere_makes_room_for_another_one() {
        let (mut p, _, mut d) = pool(true);
        let (w, next) = start(&mut p, 0, &mut d);
        assert_eq!(next, Next::Idle);
        assert!(p.go_away(w) && !p.outlook().is_idle(1));
        assert!(p.away_blocked(w) && !p.away_blocked(w));
        assert!(p.outlook().is_idle(1));
        p.away_resumed(w);
        assert!(!p.outlook().is_idle(1));
        assert_eq!(p.next(w, HERE, 3, &mut Vec::new(), &mut d), Next::Idle);
        p.check();
    }

    #[test]
    fn what_may_not_be_helped_is_never_offered_nor_taken() {
        let (mut p, q, mut d) = pool(false);
        queue(&mut p, q, 1, 0, &mut d);
        assert_eq!(p.offer(HEDGE, 10 * HEDGE), None);
        let w = p.attach(WorkerKind::Helper, 0, 0);
        assert!(!p.next_attached(w, None, HERE, 0, &mut Vec::new(), &mut d));
        p.detach(w, 0, &mut d);
        assert_eq!(p.pwq(q).counters.hedged, 0);
        p.check();
    }

    #[test]
    fn items_behind_a_running_one_are_for_helpers_at_once_if_they_are_worth_it() {
        let (mut p, q, mut d) = pool(true);
        queue(&mut p, q, 1, 0, &mut d);
        assert!(!p.outlook().behind, "its worker is being made");
        assert!(p.outlook().spare);
        start(&mut p, 0, &mut d);
        queue(&mut p, q, 2, 10, &mut d);
        // Nothing is known of the items yet, which counts as long.
        let o = p.outlook();
        assert!(o.behind && !o.spare && o.oldest == 10, "{o:?}");
        assert!(p.is_overdue(HEDGE, 11), "it will be");
        let w = p.attach(WorkerKind::Helper, 0, 20);
        let mut out = Vec::new();
        assert!(p.next_attached(w, None, HERE, 20, &mut out, &mut d));
        assert_eq!(out[0].item, 2);
        p.detach(w, 30, &mut d);
        let c = p.pwq(q).counters;
        assert_eq!((c.helped, c.completed), (1, 1));
        p.check();
    }

    #[test]
    fn a_helper_takes_what_lies_behind_another_item_in_a_batch() {
        let (mut p, q, mut d) = pool(true);
        for i in 0..8 {
            queue(&mut p, q, i, 0, &mut d);
        }
        start(&mut p, 0, &mut d);
        let w = p.attach(WorkerKind::Helper, 0, 20);
        let mut out = Vec::new();
        let mut seen = Vec::new();
        while p.next_attached(w, None, HERE, 30, &mut out, &mut d) {
            seen.push(out[0].item);
        }
        p.detach(w, 40, &mut d);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7], "all but the running one");
        p.check();
    }

    #[test]
    fn a_call_for_help_wakes_an_idle_worker_or_has_one_made_but_never_more_than_cpus() {
        let (mut p, _, mut d) = pool(true);
        assert!(p.call_helper(0, &mut d));
        assert_eq!(d.wanted, [BirthReason::Help]);
        let (w, next) = start(&mut p, 0, &mut d);
        assert_eq!(next, Next::Idle);
        assert!(p.call_helper(0, &mut d));
        assert_eq!(d.woken, [w]);
        assert!(!p.call_helper(0, &mut d), "it is on its way");
        let mut out = Vec::new();
        assert_eq!(p.next(w, HERE, 1, &mut out, &mut d), Next::Idle);
        assert!(p.go_away(w));
        assert!(!p.outlook().is_idle(2) && p.outlook().spare);
        assert!(!p.call_helper(2, &mut d), "it helps elsewhere already");
        assert!(!p.go_away(w));
        assert_eq!(p.next(w, HERE, 3, &mut out, &mut d), Next::Idle);
        p.check();
    }
}
