//! Flush, drain, close, destroy.

use super::table::Table;
use super::{PwqLink, WqInner};
use crate::completion::Completion;
use crate::current;
use crate::error::{QueueError, WaitError};
use cmwq_policy::flush::Arm;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl WqInner {
    /// Waits until everything queued before the call is done; see [`super::Workqueue::flush`].
    pub(crate) fn flush(self: &Arc<Self>) -> Result<(), WaitError> {
        self.check_not_own()?;
        self.flush_unchecked(None).map(|_| ())
    }

    fn check_not_own(&self) -> Result<(), WaitError> {
        if self.rt.fork.is_stale() {
            return Err(WaitError::Forked);
        }
        if current::runs_item_of(self) {
            let item = current::running().map_or("?", |r| r.name);
            return Err(WaitError::OwnQueue {
                wq: self.name().clone(),
                item,
            });
        }
        Ok(())
    }

    /// False if the deadline came first.
    fn flush_unchecked(self: &Arc<Self>, deadline: Option<Instant>) -> Result<bool, WaitError> {
        let done = Completion::new();
        let arm = self.lock().flush.begin(Arc::clone(&done));
        self.arm(arm);
        self.rt.wait_until(&done, deadline, || {
            format!("a flush of workqueue \"{}\"", self.name())
        })
    }

    /// Arms all pwqs for a colour, and again for those who overflowed while that went on.
    fn arm(&self, mut arm: Option<Arm>) {
        while let Some(a) = arm {
            let mut through = Vec::new();
            let links: Vec<Arc<PwqLink>> = self.lock().links.clone();
            for link in links {
                self.lock().flush.expect(a.flush);
                let armed = link.pool.with(|p, drv| {
                    let Some(id) = link.id() else { return false };
                    let now = drv.now();
                    p.arm_flush(id, a.flush, a.next, now, drv)
                });
                if !armed {
                    let next = self.lock().flush.done(a.flush, &mut through);
                    debug_assert!(next.is_none(), "no flush begins while pwqs are armed");
                }
            }
            arm = self.lock().flush.armed_all(a.flush, &mut through);
            through
                .into_iter()
                .for_each(|c: Arc<Completion>| c.complete());
        }
    }

    /// A pwq has nothing of this colour left.
    pub(crate) fn flushed(&self, colour: u8) {
        let mut through = Vec::new();
        let arm = self.lock().flush.done(colour, &mut through);
        through.into_iter().for_each(|c| c.complete());
        self.arm(arm);
    }

    /// Waits until the queue is empty, accepting only chained queueing meanwhile; see [`super::Workqueue::drain`].
    pub(crate) fn drain(self: &Arc<Self>) -> Result<(), WaitError> {
        self.check_not_own()?;
        self.begin_drain();
        let result = self.until_empty(None);
        self.end_drain();
        result.map(|_| ())
    }

    pub(crate) fn begin_drain(&self) {
        let mut state = self.lock();
        state.drainers += 1;
        self.mark_draining(&state.links, true);
        drop(state);
        self.rt.timers.cancel_queue(self);
    }

    fn end_drain(&self) {
        let mut state = self.lock();
        state.drainers -= 1;
        if state.drainers == 0 {
            self.mark_draining(&state.links, false);
        }
    }

    fn mark_draining(&self, links: &[Arc<PwqLink>], draining: bool) {
        for link in links {
            link.pool.inspect(|inner| {
                if let Some(id) = link.id() {
                    inner.policy.set_draining(id, draining);
                    link.set_draining(draining);
                }
            });
        }
    }

    /// Waits until nothing is queued; false if the deadline came first.
    pub(crate) fn until_empty(
        self: &Arc<Self>,
        deadline: Option<Instant>,
    ) -> Result<bool, WaitError> {
        loop {
            if !self.flush_unchecked(deadline)? {
                return Ok(false);
            }
            if self.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Whether nothing is queued, held back or running.
    pub(crate) fn is_empty(&self) -> bool {
        let links: Vec<Arc<PwqLink>> = self.lock().links.clone();
        links.iter().all(|l| {
            l.pool
                .with(|p, _| l.id().is_none_or(|id| p.pwq(id).is_empty()))
        })
    }

    /// The functions of the items that run now.
    pub(crate) fn running_names(&self) -> Vec<&'static str> {
        let links: Vec<Arc<PwqLink>> = self.lock().links.clone();
        let (mut names, mut running) = (Vec::new(), Vec::new());
        for link in links {
            link.pool.with(|p, drv| {
                let now = drv.now();
                p.recall_all(now, drv);
                running.clear();
                for (id, w) in p.workers() {
                    let first = w.taken().first().and_then(|&e| p.entry(e));
                    if first.is_some_and(|e| Some(e.pwq) == link.id()) {
                        running.push(id);
                    }
                }
            });
            // An item may be over and gone although its entry is not counted out yet: ask its worker.
            link.pool.inspect(|inner| {
                let shared = |id: &u32| inner.workers.get(*id as usize)?.as_ref();
                names.extend(running.iter().filter_map(shared).map(|w| w.item_name()));
            });
        }
        names
    }

    /// Whether delayed work may be armed for this queue.
    pub(crate) fn accepts_timers(&self) -> Result<(), QueueError> {
        if self.rt.fork.is_stale() {
            return Err(self.refuse(QueueError::Forked));
        }
        if self.is_closed() {
            return Err(self.refuse(QueueError::Closed {
                wq: self.name().clone(),
            }));
        }
        if self.lock().drainers > 0 && !current::runs_item_of(self) {
            return Err(self.refuse(QueueError::Draining {
                wq: self.name().clone(),
            }));
        }
        Ok(())
    }

    /// Refuses new items from now on; what is queued still runs, and then everything is released.
    pub(crate) fn close(self: &Arc<Self>) {
        self.close_and_tell(None);
    }

    /// Closes, and tells `waiter` when nothing is left. It lines up as the queue is closed: what came in until then is waited
    /// for, and nothing comes in after.
    fn close_and_tell(self: &Arc<Self>, waiter: Option<Arc<Completion>>) {
        if self.rt.fork.is_stale() {
            return; // inherited by a fork: left as it is, since any lock may be held for ever
        }
        let mut state = self.lock();
        state.gone.extend(waiter);
        // Ordering: Release pairs with the Acquire of `is_closed`.
        let first = !self.closed.swap(true, Ordering::Release);
        let links = state.links.clone();
        let gone = if links.is_empty() {
            std::mem::take(&mut state.gone)
        } else {
            Vec::new()
        };
        // Dropped at the end, without the lock: the last pwqs are released with it.
        let _old = first.then(|| self.table.store(Arc::new(Table::closed())));
        drop(state);
        if first && links.is_empty() {
            self.rt.forget_wq(self);
        }
        gone.into_iter().for_each(|c| c.complete());
        if !first {
            return;
        }
        self.rt.timers.cancel_queue(self);
        self.room.tell_all();
        Self::retire(links);
        if let Some(r) = self.rescuer.get() {
            r.stop();
        }
    }

    /// Drains, closes, and waits until the last pwq is released; see [`super::Workqueue::destroy`].
    pub(crate) fn destroy(self: &Arc<Self>) -> Result<(), WaitError> {
        self.drain()?;
        let done = Completion::new();
        self.close_and_tell(Some(Arc::clone(&done)));
        self.rt.wait(&done, || {
            format!("the end of workqueue \"{}\"", self.name())
        })
    }

    /// Freezes or thaws a freezable queue.
    pub(crate) fn set_frozen(&self, frozen: bool) {
        let mut state = self.lock();
        if !self.config.freezable || state.frozen == frozen {
            return;
        }
        state.frozen = frozen;
        let links = state.links.clone();
        drop(state);
        for link in links {
            link.pool.with(|p, drv| {
                if let Some(id) = link.id() {
                    let now = drv.now();
                    p.set_frozen(id, frozen, now, drv);
                }
            });
        }
    }

    /// Whether items of the queue are active.
    pub(crate) fn is_active(&self) -> bool {
        let links = self.lock().links.clone();
        links.iter().any(|l| {
            l.pool
                .with(|p, _| l.id().is_some_and(|id| p.pwq(id).active() > 0))
        })
    }
}
