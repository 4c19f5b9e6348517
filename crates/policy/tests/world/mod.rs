//! A plain reference model around the policy: queues over pools, workers that race, requests carried out in any order.
//!
//! Nothing here knows how the policy works inside. The world knows the truth about items (accepted, running, ended) and
//! checks after every step what must hold whatever the order of the steps was.
#![allow(dead_code, reason = "each test binary uses its own part")]

mod end;
mod ops;
mod steps;

use cmwq_policy::flush::Flush;
use cmwq_policy::pool::{
    BirthReason, Driver, EntryId, Pool, PoolConfig, PoolKind, PwqConfig, PwqFlags, PwqId, PwqTag,
    Taken, Time, WorkerId,
};
use cmwq_policy::slot::{Contention, Slot, SlotDriver};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use ops::Op;

/// A step that somebody owes; carried out in any order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Req {
    Wake(usize, WorkerId),
    Create(usize),
    Ask(PwqTag),
    GiveBack(PwqTag, u32),
    Grant(PwqTag, u32, u32),
    Sweep(PwqTag),
    Flushed(PwqTag, u8),
    ArmPwq(PwqTag, u8, u8),
    Barrier(u32),
    Drained(PwqTag),
    /// The pwq was unlinked with so many permits.
    Leave(PwqTag, u32),
    Mayday(PwqTag),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truth {
    Idle,
    /// Linked in (pool, entry).
    Pending(usize, EntryId),
}

#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) oneshot: bool,
    pub(crate) queue: usize,
    pub(crate) truth: Truth,
    /// How many times its function runs now.
    pub(crate) running: u32,
    pub(crate) last_pool: Option<usize>,
    pub(crate) accepted: u32,
    pub(crate) ended: u32,
    pub(crate) cancelled: u32,
}

/// What a worker took and how far it got.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<Taken<u32>>,
    pub(crate) claimed: u32,
    pub(crate) stopped: bool,
    pub(crate) starts: Vec<Time>,
    /// Whether the item claimed last still runs.
    pub(crate) running: bool,
    /// An attached worker of this pwq (rescuer) or helper.
    pub(crate) attached: Option<Option<PwqTag>>,
    pub(crate) asleep: bool,
}

pub(crate) struct Queue {
    pub(crate) kind: Kind,
    pub(crate) max: u32,
    pub(crate) slots: BTreeMap<usize, Slot>,
    /// What `Driver::contended` says for each slot; may lag behind.
    pub(crate) hints: BTreeMap<usize, Contention>,
    /// The limit was lowered and more was out at that time.
    pub(crate) lowered: BTreeSet<usize>,
    pub(crate) flush: Flush<u32>,
    pub(crate) arming: u32,
    pub(crate) arming_colour: u8,
    pub(crate) frozen: bool,
    pub(crate) draining: bool,
    /// The newest pwq for each pool.
    pub(crate) current: BTreeMap<usize, PwqTag>,
    /// Items of an ordered queue in the order of queueing.
    pub(crate) order: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    PerCpu,
    Ordered,
    Unbound,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) queue: usize,
    pub(crate) pool: usize,
    pub(crate) id: Option<PwqId>,
    pub(crate) node: usize,
    pub(crate) leased: bool,
    pub(crate) plugged: bool,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) pools: Vec<Pool<u32, u32>>,
    pub(crate) nodes: Vec<usize>,
    pub(crate) workers: Vec<HashMap<WorkerId, Batch>>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) links: Vec<Link>,
    pub(crate) items: Vec<Item>,
    pub(crate) todo: Vec<Req>,
    /// Inline runs: (pool, entry, item, lent).
    pub(crate) inline: Vec<(usize, EntryId, u32, bool)>,
    pub(crate) flushers: HashMap<u32, BTreeSet<(u32, u32)>>,
    /// Who waits for which instance, and how often the item had been taken out by then.
    pub(crate) barriers: HashMap<u32, ((u32, u32), u32)>,
    pub(crate) next_waiter: u32,
    pub(crate) lag: bool,
    pub(crate) create_fails: bool,
    pub(crate) log: Vec<String>,
}

/// What a pool says goes to the list of things to do.
pub(crate) struct Drv<'a> {
    pub(crate) pool: usize,
    pub(crate) todo: &'a mut Vec<Req>,
    pub(crate) workers: &'a mut HashMap<WorkerId, Batch>,
    pub(crate) queues: &'a [Queue],
    pub(crate) links: &'a [Link],
}

impl Driver<u32> for Drv<'_> {
    fn wake(&mut self, worker: WorkerId) {
        self.todo.push(Req::Wake(self.pool, worker));
    }
    fn create(&mut self, _reason: BirthReason) {
        self.todo.push(Req::Create(self.pool));
    }
    fn barrier(&mut self, waiter: u32) {
        self.todo.push(Req::Barrier(waiter));
    }
    fn flushed(&mut self, pwq: PwqTag, colour: u8) {
        self.todo.push(Req::Flushed(pwq, colour));
    }
    fn ask(&mut self, pwq: PwqTag) {
        self.todo.push(Req::Ask(pwq));
    }
    fn give_back(&mut self, pwq: PwqTag, n: u32) {
        assert!(n > 0, "nothing is not handed back");
        self.todo.push(Req::GiveBack(pwq, n));
    }
    fn drained(&mut self, pwq: PwqTag) {
        self.todo.push(Req::Drained(pwq));
    }
    fn mayday(&mut self, pwq: PwqTag) {
        self.todo.push(Req::Mayday(pwq));
    }
    fn contended(&self, pwq: PwqTag) -> bool {
        let l = &self.links[pwq as usize];
        self.queues[l.queue]
            .hints
            .get(&l.node)
            .is_some_and(|c| c.for_pwq(pwq))
    }
    fn claimed(&self, worker: WorkerId) -> u32 {
        self.workers[&worker].claimed
    }
    fn recall(&mut self, worker: WorkerId) -> u32 {
        let b = self.workers.get_mut(&worker).expect("worker is known");
        b.stopped = true;
        b.claimed
    }
    fn start_stamp(&self, worker: WorkerId, i: u32) -> Time {
        self.workers[&worker].starts[i as usize]
    }
}

pub(crate) struct SlotDrv<'a>(pub(crate) &'a mut Vec<Req>);

impl SlotDriver for SlotDrv<'_> {
    fn grant(&mut self, pwq: PwqTag, n: u32, keep: u32) {
        self.0.push(Req::Grant(pwq, n, keep));
    }
    fn sweep(&mut self, pwq: PwqTag) {
        self.0.push(Req::Sweep(pwq));
    }
}

/// Splits the borrow of one pool and its driver.
#[macro_export]
macro_rules! split {
    ($w:expr, $p:expr) => {{
        let w = &mut *$w;
        (
            &mut w.pools[$p],
            $crate::world::Drv {
                pool: $p,
                todo: &mut w.todo,
                workers: &mut w.workers[$p],
                queues: &w.queues,
                links: &w.links,
            },
        )
    }};
}

/// What a run starts from.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) targets: [u32; 3],
    pub(crate) max: [u32; 3],
    pub(crate) percpu_limit: u32,
    pub(crate) intensive: bool,
    pub(crate) reserve: bool,
    pub(crate) lag: bool,
    pub(crate) create_fails: bool,
    pub(crate) max_workers: u32,
}

pub(crate) const POOLS: usize = 5;

impl World {
    pub(crate) fn new(s: &Setup) -> World {
        let cfg = |kind, target| PoolConfig {
            kind,
            target,
            max_workers: s.max_workers,
            reserve: s.reserve,
            hog_extra: target,
            ..PoolConfig::default()
        };
        let pools = vec![
            Pool::new(cfg(PoolKind::Unbound, s.targets[0])),
            Pool::new(cfg(PoolKind::Unbound, s.targets[1])),
            Pool::new(cfg(PoolKind::Unbound, s.targets[2])),
            Pool::new(cfg(PoolKind::PerCpu, 1)),
            Pool::new(cfg(PoolKind::Unmanaged, 1)),
        ];
        let mut w = World {
            now: 1_000_000,
            workers: (0..POOLS).map(|_| HashMap::new()).collect(),
            nodes: vec![0, 0, 1, 0, 1],
            pools,
            queues: Vec::new(),
            links: Vec::new(),
            items: Vec::new(),
            todo: Vec::new(),
            inline: Vec::new(),
            flushers: HashMap::new(),
            barriers: HashMap::new(),
            next_waiter: 0,
            lag: s.lag,
            create_fails: s.create_fails,
            log: Vec::new(),
        };
        let plain = PwqFlags {
            helpable: true,
            ..Default::default()
        };
        let rescued = PwqFlags {
            guaranteed: true,
            helpable: true,
            ..Default::default()
        };
        let intensive = PwqFlags {
            cpu_intensive: s.intensive,
            ..Default::default()
        };
        w.add_queue(Kind::Unbound, s.max[0], &[0, 1, 2], rescued);
        w.add_queue(Kind::Unbound, s.max[1], &[0, 1], plain);
        w.add_queue(Kind::PerCpu, s.percpu_limit, &[3], intensive);
        w.add_queue(Kind::Ordered, 1, &[0], PwqFlags::default());
        w.add_queue(Kind::Unbound, s.max[2], &[4, 2], PwqFlags::default());
        for q in 0..w.queues.len() {
            for _ in 0..3 {
                w.add_item(q, false);
            }
        }
        w
    }

    fn add_queue(&mut self, kind: Kind, max: u32, pools: &[usize], flags: PwqFlags) {
        let q = self.queues.len();
        let mut slots = BTreeMap::new();
        let mut hints = BTreeMap::new();
        if kind == Kind::Unbound {
            for &p in pools {
                slots.insert(self.nodes[p], Slot::new(max));
                hints.insert(self.nodes[p], Contention::Nobody);
            }
        }
        self.queues.push(Queue {
            kind,
            max,
            slots,
            hints,
            lowered: BTreeSet::new(),
            flush: Flush::default(),
            arming: 0,
            arming_colour: 0,
            frozen: false,
            draining: false,
            current: BTreeMap::new(),
            order: Vec::new(),
        });
        for &p in pools {
            self.link(q, p, flags);
        }
    }

    /// A new pwq of `q` in pool `p`; becomes the current one.
    pub(crate) fn link(&mut self, q: usize, p: usize, flags: PwqFlags) {
        let tag = self.links.len() as PwqTag;
        let queue = &mut self.queues[q];
        let leased = queue.kind == Kind::Unbound;
        let plugged = queue.kind == Kind::Ordered
            && self.links.iter().any(|l| l.queue == q && l.id.is_some());
        let limit = match queue.kind {
            Kind::PerCpu => queue.max,
            Kind::Ordered => u32::from(!plugged),
            Kind::Unbound => 0,
        };
        let id = self.pools[p].link_pwq(PwqConfig {
            tag,
            limit,
            leased,
            colour: queue.flush.colour(),
            flags,
            draining: queue.draining,
            frozen: false,
        });
        if let Some(s) = queue.slots.get_mut(&self.nodes[p]) {
            s.join(tag);
        }
        queue.current.insert(p, tag);
        self.links.push(Link {
            queue: q,
            pool: p,
            id: Some(id),
            node: self.nodes[p],
            leased,
            plugged,
        });
        if self.queues[q].frozen {
            let now = self.now;
            let (pool, mut d) = split!(self, p);
            pool.set_frozen(id, true, now, &mut d);
        }
    }

    pub(crate) fn add_item(&mut self, queue: usize, oneshot: bool) -> u32 {
        self.items.push(Item {
            oneshot,
            queue,
            truth: Truth::Idle,
            running: 0,
            last_pool: None,
            accepted: 0,
            ended: 0,
            cancelled: 0,
        });
        self.items.len() as u32 - 1
    }

    /// The items of a queue that were accepted and have not ended, with the number of the instance.
    pub(crate) fn outstanding(&self, q: usize) -> BTreeSet<(u32, u32)> {
        let mut all = BTreeSet::new();
        for (i, it) in self
            .items
            .iter()
            .enumerate()
            .filter(|(_, it)| it.queue == q)
        {
            for n in it.ended + it.cancelled..it.accepted {
                all.insert((i as u32, n));
            }
        }
        all
    }

    /// Whether instance `n` of an item has ended or was taken out.
    pub(crate) fn over(&self, (item, n): (u32, u32)) -> bool {
        let it = &self.items[item as usize];
        it.ended + it.cancelled > n
    }

    /// What must hold between any two steps.
    pub(crate) fn check(&self) {
        for p in &self.pools {
            p.check();
            let c = p.counts();
            if p.needs_more() && c.waking + c.running == 0 && c.creating == 0 && !self.create_fails
            {
                assert!(
                    c.own() >= p.config().max_workers || p.no_create_before() > 0,
                    "P5: items wait, a worker may run, and nobody is on the way or being made: {c:?} {:?}",
                    self.log
                );
            }
            let open = p.worklist().count() > 0 || self.batches_open(p);
            assert!(!open || p.wants_tick(), "a tick is wanted while items wait");
        }
        let mut running: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        let lent: Vec<u32> = self.inline.iter().filter(|x| x.3).map(|x| x.2).collect();
        for (p, ws) in self.workers.iter().enumerate() {
            for b in ws.values().filter(|b| b.running) {
                let item = b.items[b.claimed as usize - 1].item;
                let q = self.items[item as usize].queue;
                *running.entry((q, self.nodes[p])).or_default() += 1;
            }
        }
        for &(p, _, item, is_lent) in &self.inline {
            if !is_lent {
                let q = self.items[item as usize].queue;
                *running.entry((q, self.nodes[p])).or_default() += 1;
            }
        }
        for (i, it) in self.items.iter().enumerate() {
            assert!(
                it.running <= 1,
                "item {i} runs {} times at once",
                it.running
            );
            assert!(
                it.ended + it.cancelled <= it.accepted,
                "item {i} ended too often"
            );
        }
        for (qi, q) in self.queues.iter().enumerate() {
            for (&node, slot) in &q.slots {
                self.check_slot(
                    qi,
                    node,
                    slot,
                    running.get(&(qi, node)).copied().unwrap_or(0),
                );
            }
            if q.kind == Kind::Ordered && lent.is_empty() {
                let n: u32 = running
                    .iter()
                    .filter(|((x, _), _)| *x == qi)
                    .map(|(_, n)| n)
                    .sum();
                assert!(n <= 1, "an ordered queue runs one item at a time");
            }
            assert!(q.flush.waiting() > 0 || q.arming == 0 || !self.todo.is_empty());
        }
    }

    fn batches_open(&self, p: &Pool<u32, u32>) -> bool {
        let i = self.pools.iter().position(|x| std::ptr::eq(x, p)).unwrap();
        self.workers[i]
            .values()
            .any(|b| !b.stopped && (b.claimed as usize) < b.items.len())
    }

    fn check_slot(&self, q: usize, node: usize, slot: &Slot, running: u32) {
        let queue = &self.queues[q];
        let mine = |t: PwqTag| {
            let l = &self.links[t as usize];
            l.queue == q && l.node == node
        };
        let held: u32 = self
            .links
            .iter()
            .filter(|l| l.queue == q && l.node == node)
            .filter_map(|l| Some(self.pools[l.pool].pwq(l.id?).limit()))
            .sum();
        let moving: u32 = self
            .todo
            .iter()
            .map(|r| match *r {
                Req::Grant(t, n, _) | Req::GiveBack(t, n) | Req::Leave(t, n) if mine(t) => n,
                _ => 0,
            })
            .sum();
        assert_eq!(
            slot.leased(),
            held + moving,
            "permits of queue {q} on node {node}: none lost, none made up"
        );
        if !queue.lowered.contains(&node) {
            assert!(slot.leased() <= slot.max(), "S1: leased within the limit");
            assert!(
                running <= slot.max(),
                "queue {q} runs {running} of at most {}",
                slot.max()
            );
        }
        let settled = !self.todo.iter().any(|r| match *r {
            Req::Ask(t)
            | Req::GiveBack(t, _)
            | Req::Leave(t, _)
            | Req::Grant(t, ..)
            | Req::Sweep(t) => mine(t),
            _ => false,
        });
        if settled && slot.waiting() > 0 {
            let active: u32 = self
                .links
                .iter()
                .filter(|l| l.queue == q && l.node == node)
                .filter_map(|l| Some(self.pools[l.pool].pwq(l.id?).active()))
                .sum();
            assert!(
                active >= slot.max(),
                "S3: queue {q} has {active} active of {} while a pwq waits",
                slot.max()
            );
        }
    }
}
