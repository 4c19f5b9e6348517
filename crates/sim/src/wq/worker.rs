//! What workers, helpers and rescuers do when they have a CPU.

use super::{ItemId, Kind, Phase, PoolSt, Role, Truth, lock_cost};
use crate::os::{Ev, Tid};
use crate::sim::Sim;
use cmwq_policy::help::{self, Waiting};
use cmwq_policy::pool::{Here, Next, WorkerId, WorkerKind};

impl Sim {
    /// Where a thread works now.
    fn bench(&self, t: Tid) -> Option<(u32, WorkerId)> {
        match self.roles[t as usize] {
            Role::Worker { pool, id, away } => Some(away.map_or((pool, id), |(p, w, _)| (p, w))),
            Role::Rescuer { at, .. } => at.map(|(tag, w)| (self.wq.links[tag as usize].pool, w)),
            Role::Issuer(_) | Role::Server(_) => None,
        }
    }

    /// Whether a thread is in the middle of an item.
    pub(crate) fn works(&self, t: Tid) -> bool {
        self.bench(t)
            .is_some_and(|(p, w)| self.wq.pools[p as usize].batches[w as usize].running)
    }

    /// A worker, helper or rescuer has done what it had to do: what next?
    pub(crate) fn advance_worker(&mut self, t: Tid) {
        self.at = self.os.threads[t as usize].cpu;
        loop {
            if let Some((p, w)) = self.bench(t)
                && self.wq.pools[p as usize].batches[w as usize].running
            {
                if self.go_on(t, p, w) {
                    return;
                }
                continue; // the batch is over
            }
            let busy = match self.roles[t as usize] {
                Role::Worker { .. } => self.ask_for_work(t, true),
                Role::Rescuer { .. } => self.rescue(t),
                Role::Issuer(_) | Role::Server(_) => unreachable!("they have their own"),
            };
            if !busy {
                return;
            }
        }
    }

    /// The next phase or item of a batch. True if the thread has something to do or sleeps; false if the batch is over.
    fn go_on(&mut self, t: Tid, p: u32, w: WorkerId) -> bool {
        loop {
            let b = &mut self.wq.pools[p as usize].batches[w as usize];
            let item = b.items[b.claimed as usize - 1].item;
            let phase = b.phase;
            b.phase += 1;
            match self.wq.items[item as usize].phases.get(phase as usize) {
                Some(&ph) => {
                    if self.do_phase(t, p, w, ph) {
                        return true;
                    }
                }
                None => {
                    self.end_item(t, item);
                    let b = &mut self.wq.pools[p as usize].batches[w as usize];
                    if b.stopped || b.claimed as usize >= b.items.len() {
                        b.running = false;
                        return false;
                    }
                    b.claimed += 1;
                    b.starts.push(self.os.now);
                    b.phase = 0;
                    self.begin_item(p, w);
                }
            }
        }
    }

    /// False if the phase is over at once.
    fn do_phase(&mut self, t: Tid, p: u32, w: WorkerId, phase: Phase) -> bool {
        match phase {
            Phase::Burn(ns) => {
                let extra = std::mem::take(&mut self.charge);
                self.os.burst(t, ns + extra);
            }
            Phase::Drain(n) => {
                let cpu = self.os.threads[t as usize].cpu;
                self.at = cpu;
                let Some(ns) = self.next_command(n, cpu) else {
                    return false;
                };
                self.wq.pools[p as usize].batches[w as usize].phase -= 1; // and again
                let extra = std::mem::take(&mut self.charge);
                self.os.burst(t, ns + extra);
            }
            Phase::Locked(ns) => {
                let extra = std::mem::take(&mut self.charge) + self.app_lock(ns);
                self.os.burst(t, extra);
            }
            Phase::Sleep(ns) => {
                self.block(t, p, w);
                self.os.sleep(t);
                let generation = self.os.threads[t as usize].sleep_gen;
                let at = self.os.now + ns;
                self.os.ev.push(at, Ev::Timer(t, generation));
            }
            Phase::AwaitOwn(other) if !self.lends(t, p, w, other) => return false,
            Phase::Await(other) | Phase::AwaitOwn(other) => {
                let it = &mut self.wq.items[other as usize];
                if it.ended + it.cancelled >= it.accepted {
                    return false;
                }
                it.waiters.push(t);
                self.block(t, p, w);
                self.os.sleep(t);
            }
        }
        true
    }

    /// The item of this worker is about to wait for one of its own queue: lends its permit. False if it need not or must not wait.
    fn lends(&mut self, t: Tid, p: u32, w: WorkerId, other: ItemId) -> bool {
        let b = &self.wq.pools[p as usize].batches[w as usize];
        let taken = b.items[b.claimed as usize - 1];
        let queue = &self.wq.queues[self.wq.items[taken.item as usize].queue as usize];
        let it = &self.wq.items[other as usize];
        if queue.kind == Kind::Ordered
            || queue.spec.kernel
            || it.ended + it.cancelled >= it.accepted
        {
            return false;
        }
        let (now, cpu) = (self.os.now, self.os.threads[t as usize].cpu);
        let lent = self
            .wq
            .with(p, cpu, |pool, d| pool.lend_permit(taken.entry, now, d));
        if lent {
            let it = &mut self.wq.items[taken.item as usize];
            it.lent = Some((p, taken.entry, taken.tag as u32));
            self.stats.lent += 1;
        }
        self.run_todo();
        true
    }

    /// The wait of an item with a lent permit is over: it counts again.
    fn takes_back(&mut self, p: u32, w: WorkerId) {
        let b = &self.wq.pools[p as usize].batches[w as usize];
        if !b.running {
            return;
        }
        let item = b.items[b.claimed as usize - 1].item;
        if let Some((p, entry, link)) = self.wq.items[item as usize].lent.take() {
            self.wq.pools[p as usize].pool.take_permit_back(entry);
            self.wq.links[link as usize].taken_back += 1;
        }
    }

    /// A worker's item blocks: noticed at once, or never (then the ticks have to cope).
    fn block(&mut self, t: Tid, p: u32, w: WorkerId) {
        if self.notices_blocking() {
            let (now, cpu) = (self.os.now, self.os.threads[t as usize].cpu);
            self.at = cpu;
            self.wq.with(p, cpu, |pool, d| pool.blocked(w, now, d));
            if let Role::Worker {
                pool,
                id,
                away: Some(_),
            } = self.roles[t as usize]
            {
                self.wq.pools[pool as usize].pool.away_blocked(id);
            }
            self.run_todo();
        }
    }

    /// A thread that slept inside an item has a CPU again.
    pub(crate) fn resumed(&mut self, t: Tid) {
        if let Some((p, w)) = self.bench(t) {
            self.takes_back(p, w);
            self.wq.pools[p as usize].pool.resumed(w);
            if let Role::Worker {
                pool,
                id,
                away: Some(_),
            } = self.roles[t as usize]
            {
                self.wq.pools[pool as usize].pool.away_resumed(id);
            }
        }
    }

    /// The item claimed last starts.
    pub(crate) fn begin_item(&mut self, p: u32, w: WorkerId) {
        let b = &self.wq.pools[p as usize].batches[w as usize];
        let taken = b.items[b.claimed as usize - 1];
        let it = &mut self.wq.items[taken.item as usize];
        assert_eq!(
            it.truth,
            Truth::Pending(p, taken.entry),
            "what starts was pending here"
        );
        it.truth = Truth::Idle;
        it.running += 1;
        it.last_pool = p;
        assert!(it.running == 1, "an item runs once at a time");
        let (cpu, costs) = (self.at, &self.os.m.costs);
        self.charge += costs.item + costs.touch(self.os.m.near(it.data_cpu, cpu), it.bytes);
        it.data_cpu = cpu;
        self.stats.started += 1;
        self.stats.wait_ns += self.os.now - it.queued_at;
        let (issuer, queue) = (it.issuer_cpu, it.queue as usize);
        if self.os.m.place(issuer).llc == self.os.m.place(cpu).llc {
            self.stats.in_llc += 1;
        }
        if self.wq.queues[queue].kind == Kind::Ordered {
            let first = self.wq.queues[queue].order.pop_front();
            assert_eq!(
                first,
                Some(taken.item),
                "an ordered queue runs its items in order"
            );
        }
    }

    fn end_item(&mut self, t: Tid, item: ItemId) {
        let cpu = self.os.threads[t as usize].cpu;
        self.at = cpu;
        if self.wq.items[item as usize].requeue > 0 {
            self.wq.items[item as usize].requeue -= 1;
            let it = &self.wq.items[item as usize];
            if it.truth == Truth::Idle && it.timer.is_none() {
                self.queue_item(item, cpu, true);
            }
        }
        let it = &mut self.wq.items[item as usize];
        it.running -= 1;
        it.ended += 1;
        it.ended_at = self.os.now;
        self.stats.ended += 1;
        self.wake_waiters(item, cpu);
        self.item_done(item, cpu);
    }

    pub(crate) fn wake_waiters(&mut self, item: ItemId, cpu: u32) {
        let it = &mut self.wq.items[item as usize];
        if it.waiters.is_empty() || it.ended + it.cancelled < it.accepted {
            return;
        }
        for t in std::mem::take(&mut self.wq.items[item as usize].waiters) {
            self.os.wake(t, Some(cpu), crate::os::Want::Rules);
        }
    }

    /// A pool's worker asks for work. True if its batch runs now (the caller goes on with it); else it sleeps or is gone.
    fn ask_for_work(&mut self, t: Tid, may_help: bool) -> bool {
        let Role::Worker { pool, id, away } = self.roles[t as usize] else {
            return false;
        };
        if let Some((p, w, far)) = away
            && self.stay_or_leave(t, pool, p, w, far)
        {
            return true;
        }
        self.roles[t as usize] = Role::Worker {
            pool,
            id,
            away: None,
        };
        let (now, cpu) = (self.os.now, self.at);
        if !self.wq.pools[pool as usize].batches[id as usize].brief {
            self.leave_issuer(pool, id);
        }
        self.charge += lock_cost(&self.os, &mut self.wq.pools[pool as usize].lock, cpu);
        let st = &mut self.wq.pools[pool as usize];
        if let Some((way, at)) = st.batches[id as usize].woken.take() {
            st.pool.came(way, now.saturating_sub(at));
        }
        let here = Here {
            cpu,
            in_pod: self.wq.pools[pool as usize].set.contains(cpu as usize),
        };
        if self.should_step_aside(pool) {
            self.wq.pools[pool as usize]
                .pool
                .step_aside(help::ASIDE_NS, now);
        }
        let mut out = std::mem::take(&mut self.out);
        let next = self
            .wq
            .with(pool, cpu, |pl, d| pl.next(id, here, now, &mut out, d));
        let st = &mut self.wq.pools[pool as usize];
        let brief = st.pool.is_brief();
        let b = &mut st.batches[id as usize];
        b.brief = brief;
        std::mem::swap(&mut b.items, &mut out);
        self.out = out;
        match next {
            Next::Run => {
                self.start_batch(pool, id);
                self.run_todo();
                self.offer(pool);
                true
            }
            Next::Idle => {
                b.claimed = 0;
                b.starts.clear();
                self.run_todo();
                self.offer(pool);
                if std::mem::take(&mut self.os.threads[t as usize].token) {
                    return true; // woken before it slept
                }
                if may_help
                    && self.wq.pools[pool as usize].helped
                    && let Some(busy) = self.go_helping(t, pool, id)
                {
                    return busy;
                }
                self.os.sleep(t);
                false
            }
            Next::Exit => {
                self.wq.pools[pool as usize].threads[id as usize] = Tid::MAX;
                self.os.exit(t);
                self.run_todo();
                false
            }
        }
    }

    /// Others want the CPU of the pool's worker that acts now, more waits than the pool gets done, and a near pod has CPUs to spare.
    fn should_step_aside(&self, pool: u32) -> bool {
        let st = &self.wq.pools[pool as usize];
        if !st.helped || !self.cpu_is_wanted() || !st.pool.outlook().behind {
            return false;
        }
        let old = self.os.now.saturating_sub(st.pool.outlook().oldest);
        let far = old >= self.wq.hedge_ns;
        let mut near = st.neighbours.iter();
        near.any(|n| (far || !n.far) && self.has_spare(n.pod))
    }

    /// A worker of this pod could be called.
    pub(crate) fn has_spare(&self, q: u32) -> bool {
        let st = &self.wq.pools[q as usize];
        st.pool.outlook().is_idle(self.os.now) && st.vain_until <= self.os.now
    }

    fn start_batch(&mut self, p: u32, w: WorkerId) {
        let now = self.os.now;
        let b = &mut self.wq.pools[p as usize].batches[w as usize];
        b.claimed = 1;
        b.stopped = false;
        b.starts.clear();
        b.starts.push(now);
        b.running = true;
        b.phase = 0;
        self.begin_item(p, w);
    }

    /// Others wait for the CPU of the thread that acts now. The runtime finds out by yielding: that takes long.
    fn cpu_is_wanted(&self) -> bool {
        !self.os.cpus[self.at as usize].queue.is_empty()
    }

    /// Whom a worker of this pool about to park helps, and whether that is far: who called, if its work still waits, else the
    /// nearest pool with work.
    fn find_help(&mut self, pool: u32) -> Option<(u32, bool)> {
        let now = self.os.now;
        let look = |pools: &[PoolSt], p: u32| {
            let o = pools[p as usize].pool.outlook();
            (o.oldest != 0).then(|| Waiting {
                oldest_ns: now.saturating_sub(o.oldest),
                saturated: o.behind,
            })
        };
        let pools = &self.wq.pools;
        if let Some((p, far)) = pools[pool as usize].called_by {
            if look(pools, p).is_some_and(|w| help::still_wanted(w, self.wq.hedge_ns)) {
                return Some((p, far));
            }
            self.wq.pools[pool as usize].called_by = None;
        }
        let pools = &self.wq.pools;
        let near = &pools[pool as usize].neighbours;
        let p = help::whom_to_help(near, self.wq.hedge_ns, |p| look(pools, p))?;
        let far = near.iter().any(|n| n.pod == p && n.far);
        Some((p, far))
    }

    /// A worker that helps has done an item there: takes the next, or leaves. True if it stays.
    fn stay_or_leave(&mut self, t: Tid, home: u32, p: u32, w: WorkerId, far: bool) -> bool {
        let o = self.wq.pools[home as usize].pool.outlook();
        let notified = self.os.threads[t as usize].token;
        let free = o.oldest == 0 && o.spare && !notified && !self.cpu_is_wanted();
        if self.take_as_helper(t, p, w, far, free) {
            return true;
        }
        self.wq.pools[p as usize].threads[w as usize] = Tid::MAX;
        false
    }

    /// One hold of the other pool's lock: counts out what was done, takes one more item or detaches.
    fn take_as_helper(&mut self, _t: Tid, p: u32, w: WorkerId, far: bool, free: bool) -> bool {
        let (now, cpu, hedge) = (self.os.now, self.at, self.wq.hedge_ns);
        self.charge += lock_cost(&self.os, &mut self.wq.pools[p as usize].lock, cpu);
        let here = Here { cpu, in_pod: false };
        let mut out = std::mem::take(&mut self.out);
        let got = self.wq.with(p, cpu, |pl, d| {
            pl.finish(w, now, d);
            if free
                && pl.keeps_helper(far, hedge, now)
                && pl.next_attached(w, None, here, now, &mut out, d)
            {
                return true;
            }
            pl.detach(w, now, d);
            false
        });
        if got {
            self.wq.pools[p as usize].batches[w as usize].items = out;
            self.wq.pools[p as usize].helps += 1;
            self.start_batch(p, w);
        } else {
            self.out = out;
        }
        self.run_todo();
        self.offer(p);
        got
    }

    /// A worker about to park looks into the nearest pods. `None`: it stays; else whether it has something to do now.
    fn go_helping(&mut self, t: Tid, pool: u32, id: WorkerId) -> Option<bool> {
        let (p, far) = self.find_help(pool)?;
        if self.cpu_is_wanted() {
            // Who waited may be done soon: the second time it gives up.
            let yields = &mut self.os.threads[t as usize].yields;
            *yields += 1;
            if *yields < 2 {
                self.os.yield_cpu(t);
                return Some(false);
            }
            *yields = 0;
            let st = &mut self.wq.pools[pool as usize];
            if st.called_by.take().is_some() {
                st.vain_until = self.os.now + help::VAIN_NS;
            }
            return None;
        }
        self.os.threads[t as usize].yields = 0;
        if !self.wq.pools[pool as usize].pool.go_away(id) {
            return None;
        }
        let now = self.os.now;
        let w = self.wq.pools[p as usize]
            .pool
            .attach(WorkerKind::Helper, 0, now);
        self.batch_for(p, w, t);
        if self.take_as_helper(t, p, w, far, true) {
            self.roles[t as usize] = Role::Worker {
                pool,
                id,
                away: Some((p, w, far)),
            };
            return Some(true);
        }
        self.wq.pools[p as usize].threads[w as usize] = Tid::MAX;
        // Nothing there that it could run: home, and to sleep.
        Some(self.ask_for_work(t, false))
    }

    /// A rescuer works on one item of one pwq after the other.
    fn rescue(&mut self, t: Tid) -> bool {
        let Role::Rescuer { queue, at } = self.roles[t as usize] else {
            return false;
        };
        let (now, cpu) = (self.os.now, self.at);
        let (tag, w) = match at {
            Some(x) => x,
            None => {
                let Some(tag) = self.wq.queues[queue as usize].mayday.pop_front() else {
                    self.os.sleep(t);
                    return false;
                };
                let l = self.wq.links[tag as usize];
                let Some(id) = l.id else { return true };
                let pool = &mut self.wq.pools[l.pool as usize].pool;
                pool.rescue_begun(id);
                let w = pool.attach(WorkerKind::Rescuer, 0, now);
                self.batch_for(l.pool, w, t);
                self.roles[t as usize] = Role::Rescuer {
                    queue,
                    at: Some((tag, w)),
                };
                (tag, w)
            }
        };
        let l = self.wq.links[tag as usize];
        let here = Here { cpu, in_pod: true };
        let mut out = Vec::new();
        let pool = &self.wq.pools[l.pool as usize].pool;
        let needed = pool.counts().idle == 0;
        let got = match l.id {
            Some(id) if needed => self.wq.with(l.pool, cpu, |pl, d| {
                pl.next_attached(w, Some(id), here, now, &mut out, d)
            }),
            _ => false,
        };
        if got {
            self.wq.pools[l.pool as usize].batches[w as usize].items = out;
            self.start_batch(l.pool, w);
        } else {
            self.wq.with(l.pool, cpu, |pl, d| pl.detach(w, now, d));
            self.wq.pools[l.pool as usize].threads[w as usize] = Tid::MAX;
            self.roles[t as usize] = Role::Rescuer { queue, at: None };
        }
        self.run_todo();
        true
    }
}
