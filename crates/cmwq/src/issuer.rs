//! Does the calling thread sleep about once per item that it queues? Then its CPU is free while its items wait.
//!
//! Asked when an item finds its pool at rest. The thread's context switches are read once in [`SAMPLE`] such items
//! (some 300 ns), and the answer holds for as many, or longer once it is yes.
//!
//! Once its items run beside it, a worker may take the CPU from an issuer before it comes to sleep; when it goes on, its item is
//! done, and it never sleeps. So a yes stands as long as its CPU changes hands about once per item and it still sleeps for a good part
//! of them; an issuer that never waits loses its CPU to each item and does not sleep: the answer becomes no.

use crate::sys::cpu;
use std::cell::Cell;

/// Items between two looks at the switches of a thread that is not known to sleep...
const SAMPLE: u32 = 16;
/// ...and of one that is: so many that those it did not sleep for, because a worker came first, do not hide the rest.
const SLEEPY_SAMPLE: u32 = 64;

#[derive(Clone, Copy)]
struct Issuer {
    items: u32,
    voluntary: u64,
    involuntary: u64,
    sleepy: bool,
}

impl Issuer {
    /// The answer after `items` items and so many switches.
    fn judge(&self, voluntary: u64, involuntary: u64) -> bool {
        let items = u64::from(self.items);
        if self.sleepy {
            voluntary + involuntary >= items * 3 / 4 && voluntary >= items / 4
        } else {
            voluntary >= items * 3 / 4
        }
    }
}

std::thread_local! {
    static ISSUER: Cell<Issuer> = const {
        Cell::new(Issuer { items: 0, voluntary: 0, involuntary: 0, sleepy: false })
    };
}

/// The calling thread queues an item in a pool at rest. Whether it has slept about once per such item lately.
#[inline]
pub(crate) fn is_sleepy() -> bool {
    ISSUER
        .try_with(|cell| {
            let mut i = cell.get();
            i.items += 1;
            if i.items >= if i.sleepy { SLEEPY_SAMPLE } else { SAMPLE } {
                if let Ok(now) = cpu::own_usage() {
                    i.sleepy = i.judge(
                        now.voluntary.saturating_sub(i.voluntary),
                        now.involuntary.saturating_sub(i.involuntary),
                    );
                    (i.voluntary, i.involuntary) = (now.voluntary, now.involuntary);
                }
                i.items = 0;
            }
            cell.set(i);
            i.sleepy
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(sleepy: bool) -> Issuer {
        Issuer {
            items: 64,
            voluntary: 0,
            involuntary: 0,
            sleepy,
        }
    }

    #[test]
    fn an_issuer_whose_worker_often_comes_first_stays_one_that_sleeps() {
        assert!(issuer(false).judge(64, 0));
        assert!(issuer(true).judge(64, 0));
        assert!(issuer(true).judge(20, 40));
        assert!(!issuer(false).judge(20, 40), "it has to be seen first");
    }

    #[test]
    fn an_issuer_that_only_loses_its_cpu_is_not_one_that_sleeps() {
        assert!(!issuer(true).judge(0, 64));
        assert!(!issuer(true).judge(0, 0));
        assert!(!issuer(true).judge(20, 10), "it goes on for most items");
    }
}
