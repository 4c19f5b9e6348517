//! Making a workqueue.

use super::slot::SlotShared;
use super::table::Table;
use super::{Attrs, Released, Workqueue, WorkqueueKind, WqConfig, WqInner, WqState};
use crate::control::WqRecords;
use crate::error::BuildError;
use crate::pinned::PinnedArc;
use crate::runtime::{RtInner, Runtime};
use crate::shim::leaf::OnceLock;
use crate::shim::sync::Mutex;
use cmwq_policy::flush::Flush;
use cmwq_policy::limits;
use cmwq_policy::pool::PwqFlags;
use cmwq_topology::{AffinityScope, CpuSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// How many workers an unbound queue's pools run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrency {
    /// As many as the pod has usable CPUs; a blocked one is replaced. The default.
    #[default]
    Managed,
    /// One per active item, as in the kernel.
    Unmanaged,
}

/// The longest name that is kept, bytes (kernel: WQ_NAME_LEN 32 with the terminating zero).
pub(super) const NAME_BYTES: usize = 31;

/// Settings of a new [`Workqueue`]; start with [`Workqueue::builder`].
#[derive(Debug, Clone)]
#[must_use = "nothing is made until build() is called"]
pub struct WorkqueueBuilder {
    name: String,
    kind: WorkqueueKind,
    runtime: Option<Runtime>,
    max_active: u32,
    min_active: Option<u32>,
    max_pending: usize,
    attrs: Attrs,
    highpri: bool,
    freezable: bool,
    power_efficient: bool,
    guaranteed: bool,
    cpu_intensive: bool,
    concurrency: Concurrency,
    kernel_mode: bool,
    inline_wait: bool,
    system: bool,
}

impl WorkqueueBuilder {
    pub(crate) fn new(name: impl Into<String>) -> WorkqueueBuilder {
        WorkqueueBuilder {
            name: name.into(),
            kind: WorkqueueKind::Unbound,
            runtime: None,
            max_active: 0,
            min_active: None,
            max_pending: 0,
            attrs: Attrs::default(),
            highpri: false,
            freezable: false,
            power_efficient: false,
            guaranteed: false,
            cpu_intensive: false,
            concurrency: Concurrency::Managed,
            kernel_mode: false,
            inline_wait: false,
            system: false,
        }
    }

    /// The runtime whose workers run the items; the process-wide one if not given.
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Items run on the CPU that issued them: one pool a CPU, concurrency-managed.
    pub fn per_cpu(mut self) -> Self {
        self.kind = WorkqueueKind::PerCpu;
        self
    }

    /// Items run in the pool of the issuing CPU's pod. The default.
    pub fn unbound(mut self) -> Self {
        self.kind = WorkqueueKind::Unbound;
        self
    }

    /// Items run one at a time in the order in which they were queued.
    pub fn ordered(mut self) -> Self {
        self.kind = WorkqueueKind::Ordered;
        self
    }

    /// How many items may be active at once: 0 (the default) means 1024; more than 2048 is clamped, with a warning in
    /// [`Runtime::warnings`]. Unbound: across the whole runtime, split over the NUMA nodes by their CPUs, with a floor of
    /// [`min_active`](Self::min_active) each. Per-CPU: on each CPU. Has no meaning for ordered queues.
    pub fn max_active(mut self, n: u32) -> Self {
        self.max_active = n;
        self
    }

    /// The floor of each node's share of `max_active`; 8, or `max_active` if that is less, unless set. Chains of items that
    /// wait for one another must not be longer than this.
    pub fn min_active(mut self, n: u32) -> Self {
        self.min_active = Some(n);
        self
    }

    /// How many items may wait to be started; further ones are refused with [`crate::QueueError::Full`]. 0, the default: no limit.
    pub fn max_pending(mut self, n: usize) -> Self {
        self.max_pending = n;
        self
    }

    /// Nice of the workers, -20..=19.
    pub fn nice(mut self, nice: i32) -> Self {
        self.attrs.nice = nice;
        self
    }

    /// Items are taken before those of normal queues, by workers of nice -20 where that is permitted.
    pub fn highpri(mut self) -> Self {
        self.highpri = true;
        self
    }

    /// The CPUs that items may run on.
    pub fn cpumask(mut self, mask: CpuSet) -> Self {
        self.attrs.cpumask = Some(mask);
        self
    }

    /// Which CPUs share a pool.
    pub fn affinity_scope(mut self, scope: AffinityScope) -> Self {
        self.attrs.scope = scope;
        self
    }

    /// Items never leave the pod of their issuer.
    pub fn affinity_strict(mut self, strict: bool) -> Self {
        self.attrs.strict = strict;
        self
    }

    /// Items start on the issuing CPU itself.
    pub fn localize(mut self, localize: bool) -> Self {
        self.attrs.localize = localize;
        self
    }

    /// All attributes at once.
    pub fn attrs(mut self, attrs: Attrs) -> Self {
        self.attrs = attrs;
        self
    }

    /// The queue takes part in [`Runtime::freeze`].
    pub fn freezable(mut self) -> Self {
        self.freezable = true;
        self
    }

    /// A per-CPU queue becomes unbound if the runtime was built power-efficient.
    pub fn power_efficient(mut self) -> Self {
        self.power_efficient = true;
        self
    }

    /// The queue has a rescuer thread from the beginning, so that its items progress even when no worker can be made
    /// (kernel: WQ_MEM_RECLAIM).
    pub fn guaranteed(mut self) -> Self {
        self.guaranteed = true;
        self
    }

    /// Running items do not count against their CPU's concurrency; per-CPU queues only, no meaning for others.
    pub fn cpu_intensive(mut self) -> Self {
        self.cpu_intensive = true;
        self
    }

    /// How many workers an unbound queue's pools run.
    pub fn concurrency(mut self, c: Concurrency) -> Self {
        self.concurrency = c;
        self
    }

    /// The kernel's ways in everything that can be chosen: unmanaged, no helping, no running of awaited items by the waiter.
    /// For comparison, and for the cautious.
    pub fn kernel_mode(mut self, on: bool) -> Self {
        self.kernel_mode = on;
        self
    }

    /// Threads that are no workers may run the one-shot item that they wait for themselves if it has not started.
    pub fn inline_wait(mut self, on: bool) -> Self {
        self.inline_wait = on;
        self
    }

    pub(crate) fn system(mut self) -> Self {
        self.system = true;
        self
    }

    /// Makes the queue. No thread is made, except the rescuer of a guaranteed queue; pools and workers come with the first
    /// items. May block for a short time on the runtime's table.
    ///
    /// # Errors
    /// [`BuildError::Invalid`] for an empty name or settings that exclude one another, [`BuildError::Attrs`] for a value out of
    /// range, [`BuildError::Thread`] if the rescuer cannot be made, [`BuildError::ShutDown`], [`BuildError::Forked`].
    pub fn build(self) -> Result<Workqueue, BuildError> {
        let rt = match &self.runtime {
            Some(r) => Arc::clone(r.inner()),
            None => Arc::clone(Runtime::global().inner()),
        };
        self.build_on(rt).map(Workqueue::new)
    }

    pub(crate) fn build_on(self, rt: Arc<RtInner>) -> Result<Arc<WqInner>, BuildError> {
        if rt.fork.is_stale() {
            return Err(BuildError::Forked);
        }
        let config = self.config(&rt)?;
        self.attrs.check()?;
        let (max_active, clamped) = limits::clamp_max_active(self.max_active);
        if clamped {
            rt.warn(format!(
                "workqueue \"{}\": max_active {} is out of range, clamped to {max_active}",
                config.name, self.max_active
            ));
        }
        let max_active = if config.kind == WorkqueueKind::Ordered {
            1
        } else {
            max_active
        };
        let min_active = self
            .min_active
            .unwrap_or(limits::DEFAULT_MIN_ACTIVE)
            .min(max_active);
        let machine = rt.machine.load();
        let table = Table::new(&config, &self.attrs, &machine);
        let slots = match config.kind {
            WorkqueueKind::Unbound => (0..=machine.nodes.len())
                .map(|_| Arc::new(SlotShared::new(0)))
                .collect(),
            _ => Vec::new(),
        };
        drop(machine);
        let guaranteed = config.flags.guaranteed;
        let wq = Arc::new(WqInner {
            config,
            table: PinnedArc::new(Arc::new(table)),
            state: Mutex::new(WqState {
                attrs: self.attrs,
                max_active,
                min_active,
                flush: Flush::default(),
                links: Vec::new(),
                slots,
                released: Released::default(),
                drainers: 0,
                frozen: false,
                gone: Vec::new(),
            }),
            closed: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            room: super::room::Room::default(),
            panicked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            records: WqRecords::new(rt.records.number_wq()),
            rescuer: OnceLock::new(),
            rt,
        });
        wq.settle_limits();
        if guaranteed {
            let rescuer = crate::rescuer::Rescuer::start(&wq).map_err(BuildError::Thread)?;
            let _ = wq.rescuer.set(rescuer);
        }
        if let Err(e) = wq.rt.remember_wq(&wq) {
            if let Some(r) = wq.rescuer.get() {
                r.stop();
            }
            return Err(e);
        }
        Ok(wq)
    }

    fn config(&self, rt: &RtInner) -> Result<WqConfig, BuildError> {
        let invalid = |setting, expected: &str| BuildError::Invalid {
            setting,
            expected: expected.to_owned(),
        };
        if self.name.is_empty() {
            return Err(invalid("name", "at least one character"));
        }
        let mut end = self.name.len().min(NAME_BYTES);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        if end < self.name.len() {
            rt.warn(format!(
                "workqueue name \"{}\" is longer than {NAME_BYTES} bytes and was cut",
                self.name
            ));
        }
        let kind = match self.kind {
            WorkqueueKind::PerCpu if self.power_efficient && rt.power_efficient => {
                WorkqueueKind::Unbound
            }
            k => k,
        };
        if self.kind == WorkqueueKind::PerCpu && self.attrs.cpumask.is_some() {
            return Err(invalid(
                "cpumask",
                "an unbound or ordered workqueue: a per-CPU one uses each CPU's own pool",
            ));
        }
        if kind == WorkqueueKind::Ordered && self.max_active > 1 {
            return Err(invalid(
                "max_active",
                "0 or 1 for an ordered workqueue, which runs one item at a time",
            ));
        }
        let managed = self.concurrency == Concurrency::Managed && !self.kernel_mode;
        Ok(WqConfig {
            name: self.name[..end].into(),
            kind,
            flags: PwqFlags {
                guaranteed: self.guaranteed,
                cpu_intensive: self.cpu_intensive,
                helpable: kind == WorkqueueKind::Unbound && !self.kernel_mode,
            },
            freezable: self.freezable,
            highpri: self.highpri,
            kernel_mode: self.kernel_mode,
            managed,
            inline_wait: self.inline_wait && !self.kernel_mode,
            max_pending: self.max_pending,
            system: self.system,
        })
    }
}
