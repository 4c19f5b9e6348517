//! Request headers: decoding, and the rules by which a request is taken or refused.

use super::{Export, NbdError, flags};

/// Bytes of a request header.
pub const HEADER_LEN: usize = 28;
const MAGIC: u32 = 0x2560_9513;

/// Command flag: what is written is on stable storage before the reply.
pub const FLAG_FUA: u16 = 1 << 0;
/// Command flag: do not make holes.
pub const FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag: one chunk of data in the reply.
pub const FLAG_DF: u16 = 1 << 2;

/// The commands of the protocol that are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Command {
    /// Read.
    Read,
    /// Write; the payload follows the header.
    Write,
    /// The client leaves; no reply.
    Disc,
    /// All writes answered before are on stable storage before the reply.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// Write zeroes without sending them.
    WriteZeroes,
}

const WRITE: u16 = 1;

impl Command {
    /// From its number on the wire; `None` for what is not served.
    pub const fn from_wire(n: u16) -> Option<Command> {
        Some(match n {
            0 => Command::Read,
            WRITE => Command::Write,
            2 => Command::Disc,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            _ => return None,
        })
    }
}

/// A request header as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Command flags.
    pub flags: u16,
    /// The command's number; see [`Command::from_wire`].
    pub command: u16,
    /// Chosen by the client, sent back in the reply.
    pub cookie: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// The stream does not hold a request where one should begin. What follows cannot be understood, so the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadMagic(
    /// What stood there.
    pub u32,
);

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// [`BadMagic`].
    pub fn decode(b: &[u8; HEADER_LEN]) -> Result<Header, BadMagic> {
        let [m0, m1, m2, m3, f0, f1, c0, c1, rest @ ..] = *b;
        let magic = u32::from_be_bytes([m0, m1, m2, m3]);
        if magic != MAGIC {
            return Err(BadMagic(magic));
        }
        let [
            k0,
            k1,
            k2,
            k3,
            k4,
            k5,
            k6,
            k7,
            o0,
            o1,
            o2,
            o3,
            o4,
            o5,
            o6,
            o7,
            l0,
            l1,
            l2,
            l3,
        ] = rest;
        Ok(Header {
            flags: u16::from_be_bytes([f0, f1]),
            command: u16::from_be_bytes([c0, c1]),
            cookie: u64::from_be_bytes([k0, k1, k2, k3, k4, k5, k6, k7]),
            offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// Writes a header; the inverse of [`decode`](Self::decode).
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[..4].copy_from_slice(&MAGIC.to_be_bytes());
        b[4..6].copy_from_slice(&self.flags.to_be_bytes());
        b[6..8].copy_from_slice(&self.command.to_be_bytes());
        b[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        b[16..24].copy_from_slice(&self.offset.to_be_bytes());
        b[24..].copy_from_slice(&self.length.to_be_bytes());
        b
    }

    /// Bytes of payload that follow the header on the wire, whether the request is taken or refused.
    pub fn payload_len(&self) -> u32 {
        if self.command == WRITE {
            self.length
        } else {
            0
        }
    }

    /// Whether the request may be carried out on `export`.
    ///
    /// # Errors
    /// What to answer instead: `EINVAL` for unknown commands and flags, zero or unaligned lengths, reads and trims past the
    /// end and reads that are too long; `ENOSPC` for writes past the end; `EPERM` for changes to a read-only export.
    pub fn check(&self, export: &Export, structured: bool) -> Result<Command, NbdError> {
        let command = Command::from_wire(self.command).ok_or(NbdError::Inval)?;
        // FUA may come with any command once it is offered; it has no effect on those that write nothing.
        let fua = if export.flags & flags::SEND_FUA != 0 {
            FLAG_FUA
        } else {
            0
        };
        let allowed = fua
            | match command {
                Command::Read if structured => FLAG_DF,
                Command::WriteZeroes => FLAG_NO_HOLE,
                _ => 0,
            };
        if self.flags & !allowed != 0 {
            return Err(NbdError::Inval);
        }
        let needs = match command {
            Command::Disc => return Ok(command),
            Command::Flush => {
                // Offset and length are reserved and must be zero.
                return if self.offset == 0 && self.length == 0 {
                    Ok(command)
                } else {
                    Err(NbdError::Inval)
                };
            }
            Command::Read | Command::Write => 0,
            Command::WriteZeroes => flags::SEND_WRITE_ZEROES,
            Command::Trim => flags::SEND_TRIM,
        };
        if command != Command::Read && export.flags & flags::READ_ONLY != 0 {
            return Err(NbdError::Perm);
        }
        if export.flags & needs != needs {
            return Err(NbdError::Inval);
        }
        let end = self.offset.checked_add(u64::from(self.length));
        if end.is_none_or(|end| end > export.size) {
            return Err(match command {
                Command::Write | Command::WriteZeroes => NbdError::NoSpc,
                _ => NbdError::Inval,
            });
        }
        let block = u64::from(export.block);
        let aligned =
            self.offset.is_multiple_of(block) && u64::from(self.length).is_multiple_of(block);
        if self.length == 0 || !aligned {
            return Err(NbdError::Inval);
        }
        if matches!(command, Command::Read | Command::Write) && self.length > export.max_request {
            return Err(NbdError::Inval);
        }
        Ok(command)
    }
}
