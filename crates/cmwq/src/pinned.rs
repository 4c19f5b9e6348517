//! A shared pointer that is read at every queueing and exchanged rarely: reading costs no atomic read-modify-write.
//!
//! Hazard pointers with the heavy half of the barrier on the side of the exchange (`sys/barrier.rs`). A reader writes the
//! address into a slot of its thread's record, passes a light barrier, and reads the pointer once more: the same address is
//! *pinned*. Whoever exchanges passes the heavy barrier and then drops what no slot names; what is still named is dropped by the
//! reader that lets go of it. So no pin may be let go with a lock held that the value's drop glue takes.
//!
//! - H1: a pinned value is not freed: either the reader's slot is seen after the heavy barrier, or the reader's second look
//!   sees the new pointer, and it pins that instead.
//! - H2: a replaced value is dropped by the time the last reader has let go of it: `pending` is set before the heavy barrier. A reader
//!   whose emptied slot was not seen by then sees `pending` after emptying it, and looks itself. Two readers that let go at
//!   once look one after the other (a lock), and the later one sees both slots empty.
//!
//! (Michael, "Hazard Pointers", IEEE TPDS 2004; the asymmetric barrier as in folly's `hazptr`.)

use crate::shim::Mutex;
use crate::shim::atomic::{AtomicBool, AtomicPtr, Ordering};
use crate::sys::barrier;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

/// How many pins a thread may hold at once before it takes a second record.
const SLOTS: usize = if cfg!(loom) { 1 } else { 4 };

/// One thread's slots. Records are never freed, only used again.
#[repr(align(128))]
pub(crate) struct Record {
    slots: [AtomicPtr<()>; SLOTS],
    in_use: AtomicBool,
    next: AtomicPtr<Record>,
}

/// All records.
pub(crate) struct Domain {
    head: AtomicPtr<Record>,
}

impl Domain {
    #[cfg(not(any(loom, shuttle)))]
    const fn new() -> Domain {
        Domain {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// One for a model.
    #[cfg(any(loom, shuttle))]
    fn leaked() -> &'static Domain {
        Box::leak(Box::new(Domain {
            head: AtomicPtr::new(ptr::null_mut()),
        }))
    }

    fn records(&self) -> impl Iterator<Item = &'static Record> {
        // Ordering: Acquire pairs with the Release of `obtain`: the record is whole.
        let mut at = self.head.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null or a record, and those are never freed.
            let record = unsafe { at.as_ref() }?;
            at = record.next.load(Ordering::Relaxed);
            Some(record)
        })
    }

    /// A record for the caller alone.
    fn obtain(&self) -> &'static Record {
        for record in self.records() {
            // Ordering: Acquire pairs with the Release of `Record::release`.
            if !record.in_use.load(Ordering::Relaxed)
                && !record.in_use.swap(true, Ordering::Acquire)
            {
                return record;
            }
        }
        let record: &'static Record = Box::leak(Box::new(Record {
            slots: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            in_use: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            record.next.store(head, Ordering::Relaxed);
            let new = ptr::from_ref(record).cast_mut();
            // Ordering: Release publishes the record.
            match self
                .head
                .compare_exchange(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return record,
                Err(now) => head = now,
            }
        }
    }

    /// Whether some slot names this address. After a heavy barrier.
    fn names(&self, at: *mut ()) -> bool {
        // Ordering: Acquire pairs with the Release of a slot's emptying: what the reader read came before.
        self.records()
            .flat_map(|r| &r.slots)
            .any(|s| s.load(Ordering::Acquire) == at)
    }
}

impl Record {
    #[cfg(not(any(loom, shuttle)))]
    fn empty_slot(&self) -> Option<&AtomicPtr<()>> {
        // Only its own thread fills slots.
        self.slots
            .iter()
            .find(|s| s.load(Ordering::Relaxed).is_null())
    }

    fn release(&self) {
        // Ordering: Release pairs with the Acquire of `obtain`.
        self.in_use.store(false, Ordering::Release);
    }
}

#[cfg(not(any(loom, shuttle)))]
mod thread {
    use super::{Domain, Record};

    pub(super) static DOMAIN: Domain = Domain::new();

    struct Own(&'static Record);

    impl Drop for Own {
        fn drop(&mut self) {
            self.0.release();
        }
    }

    std::thread_local! {
        static OWN: Own = Own(DOMAIN.obtain());
    }

    /// The calling thread's record; none while it ends.
    #[inline]
    pub(super) fn record() -> Option<&'static Record> {
        OWN.try_with(|own| own.0).ok()
    }
}

/// See the module text.
pub(crate) struct PinnedArc<T> {
    current: AtomicPtr<T>,
    domain: &'static Domain,
    /// Something is in `replaced`.
    pending: AtomicBool,
    /// Former values, each with the reference that `current` held.
    replaced: Mutex<Vec<Replaced<T>>>,
}

/// A value that was exchanged.
pub(crate) struct Replaced<T>(*mut T);

// SAFETY: it stands for an `Arc<T>`.
unsafe impl<T: Send + Sync> Send for Replaced<T> {}

impl<T> Drop for Replaced<T> {
    fn drop(&mut self) {
        // SAFETY: the reference that came from `Arc::into_raw`, given up once.
        drop(unsafe { Arc::from_raw(self.0) });
    }
}

// SAFETY: it owns an `Arc<T>` and lends `&T`.
unsafe impl<T: Send + Sync> Send for PinnedArc<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for PinnedArc<T> {}

/// A pinned value.
pub(crate) struct Pin<'a, T> {
    of: &'a PinnedArc<T>,
    value: *mut T,
    slot: &'static AtomicPtr<()>,
    /// A record that was taken for this pin alone.
    extra: Option<&'static Record>,
}

impl<T> PinnedArc<T> {
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn new(value: Arc<T>) -> PinnedArc<T> {
        PinnedArc::within(value, &thread::DOMAIN)
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn new(value: Arc<T>) -> PinnedArc<T> {
        PinnedArc::within(value, Domain::leaked())
    }

    fn within(value: Arc<T>, domain: &'static Domain) -> PinnedArc<T> {
        PinnedArc {
            current: AtomicPtr::new(Arc::into_raw(value).cast_mut()),
            domain,
            pending: AtomicBool::new(false),
            replaced: Mutex::new(Vec::new()),
        }
    }

    /// Pins the value of now. About 3 ns. Never blocks, but for the first time in a thread, which allocates.
    #[cfg(not(any(loom, shuttle)))]
    #[inline]
    pub(crate) fn load(&self) -> Pin<'_, T> {
        match thread::record().and_then(Record::empty_slot) {
            Some(slot) => self.pin(slot, None),
            None => self.pin_by(self.domain.obtain()),
        }
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn load(&self) -> Pin<'_, T> {
        self.pin_by(self.domain.obtain())
    }

    /// Pins with a record of one's own.
    #[cold]
    fn pin_by(&self, record: &'static Record) -> Pin<'_, T> {
        self.pin(&record.slots[0], Some(record))
    }

    #[inline]
    fn pin(&self, slot: &'static AtomicPtr<()>, extra: Option<&'static Record>) -> Pin<'_, T> {
        let mut value = self.current.load(Ordering::Relaxed);
        loop {
            slot.store(value.cast(), Ordering::Relaxed);
            barrier::light();
            // Ordering: Acquire pairs with the exchange in `store`: the value is whole.
            let again = self.current.load(Ordering::Acquire);
            if again == value {
                return Pin {
                    of: self,
                    value,
                    slot,
                    extra,
                };
            }
            value = again;
        }
    }

    /// The value of now, owned.
    pub(crate) fn load_full(&self) -> Arc<T> {
        self.load().to_arc()
    }

    /// The value of now, unpinned: for who holds the lock under which it is exchanged.
    ///
    /// # Safety
    /// Nobody exchanges it while the reference is in use.
    pub(crate) unsafe fn steady(&self) -> &T {
        // SAFETY: `self` owns it, and it stays, which the caller answers for.
        unsafe { &*self.current.load(Ordering::Relaxed) }
    }

    /// Whether this is the value of now. A hint, but for who holds the lock under which it is exchanged.
    pub(crate) fn is(&self, value: &T) -> bool {
        ptr::eq(self.current.load(Ordering::Relaxed), value)
    }

    /// Exchanges the value. Former values that nobody pins come back, for the caller to drop where it holds no lock; those that are pinned are
    /// dropped by the last reader that lets go of them. 1 to 10 us.
    #[must_use = "what is returned is dropped: not with a lock held"]
    pub(crate) fn store(&self, value: Arc<T>) -> Vec<Replaced<T>> {
        let new = Arc::into_raw(value).cast_mut();
        // Ordering: AcqRel: the new value is whole for readers; the old one is whole for who frees it.
        let old = self.current.swap(new, Ordering::AcqRel);
        {
            let mut replaced = self.replaced.lock();
            replaced.push(Replaced(old));
            self.pending.store(true, Ordering::Relaxed);
        }
        barrier::heavy();
        self.unnamed()
    }

    /// Takes out what no slot names.
    #[cold]
    fn unnamed(&self) -> Vec<Replaced<T>> {
        let mut free = Vec::new();
        {
            let mut replaced = self.replaced.lock();
            let mut i = 0;
            while i < replaced.len() {
                if self.domain.names(replaced[i].0.cast()) {
                    i += 1;
                } else {
                    free.push(replaced.swap_remove(i));
                }
            }
            if replaced.is_empty() {
                self.pending.store(false, Ordering::Relaxed);
            }
        }
        free
    }
}

impl<T> Drop for PinnedArc<T> {
    fn drop(&mut self) {
        // Nobody borrows it, so nothing is pinned.
        drop(Replaced(self.current.load(Ordering::Relaxed)));
    }
}

impl<T> Pin<'_, T> {
    /// The value, owned.
    pub(crate) fn to_arc(&self) -> Arc<T> {
        // SAFETY: pinned, so alive, and it came from `Arc::into_raw`.
        unsafe {
            Arc::increment_strong_count(self.value);
            Arc::from_raw(self.value)
        }
    }
}

impl<T> Deref for Pin<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: pinned, so alive (H1).
        unsafe { &*self.value }
    }
}

impl<T> Drop for Pin<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Ordering: Release: our reads of the value come before.
        self.slot.store(ptr::null_mut(), Ordering::Release);
        barrier::light();
        if self.of.pending.load(Ordering::Relaxed) {
            drop(self.of.unnamed());
        }
        if let Some(record) = self.extra {
            record.release();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static ALIVE: AtomicUsize = AtomicUsize::new(0);

    struct Counted(u64, u64);

    impl Counted {
        fn new(n: u64) -> Arc<Counted> {
            ALIVE.fetch_add(1, Ordering::SeqCst);
            Arc::new(Counted(n, !n))
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            (self.0, self.1) = (0, 0);
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn pinned_values_stay_and_let_go_ones_go() {
        barrier::prepare();
        let p = PinnedArc::new(Counted::new(0));
        // More pins at once than a record has slots.
        let pins: Vec<_> = (1..8)
            .map(|n| {
                let pin = p.load();
                drop(p.store(Counted::new(n)));
                assert_eq!(pin.0, n - 1);
                pin
            })
            .collect();
        assert_eq!(ALIVE.load(Ordering::SeqCst), 8);
        for (n, pin) in pins.into_iter().enumerate() {
            assert_eq!((pin.0, pin.1), (n as u64, !(n as u64)));
            drop(pin);
            assert_eq!(ALIVE.load(Ordering::SeqCst), 7 - n, "freed as it is let go");
        }
        let kept = p.load_full();
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let (a, b) = (p.load(), p.load());
                        assert_eq!((a.0, b.0), (!a.1, !b.1));
                    }
                });
            }
            for n in 0..2_000 {
                drop(p.store(Counted::new(n)));
            }
        });
        drop(p);
        assert_eq!((kept.0, ALIVE.load(Ordering::SeqCst)), (7, 1));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::shim::thread;

    struct Value(Arc<loom::sync::atomic::AtomicUsize>);

    impl Drop for Value {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// H1, H2: a reader never sees a freed value; every replaced value is freed once both readers are through.
    #[test]
    fn loom_a_pinned_value_lives_and_a_replaced_one_is_freed() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let domain = Domain::leaked();
            let dead: [_; 2] =
                std::array::from_fn(|_| Arc::new(loom::sync::atomic::AtomicUsize::new(0)));
            let first = Arc::new(Value(Arc::clone(&dead[0])));
            let shared = Arc::new(PinnedArc::within(first, domain));
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let pin = shared.load();
                        assert_eq!(pin.0.load(Ordering::Acquire), 0, "alive while pinned");
                    })
                })
                .collect();
            drop(shared.store(Arc::new(Value(Arc::clone(&dead[1])))));
            readers.into_iter().for_each(|r| r.join().unwrap());
            assert_eq!(dead[0].load(Ordering::Acquire), 1, "freed once");
            assert_eq!(dead[1].load(Ordering::Acquire), 0);
            drop(shared);
            assert_eq!(dead[1].load(Ordering::Acquire), 1);
        });
    }
}
