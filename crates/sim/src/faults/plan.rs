//! A run made from a seed: the machine, the queues, the operations, and the end when everything must get through.

use super::Report;
use crate::cost::Costs;
use crate::machine::Machine;
use crate::os::{Ev, Rules, Tstate};
use crate::sim::{Disturb, Sim};
use crate::wq::{ItemId, Kind, QueueSpec};
use cmwq_policy::pool::PwqFlags;
use cmwq_topology::{AffinityScope, Topology};
use std::sync::Arc;

const SHAPES: [&str; 10] = [
    "core:1",
    "core:2",
    "core:4",
    "core:2 thread:2",
    "l3:2 core:2",
    "l3:2 core:2 thread:2",
    "l3:4 core:3 thread:2",
    "package:2 core:2",
    "package:2 l3:2 core:2",
    "package:2 l3:2 core:2 thread:2",
];

/// What an operation is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) at: u64,
    pub(crate) what: u8,
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) c: u32,
}

/// A fault run's own state.
pub(crate) struct Plan {
    pub(crate) specs: Vec<QueueSpec>,
    pub(crate) ops: Vec<Op>,
    /// Items that never wait for others: what others may wait for.
    pub(crate) leaves: Vec<ItemId>,
    /// Reusable items.
    pub(crate) reusable: Vec<ItemId>,
    /// Next runs of items that wait, whose permits are lent as well: pool, entry, link.
    pub(crate) next_lent: Vec<(u32, u32, u32)>,
    /// Items run by those who wait for them: pool, entry, item.
    pub(crate) inline: Vec<(u32, u32, ItemId)>,
    /// Blocking is always noticed and workers can always be made: then no CPU may idle while work waits.
    pub(crate) conserving: bool,
    pub(crate) down: Vec<u32>,
    pub(crate) ending: bool,
    pub(crate) violation_possible_since: u64,
    /// When the clock jumped last.
    pub(crate) jumped_at: u64,
    /// Operations that have not been carried out.
    pub(crate) left: u32,
}

fn rng_for(seed: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed ^ 0x05ee_d0ff_a017)
}

fn make_ops(rng: &mut fastrand::Rng) -> Vec<Op> {
    let n = rng.usize(20..160);
    let span = rng.u64(2_000_000..60_000_000);
    let mut ops: Vec<Op> = (0..n)
        .map(|_| Op {
            at: rng.u64(0..span),
            what: rng.u8(0..100),
            a: rng.u32(..),
            b: rng.u32(..),
            c: rng.u32(..),
        })
        .collect();
    ops.sort_by_key(|o| o.at);
    ops
}

impl Plan {
    /// How many operations the run of this seed has.
    pub(crate) fn operations(seed: u64) -> u32 {
        make_ops(&mut rng_for(seed)).len() as u32
    }

    /// What the operations of a seed's run are, one a line; for people who look into a failing one.
    pub(crate) fn describe(seed: u64, only: Option<&[u32]>) -> String {
        let mut s = String::new();
        for (i, op) in make_ops(&mut rng_for(seed)).iter().enumerate() {
            if only.is_none_or(|o| o.contains(&(i as u32))) {
                s += &format!("  {i}: at {} ns {:?}\n", op.at, op);
            }
        }
        s
    }

    /// The run of this seed, cut to some of its operations.
    pub(crate) fn build(seed: u64, only: Option<&[u32]>) -> Sim {
        let mut rng = rng_for(seed);
        let ops = make_ops(&mut rng);
        let shape = SHAPES[rng.usize(0..SHAPES.len())];
        let topology = Topology::synthetic(shape).expect("the shapes are valid");
        let m = Arc::new(Machine::new(shape, topology, Costs::default()));
        let rules = Rules {
            sis_node: rng.bool(),
            newidle: rng.u8(0..4) > 0,
            periodic: true,
            // An attentive system: what waits longer than its ticks explain is the policy's fault.
            domain_interval: 0,
            ..Rules::default()
        };
        let mut sim = Sim::new(m, rules, seed);
        let conserving = rng.u8(0..3) == 0;
        sim.disturb = Some(Disturb {
            step_ns: [0, 2_000, 50_000, 400_000][rng.usize(0..4)],
            noticed: if conserving {
                100
            } else {
                [100, 80, 0][rng.usize(0..3)]
            },
            no_worker: if conserving {
                0
            } else {
                [0, 0, 30, 90][rng.usize(0..4)]
            },
        });
        let mut specs = Vec::new();
        for _ in 0..rng.usize(2..5) {
            specs.push(Plan::spec(&mut rng));
        }
        for s in &specs {
            sim.add_queue(s);
        }
        let mut plan = Plan {
            specs,
            leaves: Vec::new(),
            reusable: Vec::new(),
            next_lent: Vec::new(),
            inline: Vec::new(),
            conserving,
            down: Vec::new(),
            ending: false,
            violation_possible_since: 0,
            jumped_at: 0,
            left: 0,
            ops,
        };
        for q in 0..plan.specs.len() as u32 {
            for _ in 0..2 {
                let item = Plan::new_item(&mut sim, q, false);
                plan.reusable.push(item);
            }
        }
        for i in 0..plan.ops.len() as u32 {
            if only.is_none_or(|o| o.contains(&i)) {
                sim.os.ev.push(plan.ops[i as usize].at, Ev::Act(i));
                plan.left += 1;
            }
        }
        sim.load.plan = Some(Box::new(plan));
        sim.arm_ticks();
        sim
    }

    pub(crate) fn spec(rng: &mut fastrand::Rng) -> QueueSpec {
        let kind = [
            Kind::Unbound,
            Kind::Unbound,
            Kind::Unbound,
            Kind::PerCpu,
            Kind::Ordered,
        ][rng.usize(0..5)];
        let scope = match kind {
            Kind::PerCpu => AffinityScope::Cpu,
            _ => [
                AffinityScope::Cpu,
                AffinityScope::Smt,
                AffinityScope::CacheShard,
                AffinityScope::Cache,
                AffinityScope::Numa,
                AffinityScope::System,
            ][rng.usize(0..6)],
        };
        QueueSpec {
            kind,
            scope,
            strict: rng.u8(0..3) == 0,
            localize: rng.u8(0..5) == 0,
            kernel: kind != Kind::PerCpu && rng.u8(0..3) == 0,
            max_active: [1, 2, 3, 8, 16, 100, 0][rng.usize(0..7)],
            flags: PwqFlags {
                guaranteed: rng.u8(0..3) == 0,
                cpu_intensive: kind == Kind::PerCpu && rng.u8(0..4) == 0,
                helpable: false,
            },
            reserve: rng.bool(),
            max_workers: u32::MAX,
        }
    }
}

impl Sim {
    /// Runs to the end.
    ///
    /// # Panics
    /// With the name of the broken invariant.
    pub(crate) fn run_plan(&mut self) -> Report {
        let last = self
            .load
            .plan
            .as_ref()
            .map_or(0, |p| p.ops.last().map_or(0, |o| o.at));
        let mut trace = 0xcbf2_9ce4_8422_2325_u64;
        let mut quiet_after = 0;
        loop {
            let before = self.os.now;
            self.step();
            self.check_all();
            trace = (trace ^ self.os.now ^ (self.stats.started << 32) ^ self.stats.ended)
                .wrapping_mul(0x100_0000_01b3);
            let plan = self.load.plan.as_ref().expect("a plan");
            if plan.left == 0 && !plan.ending {
                self.begin_end();
                quiet_after = self.os.now;
            }
            if self.load.plan.as_ref().expect("a plan").ending && self.all_over() {
                break;
            }
            assert!(
                self.os.now < last.max(quiet_after) + 300_000_000_000,
                "items are left and nothing moves: {}",
                self.left()
            );
            debug_assert!(self.os.now >= before);
        }
        // Steps that are still owed, and workers that go to sleep.
        let end = self.os.now + 5_000_000_000;
        while self.os.now < end && !self.all_rest() {
            self.step();
            self.check_all();
        }
        self.check_end();
        Report {
            events: self.stats.events,
            items: self.stats.ended,
            virtual_ns: self.os.now,
            trace,
        }
    }

    /// From now on nothing goes wrong any more, and everything accepted must end.
    fn begin_end(&mut self) {
        self.disturb = Some(Disturb {
            step_ns: 0,
            noticed: 100,
            no_worker: 0,
        });
        let mut plan = self.load.plan.take().expect("a plan");
        plan.ending = true;
        for cpu in std::mem::take(&mut plan.down) {
            self.cpu_comes(cpu);
        }
        for q in 0..self.wq.queues.len() as u32 {
            self.freeze(q, false);
            self.drain(q, false);
        }
        for (p, e, item) in std::mem::take(&mut plan.inline) {
            self.inline_ends(p, e, item);
        }
        self.load.plan = Some(plan);
        self.run_todo();
    }

    fn all_over(&self) -> bool {
        self.stats.accepted_over() && self.wq.flushers.is_empty() && self.wq.timers.is_empty()
    }

    fn all_rest(&self) -> bool {
        self.os.steps.iter().all(Option::is_none)
            && self
                .os
                .threads
                .iter()
                .all(|t| !matches!(t.state, Tstate::Running | Tstate::Queued))
            && self.wq.pools.iter().all(|p| p.pool.counts().creating == 0)
    }

    fn left(&self) -> String {
        let mut s = format!("{:?} ", self.stats);
        for (i, it) in self.wq.items.iter().enumerate() {
            if it.ended + it.cancelled < it.accepted {
                s += &format!(
                    "\n  item {i} of queue {} {:?} running {} {:?}",
                    it.queue, it.truth, it.running, it.phases
                );
            }
        }
        for (i, p) in self.wq.pools.iter().enumerate() {
            if p.pool.entries() > 0 {
                s += &format!(
                    "\n  pool {i} {:?} {:?} waiting {} limit {}",
                    p.pool.config().kind,
                    p.pool.counts(),
                    p.pool.waiting(),
                    p.pool.limit_now()
                );
                for (_, q) in p.pool.pwqs() {
                    s += &format!(
                        "\n    pwq {} active {} limit {} inactive {} asking {}",
                        q.tag,
                        q.active(),
                        q.limit(),
                        q.inactive_len(),
                        q.is_asking()
                    );
                }
            }
        }
        s
    }
}
