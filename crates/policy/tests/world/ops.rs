//! What may happen to the world: one random operation.

use super::{Batch, Kind, Truth, World};
use cmwq_policy::pool::{Enqueue, Place, PwqFlags, Removed, WorkerId, WorkerKind};

/// One operation and where its choices come from.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) what: u8,
    pub(crate) a: u16,
    pub(crate) b: u16,
    pub(crate) c: u16,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "op({}, {}, {}, {})", self.what, self.a, self.b, self.c)
    }
}

/// One of `n`, the same for the same number; proptest shrinks towards the first.
pub(crate) fn pick(x: u16, n: usize) -> usize {
    x as usize % n
}

impl World {
    pub(crate) fn apply(&mut self, op: Op) {
        self.log.push(format!("{op:?}"));
        self.now += u64::from(op.c % 1000) * 100;
        match op.what {
            0..=29 if !self.todo.is_empty() => {
                let i = pick(op.a, self.todo.len());
                self.perform(i, op.b);
            }
            0..=54 => self.some_worker(op.a),
            55..=72 => self.queue_something(op),
            73..=75 => self.cancel(op),
            76 | 77 => self.block(op),
            78 | 79 => self.resume(op),
            80 => self.hog(op),
            81..=83 => self.inline(op),
            84 | 85 => self.attach_barrier(op),
            86 => self.begin_flush(pick(op.a, self.queues.len())),
            87 | 88 => self.set_max(op),
            89 | 90 => self.freeze(op),
            91 => self.drain(op),
            92 => self.replace_pwq(op),
            93 | 94 => self.tick(op),
            95 => {
                let p = pick(op.a, self.pools.len());
                let now = self.now;
                self.with_pool(p, |pool, d| pool.cull(1000, now, d));
            }
            96 => self.help(op),
            97 => self.retarget(op),
            98 => self.publish(),
            _ => {
                // A wake-up that nobody asked for.
                let p = pick(op.a, self.pools.len());
                if let Some(w) = self.choose(p, op.b, |b| b.asleep) {
                    self.workers[p].get_mut(&w).unwrap().asleep = false;
                }
            }
        }
    }

    fn choose(&self, p: usize, x: u16, ok: impl Fn(&Batch) -> bool) -> Option<WorkerId> {
        let mut all: Vec<WorkerId> = self.workers[p]
            .iter()
            .filter(|(_, b)| ok(b))
            .map(|(&w, _)| w)
            .collect();
        all.sort_unstable();
        (!all.is_empty()).then(|| all[pick(x, all.len())])
    }

    fn some_worker(&mut self, x: u16) {
        let mut all: Vec<(usize, WorkerId)> = Vec::new();
        for (p, ws) in self.workers.iter().enumerate() {
            for (&w, b) in ws {
                if !b.asleep {
                    all.push((p, w));
                }
            }
        }
        all.sort_unstable();
        if !all.is_empty() {
            let (p, w) = all[pick(x, all.len())];
            self.work(p, w);
        }
    }

    fn queue_something(&mut self, op: Op) {
        let q = pick(op.a, self.queues.len());
        let n = 1 + pick(op.c, 6);
        for k in 0..n {
            let item = if op.b.is_multiple_of(3) {
                let mine: Vec<u32> = (0..self.items.len() as u32)
                    .filter(|&i| {
                        let it = &self.items[i as usize];
                        it.queue == q && !it.oneshot && it.truth == Truth::Idle
                    })
                    .collect();
                if mine.is_empty() {
                    return;
                }
                mine[pick(op.b / 3 + k as u16, mine.len())]
            } else {
                self.add_item(q, true)
            };
            self.enqueue(q, item, op.b as usize / 3 + k);
        }
    }

    pub(crate) fn enqueue(&mut self, q: usize, item: u32, which: usize) {
        let current: Vec<(usize, u64)> = self.queues[q]
            .current
            .iter()
            .map(|(&p, &t)| (p, t))
            .collect();
        let (mut p, tag) = current[which % current.len()];
        let mut id = self.links[tag as usize]
            .id
            .expect("the current pwq is linked");
        // Rule 2.2 (a): an item that runs elsewhere is queued there.
        let it = &self.items[item as usize];
        if self.queues[q].kind != Kind::Ordered
            && let Some(last) = it.last_pool
            && last != p
            && let Some((_, _, running)) = self.pools[last].running(item)
        {
            (p, id) = (last, running);
        }
        let e = Enqueue {
            item,
            pwq: id,
            oneshot: it.oneshot,
            chained: which.is_multiple_of(2),
            issuer_cpu: 0,
        };
        let now = self.now;
        let draining = self.queues[q].draining;
        match self.with_pool(p, |pool, d| pool.enqueue(e, now, d)) {
            Ok(entry) => {
                assert!(!draining || e.chained, "a draining queue refuses");
                let it = &mut self.items[item as usize];
                it.accepted += 1;
                it.truth = Truth::Pending(p, entry);
                if self.queues[q].kind == Kind::Ordered {
                    self.queues[q].order.push(item);
                }
            }
            Err(_) => assert!(draining && !e.chained, "only a draining queue refuses"),
        }
    }

    fn cancel(&mut self, op: Op) {
        // Also what was claimed and maybe done since the canceller looked: the entry is live until its batch is settled.
        let p = pick(op.a, self.pools.len());
        let now = self.now;
        let claimed = self.choose(p, op.b, |b| b.claimed > 0 && !b.items.is_empty());
        if let Some(w) = claimed.filter(|_| op.c.is_multiple_of(2)) {
            let b = &self.workers[p][&w];
            let t = b.items[pick(op.c / 2, b.claimed as usize)];
            if self.pools[p]
                .entry(t.entry)
                .is_some_and(|e| e.place == Place::Taken(w) && e.item == t.item)
            {
                let r = self.with_pool(p, |pool, d| pool.remove(t.entry, now, d));
                assert_eq!(r, Removed::Started, "what was claimed is not taken out");
            }
            return;
        }
        let pending: Vec<(u32, usize, u32)> = self
            .items
            .iter()
            .enumerate()
            .filter_map(|(i, it)| match it.truth {
                Truth::Pending(p, e) => Some((i as u32, p, e)),
                Truth::Idle => None,
            })
            .collect();
        if pending.is_empty() {
            return;
        }
        let (item, p, e) = pending[pick(op.b, pending.len())];
        if self.inline.iter().any(|x| (x.0, x.1) == (p, e)) {
            return;
        }
        let r = self.with_pool(p, |pool, d| pool.remove(e, now, d));
        assert_eq!(
            r,
            Removed::Removed,
            "what no worker has claimed can be taken out"
        );
        let it = &mut self.items[item as usize];
        it.truth = Truth::Idle;
        it.cancelled += 1;
        let q = it.queue;
        self.queues[q].order.retain(|&x| x != item);
    }

    fn block(&mut self, op: Op) {
        let p = pick(op.a, self.pools.len());
        if let Some(w) = self.choose(p, op.b, |b| b.running) {
            let now = self.now;
            self.with_pool(p, |pool, d| pool.blocked(w, now, d));
        }
    }

    fn resume(&mut self, op: Op) {
        let p = pick(op.a, self.pools.len());
        if let Some(w) = self.choose(p, op.b, |b| b.running) {
            self.pools[p].resumed(w);
        }
    }

    fn hog(&mut self, op: Op) {
        let p = pick(op.a, self.pools.len());
        if let Some(w) = self.choose(p, op.b, |b| b.running && b.attached.is_none()) {
            let now = self.now;
            self.with_pool(p, |pool, d| pool.mark_hog(w, now, d));
        }
    }

    fn inline(&mut self, op: Op) {
        let now = self.now;
        if !self.inline.is_empty() && op.c.is_multiple_of(2) {
            let (p, e, item, _) = self.inline.swap_remove(pick(op.a, self.inline.len()));
            self.end_item(item);
            return self.with_pool(p, |pool, d| pool.inline_end(e, now, now, d));
        }
        let some: Vec<(u32, usize, u32)> = self
            .items
            .iter()
            .enumerate()
            .filter(|(_, it)| it.oneshot && self.queues[it.queue].kind != Kind::Ordered)
            .filter_map(|(i, it)| match it.truth {
                Truth::Pending(p, e) => Some((i as u32, p, e)),
                Truth::Idle => None,
            })
            .collect();
        if some.is_empty() {
            return;
        }
        let (item, p, e) = some[pick(op.a, some.len())];
        let lend = op.b.is_multiple_of(2)
            && self.pools[p]
                .entry(e)
                .is_some_and(|x| x.place == Place::Inactive);
        if self.with_pool(p, |pool, d| pool.inline_begin(e, lend, now, d)) {
            self.items[item as usize].truth = Truth::Idle;
            self.items[item as usize].running += 1;
            self.inline.push((p, e, item, lend));
        }
    }

    fn attach_barrier(&mut self, op: Op) {
        let p = pick(op.a, self.pools.len());
        let some: Vec<(u32, u32)> = (0..self.items.len() as u32)
            .filter_map(|i| match self.items[i as usize].truth {
                Truth::Pending(x, e) if x == p => Some((i, e)),
                _ => None,
            })
            .collect();
        if some.is_empty() {
            return;
        }
        let (item, e) = some[pick(op.b, some.len())];
        let f = self.next_waiter;
        self.next_waiter += 1;
        let it = &self.items[item as usize];
        self.barriers
            .insert(f, ((item, it.accepted - 1), it.cancelled));
        self.pools[p].attach_barrier(e, f);
    }

    fn set_max(&mut self, op: Op) {
        let q = pick(op.a, self.queues.len());
        let max = 1 + u32::from(op.b % 40);
        let now = self.now;
        match self.queues[q].kind {
            Kind::Ordered => {}
            Kind::PerCpu => {
                self.queues[q].max = max;
                for t in 0..self.links.len() {
                    if self.links[t].queue == q
                        && let Some(id) = self.links[t].id
                    {
                        let p = self.links[t].pool;
                        self.with_pool(p, |pool, d| pool.set_limit(id, max, now, d));
                    }
                }
            }
            Kind::Unbound => {
                let queue = &mut self.queues[q];
                queue.max = max;
                for (n, s) in &mut queue.slots {
                    if s.leased() > max {
                        queue.lowered.insert(*n);
                    }
                    s.set_max(max, &mut super::SlotDrv(&mut self.todo));
                }
                if !self.lag {
                    self.publish();
                }
            }
        }
    }

    fn freeze(&mut self, op: Op) {
        let q = pick(op.a, self.queues.len());
        self.set_frozen(q, op.b.is_multiple_of(2));
    }

    pub(crate) fn set_frozen(&mut self, q: usize, frozen: bool) {
        self.queues[q].frozen = frozen;
        let now = self.now;
        for t in 0..self.links.len() {
            if self.links[t].queue == q
                && let Some(id) = self.links[t].id
            {
                let p = self.links[t].pool;
                self.with_pool(p, |pool, d| pool.set_frozen(id, frozen, now, d));
            }
        }
    }

    fn drain(&mut self, op: Op) {
        let q = pick(op.a, self.queues.len());
        let draining = op.b.is_multiple_of(2);
        self.queues[q].draining = draining;
        for l in self.links.iter().filter(|l| l.queue == q) {
            if let Some(id) = l.id {
                self.pools[l.pool].set_draining(id, draining);
            }
        }
    }

    /// New attributes: a new pwq takes the place of the old one in one pool.
    fn replace_pwq(&mut self, op: Op) {
        let q = pick(op.a, self.queues.len());
        let pools: Vec<usize> = self.queues[q].current.keys().copied().collect();
        let mut p = pools[pick(op.b, pools.len())];
        let old = self.queues[q].current[&p];
        if self.queues[q].kind == Kind::Ordered {
            self.queues[q].current.clear();
            p = pick(op.c, 3);
        }
        let flags = self.pools[self.links[old as usize].pool]
            .pwq(self.links[old as usize].id.expect("current"))
            .flags;
        self.link(q, p, flags);
        let (old_pool, id) = (
            self.links[old as usize].pool,
            self.links[old as usize].id.expect("current"),
        );
        self.with_pool(old_pool, |pool, d| pool.retire_pwq(id, d));
    }

    fn tick(&mut self, op: Op) {
        let p = pick(op.a, self.pools.len());
        self.now += u64::from(op.b) * 40_000; // up to 2.6 s
        let now = self.now;
        if self.pools[p].wants_tick() {
            self.with_pool(p, |pool, d| pool.tick(now, d));
        }
    }

    fn help(&mut self, op: Op) {
        let p = pick(op.a, 3);
        let w = self.pools[p].attach(WorkerKind::Helper, 2, self.now);
        let b = Batch {
            attached: Some(None),
            ..Batch::default()
        };
        self.workers[p].insert(w, b);
    }

    fn retarget(&mut self, op: Op) {
        let p = pick(op.a, 3);
        let now = self.now;
        let mut config = *self.pools[p].config();
        config.target = 1 + u32::from(op.b % 4);
        config.hog_extra = config.target;
        self.with_pool(p, |pool, d| pool.configure(config, now, d));
    }

    pub(crate) fn flags(&self, tag: u64) -> PwqFlags {
        let l = &self.links[tag as usize];
        self.pools[l.pool].pwq(l.id.expect("linked")).flags
    }
}
