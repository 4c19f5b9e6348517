//! Closures that borrow, and what an item may wait for in its own queue (design: waiting).

mod common;

use cmwq::{Attrs, JoinError, Work};
use common::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn closures_borrow_and_all_are_over_when_it_returns() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let data: Vec<u64> = (0..1000).collect();
    let seen = AtomicUsize::new(0);
    let total: u64 = wq.scope(|s| {
        let handles: Vec<_> = data
            .chunks(100)
            .map(|c| {
                s.spawn(|| {
                    seen.fetch_add(1, Ordering::SeqCst);
                    c.iter().sum::<u64>()
                })
            })
            .collect();
        // Detached ones are waited for as well.
        for _ in 0..10 {
            drop(s.spawn(|| {
                std::thread::sleep(Duration::from_millis(1));
                seen.fetch_add(1, Ordering::SeqCst);
            }));
        }
        handles.into_iter().map(|h| h.join().unwrap()).sum()
    });
    assert_eq!(total, 499_500);
    assert_eq!(seen.load(Ordering::SeqCst), 20);
}

#[test]
fn closures_spawn_more_into_their_scope() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let n = AtomicUsize::new(0);
    wq.scope(|s| {
        for _ in 0..4 {
            drop(s.spawn(|| {
                for _ in 0..4 {
                    drop(s.spawn(|| n.fetch_add(1, Ordering::SeqCst)));
                }
            }));
        }
    });
    assert_eq!(n.load(Ordering::SeqCst), 16);
}

#[test]
fn results_that_borrow_are_dropped_before_the_scope_ends() {
    struct Note<'a>(&'a AtomicUsize);
    impl Drop for Note<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    for _ in 0..200 {
        let dropped = AtomicUsize::new(0);
        wq.scope(|s| {
            drop(s.spawn(|| Note(&dropped)));
            let kept = s.spawn(|| Note(&dropped));
            kept.join().unwrap();
            let unread = s.spawn(|| Note(&dropped));
            while !unread.is_finished() {
                std::thread::yield_now();
            }
        });
        assert_eq!(dropped.load(Ordering::SeqCst), 3);
    }
}

#[test]
fn an_unjoined_panic_is_raised_when_all_are_over_a_joined_one_is_not() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let n = AtomicUsize::new(0);
    let raised = catch_unwind(AssertUnwindSafe(|| {
        wq.scope(|s| {
            drop(s.spawn(|| panic!("nobody joins this")));
            drop(s.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                n.fetch_add(1, Ordering::SeqCst);
            }));
        });
    }));
    assert!(raised.is_err());
    assert_eq!(n.load(Ordering::SeqCst), 1);
    let r = wq.scope(|s| {
        let h = s.spawn(|| -> u8 { panic!("joined") });
        h.join().map_err(|e| e.to_string())
    });
    assert!(r.unwrap_err().contains("joined"));
    assert_eq!(wq.stats().panicked, 2);
}

#[test]
fn a_panic_of_the_body_is_raised_after_all_are_over() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let n = AtomicUsize::new(0);
    let raised = catch_unwind(AssertUnwindSafe(|| {
        wq.scope(|s| {
            drop(s.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                n.fetch_add(1, Ordering::SeqCst);
            }));
            panic!("the body");
        })
    }));
    assert_eq!(
        raised.unwrap_err().downcast_ref::<&str>(),
        Some(&"the body")
    );
    assert_eq!(n.load(Ordering::SeqCst), 1);
}

#[test]
fn cancelled_and_refused_closures_do_not_keep_the_scope_open() {
    within("scope with cancelled closures", || {
        let rt = runtime();
        let wq = rt.workqueue("t").ordered().build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        drop(wq.spawn(move || g.pass()));
        let local = 5;
        wq.scope(|s| {
            let h = s.spawn(|| *std::hint::black_box(&local));
            assert!(h.cancel());
            assert!(matches!(h.join(), Err(JoinError::Cancelled { .. })));
        });
        gate.open();
        wq.close();
        wq.scope(|s| {
            let h = s.spawn(|| *std::hint::black_box(&local));
            assert!(matches!(h.join(), Err(JoinError::Refused(_))));
        });
    });
}

/// Symptom: a result whose drop panics left the scope open for ever.
#[test]
fn drop_glue_that_panics_does_not_keep_the_scope_open() {
    within("scope with bad drops", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let raised = catch_unwind(AssertUnwindSafe(|| {
            wq.scope(|s| drop(s.spawn(|| BadDrop("a result"))));
        }));
        assert!(raised.is_err(), "it counts as a panic of the closure");
        let bad = BadDrop("a captured value");
        let raised = catch_unwind(AssertUnwindSafe(|| {
            wq.scope(|s| {
                drop(s.spawn(move || {
                    let _bad = bad;
                }));
            });
        }));
        assert!(raised.is_err());
        struct Worse;
        impl Drop for Worse {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    std::panic::panic_any(BadDrop("a payload"));
                }
            }
        }
        let raised = catch_unwind(AssertUnwindSafe(|| {
            wq.scope(|s| drop(s.spawn(|| Worse)));
        }));
        assert!(raised.is_err());
        assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
    });
}

/// Symptom: a forgotten handle left the scope open for ever.
#[test]
fn a_forgotten_handle_does_not_keep_the_scope_open() {
    within("scope with a forgotten handle", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let n = AtomicUsize::new(0);
        wq.scope(|s| std::mem::forget(s.spawn(|| n.fetch_add(1, Ordering::SeqCst))));
        assert_eq!(n.load(Ordering::SeqCst), 1);
    });
}

/// Symptom: a scope in an item of the same full queue never ended.
#[test]
fn a_scope_in_an_item_of_its_own_full_queue_ends() {
    within("scope in its own full queue", || {
        let rt = runtime();
        let wq = rt.workqueue("t").max_active(1).build().unwrap();
        let inner = wq.clone();
        let n = wq
            .spawn(move || {
                let n = AtomicUsize::new(0);
                inner.scope(|s| {
                    for _ in 0..5 {
                        drop(s.spawn(|| {
                            // And once more.
                            inner.scope(|s| drop(s.spawn(|| n.fetch_add(1, Ordering::SeqCst))));
                            n.fetch_add(1, Ordering::SeqCst);
                        }));
                    }
                });
                n.into_inner()
            })
            .join()
            .unwrap();
        assert_eq!(n, 10);
        wq.flush().unwrap();
        let s = wq.stats();
        assert_eq!((s.completed, s.active, s.inactive), (11, 0, 0));
        // The permits are back: still one at a time.
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        wq.scope(|s| {
            for _ in 0..20 {
                drop(s.spawn(|| {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    cmwq::blocking(|| std::thread::sleep(Duration::from_micros(200)));
                    now.fetch_sub(1, Ordering::SeqCst);
                }));
            }
        });
        assert_eq!(most.into_inner(), 1);
    });
}

#[test]
fn a_scope_in_an_item_of_its_own_ordered_queue_is_an_error_not_a_deadlock() {
    within("scope in its own ordered queue", || {
        let rt = runtime();
        let wq = rt.workqueue("t").ordered().build().unwrap();
        let inner = wq.clone();
        let e = wq
            .spawn(move || inner.scope(|s| s.spawn(|| ()).join().unwrap_err().to_string()))
            .join()
            .unwrap();
        assert!(e.contains("ordered"), "{e}");
        let inner = wq.clone();
        let r = wq
            .spawn(move || inner.run_on_each_cpu(|_| ()))
            .join()
            .unwrap();
        assert!(matches!(r, Err(JoinError::WouldDeadlock { .. })));
    });
}

/// Symptom: an item that waits for one of its own full queue, which its worker may not run because its nice changed, hung.
#[test]
fn an_item_lends_its_permit_where_it_may_not_run_the_awaited_one() {
    within("join across attrs", || {
        let rt = runtime();
        let wq = rt.workqueue("t").max_active(1).build().unwrap();
        let inner = wq.clone();
        let v = wq
            .spawn(move || {
                inner.apply_attrs(Attrs::new().nice(7)).unwrap();
                inner.spawn(|| 5).join().unwrap()
            })
            .join()
            .unwrap();
        assert_eq!(v, 5);
        let (inner, n) = (wq.clone(), Count::new());
        let c = n.clone();
        let w = Work::new(move |_| {
            c.up();
        });
        let w2 = w.clone();
        wq.spawn(move || {
            inner.queue(&w2).unwrap();
            // A reusable item is never run by who waits for it, so this needs the permit.
            assert!(w2.flush().unwrap());
        })
        .join()
        .unwrap();
        assert_eq!(n.get(), 1);
    });
}

/// peers: stack overflow through nested waiting. A chain of items that each join the next goes on on other stacks.
#[test]
fn a_long_chain_of_joins_does_not_overflow_a_stack() {
    if !is_child() {
        let out = in_child("a_long_chain_of_joins_does_not_overflow_a_stack");
        assert!(
            out.status.success(),
            "{}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    fn chain(wq: &cmwq::Workqueue, depth: usize) -> usize {
        if depth == 0 {
            return 0;
        }
        // An item that needs a fair piece of stack.
        let mut big = [0u8; 16 << 10];
        std::hint::black_box(&mut big);
        let next = wq.clone();
        wq.spawn(move || chain(&next, depth - 1)).join().unwrap() + 1
    }
    let rt = runtime();
    for max_active in [1, 0] {
        let wq = rt.workqueue("t").max_active(max_active).build().unwrap();
        let first = wq.clone();
        assert_eq!(wq.spawn(move || chain(&first, 1000)).join().unwrap(), 1000);
    }
}

#[test]
fn a_scope_on_the_seeded_runtime_is_driven_by_its_end() {
    let rt = cmwq::testing::TestRuntime::new(5);
    let wq = rt.workqueue("t").max_active(1).build().unwrap();
    let log = Mutex::new(Vec::new());
    wq.scope(|s| {
        for i in 0..3 {
            let log = &log;
            let wq = &wq;
            drop(s.spawn(move || {
                wq.scope(|s| drop(s.spawn(|| log.lock().unwrap().push(i))));
            }));
        }
    });
    assert_eq!(log.into_inner().unwrap().len(), 3);
}
