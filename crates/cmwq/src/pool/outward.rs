//! What a pool shows to the workers of other pods, and who they are.
//!
//! A pool whose items other pods may run publishes two words at the end of every hold of its lock (a compare each, and a store when
//! it changed): since when its first unstarted item waits, whether its own workers will not get to it, whether it has a CPU to
//! spare; and from when on a worker of it may be called. A worker about to sleep reads the words of a bounded number of near pools ([`cmwq_policy::help`]) without any lock.
//! The words are hints: whoever acts on one takes the pool's lock and looks again.
//!
//! Who is near is worked out when pools come and go, never while items run.

use super::{Policy, RtPool, pool_by_id};
use arc_swap::ArcSwap;
use cmwq_policy::help::{self, Neighbour, Waiting};
use cmwq_policy::pool::{Outlook, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The near pools of one pool, nearest first; `pod` of a neighbour is a pool's number.
#[derive(Debug, Default)]
pub(crate) struct Near {
    pub(crate) list: Vec<Neighbour>,
    /// Per neighbour: which use of the pool's memory is meant.
    pub(crate) uses: Vec<u64>,
}

/// See the module text.
pub(crate) struct Outward {
    /// The outlook, packed, but for the time from when on a worker may be called. Written with the pool's lock held.
    word: AtomicU64,
    idle_from: AtomicU64,
    /// Grows with each new use of the pool's memory; changed with the pool's lock held.
    uses: AtomicU64,
    near: ArcSwap<Near>,
    /// The pool that called for a helper last, packed; 0 = none that still waits for one.
    call: AtomicU64,
    /// A helper that was called here found that others want its CPU: none is called before this time.
    vain_until: AtomicU64,
    /// Items of other pools that this pool's workers ran.
    given: AtomicU64,
}

const BEHIND: u64 = 1;
const SPARE: u64 = 2;
const FLAGS: u32 = 2;
/// A call: the caller's number, whether it is far, the use of its memory as far as there is room.
const FAR_SHIFT: u32 = 32;
const USE_SHIFT: u32 = 33;

impl Outward {
    pub(super) fn new() -> Outward {
        Outward {
            word: AtomicU64::new(0),
            idle_from: AtomicU64::new(u64::MAX),
            uses: AtomicU64::new(0),
            near: ArcSwap::from_pointee(Near::default()),
            call: AtomicU64::new(0),
            vain_until: AtomicU64::new(0),
            given: AtomicU64::new(0),
        }
    }

    /// The pool's memory is used anew, or not at all any more. With the pool's lock held.
    pub(super) fn next_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.word.store(0, Ordering::Relaxed);
        self.idle_from.store(u64::MAX, Ordering::Relaxed);
        self.near.store(Arc::default());
        self.call.store(0, Ordering::Relaxed);
        self.vain_until.store(0, Ordering::Relaxed);
        self.given.store(0, Ordering::Relaxed);
    }

    /// A worker of this pool ran an item of another one.
    pub(super) fn note_given(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    /// How many items of other pools this pool's workers ran.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Which use of the pool's memory this is; exact with the pool's lock held.
    pub(crate) fn this_use(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Publishes what is so now. With the pool's lock held. Returns since when the first unstarted item waits, or 0.
    #[inline]
    pub(super) fn publish(&self, policy: &Policy) -> Time {
        let o = policy.outlook();
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        let word = o.oldest << FLAGS | flag(o.behind, BEHIND) | flag(o.spare, SPARE);
        if self.word.load(Ordering::Relaxed) != word {
            self.word.store(word, Ordering::Relaxed);
        }
        if self.idle_from.load(Ordering::Relaxed) != o.idle_from {
            self.idle_from.store(o.idle_from, Ordering::Relaxed);
        }
        o.oldest
    }

    /// What was published last.
    #[inline]
    pub(crate) fn outlook(&self) -> Outlook {
        let word = self.word.load(Ordering::Relaxed);
        Outlook {
            oldest: word >> FLAGS,
            behind: word & BEHIND != 0,
            spare: word & SPARE != 0,
            idle_from: self.idle_from.load(Ordering::Relaxed),
        }
    }

    /// Who is near.
    pub(crate) fn near(&self) -> arc_swap::Guard<Arc<Near>> {
        self.near.load()
    }

    pub(crate) fn set_near(&self, near: Near) {
        self.near.store(Arc::new(near));
    }

    /// The pool of this number and use wants a helper from this one.
    pub(crate) fn called_by(&self, pool: u32, this_use: u64, far: bool) {
        let call = (this_use << USE_SHIFT) | (u64::from(far) << FAR_SHIFT) | u64::from(pool);
        self.call.store(call, Ordering::Relaxed);
    }

    /// A helper that was called came to a CPU that others want: none is called for a while. True if one had been called.
    pub(crate) fn came_in_vain(&self, now: Time) -> bool {
        if self.call.swap(0, Ordering::Relaxed) == 0 {
            return false;
        }
        self.vain_until
            .store(now + help::VAIN_NS, Ordering::Relaxed);
        true
    }

    /// A worker of this pool could be called to help.
    fn has_spare(&self, now: Time) -> bool {
        self.outlook().is_idle(now) && self.vain_until.load(Ordering::Relaxed) <= now
    }

    /// Whether one of the near pools has a CPU to spare, those of other nodes included if `far`.
    pub(crate) fn spare_near(&self, far: bool, now: Time) -> bool {
        let near = self.near.load();
        let mut near = near.list.iter().filter(|n| far || !n.far);
        near.any(|n| pool_by_id(n.pod).outward.has_spare(now))
    }

    /// Who called, if its work still waits for helpers.
    fn caller(
        &self,
        hedge_ns: u64,
        now: impl Fn() -> Time,
    ) -> Option<(&'static RtPool, u64, bool)> {
        let call = self.call.load(Ordering::Relaxed);
        if call == 0 {
            return None;
        }
        let pool = pool_by_id(call as u32);
        let this_use = pool.outward.this_use();
        let o = pool.outward.outlook();
        let wanted = this_use << USE_SHIFT == call >> USE_SHIFT << USE_SHIFT
            && o.oldest != 0
            && help::still_wanted(waiting(&o, now()), hedge_ns);
        if !wanted {
            // Another call may have come meanwhile: that one stays.
            let (set, load) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.call.compare_exchange(call, 0, set, load);
            return None;
        }
        Some((pool, this_use, call >> FAR_SHIFT & 1 != 0))
    }

    /// The pool that a worker of this one should help before it sleeps, with the use that is meant and whether it is far: who
    /// called for help, else the nearest one with work.
    #[inline]
    pub(crate) fn whom_to_help(
        &self,
        hedge_ns: u64,
        now: impl Fn() -> Time,
    ) -> Option<(&'static RtPool, u64, bool)> {
        if let Some(caller) = self.caller(hedge_ns, &now) {
            return Some(caller);
        }
        let near = self.near.load();
        if near.list.is_empty() {
            return None;
        }
        let id = help::whom_to_help(&near.list, hedge_ns, |id| {
            let o = pool_by_id(id).outward.outlook();
            (o.oldest != 0).then(|| waiting(&o, now()))
        })?;
        let i = near.list.iter().position(|n| n.pod == id)?;
        Some((pool_by_id(id), near.uses[i], near.list[i].far))
    }

    /// The nearest pool with a CPU to spare, for an item that waits for `oldest_ns`, with its use and whether it is far.
    pub(crate) fn whom_to_offer(
        &self,
        hedge_ns: u64,
        oldest_ns: u64,
        now: Time,
    ) -> Option<(&'static RtPool, u64, bool)> {
        let near = self.near.load();
        let idle = |id: u32| pool_by_id(id).outward.has_spare(now);
        let id = help::whom_to_offer(&near.list, hedge_ns, oldest_ns, idle)?;
        let i = near.list.iter().position(|n| n.pod == id)?;
        Some((pool_by_id(id), near.uses[i], near.list[i].far))
    }
}

fn waiting(o: &Outlook, now: Time) -> Waiting {
    Waiting {
        oldest_ns: now.saturating_sub(o.oldest),
        saturated: o.behind,
    }
}
