//! A one-time event that a thread can sleep on: an item is done, a flush is through.

use crate::shim::atomic::Ordering;
use crate::sys::futex::{Futex, Timeout, Wait};
use std::sync::Arc;

const OPEN: u32 = 0;
const SLEEPER: u32 = 1;
const DONE: u32 = 2;

/// See the module text. Shared by the waiter and whoever completes it.
#[derive(Debug)]
pub(crate) struct Completion {
    state: Futex,
}

impl Completion {
    pub(crate) fn new() -> Arc<Completion> {
        Arc::new(Completion {
            state: Futex::new(OPEN),
        })
    }

    /// Makes it done and wakes all who wait.
    pub(crate) fn complete(&self) {
        // Ordering: Release pairs with the Acquire of `is_done`: the waiter sees what the item did.
        if self.state.word().swap(DONE, Ordering::Release) == SLEEPER {
            self.state.wake(u32::MAX);
        }
    }

    /// Whether it is done.
    pub(crate) fn is_done(&self) -> bool {
        // Ordering: Acquire pairs with the Release of `complete`.
        self.state.word().load(Ordering::Acquire) == DONE
    }

    /// Sleeps until done, at most until the timeout. True if done.
    pub(crate) fn wait(&self, timeout: Timeout) -> bool {
        loop {
            if self.is_done() {
                return true;
            }
            let word = self.state.word();
            // Ordering: none needed: only the sleeper's mark is set; `is_done` reads again.
            let marked = word.compare_exchange(OPEN, SLEEPER, Ordering::Relaxed, Ordering::Relaxed);
            if marked == Err(DONE) {
                continue;
            }
            if self.state.wait(SLEEPER, timeout) == Wait::TimedOut {
                return self.is_done();
            }
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::shim::thread;

    #[test]
    fn loom_a_waiter_is_woken_and_sees_the_work() {
        loom::model(|| {
            let c = Completion::new();
            let data = loom::sync::Arc::new(loom::sync::atomic::AtomicU32::new(0));
            let (c2, d2) = (Arc::clone(&c), data.clone());
            let t = thread::spawn(move || {
                d2.store(7, Ordering::Relaxed);
                c2.complete();
            });
            assert!(c.wait(Timeout::Never));
            assert_eq!(data.load(Ordering::Relaxed), 7);
            t.join().unwrap();
        });
    }
}
