//! Does the calling thread sleep about once per item that it queues? Then its CPU is free while its items wait.
//!
//! Asked when an item finds its pool at rest. The thread's context switches are read once in [`SAMPLE`] such items
//! (some 300 ns), and the answer holds for as many, or longer once it is yes.
//!
//! Once its items run beside it, a worker may take the CPU from an issuer before it comes to sleep; when it goes on, its item is
//! done, and it never sleeps: it looks as one that does not wait. So from time to time its items are sent elsewhere, where it has to
//! sleep if it waits; the more rarely, the more often it did.

use crate::sys::cpu;
use std::cell::Cell;

/// Items between two looks at the switches of a thread that is not known to sleep.
const SAMPLE: u32 = 16;
/// For so many items at first, and at most, a thread that is known to sleep may be found running instead.
const FIRST_TRUST: u32 = 512;
const LONGEST_TRUST: u32 = 16_384;

#[derive(Debug, Clone, Copy)]
struct Issuer {
    /// Items since the last look.
    items: u32,
    voluntary: u64,
    involuntary: u64,
    sleepy: bool,
    /// For so many items that did not make it sleep it is still believed to.
    trust: u32,
    left: u32,
}

impl Issuer {
    const NEW: Issuer = Issuer {
        items: 0,
        voluntary: 0,
        involuntary: 0,
        sleepy: false,
        trust: FIRST_TRUST,
        left: 0,
    };

    /// A sample is over, with so many switches.
    fn judge(&mut self, voluntary: u64, involuntary: u64) {
        let enough = u64::from(SAMPLE * 3 / 4);
        if voluntary >= enough {
            if !self.sleepy {
                self.sleepy = true;
                self.trust = (self.trust * 2).min(LONGEST_TRUST);
            }
            self.left = self.trust;
        } else if self.sleepy && voluntary + involuntary >= enough && self.left > SAMPLE {
            self.left -= SAMPLE;
        } else if self.sleepy {
            self.sleepy = false;
        } else {
            self.trust = (self.trust / 2).max(FIRST_TRUST);
        }
    }
}

std::thread_local! {
    static ISSUER: Cell<Issuer> = const { Cell::new(Issuer::NEW) };
}

/// The calling thread queues an item in a pool at rest. Whether it has slept about once per such item lately.
#[inline]
pub(crate) fn is_sleepy() -> bool {
    ISSUER
        .try_with(|cell| {
            let mut i = cell.get();
            i.items += 1;
            if i.items >= SAMPLE {
                i.items = 0;
                if let Ok(now) = cpu::own_usage() {
                    let voluntary = now.voluntary.saturating_sub(i.voluntary);
                    let involuntary = now.involuntary.saturating_sub(i.involuntary);
                    (i.voluntary, i.involuntary) = (now.voluntary, now.involuntary);
                    i.judge(voluntary, involuntary);
                }
            }
            cell.set(i);
            i.sleepy
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In how many of so many samples an issuer is taken for one that sleeps: `switches` says what a sample has, by that.
    fn believed(samples: u32, i: &mut Issuer, switches: impl Fn(bool) -> (u64, u64)) -> u32 {
        let mut n = 0;
        for _ in 0..samples {
            n += u32::from(i.sleepy);
            let (voluntary, involuntary) = switches(i.sleepy);
            i.judge(voluntary, involuntary);
        }
        n
    }

    #[test]
    fn an_issuer_whose_worker_comes_before_it_sleeps_stays_one_that_sleeps() {
        let mut i = Issuer::NEW;
        let waits = |beside| if beside { (0, 16) } else { (16, 0) };
        assert!(believed(50, &mut i, waits) > 40);
        assert!(believed(100_000, &mut i, waits) > 99_700);
    }

    #[test]
    fn an_issuer_that_never_waits_is_never_believed_to() {
        let mut i = Issuer::NEW;
        let goes_on = |beside| if beside { (0, 16) } else { (0, 0) };
        assert_eq!(believed(1000, &mut i, goes_on), 0);
    }

    #[test]
    fn an_issuer_that_stops_waiting_is_found_out() {
        let mut i = Issuer::NEW;
        believed(100_000, &mut i, |_| (16, 0));
        let goes_on = |beside| if beside { (0, 16) } else { (0, 0) };
        let n = believed(100_000, &mut i, goes_on);
        assert!(n <= LONGEST_TRUST / SAMPLE, "{n}");
        assert!(
            believed(
                100,
                &mut Issuer {
                    sleepy: true,
                    ..Issuer::NEW
                },
                |_| (0, 0)
            ) <= 1
        );
    }
}
