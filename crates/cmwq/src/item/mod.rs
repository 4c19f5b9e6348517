//! What every queued thing has in common: its state word and how to run or drop it.
//!
//! See `README.md` beside this file for the protocol of the word.

mod grab;
#[cfg(all(test, loom))]
mod models;

pub(crate) use grab::{Grabbed, OffTimer, grab, grab_idle, is_orphan, take_out, wait_transit};

use crate::shim::atomic::{AtomicU64, Ordering};
use cmwq_policy::pool::{EntryId, Token};
use cmwq_policy::word::{MAX_ENTRY, Word};
use std::ptr::NonNull;

/// Why an item will not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Somebody cancelled it.
    Cancelled,
}

/// How a kind of item is run and dropped. All functions take over the queue's reference to the item.
pub(crate) struct VTable {
    /// Runs the item's function; never unwinds. A panic is counted before anybody can learn that the item is over.
    ///
    /// # Safety
    /// The item is alive, was queued, has been taken out of the pool by the caller, and nobody else runs or drops it.
    pub(crate) run: unsafe fn(ItemPtr),
    /// Drops the item without running it.
    ///
    /// # Safety
    /// As for `run`.
    pub(crate) discard: unsafe fn(ItemPtr, Dropped),
    /// The name of the function, for people.
    ///
    /// # Safety
    /// The item is alive.
    pub(crate) name: unsafe fn(ItemPtr) -> &'static str,
    /// An instance runs in the pool of that number, and the item is being queued in another one: whoever waits for running
    /// instances has to look there too. Never called for one-shot items.
    ///
    /// # Safety
    /// The item is alive.
    pub(crate) strayed: unsafe fn(ItemPtr, u32),
    /// It can be queued only once.
    pub(crate) oneshot: bool,
    /// The name of the function where it does not depend on the item: for those who cannot know that the item is alive.
    pub(crate) fixed_name: Option<fn() -> &'static str>,
    /// For items of tasks, what their handles do with them.
    pub(crate) task: Option<&'static crate::task::Ops>,
}

/// [`VTable::name`] of items whose name is that of a type.
pub(crate) unsafe fn type_name_of<F>(_: ItemPtr) -> &'static str {
    std::any::type_name::<F>()
}

/// [`VTable::strayed`] of one-shot items.
pub(crate) unsafe fn never_strays(_: ItemPtr, _: u32) {
    unreachable!("a one-shot item is queued once")
}

/// The head of every item; the rest of the item lies behind it (`repr(C)`).
#[repr(C)]
pub(crate) struct Header {
    word: AtomicU64,
    vtable: &'static VTable,
}

impl Header {
    pub(crate) fn new(word: Word, vtable: &'static VTable) -> Header {
        Header {
            word: AtomicU64::new(word.0),
            vtable,
        }
    }

    /// The state now.
    #[inline]
    pub(crate) fn word(&self) -> Word {
        // Ordering: Acquire pairs with the Release of every store to the word: who sees a place sees what was written before.
        Word(self.word.load(Ordering::Acquire))
    }

    /// Sets the state; only for the owner of PENDING.
    #[inline]
    pub(crate) fn set_word(&self, word: Word) {
        // Ordering: Release pairs with the Acquire of `word` and of the exchanges below.
        self.word.store(word.0, Ordering::Release);
    }

    /// It lies at `entry` of `pool`, whose lock the caller holds.
    ///
    /// # Panics
    /// If a word cannot hold the number of the entry.
    #[inline]
    pub(crate) fn set_linked(&self, pool: u32, entry: EntryId) {
        assert!(
            entry <= MAX_ENTRY,
            "more than 16 million items in one worker pool"
        );
        self.set_word(self.word().linked(pool, entry));
    }

    /// One attempt to change the state from `from` to `to`.
    #[inline]
    pub(crate) fn try_change(&self, from: Word, to: Word) -> bool {
        // Ordering: AcqRel: the winner sees what earlier owners wrote and publishes what it wrote (kernel-style PENDING
        // ownership); Relaxed on failure, the caller reads again.
        self.word
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends PENDING just before the function runs. A read-modify-write, so that a queueing attempt that found the item
    /// pending happens before the run: what its caller stored before is seen by the function.
    #[inline]
    pub(crate) fn release_for_run(&self) {
        let idle = self.word().released();
        // Ordering: AcqRel pairs with the no-change exchange of `confirm_pending`.
        self.word.swap(idle.0, Ordering::AcqRel);
    }

    /// A queueing attempt that finds the item pending makes this no-change exchange, so that `release_for_run` reads from it
    /// or comes before it. False if the word changed meanwhile.
    #[inline]
    pub(crate) fn confirm_pending(&self, seen: Word) -> bool {
        self.try_change(seen, seen)
    }

    /// Its kind.
    #[inline]
    pub(crate) fn vtable(&self) -> &'static VTable {
        self.vtable
    }

    /// Whether the item can be queued only once.
    #[inline]
    pub(crate) fn is_oneshot(&self) -> bool {
        self.vtable.oneshot
    }
}

/// A work item by address. Whoever has one knows from elsewhere that the item is alive: the queue holds a reference to each
/// queued item until it has run or was taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ItemPtr(NonNull<Header>);

// SAFETY: an address; what lies behind it is `Sync` (an atomic word and a static table), and `run`/`discard` have their own
// contracts. The functions and captured values in items are `Send`, which their makers require.
unsafe impl Send for ItemPtr {}
// SAFETY: as above.
unsafe impl Sync for ItemPtr {}

impl Token for ItemPtr {
    #[inline]
    fn hash(self) -> usize {
        // Items are at least 16 bytes apart; fold higher bits in.
        let a = self.0.as_ptr().addr();
        (a >> 5) ^ (a >> 13)
    }

    #[inline]
    fn mark(self) -> u64 {
        self.0.as_ptr().addr() as u64
    }
}

impl ItemPtr {
    /// The address of an item's header.
    #[inline]
    pub(crate) fn new(header: NonNull<Header>) -> ItemPtr {
        ItemPtr(header)
    }

    /// The item that gave this [`Token::mark`].
    pub(crate) fn from_mark(mark: u64) -> Option<ItemPtr> {
        NonNull::new(mark as usize as *mut Header).map(ItemPtr)
    }

    /// The header.
    ///
    /// # Safety
    /// The item is alive for as long as the reference is used.
    #[inline]
    pub(crate) unsafe fn header<'a>(self) -> &'a Header {
        // SAFETY: passed on to the caller.
        unsafe { self.0.as_ref() }
    }

    /// The raw pointer.
    #[inline]
    pub(crate) fn as_ptr(self) -> NonNull<Header> {
        self.0
    }

    /// The name of its function.
    ///
    /// # Safety
    /// The item is alive.
    pub(crate) unsafe fn name(self) -> &'static str {
        // SAFETY: passed on to the caller.
        unsafe { (self.header().vtable.name)(self) }
    }

    /// See [`VTable::run`].
    ///
    /// # Safety
    /// See [`VTable::run`].
    #[inline]
    pub(crate) unsafe fn run(self) {
        // SAFETY: passed on to the caller.
        unsafe { (self.header().vtable.run)(self) }
    }

    /// See [`VTable::strayed`].
    ///
    /// # Safety
    /// See [`VTable::strayed`].
    pub(crate) unsafe fn strayed(self, pool: u32) {
        // SAFETY: passed on to the caller.
        unsafe { (self.header().vtable.strayed)(self, pool) }
    }

    /// See [`VTable::discard`].
    ///
    /// # Safety
    /// See [`VTable::discard`].
    pub(crate) unsafe fn discard(self, why: Dropped) {
        // SAFETY: passed on to the caller.
        unsafe { (self.header().vtable.discard)(self, why) }
    }
}
