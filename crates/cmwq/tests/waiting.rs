//! flush of items and queues, joining (kernel semantics: 1.3, 2.6, 2.11; design: waiting).

mod common;

use cmwq::{JoinError, WaitError, Work};
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn flush_of_an_item_waits_for_the_pending_and_the_running_instance() {
    within("flush of an item", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let n = Count::new();
        let c = n.clone();
        let w = Work::new(move |_| {
            std::thread::sleep(Duration::from_micros(200));
            c.up();
        });
        assert!(!w.flush().unwrap(), "never queued");
        for i in 1..=50 {
            wq.queue(&w).unwrap();
            assert!(w.flush().unwrap() || n.get() >= i);
            assert_eq!(n.get(), i);
            assert!(!w.flush().unwrap(), "idle");
        }
    });
}

/// 2.6: it waits for the last queueing only and does not stop requeueing.
#[test]
fn flush_of_a_self_requeueing_item_ends() {
    within("flush of a self-requeuer", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let n = Count::new();
        let (s, q, c) = (stop.clone(), wq.clone(), n.clone());
        let w = Work::new(move |w| {
            c.up();
            if !s.load(Ordering::SeqCst) {
                q.queue(w).unwrap();
            }
        });
        wq.queue(&w).unwrap();
        for _ in 0..200 {
            let before = n.get();
            w.flush().unwrap();
            assert!(n.get() > before || before > 0);
        }
        stop.store(true, Ordering::SeqCst);
        w.flush().unwrap();
        w.flush().unwrap();
        assert!(!w.busy().pending);
    });
}

#[test]
fn many_threads_flush_one_item() {
    within("many flushers of one item", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let gate = Gate::new();
        let done = Count::new();
        let (g, d) = (gate.clone(), done.clone());
        let w = Work::new(move |_| {
            g.pass();
            d.up();
        });
        wq.queue(&w).unwrap();
        gate.await_arrivals(1);
        wq.queue(&w).unwrap();
        std::thread::scope(|s| {
            let flushers: Vec<_> = (0..8)
                .map(|_| {
                    s.spawn(|| {
                        assert!(w.flush().unwrap());
                        assert_eq!(done.get(), 2, "the pending instance has run");
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(5));
            gate.open();
            flushers.into_iter().for_each(|f| f.join().unwrap());
        });
    });
}

#[test]
fn a_flush_of_a_queue_waits_for_all_before_it() {
    within("flush", || {
        let rt = synthetic("package:2 l3:2 core:2").build().unwrap();
        for b in [
            rt.workqueue("a"),
            rt.workqueue("b").per_cpu(),
            rt.workqueue("c").ordered(),
        ] {
            let wq = b.build().unwrap();
            wq.flush().unwrap();
            for round in 0..30 {
                let done = Count::new();
                for i in 0..200 {
                    let d = done.clone();
                    drop(wq.try_spawn_on(i % 8, move || d.up()).unwrap());
                }
                wq.flush().unwrap();
                assert_eq!(done.get(), 200, "round {round}");
            }
        }
    });
}

/// 2.6: later arrivals do not delay a flush.
#[test]
fn later_arrivals_do_not_delay_a_flush() {
    within("flush under load", || {
        let rt = runtime();
        let wq = rt
            .workqueue("t")
            .max_active(1)
            .max_pending(500)
            .build()
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (s, q) = (stop.clone(), wq.clone());
        let feeder = std::thread::spawn(move || {
            while !s.load(Ordering::SeqCst) {
                drop(q.spawn(|| ()));
            }
        });
        for _ in 0..50 {
            wq.flush().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        feeder.join().unwrap();
        // A later item that never ends does not hold it either.
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        wq.set_max_active(2).unwrap();
        let before = wq.spawn(|| ());
        let flushing = std::thread::scope(|s| {
            let f = s.spawn(|| wq.flush());
            f.join().unwrap()
        });
        drop(wq.spawn(move || g.pass()));
        flushing.unwrap();
        before.join().unwrap();
    });
}

/// 2.6: more flushers than colours share; each sees what was queued before its own call.
#[test]
fn more_flushers_than_colours_all_get_through() {
    within("many flushers", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        std::thread::scope(|s| {
            for _ in 0..40 {
                s.spawn(|| {
                    for _ in 0..25 {
                        let done = Count::new();
                        let d = done.clone();
                        drop(wq.spawn(move || d.up()));
                        wq.flush().unwrap();
                        assert_eq!(done.get(), 1);
                    }
                });
            }
        });
    });
}

/// Bug list 44: a flush takes few locks, however many pwqs there are.
#[test]
fn a_flush_of_a_queue_on_a_large_machine_visits_only_what_was_used() {
    within("flush on 512 CPUs", || {
        let rt = synthetic("package:8 l3:8 core:8").build().unwrap();
        let wq = rt.workqueue("t").per_cpu().build().unwrap();
        for cpu in [0, 77, 511] {
            wq.try_spawn_on(cpu, || ()).unwrap().join().unwrap();
        }
        for _ in 0..100 {
            wq.flush().unwrap();
        }
        assert_eq!(wq.stats().pwqs, 3);
    });
}

#[test]
fn waiting_for_ones_own_queue_is_an_error_that_names_both() {
    let rt = runtime();
    let wq = rt.workqueue("mine").build().unwrap();
    let (q, drain, destroy) = (wq.clone(), wq.clone(), wq.clone());
    let runtime = rt.clone();
    let errors = wq
        .spawn(move || {
            vec![
                q.flush().unwrap_err(),
                drain.drain().unwrap_err(),
                destroy.destroy().unwrap_err(),
                runtime.shutdown().unwrap_err(),
                runtime.shutdown_timeout(Duration::ZERO).unwrap_err(),
            ]
        })
        .join()
        .unwrap();
    for e in errors {
        assert!(
            matches!(&e, WaitError::OwnQueue { wq, item } if &**wq == "mine" && item.contains("waiting")),
            "{e}"
        );
        assert!(e.to_string().contains("mine"));
    }
    assert_eq!(wq.spawn(|| 1).join().unwrap(), 1, "the queue is still open");
}

#[test]
fn a_wait_that_order_makes_impossible_is_an_error() {
    within("impossible waits", || {
        let rt = runtime();
        let wq = rt.workqueue("log").ordered().build().unwrap();
        let ran = Count::new();
        let (q, c) = (wq.clone(), ran.clone());
        let later = Work::with_name("later", move |_| {
            c.up();
        });
        let l = later.clone();
        let (join, flush) = wq
            .spawn(move || {
                q.queue(&l).unwrap();
                (q.spawn(|| ()).join(), l.flush())
            })
            .join()
            .unwrap();
        assert!(matches!(join, Err(JoinError::WouldDeadlock { .. })));
        let e = flush.unwrap_err();
        assert!(
            matches!(&e, WaitError::Order { wq, item: "later" } if &**wq == "log"),
            "{e}"
        );
        wq.flush().unwrap();
        assert_eq!(ran.get(), 1, "nothing was dropped by that");
    });
}

#[test]
fn join_timeout_gives_the_handle_back() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    let h = wq.spawn(move || {
        g.pass();
        3
    });
    let h = h.join_timeout(Duration::from_millis(5)).unwrap_err();
    assert!(!h.is_finished());
    let h = h.join_timeout(Duration::ZERO).unwrap_err();
    gate.open();
    assert_eq!(h.join_timeout(Duration::MAX).unwrap().unwrap(), 3);
}

#[test]
fn handles_are_joined_on_any_thread_and_dropping_detaches() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let h = wq.spawn(|| 5);
    assert_eq!(
        std::thread::spawn(move || h.join().unwrap())
            .join()
            .unwrap(),
        5
    );
    let ran = Count::new();
    let c = ran.clone();
    wq.spawn(move || c.up()).detach();
    wq.flush().unwrap();
    assert_eq!(ran.get(), 1);
}

/// peers (rayon 592, 1205, oneTBB 1316): a waiting worker never runs anything but what it waits for, so a lock held across
/// the wait is never asked for by something on top of it.
#[test]
fn a_waiting_worker_runs_nothing_but_what_it_waits_for() {
    within("a lock across a wait", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let lock = Arc::new(std::sync::Mutex::new(0u32));
        let handles: Vec<_> = (0..200)
            .map(|_| {
                let (q, lock) = (wq.clone(), lock.clone());
                wq.spawn(move || {
                    // Anything else that ran on this stack would deadlock on the lock.
                    let mut n = lock.lock().unwrap();
                    *n += q.spawn(|| 1).join().unwrap();
                })
            })
            .collect();
        handles.into_iter().for_each(|h| h.join().unwrap());
        assert_eq!(*lock.lock().unwrap(), 200);
    });
}

#[test]
fn a_worker_runs_the_awaited_closure_itself_if_it_has_not_started() {
    let rt = runtime();
    let wq = rt.workqueue("t").max_active(1).build().unwrap();
    let q = wq.clone();
    let (outer, inner) = wq
        .spawn(move || {
            let outer = std::thread::current().id();
            (
                outer,
                q.spawn(|| std::thread::current().id()).join().unwrap(),
            )
        })
        .join()
        .unwrap();
    assert_eq!(outer, inner);
    wq.flush().unwrap();
    assert_eq!(wq.stats().inlined, 1);
}

/// Inline running by other threads is asked for; kernel mode has none of it.
#[test]
fn other_threads_run_the_awaited_closure_only_where_allowed() {
    let rt = runtime();
    let gated = |b: cmwq::WorkqueueBuilder| {
        let wq = b.max_active(1).build().unwrap();
        let gate = Gate::new();
        let g = gate.clone();
        drop(wq.spawn(move || g.pass()));
        gate.await_arrivals(1);
        (wq, gate)
    };
    // Held back by the limit: not even where inline waiting is allowed, since nobody lends a permit.
    let (wq, gate) = gated(rt.workqueue("in").inline_wait(true));
    let h = wq.spawn(|| std::thread::current().id());
    let h = h.join_timeout(Duration::from_millis(5)).unwrap_err();
    gate.open();
    h.join().unwrap();
    // On the worklist: a thread that waits runs it.
    let wq = rt.workqueue("in2").inline_wait(true).build().unwrap();
    let me = std::thread::current().id();
    let mut inlined = 0;
    for _ in 0..2000 {
        if wq.spawn(|| std::thread::current().id()).join().unwrap() == me {
            inlined += 1;
        }
    }
    wq.flush().unwrap();
    assert_eq!(wq.stats().inlined, inlined);
    for b in [
        rt.workqueue("out"),
        rt.workqueue("kernel").inline_wait(true).kernel_mode(true),
    ] {
        let wq = b.build().unwrap();
        for _ in 0..200 {
            assert_ne!(wq.spawn(|| std::thread::current().id()).join().unwrap(), me);
        }
        assert_eq!(wq.stats().inlined, 0);
    }
}

#[test]
fn an_inline_run_panics_like_any_other() {
    let rt = runtime();
    let wq = rt.workqueue("t").max_active(1).build().unwrap();
    let q = wq.clone();
    let e = wq
        .spawn(move || {
            let e = q.spawn(|| -> u8 { panic!("inside") }).join().unwrap_err();
            assert!(cmwq::current_work().unwrap().1 == "t");
            e.to_string()
        })
        .join()
        .unwrap();
    assert!(e.contains("inside"), "{e}");
    wq.flush().unwrap();
    assert_eq!((wq.stats().panicked, wq.stats().inlined), (1, 1));
}

/// peers (rayon 779, 835): items that wait for one another across queues, more of them than workers.
#[test]
fn items_that_wait_for_items_of_other_queues_get_through() {
    within("waits across queues", || {
        let rt = runtime();
        let a = rt.workqueue("a").max_active(4).build().unwrap();
        let b = rt.workqueue("b").max_active(2).build().unwrap();
        let c = rt.workqueue("c").per_cpu().build().unwrap();
        let handles: Vec<_> = (0..200usize)
            .map(|i| {
                let (b, c) = (b.clone(), c.clone());
                a.spawn(move || {
                    let c = c.clone();
                    b.spawn(move || c.spawn(move || i).join().unwrap() + 1)
                        .join()
                        .unwrap()
                        + 1
                })
            })
            .collect();
        for (i, h) in handles.into_iter().enumerate() {
            assert_eq!(h.join().unwrap(), i + 2);
        }
    });
}

/// Kernel: flushing the one queue does not wait for another of the same name.
#[test]
fn queues_of_one_name_are_distinct() {
    within("two queues of one name", || {
        let rt = runtime();
        let a = rt.workqueue("events").build().unwrap();
        let b = rt.workqueue("events").build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        drop(a.spawn(move || g.pass()));
        b.flush().unwrap();
        gate.open();
        a.flush().unwrap();
    });
}

#[test]
fn busy_says_pending_and_running() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    let w = Work::new(move |_| g.pass());
    let b = w.busy();
    assert!(!b.pending && !b.running);
    wq.queue(&w).unwrap();
    gate.await_arrivals(1);
    let b = w.busy();
    assert!(!b.pending && b.running);
    wq.queue(&w).unwrap();
    let b = w.busy();
    assert!(b.pending && b.running);
    gate.open();
    wq.flush().unwrap();
    let b = w.busy();
    assert!(!b.pending && !b.running);
}

/// The waiting thread sees everything that the item did.
#[test]
fn what_an_item_did_is_seen_by_who_waited_for_it() {
    within("visibility of results", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let cell = Arc::new(AtomicUsize::new(0));
        for i in 0..3000 {
            let c = cell.clone();
            let h = wq.spawn(move || c.store(i, Ordering::Relaxed));
            match i % 3 {
                0 => h.join().unwrap(),
                1 => {
                    drop(h);
                    wq.flush().unwrap();
                }
                _ => block_on(h).unwrap(),
            }
            assert_eq!(cell.load(Ordering::Relaxed), i);
        }
    });
}

/// Symptom: a reusable item that was queued again while it waited for another one of its queue waited for ever: its next run took
/// the permit that it had lent, and could not start.
#[test]
fn an_item_that_is_queued_again_while_it_waits_for_its_own_queue_gets_through() {
    within("queued again", || {
        let rt = runtime();
        for limit in [1, 2] {
            let wq = rt.workqueue("t").max_active(limit).build().unwrap();
            let (runs, others) = (Count::new(), Count::new());
            let other = {
                let others = others.clone();
                cmwq::Work::new(move |_| {
                    others.up();
                })
            };
            let waiters: Vec<_> = (0..limit)
                .map(|_| {
                    let (wq, runs, other) = (wq.clone(), runs.clone(), other.clone());
                    cmwq::Work::new(move |me| {
                        if runs.up() <= limit as usize {
                            wq.queue(me).unwrap();
                            wq.queue(&other).unwrap();
                            other.flush().unwrap();
                        }
                    })
                })
                .collect();
            for w in &waiters {
                wq.queue(w).unwrap();
            }
            wq.flush().unwrap();
            for w in &waiters {
                w.flush().unwrap();
            }
            assert_eq!(runs.get(), 2 * limit as usize, "each ran again");
            assert!(others.get() >= 1);
            wq.destroy().unwrap();
        }
    });
}
