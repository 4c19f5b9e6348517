//! What the runtime tells the application unasked: hogs and stalls.

use crate::shim::leaf::{Mutex, MutexGuard, PoisonError};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How many reports are kept for [`Runtime::reports`](crate::Runtime::reports).
const KEPT: usize = 64;
/// The most functions whose hogs are counted apart (kernel: WCI_MAX_ENTS, 128).
const MAX_FUNCTIONS: usize = 128;

/// Something that the application may want to know. Given to the hook of
/// [`RuntimeBuilder::on_report`](crate::RuntimeBuilder::on_report), and kept for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// A function hogs its CPU again and again.
    Hog(HogReport),
    /// Items wait in a pool that has not started any for long.
    Stall(StallReport),
}

/// A function whose items keep their CPU; reported with the 4th, 5th, 7th, 11th, 19th, ... find.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HogReport {
    /// The queue's name.
    pub queue: String,
    /// The function's name.
    pub item: &'static str,
    /// The worker's thread.
    pub tid: i32,
    /// How long it has been on CPU so far; a lower bound.
    pub on_cpu: Duration,
    /// How often this function was found.
    pub found: u64,
}

/// A worklist that does not move.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StallReport {
    /// The queue whose item waits first.
    pub queue: String,
    /// The pool's number.
    pub pool: u32,
    /// Since when nothing was started.
    pub stalled: Duration,
    /// Items that wait.
    pub waiting: usize,
    /// Workers that are idle (one should then be on its way: our mistake).
    pub idle_workers: u32,
    /// A worker is being made.
    pub creating: bool,
    /// The workers that are busy, at most 16.
    pub workers: Vec<StalledWorker>,
}

/// A busy worker of a stalled pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StalledWorker {
    /// Its thread.
    pub tid: i32,
    /// The queue of its item.
    pub queue: String,
    /// The function that it runs.
    pub item: &'static str,
    /// What the item called itself ([`cmwq::describe`](crate::describe)).
    pub description: String,
    /// How long the function has been running.
    pub running_for: Duration,
    /// Whether it counts as running.
    pub counted: bool,
    /// Whether its thread sleeps, if `/proc` says.
    pub sleeping: Option<bool>,
    /// The kernel function in which it sleeps, if the process may know.
    pub waits_in: Option<String>,
    /// The number of the system call that it is in; same condition.
    pub syscall: Option<i64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Hog(h) => write!(
                f,
                "workqueue \"{}\": {} hogged CPU for more than {:?} {} times (thread {})",
                h.queue, h.item, h.on_cpu, h.found, h.tid
            ),
            Report::Stall(s) => {
                write!(
                    f,
                    "workqueue \"{}\": nothing was started for {:?} in pool {} with {} items waiting, {} idle workers{}",
                    s.queue,
                    s.stalled,
                    s.pool,
                    s.waiting,
                    s.idle_workers,
                    if s.creating { ", one being made" } else { "" }
                )?;
                for w in &s.workers {
                    write!(
                        f,
                        "; thread {} runs {} of \"{}\" for {:?}",
                        w.tid, w.item, w.queue, w.running_for
                    )?;
                    if !w.description.is_empty() {
                        write!(f, " ({})", w.description)?;
                    }
                    match (&w.waits_in, w.syscall, w.sleeping) {
                        (Some(wchan), ..) => write!(f, ", waits in {wchan}")?,
                        (None, Some(n), _) => write!(f, ", in system call {n}")?,
                        (None, None, Some(true)) => f.write_str(", sleeps")?,
                        _ => {}
                    }
                }
                Ok(())
            }
        }
    }
}

/// What the application does with reports.
pub(crate) type ReportHook = Arc<dyn Fn(&Report) + Send + Sync>;

/// Where reports go.
pub(crate) struct Reports {
    hook: Option<ReportHook>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Report>,
    hogs: HashMap<&'static str, u64>,
}

impl Reports {
    pub(crate) fn new(hook: Option<ReportHook>) -> Reports {
        Reports {
            hook,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more find of this function: how many that makes. 0 if it is one function too many.
    pub(super) fn count_hog(&self, item: &'static str) -> u64 {
        let hogs = &mut self.lock().hogs;
        if hogs.len() >= MAX_FUNCTIONS && !hogs.contains_key(item) {
            return 0;
        }
        let n = hogs.entry(item).or_default();
        *n += 1;
        *n
    }

    /// Keeps the report and calls the hook, on the calling thread; a panic of the hook ends there.
    pub(super) fn send(&self, report: &Report) {
        {
            let mut state = self.lock();
            if state.kept.len() == KEPT {
                state.kept.pop_front();
            }
            state.kept.push_back(report.clone());
        }
        if let Some(hook) = &self.hook
            && let Err(payload) =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hook(report)))
        {
            crate::error::drop_payload(payload);
        }
    }

    /// The reports kept, oldest first.
    pub(crate) fn kept(&self) -> Vec<Report> {
        self.lock().kept.iter().cloned().collect()
    }
}
