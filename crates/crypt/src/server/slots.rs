//! How many connections there may be. A slot is held until the last request of its connection has ended, not only until the
//! client is gone, so that clients which come and go cannot pile up requests.

use std::sync::{Arc, Condvar, Mutex};

#[derive(Debug, Default)]
struct Counts {
    served: usize,
    refused: usize,
}

/// The counts of one server.
#[derive(Debug)]
pub(crate) struct Slots {
    max_served: usize,
    max_refused: usize,
    counts: Mutex<Counts>,
    empty: Condvar,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    refused: bool,
}

impl Slots {
    pub(crate) fn new(max_served: usize, max_refused: usize) -> Arc<Slots> {
        Arc::new(Slots {
            max_served,
            max_refused,
            counts: Mutex::default(),
            empty: Condvar::new(),
        })
    }

    /// A place for a client to be served or, beyond that, to be told that it is not; else `None`.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Slot> {
        let mut c = self.counts.lock().unwrap_or_else(|e| e.into_inner());
        let refused = c.served >= self.max_served;
        if refused && c.refused >= self.max_refused {
            return None;
        }
        *(if refused {
            &mut c.refused
        } else {
            &mut c.served
        }) += 1;
        Some(Slot {
            slots: Arc::clone(self),
            refused,
        })
    }

    /// Waits until all places are free.
    pub(crate) fn wait_empty(&self) {
        let mut c = self.counts.lock().unwrap_or_else(|e| e.into_inner());
        while c.served + c.refused > 0 {
            c = self.empty.wait(c).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Connections served at this moment.
    pub(crate) fn served(&self) -> usize {
        self.counts.lock().unwrap_or_else(|e| e.into_inner()).served
    }
}

impl Slot {
    /// Whether this client is to be told that it is not served.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut c = self.slots.counts.lock().unwrap_or_else(|e| e.into_inner());
        let count = if self.refused {
            &mut c.refused
        } else {
            &mut c.served
        };
        *count -= 1;
        if c.served + c.refused == 0 {
            self.slots.empty.notify_all();
        }
    }
}
