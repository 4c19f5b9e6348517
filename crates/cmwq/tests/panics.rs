//! Panics: of items, in drop glue, in hooks; the worker lives, everything is counted (design: deviations).

mod common;

use cmwq::{JoinError, Runtime, Work};
use common::*;
use std::sync::{Arc, Mutex};

#[test]
fn a_panic_goes_to_the_joiner_with_name_and_payload() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let e = wq
        .spawn(|| -> u8 { panic!("text {}", 1) })
        .join()
        .unwrap_err();
    assert!(e.is_panic());
    let text = e.to_string();
    let JoinError::Panicked(p) = e else {
        panic!("{text}")
    };
    assert!(p.item().contains("a_panic_goes_to_the_joiner"));
    assert_eq!(p.message(), "text 1");
    let e = wq.spawn(|| std::panic::panic_any(7i64)).join().unwrap_err();
    let JoinError::Panicked(p) = e else { panic!() };
    assert!(p.message().contains("no text"));
    assert_eq!(p.into_inner().downcast_ref::<i64>(), Some(&7));
    wq.flush().unwrap();
    let s = wq.stats();
    assert_eq!((s.panicked, s.completed), (2, 2));
}

#[test]
fn other_panics_go_to_the_hook() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let t = told.clone();
    let rt = Runtime::builder()
        .on_panic(move |p| {
            t.lock()
                .unwrap()
                .push((p.item.to_owned(), p.message.to_owned()))
        })
        .build()
        .unwrap();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let w = Work::with_name("flusher", |_| panic!("in a work"));
    wq.queue(&w).unwrap();
    let gate = Gate::new();
    let g = gate.clone();
    drop(wq.spawn(move || {
        g.pass();
        panic!("detached")
    }));
    gate.open();
    drop(wq.spawn(|| panic!("joined")).join());
    wq.flush().unwrap();
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0], ("flusher".to_owned(), "in a work".to_owned()));
    assert_eq!(told[1].1, "detached");
    assert_eq!(wq.stats().panicked, 3);
}

/// peers (rayon 1076, tantivy): thousands of panics, reusable and one-shot, and nothing is lost behind them.
#[test]
fn the_worker_lives_on() {
    within("many panics", || {
        let rt = Runtime::builder().thread_name("panicky").build().unwrap();
        let wq = rt.workqueue("t").build().unwrap();
        let ran = Count::new();
        let w = Work::new(|_| panic!("again"));
        for i in 0..500 {
            let r = ran.clone();
            if i % 2 == 0 {
                drop(wq.spawn(|| panic!("on purpose")));
            } else {
                wq.queue(&w).unwrap();
            }
            drop(wq.spawn(move || r.up()));
        }
        wq.flush().unwrap();
        assert_eq!(ran.get(), 500);
        let s = wq.stats();
        assert_eq!(s.queued, s.completed);
        assert!(s.panicked >= 251);
        wq.queue(&w).unwrap();
        w.flush().unwrap();
        // Printing panics takes locks, so some more are made meanwhile; not one for each panic.
        assert!(rt.threads() < 125, "{} threads", rt.threads());
    });
}

/// The item's memory is gone by then, which the address sanitizer saw.
#[test]
fn a_panic_in_the_drop_of_a_works_last_handle_is_reported_with_its_name() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let s = seen.clone();
    let rt = Runtime::builder()
        .on_panic(move |p| {
            s.lock()
                .unwrap()
                .push((p.item.to_owned(), p.message.to_owned()))
        })
        .build()
        .unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    let gate = Gate::new();
    let (g, bad) = (gate.clone(), BadDrop("of a work"));
    let w = Work::with_name("last one", move |_| {
        let _ = &bad;
        g.pass();
    });
    wq.queue(&w).unwrap();
    drop(w);
    gate.open();
    eventually("it is reported", || !seen.lock().unwrap().is_empty());
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 1);
    assert!(
        seen[0].0 == "last one" && seen[0].1.contains("of a work"),
        "{seen:?}"
    );
}

#[test]
fn drop_glue_that_panics_is_contained() {
    within("bad drops", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        // Of a captured value, as the closure ends: a panic of the closure.
        let bad = BadDrop("captured");
        let e = wq
            .spawn(move || {
                let _bad = bad;
            })
            .join()
            .unwrap_err();
        assert!(e.is_panic());
        // Of the result, with nobody to take it.
        let gate = Gate::new();
        let g = gate.clone();
        drop(wq.spawn(move || {
            g.pass();
            BadDrop("an unread result")
        }));
        gate.open();
        // Of what a cancelled closure captured: not the canceller's problem.
        let gate = Gate::new();
        let g = gate.clone();
        wq.set_max_active(1).unwrap();
        drop(wq.spawn(move || g.pass()));
        gate.await_arrivals(1);
        let bad = BadDrop("cancelled");
        let h = wq.spawn(move || drop(bad));
        assert!(h.cancel());
        gate.open();
        // Of what a work captured, dropped by its last run.
        let bad = BadDrop("of a work");
        let gate = Gate::new();
        let g = gate.clone();
        let w = Work::new(move |_| {
            let _ = &bad;
            g.pass();
        });
        wq.queue(&w).unwrap();
        // Were it over by now, this would be the last handle, and the panic the caller's.
        drop(w);
        gate.open();
        // Of a payload.
        drop(wq.spawn(|| std::panic::panic_any(BadDrop("a payload"))));
        let h = wq.spawn(|| std::panic::panic_any(BadDrop("a joined payload")));
        eventually("it is over", || h.is_finished());
        drop(h);
        wq.flush().unwrap();
        assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
        // The last joiner is told before its item's place is given back.
        eventually("nothing is left", || {
            let s = wq.stats();
            (s.active, s.inactive) == (0, 0)
        });
    });
}

/// Symptom: a start hook that panics with a payload whose drop panics too left a pool with a worker that never came.
#[test]
fn hooks_that_panic_take_no_worker_down() {
    within("bad hooks", || {
        let rt = Runtime::builder()
            .on_thread_start(|| std::panic::panic_any(BadDrop("the start hook's payload")))
            .on_thread_stop(|| panic!("stop hook"))
            .on_panic(|_| std::panic::panic_any(BadDrop("the panic hook's payload")))
            .thread_name("badhooks")
            .build()
            .unwrap();
        let wq = rt.workqueue("t").build().unwrap();
        for _ in 0..50 {
            drop(wq.spawn(|| panic!("detached")));
        }
        let w = Work::new(|_| panic!("a work"));
        wq.queue(&w).unwrap();
        wq.flush().unwrap();
        assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
        assert!(rt.warnings().iter().any(|w| w.contains("start hook")));
        wq.destroy().unwrap();
        eventually("the workers leave", || rt.threads() == 0);
    });
}

#[test]
fn start_and_stop_hooks_are_called_once_a_thread() {
    within("hooks", || {
        let (started, stopped) = (Count::new(), Count::new());
        let (a, b) = (started.clone(), stopped.clone());
        let rt = Runtime::builder()
            .on_thread_start(move || {
                a.up();
            })
            .on_thread_stop(move || {
                b.up();
            })
            .build()
            .unwrap();
        let wq = rt.workqueue("t").build().unwrap();
        wq.spawn(|| ()).join().unwrap();
        assert!(started.get() >= 1);
        wq.destroy().unwrap();
        eventually("all have stopped", || rt.threads() == 0);
        assert_eq!(started.get(), stopped.get());
    });
}

#[test]
fn a_panic_inside_a_blocking_section_ends_the_section() {
    within("panic in blocking", || {
        let rt = synthetic("package:1 l3:1 core:1").build().unwrap();
        let wq = rt.workqueue("t").build().unwrap();
        for _ in 0..100 {
            drop(wq.spawn(|| cmwq::blocking(|| panic!("while away"))));
        }
        wq.flush().unwrap();
        // One CPU: if sections had been left open, workers would not count and more than one would run at once.
        let now = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for _ in 0..500 {
            let (now, most) = (now.clone(), most.clone());
            drop(wq.spawn(move || {
                use std::sync::atomic::Ordering::SeqCst;
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                for _ in 0..100 {
                    std::hint::spin_loop();
                }
                now.fetch_sub(1, SeqCst);
            }));
        }
        wq.flush().unwrap();
        assert!(most.load(std::sync::atomic::Ordering::SeqCst) <= 2);
    });
}
