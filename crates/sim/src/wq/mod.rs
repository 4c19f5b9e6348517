//! The workqueues of a simulated machine: the same sequences of steps over `cmwq-policy` that the runtime carries out.
//!
//! In a plain run a step is carried out at once, as the runtime does when nobody is in its way. In a fault run each step
//! waits for a random while, so that steps of different operations interleave freely.

mod delayed;
mod setup;
mod steps;
mod worker;

pub(crate) use setup::QueueSpec;

use crate::os::{Os, Tid};
use cmwq_policy::flush::Flush;
use cmwq_policy::help::Neighbour;
use cmwq_policy::near::Way;
use cmwq_policy::pool::{BirthReason, Driver, EntryId, Pool, PwqId, PwqTag, Taken, Time, WorkerId};
use cmwq_policy::slot::{Slot, SlotDriver};
use cmwq_policy::timer::{TimerId, TimerWheel};
use cmwq_topology::CpuSet;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// An item of the simulated load.
pub(crate) type ItemId = u32;

/// A step that somebody owes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Req {
    Wake(u32, WorkerId, u32),
    Create(u32),
    Ask(PwqTag),
    GiveBack(PwqTag, u32),
    Grant(PwqTag, u32, u32),
    Sweep(PwqTag),
    Flushed(PwqTag, u8),
    ArmPwq(PwqTag, u8, u8),
    Barrier(u32),
    Drained(PwqTag),
    Leave(PwqTag, u32),
    Mayday(PwqTag),
    /// Items of this pool wait too long, or will (ns): a helper is to be called.
    Offer(u32, u64),
}

/// One step of what an item does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Phase {
    /// Uses a CPU, ns at full speed.
    Burn(u64),
    /// Sleeps, ns.
    Sleep(u64),
    /// Waits until another item is over.
    Await(ItemId),
    /// The same for an item of the waiting one's own queue, whose permit serves for others meanwhile. Skipped where permits are
    /// not lent (ordered queues, the kernel's way).
    AwaitOwn(ItemId),
    /// Holds a lock that all such items of the run share, ns.
    Locked(u64),
    /// Does what this server has to do, until it has nothing more.
    Drain(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truth {
    Idle,
    Pending(u32, EntryId),
}

/// What is true of an item, whatever the policy thinks.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) queue: u32,
    pub(crate) oneshot: bool,
    pub(crate) truth: Truth,
    pub(crate) running: u32,
    pub(crate) last_pool: u32,
    pub(crate) accepted: u32,
    pub(crate) ended: u32,
    pub(crate) cancelled: u32,
    pub(crate) phases: Vec<Phase>,
    /// The payload, and the CPU that touched it last.
    pub(crate) bytes: u32,
    pub(crate) data_cpu: u32,
    /// Queues itself again this often.
    pub(crate) requeue: u32,
    pub(crate) queued_at: u64,
    /// When a run of it ended last.
    pub(crate) ended_at: u64,
    pub(crate) issuer_cpu: u32,
    /// Threads that wait for it.
    pub(crate) waiters: Vec<Tid>,
    /// It waits with its permit lent: the pool, the entry, the link.
    pub(crate) lent: Option<(u32, EntryId, u32)>,
    /// Its timer and when that is due.
    pub(crate) timer: Option<(TimerId, u64)>,
}

impl Item {
    /// A one-shot item of this queue that does nothing yet.
    pub(crate) fn of(queue: u32) -> Item {
        Item {
            queue,
            oneshot: true,
            truth: Truth::Idle,
            running: 0,
            last_pool: u32::MAX,
            accepted: 0,
            ended: 0,
            cancelled: 0,
            phases: Vec::new(),
            bytes: 0,
            data_cpu: 0,
            requeue: 0,
            queued_at: 0,
            ended_at: 0,
            issuer_cpu: 0,
            waiters: Vec::new(),
            lent: None,
            timer: None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<Taken<ItemId>>,
    pub(crate) claimed: u32,
    pub(crate) stopped: bool,
    pub(crate) starts: Vec<Time>,
    pub(crate) running: bool,
    pub(crate) phase: u32,
    /// The issuer's CPU if this worker is kept beside it, how and when it was woken for an item that found the pool at rest, and
    /// whether its last item was short with nothing behind it (`cmwq_policy::near`).
    pub(crate) beside: Option<u32>,
    pub(crate) woken: Option<(Way, Time)>,
    pub(crate) brief: bool,
}

/// The time a pool's lock is taken until, and who had it last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lock {
    pub(crate) free_at: u64,
    pub(crate) last_cpu: u32,
}

/// A value that remembers whether somebody could have changed it.
pub(crate) struct Watched<T> {
    value: T,
    touched: bool,
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Watched {
            value,
            touched: true,
        }
    }

    /// Whether it may have changed since this was asked last.
    pub(crate) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }
}

impl<T> std::ops::Deref for Watched<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> std::ops::DerefMut for Watched<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.touched = true;
        &mut self.value
    }
}

pub(crate) struct PoolSt {
    pub(crate) pool: Watched<Pool<ItemId, u32>>,
    pub(crate) cpus: Vec<u32>,
    pub(crate) set: CpuSet,
    pub(crate) node: u32,
    pub(crate) mask: Arc<CpuSet>,
    pub(crate) strict: bool,
    pub(crate) localize: bool,
    /// Managed as ours: helpers come and go.
    pub(crate) helped: bool,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) lock: Lock,
    pub(crate) threads: Vec<Tid>,
    pub(crate) batches: Vec<Batch>,
    pub(crate) cursor: u32,
    pub(crate) repatriated: u64,
    pub(crate) helps: u64,
    pub(crate) offers: u64,
    /// The pool that called last, and whether it lies on another node.
    pub(crate) called_by: Option<(u32, bool)>,
    /// A helper that was called here found its CPU busy: none is called until then.
    pub(crate) vain_until: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) queue: u32,
    pub(crate) pool: u32,
    pub(crate) id: Option<PwqId>,
    pub(crate) slot: u32,
    pub(crate) leased: bool,
    pub(crate) plugged: bool,
    /// So many of its items took back the permit that they had lent since it last had one to spare.
    pub(crate) taken_back: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    PerCpu,
    Ordered,
    Unbound,
}

pub(crate) struct QueueSt {
    pub(crate) kind: Kind,
    pub(crate) max: u32,
    pub(crate) slots: Vec<Slot>,
    /// Per CPU the current pwq.
    pub(crate) table: Vec<u32>,
    pub(crate) flush: Flush<u32>,
    pub(crate) arming: u32,
    pub(crate) arming_colour: u8,
    pub(crate) frozen: bool,
    pub(crate) draining: bool,
    pub(crate) order: VecDeque<ItemId>,
    pub(crate) spec: QueueSpec,
    pub(crate) rescuer: Option<Tid>,
    pub(crate) mayday: VecDeque<PwqTag>,
}

/// What a thread is to the workqueues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Role {
    /// Load: the n-th issuer.
    Issuer(u32),
    /// Load: a server's thread.
    Server(u32),
    /// A worker of a pool, and where it helps now (and whether that is on another node).
    Worker {
        pool: u32,
        id: WorkerId,
        away: Option<(u32, WorkerId, bool)>,
    },
    /// A queue's rescuer.
    Rescuer {
        queue: u32,
        at: Option<(PwqTag, WorkerId)>,
    },
}

pub(crate) struct Wq {
    pub(crate) pools: Vec<PoolSt>,
    pub(crate) queues: Vec<QueueSt>,
    pub(crate) links: Vec<Link>,
    pub(crate) items: Vec<Item>,
    pub(crate) todo: VecDeque<Req>,
    pub(crate) hedge_ns: u64,
    /// Delayed items.
    pub(crate) timers: TimerWheel<ItemId>,
    /// For which expiry the wheel is to be looked at, and when somebody does; `u64::MAX`: not at all.
    pub(crate) timers_due: u64,
    pub(crate) timers_look: u64,
    /// What flushers waited for: their number, the items outstanding then.
    pub(crate) flushers: HashMap<u32, Vec<(ItemId, u32)>>,
    pub(crate) next_flusher: u32,
}

/// The driver side of one pool.
pub(crate) struct Drv<'a> {
    pub(crate) pool: u32,
    pub(crate) cpu: u32,
    pub(crate) todo: &'a mut VecDeque<Req>,
    pub(crate) batches: &'a mut Vec<Batch>,
    pub(crate) queues: &'a [QueueSt],
    pub(crate) links: &'a [Link],
}

impl Driver<u32> for Drv<'_> {
    #[inline]
    fn wake(&mut self, worker: WorkerId) {
        self.todo.push_back(Req::Wake(self.pool, worker, self.cpu));
    }
    fn create(&mut self, _reason: BirthReason) {
        self.todo.push_back(Req::Create(self.pool));
    }
    fn barrier(&mut self, waiter: u32) {
        self.todo.push_back(Req::Barrier(waiter));
    }
    fn flushed(&mut self, pwq: PwqTag, colour: u8) {
        self.todo.push_back(Req::Flushed(pwq, colour));
    }
    fn ask(&mut self, pwq: PwqTag) {
        self.todo.push_back(Req::Ask(pwq));
    }
    fn give_back(&mut self, pwq: PwqTag, n: u32) {
        self.todo.push_back(Req::GiveBack(pwq, n));
    }
    fn drained(&mut self, pwq: PwqTag) {
        self.todo.push_back(Req::Drained(pwq));
    }
    fn mayday(&mut self, pwq: PwqTag) {
        self.todo.push_back(Req::Mayday(pwq));
    }
    #[inline]
    fn contended(&self, pwq: PwqTag) -> bool {
        let l = &self.links[pwq as usize];
        l.leased
            && self.queues[l.queue as usize].slots[l.slot as usize]
                .contention()
                .for_pwq(pwq)
    }
    #[inline]
    fn claimed(&self, worker: WorkerId) -> u32 {
        self.batches[worker as usize].claimed
    }
    #[inline]
    fn recall(&mut self, worker: WorkerId) -> u32 {
        let b = &mut self.batches[worker as usize];
        b.stopped = true;
        b.claimed
    }
    #[inline]
    fn start_stamp(&self, worker: WorkerId, i: u32) -> Time {
        self.batches[worker as usize].starts[i as usize]
    }
}

pub(crate) struct SlotDrv<'a>(pub(crate) &'a mut VecDeque<Req>);

impl SlotDriver for SlotDrv<'_> {
    fn grant(&mut self, pwq: PwqTag, n: u32, keep: u32) {
        self.0.push_back(Req::Grant(pwq, n, keep));
    }
    fn sweep(&mut self, pwq: PwqTag) {
        self.0.push_back(Req::Sweep(pwq));
    }
}

impl Wq {
    /// Calls the pool's policy with its driver.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        p: u32,
        cpu: u32,
        f: impl FnOnce(&mut Pool<ItemId, u32>, &mut Drv) -> R,
    ) -> R {
        let st = &mut self.pools[p as usize];
        let mut drv = Drv {
            pool: p,
            cpu,
            todo: &mut self.todo,
            batches: &mut st.batches,
            queues: &self.queues,
            links: &self.links,
        };
        f(&mut st.pool, &mut drv)
    }

    /// Whether instance `n` of an item is over.
    pub(crate) fn over(&self, item: ItemId, n: u32) -> bool {
        let it = &self.items[item as usize];
        it.ended + it.cancelled > n
    }

    /// Items of a queue that were accepted and are not over.
    pub(crate) fn outstanding(&self, q: u32) -> Vec<(ItemId, u32)> {
        let mut all = Vec::new();
        for (i, it) in self
            .items
            .iter()
            .enumerate()
            .filter(|(_, it)| it.queue == q)
        {
            all.extend((it.ended + it.cancelled..it.accepted).map(|n| (i as ItemId, n)));
        }
        all
    }
}

/// Takes a pool's lock: how long until it is free again for the caller, holding included.
pub(crate) fn lock_cost(os: &Os, lock: &mut Lock, cpu: u32) -> u64 {
    let costs = &os.m.costs;
    let hold = costs.lock_hold + costs.lines(os.m.near(lock.last_cpu, cpu), costs.lock_lines);
    let start = lock.free_at.max(os.now);
    lock.free_at = start + hold;
    lock.last_cpu = cpu;
    lock.free_at - os.now
}
