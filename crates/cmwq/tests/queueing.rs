//! Queueing (kernel semantics: 1.2, 2.1, 2.2, 2.17).

mod common;

use cmwq::{QueueError, Queued, Work};
use common::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn every_closure_of_many_threads_runs_once() {
    within("many issuers", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let runs: Arc<Vec<AtomicUsize>> =
            Arc::new((0..40_000).map(|_| AtomicUsize::new(0)).collect());
        std::thread::scope(|s| {
            for t in 0..4 {
                let (wq, runs) = (&wq, &runs);
                s.spawn(move || {
                    for i in (t..runs.len()).step_by(4) {
                        let runs = Arc::clone(runs);
                        drop(wq.spawn(move || runs[i].fetch_add(1, Ordering::SeqCst)));
                    }
                });
            }
        });
        wq.flush().unwrap();
        assert!(runs.iter().all(|r| r.load(Ordering::SeqCst) == 1));
        let s = wq.stats();
        assert_eq!((s.queued, s.started, s.completed), (40_000, 40_000, 40_000));
    });
}

#[test]
fn items_queue_more_items() {
    within("a tree of items", || {
        fn grow(wq: &cmwq::Workqueue, depth: u32, n: &Count) {
            n.up();
            if depth > 0 {
                for _ in 0..2 {
                    let (q, n) = (wq.clone(), n.clone());
                    drop(wq.spawn(move || grow(&q, depth - 1, &n)));
                }
            }
        }
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let n = Count::new();
        grow(&wq, 12, &n);
        wq.drain().unwrap();
        assert_eq!(n.get(), (1 << 13) - 1);
    });
}

/// 2.1.2: PENDING ends just before the function runs, so an item may queue itself, and runs again.
#[test]
fn an_item_may_queue_itself() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let n = Count::new();
    let (c, q) = (n.clone(), wq.clone());
    let w = Work::new(move |w| {
        assert!(!w.is_pending());
        if c.up() < 1000 {
            assert_eq!(q.queue(w).unwrap(), Queued::New);
            assert_eq!(q.queue(w).unwrap(), Queued::AlreadyPending);
            assert!(w.is_pending());
        }
    });
    wq.queue(&w).unwrap();
    eventually("a thousand runs", || n.get() == 1000);
    wq.flush().unwrap();
    assert_eq!((n.get(), wq.stats().panicked), (1000, 0));
}

/// 2.1.2: the function may drop the last handle of its own item.
#[test]
fn an_item_may_free_itself() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    for _ in 0..500 {
        let alive = Arc::new(());
        let held = alive.clone();
        let slot: Arc<Mutex<Option<Work>>> = Arc::default();
        let own = slot.clone();
        let w = Work::new(move |_| {
            let _held = &held;
            own.lock().unwrap().take();
        });
        *slot.lock().unwrap() = Some(w.clone());
        wq.queue(&w).unwrap();
        drop(w);
        wq.flush().unwrap();
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}

#[test]
fn a_queued_work_is_kept_alive_by_its_queue() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    drop(wq.spawn(move || g.pass()));
    let n = Count::new();
    let c = n.clone();
    let w = Work::new(move |_| {
        c.up();
    });
    let weak = w.downgrade();
    wq.queue(&w).unwrap();
    drop(w);
    assert!(weak.upgrade().is_some());
    gate.open();
    wq.flush().unwrap();
    assert_eq!(n.get(), 1);
    assert!(weak.upgrade().is_none());
}

/// 2.1.3: if queueing says "already pending", what the caller stored before is seen by a run that starts later.
#[test]
fn what_was_stored_before_already_pending_is_seen_by_the_run() {
    within("visibility", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let given = Arc::new(AtomicUsize::new(0));
        let taken = Arc::new(AtomicUsize::new(0));
        let (g, t) = (given.clone(), taken.clone());
        // Relaxed on purpose: the order comes from queueing alone.
        let w = Work::new(move |_| t.store(g.load(Ordering::Relaxed), Ordering::Relaxed));
        for i in 1..=20_000 {
            given.store(i, Ordering::Relaxed);
            wq.queue(&w).unwrap();
            if i % 64 == 0 {
                w.flush().unwrap();
                assert_eq!(taken.load(Ordering::Relaxed), i);
            }
        }
        wq.flush().unwrap();
        assert_eq!(taken.load(Ordering::Relaxed), 20_000);
    });
}

/// 2.2: one item never runs concurrently with itself, from however many threads it is queued to whatever CPU.
#[test]
fn an_item_never_runs_concurrently_with_itself() {
    within("non-reentrancy", || {
        for spec in ["package:1 l3:1 core:4", "package:2 l3:2 core:2"] {
            let rt = synthetic(spec).build().unwrap();
            for kind in 0..3 {
                let b = rt.workqueue("t");
                let wq = match kind {
                    0 => b.per_cpu(),
                    1 => b.unbound(),
                    _ => b.ordered(),
                }
                .build()
                .unwrap();
                let inside = Arc::new(AtomicUsize::new(0));
                let runs = Count::new();
                let (i, r) = (inside.clone(), runs.clone());
                let w = Work::new(move |_| {
                    assert_eq!(i.fetch_add(1, Ordering::SeqCst), 0, "it runs twice at once");
                    for _ in 0..50 {
                        std::hint::spin_loop();
                    }
                    i.fetch_sub(1, Ordering::SeqCst);
                    r.up();
                });
                std::thread::scope(|s| {
                    for t in 0..3usize {
                        let (wq, w) = (&wq, &w);
                        s.spawn(move || {
                            for i in 0..1000 {
                                wq.queue_on((i + t) % 4, w).unwrap();
                            }
                        });
                    }
                });
                wq.flush().unwrap();
                let s = wq.stats();
                assert_eq!(s.panicked, 0);
                assert_eq!(s.completed as usize, runs.get());
                assert!(runs.get() > 0);
            }
        }
    });
}

/// 2.2 (a): queued for another CPU while it runs, it goes to the worker that runs it.
#[test]
fn an_item_queued_elsewhere_while_it_runs_runs_again_where_it_runs() {
    within("redirection", || {
        let rt = synthetic("package:1 l3:1 core:4").build().unwrap();
        let wq = rt.workqueue("t").per_cpu().build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let inside = Arc::new(AtomicUsize::new(0));
        let g = gate.clone();
        let w = Work::new(move |_| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            g.pass();
            inside.fetch_sub(1, Ordering::SeqCst);
        });
        wq.queue_on(1, &w).unwrap();
        gate.await_arrivals(1);
        assert_eq!(wq.queue_on(3, &w).unwrap(), Queued::New);
        assert_eq!(wq.stats().pwqs, 1, "no pwq of CPU 3 was needed");
        // Another item does start there meanwhile.
        wq.try_spawn_on(3, || ()).unwrap().join().unwrap();
        assert_eq!(gate.arrived(), 1);
        gate.open();
        wq.flush().unwrap();
        assert_eq!(gate.arrived(), 2);
        assert_eq!(wq.stats().panicked, 0);
    });
}

#[test]
fn bad_cpus_and_nodes_are_errors_that_name_what_there_is() {
    let rt = synthetic("package:2 l3:1 core:2").build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    let w = Work::new(|_| ());
    let e = wq.queue_on(4, &w).unwrap_err();
    assert!(
        matches!(&e, QueueError::NoSuchCpu { cpu: 4, possible } if possible == "0-3"),
        "{e}"
    );
    let e = wq.try_spawn_on(99, || 1).unwrap_err();
    assert_eq!((e.func)(), 1, "the closure comes back");
    assert!(matches!(
        wq.queue_node(7, &w),
        Err(QueueError::NoSuchNode { node: 7 })
    ));
    let percpu = rt.workqueue("p").per_cpu().build().unwrap();
    assert!(matches!(
        percpu.queue_node(0, &w),
        Err(QueueError::WrongKind { .. })
    ));
    assert!(!w.is_pending());
    assert_eq!(wq.queue_node(0, &w).unwrap(), Queued::New);
    w.flush().unwrap();
}

#[test]
fn a_full_queue_refuses_and_the_closure_comes_back() {
    let rt = runtime();
    let wq = rt
        .workqueue("t")
        .max_active(1)
        .max_pending(2)
        .build()
        .unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    let first = wq.spawn(move || g.pass());
    gate.await_arrivals(1);
    let w = Work::new(|_| ());
    wq.queue(&w).unwrap();
    let third = wq.spawn(|| 3);
    assert_eq!(wq.pending(), 2);
    let e = wq.try_spawn(|| 4).unwrap_err();
    assert!(matches!(e.error, QueueError::Full { max_pending: 2, .. }));
    assert_eq!((e.func)(), 4);
    assert!(wq.spawn(|| 5).join().is_err());
    // What is pending already takes no room.
    assert_eq!(wq.queue(&w).unwrap(), Queued::AlreadyPending);
    assert_eq!(wq.stats().refused, 2);
    // Taken out: there is room again.
    assert!(w.cancel());
    let fourth = wq.try_spawn(|| 4).unwrap();
    gate.open();
    first.join().unwrap();
    assert_eq!((third.join().unwrap(), fourth.join().unwrap()), (3, 4));
    wq.flush().unwrap();
    assert_eq!(wq.pending(), 0);
}

#[test]
fn an_item_knows_what_it_is() {
    let rt = runtime();
    let wq = rt.workqueue("ingest").build().unwrap();
    assert!(cmwq::current_work().is_none() && !cmwq::is_worker());
    cmwq::describe("nobody listens");
    let (tx, rx) = std::sync::mpsc::channel();
    let w = Work::with_name("flush_pages", move |_| {
        cmwq::describe("a description that is much longer than what is kept of it: äöü");
        tx.send((cmwq::current_work(), cmwq::is_worker())).unwrap();
    });
    assert_eq!(w.name(), "flush_pages");
    wq.queue(&w).unwrap();
    let (work, is_worker) = rx.recv_timeout(PATIENCE).unwrap();
    assert_eq!(work, Some(("flush_pages", "ingest".to_owned())));
    assert!(is_worker);
}

/// Bug list 49: long names are cut at a character, with a warning; never an overflow.
#[test]
fn long_names_are_cut_at_a_character() {
    let rt = runtime();
    let name = "é".repeat(40);
    let wq = rt.workqueue(&name).build().unwrap();
    assert_eq!(wq.name(), "é".repeat(15));
    assert!(
        rt.warnings()
            .iter()
            .any(|w| w.contains("longer than 31 bytes"))
    );
    assert!(rt.workqueue("").build().is_err());
    let exact = "x".repeat(31);
    assert_eq!(rt.workqueue(&exact).build().unwrap().name(), exact);
    assert_eq!(rt.warnings().len(), 1);
}

/// peers (uv, libuv, tokio): more queues than CPUs, each with a few items, all get served.
#[test]
fn a_thousand_queues_share_a_few_workers() {
    within("a thousand queues", || {
        let rt = runtime();
        let queues: Vec<_> = (0..1000)
            .map(|i| rt.workqueue(format!("q{i}")).build().unwrap())
            .collect();
        let handles: Vec<_> = queues.iter().map(|q| q.spawn(|| 1)).collect();
        let n: usize = handles.into_iter().map(|h| h.join().unwrap()).sum();
        assert_eq!(n, 1000);
        assert!(rt.threads() < 64, "{} threads", rt.threads());
        for q in queues {
            q.destroy().unwrap();
        }
    });
}
