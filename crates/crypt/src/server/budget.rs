//! The bytes that all requests in flight may hold together.
//!
//! First come, first served: while someone waits, nobody takes past them, so a large request is not starved by small ones.

use std::collections::VecDeque;
use std::sync::Mutex;

/// One that waits: a connection, by its reader and token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) reader: usize,
    pub(crate) token: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct State {
    free: u64,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    state: Mutex<State>,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Budget {
        Budget {
            total,
            state: Mutex::new(State {
                free: total,
                waiting: VecDeque::new(),
            }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the bytes, or queues the waiter and returns false; then a later [`release`](Self::release) grants them. A
    /// request for more than there is in all waits until everything is free and takes that.
    pub(crate) fn acquire(&self, waiter: Waiter) -> bool {
        if waiter.bytes == 0 {
            return true;
        }
        let mut s = self.lock();
        let need = waiter.bytes.min(self.total);
        if s.waiting.is_empty() && s.free >= need {
            s.free -= need;
            true
        } else {
            s.waiting.push_back(waiter);
            false
        }
    }

    /// Gives bytes back and calls `granted`, outside the lock, for each waiter that now has its bytes.
    pub(crate) fn release(&self, bytes: u64, granted: impl FnMut(Waiter)) {
        let bytes = bytes.min(self.total);
        if bytes > 0 {
            self.lock().free += bytes;
            self.turn(granted);
        }
    }

    /// Takes a waiter out of the queue; tokens are unique within a reader only. False if it is not there: then it was granted,
    /// and the bytes are to be released. Whoever waits behind it may now have its turn.
    pub(crate) fn cancel(&self, reader: usize, token: u64, granted: impl FnMut(Waiter)) -> bool {
        let found = {
            let mut s = self.lock();
            let at = s
                .waiting
                .iter()
                .position(|w| w.reader == reader && w.token == token);
            at.and_then(|at| s.waiting.remove(at)).is_some()
        };
        if found {
            self.turn(granted);
        }
        found
    }

    /// Grants from the front of the queue as long as there is enough.
    fn turn(&self, mut granted: impl FnMut(Waiter)) {
        loop {
            let next = {
                let mut s = self.lock();
                match s.waiting.front() {
                    Some(w) if s.free >= w.bytes.min(self.total) => {
                        s.free -= w.bytes.min(self.total);
                        s.waiting.pop_front()
                    }
                    _ => None,
                }
            };
            match next {
                Some(waiter) => granted(waiter),
                None => return,
            }
        }
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.total - self.lock().free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn w(token: u64, bytes: u64) -> Waiter {
        Waiter {
            reader: 0,
            token,
            bytes,
        }
    }

    #[test]
    fn first_come_first_served_and_nothing_lost() {
        let b = Budget::new(100);
        assert!(b.acquire(w(1, 60)));
        assert!(!b.acquire(w(2, 50)));
        assert!(!b.acquire(w(3, 10)), "would fit, but someone waits");
        let mut got = Vec::new();
        b.release(60, |w| got.push(w.token));
        assert_eq!(got, [2, 3]);
        assert_eq!(b.used(), 60);
        b.release(60, |_| panic!("nobody waits"));
        assert_eq!(b.used(), 0);
    }

    #[test]
    fn more_than_everything_waits_for_everything() {
        let b = Budget::new(100);
        assert!(b.acquire(w(1, 1)));
        assert!(!b.acquire(w(2, 1000)));
        let mut got = Vec::new();
        b.release(1, |w| got.push(w.token));
        assert_eq!(got, [2]);
        assert_eq!(b.used(), 100);
        b.release(1000, |_| ());
        assert_eq!(b.used(), 0);
    }

    #[test]
    fn a_cancelled_waiter_lets_the_next_one_in() {
        let b = Budget::new(100);
        assert!(b.acquire(w(1, 50)));
        assert!(!b.acquire(w(2, 80)));
        assert!(!b.acquire(w(3, 50)));
        let mut got = Vec::new();
        assert!(b.cancel(0, 2, |w| got.push(w.token)));
        assert_eq!(got, [3]);
        assert!(!b.cancel(0, 3, |_| ()), "granted already");
        assert_eq!(b.used(), 100);
    }

    /// Connections of different readers may have the same token.
    #[test]
    fn a_client_that_leaves_does_not_take_another_readers_client_out_of_the_queue() {
        let b = Budget::new(100);
        assert!(b.acquire(w(9, 100)));
        let other = Waiter {
            reader: 1,
            token: 2,
            bytes: 60,
        };
        assert!(!b.acquire(other));
        assert!(!b.acquire(w(2, 50)));
        assert!(b.cancel(0, 2, |_| panic!("nothing is free")));
        let mut got = Vec::new();
        b.release(100, |w| got.push(w));
        assert_eq!(got, [other]);
    }
}
