//! The system calls of the runtime: one file, one facility.
//!
//! Nothing here decides anything. Every call that can be refused says so in its type ([`error::SysError`]); nothing panics
//! on a refusal, and each file says what the runtime loses by it.
//!
//! | file | facility | without it |
//! |---|---|---|
//! | `futex`, `parker` | sleeping and waking threads | polling at 1 ms |
//! | `barrier` | barriers that only the rare side pays | full fences on both sides |
//! | `clock` | time stamps | `clock_gettime` instead of the counter |
//! | `cpu` | current CPU, affinity, nice, policy, names, CPU time | the call's error; the runtime goes on unpinned |
//! | `sched` | what a sentinel needs: idle class, one CPU | no sentinel; the tick remains |
//! | `thread` | making threads | `SpawnError`; the rescuer remains |
//! | `procstat` | is that thread blocked? | CPU clocks between two looks |
//! | `perf` | context-switch records (opt-in) | `procstat` |
//! | `fork` | noticing a fork | never absent: falls back to `pthread_atfork` |
//! | `sleeper` | sleeping until a descriptor is readable or somebody calls | no following of changes |
//! | `watch` | noticing changed CPU sets and quotas | periodic re-reading |

pub(crate) mod barrier;
pub(crate) mod clock;
pub(crate) mod cpu;
pub(crate) mod error;
pub(crate) mod fork;
pub(crate) mod futex;
#[cfg(any(loom, shuttle))]
mod futex_model;
pub(crate) mod parker;
pub(crate) mod perf;
pub(crate) mod procstat;
pub(crate) mod sched;
pub(crate) mod sleeper;
pub(crate) mod thread;
pub(crate) mod watch;

pub(crate) use error::{Subject, SysError};
