//! Taking a snapshot.
//!
//! In this order, so that no number is counted twice: the queues' CPU accounts and settings, then pool by pool what its lock
//! guards (one pool's lock at a time, and never for longer than it takes to copy counters and at most [`SCAN`] items), then,
//! with no lock held, the CPU clocks of workers that are in an item.

use super::records::unix_ms;
use super::waits::Waiters;
use super::words;
use crate::detect::{DetectorState, DetectorStatus};
use crate::item::ItemPtr;
use crate::pool::{Inner, PoolKey, RtPool, WorkerShared};
use crate::runtime::{Machine, RtInner};
use crate::sys::clock::{Clock, monotonic_ns};
use crate::sys::cpu;
use crate::sys::procstat::{StallReport, nr_throttled};
use crate::workqueue::{PwqLink, WqInner, WqReport};
use cmwq_control::histogram::HistogramSnapshot;
use cmwq_control::snapshot::{
    Clock as ClockSnapshot, CpuView, Detail, Detection, ItemList, ItemSnapshot, Mechanism,
    MechanismState, NodeCpus, PodSnapshot, PoolKind, PoolSnapshot, ProcessInfo, PwqSnapshot, Quota,
    RescuerSnapshot, SNAPSHOT_FORMAT, ScopeSnapshot, Snapshot, ThreadTotals, TopologySummary,
    WorkerRole, WorkerSnapshot, WorkerState,
};
use cmwq_control::{CpuList, Label};
use cmwq_policy::hist::Histogram;
use cmwq_policy::pool::{self as policy, PwqId, Time, WorkerKind};
use cmwq_topology::{AffinityScope, CpuSet, masks};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most items of one pool that a snapshot looks at: about 50 us under the lock.
const SCAN: usize = 4096;

/// Of how many blocked workers of a pool a snapshot asks what they are blocked on: some 30 us each.
const BLOCKED_LOOKS: usize = 32;

/// What one pool said.
struct PoolView {
    shown: PoolSnapshot,
    pwqs: Vec<PwqView>,
    workers: Vec<WorkerView>,
}

struct PwqView {
    link: Arc<PwqLink>,
    counters: policy::PwqCounters,
    wait: Option<Histogram>,
    run: Option<Histogram>,
    run_sum: u64,
    peak_active: u32,
    peak_waiting: u32,
    active: u32,
    inactive: usize,
    running: u32,
    limit: u32,
    mayday: bool,
    pending_items: Vec<ItemSnapshot>,
    inactive_items: Vec<ItemSnapshot>,
}

struct WorkerView {
    shown: WorkerSnapshot,
    shared: Option<Arc<WorkerShared>>,
    /// Whose item it runs, and how long that had waited.
    link: Option<Arc<PwqLink>>,
    waited_ns: u64,
    /// Those who wait for that item.
    waiters: Option<Behind>,
}

/// Those who wait for an item.
struct Behind {
    count: u32,
    tids: Vec<u32>,
}

impl Behind {
    fn of(item: ItemPtr, count: u32, waiters: &mut Waiters) -> Option<Behind> {
        (count > 0).then(|| Behind {
            count,
            tids: waiters.take(item, count),
        })
    }

    /// As the kernel shows its barriers, behind the item.
    fn shown(self, func: &Label, pool: u32) -> ItemSnapshot {
        ItemSnapshot {
            func: func.clone(),
            count: self.count,
            pool,
            barrier: true,
            waiters: self.tids,
            ..ItemSnapshot::default()
        }
    }
}

/// The state of a runtime now.
pub(super) fn snapshot(rt: &Arc<RtInner>, info: ProcessInfo, detail: Detail) -> Snapshot {
    let begun = monotonic_ns();
    Clock::maintain();
    let machine = rt.machine.load_full();
    let wqs = rt.wqs();
    let mut reports: Vec<WqReport> = wqs.iter().map(|wq| wq.report(detail, &machine)).collect();
    let place: HashMap<*const WqInner, usize> = wqs
        .iter()
        .enumerate()
        .map(|(i, wq)| (Arc::as_ptr(wq), i))
        .collect();

    let mut waiters = rt.records.waits.list();
    let mut pools = rt.pools();
    pools.sort_by_key(|p| p.id);
    let mut views: Vec<PoolView> = pools
        .into_iter()
        .filter_map(|pool| look_at(rt, pool, &machine, detail, &mut waiters))
        .collect();

    let mut running_cpu = vec![0_u64; wqs.len()];
    for view in &mut views {
        for w in &mut view.workers {
            let Some(i) = w.link.as_ref().and_then(|l| place.get(&Arc::as_ptr(&l.wq))) else {
                continue;
            };
            running_cpu[*i] += w.shared.as_ref().map_or(0, |s| used_since_read(s));
            let wq = &mut reports[*i].shown;
            w.shown.workqueue = wq.name.clone();
            if detail.items {
                wq.in_flight.push(ItemSnapshot {
                    func: w.shown.func.clone(),
                    count: 1,
                    age_ns: w.shown.for_ns,
                    waited_ns: Some(w.waited_ns),
                    pool: view.shown.id,
                    tid: Some(w.shown.tid),
                    role: w.shown.role,
                    ..ItemSnapshot::default()
                });
                let barrier = w
                    .waiters
                    .take()
                    .map(|waiters| waiters.shown(&w.shown.func, view.shown.id));
                barrier.into_iter().for_each(|b| wq.in_flight.push(b));
            }
        }
        for pwq in view.pwqs.drain(..) {
            if let Some(i) = place.get(&Arc::as_ptr(&pwq.link.wq)) {
                add_pwq(&mut reports[*i], pwq);
            }
        }
        if detail.workers {
            view.shown.nice_in_force = view
                .workers
                .iter()
                .find(|w| w.shown.tid != 0 && w.shown.role == WorkerRole::Worker)
                .and_then(|w| cpu::nice(w.shown.tid as i32).ok())
                .unwrap_or(view.shown.nice);
            let blocked = view
                .workers
                .iter_mut()
                .filter(|w| w.shown.state == WorkerState::Blocked && w.shown.tid != 0);
            for w in blocked.take(BLOCKED_LOOKS) {
                w.shown.blocked_on = blocked_on(w.shown.tid as i32);
            }
            view.shown.worker_list = view.workers.iter().map(|w| w.shown.clone()).collect();
        }
    }
    let mut rescuers = 0;
    let workqueues = wqs
        .iter()
        .zip(reports)
        .zip(running_cpu)
        .map(|((wq, mut report), running)| {
            finish_wq(wq, &mut report, running, detail);
            if let Some(tid) = wq.rescuer_tid() {
                rescuers += 1;
                let busy = views
                    .iter()
                    .flat_map(|v| &v.workers)
                    .any(|w| w.shown.tid == tid as u32);
                report.shown.rescuer = Some(RescuerSnapshot {
                    tid: tid as u32,
                    cpus: CpuList::from(&machine.global),
                    busy,
                });
            }
            report.shown
        })
        .collect();
    let status = rt.detect.status();
    let detectors = status.iter().map(|s| s.threads as u32).sum::<u32>();
    let mut snapshot = Snapshot {
        format: SNAPSHOT_FORMAT,
        process: info,
        clock: ClockSnapshot {
            monotonic_ns: begun,
            unix_ms: unix_ms(),
            build_ns: 0,
        },
        topology: if detail.topology {
            topology(&machine)
        } else {
            TopologySummary::default()
        },
        cpu: cpu_view(rt, &machine),
        pools: views.into_iter().map(|v| v.shown).collect(),
        workqueues,
        detection: detection(&status),
        threads: threads(rt, rescuers + detectors),
        tunables: super::settings::tunables(rt),
    };
    snapshot.clock.build_ns = monotonic_ns().saturating_sub(begun);
    snapshot
}

/// What a blocked thread waits in: a kernel function if the process may know it, else a system call's number, else nothing.
fn blocked_on(tid: i32) -> Label {
    let seen = StallReport::of(tid);
    match (seen.wchan, seen.syscall) {
        (Some(wchan), _) => wchan.into(),
        (None, Some(n)) => format!("system call {n}").into(),
        (None, None) => Label::default(),
    }
}

/// One pool: settles what batches have done, then copies. None if it has ended meanwhile.
fn look_at(
    rt: &RtInner,
    pool: &'static RtPool,
    machine: &Machine,
    detail: Detail,
    waiters: &mut Waiters,
) -> Option<PoolView> {
    pool.link_in_parts();
    pool.with(|p, drv| {
        let now = drv.now();
        p.recall_all(now, drv);
    });
    let name = if detail.workers {
        rt.worker_name(pool)
    } else {
        String::new()
    };
    let near = !pool.outward.near().list.is_empty();
    let mut view = pool.inspect(|inner| copy(inner, rt, detail, &name, near, waiters))?;
    view.shown.id = pool.id;
    view.shown.help_given = pool.outward.given();
    let pod = view.shown.pod_cpus.to_set();
    view.shown.node =
        masks::node_of_mask(&pod, &machine.pods(AffinityScope::Numa)).map(|n| n as u32);
    for pwq in &mut view.pwqs {
        let items = pwq.pending_items.iter_mut().chain(&mut pwq.inactive_items);
        items.for_each(|item| item.pool = pool.id);
    }
    Some(view)
}

/// What the pool's lock guards.
fn copy(
    inner: &Inner,
    rt: &RtInner,
    detail: Detail,
    name: &str,
    helped_by_others: bool,
    waiters: &mut Waiters,
) -> Option<PoolView> {
    if !inner
        .rt
        .as_ref()
        .is_some_and(|own| std::ptr::eq(Arc::as_ptr(own), rt))
    {
        return None;
    }
    let key = inner.key.as_ref()?;
    let p = &inner.policy;
    let now = inner.time.now();
    let counts = *p.counts();
    let (cpu, strict, cpus) = match key {
        PoolKey::PerCpu { cpu, .. } => (Some(*cpu as u32), true, CpuSet::of(*cpu)),
        PoolKey::Unbound {
            strict, mask, pod, ..
        } => (None, *strict, mask.clone().unwrap_or_else(|| pod.clone())),
    };
    let mut shown = PoolSnapshot {
        kind: if cpu.is_some() {
            PoolKind::PerCpu
        } else {
            PoolKind::Unbound
        },
        cpu,
        flags: if counts.creating > 0 { 2 } else { 0 } | if p.is_disassociated() { 4 } else { 0 },
        refcnt: inner.users as u32,
        nice: key.nice(),
        nice_in_force: key.nice(),
        workers: counts.own(),
        idle: counts.idle,
        cpus: CpuList::from(&cpus),
        pod_cpus: CpuList::from(&key.pod()),
        strict,
        target: (p.target() != u32::MAX).then(|| p.target()),
        running: counts.running,
        blocked: counts.blocked,
        cpu_intensive: p.workers().filter(|(_, w)| w.is_hog()).count() as u32,
        worklist: p.waiting() as u32,
        oldest_ns: p.worklist().next().map(|e| now.saturating_sub(e.queued_at)),
        last_progress_ns: monotonic_of(p.last_progress()),
        births: words::births(|i| inner.births[i]),
        deaths: words::deaths(|i| inner.deaths[i]),
        ..PoolSnapshot::default()
    };
    let mut pwqs: HashMap<PwqId, PwqView> = inner
        .links
        .iter()
        .enumerate()
        .filter_map(|(id, link)| Some((id as PwqId, link.as_ref()?)))
        .map(|(id, link)| (id, pwq_view(p.pwq(id), link, detail)))
        .collect();
    // Per-CPU, strict and unmanaged pools are never helped; nor is one without others near it.
    if matches!(
        key,
        PoolKey::Unbound {
            strict: false,
            managed: true,
            ..
        }
    ) && helped_by_others
    {
        shown.hedge_delay_ns = Some(rt.wakes.hedge_ns());
    }
    shown.wakeup_p99_ns = Some(rt.wakes.p99_ns()).filter(|ns| *ns > 0);
    shown.help_received = pwqs.values().map(|v| v.counters.helped).sum();
    if let Some(stalled) = stalled(rt, p, now) {
        shown.stalled_ns = Some(stalled);
    }
    // Running items first: see `Waiters::take`.
    let workers = p
        .workers()
        .map(|(id, w)| worker_view(inner, id, w, now, name, waiters))
        .collect();
    if detail.items {
        list_items(inner, &mut pwqs, waiters, now);
    }
    let mut pwqs: Vec<(PwqId, PwqView)> = pwqs.into_iter().collect();
    pwqs.sort_by_key(|(id, _)| *id);
    Some(PoolView {
        shown,
        pwqs: pwqs.into_iter().map(|(_, v)| v).collect(),
        workers,
    })
}

/// For how long the worklist has not moved, if that is longer than the watchdog allows.
fn stalled(rt: &RtInner, p: &crate::pool::Policy, now: Time) -> Option<u64> {
    let limit = rt.detect.watchdog_ns.load(Ordering::Relaxed);
    let still = now.saturating_sub(p.last_progress());
    (limit > 0 && p.waiting() > 0 && still > limit).then_some(still)
}

fn pwq_view(pwq: &policy::Pwq, link: &Arc<PwqLink>, detail: Detail) -> PwqView {
    PwqView {
        link: Arc::clone(link),
        counters: pwq.counters,
        wait: detail.histograms.then(|| pwq.wait.clone()),
        run: detail.histograms.then(|| pwq.run.clone()),
        run_sum: pwq.run.sum,
        peak_active: pwq.peak_active,
        peak_waiting: pwq.peak_waiting,
        active: pwq.active(),
        inactive: pwq.inactive_len(),
        running: pwq.running(),
        limit: pwq.limit(),
        mayday: pwq.wants_rescue(),
        pending_items: Vec::new(),
        inactive_items: Vec::new(),
    }
}

type Entry = policy::Entry<ItemPtr>;

/// The first waiting items of each pwq.
fn list_items(inner: &Inner, pwqs: &mut HashMap<PwqId, PwqView>, waiters: &mut Waiters, now: Time) {
    let p = &inner.policy;
    let mut describe = |e: &Entry| {
        // SAFETY: the item waits and the pool's lock is held, so nobody can start it or take it out: the queue's side holds it.
        let func = Label::from(unsafe { e.item.name() });
        let barrier = Behind::of(e.item, p.waiters_of(e), waiters).map(|b| b.shown(&func, 0));
        let item = ItemSnapshot {
            func,
            count: 1,
            age_ns: now.saturating_sub(e.queued_at),
            ..ItemSnapshot::default()
        };
        std::iter::once(item).chain(barrier)
    };
    let waiting = p.workers().filter_map(|(_, w)| private(p, w));
    for e in waiting.chain(p.worklist().take(SCAN)) {
        if let Some(view) = pwqs.get_mut(&e.pwq) {
            view.pending_items.extend(describe(e));
        }
    }
    let mut budget = SCAN;
    for (id, view) in pwqs.iter_mut() {
        view.inactive_items
            .extend(p.inactive(*id).take(budget).flat_map(&mut describe));
        budget = budget.saturating_sub(view.inactive_items.len());
    }
}

/// The next run of the reusable item that this worker runs, if it was queued again meanwhile: it waits for its worker.
fn private<'a>(p: &'a crate::pool::Policy, w: &policy::Worker<ItemPtr>) -> Option<&'a Entry> {
    if w.private_len() == 0 {
        return None;
    }
    let runs = p.entry(*w.taken().first()?).filter(|e| !e.oneshot)?;
    // SAFETY: a reusable item is taken alone, so what waits privately is this item; the pool's lock is held, so it goes on
    // waiting, and the queue's side holds a waiting item.
    let word = unsafe { runs.item.header() }.word();
    let next = p.entry(word.is_linked().then(|| word.entry())?)?;
    (next.item == runs.item && matches!(next.place, policy::Place::Private(_))).then_some(next)
}

fn worker_view(
    inner: &Inner,
    id: policy::WorkerId,
    w: &policy::Worker<crate::item::ItemPtr>,
    now: Time,
    name: &str,
    waiters: &mut Waiters,
) -> WorkerView {
    let shared = inner.workers.get(id as usize).and_then(Option::as_ref);
    // The claimed items of a batch are started in order; all but the last of them are done.
    let claimed = shared.map_or(0, |s| s.batch.claimed()) as usize;
    let taken = w.taken();
    let at = if taken.len() == 1 {
        0
    } else {
        claimed.saturating_sub(1).min(taken.len().saturating_sub(1))
    };
    let entry = taken.get(at).and_then(|e| inner.policy.entry(*e));
    let started = shared.map_or(now, |s| s.batch.start(claimed.saturating_sub(1) as u32));
    let tid = shared.map_or(0, |s| s.tid.load(Ordering::Relaxed)) as u32;
    let idle = entry.is_none();
    let state = match w.state {
        policy::WorkerState::Idle => WorkerState::Idle,
        policy::WorkerState::Waking if w.cpu == u32::MAX => WorkerState::Starting,
        policy::WorkerState::Waking if idle => WorkerState::Idle,
        policy::WorkerState::Blocked => WorkerState::Blocked,
        policy::WorkerState::Dying => WorkerState::Dying,
        _ if w.is_hog() => WorkerState::CpuIntensive,
        _ => WorkerState::Running,
    };
    WorkerView {
        shown: WorkerSnapshot {
            id,
            tid,
            name: name.to_owned(),
            role: match w.kind {
                WorkerKind::Normal => WorkerRole::Worker,
                WorkerKind::Rescuer => WorkerRole::Rescuer,
                WorkerKind::Helper => WorkerRole::Helper,
            },
            state,
            workqueue: String::new(),
            // The item itself may be over and gone: its worker knows the name.
            func: shared
                .filter(|_| !idle)
                .map_or(Label::default(), |s| s.item_name().into()),
            for_ns: now.saturating_sub(if idle { w.idle_since() } else { started }),
            blocked_on: Label::default(),
            description: shared
                .filter(|_| !idle)
                .map_or_else(String::new, |s| s.description()),
            cpu: (w.cpu != u32::MAX).then_some(w.cpu),
        },
        shared: shared.map(Arc::clone),
        link: entry.and_then(|e| inner.links.get(e.pwq as usize)?.clone()),
        waited_ns: entry.map_or(0, |e| started.saturating_sub(e.queued_at)),
        waiters: entry.and_then(|e| Behind::of(e.item, inner.policy.waiters_of(e), waiters)),
    }
}

/// CPU time that the worker has used since it last read its own clock, ns.
fn used_since_read(shared: &WorkerShared) -> u64 {
    let tid = shared.tid.load(Ordering::Relaxed);
    // Ordering: Acquire pairs with the Release in `cpu_time.rs`: the accounts were read before, so a time that is missing
    // there is not older than this reading.
    let read = shared.cpu_time.load(Ordering::Acquire);
    if tid == 0 || read == 0 {
        return 0;
    }
    let Ok(now) = cpu::thread_cpu_time(tid) else {
        return 0;
    };
    // The thread may have ended and its number been given to another one.
    if shared.tid.load(Ordering::Relaxed) != tid {
        return 0;
    }
    u64::try_from(now.as_nanos())
        .unwrap_or(u64::MAX)
        .saturating_sub(read)
}

fn add_pwq(report: &mut WqReport, pwq: PwqView) {
    let shown = &mut report.shown;
    report.counters.add(&pwq.counters);
    match (&pwq.wait, &pwq.run) {
        (Some(wait), Some(run)) => {
            report.wait.merge(wait);
            report.run.merge(run);
        }
        _ => report.run.sum = report.run.sum.saturating_add(pwq.run_sum),
    }
    // Each pool's peak may be of another moment: their sum is an upper bound.
    report.peak_active += pwq.peak_active;
    report.peak_waiting += pwq.peak_waiting;
    shown.nr_active += pwq.active;
    report.running += u64::from(pwq.running);
    let in_flight = pwq.active + pwq.inactive as u32;
    shown.pwqs.push(PwqSnapshot {
        pool: pwq.link.pool.id,
        refcnt: in_flight + 1,
        nr_active: pwq.active,
        nr_in_flight: in_flight,
        nr_inactive: pwq.inactive as u32,
        mayday: pwq.mayday,
        plugged: pwq.link.wq.is_ordered() && pwq.limit == 0,
    });
    pwq.pending_items
        .into_iter()
        .for_each(|item| shown.pending.push(item));
    pwq.inactive_items
        .into_iter()
        .for_each(|item| shown.inactive.push(item));
}

fn finish_wq(wq: &WqInner, report: &mut WqReport, running_cpu: u64, detail: Detail) {
    let shown = &mut report.shown;
    // Lists are cut; the totals are the pwqs' own.
    let sum = |f: fn(&PwqSnapshot) -> u32| shown.pwqs.iter().map(|p| u64::from(f(p))).sum::<u64>();
    let (active, inactive) = (sum(|p| p.nr_active), sum(|p| p.nr_inactive));
    let in_flight = report.running.min(active);
    let total = |list: &mut ItemList, n| list.total = n;
    total(&mut shown.in_flight, in_flight);
    total(&mut shown.pending, active - in_flight);
    total(&mut shown.inactive, inactive);
    shown.counters = wq.shown_counters(&report.counters, report.run.sum);
    shown.counters.cpu_time_ns = wq.records.show_cpu_time(report.cpu_time_ns, running_cpu);
    shown.counters.peak_active = u64::from(report.peak_active);
    shown.counters.peak_waiting = u64::from(report.peak_waiting);
    if detail.histograms {
        shown.queue_to_start = histogram(&report.wait);
        shown.run_time = histogram(&report.run);
    }
}

fn histogram(h: &Histogram) -> HistogramSnapshot {
    let known = h.count > 0;
    HistogramSnapshot::from_counts(
        h.buckets.iter().copied(),
        h.sum,
        known.then_some(h.min),
        known.then_some(h.max),
    )
}

fn monotonic_of(stamp: Time) -> u64 {
    u64::try_from(Clock::to_monotonic(stamp).as_nanos()).unwrap_or(u64::MAX)
}

fn topology(machine: &Machine) -> TopologySummary {
    let t = &machine.topology;
    TopologySummary {
        nr_cpu_ids: t.possible().last().map_or(1, |c| c as u32 + 1),
        possible: CpuList::from(t.possible()),
        online: CpuList::from(t.online()),
        unbound_cpumask: CpuList::from(&machine.global),
        nodes: machine
            .nodes
            .iter()
            .map(|(node, cpus)| NodeCpus {
                node: *node as u32,
                cpus: CpuList::from(cpus),
            })
            .collect(),
        default_scope: machine.default_scope.name().into(),
        scopes: AffinityScope::ALL
            .iter()
            .map(|scope| ScopeSnapshot {
                name: scope.name().into(),
                pods: machine
                    .pods(*scope)
                    .iter()
                    .map(|pod| PodSnapshot {
                        cpus: CpuList::from(&pod.cpus),
                        node: pod.node.map(|n| n as u32),
                    })
                    .collect(),
            })
            .collect(),
    }
}

fn cpu_view(rt: &RtInner, machine: &Machine) -> CpuView {
    let list = |set: &Option<CpuSet>| set.as_ref().map_or_else(CpuList::default, CpuList::from);
    CpuView {
        usable: CpuList::from(&machine.usable),
        affinity_at_start: list(&rt.affinity_at_start),
        cpuset: list(&machine.process.cpuset),
        quota: machine.process.quota.as_ref().map(|q| Quota {
            cpus: q.cpus(),
            quota_us: q.quota_us,
            period_us: q.period_us,
            cgroup: q.group.display().to_string(),
            throttled: nr_throttled(&q.group),
        }),
        changes: rt.changes.load(Ordering::Relaxed),
        foreign_affinity: rt.adopted.load(Ordering::Relaxed),
    }
}

/// How blocked workers are noticed.
fn detection(status: &[DetectorStatus]) -> Detection {
    let find = |name: &str| status.iter().find(|s| s.name == name);
    let mechanism = |name: &str| {
        find(name).map_or_else(Mechanism::default, |s| Mechanism {
            state: match s.state {
                DetectorState::InForce | DetectorState::Ready => MechanismState::InForce,
                DetectorState::Off => MechanismState::Off,
                DetectorState::Refused => MechanismState::Unavailable,
            },
            reason: s.reason.clone().into(),
            cpu_time_ns: u64::try_from(s.cpu.as_nanos()).unwrap_or(u64::MAX),
            looks: s.looks,
            found: s.found,
            unconfirmed: 0,
            threads: s.threads as u32,
        })
    };
    let mut detection = Detection {
        said: mechanism("said"),
        sentinel: mechanism("sentinel"),
        tick: mechanism("tick"),
        records: mechanism("records"),
    };
    // A sentinel's run is a suspicion: what was not found blocked was not confirmed.
    let s = &mut detection.sentinel;
    s.unconfirmed = s.looks.saturating_sub(s.found);
    // How the tick and the sentinels confirm what they suspect.
    if detection.tick.state == MechanismState::InForce {
        for (name, what) in [("proc-stat", "thread states"), ("cpu-clock", "CPU clocks")] {
            let Some(s) = find(name).filter(|s| s.looks > 0 || s.state != DetectorState::Ready)
            else {
                continue;
            };
            detection.tick.reason = format!(
                "{}; {what}: {} ({})",
                detection.tick.reason,
                s.state.as_str(),
                s.reason
            )
            .into();
        }
    }
    detection
}

fn threads(rt: &RtInner, others: u32) -> ThreadTotals {
    let r = &rt.records;
    ThreadTotals {
        workers: rt.threads.load(Ordering::Relaxed) as u32,
        ceiling: rt.max_threads.load(Ordering::Relaxed) as u32,
        peak: r.peak_threads() as u32,
        others: others + u32::from(rt.spawner.is_alive()) + u32::from(rt.timers.has_thread()),
        refused_by_ceiling: r.refused_by_ceiling(),
        create_failures: rt
            .spawner
            .failures
            .load(Ordering::Relaxed)
            .saturating_sub(r.refused_by_ceiling()),
        last_failure: r.last_failure(),
        births: words::births(|i| rt.births[i].load(Ordering::Relaxed)),
        deaths: words::deaths(|i| rt.deaths[i].load(Ordering::Relaxed)),
    }
}
