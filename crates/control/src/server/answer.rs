//! Requests become replies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::attr::{Attr, Level, SetError, SetErrorKind, Setting};
use crate::protocol::{FrameError, MAX_REPLY, PROTOCOL_VERSION, Reply, Request, encode};
use crate::{Process, Target};

/// The most trace events in one reply: about 4 MB of JSON.
const MAX_TRACE_EVENTS: u32 = 20_000;

/// What a connection remembers between requests.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// `hello` has been said.
    pub(super) greeted: bool,
    /// This client started a trace.
    pub(super) tracing: bool,
}

/// The served process and what clients may do.
pub(super) struct Service {
    pub(super) process: Arc<dyn Process>,
    pub(super) allow_set: bool,
}

impl Service {
    /// Answers the body of a request: the frame to send, and whether the conversation goes on. Never panics: a panic of
    /// the process's own code becomes an error reply.
    pub(super) fn answer(&self, body: &[u8], session: &mut Session) -> (Vec<u8>, bool) {
        let reply = match Request::parse(body) {
            Ok(request) => catch_unwind(AssertUnwindSafe(|| self.reply(request, session)))
                .unwrap_or_else(|_| {
                    error(SetError::unsupported(
                        "the process failed while it answered",
                    ))
                }),
            Err(e) => refused(e.to_string()),
        };
        frame(&reply)
    }

    /// The frame for something that is no frame.
    pub(super) fn refuse(&self, why: &FrameError) -> Vec<u8> {
        frame(&refused(why.to_string())).0
    }

    /// The frame for a newcomer for whom there is no room.
    pub(super) fn turn_away(&self, clients: usize) -> Vec<u8> {
        let message = format!("{clients} clients are connected; try again later");
        frame(&Reply::Refused {
            message,
            busy: true,
        })
        .0
    }

    /// The connection ended.
    pub(super) fn close(&self, session: &Session) {
        if session.tracing {
            let _ = catch_unwind(AssertUnwindSafe(|| self.process.trace_stop()));
        }
    }

    fn reply(&self, request: Request, session: &mut Session) -> Reply {
        if let Request::Hello { protocol, .. } = request {
            if protocol != PROTOCOL_VERSION {
                return refused(format!(
                    "this process speaks version {PROTOCOL_VERSION} of the control protocol and the client {protocol}; \
                     use the cmwq command of the same release"
                ));
            }
            session.greeted = true;
            let mut process = self.process.info();
            process.allow_set = self.allow_set;
            return Reply::Hello {
                protocol: PROTOCOL_VERSION,
                process,
            };
        }
        if !session.greeted {
            return refused("the first request must be `hello`".into());
        }
        match self.carry_out(request, session) {
            Ok(reply) => reply,
            Err(e) => error(e),
        }
    }

    fn carry_out(&self, request: Request, session: &mut Session) -> Result<Reply, SetError> {
        match request {
            Request::Hello { .. } => unreachable!("answered before"),
            Request::Snapshot { detail } => {
                let mut snapshot = Box::new(self.process.snapshot(detail));
                snapshot.process.allow_set = self.allow_set;
                Ok(Reply::Snapshot { snapshot })
            }
            Request::Get { target, attr } => {
                let attr = Attr::find(&attr, level(&target))?;
                Ok(Reply::Value {
                    value: self.process.get(&target, attr)?,
                    note: None,
                })
            }
            Request::Set {
                target,
                attr,
                value,
            } => {
                let attr = Attr::find(&attr, level(&target))?;
                if !self.allow_set {
                    return Err(SetError::new(
                        SetErrorKind::NotPermitted,
                        format!(
                            "{}: this process is served read-only; it allows changes if it listens with `allow_set` \
                             or is started with CMWQ_CONTROL=set",
                            attr.name()
                        ),
                    ));
                }
                let parsed = Setting::parse(attr, &value, &self.process.parse_context())?;
                let value = self.process.set(&target, &parsed.setting)?;
                Ok(Reply::Value {
                    value,
                    note: parsed.note,
                })
            }
            Request::TraceStart { options } => {
                self.process.trace_start(&options)?;
                session.tracing = true;
                Ok(Reply::Done)
            }
            Request::TracePoll { max_events } => {
                if !session.tracing {
                    return Err(SetError::invalid("no trace was started on this connection"));
                }
                Ok(Reply::Trace {
                    chunk: self
                        .process
                        .trace_poll(max_events.min(MAX_TRACE_EVENTS) as usize),
                })
            }
            Request::TraceStop => {
                if session.tracing {
                    self.process.trace_stop();
                }
                Ok(Reply::Done)
            }
        }
    }
}

fn level(target: &Target) -> Level {
    match target {
        Target::Global => Level::Global,
        Target::Workqueue(_) => Level::Workqueue,
    }
}

fn refused(message: String) -> Reply {
    Reply::Refused {
        message,
        busy: false,
    }
}

fn error(error: SetError) -> Reply {
    Reply::Error { error }
}

/// Encodes a reply and says whether the conversation goes on after it.
fn frame(reply: &Reply) -> (Vec<u8>, bool) {
    let goes_on = !matches!(reply, Reply::Refused { .. });
    match encode(reply, MAX_REPLY) {
        Ok(bytes) => (bytes, goes_on),
        Err(why) => {
            let instead = error(SetError::new(
                SetErrorKind::NoResources,
                format!("the answer does not fit: {why}"),
            ));
            // A short reply of our own always fits; were it not so, an empty frame list closes the connection.
            encode(&instead, MAX_REPLY).map_or((Vec::new(), false), |bytes| (bytes, goes_on))
        }
    }
}
