//! What a sentinel does to itself: idle class for good, one CPU at a time.
//!
//! A sentinel enters `SCHED_IDLE` once and never leaves it, because leaving needs a privilege. It is pinned while it watches
//! a CPU, and unpinned before anyone waits for it: a pinned idle-class thread may not run for as long as others keep its CPU
//! busy, so a shutdown that waited for it could take for ever.

use super::cpu::{self, Policy};
use super::{Subject, SysError};

/// Puts the calling thread into the idle class. There is no way back without privilege.
///
/// # Errors
/// `EPERM` under a filter. The caller must then not act as a sentinel at all: in the normal class it would compete with the
/// workers that it watches.
pub(crate) fn enter_idle_class() -> Result<(), SysError> {
    cpu::set_policy(0, Policy::Idle)
}

/// Binds thread `tid` (0: the caller) to one CPU.
///
/// # Errors
/// `EINVAL`: `cpu` is offline, outside the cpuset, or beyond 8191. `ESRCH`: no such thread.
pub(crate) fn pin(tid: i32, cpu: u32) -> Result<(), SysError> {
    let mask = cpu::single(cpu).ok_or_else(|| {
        SysError::new(
            "sched_setaffinity",
            Subject::Cpu(cpu),
            rustix::io::Errno::INVAL,
        )
    })?;
    cpu::set_affinity(tid, &mask)
}

/// Lets thread `tid` run on any CPU that the process's cpuset has, so that it can be waited for. The mask is all ones, not
/// one that was read: the kernel intersects it with the cpuset, now and whenever that changes.
///
/// # Errors
/// `ESRCH`: no such thread, which also means that there is nothing left to wait for.
pub(crate) fn unpin(tid: i32) -> Result<(), SysError> {
    cpu::set_affinity(tid, &[u64::MAX; cpu::MAX_MASK_WORDS])
}

/// Gives the CPU to whoever else wants it. About 0.5 us when nobody does. Never fails on Linux.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
