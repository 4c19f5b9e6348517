//! The submission lane: how one-shot items get into a pool without its lock while every worker that may run is busy.
//!
//! Issuers put items into a queue of slots (`submissions.rs`) and go on. Whoever takes the pool's lock next *absorbs* the
//! lane: queues what lies there in the order of its arrival, as if each issuer had done so itself. So the lane only delays the
//! moment of linking, and everything that is done under the lock (flushing, draining, cancelling, counting) sees every item
//! that was handed in before. Only workers that come for items, and the tick, absorb no more than they need ([`LOT`]): of a
//! deep lane each item is then touched once, shortly before it runs.
//!
//! - L1: the lane is open only while items wait, on the worklist or in a batch, and a worker runs or is on its way: it comes for the lock at
//!   its next item boundary, and the tick that watches waiting items is running. This is decided at the end of every hold of
//!   the lock. An issuer that finds the last decision about starting more workers longer ago than a wake-up takes goes by the
//!   lock unless it is held, so that this is decided again if the running ones take long.
//! - L2: no item is left behind: Q4 of the queue.
//! - L3: an item in the lane names its pwq, which is not unlinked before the lane was absorbed with no issuer on its way: an
//!   issuer holds the queue's table while it puts, and a pwq is released only after every table that names it is gone.
//! - L4: order: items of one issuer, and of one queue, are absorbed in the order in which they were put in; an issuer that
//!   queues under the lock absorbs the lane first.
//! - L5: the worklist never runs dry, nor is a queue's first waiting item unknown for long, for want of absorbing: a worker fills the
//!   worklist up to [`LOT`] before it takes from it; each tick absorbs at least [`TICK_LOT`], however long the worklist is.

use super::effects::Driver;
use super::submissions::{Blocks, Put, Submission, Submissions};
use super::{Policy, link_of};
use crate::item::{Header, ItemPtr};
use crate::shim::atomic::{AtomicU64, Ordering};
use crate::sys::cpu::prefetch;
use crate::workqueue::PwqLink;
use cmwq_policy::pool::{BATCH, Enqueue, Time, WAKE_COST_NS};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// How long the worklist is kept: two batches. More would only make holds of the lock longer.
const LOT: usize = 2 * BATCH;

/// What a tick absorbs. At 1 ms a tick, faster than items of more than 4 us leave a lane, so that an item that waits too long
/// behind slow ones is known soon.
const TICK_LOT: usize = 256;

/// How much of the lane is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// All of it.
    All,
    /// What fills the worklist.
    Lot,
    /// A tick's share.
    Tick,
}

/// See the module text.
#[repr(align(128))]
pub(super) struct Lane {
    queue: Submissions,
    /// When it was last decided under the lock whether one more worker has to be started.
    visited: AtomicU64,
}

/// What became of a submission.
pub(super) enum Submitted {
    /// The lane is closed.
    Closed,
    /// Somebody comes for it.
    Done,
    /// The queue is full: nothing was done; take the lock once.
    Full,
    /// Somebody comes for it, but it is to be decided whether one more worker is started.
    Decide,
    /// The lane was closed meanwhile: take the lock.
    LookAfterIt,
}

impl Lane {
    pub(super) fn new() -> (Lane, Blocks) {
        let (queue, blocks) = Submissions::new();
        let lane = Lane {
            queue,
            visited: AtomicU64::new(0),
        };
        (lane, blocks)
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
        if !self.queue.is_open() || link.is_draining() {
            return Submitted::Closed;
        }
        let submission = Submission {
            item: item.as_ptr(),
            link: NonNull::from(link),
            queued_at: now,
            issuer_cpu,
        };
        let put = self.queue.put(submission, || {
            // SAFETY: the caller owns the item until the slot is filled.
            let header = unsafe { item.header() };
            header.set_word(header.word().submitted(pool));
        });
        // Unless the queue is full the item is not ours any more.
        match put {
            Put::Full => return Submitted::Full,
            Put::Alone => return Submitted::LookAfterIt,
            Put::Done => {}
        }
        if now.saturating_sub(self.visited.load(Ordering::Relaxed)) > WAKE_COST_NS {
            return Submitted::Decide;
        }
        Submitted::Done
    }

    /// Under the lock it is decided now whether one more worker has to be started.
    #[inline]
    pub(super) fn visited(&self, now: Time) {
        self.visited.store(now, Ordering::Relaxed);
    }

    /// Queues what was handed in, as far as it is wanted. With the pool's lock held.
    #[inline]
    pub(super) fn absorb(
        &self,
        pool: u32,
        reach: Reach,
        blocks: &mut Blocks,
        policy: &mut Policy,
        drv: &mut Driver<'_>,
    ) {
        if self.queue.is_settled(blocks) {
            return;
        }
        policy.expect(self.queue.len(blocks));
        let most = match reach {
            Reach::All => usize::MAX,
            Reach::Lot => LOT.saturating_sub(policy.waiting()),
            Reach::Tick => TICK_LOT,
        };
        self.absorb_some(pool, most, blocks, policy, drv);
    }

    /// How many ticks' shares lie in it. With the pool's lock held.
    pub(super) fn ticks(&self, blocks: &Blocks) -> usize {
        self.queue.len(blocks) / TICK_LOT
    }

    fn absorb_some(
        &self,
        pool: u32,
        most: usize,
        blocks: &mut Blocks,
        policy: &mut Policy,
        drv: &mut Driver<'_>,
    ) {
        // In lots, so that the items, which an issuer wrote on another CPU, are fetched all at once.
        let mut lot = Lot::new();
        self.queue.take(blocks, most, |s| {
            // A small closure's cell lies on two lines as often as not.
            let item = s.item.as_ptr();
            prefetch(item);
            prefetch(item.wrapping_byte_add(48));
            lot.push(s);
            if lot.is_full() {
                lot.drain(|s| link(s, pool, policy, drv));
            }
        });
        lot.drain(|s| link(s, pool, policy, drv));
        policy.expect(self.queue.len(blocks));
    }

    /// Opens or closes the lane as the pool is now (L1). At the end of every hold of the pool's lock.
    #[inline]
    pub(super) fn publish(
        &self,
        pool: u32,
        blocks: &mut Blocks,
        policy: &mut Policy,
        drv: &mut Driver<'_>,
    ) {
        let open = policy.has_company();
        if open == self.queue.is_open() {
            return;
        }
        if open {
            self.queue.open(blocks);
            return;
        }
        let mut left = false;
        self.queue.close(blocks, |s| {
            left = true;
            link(&s, pool, policy, drv);
        });
        // What came in may make it worth opening again.
        if left && policy.has_company() {
            self.queue.open(blocks);
        }
    }
}

/// Some submissions on the stack.
struct Lot {
    len: usize,
    items: [MaybeUninit<Submission>; Lot::SIZE],
}

impl Lot {
    const SIZE: usize = 16;

    fn new() -> Lot {
        Lot {
            len: 0,
            items: [const { MaybeUninit::uninit() }; Lot::SIZE],
        }
    }

    #[inline]
    fn push(&mut self, s: Submission) {
        self.items[self.len].write(s);
        self.len += 1;
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.len == Lot::SIZE
    }

    #[inline]
    fn drain(&mut self, mut f: impl FnMut(&Submission)) {
        for s in &self.items[..std::mem::take(&mut self.len)] {
            // SAFETY: the first `len` were written.
            f(unsafe { s.assume_init_ref() });
        }
    }
}

/// Queues an item of the lane. With the pool's lock held.
#[inline]
fn link(s: &Submission, pool: u32, policy: &mut Policy, drv: &mut Driver<'_>) {
    // SAFETY: the queue's side owns items in the lane, and with the lock held that is us; not used after the item might be
    // gone.
    let header: &Header = unsafe { s.item.as_ref() };
    // SAFETY: the pwq is linked (L3) and the pool's lock is held.
    let link = unsafe { link_of(s.link.as_ptr().addr() as u64) };
    let q = Enqueue {
        item: ItemPtr::new(s.item),
        pwq: link.id().expect("a pwq with items in the lane is linked"),
        oneshot: true,
        // It was accepted when it was handed in.
        chained: true,
        issuer_cpu: s.issuer_cpu,
    };
    policy.expect_one_less();
    let Ok(entry) = policy.enqueue(q, s.queued_at, drv) else {
        unreachable!("chained queueing is not refused")
    };
    header.set_linked(pool, entry);
}
