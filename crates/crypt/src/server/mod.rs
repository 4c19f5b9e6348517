//! The NBD server: sockets, requests in flight and their limits. README.md beside this file lists its invariants.
//!
//! A few *receivers* wait for all sockets and take requests in; their parts are [`Item`]s, for an [`Executor`] to run. Whoever
//! runs an item encrypts or decrypts, reads or writes the device and sends the reply. On workqueues ([`OnWorkqueue`]) the receivers
//! are work items too and run most of what they take in themselves. Replies come in the order in which requests end. The
//! library handles no signals: [`Stopper`] is for the command's handler.

mod budget;
mod buffer;
mod conn;
mod entry;
mod executor;
mod item;
mod listener;
mod reader;
mod receiver;
mod slots;
mod stats;
mod workqueue;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::device::Volume;
use crate::nbd::{Export, MAX_PAYLOAD, flags};

use budget::{Budget, Waiter};
use buffer::BufferPool;
pub use executor::{Executor, FixedPool, Inline, ThreadPerItem};
pub use item::Item;
use listener::Listener;
use reader::{Message, Reader, ReaderHandle};
pub use receiver::Receiver;
use receiver::Receivers;
use slots::Slots;
use stats::Counters;
pub use stats::Stats;
pub use workqueue::OnWorkqueue;

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A Unix socket, made with access for its owner alone. The name of a dead server's socket is reused.
    Unix(PathBuf),
    /// TCP; port 0 lets the system choose.
    Tcp(SocketAddr),
}

impl Address {
    /// The NBD URI of `export` at this address.
    pub fn uri(&self, export: &str) -> String {
        let name = percent(export.as_bytes(), false);
        match self {
            Address::Unix(path) => {
                use std::os::unix::ffi::OsStrExt;
                format!(
                    "nbd+unix:///{name}?socket={}",
                    percent(path.as_os_str().as_bytes(), true)
                )
            }
            Address::Tcp(addr) if name.is_empty() => format!("nbd://{addr}"),
            Address::Tcp(addr) => format!("nbd://{addr}/{name}"),
        }
    }
}

/// Percent-encodes what a URI does not take as it is.
fn percent(bytes: &[u8], keep_slash: bool) -> String {
    let mut s = String::with_capacity(bytes.len());
    for &b in bytes {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                s.push(char::from(b))
            }
            b'/' if keep_slash => s.push('/'),
            _ => s.push_str(&format!("%{b:02X}")),
        }
    }
    s
}

/// Settings of a server. The defaults suit most.
#[derive(Clone, Debug)]
pub struct Config {
    /// The export's name; clients ask for `""` unless told otherwise.
    pub export: String,
    /// Receivers; 0: as many as the executor says.
    pub readers: usize,
    /// Clients served at the same time. Beyond, up to [`refused_connections`](Self::refused_connections) are told by an error of
    /// the protocol, and the rest are closed at once. Each takes a descriptor and about 1 KiB, no thread.
    pub max_connections: usize,
    /// See `max_connections`.
    pub refused_connections: usize,
    /// Requests in flight on one connection, the refused ones and those with unsent replies included. Beyond, no more is
    /// read from it.
    pub requests_per_connection: u32,
    /// Bytes of data in flight on one connection; a single request is let in whatever it takes.
    pub bytes_per_connection: u64,
    /// Bytes of data in flight on all connections. Beyond, requests wait, first come, first served.
    pub bytes_in_all: u64,
    /// The largest read or write in bytes, told to clients; a multiple of 4096, at most 32 MiB, what clients assume.
    pub max_request: u32,
    /// Bytes of an item: longer requests are split. A multiple of 4096, 4096 bytes to 1 MiB.
    pub item_bytes: u32,
    /// Serve `TRIM`. Trimming shows whoever sees the storage which ranges are unused.
    pub trim: bool,
    /// Listen on addresses beyond the loopback too. NBD has no log-in and no encryption of its own.
    pub allow_remote: bool,
    /// A client that has not finished its handshake by then is closed.
    pub handshake_timeout: Duration,
    /// A client that stops in the middle of a request, or takes none of its replies, for so long is closed. Between requests a
    /// client may be silent for ever.
    pub stall_timeout: Duration,
    /// When the server stops, a client that does not take its replies by then is closed.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            export: String::new(),
            readers: 0,
            max_connections: 1024,
            refused_connections: 64,
            requests_per_connection: 256,
            bytes_per_connection: 64 << 20,
            bytes_in_all: 256 << 20,
            max_request: MAX_PAYLOAD,
            // As dm-crypt splits large bios: enough to pay for a hand-over, small enough to spread over CPUs.
            item_bytes: 128 << 10,
            trim: true,
            allow_remote: false,
            handshake_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Why a server did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is out of its range; which and why.
    Config(&'static str),
    /// The address is not on the loopback, and [`Config::allow_remote`] is off.
    NotLoopback(SocketAddr),
    /// The address could not be bound.
    Bind(Address, io::Error),
    /// The system gave no epoll, event descriptor or thread.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(why) => f.write_str(why),
            StartError::NotLoopback(a) => {
                write!(
                    f,
                    "{a} is not on the loopback; NBD has no log-in, so only 127.0.0.0/8 and [::1] are served"
                )
            }
            StartError::Bind(Address::Unix(p), e) => {
                write!(f, "cannot listen on {}: {e}", p.display())
            }
            StartError::Bind(Address::Tcp(a), e) => write!(f, "cannot listen on {a}: {e}"),
            StartError::System(e) => write!(f, "cannot start readers: {e}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Bind(_, e) | StartError::System(e) => Some(e),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) requests_per_connection: u32,
    pub(crate) bytes_per_connection: u64,
}

#[derive(Debug)]
pub(crate) struct Timeouts {
    pub(crate) handshake: Duration,
    pub(crate) stall: Duration,
    pub(crate) drain: Duration,
}

impl Timeouts {
    /// How often to look for clients that are stuck, while there is something that can be.
    pub(crate) fn scan(&self) -> Duration {
        let shortest = self.handshake.min(self.stall).min(self.drain) / 4;
        shortest.clamp(Duration::from_millis(10), Duration::from_secs(1))
    }
}

/// What readers, connections and items share.
pub(crate) struct Shared {
    pub(crate) volume: Arc<Volume>,
    pub(crate) export: Arc<Export>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) budget: Budget,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    /// Bytes of an item.
    pub(crate) part_len: u64,
    pub(crate) slots: Arc<Slots>,
    pub(crate) readers: Box<[ReaderHandle]>,
    pub(crate) stopping: AtomicBool,
    counters: Box<[Counters]>,
}

impl Shared {
    pub(crate) fn stop(&self) {
        // Ordering: Release pairs with the Acquire in the readers' loop.
        self.stopping.store(true, Ordering::Release);
        for reader in &self.readers {
            reader.wake();
        }
    }

    /// Gives bytes back to the budget and tells those who waited for them.
    pub(crate) fn release(&self, bytes: u64) {
        self.budget.release(bytes, |w| self.post_grant(w));
    }

    pub(crate) fn post_grant(&self, w: Waiter) {
        self.readers[w.reader].post(Message::Granted(w.token, w.bytes));
    }
}

/// A running server. Dropping it stops it and waits, as [`join`](Server::join) does.
pub struct Server {
    shared: Arc<Shared>,
    address: Address,
    /// `None` once they were waited for.
    receivers: Option<Arc<Receivers>>,
}

/// Stops a server, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Takes no more connections and requests; what is in flight goes on. Returns at once; [`Server::join`] waits.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopper(..)")
    }
}

impl Server {
    /// Listens and starts the readers. Clients are accepted once this returns.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running or bound then.
    pub fn start(
        volume: Arc<Volume>,
        address: &Address,
        executor: Arc<dyn Executor>,
        config: Config,
    ) -> Result<Server, StartError> {
        check(&config)?;
        let listener = Listener::bind(address, config.allow_remote)?;
        let address = listener.address().map_err(StartError::System)?;
        let system = |e: rustix::io::Errno| StartError::System(e.into());
        let readers = match config.readers {
            0 => executor.receivers().max(1),
            n => n,
        };
        let handles: Result<Box<[ReaderHandle]>, _> =
            (0..readers).map(|_| ReaderHandle::new()).collect();
        let shared = Arc::new(Shared {
            export: Arc::new(export_of(&volume, &config)),
            volume,
            executor,
            buffers: BufferPool::new(),
            budget: Budget::new(config.bytes_in_all),
            limits: Limits {
                requests_per_connection: config.requests_per_connection,
                bytes_per_connection: config.bytes_per_connection,
            },
            timeouts: Timeouts {
                handshake: config.handshake_timeout,
                stall: config.stall_timeout,
                drain: config.drain_timeout,
            },
            part_len: u64::from(config.item_bytes),
            slots: Slots::new(config.max_connections, config.refused_connections),
            readers: handles.map_err(system)?,
            stopping: AtomicBool::new(false),
            counters: (0..readers).map(|_| Counters::default()).collect(),
        });
        let receivers = Arc::new(Receivers::default());
        let server = Server {
            shared,
            address,
            receivers: Some(Arc::clone(&receivers)),
        };
        // The listening reader starts last, so that an error before leaves no client behind.
        let mut listener = Some(listener);
        for index in (0..readers).rev() {
            let listener = if index == 0 { listener.take() } else { None };
            let reader =
                Reader::new(Arc::clone(&server.shared), index, listener).map_err(system)?;
            let receiver = Receiver::new(reader, &receivers);
            server
                .shared
                .executor
                .receive(receiver)
                .map_err(StartError::System)?;
        }
        Ok(server)
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The URI for clients.
    pub fn uri(&self) -> String {
        self.address.uri(&self.shared.export.name)
    }

    /// A handle to stop it with.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        let mut s = Counters::sum(&self.shared.counters);
        s.bytes_in_flight = self.shared.budget.used();
        s.open_connections = self.shared.slots.served() as u64;
        s
    }

    fn wait(&mut self) -> io::Result<()> {
        let Some(receivers) = self.receivers.take() else {
            return Ok(());
        };
        let result = receivers.wait();
        // A connection handed to a reader that had ended already: nobody will look.
        for reader in &self.shared.readers {
            reader.clear();
        }
        // Requests of clients that left may still be running.
        self.shared.slots.wait_empty();
        self.shared.volume.flush().and(result)
    }

    /// Waits until the server was stopped, all requests in flight have ended and the device is flushed; returns what
    /// happened. Blocks; not for use in a work item of the server's own executor.
    ///
    /// # Errors
    /// The final flush failed, or a reader failed.
    pub fn join(mut self) -> io::Result<Stats> {
        self.wait()?;
        Ok(self.stats())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.receivers.is_none() {
            return;
        }
        self.shared.stop();
        // Whoever wants the result calls `join`.
        let _ = self.wait();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn check(c: &Config) -> Result<(), StartError> {
    let bad = |why| Err(StartError::Config(why));
    if c.item_bytes < 4096 || c.item_bytes > 1 << 20 || !c.item_bytes.is_multiple_of(4096) {
        return bad("item_bytes must be a multiple of 4096 between 4096 and 1048576");
    }
    if c.max_request < 4096 || c.max_request > MAX_PAYLOAD || !c.max_request.is_multiple_of(4096) {
        return bad("max_request must be a multiple of 4096 between 4096 and 33554432");
    }
    if c.max_connections == 0 || c.requests_per_connection == 0 || c.readers > 1024 {
        return bad(
            "max_connections and requests_per_connection must be at least 1, readers at most 1024",
        );
    }
    if c.bytes_in_all < u64::from(c.max_request) {
        return bad("bytes_in_all must be at least max_request");
    }
    if c.export.len() > 4096 {
        return bad("the export's name may have 4096 bytes at most");
    }
    Ok(())
}

fn export_of(volume: &Volume, config: &Config) -> Export {
    // One file, one page cache, and a flush that covers all of it: several connections see one disk.
    let mut f = flags::HAS_FLAGS | flags::SEND_FLUSH | flags::SEND_FUA | flags::CAN_MULTI_CONN;
    if volume.read_only() {
        f |= flags::READ_ONLY;
    } else {
        f |= flags::SEND_WRITE_ZEROES;
        if config.trim {
            f |= flags::SEND_TRIM;
        }
    }
    Export {
        name: config.export.clone(),
        size: volume.size(),
        flags: f,
        block: volume.block_size().bytes() as u32,
        preferred: 4096,
        max_request: config.max_request,
    }
}
