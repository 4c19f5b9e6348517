//! Requests and their parts. A part is a work item: cipher, device, and the reply if it is the last.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::buffer::Buffer;
use super::conn::{Charge, Conn, Data, Reply};
use crate::nbd::NbdError;
use crate::nbd::reply::ReplyHeader;
use crate::nbd::request::{Command, FLAG_DF, FLAG_FUA, FLAG_NO_HOLE, Header};

/// Items of one request that run at the same time where it has no payload: writing zeroes. The rest follows as these end, so
/// that 4 GiB of zeroes neither flood the queue nor hold more memory than this many parts.
const LANES: u64 = 4;
/// Bytes that one item trims, or zeroes without a cipher: one or a few system calls.
const RANGE_PART: u64 = 64 << 20;

/// A request in flight.
pub(crate) struct Request {
    conn: Arc<Conn>,
    command: Command,
    flags: u16,
    cookie: u64,
    offset: u64,
    len: u64,
    /// Bytes of a part; the last one may be shorter.
    part_len: u64,
    /// What the connection and the server are charged; given back with the reply.
    charge: u64,
    /// Data is sent part by part as it comes.
    chunked: bool,
    structured: bool,
    /// Items that have not ended.
    remaining: AtomicU32,
    /// The next part that no item has, for requests in lanes.
    next_part: AtomicU64,
    /// The first error's number, or 0.
    error: AtomicU32,
    /// Data of a read whose reply goes out in one piece, by part.
    gathered: Mutex<Vec<Option<Buffer>>>,
}

/// A work item: one part of a request. See [`Executor`](super::Executor) for the contract.
pub struct Item {
    request: Arc<Request>,
    part: u64,
    data: Option<Buffer>,
    /// The part was counted out.
    ended: bool,
}

/// The bytes that a request holds while in flight.
pub(crate) fn charge_of(command: Command, len: u32, part_len: u64, encrypted: bool) -> u64 {
    match command {
        Command::Read | Command::Write => u64::from(len),
        Command::WriteZeroes if encrypted => u64::from(len).min(LANES * part_len),
        _ => 0,
    }
}

impl Request {
    /// A request that passed all checks and whose charge was taken. `payload` is the data of a write, cut into parts.
    /// Returns its items.
    pub(crate) fn start(
        conn: &Arc<Conn>,
        command: Command,
        header: &Header,
        charge: u64,
        payload: Vec<Buffer>,
    ) -> impl Iterator<Item = Item> + use<> {
        let shared = conn.shared();
        let len = u64::from(header.length);
        let in_lanes = matches!(command, Command::WriteZeroes | Command::Trim);
        let part_len = match command {
            Command::Trim => RANGE_PART,
            Command::WriteZeroes if !shared.volume.is_encrypted() => RANGE_PART,
            _ => shared.part_len,
        };
        let parts = len.div_ceil(part_len).max(1);
        let items = if in_lanes { parts.min(LANES) } else { parts };
        let structured = conn.structured();
        let chunked = structured && header.flags & FLAG_DF == 0;
        let gather = command == Command::Read && parts > 1 && !chunked;
        let request = Arc::new(Request {
            conn: Arc::clone(conn),
            command,
            flags: header.flags,
            cookie: header.cookie,
            offset: header.offset,
            len,
            part_len,
            charge,
            chunked,
            structured,
            remaining: AtomicU32::new(items as u32),
            next_part: AtomicU64::new(items),
            error: AtomicU32::new(0),
            gathered: Mutex::new(if gather {
                (0..parts).map(|_| None).collect()
            } else {
                Vec::new()
            }),
        });
        let mut payload = payload.into_iter();
        (0..items).map(move |part| Item {
            request: Arc::clone(&request),
            part,
            data: payload.next(),
            ended: false,
        })
    }

    fn parts(&self) -> u64 {
        self.len.div_ceil(self.part_len).max(1)
    }

    /// Where part `n` begins and how long it is.
    fn range(&self, n: u64) -> (u64, u64) {
        let from = n * self.part_len;
        (self.offset + from, self.part_len.min(self.len - from))
    }

    fn note_error(&self, e: NbdError) {
        // Whoever is first stays; the others have nothing to add.
        let _ = self
            .error
            .compare_exchange(0, e.code(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn result(&self) -> Result<(), NbdError> {
        match self.error.load(Ordering::Relaxed) {
            0 => Ok(()),
            n => Err(NbdError::from_code(n)),
        }
    }

    /// Counts an item out; true for the last one.
    fn count_out(&self) -> bool {
        // Ordering: AcqRel, so that the last item sees the errors and data which the others left before they counted out.
        self.remaining.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn whole_charge(&self) -> Charge {
        Charge {
            requests: 1,
            bytes: self.charge,
        }
    }

    /// Ends a part of anything but a read.
    fn end(&self, result: Result<(), NbdError>) {
        if let Err(e) = result {
            self.note_error(e);
        }
        if !self.count_out() {
            return;
        }
        let mut result = self.result();
        let unsynced = matches!(self.command, Command::WriteZeroes | Command::Trim);
        if result.is_ok() && self.flags & FLAG_FUA != 0 && unsynced {
            result = self.flush();
        }
        let head = ReplyHeader::simple(self.cookie, result);
        self.conn
            .push(Reply::new(head, Data::None, self.whole_charge()));
    }

    /// Ends a part of a read.
    fn end_read(&self, part: u64, result: Result<Buffer, NbdError>) {
        if self.parts() == 1 {
            let cookie = self.cookie;
            let (head, data) = match (result, self.structured) {
                (Ok(b), true) => (
                    ReplyHeader::offset_data(cookie, self.offset, b.len() as u32, true),
                    Data::One(b),
                ),
                (Ok(b), false) => (ReplyHeader::simple(cookie, Ok(())), Data::One(b)),
                (Err(e), true) => (ReplyHeader::error(cookie, e), Data::None),
                (Err(e), false) => (ReplyHeader::simple(cookie, Err(e)), Data::None),
            };
            return self.conn.push(Reply::new(head, data, self.whole_charge()));
        }
        if self.chunked {
            let (offset, len) = self.range(part);
            // The last chunk says so, hence counting out and queueing are one step under the connection's lock.
            return self.conn.push_with(|| {
                let done = self.count_out();
                let (head, data) = match result {
                    Ok(b) => (
                        ReplyHeader::offset_data(self.cookie, offset, b.len() as u32, done),
                        Data::One(b),
                    ),
                    Err(e) => (
                        ReplyHeader::error_at(self.cookie, e, offset, done),
                        Data::None,
                    ),
                };
                Reply::new(
                    head,
                    data,
                    Charge {
                        requests: u32::from(done),
                        bytes: len,
                    },
                )
            });
        }
        match result {
            Ok(b) => {
                self.gathered.lock().unwrap_or_else(|e| e.into_inner())[part as usize] = Some(b)
            }
            Err(e) => self.note_error(e),
        }
        if !self.count_out() {
            return;
        }
        let all = std::mem::take(&mut *self.gathered.lock().unwrap_or_else(|e| e.into_inner()));
        let (head, data) = match (self.result(), self.structured) {
            (Ok(()), structured) => {
                let head = match structured {
                    true => {
                        ReplyHeader::offset_data(self.cookie, self.offset, self.len as u32, true)
                    }
                    false => ReplyHeader::simple(self.cookie, Ok(())),
                };
                (head, Data::Many(all.into_iter().flatten().collect()))
            }
            (Err(e), true) => (ReplyHeader::error(self.cookie, e), Data::None),
            (Err(e), false) => (ReplyHeader::simple(self.cookie, Err(e)), Data::None),
        };
        self.conn.push(Reply::new(head, data, self.whole_charge()));
    }

    fn flush(&self) -> Result<(), NbdError> {
        let shared = self.conn.shared();
        let mut result = Ok(());
        shared
            .executor
            .blocking(&mut || result = shared.volume.flush());
        result.map_err(|e| NbdError::from_io(&e))
    }
}

impl Item {
    /// Whether [`run`](Self::run) may return a rest: false for parts of reads and writes, which are whole items.
    pub fn may_leave_rest(&self) -> bool {
        matches!(self.request.command, Command::Trim | Command::WriteZeroes)
    }

    /// Bytes that the part moves.
    pub fn bytes(&self) -> u64 {
        match self.request.command {
            Command::Read | Command::Write => self.request.range(self.part).1,
            _ => 0,
        }
    }

    /// Whether its request has other parts.
    pub fn is_split(&self) -> bool {
        self.request.parts() > 1
    }

    /// Whether it is a part of a read.
    pub fn is_read(&self) -> bool {
        self.request.command == Command::Read
    }

    /// Whether it writes to the device and need not wait for stable storage: it blocks only where the system makes writers wait.
    pub fn is_plain_write(&self) -> bool {
        self.request.command == Command::Write && self.request.flags & FLAG_FUA == 0
    }

    /// Carries out a part of a read whose data the system has in memory, as [`run`](Self::run) does.
    ///
    /// # Errors
    /// The item, untouched, if it is something else, or would have to wait for the disk or for a write to the same blocks.
    pub fn run_if_cached(mut self) -> Result<(), Item> {
        if self.request.command != Command::Read {
            return Err(self);
        }
        let request = Arc::clone(&self.request);
        let shared = request.conn.shared();
        let (offset, len) = request.range(self.part);
        let mut data = shared.buffers.take(len as usize);
        let result = match shared.volume.read_cached(offset, &mut data) {
            Ok(false) => return Err(self),
            Ok(true) => Ok(data),
            Err(e) => Err(NbdError::from_io(&e)),
        };
        self.ended = true;
        request.end_read(self.part, result);
        Ok(())
    }

    /// Carries the part out and, if it is the last of its request, sends the reply as far as the client takes it; the rest of
    /// the reply is sent by the connection's reader. May block on the disk, never on the client. Returns the next part of a
    /// long request, to be submitted again.
    pub fn run(mut self) -> Option<Item> {
        let request = Arc::clone(&self.request);
        let shared = request.conn.shared();
        let volume = &shared.volume;
        let (offset, len) = request.range(self.part);
        let wire = |e: std::io::Error| NbdError::from_io(&e);
        match request.command {
            Command::Read => {
                let mut data = shared.buffers.take(len as usize);
                let result = volume.read(offset, &mut data).map(|()| data).map_err(wire);
                self.ended = true;
                request.end_read(self.part, result);
            }
            Command::Write => {
                let durable = request.flags & FLAG_FUA != 0;
                let result = match self.data.as_mut() {
                    Some(data) => volume.write(offset, data, durable).map_err(wire),
                    None => Err(NbdError::Io),
                };
                self.data = None;
                self.ended = true;
                request.end(result);
            }
            Command::Flush | Command::Disc => {
                let result = request.flush();
                self.ended = true;
                request.end(result);
            }
            Command::Trim | Command::WriteZeroes => {
                let result = if request.command == Command::Trim {
                    volume.trim(offset, len)
                } else {
                    let room = if volume.is_encrypted() { len } else { 0 };
                    let mut scratch = shared.buffers.take(room as usize);
                    volume.write_zeroes(
                        offset,
                        len,
                        request.flags & FLAG_NO_HOLE != 0,
                        &mut scratch,
                    )
                };
                if result.is_ok() && request.error.load(Ordering::Relaxed) == 0 {
                    // Ordering: none needed; the number alone is shared.
                    let next = request.next_part.fetch_add(1, Ordering::Relaxed);
                    if next < request.parts() {
                        self.part = next;
                        return Some(self);
                    }
                }
                self.ended = true;
                request.end(result.map_err(wire));
            }
        }
        None
    }
}

impl Drop for Item {
    /// An item that was not run, or panicked, still answers its request.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let e = if std::thread::panicking() {
            NbdError::Io
        } else {
            NbdError::Shutdown
        };
        match self.request.command {
            Command::Read => self.request.end_read(self.part, Err(e)),
            _ => self.request.end(Err(e)),
        }
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item")
            .field("command", &self.request.command)
            .field("cookie", &self.request.cookie)
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}
