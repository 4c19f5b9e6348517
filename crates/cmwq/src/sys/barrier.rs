//! Memory barriers of two weights: the frequent side pays nothing, the rare side interrupts every thread of the process.
//!
//! [`light`] orders the caller's earlier stores before its later loads as far as whoever calls [`heavy`] is concerned: after `heavy`
//! returned, either the other thread's store before its `light` is visible here, or its load after it sees what was stored here
//! before `heavy` (the store-load case, which takes a full fence otherwise: 20 cycles and more, as it waits for all earlier
//! stores). `membarrier(2)`, expedited, Linux 4.14; without it both are full fences.

use crate::shim::atomic::{Ordering, fence};
use std::sync::atomic::{AtomicBool, compiler_fence};

/// The system has given its word: `light` needs no fence. Set before the first runtime exists, and unset for good if the call
/// is denied later.
static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: no pointers; unknown commands are refused.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Asks the system for the fast way. To be called before anybody relies on these barriers; about 1 us, longer in a process of
/// many threads; does nothing the second time.
pub(crate) fn prepare() {
    if cfg!(any(loom, shuttle, miri)) || ASYMMETRIC.load(Ordering::Relaxed) {
        return;
    }
    if membarrier(REGISTER_PRIVATE_EXPEDITED) {
        ASYMMETRIC.store(true, Ordering::Relaxed);
    }
}

/// The frequent side.
#[inline]
pub(crate) fn light() {
    if ASYMMETRIC.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        // Ordering: SeqCst: this is the full fence.
        fence(Ordering::SeqCst);
    }
}

/// The rare side: 1 to 10 us and an interrupt on each CPU where a thread of the process runs.
pub(crate) fn heavy() {
    // Ordering: SeqCst: the caller's own full fence, and the whole of it where the others fence, too.
    fence(Ordering::SeqCst);
    if !ASYMMETRIC.load(Ordering::Relaxed) || membarrier(PRIVATE_EXPEDITED) {
        return;
    }
    // Denied since (a filter for system calls): from now on everybody fences. Those who were past their `light` at this moment have
    // their stores drained long before this sleep ends, and it comes once in a process's life.
    ASYMMETRIC.store(false, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(10));
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn of_a_light_and_a_heavy_side_at_least_one_sees_the_other() {
        prepare();
        if !ASYMMETRIC.load(Ordering::Relaxed) {
            println!("skipped: no membarrier here");
        }
        let (a, b) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let seen = Arc::new(AtomicU64::new(0));
        for round in 1..=2000_u64 {
            let (x, y, s) = (Arc::clone(&a), Arc::clone(&b), Arc::clone(&seen));
            let other = std::thread::spawn(move || {
                x.store(round, Ordering::Relaxed);
                light();
                s.store(y.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            b.store(round, Ordering::Relaxed);
            heavy();
            let here = a.load(Ordering::Relaxed);
            other.join().unwrap();
            let there = seen.load(Ordering::Relaxed);
            assert!(
                here == round || there == round,
                "round {round}: {here} {there}"
            );
        }
    }
}
