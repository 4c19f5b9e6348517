//! Delayed work: a reusable item and a time.

use crate::error::{QueueError, WaitError};
use crate::item::{Grabbed, grab_idle};
use crate::work::{Busy, Delayed, EnableQueueError, Func, NotDisabled, Work};
use crate::workqueue::{Place, Queued, WqInner};
use cmwq_policy::word::Word;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A [`Work`] that can be queued after a delay. Armed, it is pending; when the time comes it is queued near the thread that
/// looks after timers, as the kernel does for an unbound request.
///
/// On a queue with `max_pending` that is full, an idle item cannot be armed; one that is armed when the queue is full as its time
/// comes is queued as soon as there is room, and [`flush`](Self::flush) queues it whether or not there is.
///
/// If its queue drains or closes while it is armed, it is cancelled, and [`cancelled_by_drain`](Self::cancelled_by_drain)
/// says so. (The kernel drops it when the timer fires.)
///
/// ```
/// # use std::time::Duration;
/// let wq = cmwq::Workqueue::builder("tick").build()?;
/// let tick = cmwq::DelayedWork::new(|_| println!("tick"));
/// wq.queue_delayed(&tick, Duration::from_millis(5))?;
/// tick.flush()?; // now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DelayedWork {
    work: Work,
}

impl std::fmt::Debug for DelayedWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DelayedWork")
            .field("work", &self.work)
            .finish_non_exhaustive()
    }
}

impl DelayedWork {
    /// A new, idle item; see [`Work::new`].
    pub fn new<F>(f: F) -> DelayedWork
    where
        F: Fn(&Work) + Send + Sync + 'static,
    {
        DelayedWork::make(std::any::type_name::<F>(), Box::new(f))
    }

    /// A new item whose function gets the delayed work itself, so that it can arm itself again.
    pub fn new_cyclic<F>(f: F) -> DelayedWork
    where
        F: Fn(&DelayedWork) + Send + Sync + 'static,
    {
        DelayedWork::make(
            std::any::type_name::<F>(),
            Box::new(move |w| f(&DelayedWork { work: w.clone() })),
        )
    }

    fn make(name: &'static str, func: Box<Func>) -> DelayedWork {
        DelayedWork {
            work: Work::make(name, func, Some(Delayed::default())),
        }
    }

    /// The item without its timer: for queueing at once, names and comparisons. Cancelling, disabling and flushing do the same
    /// through it.
    pub fn work(&self) -> &Work {
        &self.work
    }

    fn delayed(&self) -> &Delayed {
        self.work.delayed().expect("made with a timer")
    }

    pub(crate) fn queue_delayed(
        &self,
        wq: &Arc<WqInner>,
        delay: Duration,
    ) -> Result<Queued, QueueError> {
        if delay.is_zero() {
            return self.work.queue_on(wq, Place::Here);
        }
        if wq.rt.fork.is_stale() {
            return Err(wq.refuse(QueueError::Forked));
        }
        match grab_idle(self.work.header()) {
            Ok(before) => {
                self.arm_idle(wq, before, delay)?;
                Ok(Queued::New)
            }
            Err(seen) if seen.is_pending() => {
                wq.records.note_already_pending();
                Ok(Queued::AlreadyPending)
            }
            Err(seen) => Err(self.work.disabled(wq, seen)),
        }
    }

    pub(crate) fn mod_delayed(
        &self,
        wq: &Arc<WqInner>,
        delay: Duration,
    ) -> Result<Queued, QueueError> {
        wq.accepts_timers()?;
        let seen = self.work.header().word();
        if seen.depth() > 0 {
            return Err(self.work.disabled(wq, seen));
        }
        // What can fail comes before the item is taken from where it is.
        let at_once = delay.is_zero();
        if at_once {
            wq.reserve_room()?;
        }
        let (was, before) = self.work.grab();
        if before.depth() > 0 {
            self.work.header().set_word(before.grabbed().released());
            if at_once {
                wq.left_pending();
            }
            return Err(self.work.disabled(wq, before));
        }
        if at_once {
            let item = self.work.item_ref();
            if let Err(e) = wq.queue_reserved(item, before, Place::Here) {
                // It drains or closes since we looked: what was pending is cancelled, as all armed work, and says so.
                self.delayed()
                    .dropped
                    .store(was != Grabbed::Idle, Ordering::Relaxed);
                self.work.header().set_word(before.grabbed().released());
                wq.left_pending();
                // SAFETY: the reference made above was not taken by the queue.
                drop(unsafe { Work::from_item(item) });
                return Err(e);
            }
        } else if was == Grabbed::Idle {
            self.arm_idle(wq, before, delay)?;
        } else {
            self.arm(wq, before, delay);
        }
        Ok(if was == Grabbed::Idle {
            Queued::New
        } else {
            Queued::AlreadyPending
        })
    }

    /// Arms the timer of an item that was idle and is in our hands; on failure it is idle again. A full queue takes no new
    /// armed items either.
    fn arm_idle(&self, wq: &Arc<WqInner>, before: Word, delay: Duration) -> Result<(), QueueError> {
        if let Err(e) = wq.accepts_timers().and_then(|()| wq.check_room()) {
            self.work.header().set_word(before.grabbed().released());
            return Err(e);
        }
        self.arm(wq, before, delay);
        Ok(())
    }

    /// Arms the timer of an item in our hands. If the queue has begun to drain or was closed, the timer finds that out.
    fn arm(&self, wq: &Arc<WqInner>, before: Word, delay: Duration) {
        let delayed = self.delayed();
        delayed.dropped.store(false, Ordering::Relaxed);
        let timers = Arc::clone(&wq.rt.timers);
        *delayed.home.lock() = Some(Arc::clone(&timers));
        timers.arm(&self.work, before, wq, delay, Arc::clone(&delayed.dropped));
    }

    /// Takes the item off its timer or out of its queue. True if it was pending. See [`Work::cancel`].
    pub fn cancel(&self) -> bool {
        self.work.cancel()
    }

    /// See [`Work::cancel_sync`].
    ///
    /// # Errors
    /// See [`Work::cancel_sync`].
    pub fn cancel_sync(&self) -> Result<bool, WaitError> {
        self.work.cancel_sync()
    }

    /// See [`Work::disable`].
    pub fn disable(&self) -> bool {
        self.work.disable()
    }

    /// See [`Work::disable_sync`].
    ///
    /// # Errors
    /// See [`Work::disable_sync`].
    pub fn disable_sync(&self) -> Result<bool, WaitError> {
        self.work.disable_sync()
    }

    /// See [`Work::enable`].
    ///
    /// # Errors
    /// See [`Work::enable`].
    pub fn enable(&self) -> Result<bool, NotDisabled> {
        self.work.enable()
    }

    /// See [`Work::enable_and_queue`].
    ///
    /// # Errors
    /// See [`Work::enable_and_queue`].
    pub fn enable_and_queue(
        &self,
        wq: &crate::Workqueue,
    ) -> Result<Option<Queued>, EnableQueueError> {
        self.work.enable_and_queue(wq)
    }

    /// If armed, queues the item now; then waits as [`Work::flush`]. Blocks.
    ///
    /// # Errors
    /// See [`Work::flush`].
    pub fn flush(&self) -> Result<bool, WaitError> {
        self.work.flush()
    }

    /// Whether the item is armed or queued. Old when it returns.
    pub fn is_pending(&self) -> bool {
        self.work.is_pending()
    }

    /// See [`Work::busy`]; pending when armed.
    pub fn busy(&self) -> Busy {
        self.work.busy()
    }

    /// Whether the item was armed when its queue drained or closed, and so was cancelled. Until it is armed again.
    pub fn cancelled_by_drain(&self) -> bool {
        self.delayed().dropped.load(Ordering::Relaxed)
    }
}
