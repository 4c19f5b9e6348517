//! Making threads, and what happens when the system will not.
//!
//! Workers are made by one spawner thread, outside all locks. What can go wrong is a value, never a panic: see
//! [`SpawnError`]. Tests and simulations put a [`ThreadFactory`] of their own in between and refuse what they like.
//!
//! # Signals
//! A thread inherits the signal mask of its maker. Workers must not be the ones that the kernel picks for a signal sent to
//! the process: the application's own threads expect them, and a handler on a worker would interrupt an item. So while a
//! worker is made, its maker blocks every signal except:
//! - those that a thread raises by its own doing (`SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`, `SIGTRAP`, `SIGSYS`, `SIGABRT`):
//!   blocked, they would kill the process without the application's crash handler being asked;
//! - `SIGPROF`: sampling profilers want workers too.
//!
//! The C library keeps its internal signals (thread cancellation, `setuid` across threads) open by itself. A child process
//! that an item starts inherits the worker's mask; `std::process::Command` empties the mask in the child, `fork` + `exec` by
//! hand must do so itself.

use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;

/// Why a thread could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpawnError {
    /// A limit on threads (`RLIMIT_NPROC`, `pids.max`, `threads-max`) or memory for the kernel's part: `EAGAIN`. It may pass.
    Limit,
    /// No memory for the stack: `ENOMEM`. It may pass.
    Memory,
    /// Stack size or name are not acceptable: `EINVAL`. It will not pass.
    Invalid,
    /// Not permitted: `EPERM`, as by a filter. It will hardly pass.
    Refused,
    /// The runtime's own ceiling on threads is reached. It may pass.
    Ceiling,
    /// Another error number.
    Other(i32),
}

impl SpawnError {
    /// Sorts an error of `std::thread::Builder::spawn`.
    pub(crate) fn from_io(e: &io::Error) -> Self {
        match e.raw_os_error() {
            Some(libc::EAGAIN) => Self::Limit,
            Some(libc::ENOMEM) => Self::Memory,
            Some(libc::EINVAL) => Self::Invalid,
            Some(libc::EPERM | libc::EACCES) => Self::Refused,
            Some(n) => Self::Other(n),
            None => match e.kind() {
                io::ErrorKind::WouldBlock => Self::Limit,
                io::ErrorKind::OutOfMemory => Self::Memory,
                io::ErrorKind::InvalidInput => Self::Invalid,
                io::ErrorKind::PermissionDenied => Self::Refused,
                _ => Self::Other(0),
            },
        }
    }

    /// Trying again later can help.
    pub(crate) fn is_transient(self) -> bool {
        matches!(self, Self::Limit | Self::Memory)
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit => f.write_str("a limit on threads is reached (EAGAIN)"),
            Self::Memory => f.write_str("no memory for a thread's stack (ENOMEM)"),
            Self::Invalid => {
                f.write_str("the thread's stack size or name is not acceptable (EINVAL)")
            }
            Self::Refused => f.write_str("making threads is not permitted (EPERM)"),
            Self::Ceiling => {
                f.write_str("the runtime's own ceiling on threads (max_threads) is reached")
            }
            Self::Other(n) => write!(
                f,
                "making a thread failed: {}",
                io::Error::from_raw_os_error(*n)
            ),
        }
    }
}

impl std::error::Error for SpawnError {}

/// What a thread is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadSpec {
    /// Its name; cut to what the kernel keeps.
    pub(crate) name: String,
    /// Bytes of stack; `None`: the standard library's default (2 MiB or `RUST_MIN_STACK`).
    pub(crate) stack: Option<usize>,
}

/// What the thread does.
pub(crate) type ThreadBody = Box<dyn FnOnce() + Send + 'static>;

/// Makes a thread or says why not. If it fails, the body is dropped without having run.
///
/// [`default_factory`] makes real ones. A test's factory may count, delay, refuse, or run the body elsewhere.
pub(crate) type ThreadFactory =
    Arc<dyn Fn(&ThreadSpec, ThreadBody) -> Result<(), SpawnError> + Send + Sync>;

/// [`spawn_detached`] as a factory.
pub(crate) fn default_factory() -> ThreadFactory {
    Arc::new(spawn_detached)
}

/// Makes a thread that nobody joins, with application signals blocked. The call takes 10-20 us; the body runs 10-40 us later.
/// Does not wait for it. A panic of the body ends the thread (and prints, as the panic hook says); bodies catch their own.
///
/// # Errors
/// See [`SpawnError`]; the body is dropped.
pub(crate) fn spawn_detached(spec: &ThreadSpec, body: ThreadBody) -> Result<(), SpawnError> {
    let name = super::cpu::fit_name(&spec.name);
    let mut builder = std::thread::Builder::new().name(name.to_owned());
    if let Some(stack) = spec.stack {
        // Above this std would overflow while rounding up to a page, and no address space holds it.
        if stack > isize::MAX as usize / 2 {
            return Err(SpawnError::Invalid);
        }
        builder = builder.stack_size(stack);
    }
    let mask = BlockedSignals::new();
    let result = builder.spawn(body);
    drop(mask);
    match result {
        Ok(handle) => {
            drop(handle);
            Ok(())
        }
        Err(e) => Err(SpawnError::from_io(&e)),
    }
}

/// Signals that stay open on workers; see the module.
pub(crate) const OPEN_SIGNALS: [i32; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
    libc::SIGPROF,
];

/// While it lives, the calling thread takes no application signals, nor will threads that it makes. Two system calls.
/// Stays on the thread that made it.
pub(crate) struct BlockedSignals {
    /// The mask to go back to; `None` if the change was refused, which only means that signals may arrive.
    before: Option<libc::sigset_t>,
    _here: std::marker::PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks.
    pub(crate) fn new() -> Self {
        // SAFETY: sigset_t is plain integers, and sigfillset initialises all of it.
        let mut block: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut before: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: both sets are live; OPEN_SIGNALS are valid numbers. SIG_BLOCK adds, so what the caller had blocked stays so.
        let rc = unsafe {
            libc::sigfillset(&raw mut block);
            for signal in OPEN_SIGNALS {
                libc::sigdelset(&raw mut block, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const block, &raw mut before)
        };
        Self {
            before: (rc == 0).then_some(before),
            _here: std::marker::PhantomData,
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: a set that the kernel gave us, put back on the same thread (the type is not Send).
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
            };
        }
    }
}

/// Whether the calling thread has `signal` blocked.
pub(crate) fn is_blocked(signal: i32) -> bool {
    // SAFETY: sigset_t is plain integers; with a null set the call only writes the current mask into it.
    unsafe {
        let mut now: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut now) == 0
            && libc::sigismember(&raw const now, signal) == 1
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn spec(name: &str) -> ThreadSpec {
        ThreadSpec {
            name: name.into(),
            stack: Some(256 << 10),
        }
    }

    #[test]
    fn workers_take_no_application_signals_but_their_own_faults_and_the_profiler() {
        let (send, got) = channel();
        let before = is_blocked(libc::SIGTERM);
        let body = move || {
            let blocked: Vec<i32> = (1..libc::SIGSYS + 1).filter(|s| is_blocked(*s)).collect();
            send.send((crate::sys::cpu::own_name().unwrap(), blocked))
                .unwrap();
        };
        spawn_detached(&spec("cmwq/test:with a long name"), Box::new(body)).unwrap();
        let (name, blocked) = got.recv().unwrap();
        assert_eq!(name, "cmwq/test:with ");
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGCHLD,
            libc::SIGUSR1,
            libc::SIGALRM,
        ] {
            assert!(blocked.contains(&signal), "{signal} open: {blocked:?}");
        }
        for signal in OPEN_SIGNALS {
            assert!(!blocked.contains(&signal), "{signal} blocked");
        }
        assert_eq!(
            is_blocked(libc::SIGTERM),
            before,
            "the maker's own mask is as before"
        );
    }

    #[test]
    fn an_absurd_stack_is_an_error_and_the_body_is_dropped() {
        struct Dropped(std::sync::mpsc::Sender<()>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let before = is_blocked(libc::SIGTERM);
        for stack in [usize::MAX, 1 << 62, 1 << 50] {
            let (send, dropped) = channel();
            let token = Dropped(send);
            let body = Box::new(move || {
                let _token = &token;
                unreachable!("must not run");
            });
            let e = spawn_detached(
                &ThreadSpec {
                    name: "x".into(),
                    stack: Some(stack),
                },
                body,
            )
            .unwrap_err();
            assert!(
                matches!(
                    e,
                    SpawnError::Limit | SpawnError::Memory | SpawnError::Invalid
                ),
                "{stack:#x}: {e}"
            );
            dropped.recv().unwrap();
        }
        assert_eq!(
            is_blocked(libc::SIGTERM),
            before,
            "the mask is put back on failure too"
        );
    }

    #[test]
    fn a_factory_can_refuse_at_any_point() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let real = default_factory();
        let flaky: ThreadFactory = Arc::new(move |spec, body| {
            if count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                Err(SpawnError::Limit)
            } else {
                real(spec, body)
            }
        });
        let (send, ran) = channel();
        for i in 0..6 {
            let send = send.clone();
            let result = flaky(&spec("t"), Box::new(move || send.send(i).unwrap()));
            assert_eq!(
                result,
                if i % 2 == 0 {
                    Err(SpawnError::Limit)
                } else {
                    Ok(())
                }
            );
        }
        drop(send);
        let mut ran: Vec<i32> = ran.iter().collect();
        ran.sort_unstable();
        assert_eq!(ran, [1, 3, 5]);
    }

    #[test]
    fn error_numbers_become_kinds() {
        let kind = |n| SpawnError::from_io(&io::Error::from_raw_os_error(n));
        assert_eq!(kind(libc::EAGAIN), SpawnError::Limit);
        assert_eq!(kind(libc::ENOMEM), SpawnError::Memory);
        assert_eq!(kind(libc::EINVAL), SpawnError::Invalid);
        assert_eq!(kind(libc::EPERM), SpawnError::Refused);
        assert_eq!(kind(libc::EIO), SpawnError::Other(libc::EIO));
        assert_eq!(
            SpawnError::from_io(&io::Error::other("?")),
            SpawnError::Other(0)
        );
        assert!(SpawnError::Limit.is_transient() && SpawnError::Memory.is_transient());
        assert!(!SpawnError::Invalid.is_transient() && !SpawnError::Refused.is_transient());
    }
}
