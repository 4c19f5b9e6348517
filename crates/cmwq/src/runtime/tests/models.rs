//! The whole runtime under shuttle: real pools, queues, workers and spawner, on random schedules. Detection and timers are left
//! out, time stands still. Each execution ends only when every thread has ended, so a worker, pool or runtime that is left
//! behind shows as a deadlock.

use super::{Runtime, TimeSource};
use crate::pool::registry;
use crate::workqueue::{Attrs, Queued, Workqueue};
use crate::{JoinError, QueueError, Work};
use cmwq_topology::{AffinityScope, Topology};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

fn runtime() -> Runtime {
    Runtime::builder()
        .topology(Topology::synthetic("package:1 l3:1 core:2").unwrap())
        .default_affinity_scope(AffinityScope::System)
        .modelled(
            Arc::new(|_, body| {
                drop(thread::spawn(body));
                Ok(())
            }),
            TimeSource::Virtual(Arc::new(AtomicU64::new(1))),
        )
        .build()
        .unwrap()
}

/// Iterations: `CMWQ_ITERATIONS`, else as given.
fn model(iterations: usize, f: impl Fn() + Send + Sync + 'static) {
    let iterations = std::env::var("CMWQ_ITERATIONS")
        .map(|n| n.parse().expect("a number"))
        .unwrap_or(iterations);
    shuttle::check_random(
        move || {
            registry::reset();
            f();
        },
        iterations,
    );
}

fn count() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

fn get(n: &AtomicUsize) -> usize {
    n.load(Ordering::SeqCst)
}

fn adder(n: &Arc<AtomicUsize>) -> impl FnOnce() + Send + use<> {
    let n = Arc::clone(n);
    move || {
        n.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn shuttle_everything_queued_before_a_flush_is_done_after_it() {
    model(400, || {
        let rt = runtime();
        let wq = rt.workqueue("t").max_active(2).build().unwrap();
        let n = count();
        let other = {
            let (wq, n) = (wq.clone(), n.clone());
            thread::spawn(move || {
                drop(wq.spawn(adder(&n)));
                drop(wq.spawn(adder(&n)));
                wq.flush().unwrap();
                assert!(get(&n) >= 2);
            })
        };
        drop(wq.spawn(adder(&n)));
        wq.flush().unwrap();
        assert!(get(&n) >= 1);
        other.join().unwrap();
        let s = wq.stats();
        assert_eq!((get(&n), s.completed, s.active, s.inactive), (3, 3, 0, 0));
    });
}

#[test]
fn shuttle_a_closure_runs_or_is_cancelled() {
    model(400, || {
        let rt = runtime();
        let wq = rt.workqueue("t").max_active(1).build().unwrap();
        let n = count();
        let before = wq.spawn(adder(&n));
        let h = Arc::new(wq.spawn(adder(&n)));
        let h2 = Arc::clone(&h);
        let canceller = thread::spawn(move || h2.cancel());
        let here = h.cancel();
        let there = canceller.join().unwrap();
        assert!(!(here && there), "cancelled once");
        before.join().unwrap();
        match Arc::into_inner(h).unwrap().join() {
            Ok(()) => assert!(!here && !there),
            Err(JoinError::Cancelled { .. }) => assert!(here || there),
            Err(e) => panic!("{e}"),
        }
        wq.flush().unwrap();
        let cancelled = usize::from(here || there);
        assert_eq!(get(&n), 2 - cancelled);
        let s = wq.stats();
        assert_eq!(
            (s.completed as usize, s.cancelled as usize),
            (2 - cancelled, cancelled)
        );
    });
}

#[test]
fn shuttle_a_work_runs_for_each_queueing_and_never_twice_at_once() {
    model(400, || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let (inside, runs) = (count(), count());
        let (i, r) = (inside.clone(), runs.clone());
        let w = Work::new(move |_| {
            assert_eq!(i.fetch_add(1, Ordering::SeqCst), 0);
            thread::yield_now();
            i.fetch_sub(1, Ordering::SeqCst);
            r.fetch_add(1, Ordering::SeqCst);
        });
        let issue = |wq: &Workqueue, w: &Work| {
            (0..2)
                .filter(|_| wq.queue(w).unwrap() == Queued::New)
                .count()
        };
        let (wq2, w2) = (wq.clone(), w.clone());
        let there = thread::spawn(move || issue(&wq2, &w2));
        let new = issue(&wq, &w) + there.join().unwrap();
        w.flush().unwrap();
        wq.flush().unwrap();
        assert_eq!(get(&runs), new);
        assert_eq!(wq.stats().panicked, 0);
    });
}

#[test]
fn shuttle_cancel_sync_leaves_nothing_pending_or_running() {
    model(400, || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let (running, runs) = (count(), count());
        let (i, r, q) = (running.clone(), runs.clone(), wq.clone());
        let w = Work::new(move |w| {
            i.fetch_add(1, Ordering::SeqCst);
            if r.fetch_add(1, Ordering::SeqCst) < 2 {
                match q.queue(w) {
                    Ok(_) | Err(QueueError::Disabled { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            i.fetch_sub(1, Ordering::SeqCst);
        });
        wq.queue(&w).unwrap();
        let w2 = w.clone();
        let other = thread::spawn(move || w2.cancel_sync().unwrap());
        w.cancel_sync().unwrap();
        assert_eq!(get(&running), 0);
        other.join().unwrap();
        assert!(!w.is_pending());
        let after = get(&runs);
        wq.flush().unwrap();
        assert_eq!(get(&runs), after, "nothing runs after cancel_sync");
    });
}

#[test]
fn shuttle_destroy_races_issuers_and_nothing_is_lost() {
    model(300, || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let (n, wq2) = (count(), wq.clone());
        let n2 = n.clone();
        let issuer = thread::spawn(move || {
            (0..3)
                .filter(|_| wq2.try_spawn(adder(&n2)).map(drop).is_ok())
                .count()
        });
        wq.destroy().unwrap();
        assert_eq!(issuer.join().unwrap(), get(&n));
    });
}

#[test]
fn shuttle_an_ordered_queue_keeps_order_across_attrs_changes() {
    model(300, || {
        let rt = runtime();
        let wq = rt.workqueue("t").ordered().build().unwrap();
        let next = count();
        let wq2 = wq.clone();
        let tuner = thread::spawn(move || {
            for nice in [1, 0] {
                wq2.apply_attrs(Attrs::new().nice(nice)).unwrap();
            }
        });
        for i in 0..4 {
            let next = next.clone();
            drop(wq.spawn(move || assert_eq!(next.fetch_add(1, Ordering::SeqCst), i)));
        }
        tuner.join().unwrap();
        wq.flush().unwrap();
        assert_eq!((get(&next), wq.stats().panicked), (4, 0));
    });
}

#[test]
fn shuttle_limits_hold_while_they_change() {
    model(300, || {
        let rt = runtime();
        let wq = rt.workqueue("t").max_active(2).build().unwrap();
        let (now, done) = (count(), count());
        for _ in 0..4 {
            let (now, done) = (now.clone(), done.clone());
            drop(wq.spawn(move || {
                assert!(now.fetch_add(1, Ordering::SeqCst) < 2);
                thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
            }));
        }
        let wq2 = wq.clone();
        let tuner = thread::spawn(move || {
            wq2.set_max_active(1).unwrap();
            wq2.set_max_active(2).unwrap();
        });
        wq.flush().unwrap();
        tuner.join().unwrap();
        assert_eq!((get(&done), wq.stats().panicked), (4, 0));
    });
}

#[test]
fn shuttle_items_that_wait_for_their_own_full_queue_get_through() {
    model(300, || {
        let rt = runtime();
        let wq = rt.workqueue("t").max_active(1).build().unwrap();
        let n = count();
        let handles: Vec<_> = (0..2)
            .map(|_| {
                let (wq, n) = (wq.clone(), n.clone());
                wq.clone().spawn(move || {
                    wq.spawn(adder(&n)).join().unwrap();
                    wq.scope(|s| drop(s.spawn(|| n.fetch_add(1, Ordering::SeqCst))));
                })
            })
            .collect();
        handles.into_iter().for_each(|h| h.join().unwrap());
        assert_eq!(get(&n), 4);
    });
}

#[test]
fn shuttle_tasks_that_wait_for_room_are_told() {
    model(300, || {
        let rt = runtime();
        let wq = rt
            .workqueue("t")
            .max_pending(1)
            .max_active(1)
            .build()
            .unwrap();
        let n = count();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (wq, n) = (wq.clone(), n.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let h = shuttle::future::block_on(wq.spawn_when_ready(adder(&n)));
                        shuttle::future::block_on(h).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(get(&n), 4);
    });
}
