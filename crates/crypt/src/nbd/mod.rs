//! The NBD protocol (fixed newstyle) as pure functions: bytes in, decisions and bytes out. No sockets, no threads.
//!
//! * [`handshake`]: the option phase, a state machine that takes bytes as they come.
//! * [`request`]: the 28-byte request header, what it may ask and how it is refused.
//! * [`reply`]: simple and structured reply headers.
//!
//! Served: `EXPORT_NAME`, `ABORT`, `LIST`, `INFO`, `GO`, `STRUCTURED_REPLY`; `READ`, `WRITE`, `DISC`, `FLUSH`, `TRIM`,
//! `WRITE_ZEROES`; flags `FUA`, `NO_HOLE`, `DF`. All else is refused as the protocol says. Not served: TLS, metadata
//! contexts and block status, extended headers, oldstyle.
//!
//! The constants are those of the protocol's public specification.

pub mod handshake;
pub mod reply;
pub mod request;

#[cfg(test)]
mod tests;

use std::io;

/// Transmission flags, sent with the size of the export.
pub mod flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The `FUA` flag is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The `DF` flag is served; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers writes completed on all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// The largest payload of one request or reply, as clients assume it when a server says nothing: 32 MiB.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// The errors which the protocol knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u32)]
pub enum NbdError {
    /// Operation not permitted (a write to a read-only export).
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// Invalid argument: unknown command or flag, misaligned or out of range.
    Inval = 22,
    /// No space left, also for a write past the end.
    NoSpc = 28,
    /// The reply would be too large.
    Overflow = 75,
    /// Operation not supported.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl NbdError {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// From the number on the wire; what is unknown becomes [`NbdError::Inval`], as the protocol asks of clients.
    pub const fn from_code(n: u32) -> NbdError {
        match n {
            1 => NbdError::Perm,
            5 => NbdError::Io,
            12 => NbdError::NoMem,
            28 => NbdError::NoSpc,
            75 => NbdError::Overflow,
            95 => NbdError::NotSup,
            108 => NbdError::Shutdown,
            _ => NbdError::Inval,
        }
    }

    /// The error for a failed system call. What the protocol has no number for becomes [`NbdError::Io`].
    pub fn from_io(e: &io::Error) -> NbdError {
        use rustix::io::Errno;
        match rustix::io::Errno::from_io_error(e) {
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => NbdError::Perm,
            Some(Errno::NOMEM) => NbdError::NoMem,
            Some(Errno::INVAL) => NbdError::Inval,
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => NbdError::NoSpc,
            Some(Errno::OVERFLOW) => NbdError::Overflow,
            Some(Errno::OPNOTSUPP) => NbdError::NotSup,
            Some(Errno::SHUTDOWN) => NbdError::Shutdown,
            Some(_) => NbdError::Io,
            None => match e.kind() {
                io::ErrorKind::InvalidInput => NbdError::Inval,
                io::ErrorKind::OutOfMemory => NbdError::NoMem,
                io::ErrorKind::Unsupported => NbdError::NotSup,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    NbdError::Perm
                }
                io::ErrorKind::StorageFull => NbdError::NoSpc,
                _ => NbdError::Io,
            },
        }
    }
}

/// What clients are told about the one export.
#[derive(Clone, Debug)]
pub struct Export {
    /// Its name; `""` is what clients ask for by default.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// [`flags`], without `SEND_DF`, which is added where structured replies are in use.
    pub flags: u16,
    /// Offsets and lengths must be multiples of this many bytes; a power of two.
    pub block: u32,
    /// The length that suits best, a multiple of `block`; a power of two.
    pub preferred: u32,
    /// The largest read or write in bytes, a multiple of `block`, at most [`MAX_PAYLOAD`].
    pub max_request: u32,
}
