//! The modelled operating system: threads, CPUs, run queues.
//!
//! | rule | what, after mainline's fair scheduler before EEVDF (that of the published figures) | file |
//! |---|---|---|
//! | fair clock | a thread's virtual time runs with its CPU time, slower the lower its nice; the smallest one runs next; a sleeper gets at most half a latency period of credit (`place_entity`) | here |
//! | wake-up preemption | a woken thread preempts if it is behind by more than the wake-up granularity (`wakeup_preempt_entity`) | here |
//! | slices | with others waiting a thread runs for `latency / runnable`, at least the minimum granularity (`sched_slice`) | here |
//! | placement | previous CPU or waker's CPU, then an idle core of that CPU's last-level cache, the sibling, a few of its CPUs | `wake.rs` |
//! | balancing | newly idle CPUs pull, idle CPUs pull at ticks (from other caches more rarely), caches are levelled now and then | `balance.rs` |
//! | SMT | a busy sibling leaves a thread `smt_share` of its core's speed | here |

mod balance;
mod wake;

use crate::events::Events;
use crate::machine::Machine;
use crate::wq::Req;
use cmwq_topology::CpuSet;
use std::sync::Arc;

/// A modelled thread.
pub(crate) type Tid = u32;

/// Which of the scheduler's rules are in force, and their constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// A waker's CPU may be preferred to the previous one (`wake_affine`).
    pub wake_affine: bool,
    /// An idle CPU is looked for in the last-level cache, idle cores first (`select_idle_sibling`).
    pub idle_sibling: bool,
    /// The busier the cache was of late, the fewer of its CPUs are looked at (`SIS_UTIL`): none from 85 % on.
    pub sis_util: bool,
    /// If none is found there, in the node's other caches too (the proposed `SIS_NODE`).
    pub sis_node: bool,
    /// A CPU that becomes idle pulls a waiting thread (`newidle_balance`).
    pub newidle: bool,
    /// Idle CPUs pull at ticks, and caches are levelled (`rebalance_domains`).
    pub periodic: bool,
    /// Targeted latency, ns: 6 ms times 1 + log2(min(CPUs, 8)).
    pub latency: u64,
    /// Minimum granularity, ns: 0.75 ms times the same.
    pub min_gran: u64,
    /// Wake-up granularity, ns: 1 ms times the same.
    pub wakeup_gran: u64,
    /// A thread that ran within this is not pulled by a newly idle CPU (`sched_migration_cost`).
    pub hot: u64,
    /// Ticks a second are `1e9 / tick`.
    pub tick: u64,
    /// An idle CPU is due to look into other caches this often, ns: a millisecond for each CPU of the domain (`get_sd_balance_interval`).
    /// 0: an attentive system, whose idle CPUs take whatever waits and may move, at each tick.
    pub domain_interval: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            wake_affine: true,
            idle_sibling: true,
            sis_util: true,
            sis_node: false,
            newidle: true,
            periodic: true,
            latency: 24_000_000,
            min_gran: 3_000_000,
            wakeup_gran: 4_000_000,
            hot: 500_000,
            tick: 4_000_000,
            domain_interval: 24_000_000,
        }
    }
}

/// What happens when.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ev {
    /// A thread has used up what it had to do.
    BurstEnd(Tid, u32),
    /// A CPU's slice is over.
    Slice(u32, u32),
    /// A sleeping thread's timer.
    Timer(Tid, u32),
    Tick,
    /// A request to the device is done.
    Device(u32),
    /// A step of the workqueue that somebody owes (fault runs delay them).
    Step(u32),
    /// A new thread comes to life in this pool.
    Spawned(u32),
    /// The workqueue's tick.
    PoolTick,
    /// The wheel of delayed items is to be looked at, at this time.
    Timers(u64),
    /// Activity outside the model moves an issuer.
    Wander,
    /// Something the load or the fault plan wants done.
    Act(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tstate {
    Sleeping,
    Queued,
    Running,
    Dead,
}

#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub(crate) state: Tstate,
    /// Where it runs, waits, or ran last.
    pub(crate) cpu: u32,
    pub(crate) mask: Arc<CpuSet>,
    /// In virtual time of its (or its last) CPU; relative to that CPU's minimum while it moves.
    vr: i64,
    /// 1024 for nice 0.
    weight: u64,
    left: f64,
    since: u64,
    speed: f64,
    burst: u32,
    ran_at: u64,
    started_at: u64,
    pub(crate) sleep_gen: u32,
    /// It was told to wake while it was not parked: its next parking returns at once.
    pub(crate) token: bool,
    /// A fault keeps it from what it has to do; until it is done with that.
    pub(crate) stalled: bool,
    /// How often in a row it let others run before it looked for work elsewhere.
    pub(crate) yields: u8,
    pub(crate) migrations: u64,
    pub(crate) cpu_ns: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Cpu {
    pub(crate) online: bool,
    pub(crate) curr: Option<Tid>,
    pub(crate) queue: Vec<Tid>,
    last: Option<Tid>,
    min_vr: i64,
    idle_since: u64,
    avg_idle: u64,
    slice: u32,
    busy_ns: u64,
    busy_since: u64,
}

impl Cpu {
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.online && self.curr.is_none()
    }
}

/// Where a waker wants a thread to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Where the rules say.
    Rules,
    /// As if this had been its previous CPU (repatriation).
    Prev(u32),
    /// On this CPU (localized).
    There(u32),
}

pub(crate) struct Os {
    pub(crate) now: u64,
    pub(crate) m: Arc<Machine>,
    pub(crate) rules: Rules,
    pub(crate) ev: Events<Ev>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) steps: Vec<Option<Req>>,
    pub(crate) free_steps: Vec<u32>,
    /// Threads that wait for a CPU, per last-level cache.
    waiting: Vec<u32>,
    /// Busy CPUs per last-level cache, and since when there is none.
    llc_busy: Vec<u32>,
    llc_idle_since: Vec<u64>,
    pub(crate) switches: u64,
    /// Utilisation of each last-level cache's CPUs, 0..1, as of the last tick (half-life 32 ms, as PELT), and the busy time at
    /// that tick.
    util: Vec<f64>,
    util_busy: Vec<u64>,
    last_level: u64,
    /// When each CPU was due to look into other caches last, and how often in a row it did in vain.
    looked_far: Vec<(u64, u32)>,
    /// A point in the CPU list where searches for an idle CPU begin; moves on, so that none is preferred.
    pub(crate) cursor: u32,
}

const NICE0: u64 = 1024;

impl Os {
    pub(crate) fn new(m: Arc<Machine>, rules: Rules) -> Os {
        let online = m.topology.online().clone();
        let cpus = (0..m.width())
            .map(|c| Cpu {
                online: online.contains(c),
                curr: None,
                queue: Vec::new(),
                last: None,
                min_vr: 0,
                idle_since: 0,
                avg_idle: 1_000_000,
                slice: 0,
                busy_ns: 0,
                busy_since: u64::MAX,
            })
            .collect();
        Os {
            now: 0,
            rules,
            ev: Events::default(),
            cpus,
            threads: Vec::new(),
            steps: Vec::new(),
            free_steps: Vec::new(),
            waiting: vec![0; m.llc_count()],
            llc_busy: vec![0; m.llc_count()],
            llc_idle_since: vec![0; m.llc_count()],
            switches: 0,
            util: vec![0.0; m.llc_count()],
            util_busy: vec![0; m.llc_count()],
            last_level: 0,
            looked_far: vec![(0, 0); m.width()],
            cursor: 0,
            m,
        }
    }

    /// A new thread, asleep, that ran last on `cpu`.
    pub(crate) fn spawn(&mut self, cpu: u32, mask: Arc<CpuSet>, nice: i32) -> Tid {
        self.threads.push(Thread {
            state: Tstate::Sleeping,
            cpu,
            mask,
            vr: self.cpus[cpu as usize].min_vr,
            weight: (NICE0 as f64 * 1.25f64.powi(-nice)) as u64,
            left: 0.0,
            since: self.now,
            speed: 1.0,
            burst: 0,
            ran_at: 0,
            started_at: 0,
            sleep_gen: 0,
            token: false,
            stalled: false,
            yields: 0,
            migrations: 0,
            cpu_ns: 0,
        });
        self.threads.len() as Tid - 1
    }

    #[inline]
    pub(crate) fn allowed(&self, t: Tid, cpu: u32) -> bool {
        self.cpus[cpu as usize].online && self.threads[t as usize].mask.contains(cpu as usize)
    }

    #[inline]
    pub(crate) fn llc_of(&self, cpu: u32) -> usize {
        self.m.place(cpu).llc as usize
    }

    fn speed_of(&self, cpu: u32) -> f64 {
        let core = self.m.core(self.m.place(cpu).core);
        if core.len() == 1 {
            return 1.0;
        }
        let busy = core
            .iter()
            .filter(|&&c| c == cpu || self.cpus[c as usize].curr.is_some())
            .count();
        match busy {
            0 | 1 => 1.0,
            2 => self.m.costs.smt_share,
            n => (2.0 * self.m.costs.smt_share + 0.15 * (n - 2) as f64) / n as f64,
        }
    }

    /// Accounts for what a running thread has done since it was looked at last.
    fn progress(&mut self, t: Tid) {
        let th = &mut self.threads[t as usize];
        let ns = self.now - th.since;
        if ns > 0 {
            th.left = (th.left - ns as f64 * th.speed).max(0.0);
            th.vr += (ns * NICE0 / th.weight.max(1)) as i64;
            th.cpu_ns += ns;
            th.since = self.now;
            th.ran_at = self.now;
        }
    }

    fn schedule_end(&mut self, t: Tid) {
        let th = &mut self.threads[t as usize];
        th.burst = th.burst.wrapping_add(1);
        let at = self.now + (th.left / th.speed).ceil() as u64;
        self.ev.push(at, Ev::BurstEnd(t, th.burst));
    }

    /// The siblings of a CPU that became busy or idle run at another speed from now on.
    fn siblings_changed(&mut self, cpu: u32) {
        let core = self.m.place(cpu).core;
        for i in 0..self.m.core(core).len() {
            let c = self.m.core(core)[i];
            if c == cpu {
                continue;
            }
            if let Some(t) = self.cpus[c as usize].curr {
                let speed = self.speed_of(c);
                if self.threads[t as usize].speed != speed {
                    self.progress(t);
                    self.threads[t as usize].speed = speed;
                    self.schedule_end(t);
                }
            }
        }
    }

    /// The running thread has this much more to do. (Whom it woke may have preempted it meanwhile.)
    pub(crate) fn burst(&mut self, t: Tid, ns: u64) {
        if self.threads[t as usize].state == Tstate::Queued {
            self.threads[t as usize].left += ns as f64;
            return;
        }
        assert_eq!(self.threads[t as usize].state, Tstate::Running);
        self.progress(t);
        self.threads[t as usize].left += ns as f64;
        self.schedule_end(t);
    }

    /// Whether this event is the end of what the thread has to do now.
    pub(crate) fn is_end(&mut self, t: Tid, burst: u32) -> bool {
        let th = &self.threads[t as usize];
        if th.burst != burst || th.state != Tstate::Running {
            return false;
        }
        self.progress(t);
        self.threads[t as usize].left = 0.0;
        true
    }

    /// The running thread sleeps until it is woken.
    pub(crate) fn sleep(&mut self, t: Tid) {
        self.leave_cpu(t, Tstate::Sleeping);
    }

    /// The running thread ends.
    pub(crate) fn exit(&mut self, t: Tid) {
        self.leave_cpu(t, Tstate::Dead);
    }

    pub(super) fn leave_cpu(&mut self, t: Tid, state: Tstate) {
        let cpu = self.threads[t as usize].cpu;
        if self.threads[t as usize].state == Tstate::Queued {
            // Whom it woke has preempted it.
            let i = self.cpus[cpu as usize].queue.iter().position(|&x| x == t);
            self.unqueue(cpu, i.expect("a queued thread is in its CPU's queue"));
            let min = self.cpus[cpu as usize].min_vr;
            let th = &mut self.threads[t as usize];
            th.vr += min;
            th.state = state;
            th.sleep_gen = th.sleep_gen.wrapping_add(1);
            return;
        }
        self.progress(t);
        assert_eq!(self.cpus[cpu as usize].curr, Some(t));
        self.update_min(cpu);
        let th = &mut self.threads[t as usize];
        th.state = state;
        th.sleep_gen = th.sleep_gen.wrapping_add(1);
        th.burst = th.burst.wrapping_add(1);
        self.cpus[cpu as usize].curr = None;
        self.cpus[cpu as usize].last = Some(t);
        self.dispatch(cpu);
    }

    fn update_min(&mut self, cpu: u32) {
        let c = &self.cpus[cpu as usize];
        let curr = c.curr.map(|t| self.threads[t as usize].vr);
        let min = c
            .queue
            .iter()
            .map(|&t| self.threads[t as usize].vr)
            .chain(curr)
            .min();
        if let Some(m) = min {
            let c = &mut self.cpus[cpu as usize];
            c.min_vr = c.min_vr.max(m);
        }
    }

    /// An idle CPU's next thread.
    fn dispatch(&mut self, cpu: u32) {
        if !self.cpus[cpu as usize].online {
            return self.became_idle(cpu);
        }
        if let Some(i) = self.smallest(cpu) {
            let t = self.cpus[cpu as usize].queue.swap_remove(i);
            let llc = self.llc_of(cpu);
            self.waiting[llc] -= 1;
            self.run(cpu, t, 0);
        } else {
            self.became_idle(cpu);
            if self.rules.newidle {
                self.newidle(cpu);
            }
        }
    }

    fn became_idle(&mut self, cpu: u32) {
        let now = self.now;
        let c = &mut self.cpus[cpu as usize];
        if c.busy_since != u64::MAX {
            c.busy_ns += now.saturating_sub(c.busy_since);
            c.busy_since = u64::MAX;
            let llc = self.llc_of(cpu);
            self.llc_busy[llc] -= 1;
            if self.llc_busy[llc] == 0 {
                self.llc_idle_since[llc] = now;
            }
        }
        self.cpus[cpu as usize].idle_since = now;
        self.siblings_changed(cpu);
    }

    fn smallest(&self, cpu: u32) -> Option<usize> {
        let q = &self.cpus[cpu as usize].queue;
        (0..q.len()).min_by_key(|&i| self.threads[q[i] as usize].vr)
    }

    /// `t`, which is in no queue, runs on `cpu`, which runs nothing.
    fn run(&mut self, cpu: u32, t: Tid, extra: u64) {
        let speed = self.speed_of(cpu);
        let (now, costs) = (self.now, self.m.costs);
        let llc = self.llc_of(cpu);
        let asleep = self.llc_busy[llc] == 0
            && now.saturating_sub(self.llc_idle_since[llc]) >= costs.idle_deep_after;
        let c = &mut self.cpus[cpu as usize];
        let mut over = extra;
        if c.busy_since == u64::MAX {
            let idle = now - c.idle_since;
            c.avg_idle = (c.avg_idle * 7 + idle.min(1_000_000)) / 8;
            over += costs.wake;
            if asleep {
                over += costs.idle_exit;
            }
            // On its way out of idle a CPU does not count as busy.
            c.busy_since = now + over - extra;
            self.llc_busy[llc] += 1;
        }
        if c.last != Some(t) {
            over += costs.switch;
            self.switches += 1;
        }
        c.curr = Some(t);
        let th = &mut self.threads[t as usize];
        if th.cpu != cpu {
            th.migrations += 1;
            th.cpu = cpu;
        }
        th.state = Tstate::Running;
        th.left += over as f64;
        th.speed = speed;
        th.since = now;
        th.started_at = now;
        self.schedule_end(t);
        self.siblings_changed(cpu);
        self.arm_slice(cpu);
    }

    fn arm_slice(&mut self, cpu: u32) {
        let c = &mut self.cpus[cpu as usize];
        c.slice = c.slice.wrapping_add(1);
        if c.curr.is_some() && !c.queue.is_empty() {
            let n = c.queue.len() as u64 + 1;
            let slice = (self.rules.latency / n).max(self.rules.min_gran);
            self.ev.push(self.now + slice, Ev::Slice(cpu, c.slice));
        }
    }

    pub(crate) fn slice_over(&mut self, cpu: u32, slice: u32) {
        let c = &self.cpus[cpu as usize];
        if c.slice != slice {
            return;
        }
        let (Some(t), Some(i)) = (c.curr, self.smallest(cpu)) else {
            return;
        };
        self.progress(t);
        let next = self.cpus[cpu as usize].queue[i];
        if self.threads[next as usize].vr < self.threads[t as usize].vr {
            self.preempt(cpu);
        } else {
            self.arm_slice(cpu);
        }
    }

    /// The running thread lets all others that wait for its CPU run first (`sched_yield`). No effect unless it runs.
    pub(crate) fn yield_cpu(&mut self, t: Tid) {
        let cpu = self.threads[t as usize].cpu;
        if self.threads[t as usize].state != Tstate::Running {
            return;
        }
        let queue = &self.cpus[cpu as usize].queue;
        let last = queue.iter().map(|&x| self.threads[x as usize].vr).max();
        if let Some(last) = last {
            self.progress(t);
            let th = &mut self.threads[t as usize];
            th.vr = th.vr.max(last);
            self.preempt(cpu);
        }
    }

    /// The running thread goes back to the queue, the next one runs.
    fn preempt(&mut self, cpu: u32) {
        let t = self.cpus[cpu as usize].curr.take().expect("somebody runs");
        self.progress(t);
        self.threads[t as usize].state = Tstate::Queued;
        self.threads[t as usize].burst = self.threads[t as usize].burst.wrapping_add(1);
        self.cpus[cpu as usize].last = Some(t);
        let i = self.smallest(cpu);
        self.cpus[cpu as usize].queue.push(t);
        let llc = self.llc_of(cpu);
        self.waiting[llc] += 1;
        match i {
            Some(i) => {
                let n = self.cpus[cpu as usize].queue.swap_remove(i);
                self.waiting[llc] -= 1;
                self.run(cpu, n, 0);
            }
            None => self.dispatch(cpu),
        }
    }

    /// A sleeping thread's virtual time becomes relative to its last CPU's minimum now (`migrate_task_rq_fair`): what others
    /// have run there while it slept counts for it.
    pub(super) fn lift(&mut self, t: Tid) {
        let cpu = self.threads[t as usize].cpu;
        if let Some(curr) = self.cpus[cpu as usize].curr {
            self.progress(curr);
        }
        self.update_min(cpu);
        self.threads[t as usize].vr -= self.cpus[cpu as usize].min_vr;
    }

    /// Puts a sleeping or moved thread, whose virtual time is relative, on a CPU: runs it if idle, else queues it, preempting if
    /// it is far behind.
    pub(super) fn place(&mut self, t: Tid, cpu: u32, woken: bool) {
        let credit = -((self.rules.latency / 2) as i64);
        if self.cpus[cpu as usize].curr.is_none() {
            let min = self.cpus[cpu as usize].min_vr;
            let th = &mut self.threads[t as usize];
            th.vr = min + th.vr.max(credit);
            self.cpus[cpu as usize].min_vr = self.threads[t as usize].vr.max(min);
            return self.run(cpu, t, 0);
        }
        let curr = self.cpus[cpu as usize].curr.expect("busy");
        self.progress(curr);
        self.update_min(cpu);
        let min = self.cpus[cpu as usize].min_vr;
        let th = &mut self.threads[t as usize];
        th.vr = min + if woken { th.vr.max(credit) } else { th.vr };
        th.state = Tstate::Queued;
        if th.cpu != cpu {
            th.migrations += 1;
            th.cpu = cpu;
        }
        let behind = self.threads[curr as usize].vr - self.threads[t as usize].vr;
        self.cpus[cpu as usize].queue.push(t);
        let llc = self.llc_of(cpu);
        self.waiting[llc] += 1;
        if woken && behind > self.rules.wakeup_gran as i64 {
            self.preempt(cpu);
        } else if self.cpus[cpu as usize].queue.len() == 1 {
            self.arm_slice(cpu);
        }
    }

    /// Takes a queued thread off its queue; its virtual time becomes relative.
    fn unqueue(&mut self, cpu: u32, i: usize) -> Tid {
        self.update_min(cpu);
        let t = self.cpus[cpu as usize].queue.swap_remove(i);
        self.threads[t as usize].vr -= self.cpus[cpu as usize].min_vr;
        let llc = self.llc_of(cpu);
        self.waiting[llc] -= 1;
        t
    }

    /// A CPU goes away: what ran or waited there goes elsewhere, whatever its mask says if nothing of it is left.
    pub(crate) fn cpu_down(&mut self, cpu: u32) {
        self.cpus[cpu as usize].online = false;
        let mut moved = Vec::new();
        if let Some(t) = self.cpus[cpu as usize].curr {
            self.progress(t);
            self.update_min(cpu);
            let min = self.cpus[cpu as usize].min_vr;
            let th = &mut self.threads[t as usize];
            th.vr -= min;
            th.state = Tstate::Sleeping;
            th.burst = th.burst.wrapping_add(1);
            self.cpus[cpu as usize].curr = None;
            self.cpus[cpu as usize].last = Some(t);
            self.became_idle(cpu);
            moved.push(t);
        }
        while !self.cpus[cpu as usize].queue.is_empty() {
            moved.push(self.unqueue(cpu, 0));
        }
        for t in moved {
            let to = self.fallback(t, cpu);
            self.place(t, to, false);
        }
    }

    pub(crate) fn cpu_up(&mut self, cpu: u32) {
        self.cpus[cpu as usize].online = true;
        self.cpus[cpu as usize].idle_since = self.now;
        if self.rules.newidle {
            self.newidle(cpu);
        }
    }

    /// Changes the CPUs a thread may use; it moves if it has to.
    pub(crate) fn set_mask(&mut self, t: Tid, mask: Arc<CpuSet>) {
        self.threads[t as usize].mask = mask;
        let cpu = self.threads[t as usize].cpu;
        if self.allowed(t, cpu) {
            return;
        }
        match self.threads[t as usize].state {
            Tstate::Running => {
                self.progress(t);
                self.update_min(cpu);
                let min = self.cpus[cpu as usize].min_vr;
                let th = &mut self.threads[t as usize];
                th.vr -= min;
                th.burst = th.burst.wrapping_add(1);
                th.state = Tstate::Sleeping;
                self.cpus[cpu as usize].curr = None;
                self.cpus[cpu as usize].last = Some(t);
                self.dispatch(cpu);
                let to = self.fallback(t, cpu);
                self.place(t, to, false);
            }
            Tstate::Queued => {
                let i = self.cpus[cpu as usize].queue.iter().position(|&x| x == t);
                let t = self.unqueue(cpu, i.expect("a queued thread is in its CPU's queue"));
                let to = self.fallback(t, cpu);
                self.place(t, to, false);
            }
            Tstate::Sleeping | Tstate::Dead => {}
        }
    }

    /// An interrupt takes so much of a CPU from whatever runs there.
    pub(crate) fn interrupt(&mut self, cpu: u32, ns: u64) {
        if let Some(t) = self.cpus[cpu as usize].curr {
            self.progress(t);
            let th = &mut self.threads[t as usize];
            th.left += ns as f64 * th.speed;
            self.schedule_end(t);
        }
    }

    /// Who runs and waits where, for messages.
    pub(crate) fn picture(&self) -> String {
        let mut s = String::new();
        for (i, c) in self.cpus.iter().enumerate() {
            s += &format!("\n  CPU {i} online {} {:?} {:?}", c.online, c.curr, c.queue);
        }
        for (i, t) in self.threads.iter().enumerate() {
            s += &format!(
                "\n  thread {i} {:?} on {} of {}",
                t.state,
                t.cpu,
                t.mask.list()
            );
        }
        s
    }

    /// For how long a CPU has been idle without a break; 0 if it is not.
    pub(crate) fn idle_for(&self, cpu: u32) -> u64 {
        let c = &self.cpus[cpu as usize];
        if c.is_idle() {
            self.now.saturating_sub(c.idle_since)
        } else {
            0
        }
    }

    /// CPU time used by a CPU so far.
    pub(crate) fn busy_ns(&self, cpu: u32) -> u64 {
        let c = &self.cpus[cpu as usize];
        let open = if c.curr.is_some() && c.busy_since != u64::MAX {
            self.now.saturating_sub(c.busy_since)
        } else {
            0
        };
        c.busy_ns + open
    }

    /// A request becomes a step of its own, later.
    pub(crate) fn later(&mut self, req: Req, delay: u64) {
        let i = match self.free_steps.pop() {
            Some(i) => {
                self.steps[i as usize] = Some(req);
                i
            }
            None => {
                self.steps.push(Some(req));
                self.steps.len() as u32 - 1
            }
        };
        self.ev.push(self.now + delay, Ev::Step(i));
    }

    pub(crate) fn take_step(&mut self, i: u32) -> Req {
        self.free_steps.push(i);
        self.steps[i as usize].take().expect("a step is taken once")
    }
}
