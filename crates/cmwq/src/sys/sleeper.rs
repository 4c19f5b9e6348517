//! Sleeping until a descriptor becomes readable, somebody calls, or time has passed.
//!
//! A [`crate::sys::parker::Parker`] cannot wait for descriptors; this can, at one descriptor more (an eventfd) and a system call of
//! about 1 us for each call. For service threads, not for workers.

use super::{Subject, SysError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// See the module text. One thread sleeps; anyone may call.
#[derive(Debug)]
pub(crate) struct Sleeper {
    event: OwnedFd,
}

/// Why a sleep ended; several may hold at once, none if the time was over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roused {
    /// Somebody called.
    pub(crate) called: bool,
    /// The descriptor is readable (or broken, which reading it will tell).
    pub(crate) readable: bool,
}

impl Sleeper {
    /// Makes one.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, or a filter.
    pub(crate) fn new() -> Result<Self, SysError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| SysError::new("eventfd2", Subject::None, e))?;
        Ok(Self { event })
    }

    /// Ends the present or the next sleep. Never blocks.
    pub(crate) fn call(&self) {
        // EAGAIN: the counter is full, so a call is pending anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Sleeps until called, `fd` is readable, or `timeout` has passed; none: for ever. A signal does not end it.
    ///
    /// # Errors
    /// `ENOMEM`; the caller must not spin on it.
    pub(crate) fn sleep(
        &self,
        fd: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<Roused, SysError> {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let mut fds = vec![PollFd::new(&self.event, PollFlags::IN)];
        fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(SysError::new("poll", Subject::None, e)),
            }
        }
        let roused = Roused {
            called: !fds[0].revents().is_empty(),
            readable: fds.get(1).is_some_and(|f| !f.revents().is_empty()),
        };
        if roused.called {
            let mut count = [0_u8; 8];
            // EAGAIN cannot be: only this thread reads, and poll said that there is something.
            let _ = rustix::io::read(&self.event, &mut count);
        }
        Ok(roused)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn calls_and_descriptors_end_a_sleep_and_time_does() {
        let s = Sleeper::new().unwrap();
        let other = Sleeper::new().unwrap();
        let brief = Some(Duration::from_millis(1));
        assert_eq!(s.sleep(None, brief).unwrap(), Roused::default());
        s.call();
        s.call();
        assert!(s.sleep(None, None).unwrap().called);
        assert_eq!(
            s.sleep(None, brief).unwrap(),
            Roused::default(),
            "several calls end one sleep"
        );
        other.call();
        let r = s.sleep(Some(other.event.as_fd()), None).unwrap();
        assert_eq!((r.called, r.readable), (false, true));
    }

    #[test]
    fn a_call_from_another_thread_ends_a_sleep() {
        let s = std::sync::Arc::new(Sleeper::new().unwrap());
        let caller = {
            let s = std::sync::Arc::clone(&s);
            std::thread::spawn(move || s.call())
        };
        assert!(s.sleep(None, None).unwrap().called);
        caller.join().unwrap();
    }
}
