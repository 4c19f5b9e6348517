//! Items on a workqueue.

use std::sync::{Arc, Mutex};

use cmwq::Workqueue;

use super::executor::{Executor, Inline};
use super::item::Item;

/// Queues each item on a workqueue, as `kcryptd` does. An item that the queue refuses (it is closed, draining or full) runs on
/// the reader's thread: a request is late then, never lost.
///
/// The queue should not be an ordered one: requests would run one at a time.
#[derive(Clone, Debug)]
pub struct OnWorkqueue(Workqueue);

impl OnWorkqueue {
    /// Items go to `wq`, which the caller may steer meanwhile: limits, scope, mask.
    pub fn new(wq: Workqueue) -> OnWorkqueue {
        OnWorkqueue(wq)
    }

    /// The queue.
    pub fn workqueue(&self) -> &Workqueue {
        &self.0
    }
}

impl Executor for OnWorkqueue {
    fn submit(&self, item: Item) {
        if !item.may_leave_rest() {
            if let Err(refused) = self.0.spawn_detached(move || Inline.submit(item)) {
                (refused.func)();
            }
            return;
        }
        // The rest of a long request goes behind what waits by then, so that it does not hold a worker. The cell gives the
        // item back if the queue refuses it: then all of the rest runs here, in a loop and not one call inside another.
        let (again, cell) = (self.clone(), Arc::new(Mutex::new(Some(item))));
        let take =
            |cell: &Mutex<Option<Item>>| cell.lock().unwrap_or_else(|e| e.into_inner()).take();
        let queued = {
            let cell = Arc::clone(&cell);
            self.0.spawn_detached(move || {
                if let Some(rest) = take(&cell).and_then(Item::run) {
                    again.submit(rest);
                }
            })
        };
        if queued.is_err()
            && let Some(item) = take(&cell)
        {
            Inline.submit(item);
        }
    }

    fn blocking(&self, f: &mut dyn FnMut()) {
        cmwq::blocking(f);
    }
}
