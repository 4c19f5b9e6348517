//! The item word: one 64-bit value that says who owns a work item, where it is and where it last ran.
//!
//! The runtime keeps it in an atomic; this file knows only its layout and which values follow one another.
//!
//! ```text
//! bits  0      PENDING   queued, armed or in somebody's hands; set by whoever wins the right to queue
//! bit   1      LINKED    with PENDING: `pool` and `entry` say where the item lies (changed under that pool's lock)
//! bit   2      TIMER     with PENDING: `entry` names the armed timer (changed under the timer lock)
//! //! bit   3      SUBMITTED with PENDING: in the submission lane of `pool`; whoever takes that pool's lock links it
//! bits  4-19   disable depth, 0..=65535; not zero only while not LINKED and not on a timer
//! bits 20-39   pool id: where it is LINKED, else where it last ran; all ones = nowhere yet
//! bits 40-63   entry (24 bits): the pool's entry or the timer's id
//! ```
//!
//! PENDING with neither LINKED nor TIMER is *in transit*: a thread owns the item and will link it, arm it or release it.

use std::fmt;

/// Layout and transitions of an item's state; see the module text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

const PENDING: u64 = 1;
const LINKED: u64 = 1 << 1;
const TIMER: u64 = 1 << 2;
const SUBMITTED: u64 = 1 << 3;
const DEPTH_SHIFT: u32 = 4;
const DEPTH_MASK: u64 = 0xffff << DEPTH_SHIFT;
const POOL_SHIFT: u32 = 20;
const POOL_MASK: u64 = 0xf_ffff << POOL_SHIFT;
const ENTRY_SHIFT: u32 = 40;
const ENTRY_MASK: u64 = 0xff_ffff << ENTRY_SHIFT;

/// The pool id that means "has never run".
pub const NO_POOL: u32 = 0xf_ffff;
/// The largest entry id that a word can hold.
pub const MAX_ENTRY: u32 = 0xff_ffff;
/// The largest disable depth. (The kernel's kerneldoc says 65536, its code saturates here.)
pub const MAX_DEPTH: u32 = 0xffff;

impl Word {
    /// A new, idle item that has never run.
    pub const IDLE: Word = Word((NO_POOL as u64) << POOL_SHIFT);

    /// A new one-shot item: born pending, in the hands of its maker.
    pub const IN_TRANSIT: Word = Word(Word::IDLE.0 | PENDING);

    /// Queued, armed, or about to be.
    #[inline]
    pub const fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// Lies in a pool at [`Word::pool`], [`Word::entry`].
    #[inline]
    pub const fn is_linked(self) -> bool {
        self.0 & (PENDING | LINKED) == PENDING | LINKED
    }

    /// Waits for a timer, [`Word::entry`].
    #[inline]
    pub const fn is_on_timer(self) -> bool {
        self.0 & (PENDING | TIMER) == PENDING | TIMER
    }

    /// Pending, but in some thread's hands.
    #[inline]
    pub const fn is_in_transit(self) -> bool {
        self.0 & (PENDING | LINKED | TIMER | SUBMITTED) == PENDING
    }

    /// Lies in the submission lane of [`Word::pool`].
    #[inline]
    pub const fn is_submitted(self) -> bool {
        self.0 & (PENDING | SUBMITTED) == PENDING | SUBMITTED
    }

    /// How many `disable` calls have not been undone.
    #[inline]
    pub const fn depth(self) -> u32 {
        ((self.0 & DEPTH_MASK) >> DEPTH_SHIFT) as u32
    }

    /// Where the item lies or last ran; [`NO_POOL`] if nowhere yet.
    #[inline]
    pub const fn pool(self) -> u32 {
        ((self.0 & POOL_MASK) >> POOL_SHIFT) as u32
    }

    /// The pool's entry or the timer's id.
    #[inline]
    pub const fn entry(self) -> u32 {
        ((self.0 & ENTRY_MASK) >> ENTRY_SHIFT) as u32
    }

    /// idle or released -> in transit. The caller owns the item if its compare-and-swap to this value wins.
    #[inline]
    pub const fn grabbed(self) -> Word {
        Word(self.0 & !(LINKED | TIMER | SUBMITTED | ENTRY_MASK) | PENDING)
    }

    /// in transit -> linked at `entry` of `pool`; done under that pool's lock.
    #[inline]
    pub const fn linked(self, pool: u32, entry: u32) -> Word {
        debug_assert!(entry <= MAX_ENTRY && pool < NO_POOL);
        Word(PENDING | LINKED | ((pool as u64) << POOL_SHIFT) | ((entry as u64) << ENTRY_SHIFT))
    }

    /// in transit -> in the submission lane of `pool`.
    #[inline]
    pub const fn submitted(self, pool: u32) -> Word {
        debug_assert!(pool < NO_POOL);
        Word(PENDING | SUBMITTED | ((pool as u64) << POOL_SHIFT))
    }

    /// in transit -> armed on timer `entry`; the last pool stays known.
    #[inline]
    pub const fn armed(self, entry: u32) -> Word {
        debug_assert!(entry <= MAX_ENTRY);
        Word(self.0 & POOL_MASK | PENDING | TIMER | ((entry as u64) << ENTRY_SHIFT))
    }

    /// in transit or linked -> idle; `pool` stays as the last place.
    #[inline]
    pub const fn released(self) -> Word {
        Word(self.0 & (DEPTH_MASK | POOL_MASK))
    }

    /// The same with another disable depth.
    #[inline]
    pub const fn with_depth(self, depth: u32) -> Word {
        debug_assert!(depth <= MAX_DEPTH);
        Word(self.0 & !DEPTH_MASK | ((depth as u64) << DEPTH_SHIFT))
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_linked() {
            "linked"
        } else if self.is_on_timer() {
            "on-timer"
        } else if self.is_submitted() {
            "submitted"
        } else if self.is_pending() {
            "in-transit"
        } else {
            "idle"
        };
        write!(
            f,
            "Word({state}, pool={}, entry={}, depth={})",
            self.pool(),
            self.entry(),
            self.depth()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_new_item_is_idle_and_has_run_nowhere() {
        let w = Word::IDLE;
        assert!(!w.is_pending() && w.pool() == NO_POOL && w.depth() == 0);
        assert!(Word::IN_TRANSIT.is_in_transit());
    }

    proptest! {
        #[test]
        fn fields_do_not_overlap(pool in 0..NO_POOL, entry in 0..=MAX_ENTRY, depth in 0..=MAX_DEPTH) {
            let t = Word::IDLE.with_depth(depth).grabbed();
            prop_assert!(t.is_in_transit());
            prop_assert_eq!(t.depth(), depth);
            let l = t.linked(pool, entry);
            prop_assert!(l.is_linked() && !l.is_on_timer() && !l.is_in_transit());
            prop_assert_eq!((l.pool(), l.entry(), l.depth()), (pool, entry, 0));
            let r = l.released();
            prop_assert!(!r.is_pending());
            prop_assert_eq!((r.pool(), r.depth()), (pool, 0));
            let a = r.grabbed().armed(entry);
            prop_assert!(a.is_on_timer() && !a.is_linked());
            prop_assert_eq!((a.pool(), a.entry()), (pool, entry));
            prop_assert_eq!(a.grabbed().released(), r);
        }
    }
}
