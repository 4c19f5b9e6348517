//! Taking the ownership of an item: to queue it, to cancel it, to change when it runs.

use super::{Header, ItemPtr};
use crate::pool::{link_arc, pool_by_id};
use crate::shim;
use cmwq_policy::pool::Removed;
use cmwq_policy::word::Word;

/// Where an item was when its ownership was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grabbed {
    /// Nowhere.
    Idle,
    /// In a pool; the queue's reference to it passes to the caller.
    Queued,
    /// On a timer; the timer's reference to it passes to the caller.
    Timer,
}

/// What asking a timer for the item came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OffTimer {
    /// It was armed; its reference to the item passes to the caller.
    Taken,
    /// It is not armed (any more).
    NotThere,
    /// The timer's runtime was left behind by a fork.
    Orphan,
}

/// The item was queued by the process that this one was forked from: it will not run here, and nobody will miss it.
pub(crate) fn is_orphan(seen: Word) -> bool {
    (seen.is_linked() || seen.is_submitted()) && pool_by_id(seen.pool()).is_stale()
}

/// Takes PENDING if the item is idle and enabled: the word that was found is returned, and on `Ok` the caller owns the
/// item.
#[inline]
pub(crate) fn grab_idle(h: &Header) -> Result<Word, Word> {
    let mut seen = h.word();
    loop {
        if seen.is_pending() {
            if is_orphan(seen) {
                // In this process it is idle. (The reference that the queue has is leaked, as everything of it.)
                h.try_change(seen, Word::IDLE);
            } else if h.confirm_pending(seen) {
                return Err(seen);
            }
        } else if seen.depth() > 0 {
            return Err(seen);
        } else if h.try_change(seen, seen.grabbed()) {
            return Ok(seen);
        }
        seen = h.word();
    }
}

/// Takes PENDING whatever the item's state: from an idle item, out of its pool, or off its timer (`off_timer` is asked to
/// disarm the timer of that id and says whether it did). Waits while another thread has the item in its hands.
pub(crate) fn grab(
    item: ItemPtr,
    h: &Header,
    mut off_timer: impl FnMut(u32) -> OffTimer,
) -> (Grabbed, Word) {
    let mut patience = Patience::new();
    loop {
        let seen = h.word();
        if !seen.is_pending() {
            if h.try_change(seen, seen.grabbed()) {
                return (Grabbed::Idle, seen);
            }
        } else if is_orphan(seen) {
            h.try_change(seen, Word::IDLE);
        } else if seen.is_linked() {
            if remove_linked(item, h, seen) {
                return (Grabbed::Queued, seen);
            }
        } else if seen.is_on_timer() {
            match off_timer(seen.entry()) {
                OffTimer::Taken => {
                    // Read again: it may have fired, run somewhere and been armed with the same number since `seen`.
                    let seen = h.word();
                    h.set_word(seen.grabbed());
                    return (Grabbed::Timer, seen);
                }
                OffTimer::NotThere => {}
                OffTimer::Orphan => {
                    h.try_change(seen, Word::IDLE);
                }
            }
        }
        patience.wait();
    }
}

/// Takes a queued one-shot item out of its pool. True if it will not run; the queue's reference passes to the caller.
/// False if it has been started.
pub(crate) fn take_out(item: ItemPtr, h: &Header) -> bool {
    let mut patience = Patience::new();
    loop {
        let seen = h.word();
        if !seen.is_pending() {
            return false;
        }
        if seen.is_linked() {
            let out = remove_linked(item, h, seen);
            if out {
                // It is never queued again: others who want it out must not wait for its coming back.
                h.set_word(seen.grabbed().released());
            }
            return out;
        }
        if seen.is_submitted() {
            pool_by_id(seen.pool()).absorb();
            continue;
        }
        patience.wait();
    }
}

/// Waits until no other thread has the item in its hands.
pub(crate) fn wait_transit(h: &Header) -> Word {
    let mut patience = Patience::new();
    loop {
        let seen = h.word();
        if !seen.is_in_transit() {
            return seen;
        }
        patience.wait();
    }
}

/// The word says where the item lies; under that pool's lock this is so or is not any more.
fn remove_linked(item: ItemPtr, h: &Header, seen: Word) -> bool {
    let pool = pool_by_id(seen.pool());
    let link = pool.with(|p, drv| {
        let pwq = p
            .entry(seen.entry())
            .filter(|e| e.item == item && h.word() == seen)?
            .pwq;
        // SAFETY: the pool's lock is held and the entry's pwq is linked.
        let link = unsafe { link_arc(p.pwq(pwq).tag) };
        let now = drv.now();
        if p.remove(seen.entry(), now, drv) == Removed::Started {
            return None;
        }
        h.set_word(seen.grabbed());
        Some(link)
    });
    let removed = link.is_some();
    if let Some(link) = link {
        link.wq.left_pending();
    }
    removed
}

/// How to wait for a thread that holds an item for a few hundred nanoseconds, unless it lost its CPU: look again, let others
/// run, then sleep for longer and longer, so that even a real-time waiter lets it finish.
struct Patience(u32);

impl Patience {
    fn new() -> Patience {
        Patience(0)
    }

    fn wait(&mut self) {
        self.0 += 1;
        if self.0 < 16 {
            shim::spin_loop();
        } else if self.0 < 64 || cfg!(any(loom, shuttle)) {
            shim::thread::yield_now();
        } else {
            #[cfg(not(any(loom, shuttle)))]
            std::thread::sleep(std::time::Duration::from_micros(u64::from(
                self.0.min(1000),
            )));
        }
    }
}
