//! Computing for a known time: a chain of dependent multiplications, so many per microsecond, measured once and used for every
//! candidate, so that all compute the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Length and number of the runs that are timed.
const STEPS: u64 = 200_000;
const RUNS: usize = 60;

/// How fast this machine's CPUs run the chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Steps of the chain in a microsecond.
    pub steps_per_us: f64,
}

impl Rate {
    /// The fastest of many short runs: noise only ever slows one down. Takes about 40 ms.
    pub fn measure() -> Self {
        Self::of(Self::sorted_runs()[0])
    }

    /// The median of as many runs while `others` other threads compute as well: what a CPU does when its neighbours, which may
    /// share a core with it, are busy.
    pub fn measure_beside(others: usize) -> Self {
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..others {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        chain(10_000);
                    }
                });
            }
            let runs = Self::sorted_runs();
            stop.store(true, Ordering::Relaxed);
            Self::of(runs[runs.len() / 2])
        })
    }

    /// What each of many short runs took.
    fn sorted_runs() -> [Duration; RUNS] {
        let mut runs = [Duration::ZERO; RUNS];
        for run in &mut runs {
            let began = Instant::now();
            chain(STEPS);
            *run = began.elapsed();
        }
        runs.sort_unstable();
        runs
    }

    fn of(run: Duration) -> Self {
        Self {
            steps_per_us: STEPS as f64 / (run.as_nanos().max(1) as f64 / 1000.0),
        }
    }

    /// Steps for this much computing.
    pub fn steps(&self, time: Duration) -> u64 {
        (time.as_secs_f64() * 1e6 * self.steps_per_us) as u64
    }

    /// Computes for about this long on an undisturbed CPU.
    pub fn compute(&self, time: Duration) {
        chain(self.steps(time));
    }
}

/// A chain of `steps` dependent operations.
pub fn chain(steps: u64) -> u64 {
    let mut x = 0x2545_F491_4F6C_DD1D_u64;
    for i in 0..steps {
        x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_time() {
        let rate = Rate {
            steps_per_us: 100.0,
        };
        assert_eq!(rate.steps(Duration::from_micros(50)), 5000);
        assert_eq!(rate.steps(Duration::ZERO), 0);
    }

    #[test]
    fn computing_takes_at_least_about_the_time_asked_for() {
        let rate = Rate::measure();
        assert!(rate.steps_per_us > 1.0);
        // The rate is the best of many; a run may be slower for any reason, but not much faster.
        let began = Instant::now();
        rate.compute(Duration::from_millis(5));
        assert!(
            began.elapsed() > Duration::from_millis(3),
            "{:?}",
            began.elapsed()
        );
    }
}
