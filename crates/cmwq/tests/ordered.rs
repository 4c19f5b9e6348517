//! Ordered queues: strict order, one at a time, across changes (kernel semantics: 2.3; bug list 9, 11, 45, 47, 48).

mod common;

use cmwq::{AffinityScope, Attrs, AttrsError, CpuSet, Work};
use common::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn items_of_one_issuer_run_in_order_one_at_a_time_across_attrs_changes() {
    within("order across attrs", || {
        let rt = synthetic("package:2 l3:2 core:4").build().unwrap();
        let wq = rt.workqueue("log").ordered().build().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let inside = Arc::new(AtomicUsize::new(0));
        let attrs = |i: usize| match i % 5 {
            0 => Attrs::new(),
            1 => Attrs::new().nice(3),
            2 => Attrs::new().cpumask((0..8).collect::<CpuSet>()),
            3 => Attrs::new()
                .affinity_scope(AffinityScope::Cpu)
                .affinity_strict(true),
            _ => Attrs::new().nice(3).cpumask(CpuSet::of(2)),
        };
        for i in 0..6000 {
            let (log, inside) = (log.clone(), inside.clone());
            drop(wq.spawn(move || {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                log.lock().unwrap().push(i);
                inside.fetch_sub(1, Ordering::SeqCst);
            }));
            if i % 100 == 7 {
                wq.apply_attrs(attrs(i / 100)).unwrap();
            }
        }
        wq.flush().unwrap();
        assert_eq!(*log.lock().unwrap(), (0..6000).collect::<Vec<_>>());
        let s = wq.stats();
        assert_eq!((s.panicked, s.pwqs), (0, 1), "replaced pwqs are released");
        assert_eq!(s.completed, 6000, "counters outlive their pwqs");
    });
}

#[test]
fn several_issuers_keep_their_own_order_across_attrs_changes() {
    within("order of several issuers", || {
        let rt = runtime();
        let wq = rt.workqueue("log").ordered().build().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let inside = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|s| {
            for t in 0..3 {
                let (wq, log, inside) = (&wq, &log, &inside);
                s.spawn(move || {
                    for i in 0..1500 {
                        let (log, inside) = (Arc::clone(log), Arc::clone(inside));
                        drop(wq.spawn(move || {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            log.lock().unwrap().push((t, i));
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }));
                    }
                });
            }
            for i in 0..60 {
                wq.apply_attrs(Attrs::new().nice(i % 4)).unwrap();
                std::thread::yield_now();
            }
        });
        wq.flush().unwrap();
        let log = log.lock().unwrap();
        assert_eq!(log.len(), 4500);
        for t in 0..3 {
            let own: Vec<_> = log.iter().filter(|e| e.0 == t).map(|e| e.1).collect();
            assert!(own.windows(2).all(|w| w[0] < w[1]));
        }
        assert_eq!(wq.stats().panicked, 0);
    });
}

/// A new pwq is plugged until every older one is released, also when one in between is empty.
#[test]
fn a_new_pwq_runs_nothing_before_every_older_one_is_done() {
    within("plugged pwqs", || {
        let rt = runtime();
        let wq = rt.workqueue("log").ordered().build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let log = Arc::new(Mutex::new(Vec::new()));
        let put = |i: u32| {
            let log = log.clone();
            drop(wq.spawn(move || log.lock().unwrap().push(i)));
        };
        let g = gate.clone();
        drop(wq.spawn(move || g.pass()));
        gate.await_arrivals(1);
        put(0);
        wq.apply_attrs(Attrs::new().nice(1)).unwrap();
        put(1);
        wq.apply_attrs(Attrs::new().nice(2)).unwrap();
        // Nothing goes into this one.
        wq.apply_attrs(Attrs::new().nice(3)).unwrap();
        put(2);
        // And back to the first attributes, whose old pwq still exists.
        wq.apply_attrs(Attrs::new()).unwrap();
        put(3);
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert!(log.lock().unwrap().is_empty());
        assert_eq!(wq.stats().active, 1, "only the first is active");
        gate.open();
        wq.flush().unwrap();
        assert_eq!(*log.lock().unwrap(), [0, 1, 2, 3]);
    });
}

/// Bug list 11: queued again while it runs and the attrs have just changed, an item goes to the newest pwq.
#[test]
fn an_item_requeued_while_it_runs_does_not_overtake() {
    within("requeue across attrs", || {
        let rt = runtime();
        let wq = rt.workqueue("log").ordered().build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let log = Arc::new(Mutex::new(Vec::new()));
        let (g, l) = (gate.clone(), log.clone());
        let w = Work::new(move |_| {
            l.lock().unwrap().push("w");
            g.pass();
        });
        wq.queue(&w).unwrap();
        gate.await_arrivals(1);
        wq.apply_attrs(Attrs::new().nice(4)).unwrap();
        let l = log.clone();
        drop(wq.spawn(move || l.lock().unwrap().push("a")));
        wq.queue(&w).unwrap();
        let l = log.clone();
        drop(wq.spawn(move || l.lock().unwrap().push("b")));
        gate.open();
        wq.flush().unwrap();
        assert_eq!(*log.lock().unwrap(), ["w", "a", "w", "b"]);
    });
}

#[test]
fn its_limit_cannot_be_changed() {
    let rt = runtime();
    let wq = rt.workqueue("log").ordered().build().unwrap();
    assert_eq!(wq.limits(), (1, 1));
    let e = wq.set_max_active(2).unwrap_err();
    assert!(
        matches!(
            &e,
            AttrsError::WrongKind {
                setting: "max_active",
                ..
            }
        ),
        "{e}"
    );
    assert!(wq.set_min_active(1).is_err());
    assert!(rt.workqueue("log").ordered().max_active(2).build().is_err());
    assert!(rt.workqueue("log").ordered().max_active(1).build().is_ok());
}

/// Bug list 45: an unbound queue with limit 1 promises one at a time, not order; in one pool it is first come first served.
#[test]
fn an_unbound_queue_of_limit_one_is_not_ordered_but_runs_one_at_a_time() {
    within("unbound with limit 1", || {
        let rt = synthetic("package:2 l3:2 core:2").build().unwrap();
        let wq = rt
            .workqueue("t")
            .max_active(1)
            .affinity_scope(AffinityScope::Cache)
            .build()
            .unwrap();
        assert_eq!(wq.kind(), cmwq::WorkqueueKind::Unbound);
        let inside = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        for i in 0..2000 {
            let (inside, most) = (inside.clone(), most.clone());
            // Two nodes, so two slots: max_active holds per node once min_active is reached.
            drop(
                wq.try_spawn_on(i % 4, move || {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                })
                .unwrap(),
            );
        }
        wq.flush().unwrap();
        assert_eq!(most.load(Ordering::SeqCst), 1);
    });
}

/// Bug list 47: attributes can be changed and read back.
#[test]
fn attrs_of_an_ordered_queue_can_be_changed_and_read() {
    let rt = runtime();
    let wq = rt.workqueue("log").ordered().build().unwrap();
    let attrs = Attrs::new()
        .nice(2)
        .affinity_scope(AffinityScope::Numa)
        .affinity_strict(true);
    wq.apply_attrs(attrs.clone()).unwrap();
    assert_eq!(wq.attrs(), attrs);
    assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
    // Bug list 48: exactly one pwq, whatever the CPU.
    assert_eq!(wq.stats().pwqs, 1);
    assert!(wq.apply_attrs(Attrs::new().nice(20)).is_err());
    assert_eq!(wq.attrs(), attrs, "all or nothing");
}

#[test]
fn ordered_items_mix_closures_and_works_in_order() {
    let rt = runtime();
    let wq = rt.workqueue("log").ordered().build().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let works: Vec<Work> = (0..500)
        .map(|i| {
            let log = log.clone();
            Work::new(move |_| log.lock().unwrap().push(2 * i))
        })
        .collect();
    for (i, w) in works.iter().enumerate() {
        wq.queue(w).unwrap();
        let log = log.clone();
        drop(wq.spawn(move || log.lock().unwrap().push(2 * i + 1)));
    }
    wq.flush().unwrap();
    assert_eq!(*log.lock().unwrap(), (0..1000).collect::<Vec<_>>());
}
