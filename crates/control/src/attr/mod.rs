//! Attributes that can be read and written while a process runs: names, kinds, parsing, refusals.
//!
//! Names are the kernel's (`/sys/devices/virtual/workqueue/WQ/*` and `/sys/module/workqueue/parameters/*`). Values are parsed
//! exactly: the whole text must be a value of the attribute (one trailing newline is allowed). The kernel accepts more by
//! accident (`3x` as 3, `cachex` as `cache`, `4294967297` as 1); here these are errors that say what was expected.
//!
//! [`Setting::parse`] turns text into a typed value; a [`Process`](crate::Process) applies it. Everything here is pure: no
//! clocks, no locks, no system calls; may be called from anywhere.

mod error;
mod parse;
mod registry;

pub use error::{SetError, SetErrorKind};
pub use parse::{ParseContext, Parsed, format_bool, format_scope};
pub use registry::{Access, Attr, AttrInfo, Level};

use cmwq_topology::{AffinityScope, CpuSet};

/// The largest `max_active`; larger requests are clamped to it (the kernel's `WQ_MAX_ACTIVE` since 6.13).
pub const WQ_MAX_ACTIVE: u32 = 2048;

/// A parsed value for one attribute: what [`Process::set`](crate::Process::set) receives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// `max_active`, 1..=[`WQ_MAX_ACTIVE`] (already clamped).
    MaxActive(u32),
    /// `min_active`, 0..=[`WQ_MAX_ACTIVE`]; the process clamps it to the queue's `max_active`.
    MinActive(u32),
    /// `nice`, -20..=19.
    Nice(i32),
    /// A queue's `cpumask`; may be empty (then the global mask is in force).
    Cpumask(CpuSet),
    /// `affinity_scope`.
    AffinityScope(AffinityScope),
    /// `affinity_strict`.
    AffinityStrict(bool),
    /// `localize`.
    Localize(bool),
    /// `kernel_mode`.
    KernelMode(bool),
    /// The global mask of unbound queues; never empty.
    GlobalCpumask(CpuSet),
    /// `default_affinity_scope`; never [`AffinityScope::Default`].
    DefaultAffinityScope(AffinityScope),
    /// `cpu_intensive_thresh_us`; 0 switches the detection off.
    CpuIntensiveThreshUs(u64),
    /// `cpu_intensive_warning_thresh`; 0 silences the reports.
    CpuIntensiveWarningThresh(u32),
    /// `watchdog_thresh`, seconds; 0 switches the watchdog off.
    WatchdogThresh(u64),
    /// `panic_on_stall`: abort at the n-th stall report; 0 never.
    PanicOnStall(u32),
    /// `panic_on_stall_time`, seconds: abort when one stall lasts as long; 0 never.
    PanicOnStallTime(u32),
    /// `debug_force_rr_cpu`: pick CPUs round robin, to find code that assumes local execution.
    DebugForceRrCpu(bool),
    /// `max_threads`: ceiling of worker threads.
    MaxThreads(u32),
    /// `fairness_thresh_us`: how long a queue's first item may wait while none of its items runs in the pool.
    FairnessThreshUs(u64),
}

impl Setting {
    /// Which attribute it is for.
    pub fn attr(&self) -> Attr {
        match self {
            Setting::MaxActive(_) => Attr::MaxActive,
            Setting::MinActive(_) => Attr::MinActive,
            Setting::Nice(_) => Attr::Nice,
            Setting::Cpumask(_) => Attr::Cpumask,
            Setting::AffinityScope(_) => Attr::AffinityScope,
            Setting::AffinityStrict(_) => Attr::AffinityStrict,
            Setting::Localize(_) => Attr::Localize,
            Setting::KernelMode(_) => Attr::KernelMode,
            Setting::GlobalCpumask(_) => Attr::GlobalCpumask,
            Setting::DefaultAffinityScope(_) => Attr::DefaultAffinityScope,
            Setting::CpuIntensiveThreshUs(_) => Attr::CpuIntensiveThreshUs,
            Setting::CpuIntensiveWarningThresh(_) => Attr::CpuIntensiveWarningThresh,
            Setting::WatchdogThresh(_) => Attr::WatchdogThresh,
            Setting::PanicOnStall(_) => Attr::PanicOnStall,
            Setting::PanicOnStallTime(_) => Attr::PanicOnStallTime,
            Setting::DebugForceRrCpu(_) => Attr::DebugForceRrCpu,
            Setting::MaxThreads(_) => Attr::MaxThreads,
            Setting::FairnessThreshUs(_) => Attr::FairnessThreshUs,
        }
    }
}
