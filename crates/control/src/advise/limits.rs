//! Rules about limits of items and threads.

use super::{Advice, Inputs, Severity, advice, set};
use crate::snapshot::WqKind;

/// The default `max_active`: nobody chose it.
const DEFAULT_MAX_ACTIVE: u32 = 1024;

/// A per-CPU queue whose limit is the number of CPUs: taken per CPU, it allows the square of what was meant.
pub(super) fn limit_meant_as_global(inputs: &Inputs<'_>) -> Vec<Advice> {
    let cpus = inputs.now.cpu.usable.count() as u32;
    let online = inputs.now.topology.online.count() as u32;
    let mut found = Vec::new();
    for q in &inputs.now.workqueues {
        let looks_global = q.max_active >= 4
            && q.max_active != DEFAULT_MAX_ACTIVE
            && [cpus, online]
                .iter()
                .any(|&n| n > 1 && (q.max_active == n || q.max_active == 2 * n));
        let exceeded = q.counters.peak_active > u64::from(q.max_active);
        if q.kind == WqKind::PerCpu && looks_global {
            let seen = if exceeded {
                format!("; {} were active at once", q.counters.peak_active)
            } else {
                String::new()
            };
            found.push(advice(
                "limit_meant_as_global",
                if exceeded { Severity::Warning } else { Severity::Note },
                &q.name,
                format!(
                    "max_active={} looks like a number of CPUs, but a per-CPU queue takes it for each CPU: up to {} items \
                     may be active{seen}. If the limit is meant for the whole queue, make the queue unbound",
                    q.max_active,
                    u64::from(q.max_active) * u64::from(cpus.max(1)),
                ),
                &[],
            ));
        }
    }
    found
}

/// A chosen limit that is far from ever being reached. Items that waited for a moment because their pool had to fetch a permit
/// first are counted as throttled, too: a few of them say nothing.
pub(super) fn limit_never_reached(inputs: &Inputs<'_>) -> Vec<Advice> {
    let queues = inputs.now.workqueues.iter().filter(|q| {
        q.kind == WqKind::Unbound
            && !q.flags.system
            && q.max_active != DEFAULT_MAX_ACTIVE
            && q.counters.started >= 1000
            && q.counters.throttled * 100 <= q.counters.started
            && q.counters.peak_active > 0
            && q.counters.peak_active * 4 <= u64::from(q.max_active)
    });
    queues
        .map(|q| {
            advice(
                "limit_never_reached",
                Severity::Note,
                &q.name,
                format!(
                    "max_active={} does nothing: of {} items, at most {} were active at once. Lower it to what the resource \
                     behind it stands, or leave it out",
                    q.max_active, q.counters.started, q.counters.peak_active
                ),
                &[],
            )
        })
        .collect()
}

/// Workers were wanted and forbidden by the ceiling.
pub(super) fn thread_ceiling(inputs: &Inputs<'_>) -> Vec<Advice> {
    let now = &inputs.now.threads;
    let refused = now.refused_by_ceiling
        - inputs
            .before
            .map_or(0, |b| b.threads.refused_by_ceiling)
            .min(now.refused_by_ceiling);
    let at_ceiling = now.ceiling > 0 && now.workers >= now.ceiling;
    if refused == 0 && !at_ceiling {
        return Vec::new();
    }
    let blocked: u32 = inputs.now.pools.iter().map(|p| p.blocked).sum();
    let mut says = format!(
        "{} of at most {} worker threads exist and {refused} more were wanted",
        now.workers, now.ceiling
    );
    let mut remedy = Vec::new();
    if u64::from(blocked) * 2 >= u64::from(now.workers).max(1) {
        says += &format!(
            ". {blocked} of them are blocked: first bound the queues whose items block (max_active), or make those items \
             wait asynchronously; a higher ceiling only parks more threads"
        );
    } else {
        says += ". Raise the ceiling if the machine can carry more threads";
        remedy.push(format!(
            "max_threads={}",
            (u64::from(now.ceiling) * 2).clamp(1, 65_536)
        ));
    }
    vec![advice(
        "thread_ceiling",
        Severity::Problem,
        "",
        says,
        &remedy,
    )]
}

/// The system refused threads.
pub(super) fn threads_refused(inputs: &Inputs<'_>) -> Vec<Advice> {
    let now = &inputs.now.threads;
    let failures = now.create_failures
        - inputs
            .before
            .map_or(0, |b| b.threads.create_failures)
            .min(now.create_failures);
    if failures == 0 {
        return Vec::new();
    }
    let unguarded: Vec<&str> = inputs
        .now
        .workqueues
        .iter()
        .filter(|q| q.rescuer.is_none() && q.counters.queued > 0)
        .map(|q| q.name.as_str())
        .collect();
    vec![advice(
        "threads_refused",
        Severity::Problem,
        "",
        format!(
            "the system refused {failures} threads ({}). Look at RLIMIT_NPROC and the cgroup's pids.max; queues without a \
             rescuer make no progress while it lasts: {}",
            if now.last_failure.is_empty() {
                "no reason given"
            } else {
                &now.last_failure
            },
            if unguarded.is_empty() {
                "none".into()
            } else {
                unguarded.join(", ")
            }
        ),
        &[],
    )]
}

/// Advice that a queue's limit holds its items back.
pub(super) fn raise_limit(name: &str, max_active: u32) -> String {
    set(
        name,
        "max_active",
        (max_active.saturating_mul(2)).min(crate::attr::WQ_MAX_ACTIVE),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of, run};
    use super::*;
    use crate::snapshot::{PoolSnapshot, WorkqueueSnapshot};

    #[test]
    fn a_per_cpu_limit_that_equals_the_cpus() {
        let mut q = WorkqueueSnapshot {
            name: "q".into(),
            kind: WqKind::PerCpu,
            max_active: 16,
            ..Default::default()
        };
        let a = run(limit_meant_as_global, &of(vec![q.clone()]));
        assert_eq!(a[0].severity, Severity::Note);
        assert!(a[0].says.contains("256"), "{}", a[0].says);
        q.counters.peak_active = 100;
        assert_eq!(
            run(limit_meant_as_global, &of(vec![q.clone()]))[0].severity,
            Severity::Warning
        );
        q.kind = WqKind::Unbound;
        assert_eq!(run(limit_meant_as_global, &of(vec![q.clone()])), []);
        (q.kind, q.max_active) = (WqKind::PerCpu, 5);
        assert_eq!(run(limit_meant_as_global, &of(vec![q])), []);
    }

    #[test]
    fn a_limit_far_away() {
        let mut q = WorkqueueSnapshot {
            name: "q".into(),
            max_active: 100,
            ..Default::default()
        };
        (q.counters.started, q.counters.peak_active) = (5000, 20);
        assert_eq!(run(limit_never_reached, &of(vec![q.clone()])).len(), 1);
        q.counters.throttled = 50;
        assert_eq!(
            run(limit_never_reached, &of(vec![q.clone()])).len(),
            1,
            "permits are fetched now and then"
        );
        q.counters.throttled = 51;
        assert_eq!(run(limit_never_reached, &of(vec![q.clone()])), []);
        (q.counters.throttled, q.max_active) = (0, DEFAULT_MAX_ACTIVE);
        assert_eq!(run(limit_never_reached, &of(vec![q])), []);
    }

    #[test]
    fn the_ceiling_and_what_to_do_about_it() {
        let mut s = of(vec![]);
        (s.threads.workers, s.threads.ceiling) = (64, 64);
        let a = run(thread_ceiling, &s);
        assert_eq!(a[0].set, ["max_threads=128"]);
        s.pools = vec![PoolSnapshot {
            blocked: 60,
            ..Default::default()
        }];
        let a = run(thread_ceiling, &s);
        assert!(
            a[0].set.is_empty() && a[0].says.contains("60 of them are blocked"),
            "{}",
            a[0].says
        );
        s.threads.workers = 3;
        assert_eq!(run(thread_ceiling, &s), []);
    }

    #[test]
    fn refused_threads_name_the_unguarded_queues() {
        let mut q = WorkqueueSnapshot {
            name: "plain".into(),
            ..Default::default()
        };
        q.counters.queued = 1;
        let mut s = of(vec![q]);
        s.threads.create_failures = 3;
        assert!(run(threads_refused, &s)[0].says.contains("plain"));
    }
}
