//! Requests and replies.

use serde::{Deserialize, Serialize};

use super::FrameError;
use crate::Target;
use crate::attr::SetError;
use crate::snapshot::{Detail, ProcessInfo, Snapshot};
use crate::trace::{TraceChunk, TraceOptions};

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Opens the conversation; must come first.
    Hello {
        /// The client's [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION).
        protocol: u32,
        /// Who asks, for logs.
        client: String,
    },
    /// Asks for the state.
    Snapshot {
        /// How much of it.
        detail: Detail,
    },
    /// Asks for an attribute.
    Get {
        /// Whose.
        target: Target,
        /// Its name.
        attr: String,
    },
    /// Changes an attribute.
    Set {
        /// Whose.
        target: Target,
        /// Its name.
        attr: String,
        /// The value as text.
        value: String,
    },
    /// Starts a trace.
    TraceStart {
        /// What to record.
        options: TraceOptions,
    },
    /// Takes recorded events.
    TracePoll {
        /// At most so many (the server has its own bound too).
        max_events: u32,
    },
    /// Stops the trace.
    TraceStop,
}

/// What the process answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To `hello`.
    Hello {
        /// The version that is spoken from now on.
        protocol: u32,
        /// Who answers.
        process: ProcessInfo,
    },
    /// To `snapshot`.
    Snapshot {
        /// The state.
        snapshot: Box<Snapshot>,
    },
    /// To `get` and `set`: the value as it is now.
    Value {
        /// The value.
        value: String,
        /// What was changed about a written value on the way in.
        note: Option<String>,
    },
    /// To `trace_poll`.
    Trace {
        /// The events.
        chunk: TraceChunk,
    },
    /// Done, nothing to say.
    Done,
    /// The request was understood and refused; the conversation goes on.
    Error {
        /// Why.
        error: SetError,
    },
    /// The conversation ends here.
    Refused {
        /// Why.
        message: String,
        /// Only for want of room: the same may succeed a moment later.
        #[serde(default)]
        busy: bool,
    },
}

impl Request {
    /// Parses the body of a frame.
    ///
    /// # Errors
    /// [`FrameError::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Request, FrameError> {
        serde_json::from_slice(body).map_err(|e| FrameError::Malformed(e.to_string()))
    }
}

impl Reply {
    /// Parses the body of a frame.
    ///
    /// # Errors
    /// [`FrameError::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Reply, FrameError> {
        serde_json::from_slice(body).map_err(|e| FrameError::Malformed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_forms_parse() {
        let hello = Request::parse(br#"{"request":"hello","protocol":1,"client":"x"}"#).unwrap();
        assert_eq!(
            hello,
            Request::Hello {
                protocol: 1,
                client: "x".into()
            }
        );
        let set = r#"{"request":"set","target":{"workqueue":"q"},"attr":"nice","value":"5"}"#;
        assert!(
            matches!(Request::parse(set.as_bytes()).unwrap(), Request::Set { target: Target::Workqueue(q), .. } if q == "q")
        );
        assert!(Request::parse(br#"{"request":"get","target":"global","attr":"cpumask"}"#).is_ok());
        assert!(Request::parse(br#"{"request":"snapshot","detail":{}}"#).is_ok());
    }

    #[test]
    fn garbage_is_an_error() {
        for bad in [
            &b""[..],
            b"null",
            b"[]",
            b"{}",
            b"{\"request\":\"boo\"}",
            b"\xff\xfe",
            b"{\"request\":\"get\"}",
        ] {
            assert!(Request::parse(bad).is_err());
        }
        assert!(Request::parse("[".repeat(60_000).as_bytes()).is_err());
    }

    #[test]
    fn a_reader_takes_defaults_for_missing_fields_and_ignores_new_ones() {
        let text = br#"{"reply":"snapshot","snapshot":{"format":1,"new_field":[1],"workqueues":[{"name":"a","x":2}]}}"#;
        match Reply::parse(text).unwrap() {
            Reply::Snapshot { snapshot } => assert_eq!(snapshot.workqueues[0].name, "a"),
            other => panic!("{other:?}"),
        }
    }
}
