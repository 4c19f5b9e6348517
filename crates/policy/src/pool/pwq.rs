//! The link of one workqueue and one pool.
//!
//! Limits are permits. A pwq may have as many active items as it holds permits (`limit`). Per-CPU and ordered queues have a
//! fixed number; an unbound queue's pwqs lease theirs from the slot of their node (`slot.rs`), keep a few spare ones while
//! nobody else wants them, and hand them back when somebody does. So the system-wide limit holds at every moment, and the
//! slot is not touched per item.

use super::{PwqTag, Time};
use crate::hist::Histogram;
use crate::list::List;

/// Flush colours (kernel: 4 bits of the data word).
pub const COLOURS: usize = 16;

/// What a queue asked for when it was made, as far as its pwqs care.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PwqFlags {
    /// Its queue has a rescuer.
    pub guaranteed: bool,
    /// Its items do not count as running (per-CPU pools only).
    pub cpu_intensive: bool,
    /// Helpers from other pods may run its items.
    pub helpable: bool,
}

/// A pwq's settings.
#[derive(Debug, Clone, Copy)]
pub struct PwqConfig {
    /// The driver's name for it.
    pub tag: PwqTag,
    /// Permits to begin with.
    pub limit: u32,
    /// Whether permits come from a slot; else `limit` changes only by [`super::Pool::set_limit`].
    pub leased: bool,
    /// The colour new items get.
    pub colour: u8,
    /// Flags of the queue.
    pub flags: PwqFlags,
    /// Only workers that run an item of the same queue may queue.
    pub draining: bool,
    /// Nothing becomes active.
    pub frozen: bool,
}

/// Counters of a pwq; only ever grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PwqCounters {
    /// Items accepted.
    pub queued: u64,
    /// Items whose function was started.
    pub started: u64,
    /// Items whose function has returned.
    pub completed: u64,
    /// Items taken out before they started.
    pub cancelled: u64,
    /// Items started on the CPU that queued them.
    pub cpu_local: u64,
    /// Items started on a CPU of the pool's pod.
    pub in_pod: u64,
    /// Items found to hog their CPU.
    pub cpu_intensive: u64,
    /// Workers woken or asked for because one of this queue's items blocked.
    pub cm_wakeup: u64,
    /// Workers brought home to the pod.
    pub repatriated: u64,
    /// Times the rescuer was called.
    pub mayday: u64,
    /// Items the rescuer ran.
    pub rescued: u64,
    /// Items that a helper from another pod ran.
    pub helped: u64,
    /// Items offered to other pods because nobody here started them in time.
    pub hedged: u64,
    /// Items run by the thread that waited for them.
    pub inlined: u64,
    /// Extra workers added because this queue's first item waited too long.
    pub fairness: u64,
    /// Items held back by a limit when they were queued.
    pub throttled: u64,
}

impl PwqCounters {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &PwqCounters) {
        let PwqCounters {
            queued,
            started,
            completed,
            cancelled,
            cpu_local,
            in_pod,
            cpu_intensive,
            cm_wakeup,
            repatriated,
            mayday,
            rescued,
            helped,
            hedged,
            inlined,
            fairness,
            throttled,
        } = other;
        self.queued += queued;
        self.started += started;
        self.completed += completed;
        self.cancelled += cancelled;
        self.cpu_local += cpu_local;
        self.in_pod += in_pod;
        self.cpu_intensive += cpu_intensive;
        self.cm_wakeup += cm_wakeup;
        self.repatriated += repatriated;
        self.mayday += mayday;
        self.rescued += rescued;
        self.helped += helped;
        self.hedged += hedged;
        self.inlined += inlined;
        self.fairness += fairness;
        self.throttled += throttled;
    }
}

/// The state of a pwq.
#[derive(Debug, Clone)]
pub struct Pwq {
    /// The driver's name for it.
    pub tag: PwqTag,
    /// Its queue's flags.
    pub flags: PwqFlags,
    /// Items held back, first come first served.
    pub(super) inactive: List,
    /// Items on the worklist, with workers or running.
    pub(super) active: u32,
    /// Running items that do not count as active, as they wait for others of their queue.
    pub(super) lent: u32,
    /// Permits held.
    pub(super) limit: u32,
    /// Whether permits are leased.
    pub(super) leased: bool,
    /// Spare permits it may keep.
    pub(super) keep: u32,
    /// It has asked its slot and has no answer yet.
    pub(super) asking: bool,
    /// Spares were swept while the answer was on its way: what it allows to keep does not hold any more.
    pub(super) swept: bool,
    /// Its queue is frozen: nothing new becomes active.
    pub(super) frozen: bool,
    /// Active items beyond the limit that a waiter's lent slot or a lowered limit allows for now.
    pub(super) overdrawn: u32,
    /// Colour of new items.
    pub(super) colour: u8,
    /// Items per colour, any place.
    pub(super) in_flight: [u32; COLOURS],
    /// Colours that somebody waits for.
    pub(super) armed: u16,
    /// Only chained queueing is accepted.
    pub(super) draining: bool,
    /// Replaced by a newer pwq: report when empty.
    pub(super) retiring: bool,
    /// The rescuer was called and has not come yet.
    pub(super) mayday: bool,
    /// Workers that run its items right now.
    pub(super) running: u32,
    /// The most items that were active at once.
    pub peak_active: u32,
    /// The most items that waited at once, held back ones included.
    pub peak_waiting: u32,
    /// Counters.
    pub counters: PwqCounters,
    /// Queue-to-start times.
    pub wait: Histogram,
    /// Run times.
    pub run: Histogram,
    /// When its first waiting item was served last; used by fairness.
    pub(super) served_at: Time,
}

impl Pwq {
    pub(super) fn new(c: PwqConfig) -> Pwq {
        Pwq {
            tag: c.tag,
            flags: c.flags,
            inactive: List::default(),
            active: 0,
            lent: 0,
            limit: c.limit,
            leased: c.leased,
            keep: 0,
            asking: false,
            swept: false,
            frozen: c.frozen,
            overdrawn: 0,
            colour: c.colour,
            in_flight: [0; COLOURS],
            armed: 0,
            draining: c.draining,
            retiring: false,
            mayday: false,
            running: 0,
            peak_active: 0,
            peak_waiting: 0,
            counters: PwqCounters::default(),
            wait: Histogram::default(),
            run: Histogram::default(),
            served_at: 0,
        }
    }

    /// After an item came in or became active.
    #[inline]
    pub(super) fn note_peaks(&mut self) {
        self.peak_active = self.peak_active.max(self.active);
        let waiting = (self.active + self.inactive.len() as u32).saturating_sub(self.running);
        self.peak_waiting = self.peak_waiting.max(waiting);
    }

    /// Items on the worklist, with workers or running.
    #[inline]
    pub fn active(&self) -> u32 {
        self.active + self.lent
    }

    /// Those of [`Pwq::active`] that wait for others with their permits lent.
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// Permits held.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Items held back by the limit.
    pub fn inactive_len(&self) -> usize {
        self.inactive.len()
    }

    /// Items of any place.
    pub fn in_flight(&self) -> u32 {
        self.active + self.lent + self.inactive.len() as u32
    }

    /// Nothing queued, held back or running.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.active == 0 && self.lent == 0 && self.inactive.is_empty()
    }

    /// Replaced by a newer pwq.
    #[inline]
    pub fn is_retiring(&self) -> bool {
        self.retiring
    }

    /// Only chained queueing is accepted.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Workers that run its items right now.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// It has asked its slot for permits and has no answer yet.
    pub fn is_asking(&self) -> bool {
        self.asking
    }

    /// Whether the rescuer was called and has not come yet.
    pub fn wants_rescue(&self) -> bool {
        self.mayday
    }
}
