//! Computing for a known time: a chain of dependent multiplications, so many per microsecond, measured once and used for every
//! candidate, so that all compute the same.

use std::time::{Duration, Instant};

/// How fast this machine's CPUs run the chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Steps of the chain in a microsecond.
    pub steps_per_us: f64,
}

impl Rate {
    /// The fastest of many short runs: noise only ever slows one down. Takes about 40 ms.
    pub fn measure() -> Self {
        const STEPS: u64 = 200_000;
        let best = (0..60)
            .map(|_| {
                let began = Instant::now();
                chain(STEPS);
                began.elapsed()
            })
            .min()
            .unwrap_or(Duration::from_micros(STEPS));
        Self {
            steps_per_us: STEPS as f64 / (best.as_nanos().max(1) as f64 / 1000.0),
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
