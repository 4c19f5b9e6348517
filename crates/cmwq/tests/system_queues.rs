//! System queues, per-CPU queues, running on every CPU, statistics (kernel semantics: 1.2, 1.4, 1.7).

mod common;

use cmwq::{Runtime, WorkqueueKind};
use common::*;
use std::sync::Mutex;
use std::time::Duration;

#[test]
fn the_system_queues_have_the_kernels_names_kinds_and_limits() {
    let rt = runtime();
    let s = rt.system();
    let seen: Vec<_> = [
        &s.percpu,
        &s.highpri,
        &s.long,
        &s.unbound,
        &s.unbound_long,
        &s.freezable,
        &s.power_efficient,
        &s.freezable_power_efficient,
    ]
    .map(|q| {
        assert_eq!(q.spawn(|| 1).join().unwrap(), 1);
        (q.name().to_owned(), q.kind(), q.limits().0)
    })
    .to_vec();
    let percpu = WorkqueueKind::PerCpu;
    let unbound = WorkqueueKind::Unbound;
    assert_eq!(
        seen,
        [
            ("events".to_owned(), percpu, 1024),
            ("events_highpri".to_owned(), percpu, 1024),
            ("events_long".to_owned(), percpu, 1024),
            ("events_unbound".to_owned(), unbound, 2048),
            ("events_dfl_long".to_owned(), unbound, 2048),
            ("events_freezable".to_owned(), percpu, 1024),
            ("events_power_efficient".to_owned(), percpu, 1024),
            ("events_freezable_pwr_efficient".to_owned(), percpu, 1024),
        ]
    );
    // Cut names would have been warned about.
    assert!(rt.warnings().is_empty(), "{:?}", rt.warnings());
}

#[test]
fn power_efficient_queues_become_unbound_where_asked_for() {
    let rt = Runtime::builder().power_efficient(true).build().unwrap();
    assert_eq!(rt.system().power_efficient.kind(), WorkqueueKind::Unbound);
    assert_eq!(rt.system().percpu.kind(), WorkqueueKind::PerCpu);
    let wq = rt
        .workqueue("t")
        .per_cpu()
        .power_efficient()
        .build()
        .unwrap();
    assert_eq!(wq.kind(), WorkqueueKind::Unbound);
}

#[test]
fn freezing_holds_the_freezable_system_queue_only() {
    within("freezable system queue", || {
        let rt = runtime();
        let s = rt.system();
        rt.freeze();
        let h = s.freezable.spawn(|| 1);
        assert_eq!(s.percpu.spawn(|| 2).join().unwrap(), 2);
        std::thread::sleep(Duration::from_millis(3));
        assert!(!h.is_finished());
        rt.thaw();
        assert_eq!(h.join().unwrap(), 1);
    });
}

/// Items of a per-CPU queue run on the CPU that issued them, one at a time each CPU unless they block.
#[test]
fn per_cpu_items_run_on_their_cpu() {
    let rt = runtime();
    let cpus: Vec<usize> = allowed_cpus();
    let wq = rt.workqueue("t").per_cpu().build().unwrap();
    for &cpu in &cpus {
        for _ in 0..20 {
            let on = wq.try_spawn_on(cpu, current_cpu).unwrap().join().unwrap();
            assert_eq!(on, cpu);
        }
    }
    wq.flush().unwrap();
    assert_eq!(wq.stats().pwqs, cpus.len());
}

fn current_cpu() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::sched_getcpu() as usize }
}

fn allowed_cpus() -> Vec<usize> {
    // SAFETY: the set is written before it is read.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(
            libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set),
            0
        );
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&c| libc::CPU_ISSET(c, &set))
            .collect()
    }
}

#[test]
fn run_on_each_cpu_runs_once_on_each_and_waits() {
    within("run on each CPU", || {
        let rt = runtime();
        let wq = rt.workqueue("t").per_cpu().build().unwrap();
        let seen = Mutex::new(Vec::new());
        wq.run_on_each_cpu(|cpu| {
            assert_eq!(current_cpu(), cpu);
            seen.lock().unwrap().push(cpu);
        })
        .unwrap();
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, allowed_cpus());
        let e = wq.run_on_each_cpu(|_| panic!("everywhere")).unwrap_err();
        assert!(e.is_panic());
        // On a large machine that is made up, each CPU's pool gets its call.
        let rt = synthetic("package:4 l3:4 core:8").build().unwrap();
        let wq = rt.workqueue("t").per_cpu().build().unwrap();
        let seen = Mutex::new(Vec::new());
        wq.run_on_each_cpu(|cpu| seen.lock().unwrap().push(cpu))
            .unwrap();
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..128).collect::<Vec<_>>());
        // From an item of the same queue too.
        let q = wq.clone();
        let n = wq
            .spawn(move || {
                let n = Count::new();
                let c = n.clone();
                q.run_on_each_cpu(move |_| {
                    c.up();
                })
                .unwrap();
                n.get()
            })
            .join()
            .unwrap();
        assert_eq!(n, 128);
    });
}

/// After a flush every number is exact.
#[test]
fn statistics_are_exact_after_a_flush() {
    within("exact statistics", || {
        let rt = synthetic("package:1 l3:2 core:2").build().unwrap();
        let wq = rt.workqueue("t").build().unwrap();
        let mut expected = (0u64, 0u64, 0u64);
        for round in 0..50u64 {
            for i in 0..40 {
                let h = wq
                    .try_spawn_on(i % 4, move || {
                        assert!(i != 3, "on purpose");
                    })
                    .unwrap();
                expected.0 += 1;
                if i == 3 {
                    expected.1 += 1;
                }
                if i % 7 == 0 && h.cancel() {
                    expected.2 += 1;
                }
            }
            wq.flush().unwrap();
            let s = wq.stats();
            assert_eq!(s.queued, expected.0, "round {round}");
            assert_eq!(s.panicked, expected.1);
            assert_eq!(s.cancelled, expected.2);
            assert_eq!(s.completed + s.cancelled, s.queued);
            assert_eq!(s.started, s.completed);
            assert_eq!((s.active, s.inactive), (0, 0));
            assert_eq!(s.queue_to_start.count(), s.completed);
            assert_eq!(s.run.count(), s.completed);
        }
        let s = wq.stats();
        assert!(s.run.min() <= s.run.mean() && s.run.mean() <= s.run.max());
        assert!(s.run.quantile(0.5) <= s.run.quantile(0.99));
        assert_eq!(s.run.buckets().map(|b| b.1).sum::<u64>(), s.run.count());
        assert!(s.in_pod <= s.started && s.cpu_local <= s.started);
    });
}

#[test]
fn run_times_are_those_of_the_items() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    for _ in 0..5 {
        wq.spawn(|| std::thread::sleep(Duration::from_millis(4)))
            .join()
            .unwrap();
    }
    wq.flush().unwrap();
    let s = wq.stats();
    assert!(s.run.min() >= Duration::from_millis(4), "{:?}", s.run.min());
    assert!(s.queue_to_start.min() < Duration::from_millis(4));
    let rt = Runtime::builder().histograms(false).build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    wq.spawn(|| ()).join().unwrap();
    wq.flush().unwrap();
    assert_eq!((wq.stats().run.count(), wq.stats().completed), (0, 1));
}
