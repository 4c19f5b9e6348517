//! What a live process answers.

use crate::attr::{Attr, ParseContext, SetError, Setting};
use crate::snapshot::{Detail, ProcessInfo, Snapshot};
use crate::trace::{TraceChunk, TraceOptions};

/// Whose attribute is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Target {
    /// The runtime.
    Global,
    /// The workqueue of that name (the first made, where several have it).
    Workqueue(String),
}

/// A runtime that can be seen and steered. The runtime implements it; the server calls it from its own thread.
///
/// Calls may come from any thread that is not a worker, one at a time or several at once. No call may wait for a work item:
/// a stalled runtime must still be seen. Locks of pools are taken one at a time and briefly.
pub trait Process: Send + Sync {
    /// Who this is; cheap, asked at the start of every connection.
    fn info(&self) -> ProcessInfo;

    /// The state now, with as much detail as asked for.
    fn snapshot(&self, detail: Detail) -> Snapshot;

    /// What parsing of values has to know about the machine.
    fn parse_context(&self) -> ParseContext;

    /// The value of an attribute, as the kernel would show it.
    ///
    /// # Errors
    /// [`NotFound`](crate::attr::SetErrorKind::NotFound) for an unknown queue,
    /// [`WrongKind`](crate::attr::SetErrorKind::WrongKind) for an attribute that this kind of queue does not have,
    /// [`Unsupported`](crate::attr::SetErrorKind::Unsupported) for one that this runtime does not have.
    fn get(&self, target: &Target, attr: Attr) -> Result<String, SetError>;

    /// Applies a parsed value, all or nothing, and answers the value read back. Implementations call
    /// [`Attr::check_kind`] with the kind of the queue. The caller has checked that changes are allowed.
    ///
    /// # Errors
    /// As for [`get`](Process::get), and what applying may meet. The old value is then in force.
    fn set(&self, target: &Target, setting: &Setting) -> Result<String, SetError>;

    /// Starts recording trace events into bounded buffers, dropping events (and counting them) when they are full. One trace
    /// at a time.
    ///
    /// # Errors
    /// [`Busy`](crate::attr::SetErrorKind::Busy) if a trace is running,
    /// [`Unsupported`](crate::attr::SetErrorKind::Unsupported) if the runtime cannot trace.
    fn trace_start(&self, options: &TraceOptions) -> Result<(), SetError> {
        let _ = options;
        Err(SetError::unsupported("this process cannot record a trace"))
    }

    /// Takes up to `max_events` recorded events out of the buffers; empty if none or if no trace runs.
    fn trace_poll(&self, max_events: usize) -> TraceChunk {
        let _ = max_events;
        TraceChunk::default()
    }

    /// Stops recording; what is still buffered can be polled until the next start. Does nothing if no trace runs.
    fn trace_stop(&self) {}
}
