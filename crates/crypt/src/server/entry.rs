//! A connection's receiving side: bytes in, requests out. Belongs to one reader.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Shared;
use super::budget::Waiter;
use super::buffer::Buffer;
use super::conn::{Admission, Charge, Conn, Data, Reply};
use super::item::{Item, Request, charge_of};
use crate::nbd::NbdError;
use crate::nbd::handshake::{Handshake, Step};
use crate::nbd::reply::ReplyHeader;
use crate::nbd::request::{Command, HEADER_LEN, Header};

/// Bytes taken in one go where the next bytes are headers. Small, because what belongs to a payload is copied from here:
/// the larger rest of a payload goes straight into its buffer.
const READ: usize = 4096;
/// Bytes of the reader's scratch space: a whole handshake option and one [`READ`], and a good piece to throw away.
pub(crate) const SCRATCH: usize = 64 << 10;
/// Buffers filled by one system call.
const SLICES: usize = 16;

/// What one turn of a receiver takes in.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    /// Parts of requests that were begun, to be run.
    pub(crate) items: Vec<Item>,
    /// How often a socket may still be read from in this turn.
    pub(crate) reads: usize,
}

/// What a request is to become once there is room for it.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Run(Command),
    Refuse(NbdError),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// For the connection's own limit.
    Room,
    /// For the server's budget; room was taken.
    Budget,
}

enum Phase {
    Handshake(Box<Handshake>),
    Header,
    Wait {
        header: Header,
        plan: Plan,
        charge: u64,
        stage: Stage,
    },
    Payload {
        header: Header,
        charge: u64,
        parts: Vec<Buffer>,
        filled: usize,
    },
    /// The payload of a refused write is thrown away.
    Drain {
        header: Header,
        error: NbdError,
        left: u64,
    },
    Closing,
}

/// What the reader does next with the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Wait for input.
    Read,
    /// Wait for a message: nothing is read meanwhile.
    Pause,
    /// No more input: end what is in flight, then let go.
    Close,
}

/// See the [module](self).
pub(crate) struct Entry {
    pub(crate) conn: Arc<Conn>,
    reader: usize,
    phase: Phase,
    /// Input that waits for more of it, or for room.
    pending: Vec<u8>,
    born: Instant,
    received: u64,
    /// Progress at the last look, and since when there was none.
    seen_in: (u64, Instant),
    seen_out: (u64, Instant),
}

/// Why a connection is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// Nothing happens and nothing is due.
    Quiet,
    /// Something is going on.
    Active,
    /// It took too long.
    Expired,
}

impl Entry {
    pub(crate) fn new(conn: Arc<Conn>, reader: usize, handshake: Handshake, now: Instant) -> Entry {
        Entry {
            conn,
            reader,
            phase: Phase::Handshake(Box::new(handshake)),
            pending: Vec::new(),
            born: now,
            received: 0,
            seen_in: (0, now),
            seen_out: (0, now),
        }
    }

    /// Whether input is waited for; otherwise a hang-up of the client is an end and no news of input.
    pub(crate) fn reading(&self) -> bool {
        !matches!(self.phase, Phase::Wait { .. } | Phase::Closing)
    }

    /// Whether requests are no longer taken.
    pub(crate) fn closing(&self) -> bool {
        matches!(self.phase, Phase::Closing)
    }

    /// Reads what there is, up to a fair share.
    pub(crate) fn readable(&mut self, scratch: &mut [u8], intake: &mut Intake) -> Flow {
        while intake.reads > 0 {
            intake.reads -= 1;
            let (got, wanted) = match self.receive(scratch) {
                Ok(counts) => counts,
                Err(Errno::AGAIN) => return Flow::Read,
                Err(Errno::INTR) => continue,
                // Reset or gone otherwise: the same as an end of input. Replies find out by themselves.
                Err(_) => return Flow::Close,
            };
            if got == 0 {
                return Flow::Close;
            }
            self.received += got as u64;
            let rest = self.fill(got);
            // What was pending lies before what came.
            let start = self.pending.len();
            self.pending.clear();
            let flow = self.process(&scratch[..start + rest], intake);
            if flow != Flow::Read || got < wanted {
                return flow;
            }
        }
        Flow::Read
    }

    /// One system call. Returns the bytes that came and those that there was room for.
    fn receive(&mut self, scratch: &mut [u8]) -> Result<(usize, usize), Errno> {
        let socket = &self.conn.socket;
        match &mut self.phase {
            Phase::Payload {
                header,
                parts,
                filled,
                ..
            } => {
                debug_assert!(self.pending.is_empty());
                let left = header.length as usize - *filled;
                let mut slices: [IoSliceMut<'_>; SLICES] =
                    std::array::from_fn(|_| IoSliceMut::new(&mut []));
                let (mut skip, mut n, mut room) = (*filled, 0, 0);
                for part in parts.iter_mut() {
                    let from = skip.min(part.len());
                    skip -= from;
                    if from < part.len() {
                        room += part.len() - from;
                        slices[n] = IoSliceMut::new(&mut part[from..]);
                        n += 1;
                    }
                    if n == SLICES - 1 {
                        break;
                    }
                }
                if room == left {
                    // The next headers come along with the end of the payload.
                    slices[n] = IoSliceMut::new(&mut scratch[..READ]);
                    n += 1;
                    room += READ;
                }
                rustix::io::readv(socket, &mut slices[..n]).map(|got| (got, room))
            }
            phase => {
                let start = self.pending.len();
                let end = if matches!(phase, Phase::Drain { .. }) {
                    SCRATCH
                } else {
                    start + READ
                };
                scratch[..start].copy_from_slice(&self.pending);
                let (_, got) =
                    rustix::net::recv(socket, &mut scratch[start..end], RecvFlags::DONTWAIT)?;
                Ok((got, end - start))
            }
        }
    }

    /// Counts `got` bytes that `receive` put into the payload; returns those that went to the scratch space.
    fn fill(&mut self, got: usize) -> usize {
        match &mut self.phase {
            Phase::Payload { header, filled, .. } => {
                let mine = got.min(header.length as usize - *filled);
                *filled += mine;
                got - mine
            }
            _ => got,
        }
    }

    /// Takes `input`; what it cannot use yet is kept.
    fn process(&mut self, mut input: &[u8], intake: &mut Intake) -> Flow {
        let flow = self.consume(&mut input, intake);
        if flow != Flow::Close {
            self.pending.extend_from_slice(input);
        }
        flow
    }

    fn consume(&mut self, input: &mut &[u8], intake: &mut Intake) -> Flow {
        loop {
            match &mut self.phase {
                Phase::Handshake(handshake) => {
                    let mut out = Vec::new();
                    let (used, step) = handshake.feed(input, &mut out);
                    *input = &input[used..];
                    if !out.is_empty() {
                        self.conn.push(Reply::raw(out));
                    }
                    match step {
                        Step::More => return Flow::Read,
                        Step::Close(_) => return Flow::Close,
                        Step::Enter(session) => {
                            self.conn.set_structured(session.structured);
                            self.phase = Phase::Header;
                        }
                    }
                }
                Phase::Header => {
                    let Some((bytes, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
                        return Flow::Read;
                    };
                    *input = rest;
                    // Without the magic nothing that follows can be understood.
                    let Ok(header) = Header::decode(bytes) else {
                        return Flow::Close;
                    };
                    let plan =
                        match header.check(&self.conn.shared().export, self.conn.structured()) {
                            Ok(Command::Disc) => return Flow::Close,
                            Ok(command) => Plan::Run(command),
                            Err(e) => Plan::Refuse(e),
                        };
                    let shared = self.conn.shared();
                    let charge = match plan {
                        Plan::Run(c) => charge_of(
                            c,
                            header.length,
                            shared.part_len,
                            shared.volume.is_encrypted(),
                        ),
                        Plan::Refuse(_) => 0,
                    };
                    self.phase = Phase::Wait {
                        header,
                        plan,
                        charge,
                        stage: Stage::Room,
                    };
                    if !self.try_begin(intake) {
                        return Flow::Pause;
                    }
                }
                Phase::Payload {
                    header,
                    charge,
                    parts,
                    filled,
                } => {
                    let len = header.length as usize;
                    while *filled < len && !input.is_empty() {
                        let part_len = parts[0].len();
                        let (part, at) = (*filled / part_len, *filled % part_len);
                        let room = &mut parts[part][at..];
                        let n = room.len().min(input.len());
                        room[..n].copy_from_slice(&input[..n]);
                        *input = &input[n..];
                        *filled += n;
                    }
                    if *filled < len {
                        return Flow::Read;
                    }
                    let (header, charge, parts) = (*header, *charge, std::mem::take(parts));
                    self.phase = Phase::Header;
                    self.submit(Command::Write, &header, charge, parts, intake);
                }
                Phase::Drain {
                    header,
                    error,
                    left,
                } => {
                    let n = (*left).min(input.len() as u64);
                    *left -= n;
                    *input = &input[n as usize..];
                    if *left > 0 {
                        return Flow::Read;
                    }
                    let (header, error) = (*header, *error);
                    self.phase = Phase::Header;
                    self.refuse(&header, error);
                }
                Phase::Wait { .. } => return Flow::Pause,
                Phase::Closing => return Flow::Close,
            }
        }
    }

    /// In `Wait`: goes on as far as there is room. False while there is none; a message comes when there is.
    fn try_begin(&mut self, intake: &mut Intake) -> bool {
        let Phase::Wait { charge, stage, .. } = &mut self.phase else {
            return true;
        };
        let charge = *charge;
        if *stage == Stage::Room {
            if self.conn.admit(charge) == Admission::Full {
                return false;
            }
            *stage = Stage::Budget;
            let waiter = Waiter {
                reader: self.reader,
                token: self.conn.token(),
                bytes: charge,
            };
            if !self.conn.shared().budget.acquire(waiter) {
                return false;
            }
            self.begin(intake);
        }
        // In the stage of the budget only a grant goes on.
        !matches!(self.phase, Phase::Wait { .. })
    }

    /// In `Wait`, with room and budget taken.
    fn begin(&mut self, intake: &mut Intake) {
        let Phase::Wait {
            header,
            plan,
            charge,
            ..
        } = self.phase
        else {
            return;
        };
        self.phase = Phase::Header;
        match plan {
            Plan::Refuse(error) if header.payload_len() > 0 => {
                self.phase = Phase::Drain {
                    header,
                    error,
                    left: u64::from(header.payload_len()),
                };
            }
            Plan::Refuse(error) => self.refuse(&header, error),
            Plan::Run(Command::Write) => {
                let shared = self.conn.shared();
                let (part_len, len) = (shared.part_len, u64::from(header.length));
                let mut parts = Vec::with_capacity(len.div_ceil(part_len) as usize);
                let mut at = 0;
                while at < len {
                    let n = part_len.min(len - at);
                    parts.push(shared.buffers.take(n as usize));
                    at += n;
                }
                self.phase = Phase::Payload {
                    header,
                    charge,
                    parts,
                    filled: 0,
                };
            }
            Plan::Run(command) => self.submit(command, &header, charge, Vec::new(), intake),
        }
    }

    fn submit(
        &self,
        command: Command,
        header: &Header,
        charge: u64,
        payload: Vec<Buffer>,
        intake: &mut Intake,
    ) {
        self.conn
            .shared()
            .count(self.reader, command, header.length);
        let items = Request::start(&self.conn, command, header, charge, payload);
        intake.items.extend(items);
    }

    fn refuse(&self, header: &Header, error: NbdError) {
        self.conn.shared().count_refused(self.reader);
        let head = match self.conn.structured()
            && Command::from_wire(header.command) == Some(Command::Read)
        {
            true => ReplyHeader::error(header.cookie, error),
            false => ReplyHeader::simple(header.cookie, Err(error)),
        };
        self.conn.push(Reply::new(
            head,
            Data::None,
            Charge {
                requests: 1,
                bytes: 0,
            },
        ));
    }

    /// After a message that there is room: takes up where it stopped.
    pub(crate) fn room(&mut self, intake: &mut Intake) -> Flow {
        if !matches!(
            self.phase,
            Phase::Wait {
                stage: Stage::Room,
                ..
            }
        ) {
            return if self.closing() {
                Flow::Close
            } else {
                Flow::Read
            };
        }
        if self.try_begin(intake) {
            self.resume(intake)
        } else {
            Flow::Pause
        }
    }

    /// After a grant of `bytes`, which are given back if nobody wants them any more.
    pub(crate) fn granted(&mut self, bytes: u64, intake: &mut Intake) -> Flow {
        if matches!(
            self.phase,
            Phase::Wait {
                stage: Stage::Budget,
                ..
            }
        ) {
            self.begin(intake);
            return self.resume(intake);
        }
        self.conn.shared().release(bytes);
        if self.closing() {
            Flow::Close
        } else {
            Flow::Read
        }
    }

    fn resume(&mut self, intake: &mut Intake) -> Flow {
        let pending = std::mem::take(&mut self.pending);
        self.process(&pending, intake)
    }

    /// Stops taking requests. What was not wholly received is forgotten; what is in flight goes on.
    pub(crate) fn close(&mut self) {
        self.pending = Vec::new();
        match std::mem::replace(&mut self.phase, Phase::Closing) {
            Phase::Wait {
                charge,
                stage: Stage::Budget,
                ..
            } => {
                // Not found means that a grant is on its way; `granted` or the reader gives that back.
                let shared = self.conn.shared();
                shared
                    .budget
                    .cancel(self.reader, self.conn.token(), |w| shared.post_grant(w));
                self.conn.forget(charge, false);
            }
            Phase::Payload { charge, .. } => self.conn.forget(charge, true),
            Phase::Drain { .. } => self.conn.forget(0, false),
            Phase::Handshake(_) | Phase::Header | Phase::Wait { .. } | Phase::Closing => {}
        }
    }

    /// Looks whether the client keeps its side going.
    pub(crate) fn health(&mut self, shared: &Shared, now: Instant) -> Health {
        let timeouts = &shared.timeouts;
        let look = self.conn.look();
        if !look.unsent || look.progress != self.seen_out.0 {
            self.seen_out = (look.progress, now);
        }
        let due = match self.phase {
            Phase::Payload { .. } | Phase::Drain { .. } => true,
            Phase::Header => !self.pending.is_empty(),
            _ => false,
        };
        if !due || self.received != self.seen_in.0 {
            self.seen_in = (self.received, now);
        }
        let handshake = matches!(self.phase, Phase::Handshake(_));
        if handshake && now - self.born >= timeouts.handshake
            || now - self.seen_out.1 >= timeouts.stall
            || now - self.seen_in.1 >= timeouts.stall
        {
            return Health::Expired;
        }
        let quiet =
            matches!(self.phase, Phase::Header) && !due && look.in_flight == 0 && !look.unsent;
        if quiet { Health::Quiet } else { Health::Active }
    }
}
