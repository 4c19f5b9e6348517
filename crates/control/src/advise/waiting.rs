//! Rules about work that waits.

use std::collections::HashMap;

use super::limits::raise_limit;
use super::{Advice, Inputs, Severity, advice, human_ns, set};
use crate::CpuSet;
use crate::snapshot::{
    PoolSnapshot, Snapshot, WorkerSnapshot, WorkerState, WorkqueueSnapshot, WqKind,
};

/// A wait that is long for any queue, ns.
const LONG_WAIT_NS: u64 = 1_000_000_000;
/// A 99th percentile that is long if items themselves are short, ns.
const SLOW_START_NS: f64 = 50e6;
/// An item that waits longer than this while CPUs idle is given away, ns.
const LATE_NS: u64 = 1_000_000;
/// So many workers in one place are a crowd.
const CROWD: usize = 4;

/// Pools whose worklist does not move.
pub(super) fn stalled(inputs: &Inputs<'_>) -> Vec<Advice> {
    let mut found = Vec::new();
    for pool in &inputs.now.pools {
        let Some(stalled) = pool.stalled_ns else {
            continue;
        };
        let busy: Vec<String> = pool
            .worker_list
            .iter()
            .filter(|w| !w.func.is_empty())
            .take(4)
            .map(|w| {
                let on = if w.blocked_on.is_empty() {
                    String::new()
                } else {
                    format!(", blocked on {}", w.blocked_on)
                };
                format!(
                    "{} (thread {}, {}{on})",
                    w.func,
                    w.tid,
                    human_ns(w.for_ns as f64)
                )
            })
            .collect();
        let by = if busy.is_empty() {
            "no worker runs an item there".into()
        } else {
            busy.join("; ")
        };
        found.push(advice(
            "stalled",
            Severity::Problem,
            "",
            format!(
                "pool {} has not moved for {} with {} items waiting: {by}",
                pool.id,
                human_ns(stalled as f64),
                pool.worklist
            ),
            &[],
        ));
    }
    found
}

/// Queues whose items wait too long, and for what.
pub(super) fn starving(inputs: &Inputs<'_>) -> Vec<Advice> {
    inputs
        .now
        .workqueues
        .iter()
        .filter_map(|q| starving_queue(inputs, q))
        .collect()
}

fn starving_queue(inputs: &Inputs<'_>, q: &WorkqueueSnapshot) -> Option<Advice> {
    if q.flags.frozen {
        return None;
    }
    let oldest = q
        .pending
        .items
        .iter()
        .chain(&q.inactive.items)
        .map(|i| i.age_ns)
        .max()
        .unwrap_or(0);
    let waits = match inputs.earlier(q) {
        Some(old) => q.queue_to_start.since(&old.queue_to_start),
        None => q.queue_to_start.clone(),
    };
    let runs = match inputs.earlier(q) {
        Some(old) => q.run_time.since(&old.run_time),
        None => q.run_time.clone(),
    };
    let p99 = waits.quantile_ns(0.99).unwrap_or(0.0);
    let median_run = runs.quantile_ns(0.5).unwrap_or(0.0);
    let slow = waits.total() >= 100 && p99 > SLOW_START_NS && p99 > 20.0 * median_run;
    if oldest < LONG_WAIT_NS && !slow {
        return None;
    }
    let mut says = if oldest >= LONG_WAIT_NS {
        format!("its oldest item has waited for {}", human_ns(oldest as f64))
    } else {
        format!(
            "1 % of its items wait longer than {} for a start, but run for {}",
            human_ns(p99),
            human_ns(median_run)
        )
    };
    let mut remedy = Vec::new();
    if q.inactive.total > 0 && q.kind != WqKind::Ordered {
        says += &format!(
            "; {} items are held back by max_active={}",
            q.inactive.total, q.max_active
        );
        remedy.push(raise_limit(&q.name, q.max_active));
    } else if q.inactive.total > 0 {
        says += "; it is ordered: one item at a time. Make items shorter, or use several ordered queues";
    } else if let Some(other) = who_is_in_the_way(inputs.now, q) {
        says += &format!(
            "; the workers of its pools run items of `{other}`. Lower that queue's max_active, or give it a higher nice"
        );
        remedy.push(set(&other, "nice", 10));
    } else {
        says += "; its pools run as many workers as they may. More CPUs, or less work";
    }
    let severity = if oldest >= LONG_WAIT_NS {
        Severity::Problem
    } else {
        Severity::Warning
    };
    Some(advice("starving", severity, &q.name, says, &remedy))
}

/// The other queue whose items most of the busy workers of this queue's pools run.
fn who_is_in_the_way(now: &Snapshot, q: &WorkqueueSnapshot) -> Option<String> {
    let mut by_queue: HashMap<&str, usize> = HashMap::new();
    let mut busy = 0;
    for pool in now
        .pools
        .iter()
        .filter(|p| q.pwqs.iter().any(|pwq| pwq.pool == p.id))
    {
        for w in pool.worker_list.iter().filter(|w| !w.workqueue.is_empty()) {
            busy += 1;
            *by_queue.entry(&w.workqueue).or_default() += 1;
        }
    }
    let (&name, &count) = by_queue
        .iter()
        .max_by_key(|(name, count)| (**count, **name))?;
    (name != q.name && count * 2 > busy).then(|| name.to_owned())
}

/// Many workers blocked in one function, or on one thing: more concurrency makes it worse.
pub(super) fn blocked_on_one_thing(inputs: &Inputs<'_>) -> Vec<Advice> {
    let mut found = Vec::new();
    for q in &inputs.now.workqueues {
        let workers = || {
            inputs
                .now
                .pools
                .iter()
                .flat_map(|p| &p.worker_list)
                .filter(|w| w.workqueue == q.name && !w.func.is_empty())
        };
        let busy = workers().count();
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        for w in workers().filter(|w| w.state == WorkerState::Blocked) {
            *places.entry((&w.func, &w.blocked_on)).or_default() += 1;
        }
        let Some((&(func, on), &count)) = places
            .iter()
            .max_by_key(|(place, count)| (**count, **place))
        else {
            continue;
        };
        if count < CROWD || count * 2 < busy {
            continue;
        }
        let on = if on.is_empty() {
            String::new()
        } else {
            format!(" on {on}")
        };
        let fewer = (busy - count).max(2);
        let remedy = if q.kind == WqKind::Ordered {
            vec![]
        } else {
            vec![set(&q.name, "max_active", fewer)]
        };
        found.push(advice(
            "blocked_on_one_thing",
            Severity::Warning,
            &q.name,
            format!(
                "{count} of its {busy} busy workers are blocked{on} in {func}. If that is one lock, more concurrency only makes \
                 the line longer: lower max_active, or shorten the locked part"
            ),
            &remedy,
        ));
    }
    found
}

/// A strict queue whose items wait in one pod while other pods idle.
pub(super) fn strict_with_idle_pods(inputs: &Inputs<'_>) -> Vec<Advice> {
    let mut found = Vec::new();
    for q in inputs
        .now
        .workqueues
        .iter()
        .filter(|q| q.attrs.affinity_strict && q.kind != WqKind::Ordered)
    {
        let Some(scope) = inputs.now.topology.scope(&q.attrs.effective_scope) else {
            continue;
        };
        let full = |p: &&PoolSnapshot| {
            p.strict
                && q.pwqs.iter().any(|pwq| pwq.pool == p.id)
                && p.oldest_ns.is_some_and(|age| age > LATE_NS)
                && p.target.is_none_or(|target| p.running >= target)
        };
        let waiting: u32 = inputs
            .now
            .pools
            .iter()
            .filter(full)
            .map(|p| p.worklist)
            .sum();
        let allowed = q.attrs.effective_cpumask.to_set();
        let idle = scope
            .pods
            .iter()
            .map(|pod| pod.cpus.to_set())
            .filter(|pod| pod.intersects(&allowed))
            .filter(|pod| !inputs.now.pools.iter().any(|p| works_in(p, pod)))
            .count();
        if waiting > 0 && idle > 0 {
            found.push(advice(
                "strict_with_idle_pods",
                Severity::Warning,
                &q.name,
                format!(
                    "{waiting} items wait in pods that are full while {idle} of {} pods of scope {} have nothing to do; \
                     affinity_strict keeps the work from them",
                    scope.pods.len(),
                    q.attrs.effective_scope
                ),
                &[set(&q.name, "affinity_strict", 0)],
            ));
        }
    }
    found
}

/// Whether workers of this pool run in this pod. Those of a pool that spans several are where they were last seen; one that
/// was seen nowhere may be anywhere.
fn works_in(pool: &PoolSnapshot, pod: &CpuSet) -> bool {
    let cpus = pool.pod_cpus.to_set();
    if pool.running == 0 || !cpus.intersects(pod) {
        return false;
    }
    let runs =
        |w: &&WorkerSnapshot| matches!(w.state, WorkerState::Running | WorkerState::CpuIntensive);
    let mut running = pool.worker_list.iter().filter(runs).peekable();
    cpus.is_subset(pod)
        || running.peek().is_none()
        || running.any(|w| w.cpu.is_none_or(|cpu| pod.contains(cpu as usize)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of, run};
    use super::*;
    use crate::CpuList;
    use crate::snapshot::{ItemSnapshot, PodSnapshot, PwqSnapshot, ScopeSnapshot};

    fn queue(name: &str) -> WorkqueueSnapshot {
        WorkqueueSnapshot {
            name: name.into(),
            max_active: 8,
            pwqs: vec![PwqSnapshot::default()],
            ..Default::default()
        }
    }

    fn worker(workqueue: &str, state: WorkerState, on: &'static str) -> WorkerSnapshot {
        WorkerSnapshot {
            workqueue: workqueue.into(),
            func: "f".into(),
            state,
            blocked_on: on.into(),
            tid: 7,
            ..Default::default()
        }
    }

    #[test]
    fn a_stalled_pool_says_who_sits_in_it() {
        let mut s = of(vec![]);
        s.pools = vec![PoolSnapshot {
            stalled_ns: Some(40_000_000_000),
            worklist: 3,
            worker_list: vec![worker("q", WorkerState::Blocked, "futex")],
            ..Default::default()
        }];
        let a = run(stalled, &s);
        assert!(
            a[0].says.contains("f (thread 7") && a[0].says.contains("futex"),
            "{}",
            a[0].says
        );
        s.pools[0].stalled_ns = None;
        assert_eq!(run(stalled, &s), []);
    }

    #[test]
    fn starving_by_limit_by_neighbour_and_by_load() {
        let item = ItemSnapshot {
            age_ns: 3 * LONG_WAIT_NS,
            ..Default::default()
        };
        let mut q = queue("late");
        q.inactive.push(item.clone());
        let a = run(starving, &of(vec![q.clone()]));
        assert_eq!(a[0].set, ["late max_active=16"]);
        q.inactive = Default::default();
        q.pending.push(item);
        let mut s = of(vec![q]);
        assert!(run(starving, &s)[0].says.contains("More CPUs"));
        s.pools = vec![PoolSnapshot {
            worker_list: vec![worker("bulk", WorkerState::Running, ""); 3],
            ..Default::default()
        }];
        assert_eq!(run(starving, &s)[0].set, ["bulk nice=10"]);
        s.workqueues[0].flags.frozen = true;
        assert_eq!(run(starving, &s), []);
    }

    #[test]
    fn slow_starts_of_short_items() {
        let mut q = queue("q");
        for _ in 0..200 {
            q.queue_to_start.record(80_000_000);
            q.run_time.record(100_000);
        }
        assert_eq!(
            run(starving, &of(vec![q.clone()]))[0].severity,
            Severity::Warning
        );
        // Items that run as long as they wait have nothing to complain about.
        for _ in 0..2000 {
            q.run_time.record(80_000_000);
        }
        assert_eq!(run(starving, &of(vec![q])), []);
    }

    #[test]
    fn a_crowd_before_one_lock() {
        let mut s = of(vec![queue("q")]);
        let mut workers = vec![worker("q", WorkerState::Blocked, "futex"); 10];
        workers.push(worker("q", WorkerState::Running, ""));
        s.pools = vec![PoolSnapshot {
            worker_list: workers,
            ..Default::default()
        }];
        let a = run(blocked_on_one_thing, &s);
        assert!(a[0].says.contains("10 of its 11"), "{}", a[0].says);
        assert_eq!(a[0].set, ["q max_active=2"]);
        s.pools[0].worker_list.truncate(3);
        assert_eq!(run(blocked_on_one_thing, &s), []);
    }

    #[test]
    fn strictness_that_wastes_pods() {
        let mut q = queue("q");
        q.attrs.affinity_strict = true;
        q.attrs.effective_scope = "cache".into();
        q.attrs.effective_cpumask = CpuList::from_cpus(0..8);
        let mut s = of(vec![q]);
        let pod = |range| PodSnapshot {
            cpus: CpuList::from_cpus(range),
            node: None,
        };
        s.topology.scopes = vec![ScopeSnapshot {
            name: "cache".into(),
            pods: vec![pod(0..4), pod(4..8)],
        }];
        s.pools = vec![PoolSnapshot {
            strict: true,
            pod_cpus: CpuList::from_cpus(0..4),
            worklist: 9,
            oldest_ns: Some(5_000_000),
            running: 4,
            target: Some(4),
            ..Default::default()
        }];
        assert_eq!(
            run(strict_with_idle_pods, &s)[0].set,
            ["q affinity_strict=0"]
        );
        // A pool of the whole machine keeps only those pods busy where its workers are.
        let wide = |cpu| PoolSnapshot {
            pod_cpus: CpuList::from_cpus(0..8),
            running: 1,
            worker_list: vec![WorkerSnapshot {
                cpu,
                ..worker("bulk", WorkerState::Running, "")
            }],
            ..Default::default()
        };
        s.pools.push(wide(Some(1)));
        assert_eq!(run(strict_with_idle_pods, &s).len(), 1);
        for busy in [Some(5), None] {
            s.pools[1] = wide(busy);
            assert_eq!(run(strict_with_idle_pods, &s), [], "{busy:?}");
        }
        s.pools.truncate(1);
        s.workqueues[0].attrs.affinity_strict = false;
        assert_eq!(run(strict_with_idle_pods, &s), []);
    }
}
