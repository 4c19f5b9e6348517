//! One connection: bounded buffers, deadlines, a share of the server's turns.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::answer::{Service, Session};
use crate::protocol::{FrameBuffer, MAX_REQUEST};

/// How long a client may take until `hello`.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the rest of a begun request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may leave a reply untouched.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of one client are counted over windows of this length ...
const WINDOW: Duration = Duration::from_millis(100);
/// ... and those beyond this number wait for the next window.
const REQUESTS_PER_WINDOW: u32 = 64;
/// The most that is read in one turn.
const READ_CHUNK: usize = 16 << 10;

pub(super) struct Conn {
    pub(super) fd: OwnedFd,
    input: FrameBuffer,
    output: Vec<u8>,
    sent: usize,
    session: Session,
    /// Close once the output is sent.
    last_words: bool,
    opened: Instant,
    /// When the first byte of an incomplete request came.
    begun: Option<Instant>,
    /// When the client last did something.
    pub(super) active: Instant,
    window: Instant,
    in_window: u32,
}

/// What becomes of a connection after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    Close,
}

impl Conn {
    pub(super) fn new(fd: OwnedFd, now: Instant) -> Self {
        Conn {
            fd,
            input: FrameBuffer::new(MAX_REQUEST),
            output: Vec::new(),
            sent: 0,
            session: Session::default(),
            last_words: false,
            opened: now,
            begun: None,
            active: now,
            window: now,
            in_window: 0,
        }
    }

    /// What to wait for. While a reply is not taken, nothing more is read (P2); nor while the server rests (P6).
    pub(super) fn interest(&self, now: Instant, resting: bool) -> PollFlags {
        if !self.output.is_empty() {
            PollFlags::OUT
        } else if resting || self.throttled(now) || self.input.is_full() {
            PollFlags::empty()
        } else {
            PollFlags::IN
        }
    }

    /// When this connection next needs a turn even if nothing arrives. `rest`: until when the server rests.
    pub(super) fn deadline(&self, now: Instant, rest: Option<Instant>) -> Option<Instant> {
        if !self.output.is_empty() {
            Some(self.active + REPLY_TIMEOUT)
        } else if self.input.has_frame() {
            let window = self.throttled(now).then_some(self.window + WINDOW);
            Some(window.max(rest).unwrap_or(now))
        } else if rest.is_some() {
            rest
        } else if self.throttled(now) {
            Some(self.window + WINDOW)
        } else if !self.session.greeted {
            Some(self.opened + HELLO_TIMEOUT)
        } else {
            self.begun.map(|begun| begun + REQUEST_TIMEOUT)
        }
    }

    /// Whether it is between requests, so that closing it loses nothing but a connection.
    pub(super) fn is_idle(&self) -> bool {
        self.output.is_empty() && self.input.is_empty() && !self.session.tracing
    }

    fn throttled(&self, now: Instant) -> bool {
        self.in_window >= REQUESTS_PER_WINDOW && now < self.window + WINDOW
    }

    /// Whether a request is there that could be answered now.
    pub(super) fn wants_answer(&self, now: Instant) -> bool {
        self.output.is_empty() && self.input.has_frame() && !self.throttled(now)
    }

    /// One turn: sends, reads, answers at most one request (P3), and none while the server is `resting` (P6).
    pub(super) fn turn(
        &mut self,
        ready: PollFlags,
        service: &Service,
        now: Instant,
        resting: bool,
    ) -> Fate {
        if ready.intersects(PollFlags::ERR | PollFlags::NVAL | PollFlags::HUP) {
            return Fate::Close;
        }
        if ready.contains(PollFlags::OUT) && self.flush(now) == Fate::Close {
            return Fate::Close;
        }
        if ready.contains(PollFlags::IN) && self.read(now) == Fate::Close {
            return Fate::Close;
        }
        if self.output.is_empty() && !resting && !self.throttled(now) {
            match self.input.next_frame() {
                Ok(Some(body)) => self.respond(&body, service, now),
                Ok(None) => {}
                Err(why) => {
                    self.output = service.refuse(&why);
                    self.last_words = true;
                }
            }
            if !self.output.is_empty() && self.flush(now) == Fate::Close {
                return Fate::Close;
            }
        }
        self.begun = match self.begun {
            _ if self.input.is_empty() || self.input.has_frame() || !self.output.is_empty() => None,
            None => Some(now),
            begun => begun,
        };
        self.check_deadlines(now)
    }

    fn check_deadlines(&self, now: Instant) -> Fate {
        let late = if self.output.is_empty() {
            self.begun
                .is_some_and(|begun| now >= begun + REQUEST_TIMEOUT)
                || (!self.session.greeted
                    && !self.input.has_frame()
                    && now >= self.opened + HELLO_TIMEOUT)
        } else {
            now >= self.active + REPLY_TIMEOUT
        };
        if late { Fate::Close } else { Fate::Keep }
    }

    fn respond(&mut self, body: &[u8], service: &Service, now: Instant) {
        if now >= self.window + WINDOW {
            (self.window, self.in_window) = (now, 0);
        }
        self.in_window += 1;
        let (reply, goes_on) = service.answer(body, &mut self.session);
        (self.output, self.sent) = (reply, 0);
        self.last_words = !goes_on;
        self.active = now;
        if self.output.is_empty() {
            self.last_words = true;
        }
    }

    fn read(&mut self, now: Instant) -> Fate {
        let mut chunk = [0_u8; READ_CHUNK];
        match rustix::net::recv(&self.fd, &mut chunk[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Fate::Close,
            Ok((n, _)) => {
                self.input.push(&chunk[..n.min(READ_CHUNK)]);
                self.active = now;
                Fate::Keep
            }
            Err(Errno::AGAIN | Errno::INTR) => Fate::Keep,
            Err(_) => Fate::Close,
        }
    }

    fn flush(&mut self, now: Instant) -> Fate {
        while self.sent < self.output.len() {
            // No SIGPIPE: the program may be one that has not turned it off.
            match rustix::net::send(
                &self.fd,
                &self.output[self.sent..],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(0) => return Fate::Close,
                Ok(n) => {
                    self.sent += n;
                    self.active = now;
                }
                Err(Errno::AGAIN) => return Fate::Keep,
                Err(Errno::INTR) => {}
                Err(_) => return Fate::Close,
            }
        }
        // A big reply's memory is not kept for the next one.
        (self.output, self.sent) = (Vec::new(), 0);
        if self.last_words {
            Fate::Close
        } else {
            Fate::Keep
        }
    }

    /// The connection ends.
    pub(super) fn close(self, service: &Service) {
        service.close(&self.session);
    }
}
