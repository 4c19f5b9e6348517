//! What a refused system call looks like to the rest of the runtime.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// A system call that was refused: which one, for what, and why.
///
/// The runtime never panics on one. Each caller says in its own documentation what it does instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SysError {
    call: &'static str,
    subject: Subject,
    errno: Errno,
}

/// What the call was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Nothing in particular, or the calling thread.
    None,
    /// The thread with this id.
    Thread(i32),
    /// The CPU with this number.
    Cpu(u32),
    /// This file.
    File(String),
}

impl SysError {
    /// `call` about `subject` failed with `errno`.
    pub(crate) fn new(call: &'static str, subject: Subject, errno: Errno) -> Self {
        Self {
            call,
            subject,
            errno,
        }
    }

    /// As [`SysError::new`], with the calling thread's `errno`; to be called right after the failed call.
    pub(crate) fn last(call: &'static str, subject: Subject) -> Self {
        Self::from_io(call, subject, &io::Error::last_os_error())
    }

    /// As [`SysError::new`]; an error without a number counts as `EIO`.
    pub(crate) fn from_io(call: &'static str, subject: Subject, error: &io::Error) -> Self {
        Self::new(
            call,
            subject,
            Errno::from_io_error(error).unwrap_or(Errno::IO),
        )
    }

    /// The error number.
    pub(crate) fn errno(&self) -> Errno {
        self.errno
    }

    /// The call's name.
    pub(crate) fn call(&self) -> &'static str {
        self.call
    }

    /// The privilege for it is missing, or a filter (seccomp) forbids it. Trying again does not help.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS)
    }

    /// The thread or file that it was about is gone.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.errno, Errno::SRCH | Errno::NOENT)
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::None => write!(f, "{}", self.call)?,
            Subject::Thread(tid) => write!(f, "{} of thread {tid}", self.call)?,
            Subject::Cpu(cpu) => write!(f, "{} for CPU {cpu}", self.call)?,
            Subject::File(path) => write!(f, "{} of {path}", self.call)?,
        }
        write!(f, ": {}", self.errno)
    }
}

impl std::error::Error for SysError {}

impl From<SysError> for io::Error {
    fn from(e: SysError) -> Self {
        io::Error::new(io::Error::from(e.errno).kind(), e)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn names_the_call_the_subject_and_the_reason() {
        let e = SysError::new("sched_setaffinity", Subject::Thread(12), Errno::SRCH);
        assert!(
            e.to_string()
                .starts_with("sched_setaffinity of thread 12: "),
            "{e}"
        );
        assert!(e.is_gone() && !e.is_refused());
        let io: io::Error = SysError::new("perf_event_open", Subject::Cpu(3), Errno::ACCESS).into();
        assert_eq!(io.kind(), io::ErrorKind::PermissionDenied);
        assert!(io.to_string().contains("CPU 3"));
    }
}
