//! Length-prefixed frames.

use std::fmt;
use std::io;

use serde::Serialize;

/// Bytes of the length in front of each frame.
const PREFIX: usize = 4;

/// What is wrong with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It announces more bytes than allowed.
    TooLong {
        /// The announced length.
        announced: u64,
        /// The allowed length.
        limit: usize,
    },
    /// Its body is no message of the protocol.
    Malformed(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong { announced, limit } => {
                write!(
                    f,
                    "a frame of {announced} bytes is longer than the {limit} allowed"
                )
            }
            FrameError::Malformed(why) => write!(f, "not a message of the protocol: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Encodes a message as a frame. Ends as soon as the limit is passed: what is too long is not built.
///
/// # Errors
/// [`FrameError::TooLong`] if the body is longer than `limit`; [`FrameError::Malformed`] if the value has no JSON form.
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, FrameError> {
    let mut body = Body {
        bytes: vec![0; PREFIX],
        limit: limit.min(u32::MAX as usize),
        passed: None,
    };
    let written = serde_json::to_writer(&mut body, message);
    if let Some(announced) = body.passed {
        return Err(FrameError::TooLong { announced, limit });
    }
    written.map_err(|e| FrameError::Malformed(e.to_string()))?;
    let length = (body.bytes.len() - PREFIX) as u32;
    body.bytes[..PREFIX].copy_from_slice(&length.to_le_bytes());
    Ok(body.bytes)
}

/// A frame as it is written.
struct Body {
    bytes: Vec<u8>,
    limit: usize,
    /// The length at which the limit was passed.
    passed: Option<u64>,
}

impl io::Write for Body {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let length = self.bytes.len() - PREFIX + more.len();
        if length > self.limit {
            self.passed = Some(length as u64);
            return Err(io::Error::other("longer than allowed"));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Collects bytes as they come and cuts them into frames. Never holds more than one frame's limit plus what one push brought.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    limit: usize,
}

impl FrameBuffer {
    /// An empty buffer for frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        FrameBuffer {
            bytes: Vec::new(),
            limit,
        }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether nothing of a frame has arrived.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether so much has arrived that no more needs to be read before a frame was taken out.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= self.limit + PREFIX
    }

    /// The body of the first frame, if it is complete.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] as soon as the length is known; the buffer is of no use afterwards.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let Some(prefix) = self.bytes.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.limit {
            return Err(FrameError::TooLong {
                announced: length as u64,
                limit: self.limit,
            });
        }
        if self.bytes.len() < PREFIX + length {
            return Ok(None);
        }
        let rest = self.bytes.split_off(PREFIX + length);
        let mut body = std::mem::replace(&mut self.bytes, rest);
        body.drain(..PREFIX);
        Ok(Some(body))
    }

    /// Whether a complete frame (or an error about one) is there to be taken.
    pub fn has_frame(&self) -> bool {
        self.bytes.first_chunk::<PREFIX>().is_some_and(|prefix| {
            let length = u32::from_le_bytes(*prefix) as usize;
            length > self.limit || self.bytes.len() >= PREFIX + length
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let mut wire = Vec::new();
        for text in ["", "a", "hello"] {
            wire.extend(encode(&text, 100).unwrap());
        }
        for step in 1..wire.len() {
            let mut buffer = FrameBuffer::new(100);
            let mut got = Vec::new();
            for piece in wire.chunks(step) {
                buffer.push(piece);
                while buffer.has_frame() {
                    got.push(buffer.next_frame().unwrap().unwrap());
                }
                assert_eq!(buffer.next_frame(), Ok(None));
            }
            assert_eq!(
                got,
                [b"\"\"".to_vec(), b"\"a\"".to_vec(), b"\"hello\"".to_vec()],
                "step {step}"
            );
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_huge_length_is_refused_at_once() {
        let mut buffer = FrameBuffer::new(10);
        buffer.push(&u32::MAX.to_le_bytes());
        assert!(buffer.has_frame());
        assert!(matches!(
            buffer.next_frame(),
            Err(FrameError::TooLong {
                announced: 4_294_967_295,
                limit: 10
            })
        ));
        // Ten letters and two quotes.
        assert!(encode(&"0123456789", 12).is_ok());
        for limit in [0, 10, 11] {
            let e = encode(&"0123456789", limit).unwrap_err();
            assert!(
                matches!(e, FrameError::TooLong { announced, limit: l } if l == limit && announced > limit as u64),
                "{e}"
            );
        }
    }
}
