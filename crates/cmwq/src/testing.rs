//! A runtime for tests: single-threaded, with a clock of its own, driven by a seed.
//!
//! Items run on the testing thread, in an order that the seed chooses among those that real threads could produce; the same
//! seed gives the same order. Time stands still unless [`advance`](TestRuntime::advance) moves it or a wait jumps to the next timer.
//!
//! ```
//! use cmwq::testing::TestRuntime;
//! use std::time::Duration;
//!
//! let rt = TestRuntime::new(7);
//! let wq = rt.workqueue("cache").build()?;
//! let n = wq.spawn(|| 40 + 2);
//! rt.run_until_idle();
//! assert!(n.is_finished());
//! assert_eq!(n.join()?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::runtime::{Runtime, TimeSource, manual::Manual};
use crate::workqueue::WorkqueueBuilder;
use cmwq_topology::Topology;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module text.
#[derive(Debug, Clone)]
pub struct TestRuntime {
    runtime: Runtime,
}

impl TestRuntime {
    /// A runtime of four CPUs on one node.
    pub fn new(seed: u64) -> TestRuntime {
        TestRuntime::with_topology(
            seed,
            Topology::synthetic(FOUR_CPUS).expect("a valid description"),
        )
    }

    /// A runtime on this machine.
    pub fn with_topology(seed: u64, topology: Topology) -> TestRuntime {
        let clock = Arc::new(AtomicU64::new(1));
        let manual = Manual::new(seed, Arc::clone(&clock));
        let runtime = Runtime::builder()
            .topology(topology)
            .manual(manual, TimeSource::Virtual(clock))
            .build()
            .expect("the settings are valid");
        TestRuntime { runtime }
    }

    /// The runtime, for calls that want one.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts the settings of a workqueue of this runtime.
    pub fn workqueue(&self, name: impl Into<String>) -> WorkqueueBuilder {
        self.runtime.workqueue(name)
    }

    /// Lets one worker, chosen by the seed, work until it has nothing left. False if there is nothing to do now.
    pub fn step(&self) -> bool {
        self.runtime.inner().step_once()
    }

    /// Steps until nothing is left to do at the present time.
    pub fn run_until_idle(&self) {
        while self.step() {}
    }

    /// Moves the clock on, firing timers in their order and running what they queue.
    pub fn advance(&self, by: Duration) {
        let rt = self.runtime.inner();
        let manual = rt.manual.as_ref().expect("driven by hand");
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let end = manual.clock.load(Ordering::Relaxed).saturating_add(by);
        self.run_until_idle();
        while let Some(due) = rt.timers.next_due().filter(|due| *due <= end) {
            manual.clock.fetch_max(due, Ordering::Relaxed);
            self.run_until_idle();
        }
        manual.clock.store(end, Ordering::Relaxed);
        self.run_until_idle();
    }

    /// The clock, since the runtime was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.runtime.inner().time.now() - 1)
    }

    /// How many items have run.
    pub fn items_run(&self) -> u64 {
        self.runtime
            .inner()
            .manual
            .as_ref()
            .expect("driven by hand")
            .steps
            .load(Ordering::Relaxed)
    }
}

/// One node, one last-level cache, four cores.
const FOUR_CPUS: &str = "package:1 l3:1 core:4";
