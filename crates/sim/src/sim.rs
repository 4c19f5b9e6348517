//! The event loop.

use crate::load::Load;
use crate::machine::Machine;
use crate::os::{Ev, Os, Rules, Tid, Tstate, Want};
use crate::timeline::Timeline;
use crate::wq::{ItemId, Role, Wq};
use cmwq_policy::help::hedge_delay;
use cmwq_policy::near::Way;
use cmwq_policy::pool::Taken;
use cmwq_policy::timer::TimerWheel;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Figures of one run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stats {
    pub(crate) queued: u64,
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) in_llc: u64,
    pub(crate) wait_ns: u64,
    pub(crate) events: u64,
    pub(crate) cancelled: u64,
    /// Timers that fired, and that were cancelled.
    pub(crate) fired: u64,
    pub(crate) disarmed: u64,
    /// Permits lent.
    pub(crate) lent: u64,
}

impl Stats {
    /// Everything accepted has ended or was taken out.
    pub(crate) fn accepted_over(&self) -> bool {
        self.queued == self.ended + self.cancelled
    }
}

/// How steps are disturbed in a fault run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disturb {
    /// Steps wait for up to this, ns.
    pub(crate) step_ns: u64,
    /// Out of 100: how often blocking is noticed at once.
    pub(crate) noticed: u32,
    /// Out of 100: how often a worker cannot be made.
    pub(crate) no_worker: u32,
}

/// One simulated machine with its workqueues and its load.
pub(crate) struct Sim {
    pub(crate) os: Os,
    pub(crate) wq: Wq,
    pub(crate) roles: Vec<Role>,
    pub(crate) load: Load,
    pub(crate) rng: fastrand::Rng,
    /// What the running step costs its thread; part of the thread's next burst.
    pub(crate) charge: u64,
    /// The CPU on whose behalf things happen now.
    pub(crate) at: u32,
    /// The issuer that acts now, and how the worker is to be woken that its item needs.
    pub(crate) issuing: Option<u32>,
    pub(crate) way: Option<Way>,
    pub(crate) stats: Stats,
    pub(crate) disturb: Option<Disturb>,
    pub(crate) out: Vec<Taken<ItemId>>,
    pub(crate) timeline: Option<Timeline>,
    /// The lock that items of figure B share: when it is free, and until when each waiter spins.
    app_free_at: u64,
    app_waiters: VecDeque<u64>,
    tick_armed: bool,
}

impl Sim {
    pub(crate) fn new(m: Arc<Machine>, rules: Rules, seed: u64) -> Sim {
        // The 99th percentile of wake-ups: a halted CPU's.
        let p99 = m.costs.wake + m.costs.switch + m.costs.idle_exit;
        let mut rng = fastrand::Rng::with_seed(seed);
        // Where the first threads happen to start decides where they stay in a quiet run: another place with each seed.
        let mut os = Os::new(m, rules);
        os.cursor = rng.u32(0..os.cpus.len() as u32);
        Sim {
            os,
            wq: Wq {
                pools: Vec::new(),
                queues: Vec::new(),
                links: Vec::new(),
                items: Vec::new(),
                todo: VecDeque::new(),
                hedge_ns: hedge_delay(p99),
                timers: TimerWheel::new(0),
                timers_due: u64::MAX,
                timers_look: u64::MAX,
                flushers: HashMap::new(),
                next_flusher: 0,
            },
            roles: Vec::new(),
            load: Load::default(),
            rng,
            charge: 0,
            at: 0,
            issuing: None,
            way: None,
            stats: Stats::default(),
            disturb: None,
            out: Vec::new(),
            timeline: None,
            app_free_at: 0,
            app_waiters: VecDeque::new(),
            tick_armed: false,
        }
    }

    /// How long the next step waits before it is carried out; at once in a plain run.
    #[inline]
    pub(crate) fn step_delay(&mut self) -> Option<u64> {
        let d = self.disturb?;
        (d.step_ns > 0 && self.rng.u8(..) < 200).then(|| self.rng.u64(0..d.step_ns))
    }

    pub(crate) fn notices_blocking(&mut self) -> bool {
        match self.disturb {
            Some(d) => self.rng.u32(0..100) < d.noticed,
            None => true,
        }
    }

    /// The lock that items share: how long the caller spins and holds it. Every waiter that spins makes the holder slower,
    /// since it takes the lock's line away.
    pub(crate) fn app_lock(&mut self, hold: u64) -> u64 {
        let now = self.os.now;
        while self.app_waiters.front().is_some_and(|&t| t <= now) {
            self.app_waiters.pop_front();
        }
        let spinners = self.app_waiters.len() as f64;
        let slower = 1.0 + self.load.lock_spread * spinners.min(self.load.lock_spinners);
        let start = self.app_free_at.max(now);
        self.app_free_at = start + (hold as f64 * slower) as u64;
        self.app_waiters.push_back(self.app_free_at);
        self.app_free_at - now
    }

    /// Handles events until `end`, or until none is left. Returns whether it came to `end`.
    pub(crate) fn run_until(&mut self, end: u64) -> bool {
        while let Some(at) = self.os.ev.next_at() {
            if at > end {
                self.os.now = end;
                return true;
            }
            self.step();
        }
        false
    }

    /// Handles the next event.
    pub(crate) fn step(&mut self) {
        let Some((at, ev)) = self.os.ev.pop() else {
            return;
        };
        // After a jump of the clock what was due is late.
        self.os.now = self.os.now.max(at);
        self.stats.events += 1;
        match ev {
            Ev::BurstEnd(t, b) => {
                if self.os.is_end(t, b) {
                    self.advance(t);
                }
            }
            Ev::Slice(cpu, s) => self.os.slice_over(cpu, s),
            Ev::Timer(t, g) => {
                let th = &self.os.threads[t as usize];
                if th.sleep_gen == g && th.state == Tstate::Sleeping {
                    self.os.wake(t, None, Want::Rules);
                }
            }
            Ev::Tick => {
                self.os.balance_tick();
                self.os.ev.push(at + self.os.rules.tick, Ev::Tick);
            }
            Ev::Step(i) => {
                let req = self.os.take_step(i);
                self.carry_out(req);
                self.run_todo();
            }
            Ev::Spawned(p) => self.spawned(p),
            Ev::PoolTick => self.pool_tick(),
            Ev::Timers(look) => self.timers_due(look),
            Ev::Wander => self.wander(),
            Ev::Device(i) => self.device_done(i),
            Ev::Act(i) => self.act(i),
        }
        self.charge = 0;
    }

    pub(crate) fn wander(&mut self) {
        let n = self.load.issuers.len() as u64;
        let mean = self.os.m.costs.wander;
        if n == 0 || mean == 0 {
            return;
        }
        let t = self.load.issuers[self.rng.usize(0..n as usize)].tid;
        let to = self.rng.u32(0..self.os.cpus.len() as u32);
        if self.os.now > 0 {
            self.os.shove(t, to);
        }
        let u = self.rng.f64().max(1e-12);
        let gap = (-u.ln() * mean as f64 / n as f64) as u64;
        self.os.ev.push(self.os.now + gap.max(1000), Ev::Wander);
    }

    fn spawned(&mut self, p: u32) {
        let fails = self
            .disturb
            .is_some_and(|d| self.rng.u32(0..100) < d.no_worker);
        if fails {
            let now = self.os.now;
            self.wq.pools[p as usize].pool.creation_failed(now);
        } else {
            self.start_worker(p);
        }
    }

    /// Starts the balancer's and the workqueue's ticks.
    pub(crate) fn arm_ticks(&mut self) {
        if !self.tick_armed {
            self.tick_armed = true;
            self.os.ev.push(self.os.now + self.os.rules.tick, Ev::Tick);
            self.os.ev.push(self.os.now + 1_000_000, Ev::PoolTick);
        }
    }

    fn pool_tick(&mut self) {
        let now = self.os.now;
        for p in 0..self.wq.pools.len() as u32 {
            self.find_hogs(p);
            if self.wq.pools[p as usize].pool.wants_tick() {
                self.at = self.wq.pools[p as usize].cpus[0];
                let cpu = self.at;
                self.part_company(p);
                self.wq.with(p, cpu, |pool, d| pool.tick(now, d));
                self.run_todo();
                self.offer(p);
            }
        }
        self.os.ev.push(now + 1_000_000, Ev::PoolTick);
    }

    /// Workers whose item has been on a CPU for longer than the threshold are marked.
    fn find_hogs(&mut self, p: u32) {
        let st = &self.wq.pools[p as usize];
        let limit = st.pool.config().hog_ns;
        if limit == 0 || st.pool.entries() == 0 {
            return;
        }
        let hogs: Vec<u32> = st
            .batches
            .iter()
            .enumerate()
            .filter(|(w, b)| {
                b.running
                    && st.threads[*w] != Tid::MAX
                    && self.os.threads[st.threads[*w] as usize].state == Tstate::Running
                    && self.os.now - b.starts.last().copied().unwrap_or(self.os.now) >= limit
            })
            .map(|(w, _)| w as u32)
            .collect();
        let (now, cpu) = (self.os.now, self.at);
        for w in hogs {
            self.wq.with(p, cpu, |pool, d| pool.mark_hog(w, now, d));
        }
        self.run_todo();
    }

    fn advance(&mut self, t: Tid) {
        self.os.threads[t as usize].stalled = false;
        match self.roles[t as usize] {
            Role::Issuer(i) => {
                self.issuing = Some(i);
                self.advance_issuer(t, i);
                self.issuing = None;
            }
            Role::Server(n) => self.advance_server(t, n),
            _ => {
                self.resumed(t);
                self.advance_worker(t);
            }
        }
        if let Some(tl) = &mut self.timeline {
            tl.note(&self.os, &self.roles, t);
        }
    }

    /// What the fault plan or an open-loop load wants done now.
    fn act(&mut self, i: u32) {
        if self.load.plan.is_some() {
            self.fault_act(i);
        } else {
            self.arrival(i);
        }
    }
}
