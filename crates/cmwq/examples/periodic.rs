//! A task that comes back every few milliseconds, can be asked for at once, put off, and stopped for good.
//!
//! `cargo run -p cmwq --example periodic`

use cmwq::{DelayedWork, QueueError, Workqueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wq = Workqueue::builder("stats").build()?;
    let runs = Arc::new(AtomicU32::new(0));
    let sample = DelayedWork::new_cyclic({
        let (wq, runs) = (wq.clone(), Arc::clone(&runs));
        move |own| {
            runs.fetch_add(1, Ordering::Relaxed);
            match wq.queue_delayed(own, PERIOD) {
                // Disabled: somebody stops it. Draining or closed: the queue ends.
                Ok(_)
                | Err(
                    QueueError::Disabled { .. }
                    | QueueError::Draining { .. }
                    | QueueError::Closed { .. },
                ) => {}
                Err(e) => panic!("{e}"),
            }
        }
    });
    let start = Instant::now();
    wq.queue_delayed(&sample, PERIOD)?;
    while runs.load(Ordering::Relaxed) < 5 {
        std::thread::sleep(PERIOD);
    }
    println!("5 runs after {:?}", start.elapsed());
    assert!(start.elapsed() >= 5 * PERIOD, "never early");

    // Now, not in ten milliseconds: expires the timer and waits for the run.
    let before = runs.load(Ordering::Relaxed);
    sample.flush()?;
    assert!(runs.load(Ordering::Relaxed) > before || before > 5);

    // Not for an hour.
    wq.mod_delayed(&sample, Duration::from_secs(3600))?;

    // Never again: off its timer, and no run is left.
    sample.disable_sync()?;
    let stopped = runs.load(Ordering::Relaxed);
    std::thread::sleep(3 * PERIOD);
    assert_eq!(runs.load(Ordering::Relaxed), stopped);
    wq.destroy()?;
    println!("stopped after {stopped} runs");
    Ok(())
}
