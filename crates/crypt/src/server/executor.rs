//! The seam between the server and what runs its work items.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use super::item::Item;
use super::receiver::Receiver;

/// Runs work items. One item is one part of a request, as `kcryptd` has one for each part of a bio.
///
/// # The contract
/// * Every item is run once, on any thread, at any time, in any order; [`Item::run`] may block on the disk.
/// * `run` returns the rest of a long request, if any, which is submitted again in its turn (or run at once).
/// * An item that is dropped instead is answered with an error, so a request is never left without a reply.
/// * `submit` should not wait for the item, or its connections wait too; it is called by receivers, with no lock
///   held, and must not fail: an executor that cannot take an item runs it itself.
pub trait Executor: Send + Sync + 'static {
    /// Takes an item.
    fn submit(&self, item: Item);

    /// Runs `f`, which is about to block on the disk, on the calling thread; called from within an item. An executor that
    /// manages its concurrency lets another item run meanwhile.
    fn blocking(&self, f: &mut dyn FnMut()) {
        f();
    }

    /// Has a receiver run, turn after turn, until it ends. Called a few times, while the server starts.
    ///
    /// # Errors
    /// Why it cannot be run; the receiver is dropped then.
    fn receive(&self, receiver: Receiver) -> io::Result<()> {
        receiver.run_on_thread().map_err(|(e, _)| e)
    }

    /// How many receivers there should be where the settings do not say: one a CPU, at most 8.
    fn receivers(&self) -> usize {
        std::thread::available_parallelism()
            .map_or(1, |n| n.get())
            .min(8)
    }
}

/// Runs each item at once on the receiver's own thread.
#[derive(Debug, Default)]
pub struct Inline;

impl Executor for Inline {
    fn submit(&self, item: Item) {
        let mut next = Some(item);
        while let Some(item) = next {
            next = item.run();
        }
    }
}

/// Starts a thread for each item: the plain way to do it, for comparison. Where no thread can be started the item runs on the
/// receiver's thread.
#[derive(Debug, Default)]
pub struct ThreadPerItem;

impl ThreadPerItem {
    /// Bytes of stack: an item needs a few KiB.
    const STACK: usize = 128 << 10;

    fn spawn(cell: Arc<Mutex<Option<Item>>>) -> io::Result<()> {
        let run = move || {
            let mut next = cell.lock().unwrap_or_else(|e| e.into_inner()).take();
            while let Some(item) = next {
                next = item.run();
            }
        };
        std::thread::Builder::new()
            .name("crypt-item".into())
            .stack_size(Self::STACK)
            .spawn(run)
            .map(drop)
    }
}

impl Executor for ThreadPerItem {
    fn submit(&self, item: Item) {
        // A failed spawn drops its closure, so the item stays in a cell that both sides hold.
        let cell = Arc::new(Mutex::new(Some(item)));
        if Self::spawn(Arc::clone(&cell)).is_err() {
            let item = cell.lock().unwrap_or_else(|e| e.into_inner()).take();
            if let Some(item) = item {
                Inline.submit(item);
            }
        }
    }
}

#[derive(Default)]
struct PoolQueue {
    items: VecDeque<Item>,
    idle: usize,
    closed: bool,
}

/// A fixed number of threads and one queue: the other plain way to do it, for comparison. Dropping it ends the threads after
/// the items that are queued, so the last handle must not be dropped by an item.
pub struct FixedPool {
    shared: Arc<(Mutex<PoolQueue>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

impl FixedPool {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// The system's, when a thread cannot be started.
    pub fn new(threads: usize) -> io::Result<FixedPool> {
        let mut pool = FixedPool {
            shared: Arc::default(),
            threads: Vec::new(),
        };
        for n in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let run = move || Self::work(&shared);
            pool.threads.push(
                std::thread::Builder::new()
                    .name(format!("crypt-pool-{n}"))
                    .spawn(run)?,
            );
        }
        Ok(pool)
    }

    fn work(shared: &(Mutex<PoolQueue>, Condvar)) {
        let (lock, wake) = shared;
        let mut queue = lock.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if let Some(item) = queue.items.pop_front() {
                drop(queue);
                // An item that panics answers its request as it is dropped; the items behind it still need this thread.
                let rest = catch_unwind(AssertUnwindSafe(|| item.run())).unwrap_or(None);
                queue = lock.lock().unwrap_or_else(|e| e.into_inner());
                queue.items.extend(rest);
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = wake.wait(queue).unwrap_or_else(|e| e.into_inner());
                queue.idle -= 1;
            }
        }
    }
}

impl Executor for FixedPool {
    fn submit(&self, item: Item) {
        let (lock, wake) = &*self.shared;
        let mut queue = lock.lock().unwrap_or_else(|e| e.into_inner());
        queue.items.push_back(item);
        let idle = queue.idle > 0;
        drop(queue);
        if idle {
            wake.notify_one();
        }
    }
}

impl Drop for FixedPool {
    fn drop(&mut self) {
        let (lock, wake) = &*self.shared;
        lock.lock().unwrap_or_else(|e| e.into_inner()).closed = true;
        wake.notify_all();
        for thread in self.threads.drain(..) {
            // Panics of items are caught in the loop, so there is nothing to tell.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for FixedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FixedPool")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}
