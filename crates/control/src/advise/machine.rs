//! Rules about items that hog or fail, and about what the machine allows.

use super::{Advice, Inputs, Severity, advice, set};
use crate::snapshot::{MechanismState, WqKind};

/// A queue with more hogs than one in so many items is a queue for computing.
const HOGS_ONE_IN: u64 = 20;

/// Items that stay on their CPU for longer than the threshold.
pub(super) fn hogs(inputs: &Inputs<'_>) -> Vec<Advice> {
    let mut found = Vec::new();
    for q in &inputs.now.workqueues {
        let c = inputs.counters(q);
        if q.flags.cpu_intensive || c.cpu_intensive < 4 || c.cpu_intensive * HOGS_ONE_IN < c.started
        {
            continue;
        }
        let (says, remedy) = match q.kind {
            WqKind::PerCpu => (
                "other items of their CPU wait for them; make the queue unbound (or flag it cpu_intensive), or cut the items",
                vec![],
            ),
            _ => (
                "cut them into pieces, or give the queue a higher nice so that short work passes them",
                vec![set(&q.name, "nice", 10)],
            ),
        };
        found.push(advice(
            "hogs",
            if q.kind == WqKind::PerCpu {
                Severity::Warning
            } else {
                Severity::Note
            },
            &q.name,
            format!(
                "{} of {} items were on their CPU for longer than the threshold: {says}",
                c.cpu_intensive, c.started
            ),
            &remedy,
        ));
    }
    found
}

/// Items that panic.
pub(super) fn panics(inputs: &Inputs<'_>) -> Vec<Advice> {
    let queues = inputs
        .now
        .workqueues
        .iter()
        .map(|q| (q, inputs.counters(q).panicked))
        .filter(|(_, n)| *n > 0);
    queues
        .map(|(q, n)| {
            advice(
                "panics",
                Severity::Warning,
                &q.name,
                format!("{n} items panicked; their results are lost"),
                &[],
            )
        })
        .collect()
}

/// Blocked workers are noticed only if they say so.
pub(super) fn detection_is_blind(inputs: &Inputs<'_>) -> Vec<Advice> {
    let d = &inputs.now.detection;
    let sees = |state| matches!(state, MechanismState::InForce | MechanismState::Paused);
    let wanted = [
        ("sentinel", &d.sentinel),
        ("tick", &d.tick),
        ("records", &d.records),
    ];
    let denied: Vec<String> = wanted
        .iter()
        .filter(|(_, m)| m.state == MechanismState::Unavailable)
        .map(|(name, m)| format!("{name}: {}", m.reason))
        .collect();
    if denied.is_empty() || wanted.iter().any(|(_, m)| sees(m.state)) {
        return Vec::new();
    }
    vec![advice(
        "detection_is_blind",
        Severity::Warning,
        "",
        format!(
            "blocked workers are noticed only where the program says so with `blocking` ({}); others hold their place until \
             the liveness floor adds a worker after a second",
            denied.join("; ")
        ),
        &[],
    )]
}

/// The cgroup's quota throttles the process.
pub(super) fn throttled_by_quota(inputs: &Inputs<'_>) -> Vec<Advice> {
    let Some(quota) = &inputs.now.cpu.quota else {
        return Vec::new();
    };
    let before = inputs
        .before
        .and_then(|b| b.cpu.quota.as_ref())
        .and_then(|q| q.throttled)
        .unwrap_or(0);
    let throttled = quota.throttled.unwrap_or(0).saturating_sub(before);
    let cpus = inputs.now.cpu.usable.count();
    if throttled == 0 || quota.cpus >= cpus as f64 {
        return Vec::new();
    }
    vec![advice(
        "throttled_by_quota",
        Severity::Warning,
        "",
        format!(
            "the cgroup may use {:.2} CPUs and was throttled {throttled} times; while it is, every item of the process \
             stands still. Raise cpu.max, or run less at once",
            quota.cpus
        ),
        &[],
    )]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of, run};
    use super::*;
    use crate::snapshot::{Mechanism, Quota, WorkqueueSnapshot};

    #[test]
    fn hogs_by_kind() {
        let mut q = WorkqueueSnapshot {
            name: "q".into(),
            kind: WqKind::PerCpu,
            ..Default::default()
        };
        (q.counters.started, q.counters.cpu_intensive) = (100, 10);
        assert_eq!(
            run(hogs, &of(vec![q.clone()]))[0].severity,
            Severity::Warning
        );
        q.kind = WqKind::Unbound;
        assert_eq!(run(hogs, &of(vec![q.clone()]))[0].set, ["q nice=10"]);
        q.counters.started = 10_000;
        assert_eq!(run(hogs, &of(vec![q.clone()])), []);
        (q.counters.started, q.flags.cpu_intensive) = (100, true);
        assert_eq!(run(hogs, &of(vec![q])), []);
    }

    #[test]
    fn panics_are_named() {
        let mut q = WorkqueueSnapshot {
            name: "q".into(),
            ..Default::default()
        };
        q.counters.panicked = 2;
        assert_eq!(run(panics, &of(vec![q]))[0].workqueue, "q");
    }

    #[test]
    fn blind_only_if_everything_is_denied() {
        let mut s = of(vec![]);
        let denied = Mechanism {
            state: MechanismState::Unavailable,
            reason: "no /proc".into(),
            ..Default::default()
        };
        s.detection.tick = denied;
        assert!(run(detection_is_blind, &s)[0].says.contains("no /proc"));
        s.detection.sentinel.state = MechanismState::InForce;
        assert_eq!(run(detection_is_blind, &s), []);
    }

    #[test]
    fn quota_counts_only_what_happened_meanwhile() {
        let mut s = of(vec![]);
        s.cpu.quota = Some(Quota {
            cpus: 1.5,
            throttled: Some(9),
            ..Default::default()
        });
        assert_eq!(run(throttled_by_quota, &s).len(), 1);
        assert_eq!(
            throttled_by_quota(&Inputs {
                now: &s,
                before: Some(&s)
            }),
            []
        );
    }
}
