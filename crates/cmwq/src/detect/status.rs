//! What is in force, why, and what it costs.

use std::time::Duration;

/// How a detector is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DetectorState {
    /// In use.
    InForce,
    /// Would be used, and was not needed yet.
    Ready,
    /// Switched off by the builder.
    Off,
    /// The system refused it; another one takes its place.
    Refused,
}

impl DetectorState {
    /// One word for tables.
    pub fn as_str(self) -> &'static str {
        match self {
            DetectorState::InForce => "in force",
            DetectorState::Ready => "ready",
            DetectorState::Off => "off",
            DetectorState::Refused => "refused",
        }
    }
}

/// One detector of a runtime at one moment; from [`Runtime::detection`](crate::Runtime::detection).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DetectorStatus {
    /// `said`, `sentinel`, `tick`, `proc-stat`, `cpu-clock`, `records`, `hogs`.
    pub name: &'static str,
    /// How it is.
    pub state: DetectorState,
    /// Why, for people.
    pub reason: String,
    /// CPU time that its own threads have used. The tick's is that of the thread that also culls and watches for stalls.
    pub cpu: Duration,
    /// Threads of its own, now.
    pub threads: usize,
    /// How often it looked, or was told.
    pub looks: u64,
    /// How often that found a blocked worker (or a hog).
    pub found: u64,
}

/// Why worker threads were made and why they left, since the runtime was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadCounts {
    /// Items waited and fewer than the target ran.
    pub born_demand: u64,
    /// A pool began to work without an idle worker in reserve.
    pub born_reserve: u64,
    /// A worker blocked while items waited.
    pub born_blocked: u64,
    /// A queue's first item had waited too long.
    pub born_fairness: u64,
    /// A CPU-intensive item was set aside.
    pub born_hog: u64,
    /// Nothing had finished for too long.
    pub born_floor: u64,
    /// Workers made because another pod's items waited and this pod had a CPU to spare.
    pub born_help: u64,
    /// Left after having been idle too long.
    pub left_culled: u64,
    /// Left because their pool ended.
    pub left_shutdown: u64,
    /// Threads that the system would not make.
    pub failed: u64,
    /// Threads whose CPU mask or nice could not be set as wished.
    pub misplaced: u64,
    /// Workers whose CPU mask somebody else has set; they are left alone.
    pub adopted: u64,
}
