//! CPU time, context switches and peak memory of this process, this thread, its children, or any process by its id.
//!
//! Sources: `getrusage(2)` for oneself (microseconds, exact for threads that have ended too), `clock_getcpuclockid(3)` for
//! another process's CPU time (nanoseconds, ended threads included) and `/proc/PID` for the rest. Nothing is cached; each call
//! costs one or a few system calls. May be called from any thread.

use std::fs;
use std::io;
use std::time::Duration;

/// What was used up to a point, or between two points ([`Usage::since`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Context switches because the thread waited for something.
    pub voluntary_switches: u64,
    /// Context switches because another thread was given the CPU.
    pub involuntary_switches: u64,
    /// Page faults without and with input.
    pub minor_faults: u64,
    /// See `minor_faults`.
    pub major_faults: u64,
    /// Largest resident set so far, in bytes (for children: of the largest child). Not a difference in [`Usage::since`].
    pub peak_rss_bytes: u64,
}

impl Usage {
    /// All threads of this process, ended ones included.
    ///
    /// # Errors
    /// What `getrusage` reports; does not happen on Linux with these arguments.
    pub fn of_process() -> io::Result<Self> {
        Self::get(libc::RUSAGE_SELF)
    }

    /// The calling thread. Its `peak_rss_bytes` is the process's.
    ///
    /// # Errors
    /// As [`Usage::of_process`].
    pub fn of_thread() -> io::Result<Self> {
        Self::get(libc::RUSAGE_THREAD)
    }

    /// Children that ended and were waited for, and theirs.
    ///
    /// # Errors
    /// As [`Usage::of_process`].
    pub fn of_children() -> io::Result<Self> {
        Self::get(libc::RUSAGE_CHILDREN)
    }

    fn get(who: libc::c_int) -> io::Result<Self> {
        let mut raw = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `raw` is writable memory of the right type; getrusage fills it and keeps no reference.
        let rc = unsafe { libc::getrusage(who, raw.as_mut_ptr()) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed above and filled by a successful call; every bit pattern is valid for these integers.
        let raw = unsafe { raw.assume_init() };
        Ok(Self {
            user: duration(raw.ru_utime),
            system: duration(raw.ru_stime),
            voluntary_switches: count(raw.ru_nvcsw),
            involuntary_switches: count(raw.ru_nivcsw),
            minor_faults: count(raw.ru_minflt),
            major_faults: count(raw.ru_majflt),
            peak_rss_bytes: count(raw.ru_maxrss).saturating_mul(1024), // Linux counts kilobytes
        })
    }

    /// User and system time together.
    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }

    /// Both kinds of context switches together.
    pub fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }

    /// What was used after `earlier`, never below zero. `peak_rss_bytes` stays the later peak.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            voluntary_switches: self
                .voluntary_switches
                .saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            peak_rss_bytes: self.peak_rss_bytes,
        }
    }
}

fn duration(t: libc::timeval) -> Duration {
    Duration::new(
        u64::try_from(t.tv_sec).unwrap_or(0),
        u32::try_from(t.tv_usec).unwrap_or(0) * 1000,
    )
}

fn count(n: libc::c_long) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// CPU time of this process (all threads, ended ones included), in nanoseconds' resolution. About 0.3-1 us a call; dearer
/// than wall time, cheaper than [`Usage::of_process`].
///
/// # Errors
/// What `clock_gettime` reports.
pub fn process_cpu_time() -> io::Result<Duration> {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread.
///
/// # Errors
/// What `clock_gettime` reports.
pub fn thread_cpu_time() -> io::Result<Duration> {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> io::Result<Duration> {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec that the call fills.
    if unsafe { libc::clock_gettime(id, &mut t) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(
        u64::try_from(t.tv_sec).unwrap_or(0),
        u32::try_from(t.tv_nsec).unwrap_or(0),
    ))
}

/// CPU time of another process (all threads, ended ones included): the way to account a server or a child that still runs.
/// Needs no permission beyond seeing that the process exists.
///
/// # Errors
/// `ESRCH` as [`io::ErrorKind::Other`] or `NotFound` when there is no such process; a process that ended but was not yet waited
/// for still has its clock.
pub fn cpu_time_of(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "process id too large"))?;
    let mut id: libc::clockid_t = 0;
    // SAFETY: `id` is writable; the call keeps no reference. Its error is the return value, not errno.
    let rc = unsafe { libc::clock_getcpuclockid(pid, &mut id) };
    if rc != 0 {
        return Err(io::Error::from_raw_os_error(rc));
    }
    clock(id)
}

/// What `/proc` tells of a process's living threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Threads {
    /// Living threads.
    pub count: usize,
    /// Voluntary context switches, summed over living threads; those of ended threads are lost.
    pub voluntary_switches: u64,
    /// Involuntary ones, likewise.
    pub involuntary_switches: u64,
}

/// Thread count and context switches of a process, from `/proc/PID/task/*/status`: one file a thread, 6-9 us each.
///
/// # Errors
/// `NotFound` without such a process, what reading `/proc` reports otherwise. A thread that ends meanwhile is no error.
pub fn threads_of(pid: u32) -> io::Result<Threads> {
    let mut threads = Threads::default();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = match fs::read_to_string(task?.path().join("status")) {
            Ok(text) => text,
            Err(e)
                if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) =>
            {
                continue;
            }
            Err(e) => return Err(e),
        };
        threads.count += 1;
        threads.voluntary_switches += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        threads.involuntary_switches += field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(threads)
}

/// Number of this process's living threads: one directory listing.
///
/// # Errors
/// What reading `/proc/self/task` reports.
pub fn thread_count() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Largest resident set of a living process so far, in bytes (`VmHWM`).
///
/// # Errors
/// `NotFound` without such a process; `InvalidData` for a kernel thread, which has none.
pub fn peak_rss_of(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    field(&status, "VmHWM:")
        .map(|kb| kb.saturating_mul(1024))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/status has no VmHWM"),
            )
        })
}

/// The number after `key` at the start of a line.
fn field(status: &str, key: &str) -> Option<u64> {
    status
        .lines()
        .find_map(|l| l.strip_prefix(key))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    fn burn(for_: Duration) {
        let end = thread_cpu_time().unwrap() + for_;
        while thread_cpu_time().unwrap() < end {
            std::hint::black_box(0);
        }
    }

    #[test]
    fn burnt_time_is_seen_in_thread_and_process() {
        let (process, thread) = (Usage::of_process().unwrap(), Usage::of_thread().unwrap());
        burn(Duration::from_millis(30));
        let (process, thread) = (
            Usage::of_process().unwrap().since(&process),
            Usage::of_thread().unwrap().since(&thread),
        );
        for used in [process.cpu(), thread.cpu()] {
            assert!(used >= Duration::from_millis(28), "{used:?}");
        }
        assert!(process.peak_rss_bytes > 100_000);
    }

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let before = Usage::of_thread().unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let used = Usage::of_thread().unwrap().since(&before);
        assert!(used.voluntary_switches >= 1, "{used:?}");
        assert!(used.switches() >= used.voluntary_switches);
    }

    #[test]
    fn a_running_child_is_accounted_and_so_is_an_ended_one() {
        let before = Usage::of_children().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()
            .expect("sh is part of every system this runs on");
        let began = Instant::now();
        let mut used = Duration::ZERO;
        while used < Duration::from_millis(20) && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
            used = cpu_time_of(child.id()).unwrap();
        }
        let threads = threads_of(child.id()).unwrap();
        let rss = peak_rss_of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used >= Duration::from_millis(20), "{used:?}");
        assert_eq!(threads.count, 1);
        assert!(rss > 50_000, "{rss}");
        let ended = Usage::of_children().unwrap().since(&before);
        assert!(ended.cpu() >= Duration::from_millis(15), "{ended:?}");
    }

    #[test]
    fn no_such_process_is_an_error() {
        // Above the largest pid Linux can give (PID_MAX_LIMIT, 2^22).
        let absent = (1 << 22) + 1;
        assert!(cpu_time_of(absent).is_err());
        assert_eq!(
            threads_of(absent).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert_eq!(
            peak_rss_of(absent).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert_eq!(
            cpu_time_of(u32::MAX).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn status_fields_are_not_confused() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t11\nVmHWM:\t  512 kB\n";
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(7));
        assert_eq!(field(status, "nonvoluntary_ctxt_switches:"), Some(11));
        assert_eq!(field(status, "VmHWM:"), Some(512));
        assert_eq!(field(status, "VmRSS:"), None);
    }

    #[test]
    fn threads_are_counted() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let before = thread_count().unwrap();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(thread_count().unwrap() >= 2 && before >= 1);
        drop(go);
        assert!(thread.join().unwrap().is_err());
    }
}
