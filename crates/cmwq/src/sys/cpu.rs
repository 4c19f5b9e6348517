//! Where threads run, with what weight, under what name, and how much CPU they used.
//!
//! A thread is named by its kernel id (`gettid`), never by `pthread_t`: ids may be used on threads that have exited, and then
//! give `ESRCH`. An id can be reused by the kernel after its thread has gone; callers forget an id before its thread exits.
//!
//! CPU masks are slices of 64-bit words, CPU n at bit n % 64 of word n / 64, of any length up to 128 words (8192 CPUs, the
//! largest `NR_CPUS` that Linux offers).

use std::ffi::CStr;
use std::mem;
use std::time::Duration;

use rustix::io::Errno;

use super::{Subject, SysError};

/// Words of the widest CPU mask that the kernel can be built for.
pub(crate) const MAX_MASK_WORDS: usize = 8192 / 64;

/// Bytes of a thread name that the kernel keeps, without the terminating zero.
pub(crate) const NAME_BYTES: usize = 15;

/// The calling thread's id. A system call, ~170 ns: keep the result.
pub(crate) fn gettid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() }
}

/// Has the processor fetch the cache line of an address, which need not be valid, for writing, without waiting for it. A hint:
/// does nothing where there is no such instruction.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on caches, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    let _ = at;
}

/// The CPU that this thread is on. Old as soon as it is known. About 4 ns (glibc reads it from the rseq area), more with an
/// older libc. `None` if the kernel cannot say.
#[inline]
pub(crate) fn current_cpu() -> Option<u32> {
    // SAFETY: no arguments; -1 on failure.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The NUMA node that this thread is on; 0 if the kernel cannot say. A system call, ~100 ns.
pub(crate) fn current_node() -> u32 {
    let mut node = 0_u32;
    let none = std::ptr::null_mut::<u32>();
    // SAFETY: the kernel writes one number to `node`, which is alive; the CPU and the unused third argument may be null.
    let rc = unsafe { libc::syscall(libc::SYS_getcpu, none, &raw mut node, none) };
    if rc == 0 { node } else { 0 }
}

/// Lets thread `tid` run on the CPUs of `mask` only; 0 is the calling thread. The kernel remembers the wish and intersects
/// it with the cpuset by itself, also later, so ask for the full list of a pod, never for a mask that was read back.
///
/// About 1 us; moving a thread that runs elsewhere costs 2 us, moving oneself tens of microseconds.
///
/// # Errors
/// `EINVAL`: no CPU of the mask is usable (offline, outside the cpuset) or it is empty. `ESRCH`: no such thread. `EPERM`:
/// another user's thread.
pub(crate) fn set_affinity(tid: i32, mask: &[u64]) -> Result<(), SysError> {
    let error = |e| SysError::new("sched_setaffinity", Subject::Thread(tid), e);
    if mask.len() > MAX_MASK_WORDS && mask[MAX_MASK_WORDS..].iter().any(|w| *w != 0) {
        return Err(error(Errno::INVAL));
    }
    let mask = &mask[..mask.len().min(MAX_MASK_WORDS)];
    // SAFETY: the kernel reads `size_of_val(mask)` bytes from `mask`, which is alive. The raw call is used because the libc
    // wrapper's type stops at 1024 CPUs.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            mem::size_of_val(mask),
            mask.as_ptr(),
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(SysError::last("sched_setaffinity", Subject::Thread(tid)))
    }
}

/// The CPUs that thread `tid` may use now (the wish, intersected with the cpuset and the CPUs online). Trailing zero words
/// are cut off. About 300 ns.
///
/// # Errors
/// `ESRCH`: no such thread.
pub(crate) fn affinity(tid: i32) -> Result<Vec<u64>, SysError> {
    let mut words = [0_u64; MAX_MASK_WORDS];
    // SAFETY: the kernel writes at most `size_of_val(&words)` bytes to `words`.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            mem::size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    let Ok(bytes) = usize::try_from(rc) else {
        return Err(SysError::last("sched_getaffinity", Subject::Thread(tid)));
    };
    let words = &words[..bytes.div_ceil(8)];
    let used = words.iter().rposition(|w| *w != 0).map_or(0, |i| i + 1);
    Ok(words[..used].to_vec())
}

/// Whether the CPUs that thread `tid` may use now are exactly those of `mask`, given without trailing zero words. False if they
/// cannot be read. Allocates nothing. About 300 ns.
pub(crate) fn affinity_is(tid: i32, mask: &[u64]) -> bool {
    let mut words = [0_u64; MAX_MASK_WORDS];
    // SAFETY: the kernel writes at most `size_of_val(&words)` bytes to `words`.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            mem::size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    rc > 0
        && words[..mask.len().min(MAX_MASK_WORDS)] == *mask
        && words[mask.len()..].iter().all(|w| *w == 0)
}

/// A mask with only `cpu` in it. `None` beyond CPU 8191.
pub(crate) fn single(cpu: u32) -> Option<Vec<u64>> {
    let word = usize::try_from(cpu / 64)
        .ok()
        .filter(|w| *w < MAX_MASK_WORDS)?;
    let mut mask = vec![0; word + 1];
    mask[word] = 1 << (cpu % 64);
    Some(mask)
}

/// The CPUs of a mask, ascending.
pub(crate) fn members(mask: &[u64]) -> impl Iterator<Item = u32> + '_ {
    (0_u32..).zip(mask).flat_map(|(i, word)| {
        (0..64)
            .filter(move |b| word >> b & 1 == 1)
            .map(move |b| i * 64 + b)
    })
}

/// Sets the nice value of thread `tid` alone, -20 (most weight) to 19 (least); 0 is the calling thread. 220-690 ns for a
/// thread that does not run, 1.3-1.8 us for one running elsewhere.
///
/// # Errors
/// `EACCES`: lowering needs `CAP_SYS_NICE` or `RLIMIT_NICE`. `ESRCH`: no such thread. `EPERM`: another user's thread.
pub(crate) fn set_nice(tid: i32, nice: i32) -> Result<(), SysError> {
    // SAFETY: plain integers. PRIO_PROCESS (0) with a thread id means that thread.
    let rc = unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, tid, nice) };
    if rc == 0 {
        Ok(())
    } else {
        Err(SysError::last("setpriority", Subject::Thread(tid)))
    }
}

/// The nice value of thread `tid`.
///
/// # Errors
/// `ESRCH`: no such thread.
pub(crate) fn nice(tid: i32) -> Result<i32, SysError> {
    // SAFETY: plain integers. The raw call gives 20 - nice, so a negative result is an error and nothing else.
    let rc = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, tid) };
    if rc < 0 {
        return Err(SysError::last("getpriority", Subject::Thread(tid)));
    }
    Ok(i32::try_from(20 - rc).unwrap_or(0))
}

/// A scheduling class that a thread can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// `SCHED_OTHER`, also called normal.
    Other,
    /// `SCHED_IDLE`: runs when no normal thread of its group wants the CPU, and a little besides.
    Idle,
    /// `SCHED_BATCH`.
    Batch,
    /// Any other number (real-time, deadline, extensions).
    Unlike(i32),
}

/// Puts thread `tid` (0: the caller) into a class without priorities of its own.
///
/// # Errors
/// `EPERM`: leaving `SCHED_IDLE` needs `CAP_SYS_NICE` or an `RLIMIT_NICE` that allows the thread's nice value; entering it
/// needs nothing. `EINVAL`: [`Policy::Unlike`]. `ESRCH`: no such thread.
pub(crate) fn set_policy(tid: i32, policy: Policy) -> Result<(), SysError> {
    let number = match policy {
        Policy::Other => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
        Policy::Batch => libc::SCHED_BATCH,
        Policy::Unlike(_) => {
            return Err(SysError::new(
                "sched_setscheduler",
                Subject::Thread(tid),
                Errno::INVAL,
            ));
        }
    };
    let zero: libc::c_int = 0;
    // SAFETY: the kernel reads one int (struct sched_param) from a live variable. The raw call, because musl's wrapper only
    // returns ENOSYS.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, number, &raw const zero) };
    if rc == 0 {
        Ok(())
    } else {
        Err(SysError::last("sched_setscheduler", Subject::Thread(tid)))
    }
}

/// The class of thread `tid`.
///
/// # Errors
/// `ESRCH`: no such thread.
pub(crate) fn policy(tid: i32) -> Result<Policy, SysError> {
    // SAFETY: plain integers.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) };
    let Ok(number) = i32::try_from(rc) else {
        return Ok(Policy::Unlike(i32::MAX));
    };
    if number < 0 {
        return Err(SysError::last("sched_getscheduler", Subject::Thread(tid)));
    }
    // Bit 30: "children do not inherit this".
    Ok(match number & !0x4000_0000 {
        libc::SCHED_OTHER => Policy::Other,
        libc::SCHED_IDLE => Policy::Idle,
        libc::SCHED_BATCH => Policy::Batch,
        n => Policy::Unlike(n),
    })
}

/// As much of `name` as the kernel keeps: at most [`NAME_BYTES`] bytes, cut between characters, and up to the first zero.
pub(crate) fn fit_name(name: &str) -> &str {
    let name = name.split('\0').next().unwrap_or("");
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// Names the calling thread, as `ps -L` and `top -H` show it; cut by [`fit_name`]. Under 1 us.
///
/// # Errors
/// None is known; a filter could refuse it.
pub(crate) fn set_own_name(name: &str) -> Result<(), SysError> {
    let mut buffer = [0_u8; NAME_BYTES + 1];
    let name = fit_name(name).as_bytes();
    buffer[..name.len()].copy_from_slice(name);
    // SAFETY: PR_SET_NAME reads a zero-terminated string of at most 16 bytes; the buffer is that.
    let rc = unsafe { libc::prctl(libc::PR_SET_NAME, buffer.as_ptr()) };
    if rc == 0 {
        Ok(())
    } else {
        Err(SysError::last("prctl(PR_SET_NAME)", Subject::None))
    }
}

/// The calling thread's name; bytes that are not UTF-8 are replaced.
pub(crate) fn own_name() -> Result<String, SysError> {
    let mut buffer = [0_u8; NAME_BYTES + 1];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, zero included.
    if unsafe { libc::prctl(libc::PR_GET_NAME, buffer.as_mut_ptr()) } != 0 {
        return Err(SysError::last("prctl(PR_GET_NAME)", Subject::None));
    }
    let name = CStr::from_bytes_until_nul(&buffer).map_or(&[][..], CStr::to_bytes);
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Names another thread of this process, through `/proc`. Some 10 us.
///
/// # Errors
/// `ENOENT`/`ESRCH`: no such thread, or no `/proc`.
pub(crate) fn set_name(tid: i32, name: &str) -> Result<(), SysError> {
    let path = format!("/proc/self/task/{tid}/comm");
    std::fs::write(&path, fit_name(name))
        .map_err(|e| SysError::from_io("write", Subject::File(path), &e))
}

/// CPU time that thread `tid` of this process has used, user and kernel, exact to the nanosecond also while it runs.
/// 320-600 ns.
///
/// # Errors
/// `EINVAL`: no such thread in this process.
pub(crate) fn thread_cpu_time(tid: i32) -> Result<Duration, SysError> {
    // The kernel's encoding: the complement of the id above three bits, 4 = one thread, 2 = scheduler time.
    read_clock((!tid << 3) | 6).map_err(|e| SysError::new("clock_gettime", Subject::Thread(tid), e))
}

/// CPU time that the calling thread has used.
///
/// # Errors
/// None is known.
pub(crate) fn own_cpu_time() -> Result<Duration, SysError> {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
        .map_err(|e| SysError::new("clock_gettime", Subject::None, e))
}

fn read_clock(id: libc::clockid_t) -> Result<Duration, Errno> {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec to a live variable.
    if unsafe { libc::clock_gettime(id, &raw mut t) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok(from_parts(t.tv_sec, t.tv_nsec))
}

/// What the kernel counted for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Time in user mode.
    pub(crate) user: Duration,
    /// Time in the kernel.
    pub(crate) system: Duration,
    /// Context switches because it blocked.
    pub(crate) voluntary: u64,
    /// Context switches because something else got the CPU.
    pub(crate) involuntary: u64,
}

/// Counters of the calling thread since its start.
///
/// # Errors
/// None is known.
pub(crate) fn own_usage() -> Result<Usage, SysError> {
    // SAFETY: rusage is plain integers, for which zero is a value.
    let mut r: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: writes one rusage to a live variable.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut r) } != 0 {
        return Err(SysError::last("getrusage", Subject::None));
    }
    let time = |t: libc::timeval| from_parts(t.tv_sec, t.tv_usec.saturating_mul(1000));
    Ok(Usage {
        user: time(r.ru_utime),
        system: time(r.ru_stime),
        voluntary: u64::try_from(r.ru_nvcsw).unwrap_or(0),
        involuntary: u64::try_from(r.ru_nivcsw).unwrap_or(0),
    })
}

/// Negative parts, which the kernel does not produce here, count as zero.
pub(crate) fn from_parts(secs: i64, nanos: i64) -> Duration {
    Duration::new(u64::try_from(secs).unwrap_or(0), 0)
        + Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
