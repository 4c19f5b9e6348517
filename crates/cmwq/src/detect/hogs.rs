//! Items that keep their CPU: found by the thread's CPU clock while others wait, reported with growing distance.
//!
//! The clock is read first when an item has run for about a tick; from then on its on-CPU time counts. Time before that is not
//! seen, and sleeping (a worker that was found blocked) starts it anew, as in the kernel.

use super::confirm::Noted;
use super::report::{HogReport, Report};
use crate::control::probe;
use crate::pool::{RtPool, link_of};
use crate::runtime::RtInner;
use crate::shim::leaf::OnceLock;
use crate::sys::cpu;
use cmwq_policy::pool::{HogVerdict, WorkerState};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Default threshold (kernel: wq_cpu_intensive_thresh_us, 10 ms).
const THRESHOLD_NS: u64 = 10_000_000;
/// Machines slower than this get a longer one (kernel: BogoMIPS below 4000 scale it up, to 1 s at most).
const FULL_SPEED_BOGOMIPS: f64 = 4000.0;
const LONGEST_NS: u64 = 1_000_000_000;
/// The first report comes with this many finds of one function (kernel: cpu_intensive_warning_thresh, 4).
pub(super) const WARN_AT: u32 = 4;
/// Items younger than this are not looked at, ns.
const YOUNG_NS: u64 = 1_000_000;

/// On-CPU time that makes an item a hog on this machine, ns.
pub(super) fn threshold_ns() -> u64 {
    static NS: OnceLock<u64> = OnceLock::new();
    *NS.get_or_init(|| {
        scaled(bogomips(
            &std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default(),
        ))
    })
}

/// The kernel scales by BogoMIPS on x86 only, where they follow the clock rate; elsewhere they count timer ticks and say
/// nothing about speed.
fn bogomips(cpuinfo: &str) -> Option<f64> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    cpuinfo.lines().find_map(|l| {
        l.strip_prefix("bogomips")?
            .split(':')
            .nth(1)?
            .trim()
            .parse()
            .ok()
    })
}

fn scaled(bogomips: Option<f64>) -> u64 {
    match bogomips {
        Some(b) if b > 0.0 && b < FULL_SPEED_BOGOMIPS => {
            ((THRESHOLD_NS as f64 * FULL_SPEED_BOGOMIPS / b) as u64).min(LONGEST_NS)
        }
        _ => THRESHOLD_NS,
    }
}

/// Whether the `n`-th find of one function is reported: with `warn_at` 4 that is 4, 5, 7, 11, 19, 35, ...; with 0 none.
fn is_reported(n: u64, warn_at: u32) -> bool {
    let first = u64::from(warn_at);
    first > 0 && n >= first && (n + 1 - first).is_power_of_two()
}

/// Looks at the noted workers.
pub(super) fn look(rt: &RtInner, pool: &'static RtPool, noted: &[Noted]) {
    for n in noted.iter().filter(|n| n.state == WorkerState::Running) {
        let ran = rt.time.now().saturating_sub(n.mark.start);
        if ran < YOUNG_NS {
            continue;
        }
        let Ok(cpu) = cpu::thread_cpu_time(n.shared.tid.load(Ordering::Relaxed)) else {
            continue;
        };
        let cpu = cpu.as_nanos() as u64;
        let e = &n.shared.evidence;
        if e.hog_mark.swap(n.mark.start, Ordering::Relaxed) != n.mark.start {
            e.hog_base.store(cpu, Ordering::Relaxed);
            continue;
        }
        let used = cpu.saturating_sub(e.hog_base.load(Ordering::Relaxed));
        if used < rt.detect.hog_ns.load(Ordering::Relaxed) {
            continue;
        }
        let hog = pool.with_tick(|p, drv| {
            if n.shared.batch.mark().start != n.mark.start {
                return None;
            }
            let now = drv.now();
            if p.mark_hog(n.id, now, drv) == HogVerdict::Known {
                return None;
            }
            let entry = p.worker(n.id)?.taken().first().and_then(|&e| p.entry(e))?;
            // SAFETY: the pool's lock is held and the entry's pwq is linked.
            Some(
                unsafe { link_of(p.pwq(entry.pwq).tag) }
                    .wq
                    .name()
                    .to_string(),
            )
        });
        if let Some(queue) = hog {
            rt.widen(pool, n.id);
            rt.detect.counts.hogs.fetch_add(1, Ordering::Relaxed);
            let item = n.shared.item_name();
            let found = rt.detect.reports.count_hog(item);
            probe::cpu_intensive(rt, &n.shared, item);
            if is_reported(found, rt.detect.warn_at.load(Ordering::Relaxed)) {
                rt.detect.reports.send(&Report::Hog(HogReport {
                    queue,
                    item,
                    tid: n.shared.tid.load(Ordering::Relaxed),
                    on_cpu: Duration::from_nanos(used),
                    found,
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_with_the_kernels_distances() {
        let told: Vec<u64> = (1..=40).filter(|n| is_reported(*n, WARN_AT)).collect();
        assert_eq!(told, [4, 5, 7, 11, 19, 35]);
        let told: Vec<u64> = (1..=20).filter(|n| is_reported(*n, 1)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16]);
        assert!((0..=40).all(|n| !is_reported(n, 0)), "0 is silent");
    }

    #[test]
    fn a_slow_machine_has_a_longer_threshold() {
        assert_eq!(scaled(Some(5000.0)), 10_000_000);
        assert_eq!(scaled(None), 10_000_000);
        assert_eq!(scaled(Some(1000.0)), 40_000_000);
        assert_eq!(scaled(Some(1.0)), 1_000_000_000);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(bogomips("x\t: 1\nbogomips\t: 4599.99\n"), Some(4599.99));
        }
    }
}
