//! Does the calling thread sleep about once per item that it queues? Then its CPU is free while its items wait.
//!
//! Asked when an item finds its pool at rest. The thread's voluntary context switches are read once in [`SAMPLE`] such items
//! (some 300 ns), and the answer holds for as many.

use crate::sys::cpu;
use std::cell::Cell;

/// Items between two looks at the thread's switches.
const SAMPLE: u32 = 16;

#[derive(Clone, Copy)]
struct Issuer {
    items: u32,
    sleeps: u64,
    sleepy: bool,
}

std::thread_local! {
    static ISSUER: Cell<Issuer> = const { Cell::new(Issuer { items: 0, sleeps: 0, sleepy: false }) };
}

/// The calling thread queues an item in a pool at rest. Whether it has slept about once per such item lately.
#[inline]
pub(crate) fn is_sleepy() -> bool {
    ISSUER
        .try_with(|cell| {
            let mut i = cell.get();
            i.items += 1;
            if i.items >= SAMPLE {
                let sleeps = cpu::own_voluntary_switches().unwrap_or(i.sleeps);
                i.sleepy = sleeps - i.sleeps >= u64::from(SAMPLE * 3 / 4);
                (i.items, i.sleeps) = (0, sleeps);
            }
            cell.set(i);
            i.sleepy
        })
        .unwrap_or(false)
}
