//! drain, close, destroy, drop (kernel semantics: 2.9, 2.10; design: deviations).

mod common;

use cmwq::{JoinError, QueueError, Queued, Work, Workqueue};
use common::*;
use std::time::Duration;

/// The kernel drops an item queued on a draining queue and says `true`; here it is refused by name and untouched.
#[test]
fn a_draining_queue_refuses_all_but_its_own_running_items() {
    within("drain", || {
        let rt = runtime();
        let wq = rt.workqueue("d").build().unwrap();
        let (gate, chained) = (Gate::new(), Count::new());
        let _opener = Opener(&gate);
        let (g, c, q) = (gate.clone(), chained.clone(), wq.clone());
        drop(wq.spawn(move || {
            g.pass();
            // Chained queueing is accepted, several levels deep.
            let (c, q2) = (c.clone(), q.clone());
            drop(q.spawn(move || {
                c.up();
                let c = c.clone();
                drop(q2.spawn(move || c.up()));
            }));
        }));
        gate.await_arrivals(1);
        std::thread::scope(|s| {
            let drain = s.spawn(|| wq.drain());
            let w = Work::new(|_| ());
            eventually("it drains", || match wq.queue(&w) {
                Err(QueueError::Draining { wq }) => &*wq == "d",
                Ok(_) => {
                    w.cancel();
                    false
                }
                Err(e) => panic!("{e}"),
            });
            assert!(!w.is_pending());
            let e = wq.try_spawn(|| 7).unwrap_err();
            assert!(matches!(e.error, QueueError::Draining { .. }));
            assert_eq!((e.func)(), 7);
            // Items of other queues are outsiders too.
            let other = rt.workqueue("o").build().unwrap();
            let q = wq.clone();
            assert!(matches!(
                other.spawn(move || q.spawn(|| ()).join()).join().unwrap(),
                Err(JoinError::Refused(QueueError::Draining { .. }))
            ));
            gate.open();
            drain.join().unwrap().unwrap();
            assert_eq!(chained.get(), 2);
            assert_eq!(wq.queue(&w).unwrap(), Queued::New, "open again");
        });
        wq.flush().unwrap();
    });
}

#[test]
fn many_threads_drain_at_once() {
    within("many drains", || {
        let rt = runtime();
        let wq = rt.workqueue("d").build().unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        drop(wq.spawn(|| ()));
                        wq.drain().unwrap();
                    }
                });
            }
        });
        assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
    });
}

#[test]
fn destroy_runs_everything_and_then_refuses() {
    within("destroy", || {
        let rt = runtime();
        for b in [
            rt.workqueue("a"),
            rt.workqueue("b").per_cpu(),
            rt.workqueue("c").ordered(),
        ] {
            let wq = b.max_active(1).build().unwrap();
            let ran = Count::new();
            for _ in 0..300 {
                let r = ran.clone();
                drop(wq.spawn(move || r.up()));
            }
            let other = wq.clone();
            wq.destroy().unwrap();
            assert_eq!(ran.get(), 300);
            let s = other.stats();
            assert_eq!((s.completed, s.active, s.inactive, s.pwqs), (300, 0, 0, 0));
            let e = other.try_spawn(|| ()).unwrap_err();
            assert!(matches!(&e.error, QueueError::Closed { .. }), "{e}");
            let w = Work::new(|_| ());
            assert!(matches!(other.queue(&w), Err(QueueError::Closed { .. })));
            assert!(!w.is_pending());
            other.flush().unwrap();
            other.drain().unwrap();
            other.destroy().unwrap();
        }
    });
}

#[test]
fn two_threads_destroy_one_queue() {
    within("two destroys", || {
        let rt = runtime();
        for _ in 0..100 {
            let wq = rt.workqueue("d").build().unwrap();
            for _ in 0..20 {
                drop(wq.spawn(|| ()));
            }
            let other = wq.clone();
            std::thread::scope(|s| {
                s.spawn(|| wq.destroy().unwrap());
                s.spawn(|| other.destroy().unwrap());
            });
        }
    });
}

/// peers (folly 2093): destruction races the last items.
#[test]
fn destroy_while_others_queue_runs_exactly_what_was_accepted() {
    within("destroy against queueing", || {
        let rt = synthetic("package:1 l3:2 core:2").build().unwrap();
        for round in 0..60 {
            let wq = rt.workqueue("d").build().unwrap();
            let (accepted, ran) = (Count::new(), Count::new());
            std::thread::scope(|s| {
                for t in 0..2 {
                    let (wq, accepted, ran) = (wq.clone(), accepted.clone(), ran.clone());
                    s.spawn(move || {
                        for i in 0..400 {
                            let r = ran.clone();
                            match wq.try_spawn_on((i + t) % 4, move || r.up()) {
                                Ok(h) => {
                                    accepted.up();
                                    drop(h);
                                }
                                Err(e) => match e.error {
                                    QueueError::Draining { .. } => {}
                                    QueueError::Closed { .. } => return,
                                    e => panic!("{e}"),
                                },
                            }
                        }
                    });
                }
                std::thread::sleep(Duration::from_micros(10 * round));
                let wq2 = wq.clone();
                s.spawn(move || wq2.destroy().unwrap());
            });
            let s = wq.stats();
            assert_eq!(accepted.get(), ran.get());
            assert_eq!((s.completed as usize, s.pwqs), (ran.get(), 0));
        }
    });
}

/// The kernel leaks a queue that is destroyed busy; here dropping the last handle lets everything run.
#[test]
fn dropping_the_last_handle_inside_an_item_is_fine() {
    within("drop inside an item", || {
        let rt = runtime();
        let ran = Count::new();
        let wq = rt.workqueue("d").max_active(1).build().unwrap();
        let slot = std::sync::Arc::new(std::sync::Mutex::new(None));
        let (s, gate) = (slot.clone(), Gate::new());
        let g = gate.clone();
        let first = wq.spawn(move || {
            g.pass();
            let last: Workqueue = s.lock().unwrap().take().unwrap();
            drop(last);
        });
        for _ in 0..20 {
            let r = ran.clone();
            drop(wq.spawn(move || r.up()));
        }
        let last = wq.spawn(|| ());
        *slot.lock().unwrap() = Some(wq);
        gate.open();
        first.join().unwrap();
        last.join().unwrap();
        assert_eq!(ran.get(), 20);
    });
}

/// Symptom: an item that requeues itself went on for ever after its queue was closed.
#[test]
fn close_stops_an_item_that_requeues_itself() {
    within("close of a self-requeuer's queue", || {
        let rt = runtime();
        for b in [
            rt.workqueue("a"),
            rt.workqueue("b").per_cpu(),
            rt.workqueue("c").ordered(),
        ] {
            let wq = b.build().unwrap();
            let (runs, refused) = (Count::new(), Count::new());
            let (q, r, f) = (wq.clone(), runs.clone(), refused.clone());
            let w = Work::new(move |w| {
                r.up();
                match q.queue(w) {
                    Ok(_) => {}
                    Err(QueueError::Closed { .. }) => {
                        f.up();
                    }
                    Err(e) => panic!("{e}"),
                }
            });
            wq.queue(&w).unwrap();
            eventually("it goes round", || runs.get() > 3);
            wq.close();
            eventually("it is refused", || refused.get() == 1);
            w.flush().unwrap();
            eventually("nothing is left", || wq.stats().pwqs == 0);
        }
    });
}

#[test]
fn a_queue_that_was_never_used_ends_at_once() {
    let rt = runtime();
    let wq = rt.workqueue("d").build().unwrap();
    wq.flush().unwrap();
    wq.drain().unwrap();
    wq.destroy().unwrap();
    let wq = rt.workqueue("d").guaranteed().build().unwrap();
    wq.destroy().unwrap();
    assert_eq!(rt.threads(), 0, "no worker was needed");
}

/// 2.9: drain while another queue feeds this one; what is accepted runs.
#[test]
fn drains_under_load_end_and_lose_nothing() {
    within("drain under load", || {
        let rt = synthetic("package:1 l3:2 core:2").build().unwrap();
        let wq = rt.workqueue("d").max_active(3).build().unwrap();
        let (accepted, ran) = (Count::new(), Count::new());
        std::thread::scope(|s| {
            for t in 0..2 {
                let (wq, accepted, ran) = (&wq, &accepted, &ran);
                s.spawn(move || {
                    for i in 0..4000 {
                        let r = ran.clone();
                        match wq.try_spawn_on((i + t) % 4, move || r.up()) {
                            Ok(h) => {
                                accepted.up();
                                drop(h);
                            }
                            Err(e) => assert!(matches!(e.error, QueueError::Draining { .. })),
                        }
                    }
                });
            }
            s.spawn(|| {
                for _ in 0..100 {
                    wq.drain().unwrap();
                }
            });
        });
        wq.flush().unwrap();
        assert_eq!(accepted.get(), ran.get());
    });
}
