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
    shortest_slice();
    cpu::set_policy(0, Policy::Idle)
}

/// Asks for the shortest slice (0.1 ms, Linux 6.12): beside ordinary threads a thread's next turn comes after a slice of its own
/// at its weight, which for the idle class is 340 slices. The slice stays when the class changes. Older kernels ignore it.
fn shortest_slice() {
    /// `struct sched_attr` in its first published size.
    #[repr(C)]
    struct Attr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attr = Attr {
        size: size_of::<Attr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: cpu::nice(0).unwrap_or(0),
        priority: 0,
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads `size` bytes of a live structure. Refused, nothing is lost but the wish.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
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
