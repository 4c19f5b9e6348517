//! A fan-out that is limited three ways: at most 8 requests at a time (`max_active`), at most 32 more waiting (`max_pending`),
//! and the limit is turned down while it runs.
//!
//! `cargo run -p cmwq --example fan_out`

use cmwq::{QueueError, Workqueue};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Something that waits for the network.
fn fetch(page: u32) -> u32 {
    MOST.fetch_max(NOW.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    // Says that it is about to block, so that another worker goes on at once; without it the pool would notice by itself.
    cmwq::blocking(|| std::thread::sleep(Duration::from_millis(2)));
    NOW.fetch_sub(1, Ordering::Relaxed);
    page * 10
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wq = Workqueue::builder("fetch")
        .max_active(8)
        .max_pending(32)
        .build()?;

    let mut results = Vec::new();
    let mut handles = std::collections::VecDeque::new();
    for page in 0..200 {
        let mut request = move || fetch(page);
        loop {
            match wq.try_spawn(request) {
                Ok(handle) => break handles.push_back(handle),
                // Full: the closure comes back. Take in the oldest result first, that makes room.
                Err(e) if matches!(e.error, QueueError::Full { .. }) => {
                    request = e.func;
                    results.push(handles.pop_front().expect("what is full waits").join()?);
                }
                Err(e) => return Err(e.error.into()),
            }
        }
        if page == 100 {
            wq.set_max_active(2)?;
        }
    }
    for handle in handles {
        results.push(handle.join()?);
    }
    assert_eq!(results, (0..200).map(|p| p * 10).collect::<Vec<_>>());
    println!(
        "{} pages, at most {} at a time; queue-to-start p50 {:?}, p99 {:?}",
        results.len(),
        MOST.load(Ordering::Relaxed),
        wq.stats().queue_to_start.quantile(0.5),
        wq.stats().queue_to_start.quantile(0.99),
    );
    assert!(MOST.load(Ordering::Relaxed) <= 8);
    wq.destroy()?;
    Ok(())
}
