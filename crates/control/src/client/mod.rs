//! Finds served processes and asks them.
//!
//! Everything here blocks, with timeouts; it is meant for commands and tests, not for work items.

mod find;

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub use crate::place::{DIR_VARIABLE, PlaceError};
pub use find::{Directory, Found};

use crate::Target;
use crate::attr::SetError;
use crate::protocol::{
    FrameBuffer, FrameError, MAX_REPLY, MAX_REQUEST, PROTOCOL_VERSION, Reply, Request, encode,
};
use crate::snapshot::{Detail, ProcessInfo, Snapshot};
use crate::trace::{TraceChunk, TraceOptions};

/// How long a process may take for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to try again while a process serves as many clients as it may, or more want to be let in than it can note: silent
/// ones lose their places after one or two seconds.
const CROWD_TIMEOUT: Duration = Duration::from_secs(4);
const CROWD_PAUSE: Duration = Duration::from_millis(50);
/// How long a process may take to say who it is; one that was stopped never does.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a process could not be asked.
#[derive(Debug)]
pub enum ClientError {
    /// There is no usable directory of control sockets.
    Place(PlaceError),
    /// No process, or more than one, answers to the description. The text says which there are.
    NoMatch(String),
    /// The connection failed or ended.
    Io(io::Error),
    /// What came is not the protocol.
    Frame(FrameError),
    /// The process ended the conversation, and says why.
    Refused(String),
    /// The process serves as many clients as it may; the same may succeed later. Only after some seconds of trying.
    Busy(String),
    /// The socket belongs to another user.
    ForeignSocket(u32),
    /// The process refused a request.
    Answer(SetError),
    /// It answered something else than was asked.
    Unexpected(&'static str),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Place(e) => e.fmt(f),
            ClientError::NoMatch(text) => f.write_str(text),
            ClientError::Io(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                write!(f, "the process does not answer (stopped?)")
            }
            ClientError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "the process hung up")
            }
            ClientError::Io(e) => write!(f, "control socket: {e}"),
            ClientError::Frame(e) => write!(f, "control socket: {e}"),
            ClientError::Refused(why) | ClientError::Busy(why) => {
                write!(f, "the process refuses: {why}")
            }
            ClientError::ForeignSocket(uid) => {
                write!(f, "the control socket is served by user {uid}: not used")
            }
            ClientError::Answer(e) => e.fmt(f),
            ClientError::Unexpected(what) => {
                write!(f, "control socket: an answer that does not fit to {what}")
            }
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(e: io::Error) -> Self {
        ClientError::Io(e)
    }
}

impl From<FrameError> for ClientError {
    fn from(e: FrameError) -> Self {
        ClientError::Frame(e)
    }
}

impl From<PlaceError> for ClientError {
    fn from(e: PlaceError) -> Self {
        ClientError::Place(e)
    }
}

/// A conversation with a process.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    input: FrameBuffer,
    process: ProcessInfo,
}

impl Client {
    /// Connects to a socket and says hello. Blocks: five seconds for a process that does not answer, and where others crowd it
    /// (as many clients as it takes, more that want to be let in) tries again for four.
    ///
    /// # Errors
    /// [`ClientError`]; another user's server (root excepted) is not talked to.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        Client::open(|| {
            let address = rustix::net::SocketAddrUnix::new(path)?;
            crate::place::connect(&address)
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        })
    }

    /// Connects and says hello; where others crowd the process, it tries again for a while.
    fn open(connect: impl Fn() -> io::Result<OwnedFd>) -> Result<Client, ClientError> {
        let give_up = Instant::now() + CROWD_TIMEOUT;
        loop {
            let result = connect()
                .map_err(ClientError::from)
                .and_then(|fd| Client::greet(fd.into()));
            let crowded = match &result {
                Err(ClientError::Busy(_)) => true,
                // Its queue of those who want to be let in is full. A timeout later on reads the same, and is past the time.
                Err(ClientError::Io(e)) => e.kind() == io::ErrorKind::WouldBlock,
                _ => false,
            };
            if !crowded || Instant::now() >= give_up {
                return result;
            }
            std::thread::sleep(CROWD_PAUSE);
        }
    }

    fn greet(stream: UnixStream) -> Result<Client, ClientError> {
        stream.set_nonblocking(false)?;
        let peer = crate::peer::of(&stream)?;
        // Root looks at everybody's.
        if !crate::peer::is_trusted(peer.uid) && !rustix::process::geteuid().is_root() {
            return Err(ClientError::ForeignSocket(peer.uid));
        }
        let mut client = Client {
            stream,
            input: FrameBuffer::new(MAX_REPLY),
            process: ProcessInfo::default(),
        };
        // A stopped process accepts by backlog and never answers: do not wait long for the first word.
        client.set_timeout(HELLO_TIMEOUT)?;
        let hello = Request::Hello {
            protocol: PROTOCOL_VERSION,
            client: concat!("cmwq ", env!("CARGO_PKG_VERSION")).into(),
        };
        match client.ask(&hello)? {
            Reply::Hello { process, .. } => client.process = process,
            _ => return Err(ClientError::Unexpected("hello")),
        }
        client.set_timeout(ANSWER_TIMEOUT)?;
        Ok(client)
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Who answers.
    pub fn process(&self) -> &ProcessInfo {
        &self.process
    }

    /// The state now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn snapshot(&mut self, detail: Detail) -> Result<Snapshot, ClientError> {
        match self.ask(&Request::Snapshot { detail })? {
            Reply::Snapshot { snapshot } => Ok(*snapshot),
            _ => Err(ClientError::Unexpected("snapshot")),
        }
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// [`ClientError::Answer`] if the process refuses; any other [`ClientError`].
    pub fn get(&mut self, target: &Target, attr: &str) -> Result<String, ClientError> {
        match self.ask(&Request::Get {
            target: target.clone(),
            attr: attr.into(),
        })? {
            Reply::Value { value, .. } => Ok(value),
            _ => Err(ClientError::Unexpected("get")),
        }
    }

    /// Changes an attribute; answers the value read back, and what was changed about it on the way in.
    ///
    /// # Errors
    /// [`ClientError::Answer`] if the process refuses; any other [`ClientError`].
    pub fn set(
        &mut self,
        target: &Target,
        attr: &str,
        value: &str,
    ) -> Result<(String, Option<String>), ClientError> {
        match self.ask(&Request::Set {
            target: target.clone(),
            attr: attr.into(),
            value: value.into(),
        })? {
            Reply::Value { value, note } => Ok((value, note)),
            _ => Err(ClientError::Unexpected("set")),
        }
    }

    /// Starts a trace; it ends with the connection at the latest.
    ///
    /// # Errors
    /// [`ClientError::Answer`] if the process refuses; any other [`ClientError`].
    pub fn trace_start(&mut self, options: &TraceOptions) -> Result<(), ClientError> {
        self.done(&Request::TraceStart {
            options: options.clone(),
        })
    }

    /// Takes recorded events.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn trace_poll(&mut self, max_events: u32) -> Result<TraceChunk, ClientError> {
        match self.ask(&Request::TracePoll { max_events })? {
            Reply::Trace { chunk } => Ok(chunk),
            _ => Err(ClientError::Unexpected("trace_poll")),
        }
    }

    /// Stops the trace; what is buffered can still be polled.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn trace_stop(&mut self) -> Result<(), ClientError> {
        self.done(&Request::TraceStop)
    }

    fn done(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(ClientError::Unexpected("a trace request")),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let frame = encode(request, MAX_REQUEST)?;
        if let Err(e) = self.stream.write_all(&frame) {
            // A server that turns us away may have said why before it hung up.
            return match self.read_reply() {
                Ok(Reply::Refused { message, busy }) => Err(refused(&message, busy)),
                _ => Err(e.into()),
            };
        }
        match self.read_reply()? {
            Reply::Error { mut error } => {
                error.message = printable(&error.message);
                Err(ClientError::Answer(error))
            }
            Reply::Refused { message, busy } => Err(refused(&message, busy)),
            reply => Ok(reply),
        }
    }

    fn read_reply(&mut self) -> Result<Reply, ClientError> {
        let mut chunk = vec![0_u8; 64 << 10];
        loop {
            if let Some(body) = self.input.next_frame()? {
                return Ok(Reply::parse(&body)?);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.input.push(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn refused(message: &str, busy: bool) -> ClientError {
    let why = printable(message);
    if busy {
        ClientError::Busy(why)
    } else {
        ClientError::Refused(why)
    }
}

/// A peer's message ends up on terminals: without control characters, and not endless.
fn printable(text: &str) -> String {
    text.chars()
        .take(2000)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
