//! The queue behind the submission lane: many issuers put, whoever holds the pool's lock takes.
//!
//! Blocks of slots. An issuer takes a number from the current block and fills that slot; the taker reads slots in the order
//! of their numbers. Blocks are exchanged under the pool's lock only, so an issuer never waits for another one: where the
//! block has no number left, it goes by the lock. A block's memory is kept for the pool's next one, never given back: an
//! issuer may hold its address from long ago, and then finds no number left in it, or that it is the current one again.
//!
//! - Q1: a slot that is filled is taken once. Numbers are handed out by one atomic addition; only the lock's holder takes.
//! - Q2: order. The taker first reads how many numbers are given out and looks at no slot beyond. An issuer that was given
//!   a number had filled all its earlier ones, so a gap (a number given out, its slot not filled yet) never hides an
//!   earlier item of an issuer whose later one is taken. The same holds for any two puts of which one happened before the other.
//! - Q3: nothing is hidden behind a gap: slots beyond it are taken, the gap is looked at again each time.
//! - Q4: while the queue is open somebody comes for what is in it; nothing is left in a closed one. Who closes it looks into it
//!   once more after that; who puts looks, after getting a number, whether it is still open, and if not takes the lock after
//!   filling the slot. Number, reading of the numbers, closing and the look are sequentially consistent, so the closer knows of every number whose
//!   owner found the queue open. If such a slot is still empty, the closer raises `orphans` and then has every thread pass
//!   a barrier: either the slot is filled by then, or its owner sees the flag after filling it and takes the lock. Thus the
//!   frequent side has one atomic read-modify-write and no fence.

use crate::item::Header;
use crate::shim::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sys::barrier;
use crate::workqueue::PwqLink;
use std::collections::VecDeque;
use std::ptr::{self, NonNull};

/// Slots of a block: 4 KiB of them.
const SLOTS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 128 };

/// An item on its way into a pool.
#[derive(Clone, Copy)]
pub(super) struct Submission {
    pub(super) item: NonNull<Header>,
    pub(super) link: NonNull<PwqLink>,
    pub(super) queued_at: u64,
    pub(super) issuer_cpu: u32,
}

struct Slot {
    /// Null: not filled. [`taken_mark`]: taken, behind a gap.
    item: AtomicPtr<Header>,
    link: AtomicPtr<PwqLink>,
    queued_at: AtomicU64,
    issuer_cpu: AtomicU32,
}

impl Slot {
    /// What was put in with this item.
    fn submission(&self, item: NonNull<Header>) -> Submission {
        let link = NonNull::new(self.link.load(Ordering::Relaxed));
        Submission {
            item,
            link: link.expect("a slot is filled before its item is seen"),
            queued_at: self.queued_at.load(Ordering::Relaxed),
            issuer_cpu: self.issuer_cpu.load(Ordering::Relaxed),
        }
    }
}

/// loom takes sequentially consistent accesses for acquiring and releasing ones; it knows only such fences. The others need none here.
#[inline]
fn modelled_order() {
    #[cfg(loom)]
    // Ordering: SeqCst: stands for the order of the accesses around it.
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// What no item's address is.
fn taken_mark() -> *mut Header {
    ptr::without_provenance_mut(1)
}

#[repr(align(128))]
struct Numbers(AtomicU32);

struct Block {
    /// How many numbers were asked for; from [`SLOTS`] on there is none.
    numbers: Numbers,
    /// All slots before this one were taken. Only for the lock's holder.
    read: AtomicU32,
    slots: [Slot; SLOTS],
}

impl Block {
    fn new() -> Box<Block> {
        Box::new(Block {
            numbers: Numbers(AtomicU32::new(0)),
            read: AtomicU32::new(0),
            slots: std::array::from_fn(|_| Slot {
                item: AtomicPtr::new(ptr::null_mut()),
                link: AtomicPtr::new(ptr::null_mut()),
                queued_at: AtomicU64::new(0),
                issuer_cpu: AtomicU32::new(0),
            }),
        })
    }

    fn read(&self) -> usize {
        self.read.load(Ordering::Relaxed) as usize
    }

    /// How many slots are, or are about to be, filled.
    fn given(&self) -> usize {
        // Ordering: SeqCst, with closing (Q4); also Acquire, for Q2.
        (self.numbers.0.load(Ordering::SeqCst) as usize).min(SLOTS)
    }

    /// Takes what is filled before `end`, at most `most`. Returns how many.
    fn take(&self, end: usize, most: usize, sink: &mut impl FnMut(Submission)) -> usize {
        let (mut n, mut gap) = (0, false);
        let mut i = self.read();
        while i < end && n < most {
            let slot = &self.slots[i];
            // Ordering: Acquire: the slot's contents, and the item's, are there.
            match NonNull::new(slot.item.load(Ordering::Acquire)) {
                None => gap = true,
                Some(item) => {
                    let over = if gap { taken_mark() } else { ptr::null_mut() };
                    slot.item.store(over, Ordering::Relaxed);
                    if item.as_ptr() != taken_mark() {
                        sink(slot.submission(item));
                        n += 1;
                    }
                }
            }
            i += 1;
            if !gap {
                self.read.store(i as u32, Ordering::Relaxed);
            }
        }
        n
    }
}

/// What became of an item that was to be put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// Somebody comes for it.
    Done,
    /// It is in, but nobody might come: take the lock.
    Alone,
    /// No number was left, nothing was done: who holds the lock next makes room.
    Full,
}

/// The issuers' side.
pub(super) struct Submissions {
    open: AtomicBool,
    /// A slot was empty when the queue was closed.
    orphans: AtomicBool,
    /// Null until the pool's lock was held once. Exchanged under that lock.
    current: AtomicPtr<Block>,
}

/// The taker's side; guarded by the pool's lock.
pub(super) struct Blocks {
    /// Blocks without numbers left, oldest first, that were not taken altogether.
    full: VecDeque<NonNull<Block>>,
    /// Blocks for later: every slot empty, no numbers left.
    spare: Vec<NonNull<Block>>,
}

// SAFETY: the addresses of blocks that are shared through atomics; this side of them belongs to the lock's holder.
unsafe impl Send for Blocks {}

impl Submissions {
    pub(super) fn new() -> (Submissions, Blocks) {
        let side = Submissions {
            open: AtomicBool::new(false),
            orphans: AtomicBool::new(false),
            current: AtomicPtr::new(ptr::null_mut()),
        };
        let blocks = Blocks {
            full: VecDeque::new(),
            spare: Vec::new(),
        };
        (side, blocks)
    }

    /// Whether somebody comes for what is put in. A hint, but for the lock's holder.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// From now on somebody comes. With the pool's lock held.
    pub(super) fn open(&self, blocks: &mut Blocks) {
        self.renew(blocks);
        self.open.store(true, Ordering::Relaxed);
    }

    /// From now on nobody comes; what is in the queue goes to `sink`. With the pool's lock held.
    pub(super) fn close(&self, blocks: &mut Blocks, mut sink: impl FnMut(Submission)) {
        // Ordering: SeqCst: before the reading of the numbers (Q4).
        self.open.store(false, Ordering::SeqCst);
        modelled_order();
        if self.is_settled(blocks) {
            return;
        }
        self.take(blocks, usize::MAX, &mut sink);
        if self.len(blocks) > 0 {
            self.orphans.store(true, Ordering::Relaxed);
            barrier::heavy();
            self.take(blocks, usize::MAX, &mut sink);
        }
    }

    /// Puts an item in. `ready` is called between getting a number and filling the slot.
    #[inline]
    pub(super) fn put(&self, s: Submission, ready: impl FnOnce()) -> Put {
        // Ordering: Acquire pairs with the Release of `renew`.
        let block = self.current.load(Ordering::Acquire);
        // SAFETY: null or a block, and those are never freed.
        let Some(block) = (unsafe { block.as_ref() }) else {
            return Put::Full;
        };
        // Ordering: SeqCst: before the look at `open` (Q4). Acquire: the slot's former contents were read; Release: who is
        // given a number has filled its earlier ones (Q2).
        let number = block.numbers.0.fetch_add(1, Ordering::SeqCst) as usize;
        let Some(slot) = block.slots.get(number) else {
            return Put::Full;
        };
        modelled_order();
        // Ordering: SeqCst, as above.
        let open = self.open.load(Ordering::SeqCst);
        ready();
        slot.link.store(s.link.as_ptr(), Ordering::Relaxed);
        slot.queued_at.store(s.queued_at, Ordering::Relaxed);
        slot.issuer_cpu.store(s.issuer_cpu, Ordering::Relaxed);
        // Ordering: Release hands the slot and the item over.
        slot.item.store(s.item.as_ptr(), Ordering::Release);
        barrier::light();
        if open && !self.orphans.load(Ordering::Relaxed) {
            Put::Done
        } else {
            Put::Alone
        }
    }

    /// Whether nothing is, or is about to be, put in, and numbers are left. With the pool's lock held.
    #[inline]
    pub(super) fn is_settled(&self, blocks: &Blocks) -> bool {
        // SAFETY: as in `put`.
        let current = unsafe { self.current.load(Ordering::Relaxed).as_ref() };
        let settled = |b: &Block| b.given() == b.read() && b.read() < SLOTS;
        blocks.full.is_empty() && current.is_none_or(settled)
    }

    /// How many items are, or are about to be, in it. With the pool's lock held.
    pub(super) fn len(&self, blocks: &Blocks) -> usize {
        // SAFETY: as in `put`.
        let current = unsafe { self.current.load(Ordering::Relaxed).as_ref() };
        blocks.full.len() * SLOTS + current.map_or(0, |b| b.given() - b.read())
    }

    /// Takes at most `most` items, in order, and sees to it that numbers are left. With the pool's lock held.
    pub(super) fn take(&self, blocks: &mut Blocks, most: usize, mut sink: impl FnMut(Submission)) {
        // SAFETY: as in `put`.
        let current = unsafe { self.current.load(Ordering::Relaxed).as_ref() };
        // First of all (Q2).
        let end = current.map_or(0, Block::given);
        let mut n = 0;
        let mut i = 0;
        while n < most && i < blocks.full.len() {
            // SAFETY: as in `put`.
            let block = unsafe { blocks.full[i].as_ref() };
            n += block.take(SLOTS, most - n, &mut sink);
            if block.read() < SLOTS {
                i += 1;
            } else if let Some(over) = blocks.full.remove(i) {
                blocks.spare.push(over);
            }
        }
        if let Some(block) = current {
            block.take(end, most - n, &mut sink);
        }
        if end == SLOTS {
            self.renew(blocks);
        }
        if self.orphans.load(Ordering::Relaxed) && self.len(blocks) == 0 {
            self.orphans.store(false, Ordering::Relaxed);
        }
    }

    /// Makes a block with numbers the current one, if it is not. With the pool's lock held.
    pub(super) fn renew(&self, blocks: &mut Blocks) {
        let current = NonNull::new(self.current.load(Ordering::Relaxed));
        if let Some(block) = current {
            // SAFETY: as in `put`.
            let b = unsafe { block.as_ref() };
            if b.given() < SLOTS {
                return;
            }
            if b.read() == SLOTS {
                blocks.spare.push(block);
            } else {
                blocks.full.push_back(block);
            }
        }
        let next = blocks
            .spare
            .pop()
            .unwrap_or_else(|| NonNull::from(Box::leak(Block::new())));
        // SAFETY: as in `put`.
        let block = unsafe { next.as_ref() };
        block.read.store(0, Ordering::Relaxed);
        // Ordering: Release: who is given a number knows that the slots were read. (Who has the address from an earlier time
        // may be given one even before the next line.) An exchange, so that it has its place among the additions.
        block.numbers.0.swap(0, Ordering::AcqRel);
        // Ordering: Release pairs with the Acquire of `put`.
        self.current.store(next.as_ptr(), Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::shim::{Arc, Mutex, thread};

    fn submission(n: usize) -> Submission {
        Submission {
            item: NonNull::without_provenance((n * 8).try_into().unwrap()),
            link: NonNull::dangling(),
            queued_at: n as u64,
            issuer_cpu: 0,
        }
    }

    struct Queue {
        side: Submissions,
        blocks: Mutex<Blocks>,
        taken: Mutex<Vec<u64>>,
    }

    impl Queue {
        fn new() -> Arc<Queue> {
            let (side, mut blocks) = Submissions::new();
            side.open(&mut blocks);
            Arc::new(Queue {
                side,
                blocks: Mutex::new(blocks),
                taken: Mutex::new(Vec::new()),
            })
        }

        fn put(&self, n: usize) {
            loop {
                match self.side.put(submission(n), || ()) {
                    Put::Done => return,
                    Put::Alone => return self.take(usize::MAX),
                    Put::Full => self.take(1),
                }
            }
        }

        fn take(&self, most: usize) {
            let mut blocks = self.blocks.lock();
            self.side.take(&mut blocks, most, |s| {
                assert_eq!(
                    s.item.as_ptr().addr() as u64,
                    s.queued_at * 8,
                    "whole slots"
                );
                self.taken.lock().push(s.queued_at);
            });
        }
    }

    fn check(taken: &[u64], all: &[u64]) {
        let mut sorted = taken.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, all, "each once: {taken:?}");
        let of = |issuer: u64| taken.iter().filter(move |&&n| n / 10 == issuer);
        for issuer in [1, 2] {
            assert!(
                of(issuer).is_sorted(),
                "order of issuer {issuer}: {taken:?}"
            );
        }
    }

    /// Q1-Q3: two issuers, blocks of two slots that run full, a taker in between.
    #[test]
    fn loom_each_submission_is_taken_once_in_its_issuers_order() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let q = Queue::new();
            let issuer = {
                let q = Arc::clone(&q);
                thread::spawn(move || {
                    q.put(20);
                    q.put(21);
                })
            };
            q.put(10);
            q.take(2);
            q.put(11);
            issuer.join().unwrap();
            q.take(usize::MAX);
            check(&q.taken.lock(), &[10, 11, 20, 21]);
            assert!(q.side.is_settled(&q.blocks.lock()));
        });
    }

    /// Q4: whatever was put in before or while the queue was closed is taken by the closer or by its issuer.
    #[test]
    fn loom_nothing_is_left_in_a_closed_queue() {
        loom::model(|| {
            let q = Queue::new();
            let issuer = {
                let q = Arc::clone(&q);
                thread::spawn(move || {
                    q.put(20);
                    q.put(21);
                })
            };
            {
                let mut blocks = q.blocks.lock();
                q.side
                    .close(&mut blocks, |s| q.taken.lock().push(s.queued_at));
            }
            issuer.join().unwrap();
            check(&q.taken.lock(), &[20, 21]);
        });
    }
}
