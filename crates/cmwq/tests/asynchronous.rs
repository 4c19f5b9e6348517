//! Handles as futures, and back-pressure by `spawn_when_ready`, on the smallest executor there is.

mod common;

use cmwq::{JoinError, QueueError, Work};
use common::*;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

#[test]
fn a_handle_resolves_to_the_value_or_the_panic() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    assert_eq!(block_on(wq.spawn(|| 7)).unwrap(), 7);
    let e = block_on(wq.spawn(|| -> u8 { panic!("on purpose") })).unwrap_err();
    assert!(
        matches!(&e, JoinError::Panicked(p) if p.message() == "on purpose"),
        "{e}"
    );
    wq.close();
    let e = block_on(wq.spawn(|| ())).unwrap_err();
    assert!(matches!(e, JoinError::Refused(QueueError::Closed { .. })));
}

#[test]
fn the_task_that_polled_last_is_woken() {
    within("the last waker", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        let mut h = Box::pin(wq.spawn(move || g.pass()));
        let (first, last) = (CountingWaker::new(), CountingWaker::new());
        assert!(poll_once(h.as_mut(), &Waker::from(first.clone())).is_pending());
        assert!(poll_once(h.as_mut(), &Waker::from(first.clone())).is_pending());
        assert!(poll_once(h.as_mut(), &Waker::from(last.clone())).is_pending());
        gate.open();
        eventually("the last waker is woken", || last.count() == 1);
        assert_eq!(first.count(), 0);
        block_on(h).unwrap();
    });
}

/// Symptom: a waker stored at the moment of completion was forgotten.
#[test]
fn a_waker_that_changes_while_the_item_ends_is_not_lost() {
    within("changing wakers", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        for i in 0..4000u32 {
            let mut h = Box::pin(wq.spawn(move || {
                for _ in 0..i % 64 {
                    std::hint::spin_loop();
                }
            }));
            loop {
                let own = CountingWaker::new();
                let waker = Waker::from(own.clone());
                if poll_once(h.as_mut(), &waker).is_ready() {
                    break;
                }
                if i % 3 == 0 {
                    // Another waker right away: this one must be woken, whatever becomes of the first.
                    let own = CountingWaker::new();
                    let waker = Waker::from(own.clone());
                    if poll_once(h.as_mut(), &waker).is_ready() {
                        break;
                    }
                    eventually("the newest waker is woken", || own.count() == 1);
                } else {
                    eventually("the waker is woken", || own.count() == 1);
                }
            }
        }
    });
}

#[test]
fn polling_a_finished_handle_again_panics() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let mut h = Box::pin(wq.spawn(|| 1));
    let waker = Waker::noop();
    eventually("it is done", || h.is_finished());
    assert!(poll_once(h.as_mut(), waker).is_ready());
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        poll_once(h.as_mut(), waker).is_ready()
    }));
    assert!(again.is_err());
    drop(h);
    assert_eq!(wq.spawn(|| 2).join().unwrap(), 2);
}

#[test]
fn dropping_a_polled_handle_detaches() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let ran = Count::new();
    let (g, r) = (gate.clone(), ran.clone());
    let mut h = Box::pin(wq.spawn(move || {
        g.pass();
        r.up();
    }));
    let own = CountingWaker::new();
    assert!(poll_once(h.as_mut(), &Waker::from(own.clone())).is_pending());
    drop(h);
    gate.open();
    wq.flush().unwrap();
    assert_eq!(ran.get(), 1);
}

/// A waker made by hand whose parts can be told to panic.
struct Nasty;

static NASTY: RawWakerVTable = RawWakerVTable::new(
    |p| RawWaker::new(p, &NASTY),
    |p| {
        count(p);
        panic!("in wake");
    },
    |p| {
        count(p);
        panic!("in wake_by_ref");
    },
    |p| {
        count(p);
        if !std::thread::panicking() {
            panic!("in a waker's drop");
        }
    },
);

fn count(p: *const ()) {
    // SAFETY: the counter outlives every waker in these tests (it is leaked).
    unsafe { &*p.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

impl Nasty {
    fn waker() -> (Waker, &'static AtomicUsize) {
        let counter: &'static AtomicUsize = Box::leak(Box::default());
        let raw = RawWaker::new(std::ptr::from_ref(counter).cast(), &NASTY);
        // SAFETY: the vtable's functions keep the contract: the data is never freed, cloning copies the pointer.
        (unsafe { Waker::from_raw(raw) }, counter)
    }
}

/// Wakers are foreign code. Symptom: a panic in one took the worker down, and the items behind it hung.
#[test]
fn a_waker_that_panics_takes_no_worker_down() {
    within("nasty wakers", || {
        let rt = runtime();
        let wq = rt
            .workqueue("t")
            .max_active(1)
            .max_pending(1)
            .build()
            .unwrap();
        // In `wake`, for a handle.
        let gate = Gate::new();
        let g = gate.clone();
        let mut h = Box::pin(wq.spawn(move || g.pass()));
        gate.await_arrivals(1);
        let (waker, calls) = Nasty::waker();
        assert!(poll_once(h.as_mut(), &waker).is_pending());
        // In `wake`, for a task that waits for room.
        let filler = wq.spawn(|| ());
        let mut ready = Box::pin(wq.spawn_when_ready(|| 1));
        let (room_waker, room_calls) = Nasty::waker();
        assert!(poll_once(ready.as_mut(), &room_waker).is_pending());
        // In a waker's drop, as a newer one takes its place at the end.
        gate.open();
        eventually("both wakers are called", || {
            calls.load(Ordering::SeqCst) > 0 && room_calls.load(Ordering::SeqCst) > 0
        });
        filler.join().unwrap();
        assert!(h.is_finished());
        std::mem::forget((waker, room_waker));
        block_on(h).unwrap();
        assert_eq!(block_on(block_on(ready)).unwrap(), 1);
        assert_eq!(wq.spawn(|| 2).join().unwrap(), 2);
        // In a waker's drop, when the cell goes with the worker.
        let gate = Gate::new();
        let g = gate.clone();
        let mut h = Box::pin(wq.spawn(move || g.pass()));
        let (waker, _) = Nasty::waker();
        assert!(poll_once(h.as_mut(), &waker).is_pending());
        std::mem::forget(waker);
        drop(h);
        gate.open();
        wq.flush().unwrap();
        assert_eq!(wq.spawn(|| 3).join().unwrap(), 3);
        assert_eq!(wq.stats().panicked, 0, "no item panicked");
    });
}

#[test]
fn spawn_when_ready_is_ready_at_once_when_there_is_room() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let mut f = pin!(wq.spawn_when_ready(|| 5));
    let Poll::Ready(h) = poll_once(f.as_mut(), Waker::noop()) else {
        panic!("there is no limit")
    };
    assert_eq!(h.join().unwrap(), 5);
}

type Ready = Pin<Box<dyn Future<Output = cmwq::JoinHandle<usize>> + Send>>;

/// A queue of one at a time with room for one, both taken.
fn full() -> (cmwq::Runtime, cmwq::Workqueue, Arc<Gate>) {
    let rt = runtime();
    let wq = rt
        .workqueue("t")
        .max_active(1)
        .max_pending(1)
        .build()
        .unwrap();
    let gate = Gate::new();
    let g = gate.clone();
    drop(wq.spawn(move || g.pass()));
    gate.await_arrivals(1);
    drop(wq.spawn(|| ()));
    (rt, wq, gate)
}

fn waits(wq: &cmwq::Workqueue, i: usize) -> (Ready, Arc<CountingWaker>) {
    let mut f: Ready = Box::pin(wq.spawn_when_ready(move || i));
    let own = CountingWaker::new();
    let waker = Waker::from(own.clone());
    assert!(
        f.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    (f, own)
}

#[test]
fn waiting_tasks_are_told_in_the_order_in_which_they_came() {
    within("order of waiting tasks", || {
        let (_rt, wq, gate) = full();
        let _opener = Opener(&gate);
        let mut tasks: Vec<_> = (0..5).map(|i| waits(&wq, i)).collect();
        // Polls without need change nothing.
        for (f, w) in &mut tasks {
            let waker = Waker::from(w.clone());
            for _ in 0..3 {
                assert!(
                    f.as_mut()
                        .poll(&mut Context::from_waker(&waker))
                        .is_pending()
                );
            }
        }
        gate.open();
        for (i, (f, w)) in tasks.into_iter().enumerate() {
            eventually("the next in line is told", || w.count() > 0);
            assert_eq!(block_on(block_on(f)).unwrap(), i);
        }
    });
}

/// Symptom: the wake-up for a task that had gone away was lost, and the next in line slept although there was room.
#[test]
fn a_task_that_goes_away_does_not_take_the_others_room_with_it() {
    within("a dropped waiting task", || {
        let (_rt, wq, gate) = full();
        let _opener = Opener(&gate);
        let (first, first_waker) = waits(&wq, 0);
        let (second, second_waker) = waits(&wq, 1);
        // Told, and dropped without having looked.
        gate.open();
        eventually("the first is told", || first_waker.count() == 1);
        wq.flush().unwrap();
        let told_before = second_waker.count();
        drop(first);
        eventually("the second is told", || {
            second_waker.count() > told_before || told_before > 0
        });
        assert_eq!(block_on(block_on(second)).unwrap(), 1);
    });
    within("a task dropped in line", || {
        let (_rt, wq, gate) = full();
        let _opener = Opener(&gate);
        let (first, first_waker) = waits(&wq, 0);
        let (second, second_waker) = waits(&wq, 1);
        drop(first);
        gate.open();
        eventually("the second is told", || second_waker.count() == 1);
        assert_eq!(first_waker.count(), 0);
        assert_eq!(block_on(block_on(second)).unwrap(), 1);
    });
}

/// Symptom: a task polled more often than needed (as in a `select` loop) was on the list several times, and the room of
/// others was announced to it.
#[test]
fn a_task_polled_often_is_told_once() {
    within("a task polled often", || {
        let (_rt, wq, gate) = full();
        let _opener = Opener(&gate);
        let (mut first, first_waker) = waits(&wq, 0);
        let waker = Waker::from(first_waker.clone());
        for _ in 0..10 {
            assert!(
                first
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        let (second, second_waker) = waits(&wq, 1);
        gate.open();
        eventually("the first is told", || first_waker.count() == 1);
        assert_eq!(block_on(block_on(first)).unwrap(), 0);
        eventually("the second is told", || second_waker.count() >= 1);
        assert_eq!(block_on(block_on(second)).unwrap(), 1);
        assert_eq!(first_waker.count(), 1);
    });
}

#[test]
fn closing_the_queue_ends_the_waiting() {
    within("closing with waiting tasks", || {
        let (_rt, wq, gate) = full();
        let _opener = Opener(&gate);
        let (f, waker) = waits(&wq, 0);
        wq.close();
        assert_eq!(waker.count(), 1);
        let e = block_on(block_on(f)).unwrap_err();
        assert!(
            matches!(e, JoinError::Refused(QueueError::Closed { .. })),
            "{e}"
        );
    });
}

#[test]
fn back_pressure_holds_the_limit_and_everything_gets_through() {
    within("back-pressure", || {
        let rt = runtime();
        let wq = rt
            .workqueue("t")
            .max_active(2)
            .max_pending(4)
            .build()
            .unwrap();
        let most = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let (wq, most) = (wq.clone(), most.clone());
                std::thread::spawn(move || {
                    let mut sum = 0;
                    for i in 0..500usize {
                        let h = block_on(wq.spawn_when_ready(move || i + t));
                        most.fetch_max(wq.pending(), Ordering::SeqCst);
                        if i % 7 == 0 {
                            // Gives up now and then.
                            let mut f = Box::pin(wq.spawn_when_ready(|| ()));
                            let own = CountingWaker::new();
                            let _ = poll_once(f.as_mut(), &Waker::from(own));
                        }
                        sum += block_on(h).unwrap();
                    }
                    sum
                })
            })
            .collect();
        let sum: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(
            sum,
            (0..4)
                .map(|t| (0..500).map(|i| i + t).sum::<usize>())
                .sum::<usize>()
        );
        assert!(most.load(Ordering::SeqCst) <= 4);
        wq.flush().unwrap();
        assert_eq!(wq.pending(), 0);
    });
}

/// peers: dropping things inside an async task must not block it or hang anything.
#[test]
fn dropping_queue_and_runtime_inside_a_task_is_fine() {
    within("drop inside a task", || {
        block_on(async {
            let rt = runtime();
            let wq = rt.workqueue("t").build().unwrap();
            let h = wq.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                9
            });
            let w = Work::new(|_| ());
            wq.queue(&w).unwrap();
            drop(wq);
            drop(rt);
            assert_eq!(h.await.unwrap(), 9);
        });
    });
}
