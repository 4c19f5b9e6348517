//! The timers of a runtime: armed delayed work, and the thread that queues it when its time comes.

use crate::error::QueueError;
use crate::item::ItemPtr;
use crate::runtime::{RtInner, TimeSource};
use crate::shim::sync::{Mutex, MutexGuard, PoisonError};
use crate::sys::clock::monotonic;
use crate::sys::fork::ForkStamp;
use crate::sys::parker::Parker;
use crate::sys::thread::ThreadSpec;
use crate::work::Work;
use crate::workqueue::{Place, WqInner};
use cmwq_policy::pool::Time;
use cmwq_policy::timer::{TimerId, TimerWheel};
use cmwq_policy::word::{MAX_ENTRY, Word};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// See the module text.
pub(crate) struct Timers {
    state: Mutex<State>,
    parker: Arc<Parker>,
    alive: AtomicBool,
    time: TimeSource,
    fork: ForkStamp,
}

struct State {
    /// When what is due; names places in `armed`.
    wheel: TimerWheel<u32>,
    armed: Vec<Option<Armed>>,
    free: Vec<u32>,
    /// Queues (by address) of items that are off the wheel and not queued yet, one entry an item: a drain waits for them.
    firing: Vec<usize>,
    stop: bool,
}

thread_local! {
    /// The calling thread is queueing items whose time has come.
    static FIRING: Cell<bool> = const { Cell::new(false) };
}

struct Armed {
    item: ItemPtr,
    before: Word,
    wq: Arc<WqInner>,
    timer: TimerId,
    /// Set if the queue drains before the time comes.
    dropped: Arc<AtomicBool>,
}

impl State {
    fn take(&mut self, id: u32) -> Option<Armed> {
        let armed = self.armed.get_mut(id as usize)?.take()?;
        self.wheel.cancel(armed.timer);
        armed.wq.records.note_disarmed();
        self.free.push(id);
        Some(armed)
    }
}

impl Timers {
    pub(crate) fn new(time: TimeSource, fork: ForkStamp) -> Timers {
        let state = State {
            wheel: TimerWheel::new(time.now()),
            armed: Vec::new(),
            free: Vec::new(),
            firing: Vec::new(),
            stop: false,
        };
        Timers {
            state: Mutex::new(state),
            parker: Arc::new(Parker::new()),
            alive: AtomicBool::new(false),
            time,
            fork,
        }
    }

    /// Whether they were left behind by a fork.
    pub(crate) fn is_stale(&self) -> bool {
        self.fork.is_stale()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next item is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.lock().wheel.next_expiry_ns()
    }

    /// Arms an item that is in the caller's hands.
    pub(crate) fn arm(
        self: &Arc<Self>,
        work: &Work,
        before: Word,
        wq: &Arc<WqInner>,
        delay: Duration,
        dropped: Arc<AtomicBool>,
    ) {
        let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let now = self.time.now();
        self.insert(
            work.item_ref(),
            before,
            wq,
            now,
            now.saturating_add(delay),
            dropped,
        );
    }

    /// As `arm`, with the reference to the item that the timer is to have.
    fn insert(
        self: &Arc<Self>,
        item: ItemPtr,
        before: Word,
        wq: &Arc<WqInner>,
        now: Time,
        due: Time,
        dropped: Arc<AtomicBool>,
    ) {
        let mut state = self.lock();
        let id = state.free.pop().unwrap_or_else(|| {
            state.armed.push(None);
            (state.armed.len() - 1) as u32
        });
        assert!(
            id <= MAX_ENTRY,
            "more than 16 million armed timers in one runtime"
        );
        let before_us = state.wheel.next_expiry_ns();
        let timer = state.wheel.insert(now, due, id);
        let first =
            before_us.is_none_or(|t| state.wheel.expiry_ns(timer).is_some_and(|own| own < t));
        state.armed[id as usize] = Some(Armed {
            item,
            before,
            wq: Arc::clone(wq),
            timer,
            dropped,
        });
        wq.records.note_armed();
        // SAFETY: the timer's reference keeps the item alive.
        unsafe { item.header() }.set_word(before.grabbed().armed(id));
        drop(state);
        if first {
            self.nudge(&wq.rt);
        }
    }

    /// Takes the item off its timer if that is still armed for it. The timer's reference passes to the caller.
    pub(crate) fn disarm(&self, id: u32, item: ItemPtr) -> bool {
        let mut state = self.lock();
        if state
            .armed
            .get(id as usize)
            .is_none_or(|a| a.as_ref().is_none_or(|a| a.item != item))
        {
            return false;
        }
        let armed = state.take(id);
        drop(state);
        armed.is_some()
    }

    /// Queues the item now, room or not, if its timer is still armed.
    pub(crate) fn fire_now(&self, id: u32, item: ItemPtr) -> bool {
        let mut state = self.lock();
        if state
            .armed
            .get(id as usize)
            .is_none_or(|a| a.as_ref().is_none_or(|a| a.item != item))
        {
            return false;
        }
        let armed = state.take(id);
        if let Some(a) = &armed {
            // SAFETY: the timer's reference keeps the item alive. In transit from here on, so that nobody looks for a timer.
            unsafe { a.item.header() }.set_word(a.before.grabbed());
            state.firing.push(Arc::as_ptr(&a.wq).addr());
        }
        drop(state);
        match armed {
            Some(a) => {
                self.fire_all(vec![a], true);
                true
            }
            None => false,
        }
    }

    /// Queues everything that is due; returns how many items that were. The lock is given up now and then, so that others can
    /// arm and disarm meanwhile.
    pub(crate) fn fire_due(&self) -> usize {
        let mut n = 0;
        loop {
            let now = self.time.now();
            let mut due = Vec::new();
            let mut state = self.lock();
            let State {
                wheel,
                armed,
                free,
                firing,
                ..
            } = &mut *state;
            let more = wheel
                .advance(now, BUDGET, |_, id| {
                    if let Some(a) = armed[id as usize].take() {
                        free.push(id);
                        a.wq.records.note_disarmed();
                        // SAFETY: as in `fire_now`.
                        unsafe { a.item.header() }.set_word(a.before.grabbed());
                        firing.push(Arc::as_ptr(&a.wq).addr());
                        due.push(a);
                    }
                })
                .more;
            drop(state);
            n += due.len();
            self.fire_all(due, false);
            if !more {
                return n;
            }
        }
    }

    /// Queues items that were noted as firing.
    fn fire_all(&self, due: Vec<Armed>, forced: bool) {
        if due.is_empty() {
            return;
        }
        let queues: Vec<usize> = due.iter().map(|a| Arc::as_ptr(&a.wq).addr()).collect();
        let outer = FIRING.replace(true);
        due.into_iter().for_each(|a| fire(a, forced));
        FIRING.set(outer);
        let mut state = self.lock();
        for queue in queues {
            if let Some(i) = state.firing.iter().position(|&q| q == queue) {
                state.firing.swap_remove(i);
            }
        }
    }

    /// Waits until no item of the queue is between the wheel and the queue, unless the calling thread itself is firing.
    fn wait_fired(&self, wq: &WqInner) {
        let queue = std::ptr::from_ref(wq).addr();
        while !FIRING.get() && self.lock().firing.contains(&queue) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Cancels everything armed for this queue; what was just firing has been queued or refused when it returns. O(armed
    /// items).
    pub(crate) fn cancel_queue(&self, wq: &WqInner) {
        let mut state = self.lock();
        let ids: Vec<u32> = (0..state.armed.len() as u32)
            .filter(|&i| {
                state.armed[i as usize]
                    .as_ref()
                    .is_some_and(|a| std::ptr::eq(Arc::as_ptr(&a.wq), wq))
            })
            .collect();
        let mut gone = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(a) = state.take(id) {
                a.dropped.store(true, Ordering::Relaxed);
                // SAFETY: as in `fire_now`.
                unsafe { a.item.header() }.set_word(a.before.released());
                gone.push(a);
            }
        }
        drop(state);
        for a in gone {
            // SAFETY: the timer's reference passes to us.
            unsafe { Work::from_item(a.item) }.drop_quietly();
        }
        self.wait_fired(wq);
    }

    fn nudge(self: &Arc<Self>, rt: &Arc<RtInner>) {
        if rt.manual.is_some() {
            return;
        }
        // Ordering: Acquire pairs with the Release below.
        if self.alive.load(Ordering::Acquire) {
            self.parker.unpark();
            return;
        }
        let state = self.lock();
        // Ordering: as above.
        if self.alive.load(Ordering::Acquire) || state.stop {
            self.parker.unpark();
            return;
        }
        let weak = Arc::downgrade(self);
        let parker = Arc::clone(&self.parker);
        let spec = ThreadSpec {
            name: "cmwq/timers".to_owned(),
            stack: None,
        };
        match (rt.factory)(&spec, Box::new(move || timer_main(&weak, &parker))) {
            // Ordering: Release pairs with the Acquire above.
            Ok(()) => self.alive.store(true, Ordering::Release),
            Err(e) => {
                drop(state);
                rt.timers_failed(&e);
            }
        }
    }

    /// Whether the timer thread exists.
    pub(crate) fn has_thread(&self) -> bool {
        // Ordering: Acquire, as in `nudge`.
        self.alive.load(Ordering::Acquire)
    }

    /// Whether items are armed and no thread looks after them.
    pub(crate) fn is_helpless(&self) -> bool {
        // Ordering: Acquire, as in `nudge`.
        !self.alive.load(Ordering::Acquire) && !self.lock().wheel.is_empty()
    }

    /// Tries again to get the thread that could not be made.
    pub(crate) fn retry(self: &Arc<Self>, rt: &Arc<RtInner>) {
        if self.is_helpless() {
            self.fire_due();
            self.nudge(rt);
        }
    }

    /// The thread ends.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.parker.unpark();
    }
}

/// The time has come: the timer's reference passes to the queue. The item is in our hands, so a cancel that comes now waits
/// for what becomes of it here.
fn fire(a: Armed, whether_or_not_there_is_room: bool) {
    let Armed {
        item,
        before,
        wq,
        dropped,
        ..
    } = a;
    let queued = if whether_or_not_there_is_room {
        wq.queue_forced(item, before, Place::Here)
    } else {
        wq.queue_owned(item, before, Place::Here)
    };
    match queued {
        Ok(()) => {}
        Err(QueueError::Full { .. }) => {
            // There was room when it was armed. It is not lost: it goes in as soon as the queue has room again.
            let timers = Arc::clone(&wq.rt.timers);
            let now = timers.time.now();
            let again = now.saturating_add(FULL_RETRY.as_nanos() as u64);
            timers.insert(item, before, &wq, now, again, dropped);
        }
        // Draining, closed, forked: reported through the item.
        Err(_) => {
            dropped.store(true, Ordering::Relaxed);
            // SAFETY: the timer's reference is ours still.
            let work = unsafe { Work::from_item(item) };
            work.header().set_word(before.released());
            work.drop_quietly();
        }
    }
}

/// Timers touched per hold of the lock.
const BUDGET: usize = 256;

/// When the queue is full as the time comes, it is tried again after this long.
const FULL_RETRY: Duration = Duration::from_millis(1);

fn timer_main(weak: &Weak<Timers>, parker: &Parker) {
    loop {
        let Some(timers) = weak.upgrade() else { return };
        timers.fire_due();
        let next = {
            let state = timers.lock();
            if state.stop {
                return;
            }
            state.wheel.next_expiry_ns()
        };
        let now = timers.time.now();
        drop(timers);
        match next {
            Some(due) => {
                parker.park_until(monotonic() + Duration::from_nanos(due.saturating_sub(now)));
            }
            None => parker.park(),
        }
    }
}
