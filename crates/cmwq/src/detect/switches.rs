//! Which detectors may be used.

use std::time::Duration;

/// Which means of noticing a blocked worker a runtime may use; for [`RuntimeBuilder::detectors`](crate::RuntimeBuilder::detectors).
///
/// What is allowed here and refused by the system is left out silently; [`Runtime::detection`](crate::Runtime::detection)
/// says which are in force and why. [`cmwq::blocking`](crate::blocking()) always works. With everything off, items that block
/// unseen still get others in their place through fairness (10 ms) and the liveness floor (1 s, then 2 s, 4 s, ...).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Detectors {
    pub(crate) sentinel: bool,
    pub(crate) tick: bool,
    pub(crate) proc_stat: bool,
    pub(crate) records: bool,
    pub(crate) hogs: bool,
    pub(crate) period: Duration,
}

impl Default for Detectors {
    fn default() -> Self {
        Detectors {
            sentinel: true,
            tick: true,
            proc_stat: true,
            records: false,
            hogs: true,
            period: Duration::from_millis(1),
        }
    }
}

impl Detectors {
    /// Sentinel and tick, confirmed through `/proc`: the default.
    pub fn new() -> Self {
        Self::default()
    }

    /// None at all; hogs are not looked for either.
    pub fn none() -> Self {
        Detectors {
            sentinel: false,
            tick: false,
            proc_stat: false,
            records: false,
            hogs: false,
            ..Self::default()
        }
    }

    /// The idle-class thread per CPU in use. On unless switched off.
    pub fn sentinel(mut self, on: bool) -> Self {
        self.sentinel = on;
        self
    }

    /// The tick while items wait. On unless switched off. (Fairness, the liveness floor and the watchdog tick all the same.)
    pub fn tick(mut self, on: bool) -> Self {
        self.tick = on;
        self
    }

    /// Whether `/proc` may be asked what a thread does. Off, as where `/proc` is missing, threads' CPU clocks are compared
    /// between two ticks, which takes longer and cannot tell a preempted worker from a blocked one. On unless switched off.
    pub fn proc_stat(mut self, on: bool) -> Self {
        self.proc_stat = on;
        self
    }

    /// The kernel's context-switch records (`perf_event_open`) instead of `/proc`: exact, about a nanosecond a look, about a
    /// microsecond per context switch of each worker. Off unless switched on.
    pub fn records(mut self, on: bool) -> Self {
        self.records = on;
        self
    }

    /// Whether items that hog their CPU are looked for. On unless switched off.
    pub fn hogs(mut self, on: bool) -> Self {
        self.hogs = on;
        self
    }

    /// The shortest period of the tick, kept within 0.25 to 100 ms; 1 ms if not given. After eight ticks that found nothing
    /// it grows to four times that.
    pub fn tick_period(mut self, period: Duration) -> Self {
        self.period = period.clamp(Duration::from_micros(250), Duration::from_millis(100));
        self
    }
}
