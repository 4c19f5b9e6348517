//! Noticing that this process is a forked child, by one load.
//!
//! After `fork` only the calling thread lives on: pools are described in memory but have no threads. Each runtime takes a
//! [`ForkStamp`] when it is made and asks [`ForkStamp::is_stale`] at its one choke point.
//!
//! The mark lies in a page of its own that the kernel wipes in a forked child (`MADV_WIPEONFORK`, Linux 4.14): the child
//! reads zero, whichever way it was forked (`fork`, `clone` by hand, `_Fork`). Where the kernel refuses, a handler of
//! `pthread_atfork` changes the mark, which covers `fork` only.
//!
//! Not noticed, because memory is shared and not copied: `vfork` and `clone(CLONE_VM)` until they `exec`. Such a child must
//! not call us, and nothing that it may lawfully do calls us.
//!
//! A child that makes a runtime of its own gets a new mark ([`ForkStamp::new`]); the inherited runtime stays stale for ever.

use crate::shim::leaf::{Mutex, PoisonError};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// How forks are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkDetection {
    /// A page that is wiped in the child.
    WipedPage,
    /// A handler that runs in the child after `fork`.
    Handler,
    /// Neither could be had (out of memory at first use): forks go unnoticed.
    Absent,
}

/// Made in one process; stale in every process forked from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkStamp {
    mark: &'static AtomicU32,
    value: u32,
}

struct Mark {
    word: &'static AtomicU32,
    how: ForkDetection,
}

/// The highest value that was ever put into the mark by this process or its forebears; 0 is the wiped page's.
static LAST: Mutex<u32> = Mutex::new(0);
/// Where the mark is: the wiped page, or `HANDLED`; null before first use.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The handler is in place.
static REGISTERED: AtomicBool = AtomicBool::new(false);
/// The mark where pages are not wiped. The handler zeroes it.
static HANDLED: AtomicU32 = AtomicU32::new(0);

impl ForkStamp {
    /// A stamp for this process. The first one maps a page; later ones read. Never blocks, not even in a child that was forked
    /// while another thread was in here.
    pub(crate) fn new() -> Self {
        let mark = mark();
        let value = mark.word.load(Ordering::Relaxed);
        let value = if value == 0 { renew(mark.word) } else { value };
        Self {
            mark: mark.word,
            value,
        }
    }

    /// This process is not the one that made the stamp. One load and a compare, about 0.3 ns.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.mark.load(Ordering::Relaxed) != self.value
    }
}

impl ForkStamp {
    /// A number for [`is_from_here`]: other than zero.
    pub(crate) fn value(&self) -> u32 {
        self.value
    }
}

/// Whether a stamp of that [`value`](ForkStamp::value) was made in this process.
pub(crate) fn is_from_here(value: u32) -> bool {
    mark().word.load(Ordering::Relaxed) == value
}

/// How forks are noticed in this process.
pub(crate) fn detection() -> ForkDetection {
    mark().how
}

/// Puts a value into the mark that it never had, in this process or those before it.
fn renew(word: &AtomicU32) -> u32 {
    // A child has one thread, so the lock can only be taken by a thread that does not exist here; then the number is not
    // guarded by anything and the process id, different from that of every living forebear, takes its place.
    let next = match LAST.try_lock() {
        Ok(mut last) => {
            *last = last.wrapping_add(1).max(1);
            *last
        }
        Err(std::sync::TryLockError::Poisoned(p)) => {
            let mut last = PoisonError::into_inner(p);
            *last = last.wrapping_add(1).max(1);
            *last
        }
        Err(std::sync::TryLockError::WouldBlock) => 0x8000_0000 | std::process::id(),
    };
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(found) => found,
    }
}

fn mark() -> Mark {
    // Ordering: Acquire pairs with the Release below: whoever sees the word sees the page behind it set up.
    let word = WORD.load(Ordering::Acquire);
    let word = if word.is_null() { first_mark() } else { word };
    if word == ptr::from_ref(&HANDLED).cast_mut() {
        let how = if REGISTERED.load(Ordering::Relaxed) {
            ForkDetection::Handler
        } else {
            ForkDetection::Absent
        };
        return Mark {
            word: &HANDLED,
            how,
        };
    }
    // SAFETY: not `HANDLED`, so it is the page of `wiped_page`, which is never unmapped once it is in `WORD`.
    let word = unsafe { &*word };
    Mark {
        word,
        how: ForkDetection::WipedPage,
    }
}

/// Sets the mark up, without a lock: a fork in the middle of this, by another thread, must not leave one locked for good.
#[cold]
fn first_mark() -> *mut AtomicU32 {
    let page = wiped_page();
    let word = page.unwrap_or_else(|| {
        // SAFETY: registers a handler that does one atomic store, which is allowed in a forked child. Two threads may both
        // register it; clearing twice does no harm.
        if unsafe { libc::pthread_atfork(None, None, Some(clear_handled)) } == 0 {
            REGISTERED.store(true, Ordering::Relaxed);
        }
        ptr::from_ref(&HANDLED).cast_mut()
    });
    // Ordering: Release pairs with the Acquire in `mark`; Acquire on failure for the same reason as there.
    match WORD.compare_exchange(ptr::null_mut(), word, Ordering::Release, Ordering::Acquire) {
        Ok(_) => word,
        Err(theirs) => {
            if let Some(page) = page {
                // SAFETY: our own page, which nobody has seen.
                unsafe { libc::munmap(page.cast(), page_size()) };
            }
            theirs
        }
    }
}

extern "C" fn clear_handled() {
    HANDLED.store(0, Ordering::Relaxed);
}

/// A page that is never unmapped, zero now and zero again in every forked child.
fn wiped_page() -> Option<*mut AtomicU32> {
    let size = page_size();
    // SAFETY: a fresh private anonymous mapping; no existing memory is touched.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping above, whole. Failure (EINVAL before Linux 4.14) leaves it as it is.
    if unsafe { libc::madvise(page, size, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: our own mapping, to which no reference exists yet.
        unsafe { libc::munmap(page, size) };
        return None;
    }
    Some(page.cast())
}

fn page_size() -> usize {
    // SAFETY: plain query.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Runs `f` in a forked child, which must only do what is allowed between fork and exit with other threads around;
    /// the bits it returns come back as the exit status.
    fn in_child(f: impl Fn() -> u8) -> u8 {
        // SAFETY: the child calls `f` and `_exit`; the callers' closures do loads, a try_lock and integer arithmetic.
        unsafe {
            let pid = libc::fork();
            assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
            if pid == 0 {
                libc::_exit(f().into());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert!(libc::WIFEXITED(status), "child ended by {status:#x}");
            u8::try_from(libc::WEXITSTATUS(status)).unwrap()
        }
    }

    #[test]
    fn a_stamp_is_stale_in_the_child_and_only_there() {
        let stamp = ForkStamp::new();
        println!("{:?}", detection());
        assert!(!stamp.is_stale());
        let bits = in_child(|| {
            let inherited = stamp.is_stale();
            // A runtime of the child's own works, and does not revive the inherited one.
            let own = ForkStamp::new();
            let grandchild =
                in_child(|| u8::from(own.is_stale()) | u8::from(stamp.is_stale()) << 1);
            u8::from(inherited)
                | u8::from(!own.is_stale()) << 1
                | u8::from(stamp.is_stale()) << 2
                | grandchild << 3
        });
        assert_eq!(bits, 0b1_1111);
        assert!(!stamp.is_stale());
        assert!(!ForkStamp::new().is_stale());
        assert_eq!(ForkStamp::new().value, stamp.value);
    }

    #[test]
    fn a_clone_without_the_c_library_is_noticed_too() {
        if detection() != ForkDetection::WipedPage {
            println!("skipped: the kernel does not wipe pages on fork");
            return;
        }
        let stamp = ForkStamp::new();
        // SAFETY: a plain fork by system call; the child does a load and exits.
        unsafe {
            let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            assert!(pid >= 0, "clone: {}", std::io::Error::last_os_error());
            if pid == 0 {
                libc::_exit(i32::from(stamp.is_stale()));
            }
            let mut status = 0;
            libc::waitpid(i32::try_from(pid).unwrap(), &raw mut status, 0);
            assert!(
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1,
                "{status:#x}"
            );
        }
    }

    #[test]
    fn the_fallback_handler_does_its_work() {
        // SAFETY: as in `first_mark`.
        let rc = unsafe { libc::pthread_atfork(None, None, Some(clear_handled)) };
        assert_eq!(rc, 0);
        let value = renew(&HANDLED);
        let stamp = ForkStamp {
            mark: &HANDLED,
            value,
        };
        assert!(!stamp.is_stale());
        assert_eq!(in_child(|| u8::from(stamp.is_stale())), 1);
        assert!(!stamp.is_stale());
    }

    #[test]
    fn a_lock_held_at_the_fork_does_not_hang_the_child() {
        let stamp = ForkStamp::new();
        let held = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let bits = in_child(|| {
            let own = ForkStamp::new();
            u8::from(own.value != stamp.value) | u8::from(!own.is_stale()) << 1
        });
        drop(held);
        assert_eq!(bits, 3);
    }
}
