//! Delayed work (kernel semantics: 1.2, 2.8; bug list 14).

mod common;

use cmwq::testing::TestRuntime;
use cmwq::{DelayedWork, QueueError, Queued, Work};
use common::*;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

fn counting() -> (DelayedWork, Count) {
    let n = Count::new();
    let c = n.clone();
    let w = DelayedWork::new(move |_| {
        c.up();
    });
    (w, n)
}

#[test]
fn it_fires_once_at_its_time_and_not_before() {
    let rt = TestRuntime::new(1);
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    assert_eq!(wq.queue_delayed(&w, 10 * MS).unwrap(), Queued::New);
    assert!(w.is_pending() && w.busy().pending);
    rt.advance(9 * MS);
    assert_eq!(n.get(), 0);
    rt.advance(3 * MS);
    assert_eq!(n.get(), 1);
    assert!(!w.is_pending());
    rt.advance(HOUR);
    assert_eq!(n.get(), 1);
}

#[test]
fn queueing_an_armed_item_again_changes_nothing() {
    let rt = TestRuntime::new(1);
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    wq.queue_delayed(&w, 10 * MS).unwrap();
    assert_eq!(wq.queue_delayed(&w, HOUR).unwrap(), Queued::AlreadyPending);
    assert_eq!(
        wq.queue_delayed(&w, Duration::ZERO).unwrap(),
        Queued::AlreadyPending
    );
    assert_eq!(wq.queue(w.work()).unwrap(), Queued::AlreadyPending);
    rt.run_until_idle();
    assert_eq!(n.get(), 0);
    rt.advance(12 * MS);
    assert_eq!(n.get(), 1);
}

#[test]
fn a_delay_of_zero_queues_at_once_without_a_timer() {
    let rt = TestRuntime::new(1);
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    assert_eq!(wq.queue_delayed(&w, Duration::ZERO).unwrap(), Queued::New);
    rt.run_until_idle();
    assert_eq!((n.get(), rt.now()), (1, Duration::ZERO));
}

/// The kernel's `mod_delayed_work` answers in the opposite sense of its other calls; here an enum says what happened.
#[test]
fn mod_delayed_says_what_it_found_and_sets_the_time_anew() {
    let rt = TestRuntime::new(1);
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    assert_eq!(wq.mod_delayed(&w, HOUR).unwrap(), Queued::New);
    assert_eq!(wq.mod_delayed(&w, 5 * MS).unwrap(), Queued::AlreadyPending);
    rt.advance(7 * MS);
    assert_eq!(n.get(), 1);
    assert_eq!(wq.mod_delayed(&w, 5 * MS).unwrap(), Queued::New);
    assert_eq!(wq.mod_delayed(&w, HOUR).unwrap(), Queued::AlreadyPending);
    rt.advance(HOUR / 2);
    assert_eq!(n.get(), 1, "put off");
    rt.advance(HOUR);
    assert_eq!(n.get(), 2);
    // From a worklist too.
    wq.queue(w.work()).unwrap();
    assert_eq!(wq.mod_delayed(&w, 5 * MS).unwrap(), Queued::AlreadyPending);
    rt.run_until_idle();
    assert_eq!(n.get(), 2);
    rt.advance(7 * MS);
    assert_eq!(n.get(), 3);
    // And at once.
    wq.queue_delayed(&w, HOUR).unwrap();
    assert_eq!(
        wq.mod_delayed(&w, Duration::ZERO).unwrap(),
        Queued::AlreadyPending
    );
    rt.run_until_idle();
    assert_eq!(n.get(), 4);
}

#[test]
fn flush_of_an_armed_item_runs_it_now() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    assert!(!w.flush().unwrap(), "idle");
    wq.queue_delayed(&w, HOUR).unwrap();
    assert!(w.flush().unwrap());
    assert_eq!(n.get(), 1);
    wq.queue_delayed(&w, HOUR).unwrap();
    assert!(w.work().flush().unwrap(), "through its Work too");
    assert_eq!(n.get(), 2);
}

#[test]
fn cancel_takes_it_off_its_timer_and_out_of_its_queue() {
    let rt = TestRuntime::new(3);
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    assert!(!w.cancel());
    wq.queue_delayed(&w, 5 * MS).unwrap();
    assert!(w.cancel());
    rt.advance(HOUR);
    wq.queue_delayed(&w, Duration::ZERO).unwrap();
    assert!(w.cancel());
    rt.run_until_idle();
    assert_eq!(n.get(), 0);
    assert!(!w.cancelled_by_drain(), "the caller did it");
}

#[test]
fn items_fire_in_the_order_of_their_times() {
    let rt = TestRuntime::new(9);
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let delays = [50u32, 10, 40, 30, 20, 11_000, 1_000, 60];
    let works: Vec<_> = delays
        .iter()
        .map(|&d| {
            let log = log.clone();
            let w = DelayedWork::new(move |_| log.lock().unwrap().push(d));
            wq.queue_delayed(&w, d * 10 * MS).unwrap();
            w
        })
        .collect();
    rt.advance(HOUR);
    let mut sorted = delays.to_vec();
    sorted.sort_unstable();
    assert_eq!(*log.lock().unwrap(), sorted);
    assert!(works.iter().all(|w| !w.is_pending()));
}

#[test]
fn a_cyclic_item_arms_itself_again() {
    let rt = TestRuntime::new(3);
    let wq = rt.workqueue("t").build().unwrap();
    let n = Count::new();
    let (c, q) = (n.clone(), wq.clone());
    let w = DelayedWork::new_cyclic(move |w| {
        if c.up() < 5 {
            q.queue_delayed(w, 10 * MS).unwrap();
        }
    });
    wq.queue_delayed(&w, 10 * MS).unwrap();
    rt.advance(11 * MS);
    assert_eq!(n.get(), 1);
    rt.advance(HOUR);
    assert_eq!(n.get(), 5);
}

/// The kernel drops an armed item whose timer fires on a draining queue; here it is cancelled at once and says so.
#[test]
fn draining_cancels_armed_items_and_they_say_so() {
    within("drain with armed items", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let (w, n) = counting();
        wq.queue_delayed(&w, HOUR).unwrap();
        assert!(!w.cancelled_by_drain());
        wq.drain().unwrap();
        assert!(w.cancelled_by_drain() && !w.is_pending());
        assert_eq!(n.get(), 0);
        // The queue is open again, and arming clears the mark.
        wq.queue_delayed(&w, HOUR).unwrap();
        assert!(!w.cancelled_by_drain() && w.is_pending());
        let other = wq.clone();
        wq.destroy().unwrap();
        assert!(w.cancelled_by_drain() && !w.is_pending());
        assert!(matches!(
            other.queue_delayed(&w, MS),
            Err(QueueError::Closed { .. })
        ));
        assert!(!w.is_pending());
    });
}

#[test]
fn dropping_the_last_handle_cancels_armed_items_and_they_say_so() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let (w, _) = counting();
    wq.queue_delayed(&w, HOUR).unwrap();
    drop(wq);
    assert!(w.cancelled_by_drain() && !w.is_pending());
}

/// Bug list 14: drain while timers fire, then cancel_sync: the kernel spun at 100 % CPU.
#[test]
fn drains_while_timers_fire_leave_nothing_pending() {
    within("drain against timers", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        for round in 0..60u32 {
            let works: Vec<_> = (0..20).map(|_| counting().0).collect();
            for (i, w) in works.iter().enumerate() {
                wq.queue_delayed(
                    w,
                    Duration::from_micros(100 + 60 * i as u64 + u64::from(round)),
                )
                .unwrap();
            }
            std::thread::sleep(Duration::from_micros(300));
            wq.drain().unwrap();
            let s = wq.stats();
            assert_eq!((s.active, s.inactive), (0, 0));
            for w in &works {
                assert!(
                    !w.cancel_sync().unwrap(),
                    "drained or cancelled, not pending"
                );
            }
        }
    });
}

/// Symptom: changing the time of an armed item while its queue was full dropped the item.
#[test]
fn mod_delayed_on_a_full_queue_keeps_the_item() {
    let rt = TestRuntime::new(3);
    let wq = rt.workqueue("t").max_pending(1).build().unwrap();
    let (w, n) = counting();
    wq.queue_delayed(&w, 50 * MS).unwrap();
    let filler = wq.spawn(|| ());
    // To a timer there is always room.
    assert_eq!(wq.mod_delayed(&w, 20 * MS).unwrap(), Queued::AlreadyPending);
    assert!(w.is_pending());
    // At once there is none: the item keeps its old time.
    assert!(matches!(
        wq.mod_delayed(&w, Duration::ZERO),
        Err(QueueError::Full { .. })
    ));
    assert!(w.is_pending(), "an error must not drop the item");
    rt.run_until_idle();
    filler.join().unwrap();
    rt.advance(HOUR);
    assert_eq!(n.get(), 1);
}

/// An item whose queue is full when its time comes is not lost.
#[test]
fn an_item_that_fires_into_a_full_queue_waits_for_room() {
    within("firing into a full queue", || {
        let rt = runtime();
        let wq = rt
            .workqueue("t")
            .max_active(1)
            .max_pending(1)
            .build()
            .unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        drop(wq.spawn(move || g.pass()));
        gate.await_arrivals(1);
        let (w, n) = counting();
        wq.queue_delayed(&w, 5 * MS).unwrap();
        drop(wq.spawn(|| ()));
        let (other, _) = counting();
        assert!(matches!(
            wq.queue(other.work()),
            Err(QueueError::Full { .. })
        ));
        assert!(matches!(
            wq.queue_delayed(&other, MS),
            Err(QueueError::Full { .. })
        ));
        std::thread::sleep(20 * MS);
        assert!(w.is_pending());
        gate.open();
        eventually("it runs", || n.get() == 1);
        // While it waits for room it can be cancelled like any other.
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        drop(wq.spawn(move || g.pass()));
        gate.await_arrivals(1);
        wq.queue_delayed(&w, 5 * MS).unwrap();
        drop(wq.spawn(|| ()));
        std::thread::sleep(20 * MS);
        assert!(w.cancel_sync().unwrap());
        gate.open();
        wq.flush().unwrap();
        std::thread::sleep(5 * MS);
        assert_eq!(n.get(), 1);
    });
}

#[test]
fn a_disabled_item_is_neither_armed_nor_moved() {
    let rt = TestRuntime::new(3);
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    wq.queue_delayed(&w, MS).unwrap();
    assert!(w.disable(), "it was armed");
    assert!(matches!(
        wq.queue_delayed(&w, MS),
        Err(QueueError::Disabled { depth: 1, .. })
    ));
    assert!(matches!(
        wq.mod_delayed(&w, MS),
        Err(QueueError::Disabled { .. })
    ));
    rt.advance(HOUR);
    assert_eq!(n.get(), 0);
    assert!(w.enable().unwrap());
    wq.queue_delayed(&w, MS).unwrap();
    rt.advance(10 * MS);
    assert_eq!(n.get(), 1);
    assert!(w.enable_and_queue(&wq).is_err(), "not disabled");
}

/// peers: one item's drop glue must not take the runtime's own threads or a stranger's call down.
#[test]
fn drop_glue_that_panics_does_not_reach_who_drains() {
    within("bad drop in drain", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let bad = BadDrop("a captured value");
        let w = DelayedWork::new(move |_| {
            let _ = &bad;
        });
        wq.queue_delayed(&w, HOUR).unwrap();
        drop(w);
        wq.drain().unwrap();
        let (w, n) = counting();
        wq.queue_delayed(&w, MS).unwrap();
        eventually("timers still fire", || n.get() == 1);
    });
}

#[test]
fn a_million_timers_are_an_ordinary_number() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let many = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    let start = Instant::now();
    let works: Vec<DelayedWork> = (0..many)
        .map(|i| {
            let w = DelayedWork::new(|_| ());
            wq.queue_delayed(&w, HOUR + Duration::from_millis(i % 5000))
                .unwrap();
            w
        })
        .collect();
    let armed = start.elapsed();
    assert!(works.iter().all(DelayedWork::cancel));
    println!(
        "{many} timers: armed in {armed:?}, cancelled in {:?}",
        start.elapsed() - armed
    );
    assert!(works.iter().all(|w| !w.is_pending()));
}

#[test]
fn a_delay_beyond_all_times_is_accepted() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let (w, _) = counting();
    wq.queue_delayed(&w, Duration::MAX).unwrap();
    assert!(w.is_pending());
    assert!(w.cancel());
}

/// Arming, cancelling, moving and flushing from several threads: each queueing that was accepted runs or was cancelled.
#[test]
fn racing_calls_on_one_delayed_item_never_hang() {
    within("racing delayed calls", || {
        let rt = runtime();
        let other = runtime();
        let a = rt.workqueue("a").build().unwrap();
        let b = other.workqueue("b").build().unwrap();
        let (w, n) = counting();
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let (w, a, b) = (&w, &a, &b);
                s.spawn(move || {
                    for i in 0..400u64 {
                        let wq = if (i + t) % 5 == 0 { b } else { a };
                        match (i * 5 + t) % 6 {
                            0 => drop(wq.queue_delayed(w, HOUR).unwrap()),
                            1 => drop(
                                wq.mod_delayed(w, Duration::from_micros(50 * (i % 9)))
                                    .unwrap(),
                            ),
                            2 => drop(w.cancel()),
                            3 => drop(w.flush().unwrap()),
                            4 => drop(w.work().cancel()),
                            _ => drop(wq.queue(w.work()).unwrap()),
                        }
                    }
                });
            }
        });
        w.cancel_sync().unwrap();
        a.flush().unwrap();
        b.flush().unwrap();
        let ran = n.get();
        std::thread::sleep(2 * MS);
        assert_eq!(n.get(), ran, "nothing runs after cancel_sync");
        let (sa, sb) = (a.stats(), b.stats());
        assert_eq!(sa.completed + sb.completed, ran as u64);
        assert_eq!(
            sa.queued + sb.queued,
            ran as u64 + sa.cancelled + sb.cancelled
        );
    });
}

#[test]
fn plain_work_of_a_delayed_item_is_the_same_item() {
    let (w, _) = counting();
    let again: &Work = w.work();
    assert!(again.is_same(w.work()));
}

/// The item is over before the flusher looks for it: seen about once in some hundred flushes.
#[test]
fn flush_of_an_armed_item_that_ends_at_once_still_says_that_it_waited() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    for i in 1..=2000 {
        wq.queue_delayed(&w, HOUR).unwrap();
        assert!(w.flush().unwrap());
        assert_eq!(n.get(), i);
    }
}
