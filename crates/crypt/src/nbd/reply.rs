//! Reply headers. Data follows them on the wire and is not copied here.

use super::NbdError;

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

const FLAG_DONE: u16 = 1;
const TYPE_NONE: u16 = 0;
const TYPE_OFFSET_DATA: u16 = 1;
const TYPE_ERROR: u16 = (1 << 15) + 1;
const TYPE_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// Bytes of the longest header: a structured chunk with an error, its empty text and an offset.
pub const MAX_HEADER: usize = 20 + 6 + 8;

/// A header ready to be sent, at most [`MAX_HEADER`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHeader {
    bytes: [u8; MAX_HEADER],
    len: u8,
}

impl ReplyHeader {
    /// What goes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn build(parts: &[&[u8]]) -> ReplyHeader {
        let mut h = ReplyHeader {
            bytes: [0; MAX_HEADER],
            len: 0,
        };
        for p in parts {
            let at = usize::from(h.len);
            h.bytes[at..at + p.len()].copy_from_slice(p);
            h.len += p.len() as u8;
        }
        h
    }

    fn chunk(done: bool, kind: u16, cookie: u64, len: u32, body: &[&[u8]]) -> ReplyHeader {
        let flags = if done { FLAG_DONE } else { 0 };
        let mut parts: [&[u8]; 8] = [&[]; 8];
        let fixed = (
            CHUNK_MAGIC.to_be_bytes(),
            flags.to_be_bytes(),
            kind.to_be_bytes(),
            cookie.to_be_bytes(),
            len.to_be_bytes(),
        );
        parts[..5].copy_from_slice(&[&fixed.0, &fixed.1, &fixed.2, &fixed.3, &fixed.4]);
        parts[5..5 + body.len()].copy_from_slice(body);
        ReplyHeader::build(&parts)
    }

    /// A simple reply; the data of a read follows a success.
    pub fn simple(cookie: u64, result: Result<(), NbdError>) -> ReplyHeader {
        let error = result.map_or_else(NbdError::code, |()| 0);
        ReplyHeader::build(&[
            &SIMPLE_MAGIC.to_be_bytes(),
            &error.to_be_bytes(),
            &cookie.to_be_bytes(),
        ])
    }

    /// A structured chunk of `len` bytes of data for byte `offset` of the export; the data follows. `done` marks the last.
    pub fn offset_data(cookie: u64, offset: u64, len: u32, done: bool) -> ReplyHeader {
        // The length on the wire counts the offset; data is at most `MAX_PAYLOAD`.
        Self::chunk(
            done,
            TYPE_OFFSET_DATA,
            cookie,
            len.saturating_add(8),
            &[&offset.to_be_bytes()],
        )
    }

    /// A structured reply without data, the last of its request.
    pub fn done(cookie: u64) -> ReplyHeader {
        Self::chunk(true, TYPE_NONE, cookie, 0, &[])
    }

    /// A structured error for the whole request, the last of it.
    pub fn error(cookie: u64, e: NbdError) -> ReplyHeader {
        Self::chunk(
            true,
            TYPE_ERROR,
            cookie,
            6,
            &[&e.code().to_be_bytes(), &0u16.to_be_bytes()],
        )
    }

    /// A structured error for the part at byte `offset`; `done` marks the last chunk.
    pub fn error_at(cookie: u64, e: NbdError, offset: u64, done: bool) -> ReplyHeader {
        let body: [&[u8]; 3] = [
            &e.code().to_be_bytes(),
            &0u16.to_be_bytes(),
            &offset.to_be_bytes(),
        ];
        Self::chunk(done, TYPE_ERROR_OFFSET, cookie, 14, &body)
    }
}
