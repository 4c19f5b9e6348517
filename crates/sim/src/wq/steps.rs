//! Queueing, and carrying out what the policy asks for.

use super::{ItemId, Kind, Req, SlotDrv, Truth, lock_cost};
use crate::os::{Ev, Want};
use crate::sim::Sim;
use cmwq_policy::flush::Arm;
use cmwq_policy::help;
use cmwq_policy::near::Way;
use cmwq_policy::pool::{Enqueue, PwqTag, Removed, WorkerId};
use cmwq_policy::slot::Slot;
use cmwq_topology::CpuSet;
use std::sync::Arc;

/// A worker is kept beside an issuer until an item has waited for it this long, as in the runtime.
const COMPANY_NS: u64 = 500_000;

impl Sim {
    /// Carries out what is owed, or schedules it.
    #[inline]
    pub(crate) fn run_todo(&mut self) {
        while let Some(req) = self.wq.todo.pop_front() {
            match self.step_delay() {
                Some(delay) => self.os.later(req, delay),
                None => self.carry_out(req),
            }
        }
    }

    pub(crate) fn carry_out(&mut self, req: Req) {
        let now = self.os.now;
        match req {
            Req::Wake(p, w, cpu) => self.wake_worker(p, w, cpu),
            Req::Create(p) => {
                let delay = self.os.m.costs.spawn;
                self.os.ev.push(now + delay, Ev::Spawned(p));
            }
            Req::Ask(t) => self.with_slot(t, |s, d| s.ask(t, d)),
            Req::GiveBack(t, n) => self.with_slot(t, |s, d| s.give_back(n, d)),
            Req::Leave(t, n) => self.with_slot(t, |s, d| s.leave(t, n, d)),
            Req::Grant(t, n, keep) => {
                let l = self.wq.links[t as usize];
                let id =
                    l.id.expect("a pwq that has asked stays until it is answered");
                let cpu = self.at;
                self.wq
                    .with(l.pool, cpu, |p, d| p.grant(id, n, keep, now, d));
            }
            Req::Sweep(t) => {
                let l = self.wq.links[t as usize];
                if let Some(id) = l.id {
                    let n = self.wq.pools[l.pool as usize].pool.reclaim(id);
                    if n > 0 {
                        self.wq.todo.push_back(Req::GiveBack(t, n));
                    }
                }
            }
            Req::Flushed(t, c) => {
                let q = self.wq.links[t as usize].queue;
                self.flush_done(q, c, false);
            }
            Req::ArmPwq(t, flush, next) => self.arm_pwq(t, flush, next),
            Req::Barrier(_) => {}
            Req::Drained(t) => self.drained(t),
            Req::Mayday(t) => {
                let q = self.wq.links[t as usize].queue as usize;
                if !self.wq.queues[q].mayday.contains(&t) {
                    self.wq.queues[q].mayday.push_back(t);
                }
                if let Some(r) = self.wq.queues[q].rescuer {
                    self.os.wake(r, None, Want::Rules);
                }
            }
            Req::Offer(from, wait_ns) => self.call_helper(from, wait_ns),
        }
    }

    fn wake_worker(&mut self, p: u32, w: WorkerId, cpu: u32) {
        let st = &mut self.wq.pools[p as usize];
        let Some(&t) = st.threads.get(w as usize) else {
            return;
        };
        if t == u32::MAX {
            return; // it woke by itself, found out that it was dismissed, and left
        }
        let mut want = Want::Rules;
        if st.localize {
            if let Some(e) = st.pool.worklist().next() {
                want = Want::Prev(e.issuer_cpu);
            }
        } else if !st.strict
            && !st.helped
            && !st.set.contains(self.os.threads[t as usize].cpu as usize)
        {
            // Repatriation: some online CPU of the pod, in turn.
            for _ in 0..st.cpus.len() {
                st.cursor = (st.cursor + 1) % st.cpus.len() as u32;
                let c = st.cpus[st.cursor as usize];
                if self.os.cpus[c as usize].online {
                    want = Want::Prev(c);
                    st.repatriated += 1;
                    break;
                }
            }
        }
        if let Some(way) = self.way.take() {
            want = self.go_beside(p, w, way, cpu, want);
        } else if st.batches[w as usize].beside.is_some() {
            self.leave_issuer(p, w);
        }
        self.charge += self.os.m.costs.wake_call;
        let parked =
            self.os.threads[t as usize].state == crate::os::Tstate::Sleeping && !self.works(t);
        if parked {
            self.os.wake(t, Some(cpu), want);
        } else {
            self.os.threads[t as usize].token = true;
        }
    }

    /// A worker is woken for an item that found its pool at rest: on its issuer's CPU, where it stays, or wherever the system likes.
    fn go_beside(&mut self, p: u32, w: WorkerId, way: Way, cpu: u32, want: Want) -> Want {
        let now = self.os.now;
        let st = &mut self.wq.pools[p as usize];
        let (t, b) = (st.threads[w as usize], &mut st.batches[w as usize]);
        b.woken = Some((way, now));
        match way {
            Way::Beside if st.mask.contains(cpu as usize) => {
                if b.beside.replace(cpu) != Some(cpu) {
                    self.os.set_mask(t, Arc::new(CpuSet::of(cpu as usize)));
                }
                Want::There(cpu)
            }
            _ => {
                self.leave_issuer(p, w);
                want
            }
        }
    }

    /// The worker may use all CPUs of its pool again.
    pub(super) fn leave_issuer(&mut self, p: u32, w: WorkerId) {
        let st = &mut self.wq.pools[p as usize];
        if st.batches[w as usize].beside.take().is_some() {
            let (t, mask) = (st.threads[w as usize], Arc::clone(&st.mask));
            self.os.set_mask(t, mask);
        }
    }

    /// The pool's tick: workers that were woken beside an issuer and have not come for long may go elsewhere.
    pub(crate) fn part_company(&mut self, p: u32) {
        let now = self.os.now;
        let st = &self.wq.pools[p as usize];
        let late: Vec<WorkerId> = (0..st.batches.len() as WorkerId)
            .filter(|&w| {
                let b = &st.batches[w as usize];
                b.beside.is_some() && b.woken.is_some_and(|(_, at)| now - at >= COMPANY_NS)
            })
            .collect();
        for w in late {
            self.leave_issuer(p, w);
        }
    }

    fn with_slot(&mut self, t: PwqTag, f: impl FnOnce(&mut Slot, &mut SlotDrv)) {
        let l = self.wq.links[t as usize];
        let s = &mut self.wq.queues[l.queue as usize].slots[l.slot as usize];
        f(s, &mut SlotDrv(&mut self.wq.todo));
    }

    /// Queues an item from `cpu`; false if it was refused. The item must not be pending.
    pub(crate) fn queue_item(&mut self, item: ItemId, cpu: u32, chained: bool) -> bool {
        let it = &self.wq.items[item as usize];
        assert!(it.timer.is_none(), "what is delayed is not queued");
        let (q, oneshot) = (it.queue as usize, it.oneshot);
        let tag = self.wq.queues[q].table[cpu as usize];
        let link = self.wq.links[tag as usize];
        let (mut p, mut id) = (link.pool, link.id.expect("the current pwq is linked"));
        // Rule 2.2 (a): an item that runs elsewhere is queued there.
        if !oneshot
            && self.wq.queues[q].kind != Kind::Ordered
            && it.last_pool != u32::MAX
            && it.last_pool != p
            && let Some((_, _, running)) = self.wq.pools[it.last_pool as usize].pool.running(item)
        {
            (p, id) = (it.last_pool, running);
        }
        self.charge += lock_cost(&self.os, &mut self.wq.pools[p as usize].lock, cpu);
        let now = self.os.now;
        let e = Enqueue {
            item,
            pwq: id,
            oneshot,
            chained,
            issuer_cpu: cpu,
        };
        self.at = cpu;
        let sleeper = self.issuing.map(|i| &mut self.load.issuers[i as usize]);
        let sleepy = sleeper.is_some_and(|is| {
            // It counts up when the thread goes to sleep and when it wakes.
            let sleeps = self.os.threads[is.tid as usize].sleep_gen / 2;
            is.sleepy.asked(sleeps)
        });
        let way = self.wq.pools[p as usize].pool.way_to_wake(|| sleepy);
        match self.wq.with(p, cpu, |pool, d| pool.enqueue(e, now, d)) {
            Ok(entry) => {
                self.way = way;
                assert!(
                    !self.wq.queues[q].draining || chained,
                    "a draining queue refuses"
                );
                let it = &mut self.wq.items[item as usize];
                it.accepted += 1;
                it.truth = Truth::Pending(p, entry);
                it.queued_at = now;
                it.issuer_cpu = cpu;
                self.stats.queued += 1;
                if self.wq.queues[q].kind == Kind::Ordered {
                    self.wq.queues[q].order.push_back(item);
                }
                self.run_todo();
                self.way = None;
                self.offer(p);
                true
            }
            Err(_) => {
                assert!(
                    self.wq.queues[q].draining && !chained,
                    "only a draining queue refuses"
                );
                false
            }
        }
    }

    /// Takes a pending item out; what happened must agree with the truth.
    pub(crate) fn cancel_item(&mut self, item: ItemId, cpu: u32) {
        let Truth::Pending(p, e) = self.wq.items[item as usize].truth else {
            return;
        };
        let now = self.os.now;
        self.at = cpu;
        let r = self.wq.with(p, cpu, |pool, d| pool.remove(e, now, d));
        assert_eq!(
            r,
            Removed::Removed,
            "what no worker has claimed can be taken out"
        );
        let it = &mut self.wq.items[item as usize];
        it.truth = Truth::Idle;
        it.cancelled += 1;
        self.stats.cancelled += 1;
        let q = it.queue as usize;
        self.wq.queues[q].order.retain(|&x| x != item);
        self.wake_waiters(item, cpu);
        self.run_todo();
    }

    /// Looks whether waiting work of this pool is to be offered to another pod, as the runtime does at the end of every hold of an
    /// open pool's lock.
    pub(crate) fn offer(&mut self, p: u32) {
        let (now, hedge) = (self.os.now, self.wq.hedge_ns);
        let st = &mut self.wq.pools[p as usize];
        if st.helped
            && let Some(o) = st.pool.offer(hedge, now)
        {
            st.offers += 1;
            for _ in 0..o.calls {
                self.wq.todo.push_back(Req::Offer(p, o.wait_ns));
            }
            self.run_todo();
        }
    }

    /// Items of this pool wait too long: the nearest pool with a CPU to spare sends a worker.
    fn call_helper(&mut self, from: u32, wait_ns: u64) {
        let (now, cpu, hedge) = (self.os.now, self.at, self.wq.hedge_ns);
        let st = &self.wq.pools[from as usize];
        let age = wait_ns.max(hedge);
        let spare = |q: u32| self.has_spare(q);
        let Some(to) = help::whom_to_offer(&st.neighbours, hedge, age, spare) else {
            self.wq.pools[from as usize].pool.nobody_to_call();
            return;
        };
        let far = st.neighbours.iter().any(|n| n.pod == to && n.far);
        self.charge += lock_cost(&self.os, &mut self.wq.pools[to as usize].lock, cpu);
        self.wq.pools[to as usize].called_by = Some((from, far));
        self.wq.with(to, cpu, |p, d| p.call_helper(now, d));
    }

    fn drained(&mut self, t: PwqTag) {
        let l = self.wq.links[t as usize];
        let Some(id) = l.id else { return };
        let pwq = self.wq.pools[l.pool as usize].pool.pwq(id);
        if !pwq.is_empty() || pwq.is_asking() {
            return; // used again; there will be another report
        }
        let gone = self.wq.pools[l.pool as usize].pool.unlink_pwq(id);
        self.wq.links[t as usize].id = None;
        if l.leased {
            self.wq.todo.push_back(Req::Leave(t, gone.limit()));
        }
        if self.wq.queues[l.queue as usize].kind == Kind::Ordered {
            let oldest = self
                .wq
                .links
                .iter()
                .position(|x| x.queue == l.queue && x.id.is_some());
            if let Some(n) = oldest.filter(|&n| self.wq.links[n].plugged) {
                self.wq.links[n].plugged = false;
                let (p, id) = (self.wq.links[n].pool, self.wq.links[n].id);
                let id = id.expect("live");
                let (now, cpu) = (self.os.now, self.at);
                self.wq
                    .with(p, cpu, |pool, d| pool.set_limit(id, 1, now, d));
            }
        }
    }

    /// Somebody flushes a queue.
    pub(crate) fn begin_flush(&mut self, q: u32) {
        let f = self.wq.next_flusher;
        self.wq.next_flusher += 1;
        let before = self.wq.outstanding(q);
        self.wq.flushers.insert(f, before);
        let arm = self.wq.queues[q as usize].flush.begin(f);
        self.arm(q, arm);
        self.run_todo();
    }

    fn arm(&mut self, q: u32, arm: Option<Arm>) {
        let Some(Arm { flush, next }) = arm else {
            return;
        };
        let queue = &mut self.wq.queues[q as usize];
        queue.arming_colour = flush;
        queue.arming = 1;
        for (t, l) in self.wq.links.iter().enumerate() {
            if l.queue == q && l.id.is_some() {
                queue.arming += 1;
                self.wq
                    .todo
                    .push_back(Req::ArmPwq(t as PwqTag, flush, next));
            }
        }
        self.armed_one(q);
    }

    fn arm_pwq(&mut self, t: PwqTag, flush: u8, next: u8) {
        let l = self.wq.links[t as usize];
        if let Some(id) = l.id {
            self.wq.queues[l.queue as usize].flush.expect(flush);
            let (now, cpu) = (self.os.now, self.at);
            let armed = self
                .wq
                .with(l.pool, cpu, |p, d| p.arm_flush(id, flush, next, now, d));
            if !armed {
                self.flush_done(l.queue, flush, false);
            }
        }
        self.armed_one(l.queue);
    }

    fn armed_one(&mut self, q: u32) {
        let queue = &mut self.wq.queues[q as usize];
        queue.arming -= 1;
        if queue.arming == 0 {
            let c = queue.arming_colour;
            self.flush_done(q, c, true);
        }
    }

    fn flush_done(&mut self, q: u32, c: u8, all: bool) {
        let mut done = Vec::new();
        let f = &mut self.wq.queues[q as usize].flush;
        let arm = if all {
            f.armed_all(c, &mut done)
        } else {
            f.done(c, &mut done)
        };
        for f in done {
            for (item, n) in self.wq.flushers.remove(&f).expect("a flusher is told once") {
                assert!(
                    self.wq.over(item, n),
                    "a flush ends after everything queued before it"
                );
            }
        }
        self.arm(q, arm);
    }
}
