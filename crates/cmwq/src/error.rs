//! Errors. Each names what was refused and what was expected; a call that fails has changed nothing.

use crate::shim::leaf::{Mutex, PoisonError};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Why an item was not accepted. The item is untouched: it may be queued again, here or elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// The workqueue drains and the caller does not run one of its items. (The kernel drops the item and returns `true`.)
    Draining {
        /// The workqueue's name.
        wq: Arc<str>,
    },
    /// The workqueue was destroyed, or its last handle was dropped.
    Closed {
        /// The workqueue's name.
        wq: Arc<str>,
    },
    /// As many items as `max_pending` allows wait already.
    Full {
        /// The workqueue's name.
        wq: Arc<str>,
        /// The limit.
        max_pending: usize,
    },
    /// The item was disabled and not enabled as often.
    Disabled {
        /// How many `enable` calls are missing.
        depth: u32,
        /// The item's function.
        item: &'static str,
    },
    /// This process was forked from the one that made the runtime; its threads do not exist here.
    Forked,
    /// There is no such CPU on this machine.
    NoSuchCpu {
        /// The CPU asked for.
        cpu: usize,
        /// The CPUs there are, as a list.
        possible: String,
    },
    /// There is no such NUMA node on this machine.
    NoSuchNode {
        /// The node asked for.
        node: usize,
    },
    /// The call has no meaning for this kind of workqueue.
    WrongKind {
        /// The workqueue's name.
        wq: Arc<str>,
        /// What was expected.
        expected: &'static str,
    },
    /// The runtime shuts down or has shut down.
    ShutDown,
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueError::Draining { wq } => {
                write!(f, "workqueue \"{wq}\" is draining: only its own running items may queue")
            }
            QueueError::Closed { wq } => write!(f, "workqueue \"{wq}\" is closed"),
            QueueError::Full { wq, max_pending } => {
                write!(f, "workqueue \"{wq}\" is full: {max_pending} items wait (max_pending)")
            }
            QueueError::Disabled { depth, item } => {
                write!(f, "work item {item} is disabled (depth {depth}): enable it as often as it was disabled")
            }
            QueueError::Forked => f.write_str(
                "this process is a fork of the one that made the runtime, whose workers do not exist here: make a new \
                 runtime in the child, or queue before forking",
            ),
            QueueError::NoSuchCpu { cpu, possible } => write!(f, "no CPU {cpu}: this machine has {possible}"),
            QueueError::NoSuchNode { node } => write!(f, "no NUMA node {node} on this machine"),
            QueueError::WrongKind { wq, expected } => write!(f, "workqueue \"{wq}\": expected {expected}"),
            QueueError::ShutDown => f.write_str("the runtime has shut down"),
        }
    }
}

impl std::error::Error for QueueError {}

/// [`QueueError`] with the closure that was not accepted.
pub struct TrySpawnError<F> {
    /// Why.
    pub error: QueueError,
    /// The closure, untouched.
    pub func: F,
}

impl<F> fmt::Debug for TrySpawnError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrySpawnError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<F> fmt::Display for TrySpawnError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<F> std::error::Error for TrySpawnError<F> {}

/// Why a spawned closure has no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// It was never accepted.
    Refused(QueueError),
    /// It was taken out before it started.
    Cancelled {
        /// The closure's type.
        item: &'static str,
    },
    /// It panicked.
    Panicked(PanicPayload),
    /// Waiting could not end: the caller runs an item that this one has to wait for.
    WouldDeadlock {
        /// What was waited for.
        item: &'static str,
        /// Why that cannot end.
        why: &'static str,
    },
}

impl JoinError {
    pub(crate) fn cancelled(item: &'static str) -> JoinError {
        JoinError::Cancelled { item }
    }

    pub(crate) fn panicked(payload: Box<dyn Any + Send>, item: &'static str) -> JoinError {
        JoinError::Panicked(PanicPayload {
            item,
            message: panic_message(&*payload),
            payload: Mutex::new(payload),
        })
    }

    /// Whether it panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self, JoinError::Panicked(_))
    }

    /// Whether it was cancelled before it started.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, JoinError::Cancelled { .. })
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Refused(e) => write!(f, "not accepted: {e}"),
            JoinError::Cancelled { item } => write!(f, "{item} was cancelled before it started"),
            JoinError::Panicked(p) => write!(f, "{} panicked: {}", p.item, p.message),
            JoinError::WouldDeadlock { item, why } => {
                write!(f, "waiting for {item} would never end: {why}")
            }
        }
    }
}

impl std::error::Error for JoinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JoinError::Refused(e) => Some(e),
            _ => None,
        }
    }
}

/// What a panicking item threw.
pub struct PanicPayload {
    item: &'static str,
    message: String,
    payload: Mutex<Box<dyn Any + Send>>,
}

impl PanicPayload {
    /// The payload itself, for [`std::panic::resume_unwind`].
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        self.payload
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The message, if the payload was a string.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The function that panicked.
    pub fn item(&self) -> &'static str {
        self.item
    }
}

impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PanicPayload")
            .field("item", &self.item)
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}

/// The text of a panic's payload.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(s) = payload.downcast_ref::<&str>() {
        (*s).to_owned()
    } else if let Some(s) = payload.downcast_ref::<String>() {
        s.clone()
    } else {
        "(a payload that is no text)".to_owned()
    }
}

/// Calls foreign code whose panic must not reach the caller (drop glue, wakers, hooks); true if it panicked. The panic hook has
/// reported it. A payload whose own drop panics is leaked.
pub(crate) fn quietly(f: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(()) => false,
        Err(payload) => {
            drop_payload(payload);
            true
        }
    }
}

/// Drops the payload of a panic, which may panic again; that one is leaked.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(again);
    }
}

/// Why a wait cannot be made. (The kernel deadlocks.)
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// A work item waits for itself.
    OnSelf {
        /// The item's function.
        item: &'static str,
    },
    /// An item waits for all of its own workqueue, and so for itself.
    OwnQueue {
        /// The workqueue's name.
        wq: Arc<str>,
        /// The function of the item that asked.
        item: &'static str,
    },
    /// The awaited item can only start after the caller's own item has ended, as the workqueue runs one at a time.
    Order {
        /// The workqueue's name.
        wq: Arc<str>,
        /// The awaited item's function.
        item: &'static str,
    },
    /// This process was forked from the one that made the runtime.
    Forked,
    /// Nothing that could still run would end the wait (a seeded runtime of [`crate::testing`] has nothing left to do).
    Stuck {
        /// What was waited for.
        what: String,
    },
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::OnSelf { item } => write!(f, "work item {item} waits for itself"),
            WaitError::OwnQueue { wq, item } => {
                write!(
                    f,
                    "work item {item} waits for its own workqueue \"{wq}\", and so for itself"
                )
            }
            WaitError::Order { wq, item } => write!(
                f,
                "work item {item} of workqueue \"{wq}\" can start only after the item that waits for it: the queue runs one at a time"
            ),
            WaitError::Forked => QueueError::Forked.fmt(f),
            WaitError::Stuck { what } => write!(
                f,
                "waiting for {what} would never end: nothing is left that could run"
            ),
        }
    }
}

impl std::error::Error for WaitError {}

/// Why settings were not accepted. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttrsError {
    /// The setting has no meaning for this kind of workqueue.
    WrongKind {
        /// The workqueue's name.
        wq: Arc<str>,
        /// The setting.
        setting: &'static str,
        /// For which workqueues it has one.
        expected: &'static str,
    },
    /// A value out of range.
    OutOfRange {
        /// The setting.
        setting: &'static str,
        /// The value.
        value: i64,
        /// What was expected.
        expected: &'static str,
    },
    /// The mask has no CPU that this machine has.
    EmptyMask {
        /// The mask, as a list.
        mask: String,
        /// The CPUs there are, as a list.
        possible: String,
    },
    /// The workqueue is being destroyed.
    Closed {
        /// The workqueue's name.
        wq: Arc<str>,
    },
    /// This process was forked from the one that made the runtime.
    Forked,
}

impl fmt::Display for AttrsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttrsError::WrongKind {
                wq,
                setting,
                expected,
            } => {
                write!(
                    f,
                    "workqueue \"{wq}\": {setting} can be set on {expected} only"
                )
            }
            AttrsError::OutOfRange {
                setting,
                value,
                expected,
            } => {
                write!(f, "{setting} {value} is out of range: expected {expected}")
            }
            AttrsError::EmptyMask { mask, possible } => {
                write!(
                    f,
                    "cpumask \"{mask}\" has no CPU of this machine, which has {possible}"
                )
            }
            AttrsError::Closed { wq } => write!(f, "workqueue \"{wq}\" is closed"),
            AttrsError::Forked => QueueError::Forked.fmt(f),
        }
    }
}

impl std::error::Error for AttrsError {}

/// Why a workqueue or runtime was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// Settings that exclude one another, or a value out of range.
    Invalid {
        /// The setting or settings.
        setting: &'static str,
        /// What was expected.
        expected: String,
    },
    /// A bad attribute.
    Attrs(AttrsError),
    /// A thread that has to exist from the beginning (a guaranteed queue's rescuer) could not be made.
    Thread(std::io::Error),
    /// The runtime shuts down or has shut down.
    ShutDown,
    /// This process was forked from the one that made the runtime.
    Forked,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Invalid { setting, expected } => {
                write!(f, "{setting}: expected {expected}")
            }
            BuildError::Attrs(e) => e.fmt(f),
            BuildError::Thread(e) => write!(f, "the rescuer thread could not be made: {e}"),
            BuildError::ShutDown => f.write_str("the runtime has shut down"),
            BuildError::Forked => QueueError::Forked.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BuildError::Attrs(e) => Some(e),
            BuildError::Thread(e) => Some(e),
            _ => None,
        }
    }
}

impl From<AttrsError> for BuildError {
    fn from(e: AttrsError) -> BuildError {
        BuildError::Attrs(e)
    }
}
