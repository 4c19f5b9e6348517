//! A 32-bit word that threads of this process can sleep on.
//!
//! Waits may return [`Wait::Woken`] without a wake-up (another thread's late wake-up, an address that was a futex before):
//! callers check their own condition in a loop. Interrupted waits go on by themselves, against the same deadline.
//!
//! If the kernel refuses the call altogether (a seccomp filter without `futex`), a wait sleeps at most a millisecond and
//! reports a spurious wake-up: the caller's loop then polls, slowly but correctly.

use std::time::Duration;

/// When a wait gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// Never.
    Never,
    /// This long from now.
    After(Duration),
    /// When `CLOCK_MONOTONIC` reads this much.
    AtMonotonic(Duration),
}

/// Why a wait returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A wake-up, or for no reason at all.
    Woken,
    /// The word did not hold the expected value, so there was no sleep.
    Changed,
    /// The deadline passed.
    TimedOut,
}

#[cfg(any(loom, shuttle))]
pub(crate) use super::futex_model::{Futex, FutexWaker};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use real::{Futex, FutexWaker};

#[cfg(not(any(loom, shuttle)))]
mod real {
    use std::ptr;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::{Timeout, Wait};
    use crate::sys::clock::monotonic;

    /// The word. Private to this process: must not lie in memory shared with another one.
    #[derive(Debug)]
    pub(crate) struct Futex(AtomicU32);

    /// Wakes waiters of a [`Futex`] that may already be gone, which is why it is only an address.
    ///
    /// If the memory was put to another use meanwhile, at worst a waiter there wakes for no reason, which every futex user
    /// has to bear anyway; if it was unmapped, the kernel says so and nothing happens.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct FutexWaker(usize);

    impl Futex {
        /// A word that holds `value`.
        pub(crate) const fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// The word itself.
        #[inline]
        pub(crate) fn word(&self) -> &AtomicU32 {
            &self.0
        }

        /// Sleeps while the word holds `expected`. The check and the going to sleep are one step for wakers. Blocks.
        pub(crate) fn wait(&self, expected: u32, timeout: Timeout) -> Wait {
            let deadline = match timeout {
                Timeout::Never => None,
                Timeout::After(d) => monotonic().checked_add(d).and_then(to_timespec),
                Timeout::AtMonotonic(t) => to_timespec(t),
            };
            let deadline = deadline.as_ref().map_or(ptr::null(), ptr::from_ref);
            loop {
                // SAFETY: the word is alive for the whole call (`&self`), the timespec (or null) too; the kernel reads both
                // and writes neither. FUTEX_WAIT_BITSET takes its deadline as an absolute CLOCK_MONOTONIC time.
                let rc = unsafe {
                    libc::syscall(
                        libc::SYS_futex,
                        self.0.as_ptr(),
                        libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
                        expected,
                        deadline,
                        ptr::null::<u32>(),
                        libc::FUTEX_BITSET_MATCH_ANY,
                    )
                };
                if rc == 0 {
                    return Wait::Woken;
                }
                match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::EAGAIN) => return Wait::Changed,
                    Some(libc::ETIMEDOUT) => return Wait::TimedOut,
                    Some(libc::EINTR) => {}
                    _ => {
                        std::thread::sleep(Duration::from_millis(1));
                        return match timeout {
                            Timeout::AtMonotonic(t) if monotonic() >= t => Wait::TimedOut,
                            Timeout::After(d) if d <= Duration::from_millis(1) => Wait::TimedOut,
                            _ => Wait::Woken,
                        };
                    }
                }
            }
        }

        /// Wakes up to `count` waiters; how many were woken. About 250 ns with nobody waiting.
        pub(crate) fn wake(&self, count: u32) -> u32 {
            self.waker().wake(count)
        }

        /// A handle that can wake after `self` is gone.
        #[inline]
        pub(crate) fn waker(&self) -> FutexWaker {
            FutexWaker(self.0.as_ptr().addr())
        }
    }

    impl FutexWaker {
        /// As [`Futex::wake`].
        pub(crate) fn wake(self, count: u32) -> u32 {
            // SAFETY: FUTEX_WAKE uses the address as a key only and dereferences nothing on our behalf; a stale address is
            // harmless as described on the type.
            let woken = unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0,
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    i32::try_from(count).unwrap_or(i32::MAX),
                )
            };
            // An error (an unmapped page, a filter) woke nobody; waiters of a filtered futex poll, see the module.
            u32::try_from(woken).unwrap_or(0)
        }
    }

    /// `None` for a time beyond what the kernel can express: never.
    fn to_timespec(t: Duration) -> Option<libc::timespec> {
        // The kernel's own limit is 2^63 ns.
        let secs = i64::try_from(t.as_secs())
            .ok()
            .filter(|s| *s < i64::MAX / 1_000_000_000)?;
        Some(libc::timespec {
            tv_sec: secs,
            tv_nsec: t.subsec_nanos().into(),
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
