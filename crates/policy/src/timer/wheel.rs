//! The wheel. See the README for the invariants that the comments name.

use super::slab::{NIL, Slab, TimerId};
use super::{GRANULE_BITS, tick_for, tick_to_ns};

/// log2 of the slots of a level.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Eight levels of six bits hold every tick that a u64 of nanoseconds has, rounding included.
const LEVELS: usize = 8;
/// The list of timers that are due, or whose slot is being taken apart.
const DUE: usize = LEVELS * SLOTS;

/// A list of timers, oldest first.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List {
    head: NIL,
    tail: NIL,
};

/// What [`TimerWheel::advance`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Advance {
    /// Timers that expired.
    pub fired: usize,
    /// The budget ran out with timers left that are due or might be: call again.
    pub more: bool,
}

/// A set of timers with payloads. Setting, changing and cancelling take constant time; nothing depends on how many timers
/// there are or how far away they are. 3 timers or a million: 8 KiB plus 24 bytes and a payload (padded) for each.
///
/// What it guarantees, for a caller that calls [`advance`](Self::advance) when
/// [`next_expiry_ns`](Self::next_expiry_ns) says so:
/// - no timer fires before its deadline;
/// - a timer fires less than [`GRANULE_NS`](super::GRANULE_NS) late, or, if its delay was more than 68 s, less than 1/64 of the
///   delay plus a granule;
/// - timers fire in the order of their ticks; of those in one tick the order is not specified.
///
/// Memory for timers is kept for reuse and freed with the wheel.
#[derive(Clone, Debug)]
pub struct TimerWheel<T> {
    slab: Slab<T>,
    lists: Box<[List; DUE + 1]>,
    /// A lower bound of the ticks in each slot in use; the lowest tick itself unless that timer was taken out.
    earliest: Box<[u64; DUE]>,
    /// Bit s of word l: slot s of level l is not empty.
    occupied: [u64; LEVELS],
    /// All ticks up to here have been dealt with, except for what is in `DUE`.
    now: u64,
    /// The slot whose timers make up the due list, or `DUE`.
    opened: usize,
}

impl<T> TimerWheel<T> {
    /// Empty, at `now_ns`. Timers may be set for the past too: they are due at once.
    pub fn new(now_ns: u64) -> Self {
        Self {
            slab: Slab::new(),
            lists: Box::new([EMPTY; DUE + 1]),
            earliest: Box::new([0; DUE]),
            occupied: [0; LEVELS],
            now: now_ns >> GRANULE_BITS,
            opened: DUE,
        }
    }

    /// How many timers are set.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets a timer. `now_ns` decides how a long delay is rounded, nothing else; it does not advance the wheel. A deadline
    /// in the last 0.5 ms of u64 never comes.
    ///
    /// # Panics
    /// With 2^32 - 1 timers set.
    pub fn insert(&mut self, now_ns: u64, deadline_ns: u64, payload: T) -> TimerId {
        let tick = self.tick_for(now_ns, deadline_ns);
        let index = self.slab.insert(tick, payload);
        self.place(index);
        self.slab.id(index)
    }

    /// Moves a timer to another deadline; its id stays. False if it is gone.
    pub fn modify(&mut self, id: TimerId, now_ns: u64, deadline_ns: u64) -> bool {
        let Some(index) = self.slab.find(id) else {
            return false;
        };
        let tick = self.tick_for(now_ns, deadline_ns);
        self.unlink(index);
        self.slab.at_mut(index).tick = tick;
        self.place(index);
        true
    }

    /// Takes a timer out. `None` if it has fired or was cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let index = self.slab.find(id)?;
        self.unlink(index);
        self.slab.remove(index)
    }

    /// The payload of a timer that is still set.
    pub fn get(&self, id: TimerId) -> Option<&T> {
        self.slab.at(self.slab.find(id)?).payload.as_ref()
    }

    /// As [`get`](Self::get), to change it.
    pub fn get_mut(&mut self, id: TimerId) -> Option<&mut T> {
        let index = self.slab.find(id)?;
        self.slab.at_mut(index).payload.as_mut()
    }

    /// When a timer that is still set will fire: its deadline, rounded up as the type describes.
    pub fn expiry_ns(&self, id: TimerId) -> Option<u64> {
        Some(tick_to_ns(self.slab.at(self.slab.find(id)?).tick))
    }

    /// All timers that are set, in no particular order, with the time at which they fire. Linear in the most timers that there
    /// ever were at a time.
    pub fn iter(&self) -> impl Iterator<Item = (TimerId, u64, &T)> {
        self.slab
            .iter()
            .filter_map(|(i, e)| Some((self.slab.id(i), tick_to_ns(e.tick), e.payload.as_ref()?)))
    }

    /// When to call [`advance`](Self::advance) next; `None` when no timer is set, and then there is no need to. Constant time.
    ///
    /// It is when the next timer fires; earlier only if timers were taken out since, once for each that was the first of
    /// its slot. In the past if something is due.
    pub fn next_expiry_ns(&self) -> Option<u64> {
        if self.lists[DUE].head != NIL {
            return Some(tick_to_ns(self.now));
        }
        self.first_slot()
            .map(|(slot, _)| tick_to_ns(self.earliest[slot]))
    }

    /// Lets time pass up to `now_ns` and hands each expired timer to `expired`; its id is invalid by then.
    ///
    /// At most `budget` timers are touched (fired, or moved to a finer level, which happens to each at most seven times), so
    /// the caller can bound how long it holds a lock; if that was not enough, [`Advance::more`] is set, the next expiry is in
    /// the past, and the call is to be repeated, with a later `now_ns` if it likes. Other calls may come in between. How far time
    /// jumps makes no difference. A `now_ns` before that of an earlier call counts as that one.
    pub fn advance(
        &mut self,
        now_ns: u64,
        mut budget: usize,
        mut expired: impl FnMut(TimerId, T),
    ) -> Advance {
        let target = now_ns >> GRANULE_BITS;
        let mut fired = 0;
        loop {
            while self.lists[DUE].head != NIL {
                if budget == 0 {
                    return Advance { fired, more: true };
                }
                budget -= 1;
                let index = self.lists[DUE].head;
                self.unlink(index);
                if self.slab.at(index).tick > self.now {
                    self.place(index);
                    continue;
                }
                let id = self.slab.id(index);
                if let Some(payload) = self.slab.remove(index) {
                    fired += 1;
                    expired(id, payload);
                }
            }
            self.opened = DUE;
            match self.first_slot() {
                Some((slot, start)) if start <= target => {
                    // W2: nothing is set for a tick between the old `now` and `start`.
                    self.now = start;
                    self.open(slot);
                }
                _ => break,
            }
        }
        // W2 again: the first slot starts after `target`.
        self.now = self.now.max(target);
        Advance { fired, more: false }
    }

    /// A `now_ns` that lags behind the wheel would only make delays look longer.
    fn tick_for(&self, now_ns: u64, deadline_ns: u64) -> u64 {
        tick_for(now_ns.max(tick_to_ns(self.now)), deadline_ns)
    }

    /// Puts an unlinked timer where it belongs.
    fn place(&mut self, index: u32) {
        let tick = self.slab.at(index).tick;
        let list = if tick <= self.now {
            DUE
        } else {
            // W1: the level is that of the highest group of bits in which the tick differs from now.
            let level = (tick ^ self.now).ilog2() / LEVEL_BITS;
            let slot = (tick >> (level * LEVEL_BITS)) as usize % SLOTS;
            let level = level as usize;
            let list = level * SLOTS + slot;
            let was_empty = self.occupied[level] >> slot & 1 == 0;
            self.occupied[level] |= 1 << slot;
            self.earliest[list] = if was_empty {
                tick
            } else {
                self.earliest[list].min(tick)
            };
            list
        };
        let tail = self.lists[list].tail;
        let e = self.slab.at_mut(index);
        (e.prev, e.next, e.list) = (tail, NIL, list as u16);
        match tail {
            NIL => self.lists[list].head = index,
            tail => self.slab.at_mut(tail).next = index,
        }
        self.lists[list].tail = index;
    }

    fn unlink(&mut self, index: u32) {
        let e = self.slab.at(index);
        let (prev, next, list) = (e.prev, e.next, self.list_of(index));
        match prev {
            NIL => self.lists[list].head = next,
            prev => self.slab.at_mut(prev).next = next,
        }
        match next {
            NIL => self.lists[list].tail = prev,
            next => self.slab.at_mut(next).prev = prev,
        }
        if list != DUE && self.lists[list].head == NIL {
            self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        }
    }

    /// The slot that holds the earliest timer outside of `DUE` (W2), and its first tick.
    fn first_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let bits = level as u32 * LEVEL_BITS;
        let round = self.now >> (bits + LEVEL_BITS) << (bits + LEVEL_BITS);
        Some((
            level * SLOTS + slot as usize,
            round | u64::from(slot) << bits,
        ))
    }

    /// Makes a slot's timers the due list, which is empty. They keep the number of their old list, however many there are: W5.
    fn open(&mut self, slot: usize) {
        debug_assert_eq!(self.lists[DUE].head, NIL);
        self.lists[DUE] = std::mem::replace(&mut self.lists[slot], EMPTY);
        self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        self.opened = slot;
    }

    /// The list that a timer is in.
    fn list_of(&self, index: u32) -> usize {
        let list = usize::from(self.slab.at(index).list);
        if list == self.opened { DUE } else { list }
    }

    /// Checks W1 to W4 the slow way.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut linked = 0;
        for (number, list) in self.lists.iter().enumerate() {
            let (mut prev, mut index) = (NIL, list.head);
            if number != DUE {
                assert_eq!(
                    index != NIL,
                    self.occupied[number / SLOTS] >> (number % SLOTS) & 1 == 1,
                    "W3 slot {number}"
                );
            }
            while index != NIL {
                let e = self.slab.at(index);
                assert_eq!((e.prev, self.list_of(index)), (prev, number), "W3, W5");
                assert!(e.payload.is_some(), "W3");
                if number != DUE {
                    assert!(e.tick > self.now, "W1: {} is due at {}", e.tick, self.now);
                    let level = (e.tick ^ self.now).ilog2() / LEVEL_BITS;
                    let slot = (e.tick >> (level * LEVEL_BITS)) as usize % SLOTS;
                    assert_eq!(
                        level as usize * SLOTS + slot,
                        number,
                        "W1: {} at {}",
                        e.tick,
                        self.now
                    );
                    assert!(self.earliest[number] <= e.tick, "W4");
                }
                linked += 1;
                (prev, index) = (index, e.next);
            }
            assert_eq!(list.tail, prev, "W3");
        }
        assert_eq!(linked, self.len(), "W3");
    }
}
