//! Serves a process on a Unix socket, from a thread of its own.
//!
//! The socket lives in a directory that belongs to this user and is closed to everybody else (0700, verified through its
//! descriptor): the one given, or what `CMWQ_CONTROL_DIR` names, or `cmwq` under `XDG_RUNTIME_DIR`. There is no fallback to
//! a shared place. Only this user and root may talk to it (peer credentials), and nobody may change anything unless the program said
//! so with [`ServerBuilder::allow_set`]. Descriptors are close-on-exec. In a forked child the server does not exist: dropping
//! its handle there touches neither the socket nor the parent.
//!
//! Costs nothing while no client is connected: the thread sleeps in `poll` without a timeout.

mod answer;
mod conn;
#[cfg(fuzzing)]
pub mod fuzzing;
mod pace;
mod serve;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::EventfdFlags;
use rustix::net::SocketFlags;

pub use crate::place::{DIR_VARIABLE, PlaceError};

use crate::Process;
use crate::place::{NEW_PREFIX, Place, SocketName, stream_socket};

/// The environment variable that switches serving on in programs that honour it (see [`Switch::from_env`]).
pub const SWITCH_VARIABLE: &str = "CMWQ_CONTROL";

/// Whether and how to serve, as the environment wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The variable is not set: the program decides.
    Unset,
    /// `0`, `off`: do not serve.
    Off,
    /// `1`, `on`, `read`: serve read-only.
    Read,
    /// `set`: serve and allow changes.
    Set,
}

impl Switch {
    /// Reads [`SWITCH_VARIABLE`].
    ///
    /// # Errors
    /// A message that names the value, for any other text.
    pub fn from_env() -> Result<Switch, String> {
        match std::env::var_os(SWITCH_VARIABLE) {
            None => Ok(Switch::Unset),
            Some(value) => Switch::parse(&value.to_string_lossy()),
        }
    }

    fn parse(value: &str) -> Result<Switch, String> {
        match value {
            "" => Ok(Switch::Unset),
            "0" | "off" => Ok(Switch::Off),
            "1" | "on" | "read" => Ok(Switch::Read),
            "set" => Ok(Switch::Set),
            other => Err(format!(
                "{SWITCH_VARIABLE}: `{other}` is none of 0, off, 1, on, read, set"
            )),
        }
    }
}

/// Sets up serving.
pub struct ServerBuilder {
    process: Arc<dyn Process>,
    dir: Option<PathBuf>,
    allow_set: bool,
    max_clients: usize,
}

impl ServerBuilder {
    /// A read-only server in the default directory.
    pub fn new(process: Arc<dyn Process>) -> Self {
        ServerBuilder {
            process,
            dir: None,
            allow_set: false,
            max_clients: 32,
        }
    }

    /// Allows clients (this user's and root's) to change attributes.
    pub fn allow_set(mut self, allow: bool) -> Self {
        self.allow_set = allow;
        self
    }

    /// The directory of the socket: an absolute path whose last component is made (0700) if it is missing.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// How many clients may be connected at once (at least 1; 32 unless set).
    pub fn max_clients(mut self, max: usize) -> Self {
        self.max_clients = max.max(1);
        self
    }

    /// Makes the socket and starts the thread `cmwq-control`. Removes sockets of processes that are gone.
    ///
    /// # Errors
    /// [`PlaceError`] if there is no safe directory, or the socket, or the thread, cannot be made.
    pub fn listen(self) -> Result<Server, PlaceError> {
        let io_error = |what: &str, error: io::Error| PlaceError::Io {
            what: what.to_owned(),
            error,
        };
        let place = Place::open(self.dir.as_deref(), true)?.ok_or(PlaceError::NoRuntimeDir)?;
        place
            .clean()
            .map_err(|e| io_error("cannot list the control directory", e))?;
        let name = SocketName::for_this_process()
            .map_err(|e| io_error("cannot name the control socket", e))?
            .file_name();
        let listener =
            bind(&place, &name).map_err(|e| io_error("cannot make the control socket", e))?;
        let quit = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Arc::new)
            .map_err(|e| io_error("cannot make an eventfd", e.into()));
        let started = quit.and_then(|quit| {
            let service = answer::Service {
                process: self.process,
                allow_set: self.allow_set,
            };
            let server = serve::Serve::new(service, listener, Arc::clone(&quit), self.max_clients);
            let thread = std::thread::Builder::new()
                .name("cmwq-control".into())
                .spawn(move || server.run())
                .map_err(|e| io_error("cannot start the control thread", e))?;
            Ok((quit, thread))
        });
        match started {
            Ok((quit, thread)) => Ok(Server {
                path: place.path().join(&name),
                place,
                name,
                pid: std::process::id(),
                quit,
                thread: Some(thread),
            }),
            Err(e) => {
                // The socket is useless without its thread; what remains of it is cleaned by the next process.
                let _ = place.remove(&name);
                Err(e)
            }
        }
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("dir", &self.dir)
            .field("allow_set", &self.allow_set)
            .finish_non_exhaustive()
    }
}

/// Binds under a temporary name, listens, then renames: under its final name a socket is never seen before somebody
/// listens on it, so "refused" always means "gone".
fn bind(place: &Place, name: &str) -> io::Result<OwnedFd> {
    let socket = stream_socket(SocketFlags::NONBLOCK)?;
    let temporary = format!("{NEW_PREFIX}{name}");
    rustix::net::bind(&socket, &place.address(&temporary)?)?;
    let rest = || -> io::Result<()> {
        rustix::net::listen(&socket, 128)?;
        if !place.is_own_socket(&temporary) {
            return Err(io::Error::other("the directory was exchanged meanwhile"));
        }
        place.rename(&temporary, name)
    };
    if let Err(e) = rest() {
        let _ = place.remove(&temporary);
        return Err(e);
    }
    Ok(socket)
}

/// A served process. Dropping it (or [`stop`](Server::stop)) ends serving, closes all connections and removes the socket; it
/// waits for the thread, that is for at most one request. May be dropped from anywhere but from within a
/// [`Process`] call of the server itself.
#[derive(Debug)]
pub struct Server {
    place: Place,
    name: String,
    path: PathBuf,
    pid: u32,
    quit: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends serving.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if std::process::id() != self.pid {
            // A forked child has neither the thread nor a claim on the socket. Joining would wait for ever.
            std::mem::forget(thread);
            return;
        }
        // The name goes first, so that nobody connects to a server that is about to end.
        let _ = self.place.remove(&self.name);
        let _ = rustix::io::write(&*self.quit, &1_u64.to_ne_bytes());
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Switch;

    #[test]
    fn the_switch_is_exact() {
        assert_eq!(Switch::parse(""), Ok(Switch::Unset));
        assert_eq!(Switch::parse("off"), Ok(Switch::Off));
        assert_eq!(Switch::parse("1"), Ok(Switch::Read));
        assert_eq!(Switch::parse("set"), Ok(Switch::Set));
        assert!(Switch::parse("yes").unwrap_err().contains("yes"));
    }
}
