//! A foreign process that keeps a CPU busy, and how long a woken thread waits beside it.

use super::groups;
use anyhow::{Context, bail};
use cmwq_measure::Latency;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where a hog runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// In the cgroup of this process.
    Same,
    /// In one of its own, made for the purpose.
    Other,
}

/// A process that keeps a CPU busy until this is dropped.
pub(super) struct Hog {
    child: Child,
    group: Option<PathBuf>,
}

impl Hog {
    pub(super) fn start(cpu: u32, group: Group) -> anyhow::Result<Hog> {
        let dir = match group {
            Group::Same => None,
            Group::Other => Some(groups::make("hog", &[])?),
        };
        let child = Command::new(std::env::current_exe()?)
            .args(["bench", "blocking", "--hog", &cpu.to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .context("starting a process that keeps a CPU busy");
        let child = match child {
            Ok(c) => c,
            Err(e) => {
                groups::remove(dir.as_deref());
                return Err(e);
            }
        };
        let hog = Hog { child, group: dir };
        if let Some(dir) = &hog.group {
            let file = dir.join("cgroup.procs");
            std::fs::write(&file, hog.child.id().to_string())
                .with_context(|| format!("moving a process: {}", file.display()))?;
        }
        // It is busy by then.
        std::thread::sleep(Duration::from_millis(50));
        Ok(hog)
    }
}

impl Hog {
    /// CPU time of the thread that is busy.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let file = format!("/proc/{}/schedstat", self.child.id());
        let text = std::fs::read_to_string(&file).context(file)?;
        let ns = text.split_whitespace().next().context("no time")?;
        Ok(Duration::from_nanos(ns.parse()?))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
        groups::remove(self.group.as_deref());
    }
}

/// The hog's own main function.
pub(super) fn be_one(cpu: u32) -> anyhow::Result<()> {
    pin_self(cpu)?;
    std::thread::Builder::new().spawn(|| {
        // Whoever started it is gone when this ends.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    })?;
    loop {
        std::hint::spin_loop();
    }
}

/// CPUs that this process may use, ascending.
pub(super) fn usable_cpus() -> anyhow::Result<Vec<u32>> {
    let set = sched_getaffinity(None).context("sched_getaffinity")?;
    let cpus: Vec<u32> = (0..CpuSet::MAX_CPU)
        .filter(|&c| set.is_set(c))
        .map(|c| c as u32)
        .collect();
    if cpus.is_empty() {
        bail!("none of the first {} CPUs may be used", CpuSet::MAX_CPU);
    }
    Ok(cpus)
}

/// Binds the calling thread.
pub(super) fn pin_self(cpu: u32) -> anyhow::Result<()> {
    pin_self_to(&[cpu])
}

/// Binds the calling thread to several CPUs.
pub(super) fn pin_self_to(cpus: &[u32]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for &c in cpus {
        set.set(c as usize);
    }
    sched_setaffinity(None, &set).with_context(|| format!("binding to CPU {cpus:?}"))
}

/// How long an ordinary thread, woken on this CPU, waits for it.
pub(super) fn wake_delay(cpu: u32, n: usize) -> anyhow::Result<Latency> {
    let base = Instant::now();
    let now = move || base.elapsed().as_nanos() as u64;
    let called_at = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let answers = Arc::new(AtomicU64::new(0));
    let (called, end, answered) = (called_at.clone(), stop.clone(), answers.clone());
    let sleeper = std::thread::Builder::new().spawn(move || {
        pin_self(cpu)?;
        let mut latency = Latency::new();
        loop {
            // Ordering: pairs with the caller's Release.
            let at = called.swap(0, Ordering::Acquire);
            if at != 0 {
                latency.record_ns(now() - at);
                // Ordering: Release: the recording is over.
                answered.fetch_add(1, Ordering::Release);
                continue;
            }
            // Ordering: pairs with the Release of `stop`.
            if end.load(Ordering::Acquire) {
                return Ok(latency);
            }
            std::thread::park();
        }
    })?;
    for i in 0..n as u64 {
        std::thread::sleep(Duration::from_micros(300));
        // Ordering: Release pairs with the sleeper's Acquire.
        called_at.store(now().max(1), Ordering::Release);
        sleeper.thread().unpark();
        // Ordering: pairs with the sleeper's Release.
        while answers.load(Ordering::Acquire) <= i {
            std::thread::sleep(Duration::from_micros(200));
            if sleeper.is_finished() {
                break;
            }
        }
    }
    // Ordering: Release pairs with the sleeper's Acquire.
    stop.store(true, Ordering::Release);
    sleeper.thread().unpark();
    sleeper
        .join()
        .unwrap_or_else(|p| std::panic::resume_unwind(p))
}
