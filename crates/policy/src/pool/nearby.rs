//! What is near: which item a worker takes first, which worker is woken, and how. Policy only prefers; nothing waits for what is near.

use super::{EntryId, Pool, PoolKind, Time, Token, Worker, WorkerId, WorkerState};
use crate::list::NIL;
use crate::near::{BRIEF_NS, Way};
use std::sync::Arc;

/// Shorter items are not worth a look at more than the first.
const NEAR_RUN_NS: u64 = 5_000;
/// How many items are looked at for a near one.
const NEAR_SCAN: usize = 16;
/// An item may be overtaken by near ones that came at most this much later.
const NEAR_LEAD_NS: u64 = 2_000_000;
/// So much of what was queued elsewhere is taken at once.
const FAR_BATCH_NS: u64 = 40_000;
/// How many idle workers are looked at for a near one.
const IDLE_SCAN: usize = 4;
/// Among more workers than this nobody is looked for.
const FEW: u32 = 16;

impl<T: Token, W> Pool<T, W> {
    /// Whether items are worth being taken where they were queued.
    #[inline]
    pub(super) fn near_first(&self) -> bool {
        self.average_run_ns >= NEAR_RUN_NS && self.config.kind == PoolKind::Unbound
    }

    /// How many items that were queued elsewhere a worker takes at once.
    pub(super) fn far_batch(&self) -> usize {
        (FAR_BATCH_NS / self.average_run_ns.max(1)).max(1) as usize
    }

    /// The item that a worker on this CPU takes next: among the first few the first that was queued here, if it came little later
    /// than the first of all: its data is in this CPU's caches, and so is whoever waits for it. Nothing is overtaken by what
    /// comes later than that, so nothing starves.
    #[inline]
    pub(super) fn nearest(&self, cpu: u32) -> EntryId {
        let head = self.worklist.head();
        if self.worklist.len() < 2 || !self.near_first() {
            return head;
        }
        let last = self.entries[head].active_at + NEAR_LEAD_NS;
        let near = |&id: &EntryId| {
            let e = &self.entries[id];
            e.issuer_cpu == cpu && e.active_at <= last
        };
        let mut few = self.entries.ids(&self.worklist).take(NEAR_SCAN);
        few.find(near).unwrap_or(head)
    }

    /// Of every CPU a number of its core, the same for CPUs that share one, by the CPU's number; empty: no two do. Hints for whom to
    /// wake.
    pub fn set_cores(&mut self, cores: Arc<[u32]>) {
        self.cores = cores;
    }

    /// Whether the two are one CPU or share a core.
    #[inline]
    fn share_core(&self, a: u32, b: u32) -> bool {
        let core = |cpu: u32| self.cores.get(cpu as usize);
        a == b || core(a).is_some_and(|x| core(b) == Some(x))
    }

    /// The idle worker to wake: among the first few one that ran last where the first item was queued. If all CPUs are busy the system
    /// wakes it there, else it looks for an idle core. If a worker has just begun to run there, rather one that ran elsewhere: the
    /// system may put it behind that one although another CPU is idle. Else one that did not run on the core of that CPU: the system
    /// wakes a thread where it ran last, if that CPU is idle, and there it would slow down whoever queues. Else the most recent one.
    #[inline]
    pub(super) fn nearest_idle(&self) -> WorkerId {
        let first = self.idle.head();
        let Some(item) = self.entries.get(self.worklist.head()) else {
            return first;
        };
        if first == NIL || self.config.kind != PoolKind::Unbound {
            return first;
        }
        let there = item.issuer_cpu;
        let begun = self.counts.running > 0 && self.started_on == there;
        let mut few = self.workers.ids(&self.idle).take(IDLE_SCAN);
        let mut found = first;
        let mut best = 0;
        let rank = |cpu: u32| match (cpu == there, begun) {
            (true, false) => 3,
            (true, true) => 0,
            _ if self.share_core(cpu, there) => u32::from(begun),
            _ => 2,
        };
        while best < 3
            && let Some(w) = few.next()
        {
            let r = rank(self.workers[w].cpu);
            if r > best {
                (found, best) = (w, r);
            }
        }
        found
    }

    /// How the worker is to be woken that the next item needs, if nobody is at work and it matters. `sleepy`: whether its
    /// issuer sleeps about once per such item; asked only of a pool at rest.
    #[inline]
    pub fn way_to_wake(&mut self, sleepy: impl FnOnce() -> bool) -> Option<Way> {
        let at_rest = self.counts.running + self.counts.waking == 0;
        if !at_rest || self.config.kind != PoolKind::Unbound {
            return None;
        }
        self.near.choose(sleepy(), self.average_run_ns)
    }

    /// The worker that was woken beside its issuer, if it is all that is at work. O(1): none if the pool has more than 16 workers.
    #[inline]
    pub fn lone_worker(&self) -> Option<WorkerId> {
        let alone = self.counts.running + self.counts.waking == 1 && self.counts.attached == 0;
        if !alone || !self.near.is_beside() || self.counts.own() > FEW {
            return None;
        }
        let at_work = |w: &Worker<T>| matches!(w.state, WorkerState::Running | WorkerState::Waking);
        self.workers
            .iter()
            .find(|(_, w)| at_work(w))
            .map(|(id, _)| id)
    }

    /// A worker that was woken in this way came `ns` later.
    pub fn came(&mut self, way: Way, ns: Time) {
        self.near.learned(way, ns);
    }

    /// Whether one more item and what waits are so short, by what items have taken of late, that a worker may do them beside their
    /// issuer.
    #[inline]
    pub fn is_brief(&self) -> bool {
        let items = 1 + (self.worklist.len() + self.expected) as u64;
        items.saturating_mul(self.average_run_ns) <= BRIEF_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::notes::{HERE, Notes, pool, queue, queue_on, start};
    use crate::pool::{Here, Next, PwqId};

    const THERE: Here = Here {
        cpu: 1,
        in_pod: true,
    };

    /// What the worker takes next, on this CPU.
    fn takes(
        p: &mut Pool<u32, u32>,
        w: WorkerId,
        here: Here,
        now: Time,
        d: &mut Notes,
    ) -> Vec<u32> {
        let mut batch = Vec::new();
        match p.next(w, here, now, &mut batch, d) {
            Next::Run => batch.iter().map(|t| t.item).collect(),
            _ => Vec::new(),
        }
    }

    /// A new worker begins on this CPU with an item that was queued there.
    fn begin(p: &mut Pool<u32, u32>, q: PwqId, here: Here, d: &mut Notes) -> WorkerId {
        queue_on(here.cpu, p, q, 0, 0, d);
        let w = p.worker_started(0, 0);
        assert!(!takes(p, w, here, 0, d).is_empty());
        w
    }

    /// A pool whose one worker waits for work and whose items take this long; those of even number are queued on CPU 0, the others
    /// on CPU 1, one each microsecond.
    fn mixed(run_ns: u64, n: u32) -> (Pool<u32, u32>, PwqId, Notes, WorkerId) {
        let (mut p, q, mut d) = pool(true);
        p.config.target = 1;
        let (w, _) = start(&mut p, 0, &mut d);
        p.average_run_ns = run_ns;
        for i in 0..n {
            queue_on(i % 2, &mut p, q, i, u64::from(i) * 1_000, &mut d);
        }
        (p, q, d, w)
    }

    #[test]
    fn a_worker_takes_the_items_that_were_queued_on_its_cpu_first() {
        let (mut p, _, mut d, w) = mixed(50_000, 4);
        let order: Vec<u32> = (0..4)
            .map(|_| takes(&mut p, w, THERE, 10_000, &mut d)[0])
            .collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn short_items_are_taken_in_order() {
        let (mut p, _, mut d, w) = mixed(NEAR_RUN_NS / 5, 4);
        let order: Vec<u32> = (0..4)
            .map(|_| takes(&mut p, w, THERE, 10_000, &mut d)[0])
            .collect();
        assert_eq!(order, [0, 1, 2, 3]);
    }

    #[test]
    fn an_item_is_not_overtaken_for_ever() {
        let (mut p, q, mut d, w) = mixed(50_000, 1);
        // One that is near comes every half millisecond.
        let mut now = 0;
        for i in 1..100 {
            now += 500_000;
            queue_on(1, &mut p, q, i, now, &mut d);
            if takes(&mut p, w, THERE, now, &mut d) == [0] {
                assert!(now <= NEAR_LEAD_NS + 1_000_000, "{now}");
                return;
            }
        }
        panic!("the first item was never taken");
    }

    #[test]
    fn the_worker_that_ran_where_the_item_is_queued_is_woken() {
        let (mut p, q, mut d) = pool(true);
        p.config.target = 2;
        queue(&mut p, q, 1, 0, &mut d);
        queue(&mut p, q, 2, 0, &mut d);
        let a = p.worker_started(0, 0);
        assert!(!takes(&mut p, a, HERE, 0, &mut d).is_empty());
        let b = p.worker_started(0, 0);
        assert!(!takes(&mut p, b, THERE, 0, &mut d).is_empty());
        // The one on CPU 1 goes idle last: it would be the first to be woken.
        assert!(takes(&mut p, a, HERE, 10, &mut d).is_empty());
        assert!(takes(&mut p, b, THERE, 20, &mut d).is_empty());
        d.woken.clear();
        queue_on(0, &mut p, q, 3, 30, &mut d);
        assert_eq!(d.woken, [a]);
    }

    #[test]
    fn a_second_worker_is_not_woken_where_the_first_one_has_just_begun() {
        let (mut p, q, mut d) = pool(true);
        p.config.target = 3;
        let workers = [HERE, THERE, HERE].map(|here| (begin(&mut p, q, here, &mut d), here));
        for &(w, here) in &workers {
            assert!(takes(&mut p, w, here, 10, &mut d).is_empty());
        }
        p.average_run_ns = 1_000_000;
        d.woken.clear();
        queue_on(0, &mut p, q, 1, 20, &mut d);
        queue_on(0, &mut p, q, 2, 20, &mut d);
        assert_eq!(d.woken, [workers[2].0], "the last one, which ran there");
        assert!(!takes(&mut p, workers[2].0, HERE, 20, &mut d).is_empty());
        assert_eq!(d.woken[1..], [workers[1].0]);
    }

    #[test]
    fn a_worker_that_would_come_beside_a_busy_issuer_is_not_woken_if_another_one_is_idle() {
        // CPUs 0 and 1, 2 and 3 share a core.
        let cores: Arc<[u32]> = Arc::from([0, 0, 1, 1]);
        for (set, expected) in [(false, 1), (true, 0)] {
            let (mut p, q, mut d) = pool(true);
            p.config.target = 2;
            if set {
                p.set_cores(Arc::clone(&cores));
            }
            queue_on(0, &mut p, q, 1, 0, &mut d);
            queue_on(0, &mut p, q, 2, 0, &mut d);
            let workers: Vec<_> = [2, 1]
                .map(|cpu| {
                    let w = p.worker_started(0, 0);
                    let here = Here { cpu, in_pod: true };
                    assert!(!takes(&mut p, w, here, 0, &mut d).is_empty());
                    (w, here)
                })
                .into();
            // The one on CPU 1 goes idle last.
            for &(w, here) in &workers {
                assert!(takes(&mut p, w, here, 10, &mut d).is_empty());
            }
            d.woken.clear();
            queue_on(0, &mut p, q, 3, 20, &mut d);
            assert_eq!(d.woken, [workers[expected].0], "{set}");
            // Nobody else is idle: then the one beside it, rather than nobody.
            p.average_run_ns = 1_000_000;
            queue_on(0, &mut p, q, 4, 20, &mut d);
            let (first, here) = workers[expected];
            assert!(!takes(&mut p, first, here, 20, &mut d).is_empty());
            assert_eq!(d.woken[1..], [workers[1 - expected].0]);
        }
    }

    #[test]
    fn beside_one_that_has_just_begun_the_other_cpu_of_its_core_is_better_than_its_own() {
        let (mut p, q, mut d) = pool(true);
        p.config.target = 3;
        p.set_cores(Arc::from([0, 0]));
        let workers = [THERE, HERE, HERE].map(|here| (begin(&mut p, q, here, &mut d), here));
        for &(w, here) in &workers[..2] {
            assert!(takes(&mut p, w, here, 10, &mut d).is_empty());
        }
        d.woken.clear();
        p.average_run_ns = 1_000_000;
        assert!(p.counts.running > 0 && p.started_on == 0);
        queue_on(0, &mut p, q, 1, 20, &mut d);
        assert_eq!(
            d.woken,
            [workers[0].0],
            "the last one ran where one runs now"
        );
    }

    #[test]
    fn a_tick_that_finds_an_item_queued_just_now_wakes_nobody_for_it() {
        let (mut p, q, mut d) = pool(true);
        p.config.target = 2;
        p.average_run_ns = 1_000;
        for i in 0..2 {
            queue(&mut p, q, i, 0, &mut d);
        }
        let a = p.worker_started(0, 0);
        let b = p.worker_started(0, 0);
        assert!(!takes(&mut p, a, HERE, 0, &mut d).is_empty());
        while !takes(&mut p, b, THERE, 0, &mut d).is_empty() {}
        d.woken.clear();
        p.average_run_ns = 1_000;
        queue(&mut p, q, 7, 1_000_000, &mut d);
        p.tick(1_001_000, &mut d);
        assert!(d.woken.is_empty(), "one short item behind one that runs");
        p.tick(1_000_000 + crate::pool::LONG_WAIT_NS, &mut d);
        assert_eq!(d.woken, [b], "now it has waited");
    }

    #[test]
    fn items_on_their_way_in_are_counted_once() {
        let (mut p, q, mut d) = pool(true);
        p.expect(2);
        for i in 0..2 {
            p.expect_one_less();
            queue(&mut p, q, i, 0, &mut d);
            assert_eq!(p.waiting() + p.expected, 2);
        }
    }

    #[test]
    fn what_waits_is_brief_as_a_whole() {
        let (mut p, q, mut d) = pool(true);
        p.average_run_ns = BRIEF_NS / 4;
        for i in 0..3 {
            assert!(p.is_brief());
            queue(&mut p, q, i, 0, &mut d);
        }
        assert!(p.is_brief(), "three that wait, and one");
        queue(&mut p, q, 3, 0, &mut d);
        assert!(!p.is_brief());
    }

    #[test]
    fn a_batch_has_near_items_or_few_that_are_far() {
        let (mut p, _, mut d, w) = mixed(FAR_BATCH_NS / 2, 40);
        let mut sizes = Vec::new();
        let mut now = 50_000;
        loop {
            let batch = takes(&mut p, w, THERE, now, &mut d);
            let Some(first) = batch.first() else { break };
            assert!(batch.iter().all(|i| i % 2 == first % 2), "{batch:?}");
            sizes.push((first % 2, batch.len()));
            now += 100_000;
        }
        assert!(sizes.iter().any(|s| s.0 == 1 && s.1 > 2), "{sizes:?}");
        assert!(sizes.iter().all(|s| s.0 == 1 || s.1 <= 2), "{sizes:?}");
    }
}
