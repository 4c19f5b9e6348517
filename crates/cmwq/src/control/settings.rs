//! Reading and changing attributes by the kernel's names.

use crate::error::AttrsError;
use crate::runtime::RtInner;
use crate::workqueue::{Attrs, WqInner, wq_kind};
use cmwq_control::Target;
use cmwq_control::attr::{
    Access, Attr, Level, ParseContext, SetError, SetErrorKind, Setting, format_bool, format_scope,
};
use cmwq_control::snapshot::{Tunable, WqKind};
use cmwq_topology::{AffinityScope, CpuSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const NS_PER_S: u64 = 1_000_000_000;

/// What parsing needs to know.
pub(super) fn parse_context(rt: &RtInner) -> ParseContext {
    ParseContext {
        nr_cpu_ids: width(rt) as u32,
    }
}

fn width(rt: &RtInner) -> usize {
    rt.machine
        .load()
        .topology
        .possible()
        .last()
        .map_or(1, |c| c + 1)
}

fn hex(rt: &RtInner, mask: &CpuSet) -> String {
    mask.mask().width(width(rt)).to_string()
}

fn find(rt: &RtInner, name: &str) -> Result<Arc<WqInner>, SetError> {
    let wqs = rt.wqs();
    wqs.iter()
        .find(|wq| &**wq.name() == name)
        .map(Arc::clone)
        .ok_or_else(|| {
            let mut names: Vec<&str> = wqs.iter().map(|wq| &**wq.name()).collect();
            names.dedup();
            SetError::not_found(if names.is_empty() {
                format!("no workqueue `{name}`; this process has none")
            } else {
                format!("no workqueue `{name}`; there are: {}", names.join(", "))
            })
        })
}

fn unsupported(attr: Attr) -> SetError {
    SetError::unsupported(format!("{}: this runtime does not have it", attr.name()))
}

fn fixed(attr: Attr, when: &str) -> SetError {
    SetError::unsupported(format!(
        "{}: is chosen {when} and cannot be changed afterwards",
        attr.name()
    ))
}

fn refused(attr: Attr, e: &AttrsError) -> SetError {
    let kind = match e {
        AttrsError::WrongKind { .. } => SetErrorKind::WrongKind,
        AttrsError::Closed { .. } => SetErrorKind::Busy,
        AttrsError::Forked => SetErrorKind::NotPermitted,
        AttrsError::OutOfRange { .. } | AttrsError::EmptyMask { .. } => SetErrorKind::Invalid,
    };
    SetError::new(kind, format!("{}: {e}", attr.name()))
}

/// See [`cmwq_control::Process::get`].
pub(super) fn get(rt: &Arc<RtInner>, target: &Target, attr: Attr) -> Result<String, SetError> {
    match target {
        Target::Global => global(rt, attr),
        Target::Workqueue(name) => of_queue(rt, &*find(rt, name)?, attr),
    }
}

fn global(rt: &RtInner, attr: Attr) -> Result<String, SetError> {
    let machine = rt.machine.load();
    Ok(match attr {
        Attr::GlobalCpumask => hex(rt, &machine.global),
        Attr::CpumaskRequested => hex(rt, machine.requested.as_ref().unwrap_or(&machine.global)),
        Attr::CpumaskIsolated => hex(rt, machine.topology.isolated()),
        Attr::DefaultAffinityScope => machine.default_scope.name().to_owned(),
        Attr::CacheShardSize => machine.shard_size.to_string(),
        Attr::PowerEfficient => format_bool(attr, rt.power_efficient).to_owned(),
        Attr::WatchdogThresh => {
            (rt.detect.watchdog_ns.load(Ordering::Relaxed) / NS_PER_S).to_string()
        }
        Attr::CpuIntensiveThreshUs => (rt.detect.hog_ns.load(Ordering::Relaxed) / 1000).to_string(),
        Attr::FairnessThreshUs => {
            (rt.records.fairness_ns.load(Ordering::Relaxed) / 1000).to_string()
        }
        Attr::CpuIntensiveWarningThresh => rt.detect.warn_at.load(Ordering::Relaxed).to_string(),
        Attr::DebugForceRrCpu => format_bool(attr, rt.force_rr.load(Ordering::Relaxed)).to_owned(),
        Attr::PanicOnStall => rt.detect.abort.count().to_string(),
        Attr::PanicOnStallTime => (rt.detect.abort.time_ns() / NS_PER_S).to_string(),
        Attr::MaxThreads => rt.max_threads.load(Ordering::Relaxed).to_string(),
        _ => return Err(unsupported(attr)),
    })
}

fn of_queue(rt: &RtInner, wq: &WqInner, attr: Attr) -> Result<String, SetError> {
    let kind = wq_kind(wq.config.kind);
    if !attr.exists_for(kind) {
        return Err(SetError::new(
            SetErrorKind::WrongKind,
            format!(
                "{}: a queue of kind `{}` has none",
                attr.name(),
                kind.as_str()
            ),
        ));
    }
    let (attrs, max_active, min_active) = {
        let state = wq.lock();
        (state.attrs.clone(), state.max_active, state.min_active)
    };
    let machine = rt.machine.load();
    Ok(match attr {
        Attr::PerCpu => format_bool(attr, kind == WqKind::PerCpu).to_owned(),
        Attr::MaxActive => max_active.to_string(),
        Attr::MinActive => min_active.to_string(),
        Attr::Nice => attrs.nice.to_string(),
        Attr::Cpumask => hex(
            rt,
            attrs
                .cpumask
                .as_ref()
                .unwrap_or(machine.topology.possible()),
        ),
        Attr::AffinityScope => {
            // An ordered queue has one pool, whatever its scope.
            let in_force = match kind {
                WqKind::Ordered => AffinityScope::System,
                _ => attrs.scope.resolve(machine.default_scope),
            };
            format_scope(attrs.scope.name(), in_force.name())
        }
        Attr::AffinityStrict => format_bool(attr, attrs.strict).to_owned(),
        Attr::Localize => format_bool(attr, attrs.localize).to_owned(),
        Attr::KernelMode => format_bool(attr, wq.config.kernel_mode).to_owned(),
        _ => return Err(unsupported(attr)),
    })
}

/// See [`cmwq_control::Process::set`].
pub(super) fn set(
    rt: &Arc<RtInner>,
    target: &Target,
    setting: &Setting,
) -> Result<String, SetError> {
    let attr = setting.attr();
    attr.check_writable()?;
    match target {
        Target::Global => set_global(rt, setting)?,
        Target::Workqueue(name) => {
            let wq = find(rt, name)?;
            attr.check_kind(wq_kind(wq.config.kind))?;
            set_queue(rt, &wq, setting)?;
        }
    }
    get(rt, target, attr)
}

fn set_global(rt: &Arc<RtInner>, setting: &Setting) -> Result<(), SetError> {
    match setting {
        Setting::MaxThreads(n) => {
            rt.max_threads.store(*n as usize, Ordering::Relaxed);
            Ok(())
        }
        Setting::GlobalCpumask(mask) => {
            let possible = rt.machine.load().topology.possible().clone();
            if !mask.intersects(&possible) {
                return Err(SetError::invalid(format!(
                    "cpumask: `{}` has none of the possible CPUs {possible}; expected {}",
                    mask.list(),
                    Attr::GlobalCpumask.info().expects
                )));
            }
            rt.change_machine(|m| m.reset(Some(mask.clone()), m.default_scope));
            Ok(())
        }
        Setting::DefaultAffinityScope(scope) => {
            let scope = scope.resolve(AffinityScope::DEFAULT);
            rt.change_machine(|m| m.reset(m.requested.clone(), scope));
            Ok(())
        }
        Setting::WatchdogThresh(s) => {
            rt.detect
                .watchdog_ns
                .store(s.saturating_mul(NS_PER_S), Ordering::Relaxed);
            Ok(())
        }
        Setting::CpuIntensiveThreshUs(us) => {
            let ns = us.saturating_mul(1000);
            rt.detect.hog_ns.store(ns, Ordering::Relaxed);
            rt.reconfigure(|c| c.hog_ns = ns);
            Ok(())
        }
        Setting::FairnessThreshUs(us) => {
            let ns = us.saturating_mul(1000);
            rt.records.fairness_ns.store(ns, Ordering::Relaxed);
            rt.reconfigure(|c| c.fairness_ns = ns);
            Ok(())
        }
        Setting::CpuIntensiveWarningThresh(n) => {
            rt.detect.warn_at.store(*n, Ordering::Relaxed);
            Ok(())
        }
        Setting::DebugForceRrCpu(on) => {
            rt.force_round_robin(*on);
            Ok(())
        }
        Setting::PanicOnStall(n) => {
            rt.detect.abort.set_count(*n);
            Ok(())
        }
        Setting::PanicOnStallTime(s) => {
            rt.detect.abort.set_time(Duration::from_secs(u64::from(*s)));
            Ok(())
        }
        other if other.attr().info().level == Level::Workqueue => {
            Err(SetError::not_found(format!(
                "`{}` is an attribute of a workqueue: name the queue too",
                other.attr().name()
            )))
        }
        other => Err(SetError::unsupported(format!(
            "{}: this runtime cannot change it while it runs",
            other.attr().name()
        ))),
    }
}

fn set_queue(rt: &RtInner, wq: &Arc<WqInner>, setting: &Setting) -> Result<(), SetError> {
    let attr = setting.attr();
    let change = |f: &dyn Fn(&mut Attrs)| {
        wq.change_attrs(f)
            .map(|_| ())
            .map_err(|e| refused(attr, &e))
    };
    match setting {
        Setting::MaxActive(n) => wq
            .set_max_active(*n)
            .map(|_| ())
            .map_err(|e| refused(attr, &e)),
        Setting::MinActive(n) => wq
            .set_min_active(*n)
            .map(|_| ())
            .map_err(|e| refused(attr, &e)),
        Setting::Nice(n) => change(&|a| a.nice = *n),
        Setting::Cpumask(mask) => {
            let possible = rt.machine.load().topology.possible().clone();
            // Every CPU, or none, is what a queue without a mask of its own has.
            let all = mask.is_empty() || possible.is_subset(mask);
            change(&|a| a.cpumask = (!all).then(|| mask.clone()))
        }
        Setting::AffinityScope(scope) => change(&|a| a.scope = *scope),
        Setting::AffinityStrict(on) => change(&|a| a.strict = *on),
        Setting::Localize(on) => change(&|a| a.localize = *on),
        Setting::KernelMode(_) => Err(fixed(attr, "when the queue is made")),
        _ => Err(unsupported(attr)),
    }
}

/// Every attribute of the runtime that has a value.
pub(super) fn tunables(rt: &RtInner) -> Vec<Tunable> {
    Attr::all()
        .filter(|info| info.level == Level::Global)
        .filter_map(|info| {
            Some(Tunable {
                name: info.name.into(),
                value: global(rt, info.attr).ok()?,
                writable: info.access == Access::ReadWrite,
            })
        })
        .collect()
}
