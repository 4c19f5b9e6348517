//! cancel, cancel_sync and what races with them (kernel semantics: 2.1, 2.7, 2.11).

mod common;

use cmwq::{Attrs, DelayedWork, JoinError, QueueError, Queued, WaitError, Work};
use common::*;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_cancelled_closure_never_runs_is_dropped_and_says_so() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    let first = wq.spawn(move || g.pass());
    let ran = Count::new();
    let alive = Arc::new(());
    let (r, a) = (ran.clone(), alive.clone());
    let h = wq.spawn(move || {
        let _a = a;
        r.up();
    });
    assert!(h.cancel());
    assert_eq!(Arc::strong_count(&alive), 1, "what it captured is dropped");
    assert!(h.is_finished());
    assert!(!h.cancel(), "the second cancel finds it over");
    let e = h.join().unwrap_err();
    assert!(e.is_cancelled() && !e.is_panic(), "{e}");
    gate.open();
    first.join().unwrap();
    wq.flush().unwrap();
    assert_eq!(ran.get(), 0);
    let s = wq.stats();
    assert_eq!(
        (s.queued, s.started, s.completed, s.cancelled),
        (2, 1, 1, 1)
    );
}

#[test]
fn cancel_of_a_running_or_finished_closure_is_false_and_changes_nothing() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    let h = wq.spawn(move || {
        g.pass();
        7
    });
    gate.await_arrivals(1);
    assert!(!h.cancel());
    gate.open();
    while !h.is_finished() {
        std::thread::yield_now();
    }
    assert!(!h.cancel());
    assert_eq!(h.join().unwrap(), 7);
}

/// Symptom: the second of two threads that cancel the same closure at the same moment never came back.
#[test]
fn two_threads_that_cancel_one_closure_at_once_both_return() {
    within("two cancels of one closure", || {
        let rt = runtime();
        let wq = rt.workqueue("t").ordered().build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        drop(wq.spawn(move || g.pass()));
        // A drop that takes a while widens the moment in which the item is in the canceller's hands.
        struct Slow;
        impl Drop for Slow {
            fn drop(&mut self) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        for _ in 0..300 {
            let slow = Slow;
            let h = wq.spawn(move || drop(slow));
            let start = Barrier::new(2);
            let cancelled: usize = std::thread::scope(|s| {
                let cancel = || {
                    start.wait();
                    usize::from(h.cancel())
                };
                let a = s.spawn(cancel);
                let b = s.spawn(cancel);
                a.join().unwrap() + b.join().unwrap()
            });
            assert_eq!(cancelled, 1);
        }
    });
}

#[test]
fn a_cancelled_work_can_be_queued_again() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    drop(wq.spawn(move || g.pass()));
    let ran = Count::new();
    let r = ran.clone();
    let w = Work::new(move |_| {
        r.up();
    });
    assert!(!w.cancel(), "idle");
    assert_eq!(wq.queue(&w).unwrap(), Queued::New);
    assert!(w.cancel());
    assert!(!w.is_pending());
    assert!(!w.cancel());
    assert_eq!(wq.queue(&w).unwrap(), Queued::New);
    gate.open();
    wq.flush().unwrap();
    assert_eq!(ran.get(), 1);
}

#[test]
fn cancel_sync_returns_only_when_the_running_instance_is_over() {
    within("cancel_sync", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        for _ in 0..50 {
            let (started, done) = (Count::new(), Count::new());
            let (s, d) = (started.clone(), done.clone());
            let w = Work::new(move |_| {
                s.up();
                std::thread::sleep(Duration::from_micros(300));
                d.up();
            });
            wq.queue(&w).unwrap();
            eventually("it runs", || started.get() == 1);
            assert!(!w.cancel_sync().unwrap(), "it was running, not pending");
            assert_eq!(done.get(), 1);
            assert!(!w.busy().running && !w.busy().pending);
        }
    });
}

/// Kernel: many concurrent cancels are fine (there is no CANCELING state).
#[test]
fn any_number_of_threads_may_cancel_sync_one_item() {
    within("many cancel_syncs", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let ran = Count::new();
        let r = ran.clone();
        let w = Work::new(move |_| {
            r.up();
        });
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..500 {
                        match wq.queue(&w) {
                            Ok(_) | Err(QueueError::Disabled { .. }) => {}
                            Err(e) => panic!("{e}"),
                        }
                        w.cancel_sync().unwrap();
                    }
                });
            }
        });
        assert!(!w.cancel_sync().unwrap());
        assert_eq!(w.disable_depth(), 0);
        wq.flush().unwrap();
        let s = wq.stats();
        assert_eq!(s.queued, s.completed + s.cancelled);
        assert_eq!(s.completed as usize, ran.get());
    });
}

#[test]
fn cancel_sync_stops_an_item_that_requeues_itself() {
    within("cancel_sync of a self-requeuer", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let refused = Count::new();
        let (q, r) = (wq.clone(), refused.clone());
        let w = Work::new(move |w| match q.queue(w) {
            Ok(_) => {}
            Err(QueueError::Disabled { depth, .. }) => {
                assert!(depth >= 1);
                r.up();
            }
            Err(e) => panic!("{e}"),
        });
        for _ in 0..100 {
            wq.queue(&w).unwrap();
            std::thread::sleep(Duration::from_micros(100));
            w.cancel_sync().unwrap();
            assert!(!w.busy().running && !w.busy().pending);
        }
        let s = wq.stats();
        assert_eq!(s.panicked, 0);
    });
}

#[test]
fn an_item_may_cancel_itself_but_not_wait_for_itself() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let (tx, rx) = mpsc::channel();
    let q = wq.clone();
    let tx = Mutex::new(tx);
    let w = Work::with_name("selfish", move |w| {
        q.queue(w).unwrap();
        let cancelled = w.cancel();
        let sync = w.cancel_sync();
        let disable = w.disable_sync();
        let flush = w.flush();
        tx.lock()
            .unwrap()
            .send((cancelled, sync, disable, flush))
            .unwrap();
    });
    wq.queue(&w).unwrap();
    let (cancelled, sync, disable, flush) = rx.recv_timeout(PATIENCE).unwrap();
    assert!(cancelled, "the requeued instance was pending");
    let on_self = WaitError::OnSelf { item: "selfish" };
    assert_eq!(sync, Err(on_self.clone()));
    assert_eq!(disable, Err(on_self.clone()));
    assert_eq!(flush, Err(on_self.clone()));
    assert!(on_self.to_string().contains("selfish"));
    wq.flush().unwrap();
    assert_eq!(w.disable_depth(), 0, "a refused call has changed nothing");
    assert_eq!(wq.stats().completed, 1);
}

/// Bug list 7: a cancel while a flush runs must not lose the flush (the colour is saved before the word is rewritten).
#[test]
fn cancels_during_flushes_never_hang_the_flushers() {
    within("cancel against flush", || {
        let rt = runtime();
        let wq = rt.workqueue("t").max_active(2).build().unwrap();
        let works: Vec<Work> = (0..16).map(|_| Work::new(|_| {})).collect();
        std::thread::scope(|s| {
            for t in 0..2 {
                let (works, wq) = (&works, &wq);
                s.spawn(move || {
                    for i in 0..2000 {
                        let w = &works[(i * 7 + t) % works.len()];
                        wq.queue(w).unwrap();
                        if i % 3 == 0 {
                            w.cancel();
                        }
                    }
                });
            }
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..500 {
                        wq.flush().unwrap();
                    }
                });
            }
        });
        wq.flush().unwrap();
        let s = wq.stats();
        assert_eq!(s.queued, s.completed + s.cancelled);
        assert_eq!((s.active, s.inactive), (0, 0));
    });
}

/// Who flushes an item that is then cancelled is let go.
#[test]
fn cancelling_a_pending_item_releases_those_who_flush_it() {
    within("flush of a cancelled item", || {
        let rt = runtime();
        let wq = rt.workqueue("t").ordered().build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        drop(wq.spawn(move || g.pass()));
        let w = Work::new(|_| panic!("it was cancelled"));
        wq.queue(&w).unwrap();
        std::thread::scope(|s| {
            let flusher = s.spawn(|| w.flush());
            std::thread::sleep(Duration::from_millis(10));
            while !w.cancel() {
                assert!(flusher.is_finished());
            }
            flusher.join().unwrap().unwrap();
        });
    });
}

/// Symptom: cancelling armed delayed work through its `Work` spun until the timer fired, an hour later.
#[test]
fn armed_work_is_cancelled_through_its_work_too() {
    within("cancel through work()", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let d = DelayedWork::new(|_| panic!("an hour has not passed"));
        wq.queue_delayed(&d, HOUR).unwrap();
        assert!(d.work().cancel());
        assert!(!d.is_pending());
        wq.queue_delayed(&d, HOUR).unwrap();
        assert!(d.work().cancel_sync().unwrap());
        wq.queue_delayed(&d, HOUR).unwrap();
        assert!(d.work().disable());
        assert!(d.work().enable().unwrap());
        wq.queue_delayed(&d, HOUR).unwrap();
        assert!(d.cancel());
    });
}

/// Symptom: cancel_sync came back while the item still ran, because the item had been queued again elsewhere meanwhile.
/// Bug list 11: an ordered item re-queued while it runs goes to the newest pwq.
#[test]
fn cancel_sync_waits_for_an_instance_that_runs_in_a_replaced_pwq() {
    within("cancel_sync across attrs", || {
        let rt = runtime();
        let wq = rt.workqueue("t").ordered().build().unwrap();
        let gate = Gate::new();
        let done = Count::new();
        let (g, d) = (gate.clone(), done.clone());
        let w = Work::new(move |_| {
            g.pass();
            d.up();
        });
        wq.queue(&w).unwrap();
        gate.await_arrivals(1);
        assert_eq!(wq.apply_attrs(Attrs::new().nice(5)).unwrap().retired, 1);
        assert_eq!(wq.queue(&w).unwrap(), Queued::New);
        assert!(
            w.busy().running,
            "it still runs, though it was queued elsewhere"
        );
        std::thread::scope(|s| {
            let (g, _opener) = (gate.clone(), Opener(&gate));
            s.spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                g.open();
            });
            assert!(w.cancel_sync().unwrap());
            assert_eq!(done.get(), 1, "the running instance is over");
        });
        wq.flush().unwrap();
        assert_eq!(done.get(), 1);
    });
}

/// The same with a second queue, where non-reentrancy is given up but waiting is not.
#[test]
fn cancel_sync_waits_for_an_instance_that_runs_for_another_queue() {
    within("cancel_sync across queues", || {
        let rt = runtime();
        let a = rt.workqueue("a").build().unwrap();
        let b = rt.workqueue("b").ordered().nice(3).build().unwrap();
        let b_gate = Gate::new();
        let g = b_gate.clone();
        drop(b.spawn(move || g.pass()));
        let gate = Gate::new();
        let (done, g, d) = (Count::new(), gate.clone(), Count::new());
        let d2 = done.clone();
        drop(d);
        let w = Work::new(move |_| {
            g.pass();
            d2.up();
        });
        a.queue(&w).unwrap();
        gate.await_arrivals(1);
        b.queue(&w).unwrap();
        std::thread::scope(|s| {
            let (g, _openers) = (gate.clone(), (Opener(&gate), Opener(&b_gate)));
            s.spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                g.open();
            });
            assert!(w.cancel_sync().unwrap());
            assert_eq!(done.get(), 1);
        });
    });
}

#[test]
fn an_item_may_cancel_others_from_its_queue() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let slot: Arc<Mutex<Option<cmwq::JoinHandle<()>>>> = Arc::default();
    let (g, s) = (gate.clone(), slot.clone());
    let canceller = wq.spawn(move || {
        g.pass();
        s.lock().unwrap().take().unwrap().cancel()
    });
    *slot.lock().unwrap() = Some(wq.spawn(|| panic!("cancelled by the one before")));
    gate.open();
    assert!(canceller.join().unwrap());
    wq.flush().unwrap();
    assert_eq!(wq.stats().panicked, 0);
}

#[test]
fn a_cancelled_handle_resolves_when_awaited() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    drop(wq.spawn(move || g.pass()));
    let h = wq.spawn(|| 1);
    let mut h = Box::pin(h);
    let own = CountingWaker::new();
    let waker = std::task::Waker::from(own.clone());
    assert!(poll_once(h.as_mut(), &waker).is_pending());
    assert!(h.cancel());
    assert_eq!(own.count(), 1, "the awaiting task is woken");
    assert!(matches!(block_on(h), Err(JoinError::Cancelled { .. })));
}
