//! Items on a workqueue, and receivers on workqueues.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cmwq::{Work, Workqueue};

use super::conn::together;
use super::executor::{Executor, Inline};
use super::item::Item;
use super::receiver::Receiver;

/// Reads from sockets in one turn of a receiver's item...
const SHARE: usize = 4;
/// ...and the most, while clients send faster than that and a CPU is free to help...
const MOST_SHARE: usize = 32;
/// ...which is taken to be so after this many turns in a row, some 5 ms: a receiver that waits for input is back soon where all
/// CPUs are in use, and a third worker for two CPUs would only get in their way.
const STREAK: u32 = 16;
/// A receiver's item runs so many bytes of requests between two looks at its sockets: a quarter of a millisecond, and a quarter of the
/// cache that a CPU has for itself.
const OWN_BYTES: u64 = 512 << 10;
/// So many bytes of requests beyond that are given to others: half a millisecond for one CPU. Each wake-up costs 5-10 us and
/// moves the data of writes to another CPU's cache.
const GIVEN_BYTES: u64 = 1 << 20;
/// The replies to so many bytes of requests are sent together.
const TOGETHER_BYTES: u64 = 128 << 10;
/// What a small request costs beside a large one, as bytes.
const LEAST_BYTES: u64 = 8 << 10;
/// A receiver's item queues itself anew after this long, for others of the pool to have their turn, before it would be taken
/// for a CPU hog; at once when requests wait.
const SLICE: Duration = Duration::from_millis(8);
/// An own write that took this long and slept shows that the system makes writers wait. (Shorter waits come from a lock of the
/// file whose holder lost its CPU, and say nothing about the next write)...
const SLOW_WRITE: Duration = Duration::from_millis(5);
/// ...so for this long writes are queued.
const SLOW_FOR: Duration = Duration::from_millis(100);

/// Queues each item on a workqueue, as `kcryptd` does. An item that the queue refuses (it is closed, draining or full) runs on
/// the receiver's thread: a request is late then, never lost.
///
/// The queue should not be an ordered one: requests would run one at a time.
///
/// # Receivers
/// With queues for them ([`with_receivers`](Self::with_receivers)) the receivers are work items too. See README.md, "Receivers as
/// work items".
#[derive(Debug)]
pub struct OnWorkqueue {
    items: Arc<Items>,
    /// CPUs that may be at work at once.
    width: usize,
    receivers: usize,
    /// Those that no receiver has.
    free: Mutex<Vec<Workqueue>>,
}

/// The items' queue, and what is known about it.
#[derive(Debug)]
struct Items {
    queue: Workqueue,
    /// Queued, not started.
    waiting: AtomicUsize,
    /// Queued or running.
    in_flight: AtomicUsize,
    /// Receivers that have something to do.
    receiving: Arc<AtomicUsize>,
}

/// Counts an item out of [`Items::in_flight`], however it ends.
struct Flight(Arc<Items>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts while it lives.
struct Count(Arc<AtomicUsize>);

impl Count {
    fn new(of: &Arc<AtomicUsize>) -> Count {
        of.fetch_add(1, Ordering::Relaxed);
        Count(Arc::clone(of))
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OnWorkqueue {
    /// Items go to `wq`, which the caller may steer meanwhile: limits, scope, mask. Receivers have threads.
    pub fn new(wq: Workqueue) -> OnWorkqueue {
        OnWorkqueue {
            items: Arc::new(Items {
                queue: wq,
                waiting: AtomicUsize::new(0),
                in_flight: AtomicUsize::new(0),
                receiving: Arc::default(),
            }),
            width: std::thread::available_parallelism().map_or(1, |n| n.get()),
            receivers: 0,
            free: Mutex::default(),
        }
    }

    /// Each of these queues runs one receiver; receivers beyond have threads. They should have the attributes of the items'
    /// queue, so that the same workers serve both, and nothing else on them. While a server runs, its receivers' queues do not
    /// drain; one that is closed or drained gives its receiver to a thread.
    #[must_use]
    pub fn with_receivers(self, queues: Vec<Workqueue>) -> OnWorkqueue {
        OnWorkqueue {
            receivers: queues.len(),
            free: Mutex::new(queues),
            ..self
        }
    }

    /// The items' queue.
    pub fn workqueue(&self) -> &Workqueue {
        &self.items.queue
    }
}

impl Items {
    fn submit(self: &Arc<Self>, item: Item) {
        // Ordering: none needed for the counts: they decide who does what, not what is seen.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        // The cell gives the item back if the queue refuses it.
        let (flight, cell) = (Flight(Arc::clone(self)), Arc::new(Mutex::new(Some(item))));
        let theirs = Arc::clone(&cell);
        let queued = self.queue.spawn_detached(move || {
            flight.0.waiting.fetch_sub(1, Ordering::Relaxed);
            // The rest of a long request goes behind what waits by then, so that it does not hold a worker.
            if let Some(rest) = take(&theirs).and_then(Item::run) {
                flight.0.submit(rest);
            }
        });
        if queued.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            // All of it runs here, in a loop and not one call inside another.
            if let Some(item) = take(&cell) {
                Inline.submit(item);
            }
        }
    }

    /// How many CPUs have nothing to do for this server.
    fn spare(&self, width: usize) -> usize {
        let busy = self.receiving.load(Ordering::Relaxed) + self.in_flight.load(Ordering::Relaxed);
        width.saturating_sub(busy)
    }
}

fn take<T>(cell: &Mutex<Option<T>>) -> Option<T> {
    cell.lock().unwrap_or_else(|e| e.into_inner()).take()
}

/// What the item of a receiver has.
struct Seat {
    receiver: Receiver,
    items: Arc<Items>,
    width: usize,
    came: VecDeque<Item>,
    own: Vec<Item>,
    share: usize,
    streak: u32,
    /// Writes are queued until then.
    slow_until: Option<Instant>,
}

impl Seat {
    /// Turns until others should have theirs; false at the receiver's end.
    fn slice(&mut self) -> bool {
        let (mut left, mut began) = (SLICE, Instant::now());
        let mut busy = Count::new(&self.items.receiving);
        loop {
            if !self.came.is_empty() {
                // Whatever waits here, others have their turn too.
                self.receiver.poll(1);
            } else if !self.receiver.poll(self.share) {
                drop(busy);
                self.share = SHARE;
                left = left.saturating_sub(began.elapsed());
                cmwq::blocking(|| self.receiver.wait(SHARE));
                busy = Count::new(&self.items.receiving);
                began = Instant::now();
            }
            let goes_on = self.receiver.handle(&mut self.came);
            self.distribute();
            if !goes_on && self.came.is_empty() {
                return false;
            }
            if self.items.waiting.load(Ordering::Relaxed) > 0 || began.elapsed() >= left {
                drop(busy);
                return true;
            }
        }
    }

    /// Gives to others what they should run, then runs a part of the rest.
    fn distribute(&mut self) {
        let spare = self.items.spare(self.width) > 0;
        let slow = self.slow_until.is_some_and(|t| Instant::now() < t);
        let mut bytes = 0;
        while bytes < OWN_BYTES
            && let Some(item) = self.came.pop_front()
        {
            let quick = item.is_read() || (item.is_plain_write() && !slow);
            // The parts of a long request are worth a CPU each.
            let shared = spare && bytes > 0 && item.is_split();
            if quick && !shared {
                bytes += weight(&item);
                self.own.push(item);
            } else {
                self.items.submit(item);
            }
        }
        if self.streak >= STREAK && self.came.iter().map(weight).sum::<u64>() >= GIVEN_BYTES {
            for item in self.came.drain(..) {
                self.items.submit(item);
            }
        }
        self.run_own();
        let behind = self.receiver.has_more() || !self.came.is_empty();
        if !(spare && behind) {
            self.streak = 0;
            self.share = SHARE;
        } else if self.streak < STREAK {
            self.streak += 1;
        } else {
            self.share = (self.share * 2).min(MOST_SHARE);
        }
    }

    /// No queue any more: goes on with a thread, or else right here.
    fn leave(self) {
        for item in self.came {
            Inline.submit(item);
        }
        if let Err((_, receiver)) = self.receiver.run_on_thread() {
            receiver.run(&Inline);
        }
    }

    fn run_own(&mut self) {
        let writes = self.own.iter().any(Item::is_plain_write);
        let slept = if writes { sleeps() } else { 0 };
        let mut own = self.own.drain(..).peekable();
        while own.peek().is_some() {
            let mut some = || {
                let mut bytes = 0;
                while bytes < TOGETHER_BYTES
                    && let Some(item) = own.next()
                {
                    bytes += weight(&item);
                    let Err(item) = item.run_if_cached() else {
                        continue;
                    };
                    if item.is_read() {
                        self.items.submit(item);
                        continue;
                    }
                    let began = Instant::now();
                    Inline.submit(item);
                    if began.elapsed() >= SLOW_WRITE && sleeps() != slept {
                        self.slow_until = Some(Instant::now() + SLOW_FOR);
                    }
                }
            };
            // An item that panics answers its request as it is dropped; the connections still need their receiver.
            let _ = catch_unwind(AssertUnwindSafe(|| together(&mut some)));
        }
    }
}

/// What an item costs, in bytes: a small one more than its own.
fn weight(item: &Item) -> u64 {
    item.bytes().max(LEAST_BYTES)
}

/// How often the calling thread has given up its CPU by itself: to wait for something.
fn sleeps() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a writable `rusage`; all bit patterns of it, zeroes among them, are valid.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}

impl Executor for OnWorkqueue {
    fn submit(&self, item: Item) {
        self.items.submit(item);
    }

    fn blocking(&self, f: &mut dyn FnMut()) {
        cmwq::blocking(f);
    }

    fn receive(&self, receiver: Receiver) -> io::Result<()> {
        let free = self.free.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let Some(queue) = free else {
            return receiver.run_on_thread().map_err(|(e, _)| e);
        };
        let seat = Seat {
            receiver,
            items: Arc::clone(&self.items),
            width: self.width,
            came: VecDeque::new(),
            own: Vec::new(),
            share: SHARE,
            streak: 0,
            slow_until: None,
        };
        let cell = Arc::new(Mutex::new(Some(seat)));
        let work = {
            let (cell, queue) = (Arc::clone(&cell), queue.clone());
            Work::with_name("receive", move |work| {
                // Nobody else has it: an item does not run concurrently with itself. Dropped if this panics, which stops the server.
                let Some(mut seat) = take(&cell) else {
                    return;
                };
                if !seat.slice() {
                    return;
                }
                *cell.lock().unwrap_or_else(|e| e.into_inner()) = Some(seat);
                if queue.queue(work).is_err()
                    && let Some(seat) = take(&cell)
                {
                    seat.leave();
                }
            })
        };
        if queue.queue(&work).is_err()
            && let Some(seat) = take(&cell)
        {
            return seat.receiver.run_on_thread().map_err(|(e, _)| e);
        }
        Ok(())
    }

    fn receivers(&self) -> usize {
        match self.receivers {
            0 => Inline.receivers(),
            n => n,
        }
    }
}
