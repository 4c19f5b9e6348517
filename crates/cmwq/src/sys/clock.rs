//! Time stamps: nanoseconds since the first use in this process, from the CPU's counter where it can be trusted.
//!
//! # Source
//! The counter (TSC on x86-64, `CNTVCT_EL0` on aarch64) is used only if the CPU says that it ticks at one rate in all power
//! states *and* the kernel itself keeps time by it (`/sys/devices/system/clocksource/clocksource0/current_clocksource`): the
//! kernel checks continuously that the counters of all CPUs agree, and stops using one that does not. Otherwise, as on guests
//! with `kvm-clock` or `hyperv` time or where `/sys` is hidden, every stamp is a `clock_gettime(CLOCK_MONOTONIC)`.
//! [`Clock::source`] says which, [`Clock::status`] also why. The choice is made once, at first use.
//!
//! # Error
//! Nothing waits for calibration: for the first 20 ms stamps come from `CLOCK_MONOTONIC`, then a straight line takes over
//! whose slope is off by at most (width of the first reading + width of the second) / distance, which must be under 10 ppm
//! or the line waits for more distance. [`Clock::maintain`] lengthens the baseline to 0.1, 1 and then every 10 s, and bends
//! the line back towards `CLOCK_MONOTONIC`, which time daemons slew by up to 500 ppm. With `maintain` called at least every
//! 10 s, stamps stay within 1 us of `CLOCK_MONOTONIC` while its rate is steady; when the rate changes by n ppm, they part by up
//! to 20 n us and are back within a few calls. Never called, they drift by at most 10 ppm plus whatever slewing is going on.
//! Intervals are off by at most 510 ppm in any case.
//!
//! # Monotony
//! Stamps taken by one thread do not decrease, with one exception that callers must bear by using `saturating_sub`: a
//! stamp may step back by 500 ppm of the time that a `maintain` was preempted between choosing the joint of two lines and
//! publishing it (a window of some 20 ns, so practically never, and then 2 us for 4 ms). Stamps of different CPUs agree as
//! well as the kernel keeps the counters in step (tens of ns), and the counter may be read some tens of ns early or late with
//! respect to neighbouring instructions: there is no fence.
//!
//! # Jumps
//! After a suspend the counter may have run on (the stamps then include the time slept, unlike `CLOCK_MONOTONIC`) or restarted
//! (the next `maintain` puts the line back in front). A jump is noticed as more than 1000 ppm between two readings, counted,
//! and [`Clock::to_monotonic`] is corrected; stamps never go back for it.

mod line;

use crate::shim::leaf::OnceLock;
use crate::shim::leaf::{Mutex, PoisonError};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use line::{Calibrator, Line, Outcome, Reading};

/// Where stamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The time stamp counter of x86-64.
    Tsc,
    /// The virtual counter of aarch64.
    Cntvct,
    /// `clock_gettime(CLOCK_MONOTONIC)`.
    OsClock,
}

/// What the clock runs on, for dumps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClockStatus {
    /// The source in use.
    pub(crate) source: Source,
    /// Why this source.
    pub(crate) reason: String,
    /// The line is in use (false during the first 20 ms, and always with [`Source::OsClock`]).
    pub(crate) calibrated: bool,
    /// Bound of the slope's error, in parts per billion.
    pub(crate) error_ppb: u64,
    /// Lines published so far.
    pub(crate) lines: u64,
    /// Jumps between counter and `CLOCK_MONOTONIC` seen so far.
    pub(crate) jumps: u64,
}

/// The process's clock. See the module.
#[derive(Debug)]
pub(crate) struct Clock;

/// Two lines: the one in use is `slots[seq % 2]`, the other is free for the writer, so that a preempted writer delays nobody.
/// 0 means none yet.
struct Latch {
    seq: AtomicU64,
    slots: [Slot; 2],
}

struct Slot {
    ticks: AtomicU64,
    ns: AtomicU64,
    rate: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self {
            ticks: AtomicU64::new(0),
            ns: AtomicU64::new(0),
            rate: AtomicU64::new(0),
        }
    }
}

impl Latch {
    const fn new() -> Self {
        Self {
            seq: AtomicU64::new(0),
            slots: [Slot::new(), Slot::new()],
        }
    }

    /// Reads the line in use at this moment of the counter; `None` before the first.
    #[inline]
    fn read(&self, counter: impl Fn() -> u64) -> Option<u64> {
        loop {
            // Ordering: Acquire pairs with the Release in `publish`: the slot's three words are at least that line's.
            let seq = self.seq.load(Ordering::Acquire);
            if seq == 0 {
                return None;
            }
            let slot = &self.slots[(seq & 1) as usize];
            let line = Line {
                ticks: slot.ticks.load(Ordering::Relaxed),
                ns: slot.ns.load(Ordering::Relaxed),
                rate: slot.rate.load(Ordering::Relaxed),
            };
            let now = counter();
            // Ordering: Acquire fence pairs with the Release fence in `publish`: having read a word of a newer line, this
            // thread also sees that `seq` has moved on.
            fence(Ordering::Acquire);
            if self.seq.load(Ordering::Relaxed) == seq {
                return Some(line.at(now));
            }
        }
    }

    /// One writer at a time.
    fn publish(&self, line: Line) {
        let seq = self.seq.load(Ordering::Relaxed);
        // Ordering: Release fence pairs with the fence in `read`: `seq` (stored by the last publish) before the words below.
        fence(Ordering::Release);
        let slot = &self.slots[((seq + 1) & 1) as usize];
        slot.ticks.store(line.ticks, Ordering::Relaxed);
        slot.ns.store(line.ns, Ordering::Relaxed);
        slot.rate.store(line.rate, Ordering::Relaxed);
        // Ordering: Release pairs with the Acquire in `read`.
        self.seq.store(seq + 1, Ordering::Release);
    }
}

static LATCH: Latch = Latch::new();
/// Stamp from which `maintain` has something to do.
static DUE: AtomicU64 = AtomicU64::new(0);
/// `CLOCK_MONOTONIC` minus stamp.
static OFFSET: AtomicU64 = AtomicU64::new(0);
static SETUP: OnceLock<Setup> = OnceLock::new();

struct Setup {
    /// `CLOCK_MONOTONIC` at stamp 0.
    start: u64,
    source: Source,
    reason: String,
    calibrator: Mutex<Calibrator>,
}

impl Clock {
    /// Nanoseconds since the first use. Never blocks, no system call; see `cost_of_a_stamp` for what it costs (about 12 ns on
    /// the counter, 25 ns otherwise). May be called from anywhere, signal handlers included once the first call is over.
    #[inline]
    pub(crate) fn now() -> u64 {
        match LATCH.read(counter::now) {
            Some(ns) => ns,
            None => Self::now_by_os(),
        }
    }

    /// The source in use.
    pub(crate) fn source() -> Source {
        setup().source
    }

    /// The source, why, and how good it is.
    pub(crate) fn status() -> ClockStatus {
        let setup = setup();
        let calibrator = setup
            .calibrator
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let lines = LATCH.seq.load(Ordering::Relaxed);
        ClockStatus {
            source: setup.source,
            reason: setup.reason.clone(),
            calibrated: lines > 0,
            error_ppb: calibrator.error_ppb(),
            lines,
            jumps: calibrator.jumps(),
        }
    }

    /// Follows `CLOCK_MONOTONIC`; see the module. One compare when nothing is due, about 1 us otherwise. To be called now and
    /// then from something that runs anyway (a tick, a snapshot, a worker before it parks); at most one caller works, the
    /// others return at once.
    pub(crate) fn maintain() {
        if Self::now() >= DUE.load(Ordering::Relaxed) {
            setup().step();
        }
    }

    /// The reading of `CLOCK_MONOTONIC` that belongs to a stamp, for deadlines of system calls.
    pub(crate) fn to_monotonic(ns: u64) -> Duration {
        let _ = setup();
        Duration::from_nanos(ns.saturating_add(OFFSET.load(Ordering::Relaxed)))
    }

    #[cold]
    fn now_by_os() -> u64 {
        let setup = setup();
        let now = monotonic_ns().saturating_sub(setup.start);
        if setup.source != Source::OsClock && now >= DUE.load(Ordering::Relaxed) {
            setup.step();
        }
        now
    }
}

impl Setup {
    fn step(&self) {
        if self.source == Source::OsClock {
            DUE.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        // Somebody else is at it, or this is a signal handler inside it.
        let Ok(mut calibrator) = self.calibrator.try_lock() else {
            return;
        };
        match calibrator.step(Reading::take(counter::now_fenced, monotonic_ns)) {
            Outcome::TooEarly => {}
            Outcome::Line(line) => LATCH.publish(line),
        }
        OFFSET.store(calibrator.offset(), Ordering::Relaxed);
        // A reading that was not good enough is not repeated at every stamp.
        let again = monotonic_ns().saturating_sub(self.start) + RETRY_NS;
        DUE.store(calibrator.due().max(again), Ordering::Relaxed);
    }
}

/// How long to wait after a reading that led to nothing.
const RETRY_NS: u64 = 1_000_000;

fn setup() -> &'static Setup {
    SETUP.get_or_init(|| {
        let (source, reason) = choose();
        let first = Reading::take(counter::now_fenced, monotonic_ns);
        let calibrator = Calibrator::new(first);
        OFFSET.store(first.ns, Ordering::Relaxed);
        DUE.store(calibrator.due(), Ordering::Relaxed);
        if let Some(hz) = counter::nominal_hz().filter(|_| source != Source::OsClock) {
            let mut calibrator = calibrator;
            LATCH.publish(calibrator.assume_rate(hz));
            DUE.store(calibrator.due(), Ordering::Relaxed);
            return Setup {
                start: first.ns,
                source,
                reason,
                calibrator: Mutex::new(calibrator),
            };
        }
        Setup {
            start: first.ns,
            source,
            reason,
            calibrator: Mutex::new(calibrator),
        }
    })
}

fn choose() -> (Source, String) {
    const FILE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    choose_by(
        counter::KIND,
        counter::is_steady(),
        std::fs::read_to_string(FILE).map_err(|e| format!("{FILE}: {e}")),
    )
}

/// `kind`: the counter of this architecture and what the kernel calls it.
fn choose_by(
    kind: Option<(Source, &str)>,
    steady: Result<(), &'static str>,
    in_use: Result<String, String>,
) -> (Source, String) {
    let os = |why: String| (Source::OsClock, why);
    let Some((source, name)) = kind else {
        return os("no counter known for this architecture".into());
    };
    if let Err(why) = steady {
        return os(why.into());
    }
    match in_use.as_deref().map(str::trim) {
        Ok(found) if found == name => (
            source,
            format!("steady counter, and the kernel's clocksource is {name}"),
        ),
        Ok(found) => os(format!("the kernel's clocksource is {found}, not {name}")),
        Err(why) => os(format!("the kernel's clocksource is unknown ({why})")),
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds. About 25 ns (no system call with the usual clock sources).
pub(crate) fn monotonic_ns() -> u64 {
    let t = monotonic();
    t.as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(t.subsec_nanos()))
}

/// `CLOCK_MONOTONIC`.
pub(crate) fn monotonic() -> Duration {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec to a live variable. CLOCK_MONOTONIC always exists on Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    super::cpu::from_parts(t.tv_sec, t.tv_nsec)
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use super::Source;
    use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

    /// The counter and the kernel's name for it.
    pub(super) const KIND: Option<(Source, &str)> = Some((Source::Tsc, "tsc"));

    #[inline]
    pub(super) fn now() -> u64 {
        // SAFETY: unprivileged unless a process asks for PR_TSC_SIGSEGV, whose point is to find such reads.
        unsafe { _rdtsc() }
    }

    /// After everything before it in program order.
    pub(super) fn now_fenced() -> u64 {
        // SAFETY: SSE2 is part of x86-64; the counter as above.
        unsafe {
            _mm_lfence();
            _rdtsc()
        }
    }

    /// CPUID leaf 0x8000_0007, EDX bit 8: one rate in all power states.
    pub(super) fn is_steady() -> Result<(), &'static str> {
        #[allow(
            unused_unsafe,
            reason = "CPUID became a safe function after the oldest supported compiler"
        )]
        // SAFETY: CPUID exists on every x86-64.
        let (last, power) = unsafe { (__cpuid(0x8000_0000).eax, __cpuid(0x8000_0007).edx) };
        if last >= 0x8000_0007 && power >> 8 & 1 == 1 {
            Ok(())
        } else {
            Err("the TSC is not invariant (CPUID)")
        }
    }

    /// Not told reliably on x86-64: measured.
    pub(super) fn nominal_hz() -> Option<u64> {
        None
    }
}

#[cfg(target_arch = "aarch64")]
mod counter {
    use super::Source;
    use std::arch::asm;

    /// The counter and the kernel's name for it.
    pub(super) const KIND: Option<(Source, &str)> = Some((Source::Cntvct, "arch_sys_counter"));

    #[inline]
    pub(super) fn now() -> u64 {
        let ticks: u64;
        // SAFETY: Linux lets user space read CNTVCT_EL0, or emulates the read.
        unsafe {
            asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }

    /// After everything before it in program order.
    pub(super) fn now_fenced() -> u64 {
        let ticks: u64;
        // SAFETY: as above; ISB has no other effect.
        unsafe {
            asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags))
        };
        ticks
    }

    /// The architecture demands it.
    pub(super) fn is_steady() -> Result<(), &'static str> {
        Ok(())
    }

    /// CNTFRQ_EL0, written by firmware. Checked against the clock later, like any other rate.
    pub(super) fn nominal_hz() -> Option<u64> {
        let hz: u64;
        // SAFETY: Linux lets user space read CNTFRQ_EL0.
        unsafe {
            asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags))
        };
        (hz >= 1_000_000).then_some(hz)
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod counter {
    use super::Source;

    pub(super) const KIND: Option<(Source, &str)> = None;

    #[inline]
    pub(super) fn now() -> u64 {
        0
    }

    pub(super) fn now_fenced() -> u64 {
        0
    }

    pub(super) fn is_steady() -> Result<(), &'static str> {
        Err("no counter known for this architecture")
    }

    pub(super) fn nominal_hz() -> Option<u64> {
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
