//! Which threads wait for which work item, only to be shown: the kernel shows such a wait as `BAR(pid)` behind the item.
//!
//! The pool knows how many wait for each of its items; who they are is kept here, where nothing depends on it. A thread is
//! entered when its barrier is attached, with the pool's lock held, so that the order is that of the barriers, and taken out
//! when its wait is over. Between an item's end and that it is left out by its event, which has happened.

use crate::completion::Completion;
use crate::item::ItemPtr;
use crate::shim::leaf::{Mutex, MutexGuard, PoisonError};
use crate::sys::cpu;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Waits(Mutex<Vec<Wait>>);

struct Wait {
    /// Compared, never followed.
    item: ItemPtr,
    done: Arc<Completion>,
    tid: u32,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread is about to wait for this item; called where its barrier is attached, and followed by
    /// [`until_over`](Self::until_over).
    pub(crate) fn enter(&self, item: ItemPtr, done: &Arc<Completion>) {
        self.lock().push(Wait {
            item,
            done: Arc::clone(done),
            tid: cpu::gettid() as u32,
        });
    }

    /// The wait that was entered is over when the answer is dropped.
    pub(crate) fn until_over<'a>(&'a self, done: &'a Arc<Completion>) -> Waiting<'a> {
        Waiting { waits: self, done }
    }

    /// Who waits for what now, in the order in which they began.
    pub(super) fn list(&self) -> Waiters {
        let mut all = HashMap::new();
        for wait in self.lock().iter().filter(|w| !w.done.is_done()) {
            let of_item: &mut VecDeque<u32> = all.entry(address(wait.item)).or_default();
            of_item.push_back(wait.tid);
        }
        Waiters(all)
    }
}

/// A thread's wait.
pub(crate) struct Waiting<'a> {
    waits: &'a Waits,
    done: &'a Arc<Completion>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut all = self.waits.lock();
        if let Some(at) = all.iter().position(|w| Arc::ptr_eq(&w.done, self.done)) {
            // Not `swap_remove`: the order is shown.
            all.remove(at);
        }
    }
}

/// Those who wait at one moment.
pub(super) struct Waiters(HashMap<usize, VecDeque<u32>>);

fn address(item: ItemPtr) -> usize {
    item.as_ptr().addr().get()
}

impl Waiters {
    /// Takes out at most `n` threads that wait for this item. An item that runs and is queued again has waiters at both
    /// instances: those of the running one began first, so they are to be asked for first.
    pub(super) fn take(&mut self, item: ItemPtr, n: u32) -> Vec<u32> {
        let Some(of_item) = self.0.get_mut(&address(item)) else {
            return Vec::new();
        };
        let n = of_item.len().min(n as usize);
        of_item.drain(..n).collect()
    }
}
