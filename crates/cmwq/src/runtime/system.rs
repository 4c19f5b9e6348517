//! The system workqueues: shared queues for those who need none of their own.

use super::{RtInner, Runtime};
use crate::workqueue::{Workqueue, WorkqueueBuilder};
use std::sync::Arc;

/// The system workqueues of a runtime, named as in the kernel. Do not put long chains of items that wait for one another
/// here, nor more than a few hundred that block: everybody shares them. Flushing one waits for everybody.
#[derive(Debug, Clone)]
pub struct System {
    /// `events`: per-CPU, for short items.
    pub percpu: Workqueue,
    /// `events_highpri`: per-CPU, taken before normal items.
    pub highpri: Workqueue,
    /// `events_long`: per-CPU, for items that may take long.
    pub long: Workqueue,
    /// `events_unbound`: near the issuing CPU, up to 2048 active. The default choice.
    pub unbound: Workqueue,
    /// `events_dfl_long`: as `unbound`, for items that may take long.
    pub unbound_long: Workqueue,
    /// `events_freezable`: per-CPU, held back by [`Runtime::freeze`].
    pub freezable: Workqueue,
    /// `events_power_efficient`: per-CPU, or unbound if the runtime is power-efficient.
    pub power_efficient: Workqueue,
    /// `events_freezable_pwr_efficient`: both.
    pub freezable_power_efficient: Workqueue,
}

impl Runtime {
    /// The system workqueues, made at first use.
    ///
    /// # Panics
    /// If the runtime was shut down, or in a forked child, before they were first used.
    pub fn system(&self) -> &System {
        self.system.get_or_init(|| System::new(&self.inner))
    }
}

impl System {
    fn new(rt: &Arc<RtInner>) -> System {
        let make = |name: &str, with: fn(WorkqueueBuilder) -> WorkqueueBuilder| {
            let wq = with(WorkqueueBuilder::new(name).system())
                .build_on(Arc::clone(rt))
                .unwrap_or_else(|e| panic!("system workqueue {name}: {e}"));
            Workqueue::new(wq)
        };
        System {
            percpu: make("events", WorkqueueBuilder::per_cpu),
            highpri: make("events_highpri", |b| b.per_cpu().highpri()),
            long: make("events_long", WorkqueueBuilder::per_cpu),
            unbound: make("events_unbound", |b| {
                b.max_active(cmwq_policy::limits::MAX_ACTIVE)
            }),
            unbound_long: make("events_dfl_long", |b| {
                b.max_active(cmwq_policy::limits::MAX_ACTIVE)
            }),
            freezable: make("events_freezable", |b| b.per_cpu().freezable()),
            power_efficient: make("events_power_efficient", |b| b.per_cpu().power_efficient()),
            freezable_power_efficient: make("events_freezable_pwr_efficient", |b| {
                b.per_cpu().freezable().power_efficient()
            }),
        }
    }
}
