//! From an item blocking to the next item running on its CPU.

use super::Mechanism;
use anyhow::{Context, bail};
use cmwq_measure::Latency;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Runs that are not counted.
const WARM_UP: usize = 10;
/// A run that takes longer is an error.
const LIMIT: Duration = Duration::from_secs(20);

/// `n` hand-overs on `cpu`. `pin` binds the issuing thread elsewhere, once the runtime has seen what the process may use.
pub(super) fn round(
    mechanism: Mechanism,
    cpu: u32,
    n: usize,
    pin: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Latency> {
    let rt = cmwq::Runtime::builder()
        .detectors(mechanism.detectors())
        .build()?;
    pin()?;
    let wq = rt.workqueue("handover").per_cpu().build()?;
    let mut latency = Latency::new();
    for i in 0..WARM_UP + n {
        let ns = once(mechanism, &wq, cpu)?;
        if i >= WARM_UP {
            latency.record_ns(ns);
        }
    }
    if let Some(why) = refused(&rt, mechanism) {
        bail!("refused: {why}");
    }
    wq.destroy()?;
    Ok(latency)
}

/// Why the mechanism was not what was measured, if so.
fn refused(rt: &cmwq::Runtime, mechanism: Mechanism) -> Option<String> {
    rt.detection()
        .into_iter()
        .find(|d| d.name == mechanism.name() && d.state == cmwq::DetectorState::Refused)
        .map(|d| d.reason)
}

struct Shared {
    base: Instant,
    /// The second item is queued.
    queued: AtomicBool,
    blocked_at: AtomicU64,
    started_at: AtomicU64,
    over: AtomicBool,
    blocked: OnceLock<Thread>,
}

impl Shared {
    fn now(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }
}

fn once(mechanism: Mechanism, wq: &cmwq::Workqueue, cpu: u32) -> anyhow::Result<u64> {
    let s = Arc::new(Shared {
        base: Instant::now(),
        queued: AtomicBool::new(false),
        blocked_at: AtomicU64::new(0),
        started_at: AtomicU64::new(0),
        over: AtomicBool::new(false),
        blocked: OnceLock::new(),
    });
    let a = Arc::clone(&s);
    let first = wq.try_spawn_on(cpu as usize, move || {
        let _ = a.blocked.set(std::thread::current());
        let began = Instant::now();
        // Ordering: pairs with the Release once the second item is queued.
        while !a.queued.load(Ordering::Acquire) && began.elapsed() < LIMIT {
            std::hint::spin_loop();
        }
        let park = || {
            a.blocked_at.store(a.now(), Ordering::Relaxed);
            // Ordering: pairs with the Release of the second item.
            while !a.over.load(Ordering::Acquire) && began.elapsed() < LIMIT {
                std::thread::park_timeout(LIMIT);
            }
        };
        if mechanism == Mechanism::Said {
            a.blocked_at.store(a.now(), Ordering::Relaxed);
            let before = a.now();
            cmwq::blocking(park);
            // Saying so is part of the hand-over.
            a.blocked_at.fetch_min(before, Ordering::Relaxed);
        } else {
            park();
        }
    });
    let first = first.map_err(|e| e.error)?;
    let b = Arc::clone(&s);
    let second = wq.try_spawn_on(cpu as usize, move || {
        b.started_at.store(b.now(), Ordering::Relaxed);
        // Ordering: Release: the start time above is seen.
        b.over.store(true, Ordering::Release);
        if let Some(t) = b.blocked.get() {
            t.unpark();
        }
    });
    let second = second.map_err(|e| e.error)?;
    // Ordering: Release pairs with the first item's Acquire.
    s.queued.store(true, Ordering::Release);
    second.join().context("the second item")?;
    first.join().context("the first item")?;
    let (from, to) = (
        s.blocked_at.load(Ordering::Relaxed),
        s.started_at.load(Ordering::Relaxed),
    );
    if s.now() > LIMIT.as_nanos() as u64 {
        bail!("the second item was not started within {LIMIT:?}");
    }
    Ok(to.saturating_sub(from))
}
