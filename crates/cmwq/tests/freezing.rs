//! Freeze and thaw (kernel semantics: 2.5).

mod common;

use common::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn frozen_queues_hold_back_and_thaw_runs_in_order() {
    within("freeze", || {
        let rt = runtime();
        let frozen = rt.workqueue("f").freezable().ordered().build().unwrap();
        let other = rt.workqueue("o").build().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        rt.freeze();
        rt.freeze();
        for i in 0..50 {
            let log = log.clone();
            drop(frozen.spawn(move || log.lock().unwrap().push(i)));
        }
        assert_eq!(other.spawn(|| 1).join().unwrap(), 1);
        std::thread::sleep(Duration::from_millis(5));
        assert!(log.lock().unwrap().is_empty());
        let s = frozen.stats();
        assert_eq!((s.active, s.inactive), (0, 50));
        assert!(!rt.freeze_busy());
        rt.thaw();
        rt.thaw();
        frozen.flush().unwrap();
        assert_eq!(*log.lock().unwrap(), (0..50).collect::<Vec<_>>());
    });
}

#[test]
fn what_is_active_finishes_and_freeze_busy_says_so() {
    within("freeze with active items", || {
        let rt = runtime();
        for (i, b) in [rt.workqueue("u"), rt.workqueue("p").per_cpu()]
            .into_iter()
            .enumerate()
        {
            let wq = b.freezable().max_active(1).build().unwrap();
            let gate = Gate::new();
            let _opener = Opener(&gate);
            let g = gate.clone();
            let first = wq.spawn(move || g.pass());
            gate.await_arrivals(1);
            let second = wq.spawn(|| ());
            rt.freeze();
            assert!(rt.freeze_busy());
            gate.open();
            first.join().unwrap();
            eventually("it is idle", || !rt.freeze_busy());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!second.is_finished(), "queue {i}");
            rt.thaw();
            second.join().unwrap();
        }
    });
}

/// A flush of a frozen queue waits for the thaw; cancel works meanwhile.
#[test]
fn flush_waits_for_the_thaw_and_cancel_does_not() {
    within("flush of a frozen queue", || {
        let rt = runtime();
        let wq = rt.workqueue("f").freezable().build().unwrap();
        rt.freeze();
        let ran = Count::new();
        let r = ran.clone();
        drop(wq.spawn(move || r.up()));
        let cancelled = wq.spawn(|| panic!("cancelled while frozen"));
        assert!(cancelled.cancel());
        std::thread::scope(|s| {
            let f = s.spawn(|| wq.flush());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!f.is_finished());
            rt.thaw();
            f.join().unwrap().unwrap();
        });
        assert_eq!(ran.get(), 1);
    });
}

#[test]
fn queues_made_while_frozen_are_born_frozen() {
    within("born frozen", || {
        let rt = runtime();
        rt.freeze();
        let wq = rt.workqueue("f").freezable().build().unwrap();
        let h = wq.spawn(|| 1);
        let plain = rt.workqueue("p").build().unwrap();
        assert_eq!(plain.spawn(|| 2).join().unwrap(), 2);
        std::thread::sleep(Duration::from_millis(3));
        assert!(!h.is_finished());
        // Its limit may be raised; it stays frozen.
        wq.set_max_active(2000).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        assert!(!h.is_finished());
        rt.thaw();
        assert_eq!(h.join().unwrap(), 1);
    });
}

#[test]
fn a_frozen_queue_that_is_dropped_runs_after_the_thaw() {
    within("dropped while frozen", || {
        let rt = runtime();
        let wq = rt.workqueue("f").freezable().build().unwrap();
        rt.freeze();
        let h = wq.spawn(|| 1);
        drop(wq);
        rt.thaw();
        assert_eq!(h.join().unwrap(), 1);
    });
}

#[test]
fn freezing_and_thawing_under_load_loses_nothing() {
    within("freeze under load", || {
        let rt = synthetic("package:2 l3:2 core:2").build().unwrap();
        let wq = rt.workqueue("f").freezable().max_active(4).build().unwrap();
        let ran = Count::new();
        std::thread::scope(|s| {
            for t in 0..2 {
                let (wq, ran) = (&wq, &ran);
                s.spawn(move || {
                    for i in 0..3000 {
                        let r = ran.clone();
                        drop(wq.try_spawn_on((i + t) % 8, move || r.up()).unwrap());
                    }
                });
            }
            s.spawn(|| {
                for _ in 0..200 {
                    rt.freeze();
                    std::thread::yield_now();
                    rt.thaw();
                }
            });
        });
        wq.flush().unwrap();
        assert_eq!(ran.get(), 6000);
    });
}
