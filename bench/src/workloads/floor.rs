//! What the machine itself takes for the steps that every pool consists of, measured in the same run: absolute times mean something only
//! beside these.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cmwq_measure::{Latency, Observation, stats};

use super::{Metric, figures, since};

/// The figures and their units.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "clock_ns",
        unit: "ns",
        head: "clock read ns",
        compared: false,
    },
    Metric {
        name: "cache_line_ns",
        unit: "ns",
        head: "cache line there and back ns",
        compared: false,
    },
    Metric {
        name: "wake_p50_us",
        unit: "us",
        head: "wake a parked thread p50 us",
        compared: false,
    },
    Metric {
        name: "wake_p99_us",
        unit: "us",
        head: "p99 us",
        compared: false,
    },
    Metric {
        name: "thread_us",
        unit: "us",
        head: "new thread runs us",
        compared: false,
    },
];

/// Measures the floor; about half a second.
///
/// # Errors
/// When a thread cannot be started.
pub fn measure(quick: bool) -> Result<Observation> {
    let wake = wake(if quick { 100 } else { 500 })?;
    Ok(figures([
        ("clock_ns", clock()),
        (
            "cache_line_ns",
            cache_line(if quick { 20_000 } else { 200_000 })?,
        ),
        ("wake_p50_us", wake.percentile_us(50.0).unwrap_or_default()),
        ("wake_p99_us", wake.percentile_us(99.0).unwrap_or_default()),
        ("thread_us", thread_start()?),
    ]))
}

fn clock() -> f64 {
    let began = Instant::now();
    for _ in 0..10_000 {
        std::hint::black_box(Instant::now());
    }
    began.elapsed().as_nanos() as f64 / 10_000.0
}

/// Two threads that spin hand one word to and fro.
fn cache_line(rounds: u64) -> Result<f64> {
    let word = Arc::new(AtomicU64::new(0));
    let other = Arc::clone(&word);
    // On one CPU spinning alone would wait for whole time slices.
    let turn = |word: &AtomicU64, wanted: u64| {
        let mut spins = 0_u32;
        while word.load(Ordering::Relaxed) != wanted {
            spins += 1;
            if spins.is_multiple_of(10_000) {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
        word.store(wanted + 1, Ordering::Relaxed);
    };
    let partner =
        thread::Builder::new().spawn(move || (0..rounds).for_each(|i| turn(&other, 2 * i + 1)))?;
    turn(&word, 0);
    let began = Instant::now();
    (1..rounds).for_each(|i| turn(&word, 2 * i));
    let time = began.elapsed();
    partner
        .join()
        .map_err(|_| anyhow::anyhow!("the partner thread panicked"))?;
    Ok(time.as_nanos() as f64 / (rounds - 1) as f64)
}

/// From unparking a thread that has been parked for a millisecond until it runs.
fn wake(rounds: u64) -> Result<Latency> {
    let base = Instant::now();
    let (sent, stop) = (Arc::new(AtomicU64::new(0)), u64::MAX);
    let inbox = Arc::clone(&sent);
    let sleeper = thread::Builder::new().spawn(move || {
        let mut latency = Latency::new();
        loop {
            thread::park();
            let now = since(base);
            // Ordering: SeqCst is not needed: unpark and park order the message (std guarantees it).
            match inbox.swap(0, Ordering::Relaxed) {
                0 => {}
                u64::MAX => return latency,
                at => latency.record_ns(now.saturating_sub(at)),
            }
        }
    })?;
    for _ in 0..rounds {
        thread::sleep(Duration::from_millis(1));
        sent.store(since(base).max(1), Ordering::Relaxed);
        sleeper.thread().unpark();
    }
    thread::sleep(Duration::from_millis(5));
    sent.store(stop, Ordering::Relaxed);
    sleeper.thread().unpark();
    sleeper
        .join()
        .map_err(|_| anyhow::anyhow!("the sleeping thread panicked"))
}

/// From asking for a thread until it runs: the median of 50.
fn thread_start() -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..50 {
        let began = Instant::now();
        let thread = thread::Builder::new().spawn(move || began.elapsed())?;
        let time = thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        times.push(time.as_nanos() as f64 / 1000.0);
    }
    Ok(stats::median(&times).unwrap_or_default())
}
