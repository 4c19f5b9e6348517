//! Delayed work: a reusable item and a time.

use crate::error::{QueueError, WaitError};
use crate::item::{Grabbed, grab_idle};
use crate::timers::Timers;
use crate::work::{Busy, EnableQueueError, NotDisabled, Work};
use crate::workqueue::{Place, Queued, WqInner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A [`Work`] that can be queued after a delay. Armed, it is pending; when the time comes it is queued near the thread that
/// looks after timers, as the kernel does for an unbound request.
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
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The timers of the runtime of the queue that it was last armed for. Written by whoever owns PENDING.
    home: Mutex<Option<Arc<Timers>>>,
    dropped: Arc<AtomicBool>,
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
        DelayedWork {
            work: Work::new(f),
            shared: Arc::default(),
        }
    }

    /// A new item whose function gets the delayed work itself, so that it can arm itself again.
    pub fn new_cyclic<F>(f: F) -> DelayedWork
    where
        F: Fn(&DelayedWork) + Send + Sync + 'static,
    {
        let shared: Arc<Shared> = Arc::default();
        let own = Arc::clone(&shared);
        let work = Work::with_name(std::any::type_name::<F>(), move |w| {
            f(&DelayedWork {
                work: w.clone(),
                shared: Arc::clone(&own),
            });
        });
        DelayedWork { work, shared }
    }

    /// The item without its timer: for queueing at once, names and comparisons.
    pub fn work(&self) -> &Work {
        &self.work
    }

    fn home(&self) -> Option<Arc<Timers>> {
        self.shared
            .home
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn off_timer(&self) -> impl FnMut(u32) -> bool {
        let home = self.home();
        let item = self.work.item();
        move |id| home.as_ref().is_some_and(|t| t.disarm(id, item))
    }

    pub(crate) fn queue_delayed(
        &self,
        wq: &Arc<WqInner>,
        delay: Duration,
    ) -> Result<Queued, QueueError> {
        if delay.is_zero() {
            return self.work.queue_on(wq, Place::Here);
        }
        match grab_idle(self.work.header()) {
            Ok(before) => {
                self.arm(wq, before, delay)?;
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
        let (was, before) = self.work.grab(self.off_timer());
        if before.depth() > 0 {
            self.work.header().set_word(before.grabbed().released());
            return Err(self.work.disabled(wq, before));
        }
        if delay.is_zero() {
            self.work.queue_grabbed(wq, before, Place::Here)?;
        } else {
            self.arm(wq, before, delay)?;
        }
        Ok(if was == Grabbed::Idle {
            Queued::New
        } else {
            Queued::AlreadyPending
        })
    }

    /// Arms the timer of an item in our hands; on failure it is idle again.
    fn arm(
        &self,
        wq: &Arc<WqInner>,
        before: cmwq_policy::word::Word,
        delay: Duration,
    ) -> Result<(), QueueError> {
        self.shared.dropped.store(false, Ordering::Relaxed);
        if let Err(e) = wq.accepts_timers().and_then(|()| wq.reserve_room()) {
            self.work.header().set_word(before.grabbed().released());
            return Err(e);
        }
        // Room is counted when the item is queued; armed items do not wait to be started.
        wq.left_pending();
        let timers = Arc::clone(&wq.rt.timers);
        *self
            .shared
            .home
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&timers));
        timers.arm(
            &self.work,
            before,
            wq,
            delay,
            Arc::clone(&self.shared.dropped),
        );
        Ok(())
    }

    /// Takes the item off its timer or out of its queue. True if it was pending. See [`Work::cancel`].
    pub fn cancel(&self) -> bool {
        self.work.cancel_with(self.off_timer())
    }

    /// See [`Work::cancel_sync`].
    ///
    /// # Errors
    /// See [`Work::cancel_sync`].
    pub fn cancel_sync(&self) -> Result<bool, WaitError> {
        self.work.cancel_sync_with(self.off_timer())
    }

    /// See [`Work::disable`].
    pub fn disable(&self) -> bool {
        self.work.disable_with(self.off_timer())
    }

    /// See [`Work::disable_sync`].
    ///
    /// # Errors
    /// See [`Work::disable_sync`].
    pub fn disable_sync(&self) -> Result<bool, WaitError> {
        self.work.disable_sync_with(self.off_timer())
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
        let seen = self.work.header().word();
        if seen.is_on_timer()
            && let Some(home) = self.home()
        {
            home.fire_now(seen.entry(), self.work.item());
        }
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
        self.shared.dropped.load(Ordering::Relaxed)
    }
}
