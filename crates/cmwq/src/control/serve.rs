//! The listener: serves a runtime to the `cmwq` command.

use super::{info, settings, survey, trace_start};
use crate::runtime::{RtInner, Runtime};
use crate::sys::thread::BlockedSignals;
use cmwq_control::attr::{Attr, ParseContext, SetError, Setting};
use cmwq_control::server::{PlaceError, Server, ServerBuilder, Switch};
use cmwq_control::snapshot::{Detail, ProcessInfo, Snapshot};
use cmwq_control::trace::{TraceChunk, TraceOptions};
use cmwq_control::{Process, Target};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Serves the process-wide runtime, read-only, until the listener is dropped; the one line with which a program opts in:
/// `let _control = cmwq::control::listen()?;`
///
/// The environment variable `CMWQ_CONTROL` has the last word: `off` serves nothing (the listener is then empty), `set` also
/// allows changes. The socket lies where `CMWQ_CONTROL_DIR` says, else in `cmwq` under `XDG_RUNTIME_DIR`; only this user and
/// root can talk to it.
///
/// A thread `cmwq-control` of its own serves it, so that a stalled runtime can still be seen. It takes no signals of the
/// application, and sleeps while nobody is connected.
///
/// # Errors
/// [`ListenError`]: no safe directory, an unknown word in the variable, no thread or socket to be had.
pub fn listen() -> Result<Listener, ListenError> {
    builder().listen()
}

/// Settings of a listener.
pub fn builder() -> ListenBuilder {
    ListenBuilder {
        runtime: None,
        name: None,
        dir: None,
        allow_set: false,
        max_clients: None,
    }
}

/// Settings of a listener; made by [`builder`].
#[derive(Debug)]
#[must_use = "nothing is served until listen() is called"]
pub struct ListenBuilder {
    runtime: Option<Runtime>,
    name: Option<String>,
    dir: Option<PathBuf>,
    allow_set: bool,
    max_clients: Option<usize>,
}

impl ListenBuilder {
    /// Serves this runtime instead of the process-wide one. The listener does not keep it alive.
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// What the process is called by `cmwq list`; the name of its main thread if not given.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The directory of the socket: an absolute path, whose last component is made (0700) if it is missing.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Whether this user and root may change attributes over the socket. Off if not given.
    pub fn allow_set(mut self, allow: bool) -> Self {
        self.allow_set = allow;
        self
    }

    /// How many clients may be connected at once; 32 if not given.
    pub fn max_clients(mut self, max: usize) -> Self {
        self.max_clients = Some(max);
        self
    }

    /// Starts serving; see [`listen`].
    ///
    /// # Errors
    /// As for [`listen`].
    pub fn listen(self) -> Result<Listener, ListenError> {
        let switch = Switch::from_env().map_err(ListenError::Environment)?;
        let allow_set = match switch {
            Switch::Off => return Ok(Listener { server: None }),
            Switch::Set => true,
            Switch::Read => false,
            Switch::Unset => self.allow_set,
        };
        let runtime = self.runtime.unwrap_or_else(|| Runtime::global().clone());
        if runtime.inner().fork.is_stale() {
            return Err(ListenError::Forked);
        }
        let served = Served {
            info: info(runtime.inner(), self.name.as_deref()),
            rt: Arc::downgrade(runtime.inner()),
        };
        let mut server = ServerBuilder::new(Arc::new(served)).allow_set(allow_set);
        if let Some(dir) = self.dir {
            server = server.dir(dir);
        }
        if let Some(max) = self.max_clients {
            server = server.max_clients(max);
        }
        // The thread inherits the mask: signals of the application are not for it.
        let mask = BlockedSignals::new();
        let server = server.listen();
        drop(mask);
        Ok(Listener {
            server: Some(server.map_err(ListenError::Place)?),
        })
    }
}

/// Serves a runtime until it is dropped, which removes the socket and waits for the thread, that is for one request at most.
///
/// In a forked child it does nothing: the socket is the parent's. A runtime that was shut down is still shown; one that is
/// gone (its last handle and queue were dropped) is shown as empty. May be dropped anywhere.
#[derive(Debug)]
#[must_use = "dropping the listener ends serving: keep it, or detach() it"]
pub struct Listener {
    server: Option<Server>,
}

impl Listener {
    /// Where the socket is; none if `CMWQ_CONTROL=off` forbade it.
    pub fn path(&self) -> Option<&Path> {
        self.server.as_ref().map(Server::path)
    }

    /// Ends serving, as dropping does.
    pub fn stop(self) {
        drop(self);
    }

    /// Serves until the process ends. Its socket then stays behind until the next process or command cleans it away.
    pub fn detach(self) {
        std::mem::forget(self);
    }
}

/// Why a process is not served.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// There is no safe directory, or the socket or the thread cannot be made.
    Place(PlaceError),
    /// `CMWQ_CONTROL` has a value that nobody knows; the text says which.
    Environment(String),
    /// This process is a fork of the one that made the runtime.
    Forked,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::Place(e) => write!(f, "the process cannot be served: {e}"),
            ListenError::Environment(text) => f.write_str(text),
            ListenError::Forked => f.write_str(
                "the runtime belongs to the parent of this process: make a new one in the child",
            ),
        }
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ListenError::Place(e) => Some(e),
            _ => None,
        }
    }
}

/// A runtime as the server knows it: not kept alive by being looked at.
struct Served {
    info: ProcessInfo,
    rt: Weak<RtInner>,
}

impl Served {
    fn rt(&self) -> Result<Arc<RtInner>, SetError> {
        self.rt
            .upgrade()
            .ok_or_else(|| SetError::unsupported("the runtime of this process is gone"))
    }
}

impl Process for Served {
    fn info(&self) -> ProcessInfo {
        self.info.clone()
    }

    fn snapshot(&self, detail: Detail) -> Snapshot {
        match self.rt.upgrade() {
            Some(rt) => survey::snapshot(&rt, self.info.clone(), detail),
            None => Snapshot {
                process: self.info.clone(),
                ..Snapshot::default()
            },
        }
    }

    fn parse_context(&self) -> ParseContext {
        match self.rt.upgrade() {
            Some(rt) => settings::parse_context(&rt),
            None => ParseContext { nr_cpu_ids: 1 },
        }
    }

    fn get(&self, target: &Target, attr: Attr) -> Result<String, SetError> {
        settings::get(&self.rt()?, target, attr)
    }

    fn set(&self, target: &Target, setting: &Setting) -> Result<String, SetError> {
        settings::set(&self.rt()?, target, setting)
    }

    fn trace_start(&self, options: &TraceOptions) -> Result<(), SetError> {
        trace_start(&self.rt()?, options)
    }

    fn trace_poll(&self, max_events: usize) -> TraceChunk {
        self.rt
            .upgrade()
            .map_or_else(TraceChunk::default, |rt| rt.records.tracer.poll(max_events))
    }

    fn trace_stop(&self) {
        if let Some(rt) = self.rt.upgrade() {
            rt.records.tracer.stop();
        }
    }
}
