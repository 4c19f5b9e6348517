//! The table of attributes.

use super::{SetError, SetErrorKind};
use crate::snapshot::WqKind;

/// An attribute of a queue or of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Attr {
    /// `per_cpu` of a queue: 1 for a per-CPU queue.
    PerCpu,
    /// `max_active` of a queue.
    MaxActive,
    /// `min_active` of a queue.
    MinActive,
    /// `nice` of a queue.
    Nice,
    /// `cpumask` of a queue.
    Cpumask,
    /// `affinity_scope` of a queue.
    AffinityScope,
    /// `affinity_strict` of a queue.
    AffinityStrict,
    /// `localize` of a queue.
    Localize,
    /// `kernel_mode` of a queue.
    KernelMode,
    /// The global `cpumask` of unbound queues.
    GlobalCpumask,
    /// The global mask as it was asked for.
    CpumaskRequested,
    /// CPUs kept out of the global mask.
    CpumaskIsolated,
    /// What the scope `default` means.
    DefaultAffinityScope,
    /// Cores per cache shard.
    CacheShardSize,
    /// After how long on its CPU an item is CPU-intensive.
    CpuIntensiveThreshUs,
    /// From which repetition on CPU-intensive functions are reported.
    CpuIntensiveWarningThresh,
    /// Whether power-efficient queues are unbound.
    PowerEfficient,
    /// Round-robin CPU choice for debugging.
    DebugForceRrCpu,
    /// After how long a worklist that does not move is reported.
    WatchdogThresh,
    /// Abort at the n-th stall report.
    PanicOnStall,
    /// Abort when a stall lasts as long.
    PanicOnStallTime,
    /// Ceiling of worker threads.
    MaxThreads,
    /// When the fairness rule grants an extra worker.
    FairnessThreshUs,
}

/// Whether an attribute belongs to a queue or to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Of one queue.
    Workqueue,
    /// Of the runtime.
    Global,
}

/// Whether an attribute can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    ReadOnly,
    /// Read and written (where the queue's kind and the process allow).
    ReadWrite,
}

/// What is known about an attribute.
#[derive(Clone, Copy, Debug)]
pub struct AttrInfo {
    /// The attribute.
    pub attr: Attr,
    /// Its name.
    pub name: &'static str,
    /// Queue or runtime.
    pub level: Level,
    /// Read-only or not.
    pub access: Access,
    /// What a value looks like.
    pub expects: &'static str,
    /// One line of help.
    pub help: &'static str,
}

use Access::{ReadOnly, ReadWrite};
use Level::{Global, Workqueue};

const fn info(
    attr: Attr,
    name: &'static str,
    level: Level,
    access: Access,
    expects: &'static str,
    help: &'static str,
) -> AttrInfo {
    AttrInfo {
        attr,
        name,
        level,
        access,
        expects,
        help,
    }
}

const TABLE: &[AttrInfo] = &[
    info(
        Attr::PerCpu,
        "per_cpu",
        Workqueue,
        ReadOnly,
        "0 or 1",
        "1 for a per-CPU queue",
    ),
    info(
        Attr::MaxActive,
        "max_active",
        Workqueue,
        ReadWrite,
        "a whole number from 1 to 2048",
        "limit of active items: per CPU for a per-CPU queue, for the whole system otherwise",
    ),
    info(
        Attr::MinActive,
        "min_active",
        Workqueue,
        ReadWrite,
        "a whole number from 0 to max_active",
        "active items that every node may have whatever its share of max_active",
    ),
    info(
        Attr::Nice,
        "nice",
        Workqueue,
        ReadWrite,
        "a whole number from -20 to 19",
        "nice level of the workers (below 0 needs a privilege)",
    ),
    info(
        Attr::Cpumask,
        "cpumask",
        Workqueue,
        ReadWrite,
        "a hexadecimal mask such as `ff` or `1,00000003`, or a list such as `0-3,8` (`list:0,2` where no range is in it)",
        "CPUs that the queue may use; empty means the global mask",
    ),
    info(
        Attr::AffinityScope,
        "affinity_scope",
        Workqueue,
        ReadWrite,
        "one of default, cpu, smt, cache_shard, cache, numa, system",
        "how CPUs are grouped into pods",
    ),
    info(
        Attr::AffinityStrict,
        "affinity_strict",
        Workqueue,
        ReadWrite,
        "0 or 1",
        "1 holds workers to their pod even while other pods idle",
    ),
    info(
        Attr::Localize,
        "localize",
        Workqueue,
        ReadWrite,
        "0 or 1",
        "1 starts items on the issuing CPU itself",
    ),
    info(
        Attr::KernelMode,
        "kernel_mode",
        Workqueue,
        ReadWrite,
        "0 or 1",
        "1 behaves as the kernel does: unmanaged, no helping, no inline waiting",
    ),
    info(
        Attr::GlobalCpumask,
        "cpumask",
        Global,
        ReadWrite,
        "a hexadecimal mask such as `ff`, or a list such as `0-3,8` (`list:0,2` where no range is in it), not empty",
        "CPUs that unbound queues may use",
    ),
    info(
        Attr::CpumaskRequested,
        "cpumask_requested",
        Global,
        ReadOnly,
        "a mask",
        "the global cpumask as asked for",
    ),
    info(
        Attr::CpumaskIsolated,
        "cpumask_isolated",
        Global,
        ReadOnly,
        "a mask",
        "CPUs kept out of the global cpumask",
    ),
    info(
        Attr::DefaultAffinityScope,
        "default_affinity_scope",
        Global,
        ReadWrite,
        "one of cpu, smt, cache_shard, cache, numa, system",
        "what the scope `default` means",
    ),
    info(
        Attr::CacheShardSize,
        "cache_shard_size",
        Global,
        ReadOnly,
        "a whole number",
        "cores per cache shard",
    ),
    info(
        Attr::CpuIntensiveThreshUs,
        "cpu_intensive_thresh_us",
        Global,
        ReadWrite,
        "microseconds, 0 to switch off",
        "after how long on its CPU an item counts as CPU-intensive",
    ),
    info(
        Attr::CpuIntensiveWarningThresh,
        "cpu_intensive_warning_thresh",
        Global,
        ReadWrite,
        "a whole number, 0 to silence",
        "from which repetition on a CPU-intensive function is reported",
    ),
    info(
        Attr::PowerEfficient,
        "power_efficient",
        Global,
        ReadOnly,
        "Y or N",
        "power-efficient queues are unbound",
    ),
    info(
        Attr::DebugForceRrCpu,
        "debug_force_rr_cpu",
        Global,
        ReadWrite,
        "Y or N (also 1, 0, y, n, on, off)",
        "choose CPUs round robin, to find code that assumes local execution; slow",
    ),
    info(
        Attr::WatchdogThresh,
        "watchdog_thresh",
        Global,
        ReadWrite,
        "seconds up to 2147483, 0 to switch off",
        "after how long a worklist that does not move is reported",
    ),
    info(
        Attr::PanicOnStall,
        "panic_on_stall",
        Global,
        ReadWrite,
        "a whole number, 0 for never",
        "abort the process at the n-th stall report",
    ),
    info(
        Attr::PanicOnStallTime,
        "panic_on_stall_time",
        Global,
        ReadWrite,
        "seconds, 0 for never",
        "abort the process when one stall lasts as long",
    ),
    info(
        Attr::MaxThreads,
        "max_threads",
        Global,
        ReadWrite,
        "a whole number from 1 to 65536",
        "ceiling of worker threads",
    ),
    info(
        Attr::FairnessThreshUs,
        "fairness_thresh_us",
        Global,
        ReadWrite,
        "microseconds, 0 to switch off",
        "how long a queue may wait in a pool where none of its items runs before it gets an extra worker",
    ),
];

impl Attr {
    /// Every attribute, queues' first, in the order in which they are shown.
    pub fn all() -> impl Iterator<Item = &'static AttrInfo> {
        TABLE.iter()
    }

    /// Looks an attribute up by its name at a level (`cpumask` is one thing for a queue and another for the runtime).
    ///
    /// # Errors
    /// [`SetErrorKind::NotFound`], naming the attributes that exist, or the level at which this one does.
    pub fn find(name: &str, level: Level) -> Result<Attr, SetError> {
        if let Some(info) = TABLE.iter().find(|i| i.name == name && i.level == level) {
            return Ok(info.attr);
        }
        let message = if TABLE.iter().any(|i| i.name == name) {
            match level {
                Level::Global => {
                    format!("`{name}` is an attribute of a workqueue: name the queue too")
                }
                Level::Workqueue => {
                    format!("`{name}` is an attribute of the whole process: leave the queue out")
                }
            }
        } else {
            let known: Vec<&str> = TABLE
                .iter()
                .filter(|i| i.level == level)
                .map(|i| i.name)
                .collect();
            let whose = if level == Level::Global {
                "the process"
            } else {
                "a workqueue"
            };
            format!("no attribute `{name}`; {whose} has {}", known.join(", "))
        };
        Err(SetError::not_found(message))
    }

    /// What is known about it.
    pub fn info(self) -> &'static AttrInfo {
        TABLE
            .iter()
            .find(|i| i.attr == self)
            .expect("the table has every attribute: tested")
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Whether it can be written at all.
    ///
    /// # Errors
    /// [`SetErrorKind::ReadOnly`].
    pub fn check_writable(self) -> Result<(), SetError> {
        match self.info().access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(SetError::new(
                SetErrorKind::ReadOnly,
                format!("{}: read-only ({})", self.name(), self.info().help),
            )),
        }
    }

    /// Whether it exists for queues of that kind (reading; the kernel has no file otherwise).
    pub fn exists_for(self, kind: WqKind) -> bool {
        match self {
            Attr::MinActive | Attr::Localize => kind == WqKind::Unbound,
            Attr::Nice | Attr::Cpumask | Attr::AffinityScope | Attr::AffinityStrict => {
                kind != WqKind::PerCpu
            }
            _ => true,
        }
    }

    /// Whether it can be written on a queue of that kind.
    ///
    /// # Errors
    /// [`SetErrorKind::ReadOnly`] for attributes that nobody can write and for `max_active` of ordered queues,
    /// [`SetErrorKind::WrongKind`] for those that the kind does not have.
    pub fn check_kind(self, kind: WqKind) -> Result<(), SetError> {
        self.check_writable()?;
        if self == Attr::MaxActive && kind == WqKind::Ordered {
            return Err(SetError::new(
                SetErrorKind::ReadOnly,
                "max_active: an ordered queue runs one item at a time; its limit is always 1",
            ));
        }
        if !self.exists_for(kind) {
            return Err(SetError::new(
                SetErrorKind::WrongKind,
                format!(
                    "{}: does not apply to a queue of kind `{}`",
                    self.name(),
                    kind.as_str()
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_per_level_and_found() {
        for i in Attr::all() {
            assert_eq!(Attr::find(i.name, i.level), Ok(i.attr));
            assert_eq!(i.attr.name(), i.name);
        }
    }

    #[test]
    fn wrong_level_and_unknown_names_say_what_to_do() {
        let e = Attr::find("nice", Level::Global).unwrap_err();
        assert_eq!(e.kind, SetErrorKind::NotFound);
        assert!(e.message.contains("name the queue"), "{e}");
        let e = Attr::find("watchdog_thresh", Level::Workqueue).unwrap_err();
        assert!(e.message.contains("leave the queue out"), "{e}");
        let e = Attr::find("max_activ", Level::Workqueue).unwrap_err();
        assert!(e.message.contains("max_active, min_active"), "{e}");
        assert_ne!(
            Attr::find("cpumask", Level::Global),
            Attr::find("cpumask", Level::Workqueue)
        );
    }

    #[test]
    fn kinds_refuse_what_they_lack() {
        let kind = |a: Attr, k| a.check_kind(k).map_err(|e| e.kind);
        assert_eq!(
            kind(Attr::MaxActive, WqKind::Ordered),
            Err(SetErrorKind::ReadOnly)
        );
        assert_eq!(kind(Attr::MaxActive, WqKind::PerCpu), Ok(()));
        assert_eq!(
            kind(Attr::MinActive, WqKind::PerCpu),
            Err(SetErrorKind::WrongKind)
        );
        assert_eq!(
            kind(Attr::Nice, WqKind::PerCpu),
            Err(SetErrorKind::WrongKind)
        );
        assert_eq!(kind(Attr::Nice, WqKind::Ordered), Ok(()));
        assert_eq!(
            kind(Attr::PerCpu, WqKind::Unbound),
            Err(SetErrorKind::ReadOnly)
        );
    }
}
