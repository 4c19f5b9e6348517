//! Context-switch records of the kernel (opt-in): whether another thread runs, was preempted or blocked, by two loads.
//!
//! A software event that counts nothing (`PERF_COUNT_SW_DUMMY`) with `context_switch` set writes one record each time its
//! thread leaves or gets a CPU. The ring is mapped read-only, which makes the kernel overwrite old records: nobody has to
//! empty it, and the newest record always ends at `data_head`. Two forms:
//!
//! | form | for | record | cost |
//! |---|---|---|---|
//! | [`ThreadRing`] | unbound workers | 8 bytes | 8 KiB of locked memory a thread; +1.0-1.3 us a switch |
//! | [`CpuRings`] | workers of per-CPU pools, all made by one thread | 16 bytes, with thread id | 8 KiB a CPU; +0.7-1.0 us a switch; 6-16 us more to make a thread |
//!
//! Nobody is ever woken through the rings: a wake-up is an interrupt in the worker's own switch path (+12 us). The watermark
//! is a whole ring, so that the kernel considers a wake-up every 512 (256) switches.
//!
//! What the states mean: [`SwitchState::OutBlocked`] is exact: what the scheduler did, page faults that had to wait included, except that a
//! thread which was woken and still waits for its CPU reads as blocked until it gets it. A thread that has exited keeps its last
//! record, which is usually [`SwitchState::In`], because the event ends before the thread's last switch: forget a worker's
//! ring when the worker says that it is leaving.
//!
//! # Refusal
//! Many kernels refuse: `kernel.perf_event_paranoid` above 2 with Debian's or Ubuntu's patch, container filters, the limits on
//! locked memory. [`probe`] tries once per process, and says why not; ring by ring, opening can fail later. Then
//! [`super::procstat`] is used. Never required.
//!
//! # Order of ending
//! The mapping holds the event; its descriptor is closed right after mapping, so there is nothing to order: dropping a ring
//! unmaps it and thereby closes the event, from any thread, before or after its thread's exit. Rings are not inherited over
//! `fork` (the kernel leaves such mappings out): in a forked child a ring must be forgotten, neither read nor dropped. After
//! the last event of the system is closed, the kernel keeps its switch hooks for another second.

use crate::shim::leaf::OnceLock;
use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::io::Errno;

use super::procstat::{StateProbe, ThreadState};
use super::{Subject, SysError};

/// What the newest record of a thread says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SwitchState {
    /// On a CPU.
    In,
    /// Off the CPU, but wanting it.
    OutPreempted,
    /// Off the CPU because it waits for something.
    OutBlocked,
    /// No record yet, or too old to be still there. Not evidence of anything.
    Unknown,
}

impl From<SwitchState> for ThreadState {
    fn from(s: SwitchState) -> Self {
        match s {
            SwitchState::In | SwitchState::OutPreempted => Self::Runnable,
            SwitchState::OutBlocked => Self::Blocked,
            SwitchState::Unknown => Self::Unknown,
        }
    }
}

/// `PERF_RECORD_SWITCH`.
const RECORD_SWITCH: u32 = 14;
/// `PERF_RECORD_MISC_SWITCH_OUT`.
const MISC_OUT: u16 = 1 << 13;
/// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`.
const MISC_OUT_PREEMPT: u16 = 1 << 14;

/// The first word of a record: type, misc, size from the low end (both supported architectures are little-endian).
fn decode(header: u64) -> SwitchState {
    let (kind, misc) = (header as u32, (header >> 32) as u16);
    if kind != RECORD_SWITCH {
        return SwitchState::Unknown;
    }
    match (misc & MISC_OUT != 0, misc & MISC_OUT_PREEMPT != 0) {
        (false, _) => SwitchState::In,
        (true, false) => SwitchState::OutBlocked,
        (true, true) => SwitchState::OutPreempted,
    }
}

/// The kernel's `struct perf_event_attr` in its first published size, which every version takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config1: u64,
}

const KIND_SOFTWARE: u32 = 1;
const CONFIG_DUMMY: u64 = 9;
const SAMPLE_TID: u64 = 1 << 1;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;
const FLAG_WATERMARK: u64 = 1 << 14;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
const FLAG_CONTEXT_SWITCH: u64 = 1 << 26;
const FLAG_INHERIT_THREAD: u64 = 1 << 35;
const OPEN_CLOEXEC: u64 = 8;

impl Attr {
    fn new(data_bytes: usize) -> Self {
        Self {
            kind: KIND_SOFTWARE,
            size: mem::size_of::<Self>() as u32,
            config: CONFIG_DUMMY,
            // User level only: that is what makes it available without privilege.
            flags: FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV | FLAG_WATERMARK | FLAG_CONTEXT_SWITCH,
            wakeup: u32::try_from(data_bytes).unwrap_or(u32::MAX),
            ..Self::default()
        }
    }
}

/// A mapped ring: one page of bookkeeping, one page of records.
#[derive(Debug)]
struct Ring {
    base: NonNull<u8>,
    page: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only read.
unsafe impl Send for Ring {}
// SAFETY: all reads are atomic loads.
unsafe impl Sync for Ring {}

/// Offset of `data_head` in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;

impl Ring {
    /// Opens the event and maps its ring. 10-60 us.
    fn open(attr: &Attr, tid: i32, cpu: i32, page: usize) -> Result<Self, SysError> {
        let subject = || u32::try_from(cpu).map_or(Subject::Thread(tid), Subject::Cpu);
        // SAFETY: the kernel reads `attr.size` bytes of a live structure; the rest are integers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                ptr::from_ref(attr),
                tid,
                cpu,
                -1_i32,
                OPEN_CLOEXEC,
            )
        };
        let fd = match i32::try_from(fd) {
            Ok(fd) if fd >= 0 => fd,
            _ => return Err(SysError::last("perf_event_open", subject())),
        };
        // SAFETY: a new shared read-only mapping of a descriptor that is ours.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                2 * page,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        let result = if base == libc::MAP_FAILED {
            Err(SysError::last("mmap of a perf ring", subject()))
        } else {
            NonNull::new(base.cast::<u8>())
                .map(|base| Self { base, page })
                .ok_or_else(|| SysError::new("mmap of a perf ring", subject(), Errno::NOMEM))
        };
        // SAFETY: our own descriptor, closed once. The mapping keeps the event alive.
        unsafe { libc::close(fd) };
        result
    }

    /// Bytes written since the start.
    #[inline]
    fn head(&self) -> u64 {
        // SAFETY: inside the mapping, aligned; the kernel changes it, hence atomic. An atomic load of this width does not
        // write, so a read-only mapping is fine.
        let head = unsafe { &*self.base.as_ptr().add(DATA_HEAD).cast::<AtomicU64>() };
        // Ordering: Acquire pairs with the write barrier that the kernel puts between a record and the new head.
        head.load(Ordering::Acquire)
    }

    /// The word at stream position `at`, a multiple of 8 that is not beyond the head.
    #[inline]
    fn word(&self, at: u64) -> u64 {
        let offset = self.page + (at as usize & (self.page - 1));
        // SAFETY: `offset` is within the second page and a multiple of 8; atomic as above.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }.load(Ordering::Relaxed)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), 2 * self.page) };
    }
}

/// The records of one thread, wherever it runs.
#[derive(Debug)]
pub(crate) struct ThreadRing(Ring);

impl ThreadRing {
    /// For thread `tid` of this process; 0 is the caller. 10-60 us.
    ///
    /// # Errors
    /// `EACCES`, `EPERM`, `ENOSYS`: not allowed here. `EPERM` from the mapping: the limit on locked memory. `EMFILE`: a
    /// descriptor is needed for a moment. `ESRCH`: no such thread.
    pub(crate) fn open(tid: i32) -> Result<Self, SysError> {
        let page = page_size();
        Ring::open(&Attr::new(page), tid, -1, page).map(Self)
    }

    /// The thread's state by its newest record: two loads, about 1 ns. [`SwitchState::Unknown`] before the first switch.
    #[inline]
    pub(crate) fn switch_state(&self) -> SwitchState {
        // A record is one word, so the ring can be overwritten under our eyes and the word is still a record.
        match self.0.head() {
            0 => SwitchState::Unknown,
            head => decode(self.0.word(head - 8)),
        }
    }

    /// Context switches recorded so far (each leaving or getting of a CPU counts one).
    pub(crate) fn records(&self) -> u64 {
        self.0.head() / 8
    }
}

impl StateProbe for ThreadRing {
    fn state(&self) -> ThreadState {
        self.switch_state().into()
    }
}

/// The records of one CPU, written by all threads that were made (directly or not) by the thread that opened it.
#[derive(Debug)]
pub(crate) struct CpuRing(Ring);

/// Bytes of a record with thread id.
const WIDE: u64 = 16;

impl CpuRing {
    /// For `cpu`, covering the calling thread and every thread that it makes from now on. To be called by the spawner
    /// before it makes workers; threads that exist already are not covered.
    ///
    /// # Errors
    /// As [`ThreadRing::open`]; `EINVAL` before Linux 5.13 (no inheritance by threads only); `ENODEV`: no such CPU.
    pub(crate) fn open_for_children(cpu: u32) -> Result<Self, SysError> {
        let number = i32::try_from(cpu)
            .map_err(|_| SysError::new("perf_event_open", Subject::Cpu(cpu), Errno::NODEV))?;
        let page = page_size();
        let mut attr = Attr::new(page);
        attr.flags |= FLAG_INHERIT | FLAG_INHERIT_THREAD | FLAG_SAMPLE_ID_ALL;
        attr.sample_type = SAMPLE_TID;
        Ring::open(&attr, 0, number, page).map(Self)
    }

    /// The state of thread `tid`, which must be pinned to this ring's CPU, by its newest record. A few loads if it was the
    /// last to switch there; at most one pass over the ring (256 records with 4 KiB pages) otherwise.
    pub(crate) fn switch_state(&self, tid: i32) -> SwitchState {
        let head = self.0.head();
        let ring = self.0.page as u64;
        let mut at = head;
        while at >= WIDE && head - (at - WIDE) <= ring {
            at -= WIDE;
            let (header, ids) = (self.0.word(at), self.0.word(at + 8));
            if (ids >> 32) as u32 != tid.cast_unsigned() {
                continue;
            }
            // Ordering: Acquire fence: the words above are read before the head below (the kernel moves the head before it
            // starts to overwrite what this head has left behind by a ring's length).
            fence(Ordering::Acquire);
            let overwritten = self.0.head() + 4 * WIDE > at + ring;
            return if overwritten {
                SwitchState::Unknown
            } else {
                decode(header)
            };
        }
        SwitchState::Unknown
    }

    /// The thread that switched last on this CPU, and how. `None` before the first.
    pub(crate) fn last(&self) -> Option<(i32, SwitchState)> {
        let at = self.0.head().checked_sub(WIDE)?;
        Some(((self.0.word(at + 8) >> 32) as i32, decode(self.0.word(at))))
    }
}

/// One [`CpuRing`] for each CPU of a per-CPU workqueue.
#[derive(Debug)]
pub(crate) struct CpuRings(Vec<(u32, CpuRing)>);

/// Most CPUs for which the inherited form is used: each event is cloned into every new thread.
pub(crate) const MAX_CPU_RINGS: usize = 64;

impl CpuRings {
    /// For `cpus`, all or none; to be called by the spawner before it makes workers.
    ///
    /// # Errors
    /// As [`CpuRing::open_for_children`]; `E2BIG` for more than [`MAX_CPU_RINGS`] CPUs.
    pub(crate) fn open_for_children(cpus: impl IntoIterator<Item = u32>) -> Result<Self, SysError> {
        let mut rings = Vec::new();
        for cpu in cpus {
            if rings.len() == MAX_CPU_RINGS {
                return Err(SysError::new(
                    "perf_event_open",
                    Subject::Cpu(cpu),
                    Errno::TOOBIG,
                ));
            }
            rings.push((cpu, CpuRing::open_for_children(cpu)?));
        }
        rings.sort_unstable_by_key(|(cpu, _)| *cpu);
        Ok(Self(rings))
    }

    /// The ring of `cpu`.
    pub(crate) fn get(&self, cpu: u32) -> Option<&CpuRing> {
        let i = self.0.binary_search_by_key(&cpu, |(c, _)| *c).ok()?;
        Some(&self.0[i].1)
    }
}

/// Why there are no records here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PerfRefusal {
    /// A call was refused; with the value of `kernel.perf_event_paranoid`, if that could be read.
    Call(SysError, Option<i32>),
    /// Everything was granted, but the thread's own switches did not show.
    Silent,
}

impl fmt::Display for PerfRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(e, Some(level)) => write!(f, "{e} (kernel.perf_event_paranoid is {level})"),
            Self::Call(e, None) => write!(f, "{e}"),
            Self::Silent => f.write_str("context switches are not recorded on this kernel"),
        }
    }
}

/// Whether records can be had, tried on the calling thread once per process: opens a ring, sleeps for a moment, looks for
/// its own records. About 100 us the first time, which blocks; then a load. Only called if the user opted in.
///
/// # Errors
/// The reason, always the same one.
pub(crate) fn probe() -> Result<(), PerfRefusal> {
    static RESULT: OnceLock<Result<(), PerfRefusal>> = OnceLock::new();
    RESULT.get_or_init(try_out).clone()
}

fn try_out() -> Result<(), PerfRefusal> {
    let ring = ThreadRing::open(0).map_err(|e| {
        let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
        PerfRefusal::Call(e, level.ok().and_then(|s| s.trim().parse().ok()))
    })?;
    std::thread::sleep(std::time::Duration::from_nanos(1));
    // Left and came back: two records at least, and this thread runs.
    if ring.records() >= 2 && ring.switch_state() == SwitchState::In {
        Ok(())
    } else {
        Err(PerfRefusal::Silent)
    }
}

fn page_size() -> usize {
    // SAFETY: plain query.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
