//! The futex of the model checkers: the same interface, made of the model's mutex and condition variable.
//!
//! A timed wait in a model looks once, lets others run, and reports that the time is over. Models have no time, and this way
//! the checker explores a wake-up before, during and after the moment of giving up.
//!
//! The stand-in's mutex orders a waker before the waiter that it wakes, which the real call does not promise. Protocols must
//! not lean on that; each has a model in which the waiter finds the word changed and never enters the stand-in.

use crate::shim::atomic::{AtomicU32, Ordering};
use crate::shim::{Arc, Condvar, Mutex, thread};

use super::futex::{Timeout, Wait};

#[derive(Debug)]
struct Bed {
    /// Sleepers, and how many of them have been told to wake.
    sleepers: Mutex<(u32, u32)>,
    wake: Condvar,
}

/// See the real one.
#[derive(Debug)]
pub(crate) struct Futex {
    word: AtomicU32,
    bed: Arc<Bed>,
}

/// See the real one.
#[derive(Clone, Debug)]
pub(crate) struct FutexWaker(Arc<Bed>);

impl Futex {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            bed: Arc::new(Bed {
                sleepers: Mutex::new((0, 0)),
                wake: Condvar::new(),
            }),
        }
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    pub(crate) fn wait(&self, expected: u32, timeout: Timeout) -> Wait {
        let mut state = self.bed.sleepers.lock();
        if self.word.load(Ordering::Relaxed) != expected {
            return Wait::Changed;
        }
        if timeout != Timeout::Never {
            drop(state);
            thread::yield_now();
            return Wait::TimedOut;
        }
        state.0 += 1;
        loop {
            state = self.bed.wake.wait(state);
            if state.1 > 0 {
                state.0 -= 1;
                state.1 -= 1;
                return Wait::Woken;
            }
        }
    }

    pub(crate) fn wake(&self, count: u32) -> u32 {
        self.waker().wake(count)
    }

    pub(crate) fn waker(&self) -> FutexWaker {
        FutexWaker(Arc::clone(&self.bed))
    }
}

impl FutexWaker {
    pub(crate) fn wake(self, count: u32) -> u32 {
        let mut state = self.0.sleepers.lock();
        let n = count.min(state.0 - state.1);
        state.1 += n;
        if n > 0 {
            self.0.wake.notify_all();
        }
        n
    }
}
