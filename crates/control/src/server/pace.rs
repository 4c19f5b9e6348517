//! How much of a CPU the server takes at most, whatever clients ask for (P6).

use std::time::{Duration, Instant};

use rustix::time::ClockId;

/// What the server may spend of its thread's CPU time in each window: a quarter of a CPU.
const BUDGET: Duration = Duration::from_millis(25);
const WINDOW: Duration = Duration::from_millis(100);
/// What it went beyond that is made up for later, but no more than this: it never rests for longer than a second.
const MOST_DEBT: Duration = Duration::from_millis(250);

/// Keeps to the budget. For one thread, the one that made it.
pub(super) struct Pace {
    window: Instant,
    /// The thread's CPU clock when the window began.
    began: Duration,
    /// What was spent too much before.
    debt: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Pace {
            window: Instant::now(),
            began: own_cpu_time(),
            debt: Duration::ZERO,
        }
    }

    /// Until when to rest, if the budget is used up; it may then be used up still.
    pub(super) fn rest(&mut self, now: Instant) -> Option<Instant> {
        self.rest_at(now, own_cpu_time())
    }

    fn rest_at(&mut self, now: Instant, cpu: Duration) -> Option<Instant> {
        let mut used = self.debt + cpu.saturating_sub(self.began);
        let windows = now.saturating_duration_since(self.window).as_nanos() / WINDOW.as_nanos();
        if windows > 0 {
            let windows = u32::try_from(windows).unwrap_or(u32::MAX);
            let earned = BUDGET.saturating_mul(windows);
            used = used.saturating_sub(earned).min(MOST_DEBT);
            (self.window, self.began, self.debt) = (now, cpu, used);
        }
        (used >= BUDGET).then_some(self.window + WINDOW)
    }
}

/// CPU time of the calling thread.
fn own_cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Duration::from_secs(part(t.tv_sec)) + Duration::from_nanos(part(t.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn fresh() -> (Pace, Instant) {
        let window = Instant::now();
        let pace = Pace {
            window,
            began: Duration::ZERO,
            debt: Duration::ZERO,
        };
        (pace, window)
    }

    #[test]
    fn within_the_budget_nobody_waits() {
        let (mut pace, start) = fresh();
        for i in 1..100 {
            assert_eq!(pace.rest_at(start + 100 * MS * i, 24 * MS * i), None, "{i}");
        }
    }

    #[test]
    fn beyond_it_the_rest_of_the_window_is_silence() {
        let (mut pace, start) = fresh();
        assert_eq!(pace.rest_at(start + 30 * MS, 24 * MS), None);
        let end = Some(start + 100 * MS);
        assert_eq!(pace.rest_at(start + 31 * MS, 25 * MS), end);
        assert_eq!(pace.rest_at(start + 99 * MS, 26 * MS), end);
        assert_eq!(pace.rest_at(start + 100 * MS, 26 * MS), None);
    }

    /// Answers that take longer than a window each: they are a quarter of the time all the same, or a second lies between.
    #[test]
    fn long_answers_are_made_up_for() {
        for (answer, most) in [(60_u32, 0.26), (200, 0.26), (2000, 0.68)] {
            let (mut pace, start) = fresh();
            let (mut now, mut cpu, mut longest) = (start, Duration::ZERO, Duration::ZERO);
            for _ in 0..100 {
                (now, cpu) = (now + MS * answer, cpu + MS * answer);
                let done = now;
                while let Some(until) = pace.rest_at(now, cpu) {
                    assert!(until > now);
                    now = until;
                }
                longest = longest.max(now - done);
            }
            let share = cpu.as_secs_f64() / (now - start).as_secs_f64();
            assert!(share < most, "{answer} ms each: {share}");
            assert!(longest <= Duration::from_millis(1100), "{longest:?}");
        }
    }
}
