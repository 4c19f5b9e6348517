//! Ends of processes and runtimes, and `setuid`, beside busy processes: all of them wait for every thread of the process, so a
//! thread that gets no CPU could hold them up.

use super::hog::{Group, Hog};
use super::spread_json;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Busy processes.
const HOGS: usize = 3;
/// Samples of each kind a round.
const SAMPLES: usize = 2;
/// How long the process has lived by then.
const LIVED: Duration = Duration::from_secs(1);
const WAYS: [&str; 3] = ["exit", "shutdown", "setuid"];

/// Milliseconds, with sentinels and without.
#[derive(Default)]
pub(super) struct Leaves {
    on: [Vec<f64>; WAYS.len()],
    off: [Vec<f64>; WAYS.len()],
}

impl Leaves {
    pub(super) fn round(&mut self, cpus: &[u32]) -> anyhow::Result<()> {
        let hogs: Vec<Hog> = (0..HOGS)
            .map(|i| Hog::start(cpus[i % cpus.len()], Group::Same))
            .collect::<anyhow::Result<_>>()?;
        for _ in 0..SAMPLES {
            for (i, way) in WAYS.iter().enumerate() {
                self.off[i].push(one(way, false)?);
                self.on[i].push(one(way, true)?);
            }
        }
        drop(hogs);
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let ways = WAYS.iter().enumerate().map(|(i, way)| {
            let both =
                json!({ "on_ms": spread_json(&self.on[i]), "off_ms": spread_json(&self.off[i]) });
            ((*way).to_owned(), both)
        });
        Value::Object(ways.collect())
    }
}

/// A process whose sentinels are runnable leaves in this way: how long that takes, ms.
fn one(way: &str, detection: bool) -> anyhow::Result<f64> {
    let how = format!("{way},{}", if detection { "on" } else { "off" });
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "blocking", "--leave", &how])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a process that leaves")?;
    let mut line = String::new();
    let read = child
        .stdout
        .take()
        .context("its output")
        .and_then(|out| Ok(BufReader::new(out).read_line(&mut line)?));
    let began = Instant::now();
    let status = child.wait()?;
    read?;
    if !status.success() {
        bail!("a process that was to leave ({how}) ended with {status}");
    }
    if way == "exit" {
        return Ok(began.elapsed().as_secs_f64() * 1e3);
    }
    line.trim().parse().context("what a process that left says")
}

/// The main function of that process.
pub(super) fn leave(how: &str) -> anyhow::Result<()> {
    let (way, detection) = how.split_once(',').context("a way and on or off")?;
    let detectors = match detection {
        "on" => cmwq::Detectors::new(),
        // The tick finds the same workers, so there are as many of them.
        _ => cmwq::Detectors::new().sentinel(false),
    };
    let rt = cmwq::Runtime::builder().detectors(detectors).build()?;
    let wq = rt.workqueue("leaving").per_cpu().build()?;
    let over = Arc::new(AtomicBool::new(false));
    // Each CPU has an item that computes and some behind it, so that its sentinel is runnable.
    for cpu in super::hog::usable_cpus()? {
        for _ in 0..3 {
            let over = Arc::clone(&over);
            let spin = move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            wq.try_spawn_on(cpu as usize, spin)
                .map_err(|e| e.error)?
                .detach();
        }
    }
    std::thread::sleep(LIVED);
    let began = Instant::now();
    match way {
        "exit" => {
            println!("leaving");
            std::io::stdout().flush()?;
            std::process::exit(0);
        }
        "setuid" => {
            // SAFETY: to the user that it is already; the C library has all threads do it and waits for them.
            if unsafe { libc::setuid(libc::getuid()) } != 0 {
                bail!("setuid: {}", std::io::Error::last_os_error());
            }
        }
        "shutdown" => {
            over.store(true, Ordering::Relaxed);
            rt.shutdown()?;
        }
        _ => bail!("no such way: {way}"),
    }
    println!("{}", began.elapsed().as_secs_f64() * 1e3);
    std::io::stdout().flush()?;
    std::process::exit(0);
}
