//! The everyday calls.

use cmwq::{DelayedWork, JoinError, Queued, Runtime, Work, Workqueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn runtime() -> Runtime {
    Runtime::builder().build().unwrap()
}

#[test]
fn spawned_closures_all_run_once() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let n = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = (0..20_000)
        .map(|i| {
            let n = n.clone();
            wq.spawn(move || {
                n.fetch_add(1, Ordering::Relaxed);
                i
            })
        })
        .collect();
    for (i, h) in handles.into_iter().enumerate() {
        assert_eq!(h.join().unwrap(), i);
    }
    assert_eq!(n.load(Ordering::Relaxed), 20_000);
    // A joined item may not be counted out yet; a flush waits for that.
    wq.flush().unwrap();
    let s = wq.stats();
    assert_eq!((s.queued, s.started, s.completed), (20_000, 20_000, 20_000));
    assert_eq!(s.queue_to_start.count(), 20_000);
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn detached_closures_are_waited_for_by_flush() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let n = Arc::new(AtomicUsize::new(0));
    for round in 1..=50 {
        for _ in 0..200 {
            let n = n.clone();
            drop(wq.spawn(move || n.fetch_add(1, Ordering::Relaxed)));
        }
        wq.flush().unwrap();
        assert_eq!(n.load(Ordering::Relaxed), round * 200);
    }
}

#[test]
fn a_panic_goes_to_the_joiner_and_the_worker_lives() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let e = wq
        .spawn(|| -> u32 { panic!("boom {}", 7) })
        .join()
        .unwrap_err();
    match e {
        JoinError::Panicked(p) => assert_eq!(p.message(), "boom 7"),
        e => panic!("{e}"),
    }
    assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
    assert_eq!(wq.stats().panicked, 1);
}

#[test]
fn an_ordered_queue_runs_in_order_one_at_a_time() {
    let rt = runtime();
    let wq = rt.workqueue("log").ordered().build().unwrap();
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let busy = Arc::new(AtomicUsize::new(0));
    for i in 0..5000 {
        let (log, busy) = (log.clone(), busy.clone());
        drop(wq.spawn(move || {
            assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0);
            log.lock().unwrap().push(i);
            busy.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    wq.flush().unwrap();
    assert_eq!(*log.lock().unwrap(), (0..5000).collect::<Vec<_>>());
    assert_eq!(wq.stats().panicked, 0);
}

#[test]
fn work_runs_once_however_often_it_is_queued_while_pending() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Arc::new(std::sync::Barrier::new(2));
    let g = gate.clone();
    let blocker = wq.spawn(move || {
        g.wait();
    });
    let n = Arc::new(AtomicUsize::new(0));
    let c = n.clone();
    let w = Work::new(move |_| {
        c.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(wq.queue(&w).unwrap(), Queued::New);
    for _ in 0..10 {
        assert_eq!(wq.queue(&w).unwrap(), Queued::AlreadyPending);
    }
    gate.wait();
    blocker.join().unwrap();
    assert!(w.flush().is_ok());
    assert_eq!(n.load(Ordering::SeqCst), 1);
    assert!(!w.flush().unwrap());
}

#[test]
fn delayed_work_fires_not_before_its_time() {
    let rt = runtime();
    let wq: Workqueue = rt.workqueue("t").build().unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    let w = DelayedWork::new(move |_| tx.send(std::time::Instant::now()).unwrap());
    let start = std::time::Instant::now();
    wq.queue_delayed(&w, Duration::from_millis(20)).unwrap();
    let at = rx.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(at - start >= Duration::from_millis(20));
}

#[test]
fn max_active_bounds_what_runs() {
    let rt = runtime();
    let wq = rt.workqueue("t").max_active(3).build().unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = (0..60)
        .map(|_| {
            let (running, most) = (running.clone(), most.clone());
            wq.spawn(move || {
                let n = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(n, Ordering::SeqCst);
                cmwq::blocking(|| std::thread::sleep(Duration::from_millis(1)));
                running.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[test]
fn a_worker_that_joins_an_item_of_its_own_full_queue_does_not_deadlock() {
    let rt = runtime();
    let wq = rt.workqueue("t").max_active(1).build().unwrap();
    let inner = wq.clone();
    let h = wq.spawn(move || inner.spawn(|| 5).join().unwrap() + 1);
    assert_eq!(h.join().unwrap(), 6);
    assert_eq!(wq.stats().inlined, 1);
}

#[test]
fn dropping_the_last_handle_runs_what_is_queued() {
    let rt = runtime();
    let wq = rt.workqueue("t").max_active(1).build().unwrap();
    let n = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = (0..100)
        .map(|_| {
            let n = n.clone();
            wq.spawn(move || n.fetch_add(1, Ordering::SeqCst))
        })
        .collect();
    drop(wq);
    for h in handles {
        h.join().unwrap();
    }
    assert_eq!(n.load(Ordering::SeqCst), 100);
}
