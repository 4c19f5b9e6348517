//! The handle of a one-shot item.

use super::cell::TaskRef;
use crate::blocking;
use crate::current;
use crate::error::{JoinError, QueueError};
use crate::inline;
use crate::item::{Dropped, is_orphan, take_out};
use crate::sys::futex::Timeout;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Waits for a spawned closure and gives its result. Dropping it detaches: the closure runs all the same.
///
/// A handle is also a [`Future`]. It may be joined, awaited and dropped on any thread. Polling never blocks; the waker that was
/// given last is called once.
///
/// A panic of the closure goes to the handle if it exists at that moment; a handle that is then dropped unread drops the panic
/// with it.
#[must_use = "dropping the handle detaches the closure; say so with `drop` or `.detach()`"]
pub struct JoinHandle<T> {
    inner: Inner<T>,
}

enum Inner<T> {
    /// Queued; whether a thread that is no worker may have to run it itself, or more than it, while it waits.
    Task(TaskRef<T>, bool),
    /// It was never queued.
    Never(Option<JoinError>),
}

impl<T> Unpin for JoinHandle<T> {}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

impl<T> JoinHandle<T> {
    /// `hands_on`: the queue was built with `inline_wait`, or its runtime is driven by hand.
    #[inline]
    pub(crate) fn queued(task: TaskRef<T>, hands_on: bool) -> JoinHandle<T> {
        JoinHandle {
            inner: Inner::Task(task, hands_on),
        }
    }

    #[cold]
    pub(crate) fn refused(e: QueueError) -> JoinHandle<T> {
        JoinHandle {
            inner: Inner::Never(Some(JoinError::Refused(e))),
        }
    }

    /// The handle of a closure that could never start before the wait for it ends.
    #[cold]
    pub(crate) fn would_deadlock(item: &'static str) -> JoinHandle<T> {
        JoinHandle {
            inner: Inner::Never(Some(JoinError::WouldDeadlock {
                item,
                why: BEHIND_ITSELF,
            })),
        }
    }

    /// Whether the result is there. Never blocks.
    pub fn is_finished(&self) -> bool {
        match &self.inner {
            Inner::Task(t, _) => t.is_complete(),
            Inner::Never(_) => true,
        }
    }

    /// Waits for the result. Blocks.
    ///
    /// A worker of the same runtime that joins a closure that has not started runs it itself where mask, nice and the limits
    /// allow; otherwise its pool starts another worker meanwhile. It never runs anything else while it waits. Other threads
    /// run an awaited closure only on a queue built with [`inline_wait`](crate::WorkqueueBuilder::inline_wait).
    ///
    /// # Errors
    /// [`JoinError`]: refused, cancelled, panicked, or [`JoinError::WouldDeadlock`] if the caller runs an item of the same
    /// ordered queue, behind which the closure waits. In a forked child, where nobody will run it,
    /// [`JoinError::Refused`]([`QueueError::Forked`]).
    pub fn join(self) -> Result<T, JoinError> {
        match self.inner {
            Inner::Task(mut t, hands_on) => {
                if !t.is_complete() {
                    wait(&t, hands_on, None)?;
                }
                t.take()
            }
            Inner::Never(e) => Err(never(e)),
        }
    }

    /// As [`join`](Self::join), at most for `timeout`: then the handle comes back. Blocks. A closure that the caller has begun to
    /// run itself is run to its end, however long that takes.
    ///
    /// # Errors
    /// As for `join`, inside.
    pub fn join_timeout(self, timeout: Duration) -> Result<Result<T, JoinError>, JoinHandle<T>> {
        match self.inner {
            Inner::Task(mut t, hands_on) => {
                if !t.is_complete() {
                    match wait(&t, hands_on, Instant::now().checked_add(timeout)) {
                        Ok(true) => {}
                        Ok(false) => {
                            return Err(JoinHandle {
                                inner: Inner::Task(t, hands_on),
                            });
                        }
                        Err(e) => return Ok(Err(e)),
                    }
                }
                Ok(t.take())
            }
            Inner::Never(e) => Ok(Err(never(e))),
        }
    }

    /// Takes the closure out of its queue if it has not started: then it never runs, what it captured is dropped here, and the
    /// handle resolves to [`JoinError::Cancelled`]. True if so; false if it runs or is over, or in a forked child. Does not wait
    /// for the closure, nor for its captured values longer than their drop takes.
    pub fn cancel(&self) -> bool {
        let Inner::Task(t, _) = &self.inner else {
            return false;
        };
        if t.is_complete() || is_orphan(t.header().word()) {
            return false;
        }
        let item = t.item();
        if !take_out(item, t.header()) {
            return false;
        }
        // SAFETY: we took the item out, so the queue's reference is ours and nobody runs it.
        unsafe { item.discard(Dropped::Cancelled) };
        true
    }

    /// Lets the closure run without anybody waiting for it; the same as dropping the handle.
    pub fn detach(self) {}
}

fn never(e: Option<JoinError>) -> JoinError {
    e.unwrap_or(JoinError::Refused(QueueError::ShutDown))
}

/// Why an item of an ordered queue cannot wait for another one of it.
pub(crate) const BEHIND_ITSELF: &str =
    "it waits behind the caller's own item in an ordered workqueue";

/// Waits for the result; false if the deadline came first.
fn wait<T>(t: &TaskRef<T>, hands_on: bool, deadline: Option<Instant>) -> Result<bool, JoinError> {
    if is_orphan(t.header().word()) {
        return Err(JoinError::Refused(QueueError::Forked));
    }
    if !hands_on && !current::is_running() && !crate::pool::ever_failed() {
        // A thread of the application that can do nothing but sleep. (If making a thread fails from now on, whoever tries is told.)
        return Ok(inline::sleep_until(
            deadline,
            || false,
            |timeout| t.wait(timeout),
        ));
    }
    if inline::try_run(t.item(), t.header())? && t.is_complete() {
        return Ok(true);
    }
    let _lent = inline::lend(t.item(), t.header());
    if let Some(rt) = inline::manual_runtime(t.header()) {
        return rt
            .run_until(|| t.is_complete())
            .map(|()| true)
            .map_err(|_| JoinError::WouldDeadlock {
                // SAFETY: the handle keeps the cell alive.
                item: unsafe { t.item().name() },
                why: "nothing is left that could run in the seeded runtime",
            });
    }
    let _away = current::is_running().then(blocking::enter);
    Ok(inline::watchful(
        t.header(),
        deadline,
        |timeout: Timeout| t.wait(timeout),
    ))
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.inner {
            Inner::Task(t, _) if !t.is_complete() && is_orphan(t.header().word()) => {
                Poll::Ready(Err(JoinError::Refused(QueueError::Forked)))
            }
            Inner::Task(t, _) => t.poll(cx),
            Inner::Never(e) => Poll::Ready(Err(e.take().expect("polled again after it was ready"))),
        }
    }
}
