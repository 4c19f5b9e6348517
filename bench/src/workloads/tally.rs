//! Counts items exactly without making them fight over one cache line: every thread has a lane, and a lane sums the items' numbers
//! too, so that one lost and another run twice do not cancel.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// A multiple of the threads that most pools start; more threads share lanes, still exactly.
const LANES: usize = 128;
/// No item done for this long means that some were lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// 128 bytes: two cache lines, since adjacent ones are fetched in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Lane {
    count: AtomicU64,
    sum: AtomicU64,
}

/// The count of one burst.
pub(super) struct Tally {
    lanes: [Lane; LANES],
}

/// Every burst that was found complete.
static CHECKED: Mutex<Vec<(&'static Tally, u64)>> = Mutex::new(Vec::new());
static NEXT_LANE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn lane() -> usize {
    LANE.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT_LANE.fetch_add(1, Ordering::Relaxed) % LANES);
        }
        lane.get()
    })
}

impl Tally {
    /// A tally for the rest of the process: items hold it by reference.
    pub(super) fn leaked() -> &'static Self {
        Box::leak(Box::new(Self {
            lanes: std::array::from_fn(|_| Lane::default()),
        }))
    }

    /// Counts item number `id`.
    pub(super) fn hit(&self, id: u64) {
        let lane = &self.lanes[lane()];
        lane.sum.fetch_add(id, Ordering::Relaxed);
        // Ordering: Release, pairs with the Acquire in `count`: who sees the item counted sees its number summed, and all that it wrote.
        lane.count.fetch_add(1, Ordering::Release);
    }

    /// Whether at least `n` items have run.
    pub(super) fn reached(&self, n: u64) -> bool {
        self.count() >= n
    }

    fn count(&self) -> u64 {
        self.lanes
            .iter()
            .map(|l| l.count.load(Ordering::Relaxed))
            .sum()
    }

    fn sum(&self) -> u64 {
        self.lanes
            .iter()
            .map(|l| l.sum.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Sleeps until the items 0 to `n - 1` have all run, and gives the moment. Looks again after an eighth of the time that the
    /// rest will take at the speed so far, so that looking costs little and the end is seen early.
    pub(super) fn wait(&self, n: u64) -> Result<Instant> {
        let began = Instant::now();
        let first = self.count();
        let (mut seen, mut progress) = (first, began);
        loop {
            let count = self.count();
            let now = Instant::now();
            if count >= n {
                return Ok(now);
            }
            if count > seen {
                (seen, progress) = (count, now);
            }
            let lost = n - count;
            ensure!(
                now - progress < PATIENCE,
                "{lost} of {n} items lost: none ran for {PATIENCE:?}"
            );
            let rate = (count - first) as f64 / (now - began).as_secs_f64().max(1e-6);
            let rest = if rate > 0.0 { lost as f64 / rate } else { 0.0 };
            thread::sleep(Duration::from_secs_f64((rest / 8.0).clamp(20e-6, 5e-3)));
        }
    }

    /// After the end: exactly the items 0 to `n - 1`, each once. Looked at again by [`recheck`].
    pub(super) fn check(&'static self, n: u64) -> Result<()> {
        CHECKED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((self, n));
        self.exact(n)
    }

    fn exact(&self, n: u64) -> Result<()> {
        let (count, sum) = (self.count(), self.sum());
        let expected = n.wrapping_mul(n.wrapping_sub(1)) / 2;
        ensure!(
            count == n && sum == expected,
            "{n} items queued, {count} ran, sum of their numbers {sum}, expected {expected}"
        );
        Ok(())
    }
}

/// Looks at every burst of this process once more, a little later: an item that ran a second time after the burst was over is found here.
pub(super) fn recheck() -> Result<()> {
    thread::sleep(Duration::from_millis(2));
    let checked = std::mem::take(&mut *CHECKED.lock().unwrap_or_else(PoisonError::into_inner));
    checked
        .into_iter()
        .try_for_each(|(tally, n)| tally.exact(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_are_exact() {
        let tally = Tally::leaked();
        let threads: Vec<_> = (0..4u64)
            .map(|t| thread::spawn(move || (0..1000).for_each(|i| tally.hit(t * 1000 + i))))
            .collect();
        tally.wait(4000).unwrap();
        threads.into_iter().for_each(|t| t.join().unwrap());
        tally.check(4000).unwrap();
    }

    #[test]
    fn one_lost_and_one_twice_is_noticed() {
        let tally = Tally::leaked();
        [0, 1, 1, 3].into_iter().for_each(|id| tally.hit(id));
        tally.wait(4).unwrap();
        let e = tally.exact(4).unwrap_err().to_string();
        assert!(e.contains("sum of their numbers 5, expected 6"), "{e}");
        tally.hit(2);
        assert!(tally.exact(4).unwrap_err().to_string().contains("5 ran"));
    }

    /// The order of the two additions matters: a count without its number looked like a lost item.
    #[test]
    fn whoever_sees_the_count_sees_the_sum() {
        for _ in 0..200 {
            let tally = Tally::leaked();
            let thread = thread::spawn(move || (0..50).for_each(|id| tally.hit(id)));
            while !tally.reached(50) {
                std::hint::spin_loop();
            }
            tally.exact(50).unwrap();
            thread.join().unwrap();
        }
    }
}
