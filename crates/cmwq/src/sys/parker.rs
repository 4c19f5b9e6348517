//! Putting one thread to sleep and waking it, with one buffered wake-up.
//!
//! Each thread that parks owns a [`Parker`]; anyone may unpark it. An unpark that finds the owner awake is remembered, and
//! the next park returns at once; several of them count as one. Only an unpark that finds the owner asleep makes a system
//! call, and [`Parker::prepare_unpark`] lets the caller make that call later, after dropping a lock.
//!
//! ```text
//!            park                 unpark
//!   EMPTY --------> PARKED    EMPTY  --> NOTIFIED
//!   NOTIFIED -----> EMPTY     PARKED --> NOTIFIED + one futex wake
//! ```
//!
//! Invariants (the tests name them):
//! - **P1 no lost wake-up**: after an unpark the owner's next park, or the one it is in, returns. Argument: the word is
//!   NOTIFIED from the unpark on, only the owner takes it away and then returns; a futex wait that starts meanwhile finds the
//!   word changed, one that is under way is woken by the token.
//! - **P2 one return per notification**: a park returns notified only by taking NOTIFIED to EMPTY, which one unpark made.
//! - **P3 order**: what the unparking thread wrote before is seen after the park that its unpark ended. Argument: swap with
//!   Release against the Acquire that takes NOTIFIED away.
//! - **P4 a late token is harmless**: a wake made after the owner has moved on finds no sleeper, or one that checks the word
//!   and goes back to sleep.

use std::time::Duration;

use super::futex::{Futex, FutexWaker, Timeout, Wait};
use crate::shim::atomic::Ordering;

const EMPTY: u32 = 0;
const PARKED: u32 = 1;
const NOTIFIED: u32 = 2;

/// The sleeping place of one thread.
#[derive(Debug)]
pub(crate) struct Parker {
    state: Futex,
}

/// A wake-up that is decided but not yet made. Making it is a system call of 5-10 us if the sleeper's CPU is idle, so it
/// belongs after the unlocking. Dropping the token makes the call as well: a wake-up cannot be forgotten.
///
/// The token may outlive the parker.
#[derive(Debug)]
#[must_use = "dropping the token wakes too, but say when"]
pub(crate) struct WakeToken(FutexWaker);

impl WakeToken {
    /// Wakes the thread.
    pub(crate) fn wake(self) {}
}

impl Drop for WakeToken {
    fn drop(&mut self) {
        #[cfg_attr(
            not(any(loom, shuttle)),
            allow(clippy::clone_on_copy, reason = "the model's waker is not Copy")
        )]
        self.0.clone().wake(1);
    }
}

impl Parker {
    /// Nothing buffered, nobody asleep.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn new() -> Self {
        Self {
            state: Futex::new(EMPTY),
        }
    }

    /// Nothing buffered, nobody asleep.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn new() -> Self {
        Self {
            state: Futex::new(EMPTY),
        }
    }

    /// Sleeps until unparked; returns at once if that has already happened. Only the owner may call it. Blocks.
    pub(crate) fn park(&self) {
        while !self.park_with(Timeout::Never) {}
    }

    /// As [`park`](Self::park), at most for `timeout`. True if unparked, false if the time passed; an unpark that comes
    /// at the very moment of giving up is either reported here or kept for the next park.
    pub(crate) fn park_timeout(&self, timeout: Duration) -> bool {
        self.park_with(Timeout::After(timeout))
    }

    /// As [`park_timeout`](Self::park_timeout), until `CLOCK_MONOTONIC` reads `deadline`.
    pub(crate) fn park_until(&self, deadline: Duration) -> bool {
        self.park_with(Timeout::AtMonotonic(deadline))
    }

    fn park_with(&self, timeout: Timeout) -> bool {
        let word = self.state.word();
        // Ordering: Acquire pairs with the Release in `prepare_unpark` (P3), here and at each place that takes NOTIFIED.
        match word.compare_exchange(EMPTY, PARKED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {}
            Err(found) => {
                debug_assert_eq!(found, NOTIFIED, "two threads park on one parker");
                // Ordering: Acquire, as above.
                return word.swap(EMPTY, Ordering::Acquire) == NOTIFIED;
            }
        }
        loop {
            match self.state.wait(PARKED, timeout) {
                // Ordering: Acquire, as above.
                Wait::TimedOut => return word.swap(EMPTY, Ordering::Acquire) == NOTIFIED,
                Wait::Woken | Wait::Changed => {
                    // Ordering: Acquire, as above.
                    if word
                        .compare_exchange(NOTIFIED, EMPTY, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
                    {
                        return true;
                    }
                }
            }
        }
    }

    /// Makes the owner's present or next park return. A system call only if it is asleep. True if it was.
    pub(crate) fn unpark(&self) -> bool {
        self.prepare_unpark().is_some()
    }

    /// As [`unpark`](Self::unpark), without the system call: what is left to do comes back. Never blocks; about 5 ns.
    #[inline]
    pub(crate) fn prepare_unpark(&self) -> Option<WakeToken> {
        // Ordering: Release pairs with the Acquire of the park that takes NOTIFIED away (P3).
        let was = self.state.word().swap(NOTIFIED, Ordering::Release);
        (was == PARKED).then(|| WakeToken(self.state.waker()))
    }

    /// Whether an unpark is buffered.
    #[inline]
    pub(crate) fn is_notified(&self) -> bool {
        self.state.word().load(Ordering::Relaxed) == NOTIFIED
    }

    /// Whether the owner sleeps (or is about to) and has not been unparked. A hint: old by the time it is read.
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.state.word().load(Ordering::Relaxed) == PARKED
    }
}

#[cfg(test)]
mod tests;
