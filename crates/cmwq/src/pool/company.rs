//! A worker that stays on the CPU of an issuer who waits for each item. The rule is the policy's (`near.rs`).
//!
//! Its mask is narrowed to that CPU once, by the waking issuer, and stays so while short items come one at a time. It is widened by the
//! worker itself when more waits or items get longer; by whoever wakes it otherwise; and by the tick, should an item wait
//! for it that long.

use cmwq_policy::near::Way;
use cmwq_policy::pool::Time;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Hints, each read and written on its own: a mixed-up pair costs a detour or one wrong measurement.
#[derive(Default)]
pub(crate) struct Company {
    /// The issuer's CPU plus 1; 0: none.
    cpu: AtomicU32,
    /// When it was woken for an item that found the pool at rest, shifted left, and how in the lowest bit; 0: it was not.
    woken: AtomicU64,
}

impl Company {
    #[inline]
    pub(crate) fn with(&self) -> Option<u32> {
        self.cpu.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn begin(&self, cpu: u32) {
        self.cpu.store(cpu.saturating_add(1), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn end(&self) {
        if self.cpu.load(Ordering::Relaxed) != 0 {
            self.cpu.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn forget(&self) {
        self.end();
        self.woken.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn woken(&self, way: Way, at: Time) {
        let beside = u64::from(way == Way::Beside);
        self.woken.store(at << 1 | beside, Ordering::Relaxed);
    }

    /// How and when it was woken for the item it comes for. `elsewhere`: not where its waker was. None if that was left to the system,
    /// which then did what the other way would have done: that says nothing.
    #[inline]
    pub(super) fn take_woken(&self, elsewhere: bool) -> Option<(Way, Time)> {
        let word = self.woken.load(Ordering::Relaxed);
        if word == 0 {
            return None;
        }
        self.woken.store(0, Ordering::Relaxed);
        if word & 1 == 1 {
            return Some((Way::Beside, word >> 1));
        }
        elsewhere.then_some((Way::Anywhere, word >> 1))
    }
}
