//! What must hold after every event, and at the end.

use crate::os::Tstate;
use crate::sim::Sim;
use crate::wq::{ItemId, Req, Role, Truth};
use cmwq_policy::pool::Entry;

/// An item of a queue that helpers may serve waits at most this long while a CPU idles: the pool's tick (1 ms), a call in vain
/// (1 ms), a called worker that does not come (`CALL_PATIENCE_NS`, 1 ms), four steps that wait (0.4 ms each), and the called worker
/// that waits for a CPU until the system balances (4 ms; twice, as an idle CPU takes one thread a tick, and that may be another one);
/// rounded up.
const CONSERVING_NS: u64 = 13_000_000;

/// What the pwqs of one slot have, all together.
#[derive(Debug, Clone, Copy, Default)]
struct SlotSum {
    /// Permits that they hold.
    held: u32,
    /// Items that count as active.
    active: u32,
    /// Permits that were lent and taken back while another item still used them.
    back: u32,
    /// Permits on their way.
    moving: u32,
    /// Something is on its way.
    owed: bool,
}

impl Sim {
    /// # Panics
    /// With the invariant's name.
    pub(crate) fn check_all(&mut self) {
        for p in &mut self.wq.pools {
            if p.pool.take_touched() {
                p.pool.check();
            }
        }
        self.note_next_runs();
        self.check_slots();
        self.check_affinity();
        self.check_conserving();
    }

    /// The next run of an item that waits with its permit lent lends its own. When that ends, because it can start, its pwq may
    /// have one item more than permits.
    fn note_next_runs(&mut self) {
        let mut plan = self.load.plan.take().expect("a fault run has a plan");
        let pools = &self.wq.pools;
        let lent = |p: u32, e| pools[p as usize].pool.entry(e).is_some_and(|x| x.lent);
        for &(p, e, link) in &plan.next_lent {
            if !lent(p, e) {
                self.wq.links[link as usize].taken_back += 1;
            }
        }
        plan.next_lent.clear();
        for &item in &plan.reusable {
            let it = &self.wq.items[item as usize];
            if it.running > 0
                && let Truth::Pending(p, e) = it.truth
                && lent(p, e)
            {
                let pool = &pools[p as usize].pool;
                let entry = pool.entry(e).expect("it is pending");
                plan.next_lent.push((p, e, pool.pwq(entry.pwq).tag as u32));
            }
        }
        self.load.plan = Some(plan);
    }

    /// Of every slot: what its pwqs hold, what is on its way.
    fn sum_up_slots(&mut self) -> Vec<Vec<SlotSum>> {
        let slots = |q: &crate::wq::QueueSt| vec![SlotSum::default(); q.slots.len()];
        let mut sums: Vec<Vec<SlotSum>> = self.wq.queues.iter().map(slots).collect();
        for l in self.wq.links.iter_mut().filter(|l| l.leased) {
            let sum = &mut sums[l.queue as usize][l.slot as usize];
            if let Some(id) = l.id {
                let pwq = self.wq.pools[l.pool as usize].pool.pwq(id);
                if l.taken_back > 0 && pwq.active() - pwq.lent() <= pwq.limit() {
                    l.taken_back = 0;
                }
                sum.held += pwq.limit();
                sum.active += pwq.active() - pwq.lent();
            }
            sum.back += l.taken_back;
        }
        let owed = self.os.steps.iter().flatten().chain(self.wq.todo.iter());
        for r in owed {
            let (t, n) = match *r {
                Req::Grant(t, n, _) | Req::GiveBack(t, n) | Req::Leave(t, n) => (t, n),
                Req::Ask(t) | Req::Sweep(t) => (t, 0),
                _ => continue,
            };
            let l = &self.wq.links[t as usize];
            if l.leased {
                let sum = &mut sums[l.queue as usize][l.slot as usize];
                sum.moving += n;
                sum.owed = true;
            }
        }
        sums
    }

    fn check_slots(&mut self) {
        let sums = self.sum_up_slots();
        for (q, (queue, sums)) in self.wq.queues.iter().zip(&sums).enumerate() {
            for (s, (slot, sum)) in queue.slots.iter().zip(sums).enumerate() {
                assert_eq!(
                    slot.leased(),
                    sum.held + sum.moving,
                    "permits of queue {q}, slot {s}: none lost, none made up"
                );
                if slot.leased() <= slot.max() && sum.active > slot.leased() + sum.back {
                    // Only a lowered limit or permits taken back explain it, and they do not.
                    panic!(
                        "queue {q}, slot {s}: {} active of {} leased",
                        sum.active,
                        slot.leased()
                    );
                }
                if !sum.owed && slot.waiting() > 0 {
                    assert!(
                        sum.active >= slot.max(),
                        "S3: queue {q}, slot {s} has {} active of {} while a pwq waits",
                        sum.active,
                        slot.max()
                    );
                }
            }
        }
    }

    fn check_affinity(&self) {
        for (t, role) in self.roles.iter().enumerate() {
            let Role::Worker { pool, .. } = role else {
                continue;
            };
            let (th, st) = (&self.os.threads[t], &self.wq.pools[*pool as usize]);
            if !st.strict || th.state != Tstate::Running {
                continue;
            }
            let usable = st.cpus.iter().any(|&c| self.os.cpus[c as usize].online);
            assert!(
                !usable || st.set.contains(th.cpu as usize),
                "a strict worker of pool {pool} runs on CPU {} outside its pod",
                th.cpu
            );
        }
    }

    fn check_conserving(&self) {
        let plan = self.load.plan.as_ref().expect("a fault run has a plan");
        if !plan.conserving || self.os.now < plan.violation_possible_since + 2 * CONSERVING_NS {
            return;
        }
        for (i, st) in self.wq.pools.iter().enumerate() {
            if !st.helped {
                continue;
            }
            // One that runs elsewhere now has to wait for itself; per-CPU and strict ones for their pool.
            let first = st.pool.worklist().find(|e| {
                st.pool.pwq(e.pwq).flags.helpable && self.wq.items[e.item as usize].running == 0
            });
            // A reusable item could not start before its last run had ended.
            let since =
                |e: &Entry<ItemId>| e.active_at.max(self.wq.items[e.item as usize].ended_at);
            let Some(since) = first.map(since) else {
                continue;
            };
            if self.os.now.saturating_sub(since) < CONSERVING_NS {
                continue;
            }
            // Since then at least; the item may have become active later, and the CPU may just have become idle.
            for n in st.neighbours.iter().map(|n| n.pod).chain([i as u32]) {
                for &c in &self.wq.pools[n as usize].cpus {
                    let idle = self.os.idle_for(c);
                    assert!(
                        idle < CONSERVING_NS,
                        "CPU {c} idles for {idle} ns while an item of pool {i} waits for {} ns: {:?}, limit {}, neighbours {:?} {:?} {}",
                        self.os.now - since,
                        st.pool.counts(),
                        st.pool.limit_now(),
                        st.neighbours,
                        st.pool
                            .worklist()
                            .map(|e| (e.item, e.oneshot, st.pool.pwq(e.pwq).flags.helpable))
                            .collect::<Vec<_>>(),
                        self.os.picture()
                            + &format!(
                                "{:?} of {:?} {:?}; {:?}",
                                n,
                                self.wq.pools[n as usize].cpus,
                                self.wq.pools[n as usize].pool.counts(),
                                self.roles
                            )
                    );
                }
            }
        }
    }

    /// # Panics
    /// With what is left over.
    pub(crate) fn check_end(&self) {
        for (i, it) in self.wq.items.iter().enumerate() {
            assert_eq!(
                it.ended + it.cancelled,
                it.accepted,
                "item {i} ended once per acceptance"
            );
            assert_eq!(it.running, 0, "item {i} runs no more");
            assert!(it.timer.is_none(), "item {i} has no timer left");
            assert!(it.lent.is_none(), "item {i} has its permit back");
        }
        for (i, q) in self.wq.queues.iter().enumerate() {
            assert_eq!(
                q.flush.waiting(),
                0,
                "every flusher of queue {i} got through"
            );
        }
        let mut threads = 0;
        for (i, st) in self.wq.pools.iter().enumerate() {
            assert_eq!(st.pool.entries(), 0, "pool {i} holds no entry");
            let c = st.pool.counts();
            assert_eq!(
                c.running + c.waking + c.blocked + c.intensive + c.attached + c.away,
                0,
                "all workers of pool {i} rest: {c:?}"
            );
            threads += c.own();
            for (_, p) in st.pool.pwqs() {
                let k = &p.counters;
                assert!(p.is_empty(), "nothing counts as active, nothing as lent");
                assert_eq!(k.started, k.completed, "what was started was completed");
                assert_eq!(
                    k.queued,
                    k.completed + k.cancelled,
                    "what was queued is over"
                );
            }
        }
        let live = self
            .roles
            .iter()
            .enumerate()
            .filter(|(t, r)| {
                matches!(r, Role::Worker { .. }) && self.os.threads[*t].state != Tstate::Dead
            })
            .count();
        assert_eq!(live, threads as usize, "no worker leaks");
    }
}
