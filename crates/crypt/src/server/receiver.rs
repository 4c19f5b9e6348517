//! A reader as what runs it sees it, and the wait for all of them to end.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::executor::Executor;
use super::item::Item;
use super::reader::Reader;

/// What is left of a server's receivers.
#[derive(Debug, Default)]
struct Left {
    running: usize,
    failed: Option<io::Error>,
}

/// Counts receivers that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Receivers {
    left: Mutex<Left>,
    ended: Condvar,
}

impl Receivers {
    fn lock(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until all have ended; returns the first error.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut left = self.lock();
        while left.running > 0 {
            left = self.ended.wait(left).unwrap_or_else(|e| e.into_inner());
        }
        left.failed.take().map_or(Ok(()), Err)
    }
}

/// What a thread takes in in one turn.
const SHARE: usize = 16;

/// Takes in what clients send: a share of the connections, run by one caller at a time.
///
/// One turn is [`poll`](Self::poll) or [`wait`](Self::wait), then [`handle`](Self::handle), which gives the requests that came.
/// `share` is how often sockets are read from in the turn; each time brings a write, or any number of small requests. A small
/// share lets requests run while their data is still in the CPU's cache; connections that had no turn are first in the next.
///
/// Dropping a receiver before `handle` has returned false closes its connections and stops the server.
pub struct Receiver {
    reader: Option<Reader>,
    failed: Option<io::Error>,
    all: Arc<Receivers>,
}

impl Receiver {
    pub(crate) fn new(reader: Reader, all: &Arc<Receivers>) -> Receiver {
        all.lock().running += 1;
        Receiver {
            reader: Some(reader),
            failed: None,
            all: Arc::clone(all),
        }
    }

    /// Looks what there is to do, without waiting; whether there is something.
    pub fn poll(&mut self, share: usize) -> bool {
        self.collect(false, share)
    }

    /// Waits until there is something to do: a client, a message from an item, a time limit, or that the server stops.
    pub fn wait(&mut self, share: usize) {
        self.collect(true, share);
    }

    fn collect(&mut self, wait: bool, share: usize) -> bool {
        let Some(reader) = &mut self.reader else {
            return true;
        };
        match reader.collect(wait, share) {
            Ok(any) => any,
            Err(e) => {
                // Nothing can go on without events.
                self.failed = Some(e.into());
                self.reader = None;
                true
            }
        }
    }

    /// Does what there is to do: answers what can be answered at once, and adds the parts of the requests that came to `items`,
    /// for the caller to run or have run. Never waits for a client or the disk. False once the server has stopped and every
    /// connection of this receiver is done.
    pub fn handle(&mut self, items: &mut impl Extend<Item>) -> bool {
        let Some(reader) = &mut self.reader else {
            return false;
        };
        let goes_on = reader.handle();
        items.extend(reader.items().drain(..));
        if !goes_on {
            self.reader = None;
        }
        goes_on
    }

    /// Whether the last turn used its whole share, so that there may be more to take in at once.
    pub fn has_more(&self) -> bool {
        self.reader.as_ref().is_some_and(Reader::has_more)
    }

    /// Turn after turn until the end; requests go to `executor`.
    pub fn run(mut self, executor: &dyn Executor) {
        let mut items = Vec::new();
        loop {
            self.wait(SHARE);
            let goes_on = self.handle(&mut items);
            for item in items.drain(..) {
                executor.submit(item);
            }
            if !goes_on {
                return;
            }
        }
    }

    /// As [`run`](Self::run), on a thread of its own and with the server's executor.
    ///
    /// # Errors
    /// The system's, with the receiver given back, when the thread cannot be started.
    pub fn run_on_thread(self) -> Result<(), (io::Error, Box<Receiver>)> {
        let Some(reader) = &self.reader else {
            return Ok(());
        };
        let name = format!("crypt-reader-{}", reader.index());
        let executor = reader.executor();
        // A failed spawn drops its closure, so the receiver stays in a cell that both sides hold.
        let cell = Arc::new(Mutex::new(Some(self)));
        let take =
            |cell: &Mutex<Option<Receiver>>| cell.lock().unwrap_or_else(|e| e.into_inner()).take();
        let theirs = Arc::clone(&cell);
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            if let Some(receiver) = take(&theirs) {
                receiver.run(&*executor);
            }
        });
        match spawned {
            Ok(_) => Ok(()),
            // The closure is gone, so the receiver is there.
            Err(e) => take(&cell).map_or(Ok(()), |receiver| Err((e, Box::new(receiver)))),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Closes what is open, and stops the server if it has not stopped.
        self.reader = None;
        let mut left = self.all.lock();
        left.running -= 1;
        if std::thread::panicking() {
            left.failed = Some(io::Error::other("a receiver panicked"));
        } else if let Some(e) = self.failed.take() {
            left.failed.get_or_insert(e);
        }
        self.all.ended.notify_all();
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("index", &self.reader.as_ref().map(Reader::index))
            .finish_non_exhaustive()
    }
}
