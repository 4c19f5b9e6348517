//! The seeded test runtime: the same seed, the same order; everything else as with threads.

mod common;

use cmwq::testing::TestRuntime;
use cmwq::{DelayedWork, JoinError, Topology, WaitError, Work};
use common::*;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens in a program of several queues and timers, as a list.
fn story(seed: u64) -> Vec<u32> {
    let rt =
        TestRuntime::with_topology(seed, Topology::synthetic("package:2 l3:2 core:2").unwrap());
    let log = Arc::new(Mutex::new(Vec::new()));
    let queues = [
        rt.workqueue("a").build().unwrap(),
        rt.workqueue("b").per_cpu().build().unwrap(),
        rt.workqueue("c").ordered().build().unwrap(),
    ];
    for i in 0..60u32 {
        let (log, next) = (log.clone(), queues[(i as usize + 1) % 3].clone());
        let q = &queues[i as usize % 3];
        drop(
            q.try_spawn_on(i as usize % 8, move || {
                log.lock().unwrap().push(i);
                if i % 5 == 0 {
                    let log = log.clone();
                    drop(next.spawn(move || log.lock().unwrap().push(1000 + i)));
                }
            })
            .unwrap(),
        );
    }
    let l = log.clone();
    let d = DelayedWork::new(move |_| l.lock().unwrap().push(5000));
    queues[0]
        .queue_delayed(&d, Duration::from_millis(5))
        .unwrap();
    rt.advance(Duration::from_millis(20));
    let log = log.lock().unwrap().clone();
    assert_eq!(log.len(), 73);
    log
}

#[test]
fn the_same_seed_gives_the_same_order_and_others_give_others() {
    for seed in 0..10 {
        assert_eq!(story(seed), story(seed), "seed {seed}");
    }
    let different: HashSet<Vec<u32>> = (0..10).map(story).collect();
    assert!(
        different.len() > 3,
        "only {} orders of 10 seeds",
        different.len()
    );
}

#[test]
fn ordered_queues_are_ordered_for_every_seed() {
    for seed in 0..50 {
        let own: Vec<u32> = story(seed)
            .into_iter()
            .filter(|i| i % 3 == 2 && *i < 60)
            .collect();
        assert!(own.windows(2).all(|w| w[0] < w[1]), "seed {seed}");
    }
}

#[test]
fn time_stands_still_unless_moved() {
    let rt = TestRuntime::new(1);
    assert_eq!(rt.now(), Duration::ZERO);
    let wq = rt.workqueue("t").build().unwrap();
    drop(wq.spawn(|| ()));
    rt.run_until_idle();
    assert_eq!((rt.now(), rt.items_run()), (Duration::ZERO, 1));
    rt.advance(Duration::from_secs(3));
    assert_eq!(rt.now(), Duration::from_secs(3));
    assert!(!rt.step());
}

#[test]
fn a_wait_drives_the_runtime_and_jumps_to_timers() {
    let rt = TestRuntime::new(1);
    let wq = rt.workqueue("t").build().unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    let d = DelayedWork::new(move |_| tx.send(()).unwrap());
    wq.queue_delayed(&d, Duration::from_secs(50)).unwrap();
    let q = wq.clone();
    assert_eq!(
        wq.spawn(move || q.spawn(|| 2).join().unwrap() + 1)
            .join()
            .unwrap(),
        3
    );
    assert_eq!(rt.now(), Duration::ZERO, "the join needed no timer");
    wq.flush().unwrap();
    assert!(rx.try_recv().is_err());
    rt.advance(Duration::from_secs(51));
    rx.try_recv().unwrap();
}

#[test]
fn a_wait_that_nothing_can_end_is_an_error() {
    let rt = TestRuntime::new(1);
    let wq = rt.workqueue("t").freezable().build().unwrap();
    rt.runtime().freeze();
    let h = wq.spawn(|| 1);
    let e = wq.flush().unwrap_err();
    assert!(
        matches!(&e, WaitError::Stuck { what } if what.contains('t')),
        "{e}"
    );
    assert!(matches!(h.join(), Err(JoinError::WouldDeadlock { .. })));
    rt.runtime().thaw();
    wq.flush().unwrap();
}

#[test]
fn everything_else_works_as_with_threads() {
    let rt = TestRuntime::new(11);
    let wq = rt.workqueue("t").max_active(1).build().unwrap();
    let n = Count::new();
    let c = n.clone();
    let w = Work::new(move |_| {
        c.up();
    });
    wq.queue(&w).unwrap();
    assert!(w.cancel());
    wq.queue(&w).unwrap();
    assert!(w.flush().unwrap());
    assert_eq!(n.get(), 1);
    assert!(
        wq.spawn(|| panic!("on purpose"))
            .join()
            .unwrap_err()
            .is_panic()
    );
    wq.drain().unwrap();
    wq.scope(|s| drop(s.spawn(|| n.up())));
    assert_eq!(n.get(), 2);
    let s = wq.stats();
    assert_eq!((s.completed, s.cancelled, s.panicked), (3, 1, 1));
    rt.runtime().shutdown().unwrap();
    assert!(wq.spawn(|| ()).join().is_err());
}
