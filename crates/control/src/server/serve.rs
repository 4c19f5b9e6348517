//! The server's loop.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};

use super::answer::Service;
use super::conn::{Conn, Fate};
use super::pace::Pace;

/// How long accepting rests after the process ran out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A client that did nothing for this long makes room for a newcomer when the server is full.
const EVICT_AFTER: Duration = Duration::from_secs(1);
/// New connections taken in one turn, so that a flood of them cannot starve those that exist (P3).
const ACCEPTS_PER_TURN: usize = 16;

pub(super) struct Serve {
    service: Service,
    listener: OwnedFd,
    quit: Arc<OwnedFd>,
    max_clients: usize,
    conns: Vec<Conn>,
    accept_after: Option<Instant>,
    pace: Pace,
}

impl Serve {
    pub(super) fn new(
        service: Service,
        listener: OwnedFd,
        quit: Arc<OwnedFd>,
        max_clients: usize,
    ) -> Self {
        Serve {
            service,
            listener,
            quit,
            max_clients,
            conns: Vec::new(),
            accept_after: None,
            pace: Pace::new(),
        }
    }

    /// Serves until told to quit.
    pub(super) fn run(mut self) {
        // Made by another thread: from here on it is this one's clock that counts.
        self.pace = Pace::new();
        while self.turn() {}
        for conn in self.conns.drain(..) {
            conn.close(&self.service);
        }
    }

    /// Waits for something to do and does it; false when told to quit.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        let rest = self.pace.rest(now);
        let accepting = rest.is_none() && self.accept_after.is_none_or(|after| now >= after);
        let listen_for = if accepting {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = Vec::with_capacity(self.conns.len() + 2);
        fds.push(PollFd::new(&*self.quit, PollFlags::IN));
        fds.push(PollFd::new(&self.listener, listen_for));
        fds.extend(
            self.conns
                .iter()
                .map(|c| PollFd::new(&c.fd, c.interest(now, rest.is_some()))),
        );
        let deadline = self.conns.iter().filter_map(|c| c.deadline(now, rest));
        let deadline = deadline
            .chain(self.accept_after.filter(|_| !accepting))
            .chain(rest)
            .min();
        let timeout = deadline.map(|d| timespec(d.saturating_duration_since(now)));
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return true,
            Err(_) => {
                // Out of memory in the kernel: nothing can be done but to try again, not too fast.
                drop(fds);
                std::thread::sleep(ACCEPT_PAUSE);
                return true;
            }
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !ready[0].is_empty() {
            return false;
        }
        let mut now = Instant::now();
        let mut kept = Vec::with_capacity(self.conns.len());
        let mut next = None;
        for (mut conn, ready) in self.conns.drain(..).zip(&ready[2..]) {
            let resting = self.pace.rest(now).is_some();
            match conn.turn(*ready, &self.service, now, resting) {
                Fate::Keep => {
                    if resting && next.is_none() && conn.wants_answer(now) {
                        next = Some(kept.len());
                    }
                    kept.push(conn);
                }
                Fate::Close => conn.close(&self.service),
            }
            now = Instant::now();
        }
        // Who was not answered for lack of time is the first to be so afterwards.
        kept.rotate_left(next.unwrap_or(0));
        self.conns = kept;
        if accepting {
            self.accept_after = None;
            if !ready[1].is_empty() {
                self.accept(now);
            }
        }
        true
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            match rustix::net::accept_with(
                &self.listener,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(fd) => self.admit(fd, now),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    self.accept_after = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Lets a newcomer in, if it is this user or root and there is room.
    fn admit(&mut self, fd: OwnedFd, now: Instant) {
        match crate::peer::of(&fd) {
            Ok(peer) if crate::peer::is_trusted(peer.uid) => {}
            // Somebody else's, or unknown: no word to them.
            _ => return,
        }
        if self.conns.len() >= self.max_clients {
            let oldest = (0..self.conns.len())
                .filter(|&i| self.conns[i].is_idle())
                .min_by_key(|&i| self.conns[i].active);
            match oldest.filter(|&i| now >= self.conns[i].active + EVICT_AFTER) {
                Some(i) => self.conns.swap_remove(i).close(&self.service),
                None => {
                    // Best effort: the newcomer is dropped either way.
                    let _ = rustix::net::send(
                        &fd,
                        &self.service.turn_away(self.conns.len()),
                        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
                    );
                    return;
                }
            }
        }
        self.conns.push(Conn::new(fd, now));
    }
}

/// Rounded up to the next millisecond, so that a deadline has passed when poll returns.
fn timespec(duration: Duration) -> Timespec {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    Timespec {
        tv_sec: seconds,
        tv_nsec: (ms % 1000) as i64 * 1_000_000,
    }
}
