//! Ending a runtime, freezing it.

use super::Runtime;
use crate::error::WaitError;
use crate::workqueue::WqInner;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a queue still held when [`Runtime::shutdown_timeout`] gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The queue's name.
    pub wq: String,
    /// Items on a worklist, with a worker or running.
    pub active: usize,
    /// Items held back.
    pub inactive: usize,
    /// The functions of running items.
    pub running: Vec<&'static str>,
}

/// The time was over before everything was done. The runtime stays in shutdown: nothing new is accepted, what is left
/// still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownTimeout {
    /// The queues that are not empty.
    pub left: Vec<Leftover>,
}

impl fmt::Display for ShutdownTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the runtime did not finish in time:")?;
        for l in &self.left {
            write!(
                f,
                " workqueue \"{}\" has {} active and {} inactive items",
                l.wq, l.active, l.inactive
            )?;
            if !l.running.is_empty() {
                write!(f, " (running: {})", l.running.join(", "))?;
            }
            write!(f, ";")?;
        }
        Ok(())
    }
}

impl std::error::Error for ShutdownTimeout {}

impl Runtime {
    /// Refuses new queues and, on existing ones, all but chained queueing; waits until everything queued is done; closes the
    /// queues. Armed delayed work is cancelled and says so. Blocks, for ever if an item never ends. May be called again.
    ///
    /// # Errors
    /// [`WaitError::OwnQueue`] from a work item of this runtime, which would wait for itself; [`WaitError::Forked`].
    pub fn shutdown(&self) -> Result<(), WaitError> {
        self.check_shutdown()?;
        self.drain_all(None).map(|_| ())
    }

    /// As [`shutdown`](Self::shutdown), at most for `timeout`. Blocks.
    ///
    /// # Errors
    /// `Ok(Err(..))` with what is left when the time was over; `Err(..)` as for `shutdown`.
    pub fn shutdown_timeout(
        &self,
        timeout: Duration,
    ) -> Result<Result<(), ShutdownTimeout>, WaitError> {
        self.check_shutdown()?;
        let deadline = Instant::now().checked_add(timeout);
        if self.drain_all(deadline)? {
            return Ok(Ok(()));
        }
        let left = self.inner.wqs().iter().filter_map(leftover).collect();
        Ok(Err(ShutdownTimeout { left }))
    }

    fn check_shutdown(&self) -> Result<(), WaitError> {
        if self.inner.fork.is_stale() {
            return Err(WaitError::Forked);
        }
        if let Some(r) = crate::current::running()
            && Arc::ptr_eq(&r.link.wq.rt, &self.inner)
        {
            return Err(WaitError::OwnQueue {
                wq: r.link.wq.name().clone(),
                item: r.name,
            });
        }
        Ok(())
    }

    fn drain_all(&self, deadline: Option<Instant>) -> Result<bool, WaitError> {
        self.inner.lock_wqs().closing = true;
        let wqs = self.inner.wqs();
        wqs.iter().for_each(|wq| wq.begin_drain());
        // Items of one queue may queue on another that was found empty before: go round until all are empty at once.
        loop {
            for wq in &wqs {
                if !wq.until_empty(deadline)? {
                    return Ok(false);
                }
            }
            if wqs.iter().all(|wq| wq.is_empty()) {
                break;
            }
        }
        wqs.iter().for_each(|wq| wq.close());
        Ok(true)
    }

    /// Holds all freezable queues back: what is active finishes, nothing new starts, queueing goes on. New freezable queues
    /// are born frozen. May be called again without effect. Does not wait for what is active: see
    /// [`freeze_busy`](Self::freeze_busy). O(queues and their pools).
    pub fn freeze(&self) {
        self.set_frozen(true);
    }

    /// Lets freezable queues run again; held-back items start in order.
    pub fn thaw(&self) {
        self.set_frozen(false);
    }

    fn set_frozen(&self, frozen: bool) {
        if self.inner.fork.is_stale() {
            return;
        }
        let wqs = {
            let mut wqs = self.inner.lock_wqs();
            wqs.frozen = frozen;
            wqs.list
                .iter()
                .filter_map(std::sync::Weak::upgrade)
                .collect::<Vec<_>>()
        };
        wqs.iter().for_each(|wq| wq.set_frozen(frozen));
    }

    /// Whether items of freezable queues are still active after [`freeze`](Self::freeze).
    pub fn freeze_busy(&self) -> bool {
        self.inner
            .wqs()
            .iter()
            .any(|wq| wq.config.freezable && wq.is_active())
    }
}

fn leftover(wq: &Arc<WqInner>) -> Option<Leftover> {
    let stats = wq.stats();
    (stats.active + stats.inactive > 0).then(|| Leftover {
        wq: wq.name().to_string(),
        active: stats.active,
        inactive: stats.inactive,
        running: wq.running_names(),
    })
}
