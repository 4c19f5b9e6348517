//! Flush colours: waiting for everything queued before, undelayed by what comes later.
//!
//! Every item is stamped with its queue's colour. A flush takes the current colour, moves the queue on to the next one and
//! waits until no item of its colour or an older one is left in any pwq. 16 colours go round; when none is free, later
//! flushers wait and then share one. Unlike the kernel's cascade no flusher has a special role: each colour has its own
//! count, so flushes of different colours finish independently, in order. Invariants:
//!
//! - F1: colours from `oldest` up to, not including, `colour` are being flushed; `colour` is never one of them.
//! - F2: while pwqs are being armed, no other flush begins: all pwqs step through the colours in the same order.
//! - F3: a flush of colour `c` ends when `c` and every older colour have no armed pwq left.
//! - F4: all who overflowed share the next free colour.

use crate::pool::COLOURS;

/// Arm every pwq of the queue with [`crate::pool::Pool::arm_flush`]`(flush, next)`: call [`Flush::expect`] before each, and
/// [`Flush::done`] for each that was not armed, for each [`crate::pool::Driver::flushed`], and once at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arm {
    /// The colour to wait for.
    pub flush: u8,
    /// The colour of new items.
    pub next: u8,
}

/// The flush state of one workqueue; `W` names a waiting flusher.
#[derive(Debug, Clone)]
pub struct Flush<W> {
    colour: u8,
    oldest: u8,
    armed: [u32; COLOURS],
    waiters: [Vec<W>; COLOURS],
    overflow: Vec<W>,
    arming: bool,
}

impl<W> Default for Flush<W> {
    fn default() -> Self {
        Flush {
            colour: 0,
            oldest: 0,
            armed: [0; COLOURS],
            waiters: std::array::from_fn(|_| Vec::new()),
            overflow: Vec::new(),
            arming: false,
        }
    }
}

fn after(colour: u8) -> u8 {
    (colour + 1) % COLOURS as u8
}

impl<W> Flush<W> {
    /// The colour of new items; a new pwq starts with it.
    pub fn colour(&self) -> u8 {
        self.colour
    }

    /// How many flushers wait.
    pub fn waiting(&self) -> usize {
        self.overflow.len() + self.waiters.iter().map(Vec::len).sum::<usize>()
    }

    /// A flusher arrives. `Some`: the caller arms the pwqs now. `None`: it waits; whoever ends the present flush arms for it.
    #[must_use]
    pub fn begin(&mut self, waiter: W) -> Option<Arm> {
        self.overflow.push(waiter);
        self.start_next()
    }

    fn start_next(&mut self) -> Option<Arm> {
        let next = after(self.colour);
        if self.arming || self.overflow.is_empty() || next == self.oldest {
            return None;
        }
        let flush = self.colour;
        self.arming = true;
        self.armed[flush as usize] = 1; // the guard: arming is not over
        self.waiters[flush as usize] = std::mem::take(&mut self.overflow);
        self.colour = next;
        Some(Arm { flush, next })
    }

    /// One more pwq may turn out to be armed for `colour`.
    pub fn expect(&mut self, colour: u8) {
        self.armed[colour as usize] += 1;
    }

    /// All pwqs have been visited.
    #[must_use]
    pub fn armed_all(&mut self, colour: u8, done: &mut Vec<W>) -> Option<Arm> {
        self.arming = false;
        self.done(colour, done)
    }

    /// One pwq has nothing of `colour` left. Flushers that are through are appended to `done`. `Some`: the caller arms the
    /// pwqs for those who overflowed.
    #[must_use]
    pub fn done(&mut self, colour: u8, done: &mut Vec<W>) -> Option<Arm> {
        debug_assert!(self.armed[colour as usize] > 0);
        self.armed[colour as usize] -= 1;
        while self.oldest != self.colour && self.armed[self.oldest as usize] == 0 {
            done.append(&mut self.waiters[self.oldest as usize]);
            self.oldest = after(self.oldest);
        }
        self.start_next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// One pwq; items finish in any order.
    #[derive(Default)]
    struct Model {
        flush: Flush<u32>,
        pwq_colour: u8,
        in_flight: [HashSet<u32>; COLOURS],
        armed: [bool; COLOURS],
        waits_for: std::collections::HashMap<u32, HashSet<u32>>,
        finished: HashSet<u32>,
    }

    impl Model {
        fn arm(&mut self, mut arm: Option<Arm>) {
            while let Some(a) = arm {
                self.flush.expect(a.flush);
                self.pwq_colour = a.next;
                let mut done = Vec::new();
                arm = None;
                if self.in_flight[a.flush as usize].is_empty() {
                    arm = self.flush.done(a.flush, &mut done);
                    assert!(arm.is_none());
                } else {
                    self.armed[a.flush as usize] = true;
                }
                arm = self.flush.armed_all(a.flush, &mut done).or(arm);
                self.through(done);
            }
        }
        fn through(&mut self, done: Vec<u32>) {
            for f in done {
                let before = &self.waits_for[&f];
                assert!(
                    before.iter().all(|i| self.finished.contains(i)),
                    "F3: flusher {f} waits for all before it"
                );
                self.waits_for.remove(&f);
            }
        }
        fn finish(&mut self, item: u32) {
            self.finished.insert(item);
            let c = (0..COLOURS)
                .find(|&c| self.in_flight[c].contains(&item))
                .unwrap();
            self.in_flight[c].remove(&item);
            if self.in_flight[c].is_empty() && std::mem::take(&mut self.armed[c]) {
                let mut done = Vec::new();
                let arm = self.flush.done(c as u8, &mut done);
                self.through(done);
                self.arm(arm);
            }
        }
    }

    proptest! {
        #[test]
        fn f1_f4_a_flush_waits_for_all_before_it_and_ends(ops in proptest::collection::vec((0u8..3, any::<usize>()), 1..300)) {
            let mut m = Model::default();
            let mut live: Vec<u32> = Vec::new();
            for (n, (what, pick)) in ops.into_iter().enumerate() {
                let n = n as u32;
                match what {
                    0 => {
                        m.in_flight[m.pwq_colour as usize].insert(n);
                        live.push(n);
                    }
                    1 => {
                        m.waits_for.insert(n, live.iter().copied().collect());
                        let arm = m.flush.begin(n);
                        m.arm(arm);
                    }
                    _ if !live.is_empty() => {
                        let item = live.swap_remove(pick % live.len());
                        m.finish(item);
                    }
                    _ => {}
                }
            }
            for item in live {
                m.finish(item);
            }
            prop_assert!(m.waits_for.is_empty(), "every flusher gets through once all is done");
            prop_assert_eq!(m.flush.waiting(), 0);
        }
    }
}
