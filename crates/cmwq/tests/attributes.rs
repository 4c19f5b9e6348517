//! apply_attrs: live, all or nothing (kernel semantics: 1.1, 1.6, 2.16; bug list 17, 24).

mod common;

use cmwq::{AffinityScope, Attrs, AttrsError, Concurrency, CpuSet, Runtime};
use common::*;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

const MACHINE: &str = "package:2 l3:2 core:4 thread:2";

#[test]
fn the_scope_decides_how_many_pools_there_are() {
    let rt = synthetic(MACHINE).build().unwrap();
    let cpus = rt.topology().possible().len();
    let pools = |scope| {
        let wq = rt.workqueue("t").affinity_scope(scope).build().unwrap();
        for cpu in 0..cpus {
            wq.try_spawn_on(cpu, || ()).unwrap().join().unwrap();
        }
        assert_eq!(
            wq.effective_scope(),
            if scope == AffinityScope::Default {
                AffinityScope::CacheShard
            } else {
                scope
            }
        );
        wq.stats().pwqs
    };
    assert_eq!(pools(AffinityScope::Cpu), cpus);
    assert_eq!(pools(AffinityScope::Smt), cpus / 2);
    assert_eq!(pools(AffinityScope::Cache), 4);
    assert_eq!(pools(AffinityScope::CacheShard), 4);
    assert_eq!(pools(AffinityScope::Default), 4);
    assert_eq!(pools(AffinityScope::Numa), rt.topology().nodes().len());
    assert_eq!(pools(AffinityScope::System), 1);
}

/// Bug list 24: scope names match exactly.
#[test]
fn scope_names_match_exactly() {
    assert_eq!(
        AffinityScope::from_str("cache_shard"),
        Ok(AffinityScope::CacheShard)
    );
    assert_eq!(AffinityScope::from_str("cache"), Ok(AffinityScope::Cache));
    for bad in ["Cache", "cach", "cache_shards", "cache ", ""] {
        assert!(AffinityScope::from_str(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn bad_attrs_change_nothing() {
    let rt = synthetic(MACHINE).build().unwrap();
    let good = Attrs::new().nice(5).affinity_scope(AffinityScope::Numa);
    let wq = rt.workqueue("t").attrs(good.clone()).build().unwrap();
    for nice in [-21, 20, i32::MAX] {
        let e = wq.apply_attrs(Attrs::new().nice(nice)).unwrap_err();
        assert!(
            matches!(
                &e,
                AttrsError::OutOfRange {
                    setting: "nice",
                    ..
                }
            ),
            "{e}"
        );
        assert!(rt.workqueue("bad").nice(nice).build().is_err());
    }
    assert_eq!(wq.attrs(), good);
    let percpu = rt.workqueue("p").per_cpu().build().unwrap();
    let e = percpu.apply_attrs(Attrs::new()).unwrap_err();
    assert!(matches!(&e, AttrsError::WrongKind { .. }), "{e}");
    assert!(
        rt.workqueue("p")
            .per_cpu()
            .cpumask(CpuSet::of(1))
            .build()
            .is_err()
    );
    wq.close();
    assert!(matches!(
        wq.apply_attrs(good),
        Err(AttrsError::Closed { .. })
    ));
}

/// 2.16.1: CPUs that are not allowed are left out; if none is left, all are taken.
#[test]
fn masks_are_cut_to_what_there_is() {
    let rt = synthetic(MACHINE).build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    for mask in [
        CpuSet::of(3),
        CpuSet::of(4000),
        CpuSet::new(),
        CpuSet::first_n(16),
    ] {
        wq.apply_attrs(Attrs::new().cpumask(mask.clone())).unwrap();
        assert_eq!(wq.attrs().get_cpumask(), Some(&mask), "shown as written");
        assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
        assert_eq!(wq.try_spawn_on(9, || 2).unwrap().join().unwrap(), 2);
    }
    wq.apply_attrs(wq.attrs().any_cpu()).unwrap();
    assert_eq!(wq.attrs().get_cpumask(), None);
}

#[test]
fn pools_are_shared_between_queues_of_equal_attrs() {
    let rt = synthetic("package:1 l3:1 core:4").build().unwrap();
    let queues: Vec<_> = (0..50)
        .map(|i| rt.workqueue(format!("q{i}")).build().unwrap())
        .collect();
    for q in &queues {
        q.spawn(|| ()).join().unwrap();
    }
    assert!(rt.threads() <= 6, "{} threads for one pool", rt.threads());
}

#[test]
fn equal_attrs_keep_pwqs_and_others_retire_them() {
    let rt = synthetic(MACHINE).build().unwrap();
    let wq = rt
        .workqueue("t")
        .affinity_scope(AffinityScope::Cache)
        .build()
        .unwrap();
    for cpu in 0..32 {
        wq.try_spawn_on(cpu, || ()).unwrap().join().unwrap();
    }
    let same = wq.apply_attrs(wq.attrs()).unwrap();
    assert_eq!((same.kept, same.retired), (4, 0));
    let other = wq.apply_attrs(wq.attrs().nice(3)).unwrap();
    assert_eq!((other.kept, other.retired), (0, 4));
    eventually("they are released", || wq.stats().pwqs == 0);
    assert_eq!(wq.stats().completed, 32);
}

/// Items flow while everything is changed at once; each runs once, and replaced pools end with their threads.
#[test]
fn attrs_change_while_items_flow_and_nothing_is_lost() {
    within("attrs under load", || {
        let rt = Runtime::builder()
            .topology(cmwq::Topology::synthetic(MACHINE).unwrap())
            .thread_name("attrs-flow")
            .build()
            .unwrap();
        let wq = rt.workqueue("t").max_active(8).build().unwrap();
        let ran = Count::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let issuers: Vec<_> = (0..3)
                .map(|t| {
                    let (wq, ran) = (&wq, &ran);
                    s.spawn(move || {
                        for i in 0..4000usize {
                            let r = ran.clone();
                            drop(wq.try_spawn_on((i * 7 + t) % 32, move || r.up()).unwrap());
                        }
                    })
                })
                .collect();
            s.spawn(|| {
                let mut i = 0usize;
                while !stop.load(Ordering::SeqCst) {
                    let scope = AffinityScope::ALL[i % AffinityScope::ALL.len()];
                    let attrs = Attrs::new()
                        .affinity_scope(scope)
                        .affinity_strict(i.is_multiple_of(3))
                        .nice((i % 4) as i32)
                        .cpumask((i % 5..32).collect());
                    wq.apply_attrs(attrs).unwrap();
                    i += 1;
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            issuers.into_iter().for_each(|i| i.join().unwrap());
            stop.store(true, Ordering::SeqCst);
        });
        wq.flush().unwrap();
        assert_eq!(ran.get(), 12_000);
        let s = wq.stats();
        assert_eq!(
            (s.queued, s.completed, s.active, s.inactive),
            (12_000, 12_000, 0, 0)
        );
        wq.destroy().unwrap();
        drop(rt);
        eventually("all threads end", || threads_named("attrs-flow") == 0);
    });
}

/// Bug list 17: a queue that cannot be made leaves nothing behind.
#[test]
fn a_queue_that_cannot_be_made_leaves_no_thread_behind() {
    let rt = Runtime::builder().thread_name("halfmade").build().unwrap();
    rt.shutdown().unwrap();
    for _ in 0..10 {
        assert!(rt.workqueue("halfmade").guaranteed().build().is_err());
    }
    eventually("the rescuers are gone", || {
        threads_named("cmwq/R-halfmade") == 0
    });
}

#[test]
fn kernel_mode_and_unmanaged_queues_run_all_active_items_at_once() {
    within("unmanaged", || {
        let rt = synthetic("package:1 l3:1 core:1").build().unwrap();
        for b in [
            rt.workqueue("u").concurrency(Concurrency::Unmanaged),
            rt.workqueue("k").kernel_mode(true),
        ] {
            let wq = b.max_active(16).build().unwrap();
            let gate = Gate::new();
            let _opener = Opener(&gate);
            for _ in 0..16 {
                let g = gate.clone();
                drop(wq.spawn(move || g.pass_silently()));
            }
            gate.await_arrivals(16);
            gate.open();
            wq.flush().unwrap();
        }
    });
}
