//! Tests of the parker. Each names the invariant (P1..P4) that it proves.

use super::*;

#[cfg(not(any(loom, shuttle)))]
mod real {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use super::*;

    #[test]
    fn p2_several_unparks_are_one() {
        let p = Parker::new();
        assert!(!p.unpark());
        assert!(!p.unpark());
        assert!(p.park_timeout(Duration::from_secs(60)));
        assert!(!p.park_timeout(Duration::from_millis(1)));
    }

    #[test]
    fn times_out_and_leaves_no_trace() {
        let p = Parker::new();
        let start = Instant::now();
        assert!(!p.park_timeout(Duration::from_millis(10)));
        assert!(start.elapsed() >= Duration::from_millis(9));
        assert!(!p.park_until(Duration::from_nanos(1)));
        assert!(!p.is_parked());
        assert!(p.prepare_unpark().is_none());
    }

    /// P1 and P3 with real threads: a ball that goes to and fro; a lost wake-up would hang.
    #[test]
    fn p1_ping_pong_never_hangs() {
        const ROUNDS: u64 = 5_000;
        let ball = Arc::new((AtomicU64::new(0), Parker::new(), Parker::new()));
        let other = Arc::clone(&ball);
        let t = std::thread::spawn(move || {
            for i in 0..ROUNDS {
                while other.0.load(Ordering::Relaxed) != 2 * i + 1 {
                    other.1.park();
                }
                other.0.store(2 * i + 2, Ordering::Relaxed);
                if let Some(token) = other.2.prepare_unpark() {
                    token.wake();
                }
            }
        });
        for i in 0..ROUNDS {
            ball.0.store(2 * i + 1, Ordering::Relaxed);
            ball.1.unpark();
            while ball.0.load(Ordering::Relaxed) != 2 * i + 2 {
                ball.2.park();
            }
        }
        t.join().unwrap();
    }

    #[test]
    fn p1_dropping_a_token_wakes_too() {
        let p = Arc::new(Parker::new());
        let q = Arc::clone(&p);
        let t = std::thread::spawn(move || q.park());
        while !p.is_parked() {
            std::thread::yield_now();
        }
        drop(p.prepare_unpark());
        t.join().unwrap();
    }

    #[test]
    fn p4_a_token_may_outlive_its_parker() {
        let p = Arc::new(Parker::new());
        let q = Arc::clone(&p);
        let t = std::thread::spawn(move || while !q.park_timeout(Duration::from_millis(1)) {});
        let token = loop {
            if let Some(token) = p.prepare_unpark() {
                break Some(token);
            }
            if t.is_finished() {
                break None;
            }
        };
        t.join().unwrap();
        drop(p);
        drop(token);
    }
}

#[cfg(loom)]
mod loom_models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    use super::*;

    struct Shared {
        parker: Parker,
        data: UnsafeCell<u32>,
    }

    // SAFETY: `data` is written before the unpark and read after the park; loom checks exactly that.
    unsafe impl Sync for Shared {}
    // SAFETY: nothing in it is bound to a thread.
    unsafe impl Send for Shared {}

    #[test]
    fn loom_p1_p3_park_sees_what_came_before_unpark() {
        loom::model(|| {
            let s = Arc::new(Shared {
                parker: Parker::new(),
                data: UnsafeCell::new(0),
            });
            let t = Arc::clone(&s);
            let waker = loom::thread::spawn(move || {
                // SAFETY: see `Shared`.
                t.data.with_mut(|d| unsafe { *d = 7 });
                t.parker.unpark();
            });
            s.parker.park();
            // SAFETY: see `Shared`.
            s.data.with(|d| assert_eq!(unsafe { *d }, 7));
            waker.join().unwrap();
        });
    }

    #[test]
    fn loom_p1_two_wakers_two_parks() {
        // Three threads: all schedules with up to three preemptions, which is where such errors show.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let p = Arc::new(Parker::new());
            let count = Arc::new(AtomicUsize::new(0));
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let (p, count) = (Arc::clone(&p), Arc::clone(&count));
                    loom::thread::spawn(move || {
                        count.fetch_add(1, Ordering::Relaxed);
                        p.unpark();
                    })
                })
                .collect();
            while count.load(Ordering::Relaxed) < 2 {
                p.park();
            }
            for w in wakers {
                w.join().unwrap();
            }
        });
    }

    /// The shape of the runtime: decide under a lock, wake after it, the sleeper looks under the lock.
    #[test]
    fn loom_p1_p4_deferred_token_after_the_lock() {
        loom::model(|| {
            let s = Arc::new((crate::shim::Mutex::new(0_u32), Parker::new()));
            let t = Arc::clone(&s);
            let waker = loom::thread::spawn(move || {
                for _ in 0..2 {
                    let token = {
                        let mut items = t.0.lock();
                        *items += 1;
                        t.1.prepare_unpark()
                    };
                    drop(token);
                }
            });
            let mut taken = 0;
            while taken < 2 {
                let got = std::mem::take(&mut *s.0.lock());
                if got == 0 {
                    s.1.park();
                }
                taken += got;
            }
            waker.join().unwrap();
        });
    }

    /// P1 and P2 across a timeout: one unpark is seen exactly once, by the park that gives up or by the next.
    #[test]
    fn loom_p2_an_unpark_at_the_timeout_is_kept() {
        loom::model(|| {
            let p = Arc::new(Parker::new());
            let q = Arc::clone(&p);
            let waker = loom::thread::spawn(move || {
                q.unpark();
            });
            let first = p.park_timeout(Duration::from_millis(1));
            waker.join().unwrap();
            let second = p.park_timeout(Duration::from_millis(1));
            assert!(
                first ^ second,
                "one unpark, seen {} times",
                u8::from(first) + u8::from(second)
            );
        });
    }
}

#[cfg(shuttle)]
mod shuttle_models {
    use shuttle::sync::Arc;
    use shuttle::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn shuttle_p1_many_wakers() {
        shuttle::check_random(
            || {
                let p = Arc::new(Parker::new());
                let count = Arc::new(AtomicUsize::new(0));
                let wakers: Vec<_> = (0..5)
                    .map(|_| {
                        let (p, count) = (Arc::clone(&p), Arc::clone(&count));
                        shuttle::thread::spawn(move || {
                            count.fetch_add(1, Ordering::SeqCst);
                            drop(p.prepare_unpark());
                        })
                    })
                    .collect();
                while count.load(Ordering::SeqCst) < 5 {
                    p.park();
                }
                for w in wakers {
                    w.join().unwrap();
                }
            },
            2_000,
        );
    }
}
