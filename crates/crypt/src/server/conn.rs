//! A connection's sending side, shared by its reader and the items of its requests.
//!
//! See README.md, "Sending", for why no reply is lost or mixed with another.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::Shared;
use super::buffer::Buffer;
use super::reader::Message;
use super::slots::Slot;
use crate::nbd::reply::ReplyHeader;

/// Slices given to one `sendmsg`: thirty replies of data.
const SLICES: usize = 64;

/// What a reply gives back once it is sent or dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charge {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

/// What follows a reply's header.
pub(crate) enum Data {
    None,
    One(Buffer),
    Many(Vec<Buffer>),
    /// Handshake bytes, which have no header.
    Raw(Vec<u8>),
}

/// A reply on its way out.
pub(crate) struct Reply {
    head: Option<ReplyHeader>,
    data: Data,
    charge: Charge,
    /// Bytes that the client has.
    sent: usize,
}

impl Reply {
    pub(crate) fn new(head: ReplyHeader, data: Data, charge: Charge) -> Reply {
        Reply {
            head: Some(head),
            data,
            charge,
            sent: 0,
        }
    }

    pub(crate) fn raw(bytes: Vec<u8>) -> Reply {
        Reply {
            head: None,
            data: Data::Raw(bytes),
            charge: Charge::default(),
            sent: 0,
        }
    }

    /// Calls `f` for each slice, in order, until it returns false.
    fn slices<'a>(&'a self, mut f: impl FnMut(&'a [u8]) -> bool) {
        if let Some(head) = &self.head
            && !f(head.as_bytes())
        {
            return;
        }
        match &self.data {
            Data::None => {}
            Data::One(b) => {
                f(b);
            }
            Data::Many(all) => {
                for b in all {
                    if !f(b) {
                        return;
                    }
                }
            }
            Data::Raw(b) => {
                f(b);
            }
        }
    }

    fn len(&self) -> usize {
        let mut n = 0;
        self.slices(|s| {
            n += s.len();
            true
        });
        n
    }
}

thread_local! {
    /// Connections whose replies are held back, while this thread runs requests in [`together`].
    static HELD: RefCell<Option<Vec<Arc<Conn>>>> = const { RefCell::new(None) };
}

/// Sends what is held back, also when a request panics.
struct Held;

impl Drop for Held {
    fn drop(&mut self) {
        let held = HELD.with_borrow_mut(Option::take);
        for conn in held.into_iter().flatten() {
            let out = conn.lock();
            conn.send(out);
        }
    }
}

/// Runs `f`, and sends the replies of the requests that it carries out when it is through, those of a connection in one go. Until
/// then this thread is the sender of those connections, so `f` should be short. Not to be nested.
pub(crate) fn together(f: impl FnOnce()) {
    HELD.set(Some(Vec::new()));
    let _held = Held;
    f();
}

/// What the reader wants to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watch {
    Nothing,
    /// There is room for another request.
    Room,
    /// Nothing is in flight and everything is sent.
    Idle,
}

pub(crate) struct Out {
    queue: VecDeque<Reply>,
    /// An empty queue to swap with, so that steady sending allocates nothing.
    spare: VecDeque<Reply>,
    /// Someone sends; they take what is queued meanwhile.
    sending: bool,
    /// The socket took no more; the reader sends on when it does.
    blocked: bool,
    /// The client is gone; replies are dropped.
    dead: bool,
    requests: u32,
    bytes: u64,
    watch: Watch,
    want_read: bool,
    interest: EventFlags,
    /// Bytes sent since the connection began, to tell a slow client from a stuck one.
    progress: u64,
}

/// A connection.
pub(crate) struct Conn {
    shared: Arc<Shared>,
    pub(crate) socket: OwnedFd,
    reader: usize,
    token: u64,
    structured: AtomicBool,
    out: Mutex<Out>,
    _slot: Slot,
}

/// How a try to take a request on went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    Admitted,
    /// The connection is at its limit; [`Message::Room`] comes when it is not.
    Full,
}

/// What the reader looks at in passing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) unsent: bool,
    pub(crate) in_flight: u32,
    pub(crate) progress: u64,
}

impl Conn {
    pub(crate) fn new(
        shared: Arc<Shared>,
        socket: OwnedFd,
        reader: usize,
        token: u64,
        slot: Slot,
    ) -> Arc<Conn> {
        Arc::new(Conn {
            shared,
            socket,
            reader,
            token,
            structured: AtomicBool::new(false),
            out: Mutex::new(Out {
                queue: VecDeque::new(),
                spare: VecDeque::new(),
                sending: false,
                blocked: false,
                dead: false,
                requests: 0,
                bytes: 0,
                watch: Watch::Nothing,
                want_read: true,
                interest: EventFlags::IN,
                progress: 0,
            }),
            _slot: slot,
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn structured(&self) -> bool {
        self.structured.load(Ordering::Relaxed)
    }

    /// Called once, by the reader, before the first request.
    pub(crate) fn set_structured(&self, on: bool) {
        self.structured.store(on, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Tells epoll what this connection waits for, if that changed. An error means that the reader took the socket out of
    /// its set, which it does before it lets the connection go: then nobody waits for events any more.
    fn update_interest(&self, out: &mut Out) {
        let mut wanted = EventFlags::empty();
        if out.want_read {
            wanted |= EventFlags::IN;
        }
        if out.blocked {
            wanted |= EventFlags::OUT;
        }
        if wanted != out.interest && !out.dead {
            out.interest = wanted;
            let epoll = &self.shared.readers[self.reader].epoll;
            if epoll::modify(epoll, &self.socket, EventData::new_u64(self.token), wanted).is_err() {
                out.dead = true;
            }
        }
    }

    /// Reader only: whether input is waited for.
    pub(crate) fn want_read(&self, on: bool) {
        let mut out = self.lock();
        out.want_read = on;
        self.update_interest(&mut out);
    }

    /// Reader only: takes room for a request with `bytes` of data. One request is always let in.
    pub(crate) fn admit(&self, bytes: u64) -> Admission {
        let limits = &self.shared.limits;
        let mut out = self.lock();
        let full = out.requests >= limits.requests_per_connection
            || out.bytes + bytes > limits.bytes_per_connection;
        if out.requests > 0 && full {
            out.watch = Watch::Room;
            return Admission::Full;
        }
        out.requests += 1;
        out.bytes += bytes;
        Admission::Admitted
    }

    /// Gives back what [`admit`](Self::admit) took for a request that will have no reply. `budgeted`: the server's budget was
    /// taken too.
    pub(crate) fn forget(&self, bytes: u64, budgeted: bool) {
        let mut out = self.lock();
        let charge = Charge { requests: 1, bytes };
        self.discharge(&mut out, charge);
        drop(out);
        if budgeted {
            self.shared.release(bytes);
        }
    }

    /// Reader only: wants to be told when nothing is in flight and all is sent; true if that is so already.
    pub(crate) fn watch_idle(&self) -> bool {
        let mut out = self.lock();
        let idle = out.requests == 0 && (out.dead || (out.queue.is_empty() && !out.sending));
        out.watch = if idle { Watch::Nothing } else { Watch::Idle };
        idle
    }

    pub(crate) fn look(&self) -> Look {
        let out = self.lock();
        Look {
            unsent: !out.queue.is_empty(),
            in_flight: out.requests,
            progress: out.progress,
        }
    }

    /// Reader only: the client is gone, or is to go. What is queued is dropped, now and later.
    pub(crate) fn kill(&self) {
        let mut out = self.lock();
        out.dead = true;
        if !out.sending {
            let charge = Self::drain(&mut out);
            self.settle(out, charge);
        }
    }

    fn drain(out: &mut Out) -> Charge {
        let mut all = Charge::default();
        for reply in out.queue.drain(..) {
            all.requests += reply.charge.requests;
            all.bytes += reply.charge.bytes;
        }
        all
    }

    fn discharge(&self, out: &mut Out, charge: Charge) {
        out.requests -= charge.requests.min(out.requests);
        out.bytes -= charge.bytes.min(out.bytes);
        let limits = &self.shared.limits;
        let message = match out.watch {
            Watch::Nothing => return,
            // A quarter free, so that the reader is not woken for each single request.
            Watch::Room
                if out.requests <= limits.requests_per_connection / 4 * 3
                    && out.bytes <= limits.bytes_per_connection / 4 * 3
                    || out.requests == 0 =>
            {
                Message::Room(self.token)
            }
            Watch::Idle
                if out.requests == 0 && !out.sending && (out.dead || out.queue.is_empty()) =>
            {
                Message::Idle(self.token)
            }
            Watch::Room | Watch::Idle => return,
        };
        out.watch = Watch::Nothing;
        self.shared.readers[self.reader].post(message);
    }

    /// Gives `charge` back, to the connection and, with the lock dropped, to the server.
    fn settle(&self, mut out: MutexGuard<'_, Out>, charge: Charge) {
        self.discharge(&mut out, charge);
        drop(out);
        self.shared.release(charge.bytes);
    }

    /// Queues a reply and sends what it can. Never waits for the client. From any thread, with no lock held.
    pub(crate) fn push(self: &Arc<Self>, reply: Reply) {
        self.push_with(|| reply);
    }

    /// As [`push`](Self::push), with a reply made under the lock, so that making and queueing are one step.
    pub(crate) fn push_with(self: &Arc<Self>, make: impl FnOnce() -> Reply) {
        let mut out = self.lock();
        let reply = make();
        if out.dead {
            let charge = reply.charge;
            return self.settle(out, charge);
        }
        out.queue.push_back(reply);
        if out.sending || out.blocked {
            return;
        }
        out.sending = true;
        let held = HELD.with_borrow_mut(|held| match held {
            Some(list) => {
                list.push(Arc::clone(self));
                true
            }
            None => false,
        });
        if !held {
            self.send(out);
        }
    }

    /// Reader only: the socket takes bytes again.
    pub(crate) fn writable(&self) {
        let mut out = self.lock();
        if out.sending || out.dead {
            return;
        }
        out.sending = true;
        self.send(out);
    }

    /// Sends until the queue is empty or the socket takes no more. The caller set `sending`.
    fn send<'a>(&'a self, mut out: MutexGuard<'a, Out>) {
        let spare = std::mem::take(&mut out.spare);
        let mut batch = std::mem::replace(&mut out.queue, spare);
        loop {
            drop(out);
            let sent = self.send_some(&batch);
            let mut charge = Charge::default();
            if let Ok(mut left) = sent {
                while let Some(first) = batch.front_mut() {
                    let missing = first.len() - first.sent;
                    if left < missing {
                        first.sent += left;
                        break;
                    }
                    left -= missing;
                    charge.requests += first.charge.requests;
                    charge.bytes += first.charge.bytes;
                    // The buffers go back to their pool here, outside the lock.
                    batch.pop_front();
                }
            }
            // The budget comes back before the connection's room, and outside its lock: a grant posts to other readers.
            self.shared.release(charge.bytes);
            out = self.lock();
            match sent {
                Ok(n) => out.progress += n as u64,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // What is left goes back before what was queued meanwhile.
                    batch.append(&mut out.queue);
                    out.spare = std::mem::replace(&mut out.queue, batch);
                    out.sending = false;
                    out.blocked = true;
                    self.update_interest(&mut out);
                    if out.dead {
                        let charge = Self::drain(&mut out);
                        self.settle(out, charge);
                    }
                    return;
                }
                // The client is gone; the reader finds out by itself. Nobody is left to be told.
                Err(_) => out.dead = true,
            }
            if out.dead {
                batch.append(&mut out.queue);
                out.sending = false;
                for reply in batch.drain(..) {
                    charge.requests += reply.charge.requests;
                    // Those of sent replies are released already.
                    self.shared.release(reply.charge.bytes);
                    charge.bytes += reply.charge.bytes;
                }
                return self.discharge(&mut out, charge);
            }
            if batch.is_empty() {
                std::mem::swap(&mut batch, &mut out.queue);
            }
            if batch.is_empty() {
                out.spare = batch;
                out.sending = false;
                if out.blocked {
                    out.blocked = false;
                    self.update_interest(&mut out);
                }
                return self.discharge(&mut out, charge);
            }
            self.discharge(&mut out, charge);
        }
    }

    fn send_some(&self, batch: &VecDeque<Reply>) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut n = 0;
        for reply in batch {
            let mut skip = reply.sent;
            reply.slices(|s| {
                let from = skip.min(s.len());
                skip -= from;
                if from < s.len() {
                    slices[n] = IoSlice::new(&s[from..]);
                    n += 1;
                }
                n < SLICES
            });
            if n == SLICES {
                break;
            }
        }
        let mut space: [MaybeUninit<u8>; 0] = [];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &slices[..n], &mut control, flags)
    }
}
