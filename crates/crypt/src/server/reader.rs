//! The readers: a few threads that wait for all sockets, take requests in and submit their items.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::io::Errno;

use super::Shared;
use super::conn::{Conn, Reply};
use super::entry::{Entry, Flow, Health, Intake, SCRATCH};
use super::executor::Executor;
use super::item::Item;
use super::listener::{Accept, Listener};
use super::slots::Slot;
use crate::nbd::handshake::{Handshake, greeting};

/// Tokens of what is no connection.
const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

/// Connections taken in one go.
const ACCEPTS: usize = 64;
/// Clients at the same time whose sockets are made to hold more; beyond, the system's default keeps thousands of clients that
/// read nothing from holding gigabytes.
const WIDE_CONNECTIONS: usize = 64;
/// How long no connection is taken after the process ran out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Events taken in one go.
const EVENTS: usize = 64;

/// News for a reader.
pub(crate) enum Message {
    Connection(OwnedFd, Slot),
    /// The connection is below its limit.
    Room(u64),
    /// The server's budget granted the connection these bytes.
    Granted(u64, u64),
    /// Nothing is in flight on the connection.
    Idle(u64),
}

/// The side of a reader that others see.
pub(crate) struct ReaderHandle {
    pub(crate) epoll: OwnedFd,
    wake: OwnedFd,
    inbox: Mutex<Vec<Message>>,
}

impl ReaderHandle {
    pub(crate) fn new() -> rustix::io::Result<ReaderHandle> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(ReaderHandle {
            epoll,
            wake,
            inbox: Mutex::new(Vec::new()),
        })
    }

    /// Makes the reader look at its messages and whether to stop. From any thread; never waits.
    pub(crate) fn wake(&self) {
        // Fails only when the counter is full, and then the reader is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Drops what nobody will read any more.
    pub(crate) fn clear(&self) {
        let left = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(|e| e.into_inner()));
        drop(left);
    }

    /// Leaves a message. From any thread; never waits.
    pub(crate) fn post(&self, message: Message) {
        let mut inbox = self.inbox.lock().unwrap_or_else(|e| e.into_inner());
        let first = inbox.is_empty();
        inbox.push(message);
        drop(inbox);
        // With others before it the reader has been woken already, and has not looked yet.
        if first {
            self.wake();
        }
    }
}

/// A reader's own side.
pub(crate) struct Reader {
    shared: Arc<Shared>,
    index: usize,
    listener: Option<Listener>,
    accept_again: Option<Instant>,
    next_reader: usize,
    next_token: u64,
    entries: HashMap<u64, Entry>,
    /// Collected, not handled yet.
    events: Vec<(u64, EventFlags)>,
    intake: Intake,
    scratch: Vec<u8>,
    /// When to look for clients that are stuck. `None` while all are quiet: an idle server never wakes.
    next_scan: Option<Instant>,
    /// When clients that do not take their replies are cut off, once the server stops.
    stop_at: Option<Instant>,
}

impl Reader {
    /// `listener` for one of the readers.
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: usize,
        listener: Option<Listener>,
    ) -> rustix::io::Result<Reader> {
        if let Some(l) = &listener {
            epoll::add(
                &shared.readers[index].epoll,
                l,
                EventData::new_u64(LISTENER),
                EventFlags::IN,
            )?;
        }
        Ok(Reader {
            shared,
            index,
            listener,
            accept_again: None,
            next_reader: 0,
            next_token: FIRST_CONNECTION,
            entries: HashMap::new(),
            events: Vec::with_capacity(EVENTS),
            intake: Intake::default(),
            scratch: vec![0; SCRATCH],
            next_scan: None,
            stop_at: None,
        })
    }

    fn handle_of_own(&self) -> &ReaderHandle {
        &self.shared.readers[self.index]
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn executor(&self) -> Arc<dyn Executor> {
        Arc::clone(&self.shared.executor)
    }

    /// The items of the requests that were taken in, for the caller to take.
    pub(crate) fn items(&mut self) -> &mut Vec<Item> {
        &mut self.intake.items
    }

    /// Whether all reads of the last turn were used: there may be more to read at once.
    pub(crate) fn has_more(&self) -> bool {
        self.intake.reads == 0
    }

    /// Takes the next events, up to `share` and [`EVENTS`], for a turn of as many reads; with `wait`, once there are some or a time limit is due. Whether there are some.
    ///
    /// # Errors
    /// The system's: nothing can go on then.
    pub(crate) fn collect(&mut self, wait: bool, share: usize) -> rustix::io::Result<bool> {
        let timeout = match wait {
            true => self.timeout(),
            false => Some(Timespec::default()),
        };
        let mut space = [MaybeUninit::uninit(); EVENTS];
        let space = &mut space[..share.clamp(1, EVENTS)];
        self.intake.reads = share;
        let events = match epoll::wait(&self.handle_of_own().epoll, space, timeout.as_ref()) {
            Ok((events, _)) => &*events,
            Err(Errno::INTR) => &[],
            Err(e) => return Err(e),
        };
        self.events.clear();
        self.events
            .extend(events.iter().map(|e| (e.data.u64(), e.flags)));
        Ok(!self.events.is_empty())
    }

    /// Does what the collected events, messages and times ask for. False when the server has stopped and all connections are done.
    pub(crate) fn handle(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        for &(token, flags) in &events {
            match token {
                WAKE => {
                    let mut counter = [0; 8];
                    // Nothing to read means that someone else's wake-up was taken together with this one.
                    let _ = rustix::io::read(&self.handle_of_own().wake, &mut counter);
                }
                LISTENER => self.accept(),
                token => self.event(token, flags),
            }
        }
        events.clear();
        self.events = events;
        self.messages();
        // Ordering: Acquire pairs with the Release of `Shared::stop`; what the stopper did before is seen.
        if self.shared.stopping.load(Ordering::Acquire) && self.stop_at.is_none() {
            self.stop();
        }
        self.timers();
        self.stop_at.is_none() || !self.entries.is_empty()
    }

    fn timeout(&self) -> Option<Timespec> {
        let due = [self.next_scan, self.accept_again]
            .into_iter()
            .flatten()
            .min()?;
        let left = due.saturating_duration_since(Instant::now()) + Duration::from_micros(500);
        Some(Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        })
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else {
                return;
            };
            match listener.accept() {
                Accept::Taken(socket) => {
                    let Some(slot) = self.shared.slots.take() else {
                        // Beyond the clients that are told: closing at once is all that is left.
                        self.shared.count_refused_connection(self.index);
                        continue;
                    };
                    if self.shared.slots.served() <= WIDE_CONNECTIONS {
                        listener.widen(&socket);
                    }
                    let reader = self.next_reader;
                    self.next_reader = (reader + 1) % self.shared.readers.len();
                    if reader == self.index {
                        self.connection(socket, slot);
                    } else {
                        self.shared.readers[reader].post(Message::Connection(socket, slot));
                    }
                }
                Accept::Nothing => return,
                Accept::Failed => {
                    // Out of descriptors or memory: the listener stays readable, so waiting for it would spin.
                    self.listen(EventFlags::empty());
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn listen(&self, flags: EventFlags) {
        if let Some(l) = &self.listener {
            // Cannot fail for a descriptor that is in the set, but for lack of kernel memory; then the next try is due.
            let _ = epoll::modify(
                &self.handle_of_own().epoll,
                l,
                EventData::new_u64(LISTENER),
                flags,
            );
        }
    }

    fn connection(&mut self, socket: OwnedFd, slot: Slot) {
        if self.stop_at.is_some() {
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        let refused = slot.refused();
        let conn = Conn::new(Arc::clone(&self.shared), socket, self.index, token, slot);
        let added = epoll::add(
            &self.handle_of_own().epoll,
            &conn.socket,
            EventData::new_u64(token),
            EventFlags::IN,
        );
        if added.is_err() {
            // Out of kernel memory or watches: the client sees a closed connection.
            self.shared.count_refused_connection(self.index);
            return;
        }
        let export = Arc::clone(&self.shared.export);
        let handshake = if refused {
            self.shared.count_refused_connection(self.index);
            Handshake::refusing(export, "too many connections")
        } else {
            self.shared.count_connection(self.index);
            Handshake::new(export)
        };
        conn.push(Reply::raw(greeting().to_vec()));
        self.entries.insert(
            token,
            Entry::new(conn, self.index, handshake, Instant::now()),
        );
        self.activity();
    }

    /// Something goes on, so someone may get stuck.
    fn activity(&mut self) {
        if self.next_scan.is_none() {
            self.next_scan = Some(Instant::now() + self.shared.timeouts.scan());
        }
    }

    fn event(&mut self, token: u64, flags: EventFlags) {
        let Some(entry) = self.entries.get_mut(&token) else {
            return;
        };
        let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        if flags.contains(EventFlags::OUT) {
            entry.conn.writable();
        }
        if entry.reading() && (gone || flags.contains(EventFlags::IN)) {
            let flow = entry.readable(&mut self.scratch, &mut self.intake);
            self.go_on(token, flow, true);
        } else if gone {
            // Nobody is there to read a reply, and what waits for room was not begun.
            entry.close();
            self.remove(token);
        }
        self.activity();
    }

    /// `was_reading`: input is waited for at this moment.
    fn go_on(&mut self, token: u64, flow: Flow, was_reading: bool) {
        let Some(entry) = self.entries.get_mut(&token) else {
            return;
        };
        match flow {
            Flow::Read if was_reading => {}
            Flow::Read => entry.conn.want_read(true),
            Flow::Pause if was_reading => entry.conn.want_read(false),
            Flow::Pause => {}
            Flow::Close => {
                entry.close();
                entry.conn.want_read(false);
                if entry.conn.watch_idle() {
                    self.remove(token);
                }
            }
        }
    }

    fn remove(&mut self, token: u64) {
        if let Some(entry) = self.entries.remove(&token) {
            entry.conn.kill();
            // Fails only if it is not there, which is what is wanted.
            let _ = epoll::delete(&self.handle_of_own().epoll, &entry.conn.socket);
            // Requests in flight still hold the socket; the client need not wait for them to see the end.
            let _ = rustix::net::shutdown(&entry.conn.socket, rustix::net::Shutdown::Both);
        }
    }

    fn messages(&mut self) {
        let messages = {
            let mut inbox = self
                .handle_of_own()
                .inbox
                .lock()
                .unwrap_or_else(|e| e.into_inner());
            std::mem::take(&mut *inbox)
        };
        for message in messages {
            match message {
                Message::Connection(socket, slot) => self.connection(socket, slot),
                Message::Room(token) => {
                    if let Some(entry) = self.entries.get_mut(&token) {
                        let flow = entry.room(&mut self.intake);
                        self.go_on(token, flow, false);
                    }
                }
                Message::Granted(token, bytes) => match self.entries.get_mut(&token) {
                    Some(entry) => {
                        let flow = entry.granted(bytes, &mut self.intake);
                        self.go_on(token, flow, false);
                    }
                    None => self.shared.release(bytes),
                },
                Message::Idle(token) => {
                    if self
                        .entries
                        .get(&token)
                        .is_some_and(|e| e.closing() && e.conn.watch_idle())
                    {
                        self.remove(token);
                    }
                }
            }
        }
    }

    fn timers(&mut self) {
        if self.accept_again.is_none() && self.next_scan.is_none() {
            return;
        }
        let now = Instant::now();
        if self.accept_again.is_some_and(|t| t <= now) {
            self.accept_again = None;
            self.listen(EventFlags::IN);
        }
        if self.next_scan.is_none_or(|t| t > now) {
            return;
        }
        let expired_stop = self.stop_at.is_some_and(|t| t <= now);
        let mut active = false;
        let mut expired = Vec::new();
        for (&token, entry) in &mut self.entries {
            match entry.health(&self.shared, now) {
                Health::Expired => expired.push(token),
                _ if expired_stop && entry.conn.look().unsent => expired.push(token),
                Health::Active => active = true,
                Health::Quiet => {}
            }
        }
        for token in expired {
            if let Some(entry) = self.entries.get_mut(&token) {
                entry.close();
            }
            self.remove(token);
            self.shared.count_expired(self.index);
        }
        self.next_scan = active.then(|| now + self.shared.timeouts.scan());
    }

    /// Takes nothing more in; what is in flight goes on.
    fn stop(&mut self) {
        let now = Instant::now();
        self.stop_at = Some(now + self.shared.timeouts.drain);
        // Closes and, for a Unix socket, unlinks.
        self.listener = None;
        self.accept_again = None;
        let tokens: Vec<u64> = self.entries.keys().copied().collect();
        for token in tokens {
            if let Some(entry) = self.entries.get_mut(&token) {
                let reading = entry.reading();
                self.go_on(token, Flow::Close, reading);
            }
        }
        self.activity();
    }
}

impl Drop for Reader {
    /// A reader that ends by an error or a panic takes the server with it: its connections cannot go on.
    fn drop(&mut self) {
        self.shared.stop();
        let tokens: Vec<u64> = self.entries.keys().copied().collect();
        for token in tokens {
            if let Some(entry) = self.entries.get_mut(&token) {
                entry.close();
            }
            self.remove(token);
        }
    }
}
