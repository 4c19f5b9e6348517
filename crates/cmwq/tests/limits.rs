//! max_active, min_active, max_pending (kernel semantics: 1.1, 2.4; bug list 1, 2, 10, 16).

mod common;

use cmwq::{AffinityScope, Attrs, AttrsError, Runtime, Workqueue};
use common::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TWO_NODES: &str = "package:2 l3:2 core:4";

/// Runs `items` short blocking items, issued on all CPUs in turn, and returns how many ran at most at a time.
fn most_at_once(wq: &Workqueue, cpus: usize, items: usize) -> usize {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for i in 0..items {
        let (now, most) = (now.clone(), most.clone());
        drop(
            wq.try_spawn_on(i % cpus, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                cmwq::blocking(|| std::thread::sleep(Duration::from_micros(300)));
                now.fetch_sub(1, Ordering::SeqCst);
            })
            .unwrap(),
        );
    }
    wq.flush().unwrap();
    assert_eq!(now.load(Ordering::SeqCst), 0);
    most.load(Ordering::SeqCst)
}

/// Bug list 1: the limit of an unbound queue holds for the whole system, however many pools and issuing CPUs there are.
#[test]
fn the_limit_of_an_unbound_queue_holds_across_all_pools() {
    within("system-wide limit", || {
        let rt = synthetic("package:1 l3:4 core:4").build().unwrap();
        for scope in [
            AffinityScope::Cpu,
            AffinityScope::Cache,
            AffinityScope::System,
        ] {
            for max in [1, 3, 16] {
                let wq = rt
                    .workqueue("t")
                    .max_active(max)
                    .affinity_scope(scope)
                    .build()
                    .unwrap();
                let most = most_at_once(&wq, 16, 200);
                assert!(most <= max as usize, "{most} of {max} at {scope:?}");
            }
        }
    });
}

/// Bug list 2: on a single node, concurrency reaches the limit, not min_active.
#[test]
fn the_limit_is_reached_beyond_min_active() {
    within("reaching the limit", || {
        let rt = synthetic("package:1 l3:1 core:4").build().unwrap();
        let wq = rt.workqueue("t").max_active(20).build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        for _ in 0..30 {
            let g = gate.clone();
            drop(wq.spawn(move || g.pass()));
        }
        gate.await_arrivals(20);
        let s = wq.stats();
        assert_eq!((s.active, s.inactive), (20, 10));
        assert!(wq.congested());
        gate.open();
        wq.flush().unwrap();
        assert_eq!(gate.arrived(), 30);
        assert!(!wq.congested());
    });
}

/// 2.4: the split over nodes with its floor.
#[test]
fn nodes_get_their_share_and_never_less_than_min_active() {
    within("node shares", || {
        let rt = synthetic(TWO_NODES).build().unwrap();
        let nodes = rt.topology().nodes().len();
        let wq = rt
            .workqueue("t")
            .max_active(4)
            .min_active(1)
            .affinity_scope(AffinityScope::Cache)
            .build()
            .unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        for i in 0..40 {
            let g = gate.clone();
            drop(wq.try_spawn_on(i % 16, move || g.pass()).unwrap());
        }
        // One node: 4. Two: 2 each.
        gate.await_arrivals(4);
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(wq.stats().active, 4, "{nodes} nodes");
        // min_active raises each node's share.
        wq.set_min_active(4).unwrap();
        gate.await_arrivals(4 * nodes);
        assert_eq!(wq.stats().active, 4 * nodes);
        gate.open();
        wq.flush().unwrap();
    });
}

#[test]
fn a_per_cpu_limit_is_per_cpu() {
    within("per-CPU limit", || {
        let rt = synthetic("package:1 l3:1 core:4").build().unwrap();
        let wq = rt.workqueue("t").per_cpu().max_active(2).build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        for i in 0..40 {
            let g = gate.clone();
            drop(wq.try_spawn_on(i % 4, move || g.pass()).unwrap());
        }
        gate.await_arrivals(8);
        std::thread::sleep(Duration::from_millis(5));
        let s = wq.stats();
        assert_eq!((s.active, s.inactive), (8, 32));
        gate.open();
        wq.flush().unwrap();
    });
}

/// Bug list 10, 2.3: raised: held-back items start in order, before anything queued later.
#[test]
fn a_raised_limit_starts_held_back_items_in_order() {
    within("raised limit", || {
        for per_cpu in [false, true] {
            let rt = synthetic("package:1 l3:1 core:1").build().unwrap();
            let b = rt.workqueue("t").max_active(1);
            let wq = if per_cpu { b.per_cpu() } else { b }.build().unwrap();
            let gate = Gate::new();
            let log = Arc::new(Mutex::new(Vec::new()));
            let g = gate.clone();
            drop(wq.spawn(move || g.pass()));
            gate.await_arrivals(1);
            for i in 0..20 {
                let log = log.clone();
                drop(wq.spawn(move || log.lock().unwrap().push(i)));
            }
            assert_eq!(wq.stats().inactive, 20);
            assert_eq!(wq.set_max_active(5).unwrap(), 5);
            let l = log.clone();
            drop(wq.spawn(move || l.lock().unwrap().push(20)));
            gate.open();
            wq.flush().unwrap();
            assert_eq!(log.lock().unwrap().len(), 21);
            // One CPU, so one worker at a time: the order of starting is the order of the log.
            assert_eq!(
                *log.lock().unwrap(),
                (0..21).collect::<Vec<_>>(),
                "per_cpu {per_cpu}"
            );
        }
    });
}

#[test]
fn a_lowered_limit_takes_nothing_back_and_then_holds() {
    within("lowered limit", || {
        let rt = synthetic("package:1 l3:1 core:4").build().unwrap();
        let wq = rt.workqueue("t").max_active(12).build().unwrap();
        let gate = Gate::new();
        for _ in 0..20 {
            let g = gate.clone();
            drop(wq.spawn(move || g.pass()));
        }
        gate.await_arrivals(12);
        assert_eq!(wq.set_max_active(2).unwrap(), 2);
        assert_eq!(wq.limits(), (2, 2), "min_active is lowered with it");
        assert_eq!(wq.stats().active, 12, "what is active stays so");
        gate.open();
        wq.flush().unwrap();
        assert!(most_at_once(&wq, 4, 60) <= 2);
        // 2.16a.11: min_active sticks when the limit is raised again.
        wq.set_max_active(32).unwrap();
        assert_eq!(wq.limits(), (32, 2));
        assert_eq!(wq.set_min_active(100).unwrap(), 32);
    });
}

#[test]
fn limits_are_clamped_and_defaulted_as_in_the_kernel() {
    let rt = runtime();
    let limits = |n| {
        let wq = rt.workqueue("t").max_active(n).build().unwrap();
        let l = wq.limits();
        wq.destroy().unwrap();
        l
    };
    assert_eq!(limits(0), (1024, 8));
    assert_eq!(limits(3), (3, 3));
    assert_eq!(limits(2048), (2048, 8));
    assert!(rt.warnings().is_empty());
    assert_eq!(limits(5000), (2048, 8));
    assert!(rt.warnings()[0].contains("5000"), "{:?}", rt.warnings());
    let wq = rt.workqueue("t").build().unwrap();
    assert_eq!(wq.set_max_active(0).unwrap(), 1);
    assert_eq!(wq.set_max_active(u32::MAX).unwrap(), 2048);
    assert_eq!(wq.set_min_active(0).unwrap(), 0);
    assert_eq!(wq.spawn(|| 1).join().unwrap(), 1, "no share is zero");
    let p = rt.workqueue("p").per_cpu().build().unwrap();
    assert!(matches!(
        p.set_min_active(1),
        Err(AttrsError::WrongKind { .. })
    ));
}

/// Bug list 16: a pwq waits for permits with items that are all cancelled, then goes away, while others use the slot.
#[test]
fn a_pwq_that_waits_with_cancelled_items_only_does_no_harm() {
    within("cancelled waiting items", || {
        let rt = synthetic("package:1 l3:4 core:2").build().unwrap();
        let wq = rt
            .workqueue("t")
            .max_active(1)
            .affinity_scope(AffinityScope::Cache)
            .build()
            .unwrap();
        for round in 0..100 {
            let gate = Gate::new();
            let _opener = Opener(&gate);
            let g = gate.clone();
            drop(wq.try_spawn_on(0, move || g.pass()).unwrap());
            gate.await_arrivals(1);
            let waiting: Vec<_> = (1..8).map(|c| wq.try_spawn_on(c, || ()).unwrap()).collect();
            assert!(waiting.iter().all(|h| h.cancel()));
            // The pwqs that asked are retired.
            let scope = if round % 2 == 0 {
                AffinityScope::Cpu
            } else {
                AffinityScope::Cache
            };
            wq.apply_attrs(Attrs::new().affinity_scope(scope)).unwrap();
            gate.open();
            let h = wq.try_spawn_on(5, || 1).unwrap();
            assert_eq!(h.join().unwrap(), 1);
        }
        wq.flush().unwrap();
        eventually("replaced pwqs are released", || wq.stats().pwqs <= 4);
    });
}

/// peers (folly 2525, rayon 988, io-wq): limits and threads change while items flow; nothing is lost, threads stay bounded.
#[test]
fn limits_change_under_load_and_nothing_is_lost() {
    within("limits under load", || {
        let rt = Runtime::builder().build().unwrap();
        let wq = rt.workqueue("t").build().unwrap();
        let ran = Count::new();
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..5000 {
                        let r = ran.clone();
                        drop(wq.spawn(move || r.up()));
                    }
                });
            }
            s.spawn(|| {
                for i in 0..500u32 {
                    wq.set_max_active(1 + i * 7 % 40).unwrap();
                    wq.set_min_active(i % 9).unwrap();
                }
            });
        });
        wq.flush().unwrap();
        assert_eq!(ran.get(), 10_000);
        assert!(rt.threads() < 100);
    });
}

/// max_threads is a ceiling on threads, not on progress. Symptom: with fewer threads allowed than pools in use, the items of
/// a pool that came late never ran, as idle workers of others kept their threads.
#[test]
fn fewer_threads_than_pools_still_serve_all_pools() {
    within("two threads for eight pools", || {
        let rt = synthetic("package:1 l3:1 core:8")
            .max_threads(2)
            .build()
            .unwrap();
        let wq = rt.workqueue("t").per_cpu().build().unwrap();
        for round in 0..2 {
            for cpu in 0..8 {
                assert_eq!(
                    wq.try_spawn_on(cpu, move || cpu).unwrap().join().unwrap(),
                    cpu
                );
                assert!(rt.threads() <= 2, "round {round}");
            }
        }
    });
}
