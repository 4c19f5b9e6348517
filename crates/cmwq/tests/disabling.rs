//! disable and enable with depth (kernel semantics: 1.3, 2.7; bug list 52).

mod common;

use cmwq::{EnableQueueError, QueueError, Queued, Work};
use common::*;

fn counting() -> (Work, Count) {
    let n = Count::new();
    let c = n.clone();
    let w = Work::with_name("counting", move |_| {
        c.up();
    });
    (w, n)
}

#[test]
fn a_disabled_item_is_refused_by_name_until_enabled_as_often() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    assert!(!w.disable(), "it was idle");
    assert!(!w.disable());
    assert_eq!(w.disable_depth(), 2);
    let e = wq.queue(&w).unwrap_err();
    assert_eq!(
        e,
        QueueError::Disabled {
            depth: 2,
            item: "counting"
        }
    );
    assert!(!w.enable().unwrap());
    assert!(wq.queue(&w).is_err());
    assert!(w.enable().unwrap());
    assert_eq!(wq.queue(&w).unwrap(), Queued::New);
    wq.flush().unwrap();
    assert_eq!((n.get(), wq.stats().refused), (1, 2));
}

#[test]
fn disabling_cancels_what_is_pending_and_enabling_queues_nothing() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    drop(wq.spawn(move || g.pass()));
    let (w, n) = counting();
    wq.queue(&w).unwrap();
    assert!(w.disable(), "it was pending");
    assert!(w.enable().unwrap());
    gate.open();
    wq.flush().unwrap();
    assert_eq!(n.get(), 0);
}

/// Bug list 52: the kernel's unmatched enable drops a pending item.
#[test]
fn enable_without_disable_is_an_error_and_drops_nothing() {
    let rt = runtime();
    let wq = rt.workqueue("t").ordered().build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    drop(wq.spawn(move || g.pass()));
    let (w, n) = counting();
    assert!(w.enable().is_err());
    wq.queue(&w).unwrap();
    let e = w.enable().unwrap_err();
    assert!(e.to_string().contains("counting"), "{e}");
    assert!(w.is_pending());
    assert!(matches!(
        w.enable_and_queue(&wq),
        Err(EnableQueueError::NotDisabled(_))
    ));
    gate.open();
    wq.flush().unwrap();
    assert_eq!(n.get(), 1);
}

#[test]
fn enable_and_queue_queues_when_the_depth_is_zero() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let (w, n) = counting();
    w.disable();
    w.disable();
    assert_eq!(w.enable_and_queue(&wq), Ok(None));
    assert_eq!(w.enable_and_queue(&wq), Ok(Some(Queued::New)));
    wq.flush().unwrap();
    assert_eq!(n.get(), 1);
    w.disable();
    wq.close();
    let e = w.enable_and_queue(&wq).unwrap_err();
    assert!(
        matches!(&e, EnableQueueError::Queue(QueueError::Closed { .. })),
        "{e}"
    );
    assert_eq!(w.disable_depth(), 0, "it is enabled all the same");
}

#[test]
fn disable_sync_waits_and_keeps_a_self_requeuer_stopped() {
    within("disable_sync", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let n = Count::new();
        let (c, q) = (n.clone(), wq.clone());
        let w = Work::new(move |w| {
            c.up();
            let _ = q.queue(w);
        });
        wq.queue(&w).unwrap();
        eventually("it goes round", || n.get() > 10);
        w.disable_sync().unwrap();
        let stopped_at = n.get();
        assert!(!w.busy().running && !w.busy().pending);
        wq.drain().unwrap();
        assert_eq!(n.get(), stopped_at);
        assert!(w.enable().unwrap());
        wq.queue(&w).unwrap();
        eventually("it goes round again", || n.get() > stopped_at + 10);
        w.cancel_sync().unwrap();
    });
}

#[test]
fn a_running_item_may_disable_itself() {
    let rt = runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let n = Count::new();
    let (c, q) = (n.clone(), wq.clone());
    let w = Work::new(move |w| {
        q.queue(w).unwrap();
        assert!(
            w.disable(),
            "takes the instance out that it has just queued"
        );
        assert!(q.queue(w).is_err());
        c.up();
    });
    wq.queue(&w).unwrap();
    wq.flush().unwrap();
    assert_eq!((n.get(), w.disable_depth(), wq.stats().panicked), (1, 1, 0));
}

/// The depth saturates at 65535 (the kernel's kerneldoc says 65536).
#[test]
fn the_depth_saturates() {
    let (w, _) = counting();
    for _ in 0..65_540 {
        w.disable();
    }
    assert_eq!(w.disable_depth(), 65_535);
    for _ in 0..65_534 {
        assert!(!w.enable().unwrap());
    }
    assert!(w.enable().unwrap());
    assert!(w.enable().is_err());
}

#[test]
fn racing_disables_and_enables_balance() {
    within("racing disables", || {
        let rt = runtime();
        let wq = rt.workqueue("t").build().unwrap();
        let (w, n) = counting();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for i in 0..500 {
                        if i % 2 == 0 {
                            w.disable();
                        } else {
                            w.disable_sync().unwrap();
                        }
                        w.enable().unwrap();
                        let _ = wq.queue(&w);
                    }
                });
            }
        });
        assert_eq!(w.disable_depth(), 0);
        wq.flush().unwrap();
        let s = wq.stats();
        assert_eq!(s.completed as usize, n.get());
        assert_eq!(s.queued, s.completed + s.cancelled);
    });
}
