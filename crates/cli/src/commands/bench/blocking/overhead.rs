//! What detection costs: a worker that computes, one that switches all the time, computing items beside sleeping ones.

use super::hog::{Group, Hog};
use super::spread_json;
use anyhow::Context;
use cmwq_measure::spin::{Rate, chain};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Length of a computing item.
const COMPUTE: Duration = Duration::from_millis(20);
/// Context switches of a switching item.
const SWITCHES: u32 = 2000;
/// Sleeping items beside computing ones.
const SLEEPERS: usize = 64;
/// How long a foreign process in another cgroup is watched.
const WATCHED: Duration = Duration::from_millis(400);

/// Ratios of each round, detection on to detection off.
#[derive(Default)]
pub(super) struct Costs {
    computing: Vec<f64>,
    switching: Vec<f64>,
    switching_records: Vec<f64>,
    switch_ns: Vec<f64>,
    beside_sleepers: Vec<f64>,
    hog: Vec<f64>,
    hog_why: Option<String>,
    sentinel_share: Vec<f64>,
}

impl Costs {
    pub(super) fn round(&mut self, cpu: u32, tell: bool) -> anyhow::Result<()> {
        let steps = steps_for(COMPUTE);
        let run = |d: &cmwq::Detectors, item: fn(u64)| timed(d.clone(), cpu, item, steps, 0);
        let (off, on) = (cmwq::Detectors::none(), cmwq::Detectors::new());
        let records = cmwq::Detectors::new().records(true);
        let compute = |steps: u64| {
            chain(steps);
        };
        let (a, b) = (run(&off, compute)?, run(&on, compute)?);
        self.computing.push(b / a);
        let switch = |_: u64| switching();
        let (a, b, c) = (
            run(&off, switch)?,
            run(&on, switch)?,
            run(&records, switch)?,
        );
        self.switching.push(b / a);
        self.switching_records.push(c / a);
        self.switch_ns.push(a / f64::from(SWITCHES) * 1e9);
        let alone = timed(on.clone(), cpu, compute, steps, 0)?;
        let beside = timed(on, cpu, compute, steps, SLEEPERS)?;
        self.beside_sleepers.push(beside / alone);
        match Hog::start(cpu, Group::Other) {
            Ok(hog) => {
                let (off, _) = loss(&hog, cpu, cmwq::Detectors::none())?;
                let (on, sentinel) = loss(&hog, cpu, cmwq::Detectors::new())?;
                self.hog.push(on / off);
                self.sentinel_share.push(sentinel);
            }
            Err(e) => {
                if tell {
                    eprintln!("skipped: what a process in another cgroup loses: {e:#}");
                }
                self.hog_why = Some(format!("{e:#}"));
            }
        }
        Ok(())
    }

    /// Ratios: 1.02 is two per cent more time.
    pub(super) fn json(&self) -> Value {
        json!({
            "computing_x": spread_json(&self.computing),
            "switching_x": spread_json(&self.switching),
            "switching_with_records_x": spread_json(&self.switching_records),
            "switch_ns": spread_json(&self.switch_ns),
            "beside_sleepers_x": spread_json(&self.beside_sleepers),
            // CPU time that a process in another cgroup gets, with detection to without; the sentinels' share of a CPU meanwhile.
            "foreign_cpu_x": spread_json(&self.hog),
            "foreign_skipped": self.hog_why,
            "sentinel_share": spread_json(&self.sentinel_share),
        })
    }
}

/// How long an item takes on `cpu`'s pool, s, with another item waiting behind it (so that detection is at work), and this many
/// sleeping items that have been noticed.
fn timed(
    detectors: cmwq::Detectors,
    cpu: u32,
    item: fn(u64),
    steps: u64,
    sleepers: usize,
) -> anyhow::Result<f64> {
    let rt = cmwq::Runtime::builder().detectors(detectors).build()?;
    let wq = rt.workqueue("cost").per_cpu().build()?;
    let awake = Arc::new(AtomicBool::new(false));
    let spawn =
        |f: Box<dyn FnOnce() -> f64 + Send>| wq.try_spawn_on(cpu as usize, f).map_err(|e| e.error);
    let mut sleeping = Vec::new();
    for _ in 0..sleepers {
        let awake = Arc::clone(&awake);
        sleeping.push(spawn(Box::new(move || {
            while !awake.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(200));
            }
            0.0
        }))?);
    }
    // Its turn comes when all of them have been noticed.
    let first = spawn(Box::new(|| 0.0))?;
    first.join().context("an item behind sleeping ones")?;
    let timed = spawn(Box::new(move || {
        let began = cpu_time();
        item(steps);
        (cpu_time() - began).as_secs_f64()
    }))?;
    let behind = spawn(Box::new(|| 0.0))?;
    let seconds = timed.join().context("the measured item")?;
    behind.join().context("the item behind")?;
    awake.store(true, Ordering::Relaxed);
    for s in sleeping {
        s.join().context("a sleeping item")?;
    }
    wq.destroy()?;
    Ok(seconds)
}

/// What share of the CPU the process gets beside an item that computes with another one behind it, and the sentinels' share.
fn loss(hog: &Hog, cpu: u32, detectors: cmwq::Detectors) -> anyhow::Result<(f64, f64)> {
    let rt = cmwq::Runtime::builder().detectors(detectors).build()?;
    let wq = rt.workqueue("cost").per_cpu().build()?;
    let spin = |time: Duration| {
        move || {
            let began = Instant::now();
            while began.elapsed() < time {
                std::hint::spin_loop();
            }
        }
    };
    let first = wq
        .try_spawn_on(cpu as usize, spin(WATCHED + Duration::from_millis(100)))
        .map_err(|e| e.error)?;
    let second = wq
        .try_spawn_on(cpu as usize, spin(Duration::ZERO))
        .map_err(|e| e.error)?;
    // Detection is at work by then.
    std::thread::sleep(Duration::from_millis(30));
    let (began, before) = (Instant::now(), hog.cpu_time()?);
    std::thread::sleep(WATCHED);
    let (used, wall) = (hog.cpu_time()?.saturating_sub(before), began.elapsed());
    let sentinels: Duration = rt
        .detection()
        .iter()
        .filter(|d| d.name == "sentinel")
        .map(|d| d.cpu)
        .sum();
    first.join().context("an item beside a process")?;
    second.join().context("an item behind it")?;
    wq.destroy()?;
    let share = |d: Duration| d.as_secs_f64() / wall.as_secs_f64();
    Ok((share(used), share(sentinels)))
}

/// CPU time of this thread: what others take from the CPU does not count, what detection adds to the thread does.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Sleeps for a moment again and again.
fn switching() {
    for _ in 0..SWITCHES {
        std::thread::park_timeout(Duration::from_nanos(1));
    }
}

/// Steps of the chain that take this long on an undisturbed CPU; the rate is measured once.
pub(super) fn steps_for(time: Duration) -> u64 {
    static RATE: OnceLock<Rate> = OnceLock::new();
    RATE.get_or_init(Rate::measure).steps(time)
}
