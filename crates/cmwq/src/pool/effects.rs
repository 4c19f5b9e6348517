//! Carries out what the policy asks for.
//!
//! Under a pool's lock the policy calls [`Driver`], which only takes notes. After the lock was dropped, wake-ups and
//! barriers of this pool are done first; what concerns another lock becomes a [`Todo`] and is worked off one by one, so that
//! no two locks of these are ever held together and no chain of requests recurses.

use super::{RtPool, WorkerShared, link_arc, link_of};
use crate::completion::Completion;
use crate::control::probe::{self, Named};
use crate::item::ItemPtr;
use crate::runtime::{RtInner, TimeSource};
use crate::sys::parker::WakeToken;
use crate::workqueue::PwqLink;
use cmwq_policy::near::Way;
use cmwq_policy::pool::{BirthReason, Driver as PolicyDriver, Offer, PwqTag, Time, WorkerId};
use cmwq_topology::CpuSet;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A step that needs another lock.
pub(crate) enum Todo {
    /// Ask the pwq's slot for permits.
    Ask(Arc<PwqLink>),
    /// Give permits back to the pwq's slot.
    GiveBack(Arc<PwqLink>, u32),
    /// Grant permits to the pwq.
    Grant(Arc<PwqLink>, u32, u32),
    /// Take the pwq's spare permits for its slot.
    Sweep(Arc<PwqLink>),
    /// A colour of the pwq is flushed.
    Flushed(Arc<PwqLink>, u8),
    /// The retiring pwq is empty.
    Drained(Arc<PwqLink>),
    /// The rescuer is wanted for the pwq.
    Mayday(Arc<PwqLink>),
    /// An item became active, and somebody wants to know.
    Activated(Named, Arc<PwqLink>),
    /// Items of the pwq have waited too long for their pod, or will: call helpers.
    Offer(Arc<PwqLink>, Offer),
}

/// Takes the policy's notes under the pool's lock.
pub(crate) struct Driver<'a> {
    workers: &'a [Option<Arc<WorkerShared>>],
    time: &'a TimeSource,
    /// Where roaming workers are to wake up.
    home: Option<&'a CpuSet>,
    /// The last reading of the clock, 0 if there was none.
    stamp: Cell<Time>,
    effects: Effects,
    todo: &'a mut Vec<Todo>,
}

/// What to do for this pool after its lock was dropped.
#[derive(Default)]
pub(crate) struct Effects {
    /// Who is to be woken first, and where it is wanted.
    wake: Option<(&'static WorkerShared, WakeToken)>,
    wanted_on: Option<u32>,
    /// It is woken for an item that found the pool at rest: how, and when that was decided.
    way: Option<(Way, Time)>,
    /// Others, who go where the system likes.
    more_wakes: Vec<(&'static WorkerShared, WakeToken)>,
    create: Option<BirthReason>,
    /// Where the new worker is to begin.
    born_on: Option<u32>,
    barriers: Vec<Arc<Completion>>,
    /// Workers that sleep outside their pod, to be moved before they are woken.
    homing: Vec<Arc<WorkerShared>>,
}

impl<'a> Driver<'a> {
    #[inline]
    pub(super) fn new(
        workers: &'a [Option<Arc<WorkerShared>>],
        time: &'a TimeSource,
        home: Option<&'a CpuSet>,
        todo: &'a mut Vec<Todo>,
    ) -> Driver<'a> {
        Driver {
            workers,
            time,
            home,
            stamp: Cell::new(0),
            effects: Effects::default(),
            todo,
        }
    }

    #[inline]
    pub(super) fn into_effects(self) -> Effects {
        self.effects
    }

    /// The calling worker's CPU is about to be free, and as many workers run as may: who is woken in this step is to come here.
    pub(crate) fn hand_over(&mut self, cpu: Option<u32>) {
        self.effects.wanted_on = cpu;
    }

    /// Who is woken in this step is for an item that found the pool at rest.
    #[inline]
    pub(crate) fn wake_by(&mut self, way: Way, issuer_cpu: u32, now: Time) {
        self.effects.way = Some((way, now));
        if way == Way::Beside {
            self.effects.wanted_on = Some(issuer_cpu);
        }
    }

    /// This CPU has nothing to run: a worker that is made in this step is to begin here.
    pub(crate) fn born_on(&mut self, cpu: Option<u32>) {
        self.effects.born_on = cpu;
    }

    /// The time on the runtime's clock.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        let now = self.time.now();
        self.stamp.set(now);
        now
    }

    /// The last reading of the clock, 0 if there was none.
    #[inline]
    pub(super) fn last_stamp(&self) -> Time {
        self.stamp.get()
    }

    /// Items of the pwq have waited too long for their pod.
    #[cold]
    pub(super) fn offer(&mut self, offer: Offer) {
        let link = self.link(offer.pwq);
        self.todo.push(Todo::Offer(link, offer));
    }

    #[cold]
    fn note_activated(&mut self, item: u64, pwq: PwqTag) {
        // SAFETY: the item is queued and the pool's lock is held, so the queue's side holds it.
        let named = ItemPtr::from_mark(item).and_then(|item| unsafe { probe::name(item) });
        if let Some(named) = named {
            let link = self.link(pwq);
            self.todo.push(Todo::Activated(named, link));
        }
    }

    fn worker(&self, w: WorkerId) -> Option<&WorkerShared> {
        self.workers.get(w as usize).and_then(Option::as_deref)
    }

    fn link(&self, tag: PwqTag) -> Arc<PwqLink> {
        // SAFETY: the policy calls with the pool's lock held and about pwqs that are linked.
        unsafe { link_arc(tag) }
    }
}

impl PolicyDriver<Arc<Completion>> for Driver<'_> {
    #[inline]
    fn wake(&mut self, w: WorkerId) {
        let Some(shared) = self.workers.get(w as usize).and_then(Option::as_ref) else {
            return;
        };
        let homeless = self.home.is_some_and(|home| shared.sleeps_outside(home));
        shared.note_wake(self.stamp.get());
        let Some(token) = shared.parker.prepare_unpark() else {
            return;
        };
        if homeless {
            shared.homed.store(true, Ordering::Relaxed);
            let shared = Arc::clone(shared);
            self.effects.homing.push(shared);
        }
        // SAFETY: the records of a pool's workers are never given back, see `WorkerShared::obtain`.
        let record = unsafe { &*Arc::as_ptr(shared) };
        if self.effects.wake.is_none() {
            if let Some((way, at)) = self.effects.way {
                shared.company.woken(way, at);
            }
            self.effects.wake = Some((record, token));
        } else {
            self.effects.more_wakes.push((record, token));
        }
    }

    fn create(&mut self, reason: BirthReason) {
        self.effects.create = Some(reason);
    }

    fn barrier(&mut self, waiter: Arc<Completion>) {
        self.effects.barriers.push(waiter);
    }

    fn flushed(&mut self, pwq: PwqTag, colour: u8) {
        let link = self.link(pwq);
        self.todo.push(Todo::Flushed(link, colour));
    }

    fn ask(&mut self, pwq: PwqTag) {
        let link = self.link(pwq);
        self.todo.push(Todo::Ask(link));
    }

    fn give_back(&mut self, pwq: PwqTag, n: u32) {
        let link = self.link(pwq);
        self.todo.push(Todo::GiveBack(link, n));
    }

    fn drained(&mut self, pwq: PwqTag) {
        let link = self.link(pwq);
        self.todo.push(Todo::Drained(link));
    }

    fn mayday(&mut self, pwq: PwqTag) {
        let link = self.link(pwq);
        self.todo.push(Todo::Mayday(link));
    }

    #[inline]
    fn activated(&mut self, item: u64, pwq: PwqTag) {
        if probe::on() {
            self.note_activated(item, pwq);
        }
    }

    #[inline]
    fn contended(&self, pwq: PwqTag) -> bool {
        // SAFETY: as in `link`.
        unsafe { link_of(pwq) }
            .slot
            .as_ref()
            .is_some_and(|s| s.is_contended(pwq))
    }

    fn claimed(&self, w: WorkerId) -> u32 {
        self.worker(w).map_or(0, |s| s.batch.claimed())
    }

    fn recall(&mut self, w: WorkerId) -> u32 {
        self.worker(w).map_or(0, |s| s.batch.recall())
    }

    #[inline]
    fn start_stamp(&self, w: WorkerId, i: u32) -> Time {
        self.worker(w).map_or(0, |s| s.batch.start(i))
    }
}

impl Effects {
    /// Whether carrying it out needs the runtime.
    #[inline]
    pub(super) fn needs_runtime(&self) -> bool {
        self.create.is_some() || !self.homing.is_empty()
    }

    #[inline]
    pub(super) fn carry_out(self, pool: &'static RtPool, rt: Option<&Arc<RtInner>>) {
        if let Some(rt) = rt {
            for w in &self.homing {
                // Its thread stays as long as this is held.
                let _held = w.evidence.hold();
                if w.tid.load(Ordering::Relaxed) != 0 {
                    rt.bring_home(pool, w);
                }
            }
        }
        if let Some((worker, token)) = self.wake {
            match self.wanted_on {
                Some(cpu) if self.way.is_some() => worker.keep_company(cpu),
                Some(cpu) => worker.come_to(cpu),
                None => worker.leave_company(),
            }
            token.wake();
        }
        for (worker, token) in self.more_wakes {
            worker.leave_company();
            token.wake();
        }
        if let (Some(reason), Some(rt)) = (self.create, rt) {
            rt.request_worker(pool, reason, self.born_on);
        }
        for waiter in self.barriers {
            waiter.complete();
        }
    }
}

/// Works off steps until none is left. No lock may be held.
pub(crate) fn run_todo(todo: Vec<Todo>) {
    let mut queue = VecDeque::from(todo);
    let mut new = Vec::new();
    while let Some(step) = queue.pop_front() {
        perform(step, &mut new);
        queue.extend(new.drain(..));
    }
}

fn perform(step: Todo, todo: &mut Vec<Todo>) {
    match step {
        Todo::Ask(link) => {
            if let Some(slot) = &link.slot {
                slot.ask(&link, todo);
            }
        }
        Todo::GiveBack(link, n) => {
            if let Some(slot) = &link.slot {
                slot.give_back(n, todo);
            }
        }
        Todo::Grant(link, n, keep) => {
            let granted = link.pool.step(todo, |p, drv| match link.id() {
                Some(id) => {
                    let now = drv.now();
                    p.grant(id, n, keep, now, drv);
                    true
                }
                None => false,
            });
            if !granted && let Some(slot) = &link.slot {
                slot.give_back(n, todo);
            }
        }
        Todo::Sweep(link) => {
            let spare = link
                .pool
                .step(todo, |p, _| link.id().map_or(0, |id| p.reclaim(id)));
            if spare > 0
                && let Some(slot) = &link.slot
            {
                slot.give_back(spare, todo);
            }
        }
        Todo::Flushed(link, colour) => link.wq.flushed(colour),
        Todo::Drained(link) => link.wq.release_link(&link, todo),
        Todo::Mayday(link) => {
            probe::mayday(&link.wq, link.pool.id);
            link.wq.call_rescuer(&link);
        }
        Todo::Activated(named, link) => probe::activate_work(named, &link.wq),
        Todo::Offer(link, offer) => {
            for _ in 0..offer.calls {
                link.wq.call_helper(&link, offer.wait_ns, todo);
            }
        }
    }
}
