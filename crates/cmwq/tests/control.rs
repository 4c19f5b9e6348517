//! A process that listens, and a client that asks it.

use cmwq::Runtime;
use cmwq::control::attr::{Access, Attr, Level, SetErrorKind};
use cmwq::control::snapshot::Detail;
use cmwq::control::trace::TraceOptions;
use cmwq::control::{ListenBuilder, Target};
use cmwq_control::client::{Client, ClientError};
use std::path::PathBuf;

fn serve(dir: &tempfile::TempDir) -> ListenBuilder {
    cmwq::control::builder().dir(dir.path().join("run"))
}

fn connect(path: &std::path::Path) -> Client {
    Client::connect(path).unwrap()
}

fn sockets(dir: &tempfile::TempDir) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir.path().join("run")) else {
        return Vec::new();
    };
    entries.map(|e| e.unwrap().path()).collect()
}

#[test]
fn a_listener_serves_a_runtime_until_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").max_active(16).build().unwrap();
    let listener = serve(&dir).runtime(&rt).name("storage").listen().unwrap();
    let path = listener.path().unwrap().to_owned();
    assert_eq!(sockets(&dir), std::slice::from_ref(&path));
    let mut client = connect(&path);
    assert_eq!(client.process().name, "storage");
    assert_eq!(client.process().pid, std::process::id());
    wq.spawn(|| {}).join().unwrap();
    // Counted out, too, which comes just after the joiner is woken.
    wq.flush().unwrap();
    let s = client.snapshot(Detail::FULL).unwrap();
    assert_eq!(s.workqueue("ingest").unwrap().counters.completed, 1);
    let target = Target::Workqueue("ingest".into());
    assert_eq!(client.get(&target, "max_active").unwrap(), "16");
    // Nobody said that changes are allowed.
    match client.set(&target, "max_active", "3").unwrap_err() {
        ClientError::Answer(e) => assert_eq!(e.kind, SetErrorKind::NotPermitted),
        e => panic!("{e}"),
    }
    assert_eq!(wq.limits().0, 16);
    // Being looked at keeps nothing alive, and what is gone is shown as empty.
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
    assert!(client.snapshot(Detail::FULL).unwrap().workqueues.is_empty());
    drop(rt);
    listener.stop();
    assert!(sockets(&dir).is_empty());
    assert!(client.snapshot(Detail::FULL).is_err());
}

#[test]
fn changes_where_they_are_allowed_and_a_trace_that_ends_with_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").build().unwrap();
    let listener = serve(&dir).runtime(&rt).allow_set(true).listen().unwrap();
    let mut client = connect(listener.path().unwrap());
    assert!(client.process().allow_set);
    let target = Target::Workqueue("ingest".into());
    assert_eq!(client.set(&target, "max_active", "3").unwrap().0, "3");
    assert_eq!(wq.limits().0, 3);
    client.trace_start(&TraceOptions::default()).unwrap();
    wq.spawn(|| {}).join().unwrap();
    let chunk = client.trace_poll(100).unwrap();
    assert!(chunk.events.len() >= 3, "{chunk:?}");
    drop(client);
    // The next one may trace once the server has seen the end of the first.
    let mut next = connect(listener.path().unwrap());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(e) = next.trace_start(&TraceOptions::default()) {
        assert!(std::time::Instant::now() < deadline, "{e}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Every attribute that can be written is written and read back, at both ends of its range; none of them is answered with
/// "this runtime does not have it".
#[test]
fn every_tunable_is_set_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let machine = cmwq::Topology::synthetic("node:2 core:4").unwrap();
    let rt = Runtime::builder().topology(machine).build().unwrap();
    let _unbound = rt.workqueue("ingest").build().unwrap();
    let _percpu = rt.workqueue("ticks").per_cpu().build().unwrap();
    let _ordered = rt.workqueue("journal").ordered().build().unwrap();
    let listener = serve(&dir).runtime(&rt).allow_set(true).listen().unwrap();
    let mut client = connect(listener.path().unwrap());
    let global = |attr: &str| -> &'static [(&'static str, &'static str)] {
        match attr {
            "cpumask" => &[("f", "0f"), ("list:0,2", "05"), ("0-7", "ff")],
            "default_affinity_scope" => &[("cpu", "cpu"), ("system", "system"), ("cache", "cache")],
            "cpu_intensive_thresh_us" => &[("0", "0"), ("20000", "20000"), ("1", "1")],
            "cpu_intensive_warning_thresh" => &[("0", "0"), ("4294967295", "4294967295")],
            "debug_force_rr_cpu" => &[("1", "Y"), ("off", "N"), ("Y", "Y"), ("n", "N")],
            "watchdog_thresh" => &[("0", "0"), ("2147483", "2147483"), ("30", "30")],
            "panic_on_stall" => &[("3", "3"), ("0", "0")],
            "panic_on_stall_time" => &[("2147483", "2147483"), ("0", "0")],
            "max_threads" => &[("1", "1"), ("65536", "65536")],
            "fairness_thresh_us" => &[("0", "0"), ("500", "500")],
            other => panic!("no values are known for {other}: add them here"),
        }
    };
    let of_queue = |attr: &str| -> &'static [(&'static str, &'static str)] {
        match attr {
            "max_active" => &[("16", "16"), ("2048", "2048"), ("9999", "2048"), ("1", "1")],
            "min_active" => &[("0", "0"), ("1", "1")],
            "nice" => &[("-20", "-20"), ("19", "19"), ("0", "0")],
            "cpumask" => &[("3", "03"), ("80", "80"), ("0", "ff")],
            "affinity_scope" => &[
                ("cpu", "cpu"),
                ("smt", "smt"),
                ("cache_shard", "cache_shard"),
                ("cache", "cache"),
                ("numa", "numa"),
                ("system", "system"),
                ("default", "default (cache_shard)"),
            ],
            "affinity_strict" | "localize" => &[("1", "1"), ("0", "0")],
            other => panic!("no values are known for {other}: add them here"),
        }
    };
    for info in Attr::all() {
        let (target, values) = match (info.level, info.access) {
            (_, Access::ReadOnly) => continue,
            // Chosen when the queue is made; the refusal says so.
            _ if info.attr == Attr::KernelMode => continue,
            (Level::Global, _) => (Target::Global, global(info.name)),
            (Level::Workqueue, _) => (Target::Workqueue("ingest".into()), of_queue(info.name)),
        };
        for (text, shown) in values {
            let (value, _) = client
                .set(&target, info.name, text)
                .unwrap_or_else(|e| panic!("{}={text}: {e}", info.name));
            assert_eq!(value, *shown, "{}={text}", info.name);
            assert_eq!(client.get(&target, info.name).unwrap(), *shown);
        }
    }
    for (info, queue) in Attr::all()
        .filter(|i| i.access == Access::ReadOnly)
        .map(|i| (i, "ingest"))
    {
        let target = match info.level {
            Level::Global => Target::Global,
            Level::Workqueue => Target::Workqueue(queue.into()),
        };
        client.get(&target, info.name).unwrap();
        match client.set(&target, info.name, "1").unwrap_err() {
            ClientError::Answer(e) => assert_eq!(e.kind, SetErrorKind::ReadOnly, "{}", info.name),
            e => panic!("{e}"),
        }
    }
    // What is read one by one is what a snapshot shows.
    let s = client.snapshot(Detail::FULL).unwrap();
    for q in s.workqueues.iter().filter(|q| q.name != "ticks") {
        let target = Target::Workqueue(q.name.clone());
        let a = &q.attrs;
        for (attr, shown) in [
            (
                "affinity_scope",
                cmwq::control::attr::format_scope(&a.affinity_scope, &a.effective_scope),
            ),
            ("nice", a.nice.to_string()),
            ("max_active", q.max_active.to_string()),
            ("affinity_strict", u8::from(a.affinity_strict).to_string()),
        ] {
            assert_eq!(
                client.get(&target, attr).unwrap(),
                shown,
                "{} {attr}",
                q.name
            );
        }
    }
    // What a snapshot shows is what was set.
    let s = client.snapshot(Detail::COUNTERS).unwrap();
    for t in &s.tunables {
        assert_eq!(client.get(&Target::Global, &t.name).unwrap(), t.value);
    }
    assert!(
        s.tunables
            .iter()
            .any(|t| t.name == "panic_on_stall" && t.writable)
    );
    assert!(
        s.tunables
            .iter()
            .any(|t| t.name == "cache_shard_size" && !t.writable)
    );
}

/// What a refused value leaves: everything as it was.
#[test]
fn a_refused_value_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let _unbound = rt.workqueue("ingest").max_active(7).build().unwrap();
    let _ordered = rt.workqueue("journal").ordered().build().unwrap();
    let _percpu = rt.workqueue("ticks").per_cpu().build().unwrap();
    let listener = serve(&dir).runtime(&rt).allow_set(true).listen().unwrap();
    let mut client = connect(listener.path().unwrap());
    let before = client.snapshot(Detail::COUNTERS).unwrap();
    let wq = |name: &str| Target::Workqueue(name.into());
    for (target, attr, value, kind) in [
        (wq("ingest"), "max_active", "0", SetErrorKind::Invalid),
        (wq("ingest"), "max_active", " 7", SetErrorKind::Invalid),
        (wq("ingest"), "nice", "20", SetErrorKind::Invalid),
        (wq("ingest"), "cpumask", "0x3", SetErrorKind::Invalid),
        (wq("ingest"), "cpumask", "list:9999", SetErrorKind::Overflow),
        (wq("ingest"), "affinity_scope", "CPU", SetErrorKind::Invalid),
        (wq("ingest"), "affinity_strict", "2", SetErrorKind::Invalid),
        (wq("ingest"), "kernel_mode", "1", SetErrorKind::Unsupported),
        (wq("journal"), "max_active", "2", SetErrorKind::ReadOnly),
        (wq("journal"), "min_active", "1", SetErrorKind::WrongKind),
        (wq("ticks"), "cpumask", "1", SetErrorKind::WrongKind),
        (wq("nosuch"), "nice", "1", SetErrorKind::NotFound),
        (Target::Global, "cpumask", "0", SetErrorKind::Invalid),
        (
            Target::Global,
            "default_affinity_scope",
            "default",
            SetErrorKind::Invalid,
        ),
        (
            Target::Global,
            "watchdog_thresh",
            "2147484",
            SetErrorKind::Invalid,
        ),
        (
            Target::Global,
            "panic_on_stall",
            "-1",
            SetErrorKind::Invalid,
        ),
        (
            Target::Global,
            "debug_force_rr_cpu",
            "maybe",
            SetErrorKind::Invalid,
        ),
        (Target::Global, "max_active", "1", SetErrorKind::NotFound),
    ] {
        match client.set(&target, attr, value).unwrap_err() {
            ClientError::Answer(e) => {
                assert_eq!(e.kind, kind, "{attr}={value}: {e}");
                assert!(
                    e.message.contains(attr) || e.message.contains("nosuch"),
                    "{e}"
                );
            }
            e => panic!("{attr}={value}: {e}"),
        }
    }
    let after = client.snapshot(Detail::COUNTERS).unwrap();
    assert_eq!(before.tunables, after.tunables);
    for (a, b) in before.workqueues.iter().zip(&after.workqueues) {
        assert_eq!(
            (&a.attrs, a.max_active, a.min_active),
            (&b.attrs, b.max_active, b.min_active)
        );
    }
}

/// `debug_force_rr_cpu`: items queued from one CPU go to the pods of all, and back to the local one when it is off.
#[test]
fn forced_round_robin_sends_items_to_every_pod_in_turn() {
    let machine = cmwq::Topology::synthetic("core:4").unwrap();
    let rt = Runtime::builder().topology(machine).build().unwrap();
    let wq = rt
        .workqueue("q")
        .affinity_scope(cmwq::AffinityScope::Cpu)
        .affinity_strict(true)
        .build()
        .unwrap();
    let pools = || {
        let s = rt.snapshot();
        let of = s.workqueue("q").unwrap().cpu_pool.clone();
        of.iter().filter(|slot| slot.pool.is_some()).count()
    };
    rt.force_round_robin(true);
    for _ in 0..4 {
        wq.spawn(|| {}).join().unwrap();
    }
    assert_eq!(pools(), 4, "every pod has been used");
    assert!(rt.warnings().iter().any(|w| w.contains("round robin")));
    // Ordered and per-CPU queues do not care.
    let ordered = rt.workqueue("o").ordered().build().unwrap();
    ordered.spawn(|| {}).join().unwrap();
    let percpu = rt.workqueue("p").per_cpu().build().unwrap();
    percpu.spawn(|| {}).join().unwrap();
    rt.force_round_robin(false);
    wq.spawn(|| {}).join().unwrap();
}

#[test]
fn a_shard_size_is_taken_and_shown() {
    let build = |cores| {
        let machine = cmwq::Topology::synthetic("l3:1 core:16").unwrap();
        Runtime::builder()
            .topology(machine)
            .cache_shard_size(cores)
            .build()
    };
    assert!(
        build(0)
            .unwrap_err()
            .to_string()
            .contains("cache_shard_size")
    );
    for (cores, pods) in [(8, 2), (4, 4), (100, 1)] {
        let s = build(cores).unwrap().snapshot();
        assert_eq!(s.topology.scope("cache_shard").unwrap().pods.len(), pods);
        let shown = s
            .tunables
            .iter()
            .find(|t| t.name == "cache_shard_size")
            .unwrap();
        assert_eq!(shown.value, cores.to_string());
    }
}

/// A trace of the real runtime: every thread has its name, a span that blocks is seen by whoever notices it first.
#[test]
fn a_trace_names_its_threads_and_shows_who_noticed_a_block() {
    use cmwq::control::trace::TraceKind;
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().thread_name("traced").build().unwrap();
    let wq = rt.workqueue("ingest").build().unwrap();
    let listener = serve(&dir).runtime(&rt).listen().unwrap();
    let mut client = connect(listener.path().unwrap());
    client.trace_start(&TraceOptions::default()).unwrap();
    let mut events = Vec::new();
    let mut threads = Vec::new();
    // Blocks without saying so while others wait: until somebody has noticed (how soon is the machine's business).
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !events.iter().any(
        |e| matches!(e, TraceKind::WorkerBlocked { by, .. } if by == "tick" || by == "sentinel"),
    ) {
        assert!(std::time::Instant::now() < deadline, "{events:?}");
        let sleepers: Vec<_> = (0..64)
            .map(|_| wq.spawn(|| std::thread::sleep(std::time::Duration::from_millis(8))))
            .collect();
        for s in sleepers {
            s.join().unwrap();
        }
        loop {
            let chunk = client.trace_poll(10_000).unwrap();
            events.extend(chunk.events.into_iter().map(|e| e.kind));
            threads.extend(chunk.threads);
            if !chunk.more {
                break;
            }
        }
    }
    client.trace_stop().unwrap();
    let worker = threads
        .iter()
        .find(|(_, name)| name.starts_with("traced/u"));
    assert!(worker.is_some(), "{threads:?}");
    let own = own_tid();
    assert!(threads.iter().any(|(tid, _)| *tid == own), "{threads:?}");
    let mut once: Vec<u32> = threads.iter().map(|t| t.0).collect();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), threads.len(), "each is named once");
}

fn own_tid() -> u32 {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// The thread that serves must not take the application's signals.
#[test]
fn the_control_thread_blocks_the_applications_signals() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let listener = serve(&dir).runtime(&rt).listen().unwrap();
    drop(connect(listener.path().unwrap()));
    let mask = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .find_map(|task| {
            let dir = task.unwrap().path();
            let comm = std::fs::read_to_string(dir.join("comm")).ok()?;
            (comm.trim() == "cmwq-control")
                .then(|| std::fs::read_to_string(dir.join("status")).unwrap())
        });
    let mask = mask.expect("the thread has its name");
    let blocked = mask
        .lines()
        .find_map(|l| l.strip_prefix("SigBlk:"))
        .unwrap()
        .trim();
    let blocked = u64::from_str_radix(blocked, 16).unwrap();
    assert_ne!(blocked & 1 << (libc::SIGTERM - 1), 0, "{blocked:x}");
    assert_eq!(blocked & 1 << (libc::SIGSEGV - 1), 0, "{blocked:x}");
}

#[test]
fn in_a_forked_child_the_handle_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").build().unwrap();
    wq.spawn(|| {}).join().unwrap();
    let listener = serve(&dir).runtime(&rt).listen().unwrap();
    let again = serve(&dir).runtime(&rt);
    // SAFETY: the child makes no use of what other threads may have held at that moment: it drops a handle, tries to listen
    // (which must be refused before anything is allocated by it) and leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        listener.stop();
        let refused = matches!(again.listen(), Err(cmwq::control::ListenError::Forked));
        // SAFETY: ends the child at once, without running the test harness's or the runtime's ends.
        unsafe { libc::_exit(if refused { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
        "{status:x}"
    );
    let mut client = connect(listener.path().unwrap());
    assert!(
        client
            .snapshot(Detail::COUNTERS)
            .unwrap()
            .workqueue("ingest")
            .is_some()
    );
}
