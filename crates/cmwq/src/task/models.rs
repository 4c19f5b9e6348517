//! The task cell under loom: who frees it, who sees the result, who is woken (invariants C1-C4 of `cell.rs`).

use super::cell::{TaskRef, new_task};
use crate::item::{Dropped, ItemPtr};
use crate::sys::futex::Timeout;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::task::{Context, Poll, Wake, Waker};

/// Checks that it is dropped once: loom finds leaks, this finds the rest.
struct Tracked(Arc<AtomicUsize>);

impl Drop for Tracked {
    fn drop(&mut self) {
        assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "dropped twice");
    }
}

type Made = (
    ItemPtr,
    TaskRef<Tracked>,
    Arc<AtomicUsize>,
    Arc<AtomicUsize>,
);

/// A task whose closure and result are tracked.
fn made() -> Made {
    let captured = Arc::new(AtomicUsize::new(0));
    let result = Arc::new(AtomicUsize::new(0));
    let (c, r) = (Tracked(captured.clone()), Tracked(result.clone()));
    let (item, task) = new_task(move || {
        drop(c);
        r
    });
    (item, task, captured, result)
}

fn run(item: ItemPtr) -> thread::JoinHandle<()> {
    // SAFETY: the queue's side, once.
    thread::spawn(move || unsafe { item.run() })
}

/// C1, C4: a sleeping joiner is woken and has the result; nothing is dropped twice or leaked.
#[test]
fn loom_c1_c4_a_joiner_gets_the_result() {
    loom::model(|| {
        let (item, mut task, captured, result) = made();
        let worker = run(item);
        assert!(task.wait(Timeout::Never));
        assert!(
            captured.load(Ordering::Relaxed) == 1,
            "what the closure did is seen"
        );
        drop(task.take().unwrap());
        drop(task);
        assert_eq!(result.load(Ordering::Relaxed), 1);
        worker.join().unwrap();
    });
}

/// C2, C3: one of the two frees the cell, and with it the result that nobody took.
#[test]
fn loom_c2_c3_handle_and_worker_end_at_once() {
    loom::model(|| {
        let (item, task, captured, result) = made();
        let worker = run(item);
        drop(task);
        worker.join().unwrap();
        assert_eq!(captured.load(Ordering::Relaxed), 1);
        assert_eq!(result.load(Ordering::Relaxed), 1);
    });
}

/// C2, C3 with a joiner that gives up.
#[test]
fn loom_c3_a_joiner_that_gives_up_detaches() {
    loom::model(|| {
        let (item, mut task, _, result) = made();
        let worker = run(item);
        if task.wait(Timeout::After(std::time::Duration::from_millis(1))) {
            drop(task.take().unwrap());
        }
        drop(task);
        worker.join().unwrap();
        assert_eq!(result.load(Ordering::Relaxed), 1);
    });
}

struct Flag(AtomicUsize);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn flag() -> std::sync::Arc<Flag> {
    std::sync::Arc::new(Flag(AtomicUsize::new(0)))
}

/// C4: of two wakers given one after the other the second is woken, whenever the item ends.
#[test]
fn loom_c4_the_newest_waker_is_woken() {
    loom::model(|| {
        let (item, mut task, ..) = made();
        let worker = run(item);
        let flags = [flag(), flag()];
        let mut ready = false;
        for f in &flags {
            let waker = Waker::from(f.clone());
            if let Poll::Ready(r) = task.poll(&mut Context::from_waker(&waker)) {
                drop(r.unwrap());
                ready = true;
                break;
            }
        }
        worker.join().unwrap();
        if !ready {
            assert_eq!(
                flags[1].0.load(Ordering::Relaxed),
                1,
                "the newest waker is woken"
            );
            let waker = Waker::from(flag());
            assert!(task.poll(&mut Context::from_waker(&waker)).is_ready());
        }
        drop(task);
    });
}

/// C4 and C3: polled, then dropped, while the item ends.
#[test]
fn loom_c3_c4_a_polled_handle_is_dropped() {
    loom::model(|| {
        let (item, mut task, _, result) = made();
        let worker = run(item);
        let f = flag();
        let waker = Waker::from(f.clone());
        if let Poll::Ready(r) = task.poll(&mut Context::from_waker(&waker)) {
            drop(r);
        }
        drop(task);
        worker.join().unwrap();
        assert_eq!(result.load(Ordering::Relaxed), 1);
        assert!(f.0.load(Ordering::Relaxed) <= 1);
    });
}

/// C1, C2: a cancel ends the task as a run does; the joiner learns it, the closure is dropped once.
#[test]
fn loom_c1_c2_a_cancelled_task_tells_its_joiner() {
    loom::model(|| {
        let (item, mut task, captured, result) = made();
        // SAFETY: the queue's side, once.
        let canceller = thread::spawn(move || unsafe { item.discard(Dropped::Cancelled) });
        assert!(task.wait(Timeout::Never));
        assert!(task.take().is_err());
        assert_eq!(captured.load(Ordering::Relaxed), 1);
        assert_eq!(result.load(Ordering::Relaxed), 1, "it was captured, too");
        drop(task);
        canceller.join().unwrap();
    });
}
