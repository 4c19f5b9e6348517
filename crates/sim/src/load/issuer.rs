//! What issuers do, and a request's way through its stages.

use super::{Doing, Request, Stage};
use crate::os::{Ev, Tid, Tstate, Want};
use crate::sim::Sim;
use crate::wq::{Item, ItemId, Phase};

impl Sim {
    /// The issuer has done what it had to do.
    pub(crate) fn advance_issuer(&mut self, t: Tid, i: u32) {
        let cpu = self.os.threads[t as usize].cpu;
        self.at = cpu;
        self.load.issuers[i as usize].cpu = cpu;
        match std::mem::take(&mut self.load.issuers[i as usize].doing) {
            Doing::Nothing | Doing::Thinking => {}
            Doing::Starting(r) => self.forward(r, cpu),
            Doing::Ending(r) => {
                let now = self.os.now;
                let req = self.load.requests[r as usize];
                self.load.done += 1;
                self.load.done_reads += u64::from(!req.write);
                if !req.write || self.load.shape.reads == 0 {
                    self.load.latency.record(now - req.started);
                }
                let every = self.load.shape.every;
                let is = &mut self.load.issuers[i as usize];
                is.spare.push(r);
                if every == 0 {
                    is.credit += 1;
                }
            }
        }
        self.next_of(t, i, cpu);
    }

    fn next_of(&mut self, t: Tid, i: u32, cpu: u32) {
        let charge = std::mem::take(&mut self.charge);
        // A load generator keeps its depth: it reaps one request when it may start no other (fio's default batch sizes).
        let may_start = self.load.issuers[i as usize].credit > 0 && self.load.shape.one_by_one;
        if !may_start && let Some(r) = self.load.issuers[i as usize].inbox.pop_front() {
            let write = self.load.requests[r as usize].write;
            let it = &mut self.wq.items[r as usize];
            let near = self.os.m.near(it.data_cpu, cpu);
            it.data_cpu = cpu;
            let costs = &self.os.m.costs;
            let touch = if write {
                costs.touch(near, 0) // what it wrote is not read again
            } else {
                costs.touch(near, it.bytes)
            };
            let work = self.load.shape.after[usize::from(write)];
            self.load.issuers[i as usize].doing = Doing::Ending(r);
            return self.os.burst(t, work + touch + charge);
        }
        if self.load.issuers[i as usize].credit == 0 {
            if charge > 0 {
                return self.os.burst(t, charge); // pays for what it did, then sleeps
            }
            return self.os.sleep(t);
        }
        let think = self.load.shape.think;
        if think > 0 && self.load.issuers[i as usize].doing == Doing::Nothing {
            // Thinks before each request: sleeps, and starts one when it is back.
            let is = &mut self.load.issuers[i as usize];
            if !std::mem::replace(&mut is.thought, true) {
                is.doing = Doing::Thinking;
                self.os.sleep(t);
                let generation = self.os.threads[t as usize].sleep_gen;
                self.os
                    .ev
                    .push(self.os.now + think, Ev::Timer(t, generation));
                return;
            }
            is.thought = false;
        }
        let is = &mut self.load.issuers[i as usize];
        is.credit -= 1;
        let write = self.rng.u32(0..100) >= self.load.shape.reads;
        let r = match self.load.issuers[i as usize].spare.pop() {
            Some(r) => r,
            None => self.new_request(i),
        };
        self.load.requests[r as usize] = Request {
            issuer: i,
            write,
            stage: 0,
            cpu,
            started: self.os.now,
        };
        self.wq.items[r as usize].data_cpu = cpu;
        let work = self.load.shape.before[usize::from(write)];
        self.load.issuers[i as usize].doing = Doing::Starting(r);
        self.os.burst(t, work + charge);
    }

    fn new_request(&mut self, i: u32) -> ItemId {
        self.wq.items.push(Item {
            phases: vec![Phase::Burn(0)],
            bytes: self.load.shape.bytes,
            ..Item::of(0)
        });
        self.load.requests.push(Request {
            issuer: i,
            write: false,
            stage: 0,
            cpu: 0,
            started: 0,
        });
        self.wq.items.len() as ItemId - 1
    }

    /// The request goes on to its next stage; `cpu` is where that happens.
    pub(crate) fn forward(&mut self, r: ItemId, cpu: u32) {
        let req = &mut self.load.requests[r as usize];
        let way = &self.load.shape.ways[usize::from(req.write)];
        let stage = way.get(req.stage as usize).copied();
        req.stage += 1;
        match stage {
            Some(Stage::Item { queue, ns, locked }) => {
                let it = &mut self.wq.items[r as usize];
                it.queue = queue;
                it.phases.clear();
                it.phases.push(Phase::Burn(ns));
                if locked > 0 {
                    it.phases.push(Phase::Locked(locked));
                }
                let accepted = self.queue_item(r, cpu, false);
                assert!(accepted, "nothing drains here");
            }
            Some(Stage::Server(n)) => self.command(n, r, cpu),
            Some(Stage::Device) => {
                req.cpu = cpu;
                let d = &mut self.load.device;
                let start = d.free_at.max(self.os.now);
                d.free_at = start + d.per_request;
                let at = d.free_at + d.latency;
                self.os.ev.push(at, Ev::Device(r));
            }
            None => {
                let i = req.issuer;
                self.load.issuers[i as usize].inbox.push_back(r);
                let t = self.load.issuers[i as usize].tid;
                if self.os.threads[t as usize].state == Tstate::Sleeping {
                    self.charge += self.os.m.costs.wake_call;
                    self.os.wake(t, Some(cpu), Want::Rules);
                }
            }
        }
    }

    /// The device has done a request: it interrupts the CPU that submitted it, and what follows is done there.
    pub(crate) fn device_done(&mut self, r: u32) {
        let cpu = self.load.requests[r as usize].cpu;
        self.at = cpu;
        self.forward(r, cpu);
        let took = self.os.m.costs.interrupt + std::mem::take(&mut self.charge);
        self.os.interrupt(cpu, took);
    }

    /// An item of a request has run on `cpu`.
    pub(crate) fn item_done(&mut self, item: ItemId, cpu: u32) {
        if self.load.plan.is_none() && self.wq.items[item as usize].oneshot {
            self.forward(item, cpu);
        }
    }

    /// Open loop: a burst of requests arrives at an issuer.
    pub(crate) fn arrival(&mut self, i: u32) {
        let (every, burst) = (self.load.shape.every, self.load.shape.burst.max(1));
        let is = &mut self.load.issuers[i as usize];
        is.credit += burst;
        let t = is.tid;
        self.os.wake(t, None, Want::Rules);
        // Exponential gaps.
        let u = self.rng.f64().max(1e-12);
        let gap = (-u.ln() * every as f64 * f64::from(burst)) as u64;
        self.os.ev.push(self.os.now + gap.max(1), Ev::Act(i));
    }
}
