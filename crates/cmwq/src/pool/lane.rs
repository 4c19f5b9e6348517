//! The submission lane: how one-shot items get into a pool without its lock while every worker that may run is busy.
//!
//! A stack of items to which issuers push with one compare-and-swap. Whoever takes the pool's lock first *absorbs* the lane:
//! takes all of it and queues the items in the order of their arrival, as if each issuer had done so itself. So the lane only
//! delays the moment of linking, and everything that is done under the lock (flushing, draining, cancelling, counting) sees
//! every item that was handed in before.
//!
//! - L1: the lane is open only while items wait, on the worklist or in a batch, and a worker runs or is on its way: it comes for the lock at
//!   its next item boundary, and the tick that watches waiting items is running. This is decided at the end of every hold of
//!   the lock. An issuer that finds the last decision about starting more workers longer ago than a wake-up takes goes by the
//!   lock, so that this is decided again if the running ones take long.
//! - L2: no item is left behind. The lock's holder closes the lane and then looks into it once more; an issuer pushes and then
//!   looks whether the lane is still open, and if not takes the lock itself. Both are sequentially consistent, so at least
//!   one of the two sees the other.
//! - L3: an item in the lane names its pwq, which is not unlinked before the lane was absorbed with no issuer on its way: an
//!   issuer holds the queue's table while it pushes, and a pwq is released only after every table that names it is gone.
//! - L4: order: items of one issuer, and of one queue, are absorbed in the order in which they were pushed; an issuer that
//!   takes the lock absorbs the lane first.

use super::effects::Driver;
use super::{Policy, link_of};
use crate::item::{Header, ItemPtr};
use crate::shim::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::workqueue::PwqLink;
use cmwq_policy::pool::{Enqueue, Time, WAKE_COST_NS};
use cmwq_policy::word::MAX_ENTRY;
use std::ptr::{self, NonNull};

/// What the lane keeps in an item. Written by the issuer before the push, read by whoever absorbs.
pub(crate) struct Submission {
    next: AtomicPtr<Header>,
    link: AtomicPtr<PwqLink>,
    queued_at: AtomicU64,
    issuer_cpu: AtomicU32,
}

impl Submission {
    pub(crate) fn new() -> Submission {
        Submission {
            next: AtomicPtr::new(ptr::null_mut()),
            link: AtomicPtr::new(ptr::null_mut()),
            queued_at: AtomicU64::new(0),
            issuer_cpu: AtomicU32::new(0),
        }
    }
}

/// See the module text.
#[repr(align(128))]
pub(super) struct Lane {
    head: AtomicPtr<Header>,
    open: AtomicBool,
    /// When it was last decided under the lock whether one more worker has to be started.
    visited: AtomicU64,
}

/// What became of a submission.
pub(super) enum Submitted {
    /// The lane is closed.
    Closed,
    /// Somebody comes for it.
    Done,
    /// The lane was closed meanwhile: take the lock.
    LookAfterIt,
}

impl Lane {
    pub(super) fn new() -> Lane {
        Lane {
            head: AtomicPtr::new(ptr::null_mut()),
            open: AtomicBool::new(false),
            visited: AtomicU64::new(0),
        }
    }

    /// Hands an item in.
    ///
    /// # Safety
    /// See [`super::RtPool::submit`].
    #[inline]
    pub(super) unsafe fn submit(
        &self,
        pool: u32,
        item: ItemPtr,
        link: &PwqLink,
        issuer_cpu: u32,
        now: Time,
    ) -> Submitted {
        if !self.open.load(Ordering::Relaxed) || link.is_draining() {
            return Submitted::Closed;
        }
        if now.saturating_sub(self.visited.load(Ordering::Relaxed)) > WAKE_COST_NS {
            return Submitted::Closed;
        }
        // SAFETY: the caller owns the item until the push below.
        let header = unsafe { item.header() };
        let s = &header.submission;
        s.link
            .store(ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        s.queued_at.store(now, Ordering::Relaxed);
        s.issuer_cpu.store(issuer_cpu, Ordering::Relaxed);
        header.set_word(header.word().submitted(pool));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            s.next.store(head, Ordering::Relaxed);
            // Ordering: SeqCst: with the look at `open` below and the two accesses in `publish` (L2). It also releases the
            // item to whoever absorbs it. After it the item is not ours.
            match self.head.compare_exchange_weak(
                head,
                item.as_ptr().as_ptr(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // Ordering: SeqCst, as above.
        if self.open.load(Ordering::SeqCst) {
            Submitted::Done
        } else {
            Submitted::LookAfterIt
        }
    }

    /// Under the lock it is decided now whether one more worker has to be started.
    #[inline]
    pub(super) fn visited(&self, now: Time) {
        self.visited.store(now, Ordering::Relaxed);
    }

    /// Queues everything that was handed in. With the pool's lock held.
    #[inline]
    pub(super) fn absorb(&self, pool: u32, policy: &mut Policy, drv: &mut Driver<'_>) {
        if !self.head.load(Ordering::Relaxed).is_null() {
            self.absorb_all(pool, policy, drv);
        }
    }

    fn absorb_all(&self, pool: u32, policy: &mut Policy, drv: &mut Driver<'_>) {
        // Ordering: Acquire pairs with the SeqCst pushes: the items' contents are ours to read.
        let mut newest = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        // Turn the chain round: first come, first queued.
        let mut oldest = ptr::null_mut::<Header>();
        while let Some(item) = NonNull::new(newest) {
            // SAFETY: the queue's side owns items in the lane, and with the lock held that is us.
            let s = unsafe { &item.as_ref().submission };
            newest = s.next.load(Ordering::Relaxed);
            s.next.store(oldest, Ordering::Relaxed);
            oldest = item.as_ptr();
        }
        while let Some(item) = NonNull::new(oldest) {
            // SAFETY: as above; not used after the item was queued and might be gone.
            let header = unsafe { item.as_ref() };
            let s = &header.submission;
            oldest = s.next.load(Ordering::Relaxed);
            let queued_at: Time = s.queued_at.load(Ordering::Relaxed);
            // SAFETY: the pwq is linked (L3) and the pool's lock is held.
            let link = unsafe { link_of(s.link.load(Ordering::Relaxed).addr() as u64) };
            let q = Enqueue {
                item: ItemPtr::new(item),
                pwq: link.id().expect("a pwq with items in the lane is linked"),
                oneshot: true,
                // It was accepted when it was handed in.
                chained: true,
                issuer_cpu: s.issuer_cpu.load(Ordering::Relaxed),
            };
            let Ok(entry) = policy.enqueue(q, queued_at, drv) else {
                unreachable!("chained queueing is not refused")
            };
            assert!(
                entry <= MAX_ENTRY,
                "more than 16 million items in one worker pool"
            );
            header.set_word(header.word().linked(pool, entry));
        }
    }

    /// Opens or closes the lane as the pool is now (L1). At the end of every hold of the pool's lock.
    #[inline]
    pub(super) fn publish(&self, pool: u32, policy: &mut Policy, drv: &mut Driver<'_>) {
        let open = policy.has_company();
        if open == self.open.load(Ordering::Relaxed) {
            return;
        }
        if open {
            self.open.store(true, Ordering::Relaxed);
            return;
        }
        // Ordering: SeqCst, with the accesses in `submit` (L2).
        self.open.store(false, Ordering::SeqCst);
        // Ordering: SeqCst, as above.
        if !self.head.load(Ordering::SeqCst).is_null() {
            self.absorb_all(pool, policy, drv);
            // What came in may make it worth opening again; the lane is closed, so nothing can be left behind by that.
            if policy.has_company() {
                self.open.store(true, Ordering::Relaxed);
            }
        }
    }
}
