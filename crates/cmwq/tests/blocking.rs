//! Blocked workers are noticed without being told.

use cmwq::{DetectorState, Detectors, Runtime, RuntimeBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Two CPUs' worth of pool on whatever machine this is.
fn builder() -> RuntimeBuilder {
    Runtime::builder()
}

fn spin(d: Duration) {
    let t = Instant::now();
    while t.elapsed() < d {
        std::hint::spin_loop();
    }
}

struct Mix {
    computed: Duration,
    threads: usize,
}

/// 16 sleepers of 4 ms and 64 computing items of 50 us behind them.
fn mix(rt: &Runtime, wq: &cmwq::Workqueue) -> Mix {
    let left = Arc::new(AtomicU64::new(64));
    let main = std::thread::current();
    let start = Instant::now();
    let mut handles = Vec::new();
    for _ in 0..16 {
        handles.push(wq.spawn(|| std::thread::sleep(Duration::from_millis(4))));
    }
    for _ in 0..64 {
        let (left, main) = (left.clone(), main.clone());
        handles.push(wq.spawn(move || {
            spin(Duration::from_micros(50));
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                main.unpark();
            }
        }));
    }
    while left.load(Ordering::SeqCst) > 0 {
        std::thread::park();
    }
    let computed = start.elapsed();
    let threads = rt.threads();
    handles.into_iter().for_each(|h| h.join().unwrap());
    Mix { computed, threads }
}

#[test]
fn computing_items_do_not_wait_for_sleeping_ones() {
    let rt = builder().build().unwrap();
    let wq = rt.workqueue("mix").build().unwrap();
    for round in 0..20 {
        let m = mix(&rt, &wq);
        println!("round {round}: {:?}, {} threads", m.computed, m.threads);
    }
    for d in rt.detection() {
        println!("{d:?}");
    }
    println!("{:?}", rt.thread_counts());
}
