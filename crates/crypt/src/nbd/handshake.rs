//! The option phase of fixed newstyle.
//!
//! [`Handshake::feed`] takes what has come so far and says how much of it is used up; the caller keeps the rest. It holds
//! no more than one small option, skips the bytes of a large one without storing them, and ends after
//! [`MAX_OPTIONS`] options, so a hostile client cannot make it grow.

use std::sync::Arc;

use super::{Export, flags};

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Server handshake flags.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
/// Client flags.
const C_FIXED_NEWSTYLE: u32 = 1;
const C_NO_ZEROES: u32 = 2;

/// Options a client may send before it is cut off. Real clients send fewer than ten.
pub const MAX_OPTIONS: u32 = 64;
/// The longest option that is looked at. An export name has at most 4096 bytes by the protocol; information requests are a
/// few bytes more.
pub const MAX_OPTION_LEN: u32 = 8192;
/// The longest name by the protocol.
const MAX_NAME: usize = 4096;

mod opt {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
    pub(super) const STRUCTURED_REPLY: u32 = 8;
}

mod rep {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(super) const ERR_POLICY: u32 = (1 << 31) + 2;
    pub(super) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(super) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(super) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// What was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Reads are answered with structured replies.
    pub structured: bool,
}

/// What comes next after [`Handshake::feed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// The option phase is over; requests follow.
    Enter(Session),
    /// Send what is in `out`, then close. The reason is for logs and tests.
    Close(&'static str),
}

/// The state of one client's option phase.
#[derive(Debug)]
pub struct Handshake {
    export: Arc<Export>,
    /// Every option that would lead on is refused with this text.
    refuse: Option<&'static str>,
    greeted: bool,
    no_zeroes: bool,
    structured: bool,
    options: u32,
    /// Bytes of an oversized option still to be thrown away.
    skip: u64,
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    b.get(at..at + 2)
        .and_then(|s| s.try_into().ok())
        .map(u16::from_be_bytes)
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4)
        .and_then(|s| s.try_into().ok())
        .map(u32::from_be_bytes)
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    b.get(at..at + 8)
        .and_then(|s| s.try_into().ok())
        .map(u64::from_be_bytes)
}

/// What the server says first, before any byte has come.
pub fn greeting() -> [u8; 18] {
    let mut g = [0; 18];
    g[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    g[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    g[16..].copy_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    g
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|d| d.len()).sum();
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    // Nothing sent here comes near 4 GiB: names are at most 4096 bytes.
    out.extend_from_slice(&(len as u32).to_be_bytes());
    for d in data {
        out.extend_from_slice(d);
    }
}

impl Handshake {
    /// For a client that is to be served.
    pub fn new(export: Arc<Export>) -> Handshake {
        Handshake {
            export,
            refuse: None,
            greeted: false,
            no_zeroes: false,
            structured: false,
            options: 0,
            skip: 0,
        }
    }

    /// For a client that is to be told `why` it is not served: options get `ERR_POLICY` with that text. A client that uses
    /// the old `EXPORT_NAME` can only be cut off.
    pub fn refusing(export: Arc<Export>, why: &'static str) -> Handshake {
        Handshake {
            refuse: Some(why),
            ..Handshake::new(export)
        }
    }

    fn flags(&self) -> u16 {
        self.export.flags | if self.structured { flags::SEND_DF } else { 0 }
    }

    /// Takes `input`, the unused bytes so far, appends to `out` what is to be sent, and returns how many bytes were used
    /// with what comes next. After [`Step::Enter`] the rest of the input belongs to requests. O(input), never blocks.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let mut used = 0;
        loop {
            if self.skip > 0 {
                let n = self.skip.min((input.len() - used) as u64);
                used += n as usize;
                self.skip -= n;
                if self.skip > 0 {
                    return (used, Step::More);
                }
            }
            let rest = &input[used..];
            if !self.greeted {
                let Some(client) = u32_at(rest, 0) else {
                    return (used, Step::More);
                };
                used += 4;
                if client & !(C_FIXED_NEWSTYLE | C_NO_ZEROES) != 0 {
                    return (used, Step::Close("unknown client flags"));
                }
                self.no_zeroes = client & C_NO_ZEROES != 0;
                self.greeted = true;
                continue;
            }
            let (Some(magic), Some(option), Some(len)) =
                (u64_at(rest, 0), u32_at(rest, 8), u32_at(rest, 12))
            else {
                // Garbage shows in the first eight bytes; do not wait for more of it.
                return match u64_at(rest, 0) {
                    Some(magic) if magic != IHAVEOPT => (used, Step::Close("bad option magic")),
                    _ => (used, Step::More),
                };
            };
            if magic != IHAVEOPT {
                return (used, Step::Close("bad option magic"));
            }
            if len > MAX_OPTION_LEN {
                used += 16;
                if option == opt::EXPORT_NAME {
                    return (used, Step::Close("export name too long"));
                }
                self.skip = u64::from(len);
                reply(out, option, rep::ERR_TOO_BIG, &[b"option too long"]);
            } else {
                let Some(data) = rest.get(16..16 + len as usize) else {
                    return (used, Step::More);
                };
                used += 16 + data.len();
                if let Some(step) = self.option(option, data, out) {
                    return (used, step);
                }
            }
            self.options += 1;
            if self.options >= MAX_OPTIONS {
                return (used, Step::Close("too many options"));
            }
        }
    }

    fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Step> {
        if let Some(why) = self.refuse {
            return match option {
                opt::ABORT => {
                    reply(out, option, rep::ACK, &[]);
                    Some(Step::Close("refused, client left"))
                }
                opt::EXPORT_NAME => Some(Step::Close("refused")),
                _ => {
                    reply(out, option, rep::ERR_POLICY, &[why.as_bytes()]);
                    None
                }
            };
        }
        match option {
            opt::EXPORT_NAME => {
                if data != self.export.name.as_bytes() {
                    // The option has no error reply.
                    return Some(Step::Close("unknown export name"));
                }
                out.extend_from_slice(&self.export.size.to_be_bytes());
                out.extend_from_slice(&self.flags().to_be_bytes());
                if !self.no_zeroes {
                    out.extend_from_slice(&[0; 124]);
                }
                Some(Step::Enter(Session {
                    structured: self.structured,
                }))
            }
            opt::ABORT => {
                reply(out, option, rep::ACK, &[]);
                Some(Step::Close("client aborted"))
            }
            opt::LIST => {
                if data.is_empty() {
                    let name = self.export.name.as_bytes();
                    reply(
                        out,
                        option,
                        rep::SERVER,
                        &[&(name.len() as u32).to_be_bytes(), name],
                    );
                    reply(out, option, rep::ACK, &[]);
                } else {
                    reply(out, option, rep::ERR_INVALID, &[b"LIST takes no data"]);
                }
                None
            }
            opt::STRUCTURED_REPLY => {
                if data.is_empty() {
                    self.structured = true;
                    reply(out, option, rep::ACK, &[]);
                } else {
                    reply(
                        out,
                        option,
                        rep::ERR_INVALID,
                        &[b"STRUCTURED_REPLY takes no data"],
                    );
                }
                None
            }
            opt::INFO | opt::GO => self.info(option, data, out),
            _ => {
                reply(out, option, rep::ERR_UNSUP, &[b"option not served"]);
                None
            }
        }
    }

    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Step> {
        let Some((name, wanted)) = parse_info(data) else {
            reply(
                out,
                option,
                rep::ERR_INVALID,
                &[b"malformed information request"],
            );
            return None;
        };
        if name != self.export.name.as_bytes() {
            reply(out, option, rep::ERR_UNKNOWN, &[b"no such export"]);
            return None;
        }
        let e = &self.export;
        let (size, flags) = (e.size.to_be_bytes(), self.flags().to_be_bytes());
        reply(
            out,
            option,
            rep::INFO,
            &[&info::EXPORT.to_be_bytes(), &size, &flags],
        );
        // Block sizes are a constraint that clients should know, so they come asked or not; a name comes when asked.
        let sizes = [e.block, e.preferred, e.max_request]
            .map(u32::to_be_bytes)
            .concat();
        reply(
            out,
            option,
            rep::INFO,
            &[&info::BLOCK_SIZE.to_be_bytes(), &sizes],
        );
        if wanted
            .chunks_exact(2)
            .any(|w| w == info::NAME.to_be_bytes())
        {
            reply(
                out,
                option,
                rep::INFO,
                &[&info::NAME.to_be_bytes(), e.name.as_bytes()],
            );
        }
        reply(out, option, rep::ACK, &[]);
        (option == opt::GO).then_some(Step::Enter(Session {
            structured: self.structured,
        }))
    }
}

/// The name and the list of wanted items (two bytes each) of an `INFO` or `GO`.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let name_len = u32_at(data, 0)? as usize;
    if name_len > MAX_NAME {
        return None;
    }
    let name = data.get(4..4 + name_len)?;
    let count = usize::from(u16_at(data, 4 + name_len)?);
    let wanted = &data[4 + name_len + 2..];
    (wanted.len() == count * 2).then_some((name, wanted))
}
