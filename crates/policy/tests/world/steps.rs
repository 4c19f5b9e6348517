//! Carrying out one request, and one worker's move.

use super::{Batch, Drv, Kind, Req, SlotDrv, Truth, World};
use crate::split;
use cmwq_policy::flush::Arm;
use cmwq_policy::pool::{Here, Next, PwqTag, Taken, WorkerId, WorkerKind};

impl World {
    /// Refreshes what `Driver::contended` says, unless it lags.
    pub(crate) fn publish(&mut self) {
        for q in &mut self.queues {
            for (n, s) in &q.slots {
                q.hints.insert(*n, s.contention());
                if s.leased() <= s.max() {
                    q.lowered.remove(n);
                }
            }
        }
    }

    pub(crate) fn perform(&mut self, i: usize, chance: u16) {
        let req = self.todo.swap_remove(i);
        self.carry_out(req, chance);
    }

    pub(crate) fn carry_out(&mut self, req: Req, chance: u16) {
        self.log.push(format!("{req:?}"));
        match req {
            Req::Wake(p, w) => {
                // It may have woken by itself, found out that it was dismissed, and left.
                if let Some(b) = self.workers[p].get_mut(&w) {
                    b.asleep = false;
                }
            }
            Req::Create(p) => {
                if self.create_fails && chance.is_multiple_of(2) {
                    self.pools[p].creation_failed(self.now);
                } else {
                    let w = self.pools[p].worker_started(0, self.now);
                    self.workers[p].insert(w, Batch::default());
                }
            }
            Req::Ask(t) => self.with_slot(t, |s, d| s.ask(t, d)),
            Req::GiveBack(t, n) => self.with_slot(t, |s, d| s.give_back(n, d)),
            Req::Leave(t, n) => self.with_slot(t, |s, d| s.leave(t, n, d)),
            Req::Grant(t, n, keep) => {
                let (p, id) = (self.links[t as usize].pool, self.links[t as usize].id);
                let id = id.expect("a pwq that has asked stays until it is answered");
                let now = self.now;
                let (pool, mut d) = split!(self, p);
                pool.grant(id, n, keep, now, &mut d);
            }
            Req::Sweep(t) => {
                if let Some(id) = self.links[t as usize].id {
                    let n = self.pools[self.links[t as usize].pool].reclaim(id);
                    if n > 0 {
                        self.todo.push(Req::GiveBack(t, n));
                    }
                }
            }
            Req::Flushed(t, c) => {
                let q = self.links[t as usize].queue;
                self.flush_done(q, c, false);
            }
            Req::ArmPwq(t, flush, next) => self.arm_pwq(t, flush, next),
            Req::Barrier(waiter) => {
                let (on, cancelled) = self.barriers.remove(&waiter).expect("told once");
                let taken_out = self.items[on.0 as usize].cancelled > cancelled;
                assert!(self.over(on) || taken_out, "a barrier ends after its item");
            }
            Req::Drained(t) => self.drained(t),
            Req::Mayday(t) => {
                if let Some(id) = self.links[t as usize].id {
                    let p = self.links[t as usize].pool;
                    self.pools[p].rescue_begun(id);
                    let w = self.pools[p].attach(WorkerKind::Rescuer, 1, self.now);
                    let b = Batch {
                        attached: Some(Some(t)),
                        ..Batch::default()
                    };
                    self.workers[p].insert(w, b);
                }
            }
        }
        if !self.lag {
            self.publish();
        }
    }

    fn with_slot(&mut self, t: PwqTag, f: impl FnOnce(&mut cmwq_policy::slot::Slot, &mut SlotDrv)) {
        let l = &self.links[t as usize];
        if let Some(s) = self.queues[l.queue].slots.get_mut(&l.node) {
            f(s, &mut SlotDrv(&mut self.todo));
        }
    }

    fn drained(&mut self, t: PwqTag) {
        let (p, q) = (self.links[t as usize].pool, self.links[t as usize].queue);
        let Some(id) = self.links[t as usize].id else {
            return;
        };
        if !self.pools[p].pwq(id).is_empty() || self.pools[p].pwq(id).is_asking() {
            return; // it was used again; there will be another report
        }
        let gone = self.pools[p].unlink_pwq(id);
        self.links[t as usize].id = None;
        if self.links[t as usize].leased {
            self.todo.push(Req::Leave(t, gone.limit()));
        }
        if self.queues[q].kind == Kind::Ordered {
            // The oldest one left is unplugged.
            let next = self
                .links
                .iter()
                .position(|l| l.queue == q && l.id.is_some());
            if let Some(n) = next.filter(|&n| self.links[n].plugged) {
                self.links[n].plugged = false;
                let (p, id) = (self.links[n].pool, self.links[n].id.unwrap());
                let now = self.now;
                let (pool, mut d) = split!(self, p);
                pool.set_limit(id, 1, now, &mut d);
            }
        }
    }

    pub(crate) fn begin_flush(&mut self, q: usize) {
        let f = self.next_waiter;
        self.next_waiter += 1;
        self.flushers.insert(f, self.outstanding(q));
        let arm = self.queues[q].flush.begin(f);
        self.arm(q, arm);
    }

    fn arm(&mut self, q: usize, arm: Option<Arm>) {
        let Some(Arm { flush, next }) = arm else {
            return;
        };
        self.queues[q].arming_colour = flush;
        self.queues[q].arming = 1;
        for (t, l) in self.links.iter().enumerate() {
            if l.queue == q && l.id.is_some() {
                self.queues[q].arming += 1;
                self.todo.push(Req::ArmPwq(t as PwqTag, flush, next));
            }
        }
        self.armed_one(q);
    }

    fn arm_pwq(&mut self, t: PwqTag, flush: u8, next: u8) {
        let (p, q) = (self.links[t as usize].pool, self.links[t as usize].queue);
        if let Some(id) = self.links[t as usize].id {
            self.queues[q].flush.expect(flush);
            let now = self.now;
            let (pool, mut d) = split!(self, p);
            if !pool.arm_flush(id, flush, next, now, &mut d) {
                self.flush_done(q, flush, false);
            }
        }
        self.armed_one(q);
    }

    fn armed_one(&mut self, q: usize) {
        self.queues[q].arming -= 1;
        if self.queues[q].arming == 0 {
            let c = self.queues[q].arming_colour;
            self.flush_done(q, c, true);
        }
    }

    fn flush_done(&mut self, q: usize, c: u8, all: bool) {
        let mut done = Vec::new();
        let f = &mut self.queues[q].flush;
        let arm = if all {
            f.armed_all(c, &mut done)
        } else {
            f.done(c, &mut done)
        };
        for f in done {
            for x in self.flushers.remove(&f).expect("told once") {
                assert!(
                    self.over(x),
                    "a flush ends after everything queued before it"
                );
            }
        }
        self.arm(q, arm);
    }

    /// One move of a worker that is awake: it ends an item and claims the next, or asks for more.
    pub(crate) fn work(&mut self, p: usize, w: WorkerId) {
        let b = self.workers[p].get_mut(&w).expect("known");
        if b.running {
            let item = b.items[b.claimed as usize - 1].item;
            b.running = false;
            self.end_item(item);
            let b = self.workers[p].get_mut(&w).expect("known");
            if !b.stopped && (b.claimed as usize) < b.items.len() {
                b.starts.push(self.now);
                b.claimed += 1;
                b.running = true;
                let t = b.items[b.claimed as usize - 1];
                self.start_item(p, t);
            }
            return;
        }
        let here = Here {
            cpu: p as u32,
            in_pod: true,
        };
        let now = self.now;
        let mut out = Vec::new();
        let attached = b.attached;
        let only = attached.flatten().map(|t| self.links[t as usize].id);
        let (pool, mut d) = split!(self, p);
        let run = match attached {
            None => match pool.next(w, here, now, &mut out, &mut d) {
                Next::Run => true,
                Next::Idle => {
                    self.forget_batch(p, w);
                    self.workers[p].get_mut(&w).expect("known").asleep = true;
                    return;
                }
                Next::Exit => {
                    self.workers[p].remove(&w);
                    return;
                }
            },
            Some(_) => {
                if only == Some(None) {
                    false // its pwq is gone
                } else {
                    pool.next_attached(w, only.flatten(), here, now, &mut out, &mut d)
                }
            }
        };
        if !run {
            let (pool, mut d) = split!(self, p);
            pool.detach(w, now, &mut d);
            self.workers[p].remove(&w);
            return;
        }
        let b = self.workers[p].get_mut(&w).expect("known");
        b.items = out;
        b.claimed = 1;
        b.stopped = false;
        b.starts = vec![now];
        b.running = true;
        let t = b.items[0];
        self.start_item(p, t);
    }

    fn forget_batch(&mut self, p: usize, w: WorkerId) {
        let b = self.workers[p].get_mut(&w).expect("known");
        b.items.clear();
        b.claimed = 0;
        b.starts.clear();
    }

    pub(crate) fn start_item(&mut self, p: usize, t: Taken<u32>) {
        let it = &mut self.items[t.item as usize];
        assert_eq!(
            it.truth,
            Truth::Pending(p, t.entry),
            "what starts was pending here"
        );
        it.truth = Truth::Idle;
        it.running += 1;
        it.last_pool = Some(p);
        let q = it.queue;
        if self.queues[q].kind == Kind::Ordered {
            let first = self.queues[q].order.remove(0);
            assert_eq!(first, t.item, "an ordered queue runs its items in order");
        }
    }

    pub(crate) fn end_item(&mut self, item: u32) {
        let it = &mut self.items[item as usize];
        it.running -= 1;
        it.ended += 1;
    }

    /// The driver of a pool, for callers outside.
    pub(crate) fn with_pool<R>(
        &mut self,
        p: usize,
        f: impl FnOnce(&mut cmwq_policy::pool::Pool<u32, u32>, &mut Drv) -> R,
    ) -> R {
        let (pool, mut d) = split!(self, p);
        let r = f(pool, &mut d);
        if !self.lag {
            self.publish();
        }
        r
    }
}
