//! What the calling thread is: a worker, and which item it runs.

use crate::item::ItemPtr;
use crate::pool::{RtPool, WorkerShared};
use crate::runtime::RtInner;
use crate::workqueue::{PwqLink, WqInner};
use cmwq_policy::pool::{EntryId, WorkerId};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// A worker thread's own record.
pub(crate) struct WorkerContext {
    pub(crate) rt: Arc<RtInner>,
    pub(crate) pool: &'static RtPool,
    pub(crate) worker: WorkerId,
    pub(crate) shared: Arc<WorkerShared>,
    /// A helper's own pool, and what it is there.
    pub(crate) home: Option<(&'static RtPool, WorkerId)>,
}

/// One running item; inline runs nest.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) link: Arc<PwqLink>,
    pub(crate) name: &'static str,
}

#[derive(Clone, Copy)]
struct Frame {
    item: ItemPtr,
    /// The pwq, which its own running entry keeps linked and alive.
    link: *const PwqLink,
}

crate::shim::thread_local! {
    static CONTEXT: RefCell<Option<Arc<WorkerContext>>> = const { RefCell::new(None) };
    /// The innermost running item.
    static FRAME: Cell<Option<Frame>> = const { Cell::new(None) };
    /// The queues of all running items of this thread, outermost first: more than one when items run inline.
    static OUTER: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// Makes the calling thread a worker until it ends (or [`leave`] is called).
pub(crate) fn enter(context: Arc<WorkerContext>) {
    CONTEXT.with(|c| *c.borrow_mut() = Some(context));
}

/// The calling thread is no worker any more.
pub(crate) fn leave() {
    CONTEXT.with(|c| *c.borrow_mut() = None);
}

/// The calling worker's record, if it is one.
pub(crate) fn worker() -> Option<Arc<WorkerContext>> {
    CONTEXT.try_with(|c| c.borrow().clone()).ok().flatten()
}

/// Runs an item of a pool on the calling thread.
///
/// # Safety
/// As for [`crate::item::VTable::run`]; `link` is the item's pwq, which stays linked until the entry is counted out.
#[inline]
pub(crate) unsafe fn run_item(item: ItemPtr, link: &PwqLink) {
    let frame = Frame { item, link };
    let outer = FRAME.with(|f| f.replace(Some(frame)));
    if let Some(o) = outer {
        OUTER.with(|s| s.borrow_mut().push(o));
    }
    // SAFETY: passed on to the caller. `run` does not unwind.
    unsafe { item.run() };
    FRAME.with(|f| f.set(outer));
    if outer.is_some() {
        OUTER.with(|s| s.borrow_mut().pop());
    }
}

/// The innermost running item has panicked: counted on its queue.
pub(crate) fn count_panic() {
    if let Some(f) = FRAME.try_with(Cell::get).ok().flatten() {
        // SAFETY: a running frame's link is alive, see `run_item`.
        unsafe { &(*f.link).wq }.note_panic();
        crate::control::probe::note_panic();
    }
}

/// Whether the calling thread runs an item.
#[inline]
pub(crate) fn is_running() -> bool {
    FRAME.try_with(Cell::get).ok().flatten().is_some()
}

/// Whether the calling thread runs an item of this queue (at any depth): its queueing is *chained*.
#[inline]
pub(crate) fn runs_item_of(wq: &WqInner) -> bool {
    let Some(f) = FRAME.try_with(Cell::get).ok().flatten() else {
        return false;
    };
    // SAFETY: a running frame's link is alive, see `run_item`.
    let is = |f: &Frame| std::ptr::eq(Arc::as_ptr(unsafe { &(*f.link).wq }), wq);
    is(&f) || OUTER.with(|s| s.borrow().iter().any(is))
}

/// Whether the calling thread runs this very item (at any depth).
pub(crate) fn runs(item: ItemPtr) -> bool {
    let Some(f) = FRAME.try_with(Cell::get).ok().flatten() else {
        return false;
    };
    f.item == item || OUTER.with(|s| s.borrow().iter().any(|f| f.item == item))
}

/// The innermost running item of the calling thread. Not after the item has given up its memory, see [`link`].
pub(crate) fn running() -> Option<Running> {
    let f = FRAME.try_with(Cell::get).ok().flatten()?;
    // SAFETY: the item is running, so the queue's side holds it.
    let name = unsafe { f.item.name() };
    Some(Running {
        link: link_of(f),
        name,
    })
}

/// The pwq of the innermost running item of the calling thread, which itself may be gone already: a work's last handle goes within
/// its run.
pub(crate) fn link() -> Option<Arc<PwqLink>> {
    FRAME.try_with(Cell::get).ok().flatten().map(link_of)
}

fn link_of(f: Frame) -> Arc<PwqLink> {
    // SAFETY: a running frame's link is alive, see `run_item`, and was made by `Arc::new`.
    unsafe {
        Arc::increment_strong_count(f.link);
        Arc::from_raw(f.link)
    }
}

/// How many items the calling thread runs, one inside the other.
pub(crate) fn depth() -> usize {
    if !is_running() {
        return 0;
    }
    1 + OUTER.with(|s| s.borrow().len())
}

/// Permits of running items that wait for others of their queue; taken back when dropped.
pub(crate) struct Lent(Vec<(&'static RtPool, EntryId, Arc<PwqLink>)>);

/// The calling thread is about to wait for other items of this queue: lends it the permits of the queue's items that the
/// thread runs, so that the awaited ones can start. Not in `kernel_mode`, nor in an ordered queue, whose order forbids it.
pub(crate) fn lend_to(wq: &WqInner) -> Lent {
    let mut lent = Vec::new();
    if wq.config.kernel_mode || wq.is_ordered() || !runs_item_of(wq) {
        return Lent(lent);
    }
    let innermost = FRAME.with(Cell::get);
    let frames: Vec<Frame> = OUTER.with(|s| s.borrow().iter().copied().chain(innermost).collect());
    for f in frames {
        // SAFETY: a running frame's link is alive, see `run_item`, and was made by `Arc::new`.
        let link = unsafe {
            Arc::increment_strong_count(f.link);
            Arc::from_raw(f.link)
        };
        if !std::ptr::eq(Arc::as_ptr(&link.wq), wq) {
            continue;
        }
        // SAFETY: the item is running, so the queue's side holds it.
        let word = unsafe { f.item.header() }.word();
        let entry = link.pool.with(|p, drv| {
            // A reusable item is found by its worker (its word may tell of the next instance), a one-shot one by its word.
            let entry = match p.running(f.item) {
                Some((_, entry, _)) => entry,
                None if word.is_linked() && word.pool() == link.pool.id => word.entry(),
                None => return None,
            };
            let own = p
                .entry(entry)
                .is_some_and(|e| e.item == f.item && Some(e.pwq) == link.id());
            let now = drv.now();
            (own && p.lend_permit(entry, now, drv)).then_some(entry)
        });
        if let Some(entry) = entry {
            lent.push((link.pool, entry, link));
        }
    }
    Lent(lent)
}

impl Drop for Lent {
    fn drop(&mut self) {
        for (pool, entry, _link) in self.0.drain(..) {
            // The entry is still there: its item runs on this very thread.
            pool.with(|p, _| p.take_permit_back(entry));
        }
    }
}

/// What the calling thread runs: the function's name and the queue's. None outside work items.
pub fn current_work() -> Option<(&'static str, String)> {
    running().map(|r| (r.name, r.link.wq.name().to_string()))
}

/// Whether the calling thread is a worker or rescuer of a runtime.
pub fn is_worker() -> bool {
    worker().is_some()
}

/// Labels the calling worker for dumps until it starts its next item (kernel: `set_worker_desc`). 31 bytes are kept.
/// Does nothing outside work items.
pub fn describe(text: &str) {
    if is_running()
        && let Some(w) = worker()
    {
        w.shared.describe(text);
    }
}
