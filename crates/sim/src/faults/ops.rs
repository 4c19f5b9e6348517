//! The operations of a fault run.

use super::plan::{Op, Plan};
use crate::os::{Tstate, Want};
use crate::sim::Sim;
use crate::wq::{Item, ItemId, Kind, Phase, Role, SlotDrv, Truth};
use cmwq_policy::limits::{default_min_active, node_limits};
use cmwq_policy::pool::{Place, PoolKind};
use cmwq_topology::CpuSet;
use std::sync::Arc;

impl Plan {
    pub(crate) fn new_item(sim: &mut Sim, queue: u32, oneshot: bool) -> ItemId {
        sim.wq.items.push(Item {
            oneshot,
            phases: vec![Phase::Burn(1_000)],
            ..Item::of(queue)
        });
        sim.wq.items.len() as ItemId - 1
    }

    /// Carries out operation `i`.
    pub(crate) fn apply(&mut self, sim: &mut Sim, i: u32) {
        let op = self.ops[i as usize];
        self.left -= 1;
        let q = op.a % self.specs.len() as u32;
        let cpu = self.some_cpu(sim, op.b);
        sim.at = cpu;
        match op.what {
            0..=39 => self.queue(sim, q, cpu, op),
            40..=44 => self.delay(sim, q, op),
            45 | 46 => {
                if let Some(item) = Plan::delayed(sim, op) {
                    sim.change_delay(item, u64::from(op.c) % 30_000_000);
                }
            }
            47 | 48 => {
                if let Some(item) = Plan::delayed(sim, op) {
                    sim.undelay(item);
                }
            }
            49 => {
                // Flushed: it is queued at once.
                if let Some(item) = Plan::delayed(sim, op) {
                    sim.undelay(item);
                    sim.queue_item(item, cpu, false);
                }
            }
            50..=57 => self.queue_reusable(sim, cpu, op),
            58..=63 => self.cancel(sim, cpu, op),
            64..=67 => sim.begin_flush(q),
            68..=71 => sim.set_max(q, 1 + op.b % 40),
            72..=75 => sim.freeze(q, op.b.is_multiple_of(2)),
            76 | 77 => sim.drain(q, op.b.is_multiple_of(2)),
            78..=80 => self.new_attrs(sim, q, op),
            81..=84 => self.hotplug(sim, op),
            85 | 86 => self.quota(sim, op),
            87..=89 => Plan::wake_for_nothing(sim, op),
            90 => {
                sim.os.now += 1 + u64::from(op.b) % 3_000_000_000;
                self.violation_possible_since = sim.os.now;
                self.jumped_at = sim.os.now;
            }
            91 | 92 => Plan::stall(sim, op),
            93 | 94 => self.inline(sim, op),
            95 => {
                for p in 0..sim.wq.pools.len() as u32 {
                    let now = sim.os.now;
                    sim.wq.with(p, cpu, |pool, d| pool.cull(1_000_000, now, d));
                }
                sim.run_todo();
            }
            96 => {
                // A snapshot for a monitor.
                for p in 0..sim.wq.pools.len() as u32 {
                    let now = sim.os.now;
                    sim.wq.with(p, cpu, |pool, d| pool.recall_all(now, d));
                }
                sim.run_todo();
            }
            _ => {
                if let Some((p, e, item)) = self.inline.pop() {
                    sim.inline_ends(p, e, item);
                }
            }
        }
    }

    fn some_cpu(&self, sim: &Sim, x: u32) -> u32 {
        let online: Vec<u32> = (0..sim.os.cpus.len() as u32)
            .filter(|&c| sim.os.cpus[c as usize].online)
            .collect();
        online[x as usize % online.len()]
    }

    fn script(&self, sim: &mut Sim, q: u32, op: Op) -> (Vec<Phase>, bool) {
        let n = 1 + op.c % 3;
        let mut leaf = true;
        let phases = (0..n)
            .map(|_| match sim.rng.u8(0..20) {
                0..=9 => Phase::Burn(sim.rng.u64(200..60_000)),
                10..=13 => Phase::Burn(sim.rng.u64(10_000..1_500_000)),
                14 => Phase::Burn(sim.rng.u64(11_000_000..25_000_000)),
                15..=17 => Phase::Sleep(sim.rng.u64(5_000..4_000_000)),
                _ => {
                    // Items of the first queue wait for others', those of other queues for their own's, for which they lend
                    // their permits: with limits anything else may deadlock, in the kernel too.
                    let other: Vec<ItemId> = self
                        .leaves
                        .iter()
                        .copied()
                        .filter(|&i| sim.wq.items[i as usize].queue != q)
                        .collect();
                    let own: Vec<ItemId> = self
                        .leaves
                        .iter()
                        .copied()
                        .filter(|&i| sim.wq.items[i as usize].queue == q)
                        .collect();
                    if q != 0 && !own.is_empty() {
                        leaf = false;
                        Phase::AwaitOwn(own[own.len() - 1 - sim.rng.usize(0..own.len().min(24))])
                    } else if other.is_empty() || q != 0 {
                        Phase::Burn(500)
                    } else {
                        leaf = false;
                        Phase::Await(other[sim.rng.usize(0..other.len())])
                    }
                }
            })
            .collect();
        (phases, leaf)
    }

    fn queue(&mut self, sim: &mut Sim, q: u32, cpu: u32, op: Op) {
        for _ in 0..1 + op.c % 24 {
            let (phases, leaf) = self.script(sim, q, op);
            let item = Plan::new_item(sim, q, true);
            sim.wq.items[item as usize].phases = phases;
            if sim.queue_item(item, cpu, false) && leaf {
                self.leaves.push(item);
            }
        }
    }

    /// Delays a few new items, or a reusable one that is idle.
    fn delay(&mut self, sim: &mut Sim, q: u32, op: Op) {
        let item = self.reusable[op.b as usize % self.reusable.len()];
        let it = &sim.wq.items[item as usize];
        if op.c.is_multiple_of(3) && it.truth == Truth::Idle && it.timer.is_none() {
            return sim.delay_item(item, u64::from(op.c) % 20_000_000);
        }
        for i in 0..1 + op.c % 6 {
            let (phases, leaf) = self.script(sim, q, op);
            let item = Plan::new_item(sim, q, true);
            sim.wq.items[item as usize].phases = phases;
            if leaf {
                // May be awaited while it is delayed, which is over at once: nothing of it was accepted yet.
                self.leaves.push(item);
            }
            let max = if op.b.is_multiple_of(7) {
                300_000_000
            } else {
                10_000_000
            };
            sim.delay_item(item, (u64::from(op.c) + u64::from(i) * 777_777) % max);
        }
    }

    fn delayed(sim: &Sim, op: Op) -> Option<ItemId> {
        let some: Vec<ItemId> = (0..sim.wq.items.len() as ItemId)
            .filter(|&i| sim.wq.items[i as usize].timer.is_some())
            .collect();
        (!some.is_empty()).then(|| some[op.a as usize % some.len()])
    }

    fn queue_reusable(&mut self, sim: &mut Sim, cpu: u32, op: Op) {
        let item = self.reusable[op.a as usize % self.reusable.len()];
        let it = &sim.wq.items[item as usize];
        if it.truth != Truth::Idle || it.timer.is_some() {
            return;
        }
        if sim.wq.items[item as usize].running == 0 {
            let q = sim.wq.items[item as usize].queue;
            let (phases, _) = self.script(sim, q, op);
            sim.wq.items[item as usize].phases = phases;
            sim.wq.items[item as usize].requeue = op.c % 4;
        }
        sim.queue_item(item, cpu, false);
    }

    fn cancel(&mut self, sim: &mut Sim, cpu: u32, op: Op) {
        // What a worker has claimed since the canceller looked is answered with "started", settled or not.
        if op.c.is_multiple_of(3) {
            let p = op.a % sim.wq.pools.len() as u32;
            let st = &sim.wq.pools[p as usize];
            let claimed = st.batches.iter().enumerate().find_map(|(w, b)| {
                let t = b.items.get(op.b as usize % b.items.len().max(1))?;
                let i = op.b as usize % b.items.len().max(1);
                let mine = st
                    .pool
                    .entry(t.entry)
                    .is_some_and(|e| e.place == Place::Taken(w as u32) && e.item == t.item);
                (mine && i < b.claimed as usize).then_some(t.entry)
            });
            if let Some(e) = claimed {
                let now = sim.os.now;
                let r = sim.wq.with(p, cpu, |pool, d| pool.remove(e, now, d));
                assert_eq!(
                    r,
                    cmwq_policy::pool::Removed::Started,
                    "what was claimed is not taken out"
                );
                sim.run_todo();
            }
            return;
        }
        let pending: Vec<ItemId> = (0..sim.wq.items.len() as ItemId)
            .filter(|&i| matches!(sim.wq.items[i as usize].truth, Truth::Pending(..)))
            .collect();
        if !pending.is_empty() {
            sim.cancel_item(pending[op.b as usize % pending.len()], cpu);
        }
    }

    fn new_attrs(&mut self, sim: &mut Sim, q: u32, op: Op) {
        let mut rng = fastrand::Rng::with_seed(u64::from(op.b));
        let old = &self.specs[q as usize];
        if old.kind == Kind::PerCpu {
            return;
        }
        let spec = crate::wq::QueueSpec {
            kind: old.kind,
            max_active: old.max_active,
            flags: old.flags,
            ..Plan::spec(&mut rng)
        };
        let spec = crate::wq::QueueSpec {
            kernel: spec.kernel || (old.kind != Kind::PerCpu && op.c.is_multiple_of(3)),
            ..spec
        };
        sim.link_all(q, &spec);
        self.specs[q as usize] = spec;
        self.violation_possible_since = sim.os.now;
    }

    fn hotplug(&mut self, sim: &mut Sim, op: Op) {
        if let Some(cpu) = (op.b.is_multiple_of(2)).then(|| self.down.pop()).flatten() {
            sim.cpu_comes(cpu);
        } else {
            let online: Vec<u32> = (0..sim.os.cpus.len() as u32)
                .filter(|&c| sim.os.cpus[c as usize].online)
                .collect();
            if online.len() > 1 {
                let cpu = online[op.a as usize % online.len()];
                self.down.push(cpu);
                sim.cpu_goes(cpu);
            }
        }
        self.violation_possible_since = sim.os.now;
    }

    /// The cgroup's quota changes: fewer or more workers may run in a pool.
    fn quota(&mut self, sim: &mut Sim, op: Op) {
        let p = op.a % sim.wq.pools.len() as u32;
        let st = &sim.wq.pools[p as usize];
        if st.pool.config().kind != PoolKind::Unbound {
            return;
        }
        let mut config = *st.pool.config();
        config.target = 1 + op.b % st.cpus.len() as u32;
        let now = sim.os.now;
        let cpu = sim.at;
        sim.wq
            .with(p, cpu, |pool, d| pool.configure(config, now, d));
        sim.run_todo();
        self.conserving = false; // CPUs may idle on purpose
    }

    fn wake_for_nothing(sim: &mut Sim, op: Op) {
        let idle: Vec<u32> = (0..sim.roles.len() as u32)
            .filter(|&t| {
                let Role::Worker {
                    pool,
                    id,
                    away: None,
                } = sim.roles[t as usize]
                else {
                    return false;
                };
                let st = &sim.wq.pools[pool as usize];
                sim.os.threads[t as usize].state == Tstate::Sleeping
                    && !st.batches[id as usize].running
            })
            .collect();
        if !idle.is_empty() {
            sim.os
                .wake(idle[op.b as usize % idle.len()], None, Want::Rules);
        }
    }

    fn stall(sim: &mut Sim, op: Op) {
        let running: Vec<u32> = (0..sim.roles.len() as u32)
            .filter(|&t| sim.os.threads[t as usize].state == Tstate::Running)
            .collect();
        if !running.is_empty() {
            let t = running[op.b as usize % running.len()];
            sim.os.threads[t as usize].stalled = true;
            sim.os.burst(t, u64::from(op.c) % 60_000_000);
        }
    }

    fn inline(&mut self, sim: &mut Sim, op: Op) {
        let some: Vec<(ItemId, u32, u32)> = sim
            .wq
            .items
            .iter()
            .enumerate()
            .filter(|(_, it)| it.oneshot && sim.wq.queues[it.queue as usize].kind != Kind::Ordered)
            .filter_map(|(i, it)| match it.truth {
                Truth::Pending(p, e) => Some((i as ItemId, p, e)),
                Truth::Idle => None,
            })
            .collect();
        if some.is_empty() {
            return;
        }
        let (item, p, e) = some[op.a as usize % some.len()];
        let (now, cpu) = (sim.os.now, sim.at);
        if sim
            .wq
            .with(p, cpu, |pool, d| pool.inline_begin(e, false, now, d))
        {
            sim.wq.items[item as usize].truth = Truth::Idle;
            sim.wq.items[item as usize].running += 1;
            sim.stats.started += 1;
            self.inline.push((p, e, item));
        }
        sim.run_todo();
    }
}

impl Sim {
    pub(crate) fn inline_ends(&mut self, p: u32, e: u32, item: ItemId) {
        let it = &mut self.wq.items[item as usize];
        it.running -= 1;
        it.ended += 1;
        self.stats.ended += 1;
        let (now, cpu) = (self.os.now, self.at);
        self.wq
            .with(p, cpu, |pool, d| pool.inline_end(e, now, now, d));
        self.wake_waiters(item, cpu);
        self.run_todo();
    }

    pub(crate) fn set_max(&mut self, q: u32, max: u32) {
        let queue = &mut self.wq.queues[q as usize];
        match queue.kind {
            Kind::Ordered => {}
            Kind::PerCpu => {
                queue.max = max;
                let now = self.os.now;
                for l in 0..self.wq.links.len() {
                    let l = self.wq.links[l];
                    if l.queue == q
                        && let Some(id) = l.id
                    {
                        let cpu = self.at;
                        self.wq
                            .with(l.pool, cpu, |pool, d| pool.set_limit(id, max, now, d));
                    }
                }
            }
            Kind::Unbound => {
                queue.max = max;
                self.new_limits(q);
            }
        }
        self.run_todo();
    }

    /// The node limits of an unbound queue, after `max_active` or the online CPUs changed.
    pub(crate) fn new_limits(&mut self, q: u32) {
        let cpus: Vec<u32> = (0..self.os.m.node_count())
            .map(|n| {
                let all = self.os.m.node(n as u32).iter();
                all.filter(|&&c| self.os.cpus[c as usize].online).count() as u32
            })
            .collect();
        let queue = &mut self.wq.queues[q as usize];
        let max = queue.max;
        let mut limits = node_limits(max, default_min_active(max), &cpus);
        limits.push(max);
        for (slot, limit) in queue.slots.iter_mut().zip(limits) {
            slot.set_max(limit, &mut SlotDrv(&mut self.wq.todo));
        }
    }

    pub(crate) fn freeze(&mut self, q: u32, frozen: bool) {
        self.wq.queues[q as usize].frozen = frozen;
        let now = self.os.now;
        for l in 0..self.wq.links.len() {
            let l = self.wq.links[l];
            if l.queue == q
                && let Some(id) = l.id
            {
                let cpu = self.at;
                self.wq
                    .with(l.pool, cpu, |pool, d| pool.set_frozen(id, frozen, now, d));
            }
        }
        self.run_todo();
    }

    pub(crate) fn drain(&mut self, q: u32, draining: bool) {
        self.wq.queues[q as usize].draining = draining;
        for l in &self.wq.links {
            if l.queue == q
                && let Some(id) = l.id
            {
                self.wq.pools[l.pool as usize]
                    .pool
                    .set_draining(id, draining);
            }
        }
    }

    pub(crate) fn cpu_goes(&mut self, cpu: u32) {
        self.os.cpu_down(cpu);
        self.cpus_changed(cpu);
    }

    pub(crate) fn cpu_comes(&mut self, cpu: u32) {
        self.os.cpu_up(cpu);
        self.cpus_changed(cpu);
    }

    /// Whether a thread belongs to this pool (and does not just visit it).
    fn is_own(&self, t: u32, p: u32) -> bool {
        t != u32::MAX && matches!(self.roles[t as usize], Role::Worker { pool, .. } if pool == p)
    }

    fn cpus_changed(&mut self, cpu: u32) {
        let now = self.os.now;
        for p in 0..self.wq.pools.len() as u32 {
            let st = &self.wq.pools[p as usize];
            if !st.set.contains(cpu as usize) {
                continue;
            }
            let usable = st
                .cpus
                .iter()
                .filter(|&&c| self.os.cpus[c as usize].online)
                .count() as u32;
            let mut config = *st.pool.config();
            if config.kind == PoolKind::PerCpu {
                let gone = usable == 0;
                let mask = if gone {
                    Arc::new(CpuSet::first_n(self.os.cpus.len()))
                } else {
                    Arc::new(st.set.clone())
                };
                self.wq.pools[p as usize].mask = Arc::clone(&mask);
                for t in self.wq.pools[p as usize].threads.clone() {
                    if self.is_own(t, p) {
                        self.os.set_mask(t, Arc::clone(&mask));
                    }
                }
                self.wq
                    .with(p, cpu, |pool, d| pool.set_disassociated(gone, now, d));
            } else {
                config.target = usable.max(1);
                config.hog_extra = config.target;
                // Affinities are set anew, so that whoever had to go elsewhere comes home.
                let mask = Arc::clone(&st.mask);
                for t in st.threads.clone() {
                    if self.is_own(t, p) {
                        self.os.set_mask(t, Arc::clone(&mask));
                    }
                }
                self.wq
                    .with(p, cpu, |pool, d| pool.configure(config, now, d));
            }
        }
        for q in 0..self.wq.queues.len() as u32 {
            if self.wq.queues[q as usize].kind == Kind::Unbound {
                self.new_limits(q);
                // A pod that lost its last CPU, or has one again, changes where its CPUs lead to.
                let spec = self.wq.queues[q as usize].spec.clone();
                let pods = self.os.m.topology.pods(spec.scope);
                let others = pods.pod_at(cpu as usize).is_some_and(|p| {
                    p.cpus
                        .iter()
                        .any(|c| c != cpu as usize && self.os.cpus[c].online)
                });
                if !others {
                    self.link_all(q, &spec);
                }
            }
        }
        self.run_todo();
    }
}
