//! What `/proc` says about a thread: does it run or wait, how much CPU time has it used, where was it last.
//!
//! A [`ThreadStat`] keeps `/proc/self/task/TID/stat` open; a look is one `pread`, about 2.7 us, against 7-9 us with opening
//! and closing. The descriptor stays bound to its thread: when the thread is gone, looks say so even if its id is used again.
//! It costs one file descriptor a thread.
//!
//! Reliability (measured with threads that flagged their own state): never "blocked" for a thread that computes; a thread
//! that has been woken but has no CPU yet reads as runnable, which is right for "would another worker help?".
//!
//! Where `/proc` is not mounted, hidden (`hidepid`) or out of descriptors, opening fails with the reason, and the runtime
//! compares CPU clocks instead ([`super::cpu::thread_cpu_time`]), which cannot tell preempted from blocked.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Subject, SysError};
use cmwq_topology::CpuSet;

/// What a thread is doing, by its state letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ThreadState {
    /// `R`: on a CPU, or waiting for one.
    Runnable,
    /// `S` (or `I`, a kernel thread's sleep): blocked, a signal would end it.
    Blocked,
    /// `D`: blocked, usually on a disk.
    Uninterruptible,
    /// `T`, `t`: stopped by job control or a debugger.
    Stopped,
    /// `Z`, `X`, or the thread does not exist any more.
    Gone,
    /// The look failed, or the letter is a new one. Not evidence of anything.
    Unknown,
}

impl ThreadState {
    /// It waits for something other than a CPU, so that another worker could use its CPU.
    pub(crate) fn is_blocked(self) -> bool {
        matches!(self, Self::Blocked | Self::Uninterruptible)
    }

    fn from_letter(letter: u8) -> Self {
        match letter {
            b'R' => Self::Runnable,
            b'S' | b'I' => Self::Blocked,
            b'D' => Self::Uninterruptible,
            b'T' | b't' => Self::Stopped,
            b'Z' | b'X' | b'x' => Self::Gone,
            _ => Self::Unknown,
        }
    }
}

/// Something that can say what a thread is doing. Asked by detectors; must not block for longer than a read of `/proc`.
pub(crate) trait StateProbe {
    /// The state now, as well as it can be known.
    fn state(&self) -> ThreadState;
}

/// The fields of a `stat` line that the runtime uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatLine {
    /// Field 3.
    pub(crate) state: ThreadState,
    /// Field 14: time in user mode, in clock ticks (1/100 s on every architecture that is supported here).
    pub(crate) user_ticks: u64,
    /// Field 15: time in the kernel, same unit.
    pub(crate) system_ticks: u64,
    /// Field 39: the CPU it runs on or last ran on.
    pub(crate) cpu: Option<u32>,
}

/// Reads a `stat` line. The name (field 2) may contain anything, closing brackets and newlines included, but it is the only
/// field that may: counting starts after the last `)`. `None` if that is not what it looks like.
pub(crate) fn parse_stat(line: &[u8]) -> Option<StatLine> {
    let end = line.iter().rposition(|b| *b == b')')?;
    let mut fields = line[end + 1..]
        .split(u8::is_ascii_whitespace)
        .filter(|f| !f.is_empty());
    let letter = fields.next()?;
    let &[letter] = letter else { return None };
    let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse::<u64>().ok();
    // The state was field 3, so the next is 4; 14 is ten further.
    let user_ticks = number(fields.nth(10))?;
    let system_ticks = number(fields.next())?;
    // 16 to 38 lie between.
    let cpu = number(fields.nth(23)).and_then(|n| u32::try_from(n).ok());
    Some(StatLine {
        state: ThreadState::from_letter(letter),
        user_ticks,
        system_ticks,
        cpu,
    })
}

/// A thread's `stat` file, kept open.
#[derive(Debug)]
pub(crate) struct ThreadStat {
    file: File,
    tid: i32,
}

impl ThreadStat {
    /// Opens it for thread `tid` of this process. 5 us.
    ///
    /// # Errors
    /// `ENOENT`: no such thread, or no `/proc`. `EMFILE`, `ENFILE`: out of descriptors. `EACCES`: hidden.
    pub(crate) fn open(tid: i32) -> Result<Self, SysError> {
        Self::open_in(Path::new("/proc"), tid)
    }

    /// As [`open`](Self::open), with another root than `/proc`.
    pub(crate) fn open_in(proc: &Path, tid: i32) -> Result<Self, SysError> {
        let path = task_file(proc, tid, "stat");
        let file = File::open(&path).map_err(|e| {
            SysError::from_io("open", Subject::File(path.display().to_string()), &e)
        })?;
        Ok(Self { file, tid })
    }

    /// The line as it is now. 2.7-4 us, one system call.
    ///
    /// # Errors
    /// `ESRCH`: the thread is gone. `EBADMSG`: not a `stat` line.
    pub(crate) fn read(&self) -> Result<StatLine, SysError> {
        // A line has 52 numbers of at most 20 digits and a name; the fields in use end within the first 500 bytes.
        let mut buffer = [0_u8; 1024];
        let n = loop {
            match self.file.read_at(&mut buffer, 0) {
                Ok(n) => break n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(SysError::from_io(
                        "read of stat",
                        Subject::Thread(self.tid),
                        &e,
                    ));
                }
            }
        };
        let bad = || {
            SysError::new(
                "read of stat",
                Subject::Thread(self.tid),
                rustix::io::Errno::BADMSG,
            )
        };
        parse_stat(&buffer[..n]).ok_or_else(bad)
    }
}

impl StateProbe for ThreadStat {
    fn state(&self) -> ThreadState {
        match self.read() {
            Ok(line) => line.state,
            Err(e) if e.is_gone() => ThreadState::Gone,
            Err(_) => ThreadState::Unknown,
        }
    }
}

/// What a stalled thread waits on, for a report. Slow (four opened files), never fails: what cannot be read is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StallReport {
    /// State letter of `stat`, if it could be read.
    pub(crate) state: Option<ThreadState>,
    /// The kernel function that it sleeps in, if the kernel tells (it needs the right to trace the thread).
    pub(crate) wchan: Option<String>,
    /// The number of the system call that it is in; same condition.
    pub(crate) syscall: Option<i64>,
    /// The thread's name.
    pub(crate) name: Option<String>,
}

impl StallReport {
    /// Looks at thread `tid` of this process.
    pub(crate) fn of(tid: i32) -> Self {
        Self::of_in(Path::new("/proc"), tid)
    }

    /// As [`of`](Self::of), with another root than `/proc`.
    pub(crate) fn of_in(proc: &Path, tid: i32) -> Self {
        let text = |file: &str| {
            let bytes = std::fs::read(task_file(proc, tid, file)).ok()?;
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        Self {
            state: ThreadStat::open_in(proc, tid).ok().map(|s| s.state()),
            // "0" is said for a thread that runs, and for every thread where it is not allowed to be known.
            wchan: text("wchan").filter(|w| w != "0"),
            // "running", "-1 SP PC" (blocked outside a system call), or "NUMBER ARGS.. SP PC".
            syscall: text("syscall")
                .and_then(|s| s.split_ascii_whitespace().next()?.parse().ok())
                .filter(|number| *number >= 0),
            name: text("comm"),
        }
    }
}

/// The CPUs that thread `tid` (0: the caller) may use, those included that are offline or on their way; none without `/proc`, or
/// if the thread is gone. 20 us.
pub(crate) fn allowed_cpus(tid: i32) -> Option<CpuSet> {
    let path = match tid {
        0 => PathBuf::from("/proc/thread-self/status"),
        _ => task_file(Path::new("/proc"), tid, "status"),
    };
    let status = std::fs::read(path).ok()?;
    let mut lines = status.split(|b| *b == b'\n');
    let list = lines.find_map(|l| l.strip_prefix(b"Cpus_allowed_list:"))?;
    CpuSet::parse_list(std::str::from_utf8(list).ok()?.trim()).ok()
}

/// Which process this is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnProcess {
    /// `comm` of the main thread; empty without `/proc`.
    pub(crate) name: String,
    /// When it started: clock ticks since boot; 0 without `/proc`.
    pub(crate) start_ticks: u64,
}

/// Looks this process up. Two small files.
pub(crate) fn own_process() -> OwnProcess {
    let read = |file: &str| {
        let bytes =
            std::fs::read(format!("/proc/{}/{file}", std::process::id())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    OwnProcess {
        name: read("comm").trim_end().to_owned(),
        // Field 22; counted after the name's last bracket, where field 3 follows.
        start_ticks: read("stat")
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)?.parse().ok())
            .unwrap_or(0),
    }
}

/// How often a control group was throttled by its CPU quota, if its `cpu.stat` says.
pub(crate) fn nr_throttled(group: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(group.join("cpu.stat")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
}

fn task_file(proc: &Path, tid: i32, file: &str) -> PathBuf {
    proc.join("self/task").join(tid.to_string()).join(file)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
