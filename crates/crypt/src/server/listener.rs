//! Listening sockets: Unix, or TCP on the loopback unless more is asked for.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::{Address, StartError};

/// A bound socket. Dropping it closes it and takes a Unix socket's name away.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix {
        socket: UnixListener,
        path: PathBuf,
        id: (u64, u64),
    },
    Tcp {
        socket: TcpListener,
    },
}

/// What a Unix socket to a client may hold unread, where the system allows it (it counts double, for its own overhead): a
/// queue of 64 requests of 32 KiB. The system's default takes five replies of that size, and each time that a socket is full
/// costs a wait for it to empty, a wake-up of the reader, and data that has left the cache by the time it is sent.
const SEND_BUFFER: usize = 1 << 20;

/// What [`Listener::accept`] found.
pub(crate) enum Accept {
    Taken(OwnedFd),
    Nothing,
    /// No descriptors or memory: try later.
    Failed,
}

impl Listener {
    pub(crate) fn bind(address: &Address, allow_remote: bool) -> Result<Listener, StartError> {
        match address {
            Address::Unix(path) => {
                Self::bind_unix(path).map_err(|e| StartError::Bind(address.clone(), e))
            }
            Address::Tcp(addr) if !addr.ip().is_loopback() && !allow_remote => {
                Err(StartError::NotLoopback(*addr))
            }
            Address::Tcp(addr) => {
                let bound = TcpListener::bind(addr).and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    Ok(Listener::Tcp { socket })
                });
                bound.map_err(|e| StartError::Bind(address.clone(), e))
            }
        }
    }

    fn bind_unix(path: &Path) -> io::Result<Listener> {
        let socket = match UnixListener::bind(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        // NBD has no log-in: whoever can connect can read and write everything.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        let m = std::fs::symlink_metadata(path)?;
        Ok(Listener::Unix {
            socket,
            path: path.into(),
            id: (m.dev(), m.ino()),
        })
    }

    /// The address with the port that the system chose, if it did.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Listener::Unix { path, .. } => Address::Unix(path.clone()),
            Listener::Tcp { socket } => Address::Tcp(socket.local_addr()?),
        })
    }

    /// Gives a client's socket more room for replies. TCP sizes its buffers by itself.
    pub(crate) fn widen(&self, socket: &OwnedFd) {
        if let Listener::Unix { .. } = self {
            // Only a matter of speed.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
        }
    }

    pub(crate) fn accept(&self) -> Accept {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            return match rustix::net::accept_with(self, flags) {
                Ok(socket) => {
                    if let Listener::Tcp { .. } = self {
                        // Only a matter of speed, and the client may be gone already.
                        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
                    }
                    Accept::Taken(socket)
                }
                Err(Errno::AGAIN) => Accept::Nothing,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Accept::Failed,
                // A client that left before it was taken, or a network error on its side: the next one, please.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => continue,
                Err(_) => Accept::Failed,
            };
        }
    }
}

/// A socket that nobody listens on, left by a server that was killed.
fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix { socket, .. } => socket.as_fd(),
            Listener::Tcp { socket } => socket.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, id, .. } = self {
            // Only our own name: someone may have put another socket there.
            if std::fs::symlink_metadata(&*path).is_ok_and(|m| (m.dev(), m.ino()) == *id) {
                // Gone already, or the folder became read-only: nothing to be done about a leftover name.
                let _ = std::fs::remove_file(&*path);
            }
        }
    }
}
