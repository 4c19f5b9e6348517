//! Reusable work items.

use crate::completion::Completion;
use crate::current;
use crate::error::{QueueError, WaitError};
use crate::item::{
    Dropped, Grabbed, Header, ItemPtr, OffTimer, VTable, grab, grab_idle, is_orphan, wait_transit,
};
use crate::pool::{link_arc, pool_by_id};
use crate::runtime::RtInner;
use crate::shim::Mutex;
use crate::timers::Timers;
use crate::workqueue::{Place, Queued, WqInner};
use cmwq_policy::word::{MAX_DEPTH, NO_POOL, Word};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

pub(crate) type Func = dyn Fn(&Work) + Send + Sync;

/// A work item that can be queued again and again. It is pending at most once, and never runs concurrently with itself as
/// long as it is queued on one workqueue at a time.
///
/// In a forked child, an item that was pending or running in the parent is idle.
///
/// A `Work` is a handle: clones are the same item. A queued item is kept alive by its queue; an idle one is dropped with its
/// last handle. The function gets the item itself, so that it can requeue itself.
///
/// ```
/// # use std::sync::atomic::{AtomicU32, Ordering};
/// # use std::sync::Arc;
/// let wq = cmwq::Workqueue::builder("flush").build()?;
/// let runs = Arc::new(AtomicU32::new(0));
/// let work = cmwq::Work::new({
///     let runs = runs.clone();
///     move |_| { runs.fetch_add(1, Ordering::Relaxed); }
/// });
/// wq.queue(&work)?;
/// work.flush()?;
/// assert_eq!(runs.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Work {
    inner: Arc<WorkInner>,
}

#[repr(C)]
struct WorkInner {
    header: Header,
    name: &'static str,
    func: Box<Func>,
    /// Its timer, if it is delayed work.
    delayed: Option<Delayed>,
    /// Pools where an instance may still run besides the one that the word names: the item was queued elsewhere meanwhile.
    strays: Mutex<Vec<u32>>,
}

/// What delayed work has besides.
#[derive(Default)]
pub(crate) struct Delayed {
    /// The timers of the runtime of the queue that it was last armed for. Written by whoever owns PENDING, before the word
    /// says that the item is armed.
    pub(crate) home: Mutex<Option<Arc<Timers>>>,
    /// Cancelled because its queue drained or closed.
    pub(crate) dropped: Arc<AtomicBool>,
}

/// What [`Work::busy`] saw; old when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Queued or armed.
    pub pending: bool,
    /// Running.
    pub running: bool,
}

const VTABLE: VTable = VTable {
    run,
    discard,
    name,
    strayed,
    oneshot: false,
    fixed_name: None,
    task: None,
};

unsafe fn name(item: ItemPtr) -> &'static str {
    // SAFETY: the item is alive (contract) and was made by `Work::new`.
    unsafe { item.as_ptr().cast::<WorkInner>().as_ref() }.name
}

unsafe fn run(item: ItemPtr) {
    // SAFETY: the queue's reference to the item, made by `Work::item_ref`, passes to us.
    let work = unsafe { Work::from_item(item) };
    work.inner.header.release_for_run();
    let result = catch_unwind(AssertUnwindSafe(|| {
        (work.inner.func)(&work);
    }));
    let name = work.inner.name;
    // The last handle may go here, and with it what the function captured.
    let dropped = catch_unwind(AssertUnwindSafe(move || drop(work)));
    for payload in [result.err(), dropped.err()].into_iter().flatten() {
        current::count_panic();
        crate::runtime::report_panic(name, payload);
    }
}

unsafe fn discard(item: ItemPtr, _why: Dropped) {
    // SAFETY: as in `run`.
    drop(unsafe { Work::from_item(item) });
}

unsafe fn strayed(item: ItemPtr, pool: u32) {
    // SAFETY: as in `name`.
    let work = unsafe { item.as_ptr().cast::<WorkInner>().as_ref() };
    let mut strays = work.strays.lock();
    if !strays.contains(&pool) {
        strays.push(pool);
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("func", &self.inner.name)
            .field("state", &self.inner.header.word())
            .finish()
    }
}

impl Work {
    /// A new, idle item. A panic of the function is caught, counted on its queue and given to the runtime's panic hook; the
    /// item can be queued again.
    pub fn new<F>(f: F) -> Work
    where
        F: Fn(&Work) + Send + Sync + 'static,
    {
        Work::with_name(std::any::type_name::<F>(), f)
    }

    /// As [`new`](Work::new), with a name of its own for dumps and reports.
    pub fn with_name<F>(name: &'static str, f: F) -> Work
    where
        F: Fn(&Work) + Send + Sync + 'static,
    {
        Work::make(name, Box::new(f), None)
    }

    pub(crate) fn make(name: &'static str, func: Box<Func>, delayed: Option<Delayed>) -> Work {
        Work {
            inner: Arc::new(WorkInner {
                header: Header::new(Word::IDLE, &VTABLE),
                name,
                func,
                delayed,
                strays: Mutex::new(Vec::new()),
            }),
        }
    }

    /// What it has if it is delayed work.
    pub(crate) fn delayed(&self) -> Option<&Delayed> {
        self.inner.delayed.as_ref()
    }

    fn home(&self) -> Option<Arc<Timers>> {
        self.delayed().and_then(|d| d.home.lock().clone())
    }

    /// Drops the handle; a panic in the drop glue of what the function captured ends here (the panic hook has reported it).
    pub(crate) fn drop_quietly(self) {
        crate::error::quietly(move || drop(self));
    }

    /// A handle that does not keep the item alive.
    pub fn downgrade(&self) -> WeakWork {
        WeakWork(Arc::downgrade(&self.inner))
    }

    /// Whether both handles are of the same item.
    pub fn is_same(&self, other: &Work) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The name of its function.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    pub(crate) fn header(&self) -> &Header {
        &self.inner.header
    }

    pub(crate) fn item(&self) -> ItemPtr {
        ItemPtr::new(NonNull::from(&*self.inner).cast())
    }

    /// A reference for a queue or timer.
    pub(crate) fn item_ref(&self) -> ItemPtr {
        let p = Arc::into_raw(Arc::clone(&self.inner));
        ItemPtr::new(NonNull::new(p.cast_mut()).expect("an Arc's address").cast())
    }

    /// Takes a queue's or timer's reference over.
    ///
    /// # Safety
    /// `item` came from [`Work::item_ref`], once.
    pub(crate) unsafe fn from_item(item: ItemPtr) -> Work {
        // SAFETY: passed on to the caller; the address is that of the `WorkInner` in the `Arc`.
        let inner = unsafe { Arc::from_raw(item.as_ptr().cast::<WorkInner>().as_ptr()) };
        Work { inner }
    }

    pub(crate) fn queue_on(&self, wq: &Arc<WqInner>, place: Place) -> Result<Queued, QueueError> {
        if wq.rt.fork.is_stale() {
            return Err(wq.refuse(QueueError::Forked));
        }
        match grab_idle(self.header()) {
            Ok(before) => self.queue_grabbed(wq, before, place).map(|()| Queued::New),
            Err(seen) if seen.is_pending() => {
                wq.records.note_already_pending();
                Ok(Queued::AlreadyPending)
            }
            Err(seen) => Err(self.disabled(wq, seen)),
        }
    }

    pub(crate) fn disabled(&self, wq: &WqInner, seen: Word) -> QueueError {
        wq.refuse(QueueError::Disabled {
            depth: seen.depth(),
            item: self.name(),
        })
    }

    /// Queues an item in our hands; on failure it is idle again.
    pub(crate) fn queue_grabbed(
        &self,
        wq: &Arc<WqInner>,
        before: Word,
        place: Place,
    ) -> Result<(), QueueError> {
        let item = self.item_ref();
        wq.queue_owned(item, before, place).inspect_err(|_| {
            self.header().set_word(before.released());
            // SAFETY: the reference made above was not taken by the queue.
            drop(unsafe { Work::from_item(item) });
        })
    }

    /// Takes the item into our hands wherever it is; drops the reference of where it was.
    pub(crate) fn grab(&self) -> (Grabbed, Word) {
        let (was, before) = grab(self.item(), self.header(), |id| {
            // Asked for anew each time: it may be armed for another runtime by now.
            match self.home() {
                Some(t) if t.is_stale() => OffTimer::Orphan,
                Some(t) if t.disarm(id, self.item()) => OffTimer::Taken,
                _ => OffTimer::NotThere,
            }
        });
        if was != Grabbed::Idle {
            // SAFETY: the reference of the queue or timer passed to us.
            drop(unsafe { Work::from_item(self.item()) });
        }
        (was, before)
    }

    /// Takes the item out of its queue, or off its timer, if it is pending. Does not wait for a running one. True if it was
    /// pending. May be called from anywhere, its own function included. If another thread has the item in its hands at that
    /// moment, waits for that thread to let it go (well under a microsecond, unless it lost its CPU).
    pub fn cancel(&self) -> bool {
        if !self.header().word().is_pending() {
            return false;
        }
        let (was, before) = self.grab();
        self.header().set_word(before.grabbed().released());
        was != Grabbed::Idle
    }

    /// As [`cancel`](Self::cancel), and waits for a running instance: when it returns, the item is neither pending nor running,
    /// unless somebody queued it since. Queueings made meanwhile are refused with [`QueueError::Disabled`], so this stops an
    /// item that requeues itself. True if it was pending. Blocks.
    ///
    /// # Errors
    /// [`WaitError::OnSelf`] from its own function (the kernel deadlocks); nothing was cancelled.
    pub fn cancel_sync(&self) -> Result<bool, WaitError> {
        let was = self.disable_sync()?;
        self.lower_depth();
        Ok(was)
    }

    /// Cancels the item and refuses queueings until [`enable`](Self::enable) was called as often. True if it was pending. Does
    /// not wait. The depth saturates at 65535, as in the kernel; beyond, calls are not counted.
    pub fn disable(&self) -> bool {
        let (was, before) = self.grab();
        let depth = (before.depth() + 1).min(MAX_DEPTH);
        self.header()
            .set_word(before.grabbed().released().with_depth(depth));
        was != Grabbed::Idle
    }

    /// As [`disable`](Self::disable), and waits for a running instance. Blocks.
    ///
    /// # Errors
    /// [`WaitError::OnSelf`] from its own function; nothing was disabled.
    pub fn disable_sync(&self) -> Result<bool, WaitError> {
        if current::runs(self.item()) {
            return Err(WaitError::OnSelf { item: self.name() });
        }
        let was = self.disable();
        while self.wait_running()? {}
        Ok(was)
    }

    /// Undoes one [`disable`](Self::disable). True if the item can be queued again. Never queues or drops anything: without a
    /// matching `disable` it is an error and the item stays as it is. (The kernel then drops a pending item.)
    ///
    /// # Errors
    /// [`NotDisabled`].
    pub fn enable(&self) -> Result<bool, NotDisabled> {
        self.lower_depth().ok_or(NotDisabled { item: self.name() })
    }

    /// [`enable`](Self::enable), and queues the item if that enabled it: `Ok(Some(..))`.
    ///
    /// # Errors
    /// [`EnableQueueError::NotDisabled`]: nothing was done; [`EnableQueueError::Queue`]: it is enabled, but was not accepted.
    pub fn enable_and_queue(
        &self,
        wq: &crate::Workqueue,
    ) -> Result<Option<Queued>, EnableQueueError> {
        if self.enable().map_err(EnableQueueError::NotDisabled)? {
            return wq.queue(self).map(Some).map_err(EnableQueueError::Queue);
        }
        Ok(None)
    }

    fn lower_depth(&self) -> Option<bool> {
        loop {
            let seen = wait_transit(self.header());
            let depth = seen.depth();
            if depth == 0 {
                return None;
            }
            if self.header().try_change(seen, seen.with_depth(depth - 1)) {
                return Some(depth == 1);
            }
        }
    }

    /// How many `enable` calls are missing.
    pub fn disable_depth(&self) -> u32 {
        self.header().word().depth()
    }

    /// Waits for the last queueing of the item: until the pending instance has run, or the running one has ended. Does not
    /// stop requeueing. True if it waited, false if the item was idle. Blocks.
    ///
    /// # Errors
    /// [`WaitError::OnSelf`] from its own function, [`WaitError::Order`] if the caller runs an item of the same ordered queue
    /// behind which this one waits. (The kernel deadlocks.)
    pub fn flush(&self) -> Result<bool, WaitError> {
        if current::runs(self.item()) {
            return Err(WaitError::OnSelf { item: self.name() });
        }
        // An item that we took off its timer may be over before we look again: that was waited for all the same.
        let mut fired = false;
        loop {
            let seen = wait_transit(self.header());
            if seen.is_on_timer() {
                match self.home() {
                    Some(home) if home.is_stale() => return Ok(false),
                    Some(home) => fired |= home.fire_now(seen.entry(), self.item()),
                    None => {}
                }
                continue;
            }
            if !seen.is_pending() {
                return Ok(self.wait_running()? || fired);
            }
            if is_orphan(seen) {
                return Ok(false);
            }
            let pool = pool_by_id(seen.pool());
            let done = Completion::new();
            let item = self.item();
            let attached = pool.with(|p, _| {
                let Some(e) = p
                    .entry(seen.entry())
                    .filter(|e| e.item == item && self.header().word() == seen)
                else {
                    return Ok(None);
                };
                // SAFETY: the pool's lock is held and the entry's pwq is linked.
                let link = unsafe { link_arc(p.pwq(e.pwq).tag) };
                if link.wq.is_ordered() && current::runs_item_of(&link.wq) {
                    return Err(WaitError::Order {
                        wq: link.wq.name().clone(),
                        item: self.name(),
                    });
                }
                p.attach_barrier(seen.entry(), Arc::clone(&done));
                link.wq.rt.records.waits.enter(item, &done);
                Ok(Some(link))
            })?;
            if let Some(link) = attached {
                let _lent = current::lend_to(&link.wq);
                let rt = &link.wq.rt;
                let _shown = rt.records.waits.until_over(&done);
                rt.wait(&done, || format!("work item {}", self.name()))?;
                return Ok(true);
            }
        }
    }

    /// Waits for an instance that runs now; false if none does.
    fn wait_running(&self) -> Result<bool, WaitError> {
        if self.wait_running_in(self.header().word().pool())? {
            return Ok(true);
        }
        let Some(pool) = self.stray_pool() else {
            return Ok(false);
        };
        self.wait_running_in(pool)
    }

    /// Another pool than the word's where an instance runs.
    fn stray_pool(&self) -> Option<u32> {
        let mut strays = self.inner.strays.lock();
        // Looked at with the lock held: a pool that is noted again now is noted after this, or found running.
        strays.retain(|&pool| self.runs_in(pool));
        strays.first().copied()
    }

    fn runs_in(&self, pool: u32) -> bool {
        pool != NO_POOL
            && !pool_by_id(pool).is_stale()
            && pool_by_id(pool).inspect(|inner| inner.policy.running(self.item()).is_some())
    }

    fn wait_running_in(&self, pool: u32) -> Result<bool, WaitError> {
        if pool == NO_POOL || pool_by_id(pool).is_stale() {
            return Ok(false);
        }
        let item = self.item();
        let done = Completion::new();
        let rt: Option<Arc<RtInner>> = pool_by_id(pool).with(|p, _| {
            let (_, entry, pwq) = p.running(item)?;
            // SAFETY: the pool's lock is held and a running entry's pwq is linked.
            let link = unsafe { link_arc(p.pwq(pwq).tag) };
            p.attach_barrier(entry, Arc::clone(&done));
            link.wq.rt.records.waits.enter(item, &done);
            Some(Arc::clone(&link.wq.rt))
        });
        let Some(rt) = rt else { return Ok(false) };
        let _shown = rt.records.waits.until_over(&done);
        rt.wait(&done, || format!("work item {}", self.name()))?;
        Ok(true)
    }

    /// Whether the item is queued. Old when it returns.
    pub fn is_pending(&self) -> bool {
        self.header().word().is_pending()
    }

    /// Whether it is pending and whether it runs. Advisory: old when it returns.
    pub fn busy(&self) -> Busy {
        let seen = self.header().word();
        let running = self.runs_in(seen.pool()) || self.stray_pool().is_some();
        Busy {
            pending: seen.is_pending(),
            running,
        }
    }
}

/// A [`Work`] that may be gone; see [`Work::downgrade`].
#[derive(Clone)]
pub struct WeakWork(Weak<WorkInner>);

impl WeakWork {
    /// The item, if it still exists.
    pub fn upgrade(&self) -> Option<Work> {
        self.0.upgrade().map(|inner| Work { inner })
    }
}

impl fmt::Debug for WeakWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakWork")
    }
}

/// [`Work::enable`] of an item that is not disabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotDisabled {
    /// The item's function.
    pub item: &'static str,
}

impl fmt::Display for NotDisabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "work item {} is not disabled: enable it as often as it was disabled",
            self.item
        )
    }
}

impl std::error::Error for NotDisabled {}

/// Why [`Work::enable_and_queue`] failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnableQueueError {
    /// It was not disabled; nothing was done.
    NotDisabled(NotDisabled),
    /// It is enabled now, but was not accepted.
    Queue(QueueError),
}

impl fmt::Display for EnableQueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnableQueueError::NotDisabled(e) => e.fmt(f),
            EnableQueueError::Queue(e) => write!(f, "enabled, but not queued: {e}"),
        }
    }
}

impl std::error::Error for EnableQueueError {}
