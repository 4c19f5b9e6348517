//! What a snapshot shows is what is.

use cmwq::control::attr::{Attr, SetErrorKind, Setting};
use cmwq::control::snapshot::{Detail, PoolKind, Snapshot, WorkerState, WqKind};
use cmwq::control::trace::{TraceKind, TraceOptions};
use cmwq::control::{Process, Target, histogram};
use cmwq::{AffinityScope, CpuSet, DelayedWork, Queued, Runtime, Topology, Work};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Items that wait until they are let go.
struct Gate {
    go: Mutex<Receiver<()>>,
    let_go: Sender<()>,
}

fn gate() -> Arc<Gate> {
    let (let_go, go) = channel();
    Arc::new(Gate {
        go: Mutex::new(go),
        let_go,
    })
}

fn wait_at_the_gate(gate: &Gate) {
    let go = gate.go.lock().unwrap();
    go.recv_timeout(Duration::from_secs(240)).unwrap();
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn queue<'a>(s: &'a Snapshot, name: &str) -> &'a cmwq::control::snapshot::WorkqueueSnapshot {
    s.workqueue(name)
        .unwrap_or_else(|| panic!("no queue {name}"))
}

#[test]
fn an_unused_runtime_shows_its_machine_and_no_threads() {
    let rt = Runtime::builder()
        .topology(Topology::synthetic("node:2 core:4 thread:2").unwrap())
        .build()
        .unwrap();
    let s = rt.snapshot();
    assert_eq!(
        (
            s.pools.len(),
            s.workqueues.len(),
            s.threads.workers,
            s.threads.others
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(s.topology.possible.as_str(), "0-15");
    assert_eq!(s.topology.nodes.len(), 2);
    assert_eq!(s.topology.scopes.len(), 6);
    assert_eq!(
        s.topology.scope("numa").unwrap().pods[1].cpus.as_str(),
        "4-7,12-15"
    );
    assert_eq!(s.topology.default_scope, "cache_shard");
    assert_eq!(s.process.pid, std::process::id());
    assert!(s.process.start_ticks > 0 && !s.process.name.is_empty());
    assert!(
        s.tunables
            .iter()
            .any(|t| t.name == "max_threads" && t.writable)
    );
}

#[test]
fn running_waiting_and_held_back_items_are_shown_with_names_ages_and_workers() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("journal").ordered().build().unwrap();
    let gate = gate();
    for _ in 0..3 {
        let g = Arc::clone(&gate);
        drop(wq.spawn(move || {
            cmwq::describe("page 7");
            wait_at_the_gate(&g);
        }));
    }
    until("the first item runs", || {
        rt.snapshot().workqueues[0].in_flight.total == 1
    });
    std::thread::sleep(Duration::from_millis(5));
    let s = rt.snapshot();
    let q = queue(&s, "journal");
    assert_eq!((q.kind, q.max_active, q.nr_active), (WqKind::Ordered, 1, 1));
    assert_eq!(
        (q.in_flight.total, q.pending.total, q.inactive.total),
        (1, 0, 2)
    );
    let runs = &q.in_flight.items[0];
    assert!(
        runs.func.contains("running_waiting_and_held_back"),
        "{}",
        runs.func
    );
    assert!(runs.age_ns >= 5_000_000 && runs.tid.is_some() && runs.waited_ns.is_some());
    // Equal neighbours are folded.
    assert_eq!((q.inactive.items.len(), q.inactive.items[0].count), (1, 2));
    assert!(q.inactive.items[0].age_ns >= 5_000_000);
    assert_eq!(q.counters.throttled, 2);
    assert_eq!(
        (q.counters.queued, q.counters.started, q.counters.completed),
        (3, 1, 0)
    );
    // The first may have been taken before the others were queued, or not.
    assert_eq!(q.counters.peak_active, 1);
    assert!(
        (2..=3).contains(&q.counters.peak_waiting),
        "{}",
        q.counters.peak_waiting
    );

    let pool = s.pool(q.pwqs[0].pool).unwrap();
    // The item waits at the gate: its worker counts as running until that is noticed.
    assert_eq!(
        (pool.kind, pool.running + pool.blocked),
        (PoolKind::Unbound, 1)
    );
    let worker = pool
        .worker_list
        .iter()
        .find(|w| Some(w.tid) == runs.tid)
        .unwrap();
    assert!(matches!(
        worker.state,
        WorkerState::Running | WorkerState::Blocked
    ));
    assert_eq!(worker.workqueue, "journal");
    assert_eq!(worker.description, "page 7");
    assert!(worker.name.starts_with("cmwq/u"), "{}", worker.name);
    assert!(pool.births.iter().map(|b| b.count).sum::<u64>() >= 1);
    assert!(s.threads.workers >= 1 && s.threads.peak >= 1 && s.threads.others >= 1);

    // What is not asked for is not there; totals are.
    let s = rt.snapshot_with(Detail::COUNTERS);
    let q = queue(&s, "journal");
    assert!(
        q.in_flight.items.is_empty() && q.cpu_pool.is_empty() && s.pools[0].worker_list.is_empty()
    );
    assert_eq!((q.in_flight.total, q.inactive.total), (1, 2));
    (0..3).for_each(|_| gate.let_go.send(()).unwrap());
    wq.flush().unwrap();
    let s = rt.snapshot();
    let c = &queue(&s, "journal").counters;
    assert_eq!((c.started, c.completed), (3, 3));
}

#[test]
fn blocked_workers_and_what_waits_behind_limits() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("fetch").max_active(2).build().unwrap();
    let gate = gate();
    for _ in 0..5 {
        let g = Arc::clone(&gate);
        drop(wq.spawn(move || cmwq::blocking(|| wait_at_the_gate(&g))));
    }
    until("two are blocked", || {
        rt.snapshot().pools.iter().map(|p| p.blocked).sum::<u32>() == 2
    });
    let s = rt.snapshot();
    let q = queue(&s, "fetch");
    assert_eq!((q.in_flight.total, q.inactive.total), (2, 3));
    let node: u32 = q.nodes.iter().map(|n| n.nr).sum();
    assert!(
        node >= 2 && q.nodes.iter().all(|n| n.nr <= n.max),
        "{:?}",
        q.nodes
    );
    let blocked = s
        .pools
        .iter()
        .flat_map(|p| &p.worker_list)
        .filter(|w| w.state == WorkerState::Blocked);
    assert_eq!(blocked.count(), 2);
    (0..5).for_each(|_| gate.let_go.send(()).unwrap());
    wq.flush().unwrap();
}

/// However many were handed in without the pool's lock, all are counted, and what runs goes on.
#[test]
fn a_deep_backlog_is_counted_whole() {
    const ITEMS: u64 = 50_000;
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").max_active(2048).build().unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // Busy workers, so that items wait.
    let busy: Vec<_> = (0..2 * cpus)
        .map(|_| {
            let stop = Arc::clone(&stop);
            wq.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    for _ in 0..ITEMS {
        drop(wq.spawn(|| {}));
    }
    let s = rt.snapshot_with(Detail::COUNTERS);
    let q = queue(&s, "ingest");
    assert_eq!(q.counters.queued, ITEMS + 2 * cpus as u64);
    let there = q.in_flight.total + q.pending.total + q.inactive.total;
    assert_eq!(there + q.counters.completed, q.counters.queued);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for b in busy {
        b.join().unwrap();
    }
    wq.flush().unwrap();
    assert_eq!(
        queue(&rt.snapshot(), "ingest").counters.completed,
        ITEMS + 2 * cpus as u64
    );
}

fn own_tid() -> u32 {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// An item that runs and is queued again: each instance has its own waiters.
#[test]
fn waiters_are_shown_behind_the_instance_they_wait_for() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("fetch").build().unwrap();
    let gate = gate();
    let g = Arc::clone(&gate);
    let work = Work::with_name("sync_inode", move |_| {
        cmwq::blocking(|| wait_at_the_gate(&g));
    });
    let barriers = || {
        let s = rt.snapshot();
        let q = queue(&s, "fetch").clone();
        let of = |list: &cmwq::control::snapshot::ItemList| -> Vec<u32> {
            let barrier = list.items.iter().find(|i| i.barrier);
            barrier.map_or_else(Vec::new, |b| b.waiters.clone())
        };
        (of(&q.in_flight), of(&q.pending))
    };
    wq.queue(&work).unwrap();
    until("it runs", || {
        rt.snapshot().workqueues[0].in_flight.total == 1
    });
    let tids = [0, 1].map(|_| std::sync::atomic::AtomicU32::new(0));
    let wait = |i: usize| {
        // Relaxed: read again until it is there.
        tids[i].store(own_tid(), std::sync::atomic::Ordering::Relaxed);
        work.flush().unwrap()
    };
    let wait = &wait;
    let tid = |i: usize| tids[i].load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|s| {
        s.spawn(move || wait(0));
        until("the first waits", || barriers() == (vec![tid(0)], vec![]));
        wq.queue(&work).unwrap();
        s.spawn(move || wait(1));
        until("the second waits", || {
            barriers() == (vec![tid(0)], vec![tid(1)])
        });
        gate.let_go.send(()).unwrap();
        until("the first instance is through", || {
            barriers() == (vec![tid(1)], vec![])
        });
        gate.let_go.send(()).unwrap();
    });
    until("nobody waits", || barriers() == (vec![], vec![]));
}

/// As the kernel's barriers: who waits for an item is shown behind it, and is no item.
#[test]
fn those_who_wait_for_an_item_are_shown_behind_it() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt
        .workqueue("fetch")
        .max_active(1)
        .kernel_mode(true)
        .build()
        .unwrap();
    let gate = gate();
    let g = Arc::clone(&gate);
    drop(wq.spawn(move || cmwq::blocking(|| wait_at_the_gate(&g))));
    let work = Work::with_name("sync_inode", |_| {});
    wq.queue(&work).unwrap();
    let tids = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|s| {
        let wait = || {
            tids.lock().unwrap().push(own_tid());
            work.flush()
        };
        let waiters: Vec<_> = (0..2).map(|_| s.spawn(wait)).collect();
        let shown = || {
            let s = rt.snapshot();
            let q = queue(&s, "fetch").clone();
            let barrier = q.inactive.items.iter().find(|i| i.barrier).cloned();
            (q.inactive.total, barrier)
        };
        until("both wait", || {
            shown()
                .1
                .is_some_and(|b| b.count == 2 && b.func == "sync_inode" && b.waiters.len() == 2)
        });
        let mut named = shown().1.unwrap().waiters;
        named.sort_unstable();
        let mut waiting = tids.lock().unwrap().clone();
        waiting.sort_unstable();
        assert_eq!(named, waiting, "the threads that wait are named");
        assert_eq!(shown().0, 1, "a barrier is no item");
        gate.let_go.send(()).unwrap();
        for w in waiters {
            assert!(w.join().unwrap().unwrap(), "it had to wait");
        }
    });
    wq.flush().unwrap();
    let s = rt.snapshot();
    assert!(queue(&s, "fetch").inactive.items.is_empty());
}

#[test]
fn counters_histograms_and_delayed_items() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("mixed").build().unwrap();
    let stuck = gate();
    let g = Arc::clone(&stuck);
    let work = Work::with_name("tick", move |_| wait_at_the_gate(&g));
    assert_eq!(wq.queue(&work).unwrap(), Queued::New);
    until("it runs", || {
        rt.snapshot().workqueues[0].in_flight.total == 1
    });
    assert_eq!(
        queue(&rt.snapshot(), "mixed").in_flight.items[0].func,
        "tick"
    );
    assert_eq!(wq.queue(&work).unwrap(), Queued::New);
    assert_eq!(wq.queue(&work).unwrap(), Queued::AlreadyPending);
    (0..2).for_each(|_| stuck.let_go.send(()).unwrap());
    wq.flush().unwrap();
    for _ in 0..500 {
        drop(wq.spawn(|| {}));
    }
    wq.spawn(|| panic!("on purpose")).join().unwrap_err();
    let later = DelayedWork::new(|_| {});
    wq.queue_delayed(&later, Duration::from_secs(1000)).unwrap();
    wq.flush().unwrap();
    let s = rt.snapshot();
    let q = queue(&s, "mixed");
    let c = &q.counters;
    assert_eq!((c.queued, c.started, c.completed), (503, 503, 503));
    assert_eq!((c.panicked, c.already_pending, q.delayed), (1, 1, 1));
    assert_eq!((q.queue_to_start.count, q.run_time.count), (503, 503));
    assert_eq!(q.queue_to_start.total(), 503);
    assert_eq!(c.run_time_ns, q.run_time.sum_ns);
    let stats = wq.stats();
    assert_eq!(
        q.queue_to_start.max_ns,
        Some(stats.queue_to_start.max().as_nanos() as u64)
    );
    let mean = q.run_time.mean_ns().unwrap();
    assert!((mean - stats.run.mean().as_nanos() as f64).abs() < 1.0);
    assert!(later.cancel());
    assert_eq!(queue(&rt.snapshot(), "mixed").delayed, 0);
    // A queue that is gone is not shown.
    wq.destroy().unwrap();
    assert!(rt.snapshot().workqueues.is_empty());
}

/// The two crates that know the buckets agree on them.
#[test]
fn histogram_buckets_are_those_of_the_control_plane() {
    use cmwq_policy::hist;
    assert_eq!(hist::BUCKETS, histogram::BUCKETS);
    for i in 0..hist::BUCKETS {
        let low = hist::bucket_low(i);
        assert_eq!(histogram::bucket_bounds(i).0, low);
        for ns in [low, low + 1, low.saturating_sub(1), low * 3 / 2] {
            assert_eq!(hist::bucket_of(ns), histogram::bucket_index(ns), "{ns}");
        }
    }
    assert_eq!(hist::bucket_of(u64::MAX), histogram::bucket_index(u64::MAX));
}

#[test]
fn cpu_time_is_that_of_the_threads_also_while_an_item_runs() {
    let rt = Runtime::builder().build().unwrap();
    let busy = rt.workqueue("busy").build().unwrap();
    let lazy = rt.workqueue("lazy").build().unwrap();
    let end = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let e = Arc::clone(&end);
    // A short one first, so that the worker has read its clock.
    busy.spawn(|| {}).join().unwrap();
    let spins = busy.spawn(move || {
        while !e.load(std::sync::atomic::Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    let sleeps = lazy.spawn(|| std::thread::sleep(Duration::from_millis(60)));
    let cpu = |name| {
        queue(&rt.snapshot_with(Detail::COUNTERS), name)
            .counters
            .cpu_time_ns
    };
    let mut last = 0;
    until("a running item's CPU time is seen", || {
        let now = cpu("busy");
        assert!(now >= last, "it never goes back: {now} after {last}");
        last = now;
        now > 30_000_000
    });
    end.store(true, std::sync::atomic::Ordering::Relaxed);
    spins.join().unwrap();
    sleeps.join().unwrap();
    busy.flush().unwrap();
    assert!(cpu("busy") >= last);
    assert!(
        cpu("lazy") < 20_000_000,
        "sleeping is no CPU time: {}",
        cpu("lazy")
    );
}

#[test]
fn per_cpu_queues_show_a_pool_per_used_cpu_only() {
    let rt = Runtime::builder()
        .topology(Topology::synthetic("core:4").unwrap())
        .build()
        .unwrap();
    let wq = rt.workqueue("ticks").per_cpu().build().unwrap();
    wq.try_spawn_on(2, || {})
        .unwrap_or_else(|_| panic!("accepted"))
        .join()
        .unwrap();
    let s = rt.snapshot();
    assert_eq!(s.pools.len(), 1);
    assert_eq!(
        (s.pools[0].kind, s.pools[0].cpu, s.pools[0].target),
        (PoolKind::PerCpu, Some(2), Some(1))
    );
    let slots = &queue(&s, "ticks").cpu_pool;
    assert_eq!(slots.len(), 4);
    assert_eq!(slots[2].pool, Some(s.pools[0].id));
    assert!(slots[0].pool.is_none() && slots[2].cpus.as_str() == "2");
    assert_eq!(queue(&s, "ticks").attrs.effective_scope, "cpu");
}

#[test]
fn attributes_are_read_set_and_read_back() {
    let rt = Runtime::builder()
        .topology(Topology::synthetic("node:2 core:4").unwrap())
        .build()
        .unwrap();
    let wq = rt.workqueue("ingest").max_active(16).build().unwrap();
    let journal = rt.workqueue("journal").ordered().build().unwrap();
    let ticks = rt.workqueue("ticks").per_cpu().build().unwrap();
    let of = |name: &str| Target::Workqueue(name.to_owned());
    let set = |name: &str, attr: Attr, text: &str| {
        let parsed = Setting::parse(attr, text, &rt.parse_context())?;
        rt.set(&of(name), &parsed.setting)
    };
    let get = |name: &str, attr: Attr| rt.get(&of(name), attr);
    assert_eq!(
        get("ingest", Attr::AffinityScope).unwrap(),
        "default (cache_shard)"
    );
    assert_eq!(get("ingest", Attr::Cpumask).unwrap(), "ff");
    assert_eq!(get("ticks", Attr::PerCpu).unwrap(), "1");
    assert_eq!(set("ingest", Attr::MaxActive, "3").unwrap(), "3");
    assert_eq!(wq.limits(), (3, 3));
    assert_eq!(set("ingest", Attr::MinActive, "2").unwrap(), "2");
    assert_eq!(set("ingest", Attr::Nice, "5").unwrap(), "5");
    assert_eq!(set("ingest", Attr::Cpumask, "0-2").unwrap(), "07");
    assert_eq!(set("ingest", Attr::AffinityScope, "numa").unwrap(), "numa");
    assert_eq!(set("ingest", Attr::AffinityStrict, "1").unwrap(), "1");
    assert_eq!(set("ingest", Attr::Localize, "1").unwrap(), "1");
    let attrs = wq.attrs();
    assert_eq!(
        (attrs.get_nice(), attrs.is_strict(), attrs.is_localized()),
        (5, true, true)
    );
    assert_eq!(attrs.get_affinity_scope(), AffinityScope::Numa);
    assert_eq!(
        attrs.get_cpumask(),
        Some(&CpuSet::parse_list("0-2").unwrap())
    );
    assert_eq!(set("ingest", Attr::Cpumask, "ff").unwrap(), "ff");
    assert_eq!(set("journal", Attr::Nice, "3").unwrap(), "3");

    let kind = |r: Result<String, cmwq::control::attr::SetError>| r.unwrap_err().kind;
    assert_eq!(
        kind(set("journal", Attr::MaxActive, "4")),
        SetErrorKind::ReadOnly
    );
    assert_eq!(kind(set("ticks", Attr::Nice, "4")), SetErrorKind::WrongKind);
    assert_eq!(kind(get("ticks", Attr::MinActive)), SetErrorKind::WrongKind);
    assert_eq!(
        kind(set("ingest", Attr::Cpumask, "1ff")),
        SetErrorKind::Overflow
    );
    assert_eq!(
        kind(set("ingest", Attr::KernelMode, "1")),
        SetErrorKind::Unsupported
    );
    let missing = set("nosuch", Attr::Nice, "1").unwrap_err();
    assert_eq!(missing.kind, SetErrorKind::NotFound);
    assert!(
        missing.message.contains("ingest, journal, ticks"),
        "{missing}"
    );

    assert_eq!(rt.get(&Target::Global, Attr::CacheShardSize).unwrap(), "8");
    assert_eq!(
        rt.set(&Target::Global, &Setting::MaxThreads(7)).unwrap(),
        "7"
    );
    assert_eq!(rt.snapshot().threads.ceiling, 7);
    for (setting, shown) in [
        (Setting::WatchdogThresh(5), "5"),
        (Setting::CpuIntensiveThreshUs(20_000), "20000"),
        (Setting::FairnessThreshUs(3000), "3000"),
    ] {
        assert_eq!(rt.set(&Target::Global, &setting).unwrap(), shown);
        assert_eq!(rt.get(&Target::Global, setting.attr()).unwrap(), shown);
    }
    let global = |attr: Attr, text: &str| {
        let parsed = Setting::parse(attr, text, &rt.parse_context())?;
        rt.set(&Target::Global, &parsed.setting)
    };
    assert_eq!(global(Attr::DefaultAffinityScope, "numa").unwrap(), "numa");
    set("ingest", Attr::AffinityScope, "default").unwrap();
    assert_eq!(
        get("ingest", Attr::AffinityScope).unwrap(),
        "default (numa)"
    );
    // One pool for all CPUs, whatever the default is.
    assert_eq!(
        get("journal", Attr::AffinityScope).unwrap(),
        "default (system)"
    );
    assert_eq!(global(Attr::GlobalCpumask, "0-3").unwrap(), "0f");
    assert_eq!(
        rt.get(&Target::Global, Attr::CpumaskRequested).unwrap(),
        "0f"
    );
    assert_eq!(rt.snapshot().topology.unbound_cpumask.as_str(), "0-3");
    assert_eq!(rt.cpumask(), CpuSet::parse_list("0-3").unwrap());
    let e = rt.set(&Target::Global, &Setting::Nice(1)).unwrap_err();
    assert!(e.message.contains("name the queue"), "{e}");
    drop((journal, ticks));
}

#[test]
fn a_trace_has_the_kernels_events_for_every_item() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("traced").max_active(1).build().unwrap();
    let other = rt.workqueue("other").build().unwrap();
    let e = rt
        .trace_start(&TraceOptions {
            workqueues: vec!["nosuch".into()],
            ..Default::default()
        })
        .unwrap_err();
    assert!(e.message.contains("traced, other"), "{e}");
    rt.trace_start(&TraceOptions {
        workqueues: vec!["traced".into()],
        ..Default::default()
    })
    .unwrap();
    assert_eq!(
        rt.trace_start(&TraceOptions::default()).unwrap_err().kind,
        SetErrorKind::Busy
    );
    for i in 0..20 {
        drop(wq.spawn(move || assert!(i != 7, "on purpose")));
        other.spawn(|| {}).join().unwrap();
    }
    wq.flush().unwrap();
    rt.trace_stop();
    let chunk = rt.trace_poll(usize::MAX);
    assert_eq!((chunk.lost, chunk.more), (0, false));
    let count = |f: &dyn Fn(&TraceKind) -> bool| chunk.events.iter().filter(|e| f(&e.kind)).count();
    assert_eq!(
        count(&|k| matches!(k, TraceKind::QueueWork { workqueue, .. } if workqueue == "traced")),
        20
    );
    assert_eq!(count(&|k| matches!(k, TraceKind::ActivateWork { .. })), 20);
    assert_eq!(
        count(
            &|k| matches!(k, TraceKind::ExecuteStart { workqueue, helped: false, .. } if workqueue == "traced")
        ),
        20
    );
    assert_eq!(count(&|k| matches!(k, TraceKind::ExecuteEnd { .. })), 20);
    assert_eq!(
        count(&|k| matches!(k, TraceKind::ExecuteEnd { panicked: true, .. })),
        1
    );
    let named = |k: &TraceKind| match k {
        TraceKind::QueueWork { func, .. } | TraceKind::ExecuteStart { func, .. } => {
            func.contains("a_trace_has")
        }
        _ => true,
    };
    assert_eq!(count(&|k| !named(k)), 0);
    // Each thread's events ascend, and stamps are the system's monotonic clock.
    let now = chunk.events.iter().map(|e| e.ns).max().unwrap();
    assert!(rt.snapshot().clock.monotonic_ns >= now);
    wq.spawn(|| {}).join().unwrap();
    assert!(rt.trace_poll(10).events.is_empty(), "stopped");
}

#[test]
fn a_snapshot_does_not_wait_for_a_stalled_queue_and_can_be_taken_from_an_item() {
    let rt = Runtime::builder().max_threads(1).build().unwrap();
    let wq = rt.workqueue("only").build().unwrap();
    let inner = rt.clone();
    let seen = wq.spawn(move || inner.snapshot()).join().unwrap();
    assert_eq!(queue(&seen, "only").in_flight.total, 1);
    // The joiner is told before the item's place is given back.
    wq.flush().unwrap();
    let gate = gate();
    for _ in 0..2000 {
        let g = Arc::clone(&gate);
        drop(wq.spawn(move || wait_at_the_gate(&g)));
    }
    let s = rt.snapshot();
    let q = queue(&s, "only");
    assert_eq!(q.in_flight.total + q.pending.total + q.inactive.total, 2000);
    (0..2000).for_each(|_| gate.let_go.send(()).unwrap());
    wq.flush().unwrap();
}

#[test]
fn metrics_for_the_applications_own_endpoint() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").build().unwrap();
    wq.spawn(|| {}).join().unwrap();
    let text = rt.prometheus();
    assert!(
        text.contains("cmwq_workqueue_started_total{workqueue=\"ingest\"} 1"),
        "{text}"
    );
}
