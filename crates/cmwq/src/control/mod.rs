//! Seeing and steering a live process.
//!
//! [`Runtime::snapshot`](crate::Runtime::snapshot) gives the state of a runtime as plain structs, at any time, in any program.
//! With the feature `control` a process can be served to the `cmwq` command:
//!
//! ```
//! # #[cfg(feature = "control")] {
//! # let dir = tempfile::tempdir().unwrap();
//! # let listen = || cmwq::control::builder().dir(dir.path().join("run")).listen();
//! # /*
//! let _control = cmwq::control::listen()?;
//! # */
//! # let _control = listen().unwrap();
//! # }
//! ```
//!
//! Then `cmwq list`, `dump`, `monitor`, `latency`, `get`, `set`, `metrics`, `trace` and `advise` work on it. See [`listen`] for
//! who may look, and who may change.
//!
//! | file | what |
//! |---|---|
//! | `survey.rs` | taking a snapshot |
//! | `settings.rs` | reading and changing attributes |
//! | `serve.rs` | the listener |
//! | `probe.rs`, `recorder.rs` | events as they happen, recording them |
//! | `cpu_time.rs` | CPU time per queue |
//! | `records.rs`, `waits.rs`, `words.rs` | what is remembered only to be shown, and in which words |

pub(crate) mod cpu_time;
pub(crate) mod probe;
mod recorder;
mod records;
#[cfg(feature = "control")]
mod serve;
mod settings;
mod survey;
mod waits;
pub(crate) mod words;

#[cfg(feature = "control")]
pub use cmwq_control::server::{DIR_VARIABLE, PlaceError, SWITCH_VARIABLE};
pub use cmwq_control::{
    CpuList, Label, Process, Target, advise, attr, histogram, prometheus, snapshot, trace,
};
pub(crate) use records::{Records, WqRecords};
#[cfg(feature = "control")]
pub use serve::{ListenBuilder, ListenError, Listener, builder, listen};

use crate::runtime::{RtInner, Runtime};
use attr::{Attr, ParseContext, SetError, Setting};
use snapshot::{Detail, ProcessInfo, Snapshot};
use std::sync::Arc;
use trace::{TraceChunk, TraceOptions};

impl Runtime {
    /// The state of the runtime now: pools, workers, workqueues with their items, counters and histograms, the machine, the
    /// settings. Everything that is there; [`snapshot_with`](Self::snapshot_with) takes less.
    ///
    /// Not atomic over the runtime: each pool's lock is taken briefly (tens of microseconds at most), one at a time. Waits for no
    /// work item, so a stalled runtime can be seen; may be called from anywhere, work items included. O(queues x pools used +
    /// workers + CPUs); about 20 us for a few queues.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with(Detail::FULL)
    }

    /// As [`snapshot`](Self::snapshot), with as much detail as asked for.
    pub fn snapshot_with(&self, detail: Detail) -> Snapshot {
        survey::snapshot(self.inner(), info(self.inner(), None), detail)
    }

    /// The metrics of the runtime as Prometheus text, for the application's own endpoint.
    pub fn prometheus(&self) -> String {
        let detail = Detail {
            items: false,
            workers: false,
            histograms: true,
            topology: false,
        };
        prometheus::render(&self.snapshot_with(detail))
    }
}

/// Who the process is. `name`: what the program calls itself, if it does.
fn info(rt: &RtInner, name: Option<&str>) -> ProcessInfo {
    let own = crate::sys::procstat::own_process();
    ProcessInfo {
        pid: std::process::id(),
        name: name.map_or_else(|| own.name.clone(), str::to_owned),
        start_ticks: own.start_ticks,
        started_unix_ms: rt.records.started_unix_ms,
        runtime: rt.thread_name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        allow_set: false,
    }
}

/// Serving may go on in any way that the application likes: this is what [`listen`] gives to the server, too.
impl Process for Runtime {
    fn info(&self) -> ProcessInfo {
        info(self.inner(), None)
    }

    fn snapshot(&self, detail: Detail) -> Snapshot {
        self.snapshot_with(detail)
    }

    fn parse_context(&self) -> ParseContext {
        settings::parse_context(self.inner())
    }

    fn get(&self, target: &Target, attr: Attr) -> Result<String, SetError> {
        settings::get(self.inner(), target, attr)
    }

    fn set(&self, target: &Target, setting: &Setting) -> Result<String, SetError> {
        settings::set(self.inner(), target, setting)
    }

    fn trace_start(&self, options: &TraceOptions) -> Result<(), SetError> {
        trace_start(self.inner(), options)
    }

    fn trace_poll(&self, max_events: usize) -> TraceChunk {
        self.inner().records.tracer.poll(max_events)
    }

    fn trace_stop(&self) {
        self.inner().records.tracer.stop();
    }
}

fn trace_start(rt: &Arc<RtInner>, options: &TraceOptions) -> Result<(), SetError> {
    let wqs = rt.wqs();
    if let Some(missing) = options
        .workqueues
        .iter()
        .find(|name| !wqs.iter().any(|wq| **wq.name() == ***name))
    {
        let names: Vec<&str> = wqs.iter().map(|wq| &**wq.name()).collect();
        return Err(SetError::not_found(format!(
            "no workqueue `{missing}`; there are: {}",
            names.join(", ")
        )));
    }
    rt.records.tracer.start(options)
}
