//! CPU time per queue: real thread CPU time, at the cost of almost nothing.
//!
//! A thread's CPU clock takes some 200 ns to read, as much as running an item. So a worker reads its own at an item's or
//! batch's end, and only if 100 us have passed since it last did; what the clock then says is shared out to the queues that it
//! ran since, by the wall time that each took. So a thread that runs one queue's items for long is charged exactly, and a mix of
//! short items of several queues within one 100 us is charged by share. Never more is charged than the wall time that items took:
//! what a thread does between items (looking for work, an application's own business on a thread that ran an awaited item) is
//! nobody's. Workers that are in an item are read by whoever takes a snapshot.

use crate::current;
use crate::sys::cpu;
use cmwq_policy::pool::Time;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a thread goes without reading its CPU clock, ns: reading it costs at most 0.3 % of that.
pub(crate) const PERIOD_NS: u64 = 100_000;

/// Where a queue's CPU time is added up.
pub(crate) type Account = Arc<AtomicU64>;

struct Meter {
    /// Whose item runs now, and since when.
    current: Option<Account>,
    since: Time,
    /// What ran since the clock was read, with its wall time.
    shares: Vec<(Account, u64)>,
    read_at: Time,
    cpu: u64,
}

thread_local! {
    static METER: RefCell<Meter> = const {
        RefCell::new(Meter { current: None, since: 0, shares: Vec::new(), read_at: 0, cpu: 0 })
    };
}

impl Meter {
    #[inline]
    fn change(&mut self, to: Option<&Account>, now: Time) {
        let same = match (&self.current, to) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        if !same {
            self.close(now);
            self.current = to.map(Arc::clone);
        }
        if now.wrapping_sub(self.read_at) >= PERIOD_NS {
            self.read(now);
        }
    }

    /// The current queue's share up to now.
    fn close(&mut self, now: Time) {
        let Some(account) = &self.current else {
            self.since = now;
            return;
        };
        let wall = now.saturating_sub(self.since);
        match self.shares.iter_mut().find(|s| Arc::ptr_eq(&s.0, account)) {
            Some(share) => share.1 += wall,
            None => self.shares.push((Arc::clone(account), wall)),
        }
        self.since = now;
    }

    /// Reads the clock and shares out what was used.
    #[cold]
    fn read(&mut self, now: Time) {
        self.close(now);
        self.read_at = now;
        // A thread's own CPU clock can always be read; should a filter forbid it, nothing is charged.
        let Ok(cpu) = cpu::own_cpu_time() else { return };
        let cpu = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu));
        // Ordering: Release pairs with the Acquire in `survey.rs`: who reads an account with the time below added reads at
        // least this clock value afterwards, and so counts nothing twice.
        if let Some(w) = current::worker() {
            w.shared.cpu_time.store(cpu, Ordering::Release);
        }
        let wall: u64 = self.shares.iter().map(|s| s.1).sum();
        let charge = used.min(wall);
        for (account, share) in self.shares.drain(..) {
            let part = (u128::from(charge) * u128::from(share)) / u128::from(wall.max(1));
            // Ordering: Release, as above.
            account.fetch_add(part as u64, Ordering::Release);
        }
    }
}

/// The calling thread runs items of this account from `now` on.
#[inline]
pub(crate) fn run(account: &Account, now: Time) {
    METER.with_borrow_mut(|m| m.change(Some(account), now));
}

/// The calling thread runs no item from `now` on.
#[inline]
pub(crate) fn pause(now: Time) {
    METER.with_borrow_mut(|m| m.change(None, now));
}

/// The calling thread runs an item of this account within whatever it does; answers what [`resume`] wants when it ended.
#[inline]
pub(crate) fn interrupt(account: &Account, now: Time) -> Option<Account> {
    METER.with_borrow_mut(|m| {
        let outer = m.current.clone();
        m.change(Some(account), now);
        outer
    })
}

/// The inner item has ended.
#[inline]
pub(crate) fn resume(outer: Option<Account>, now: Time) {
    METER.with_borrow_mut(|m| m.change(outer.as_ref(), now));
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn spin(time: Duration) {
        let start = cpu::own_cpu_time().unwrap();
        while cpu::own_cpu_time().unwrap() - start < time {
            std::hint::spin_loop();
        }
    }

    /// On a thread of its own, so that the meter is fresh.
    fn fresh(f: impl FnOnce(&dyn Fn() -> Time) + Send) {
        std::thread::scope(|s| {
            s.spawn(|| {
                let start = Instant::now();
                f(&|| start.elapsed().as_nanos() as u64 + PERIOD_NS);
            });
        });
    }

    #[test]
    fn what_runs_is_charged_and_what_sleeps_is_not() {
        fresh(|now| {
            let (a, b) = (Account::default(), Account::default());
            pause(now());
            run(&a, now());
            spin(Duration::from_millis(20));
            run(&b, now());
            std::thread::sleep(Duration::from_millis(20));
            pause(now());
            spin(Duration::from_millis(20));
            run(&b, now());
            pause(now());
            let (a, b) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
            assert!((19_000_000..30_000_000).contains(&a), "{a}");
            assert!(b < 5_000_000, "sleeping and the thread's own business: {b}");
        });
    }

    #[test]
    fn short_items_of_two_queues_share_by_their_wall_time() {
        fresh(|now| {
            let (a, b) = (Account::default(), Account::default());
            pause(now());
            for _ in 0..2000 {
                run(&a, now());
                spin(Duration::from_micros(12));
                run(&b, now());
                spin(Duration::from_micros(4));
            }
            pause(now() + PERIOD_NS);
            let (a, b) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
            let ratio = a as f64 / b as f64;
            assert!((1.5..5.0).contains(&ratio), "{a} to {b}");
            assert!(a + b >= 30_000_000, "{a} + {b} of at least 32 ms");
        });
    }

    #[test]
    fn an_item_within_an_item_is_charged_to_its_own_queue() {
        fresh(|now| {
            let (outer, inner) = (Account::default(), Account::default());
            pause(now());
            run(&outer, now());
            spin(Duration::from_millis(5));
            let before = interrupt(&inner, now());
            spin(Duration::from_millis(20));
            resume(before, now());
            spin(Duration::from_millis(5));
            pause(now());
            let (o, i) = (outer.load(Ordering::Relaxed), inner.load(Ordering::Relaxed));
            assert!(
                i >= 19_000_000 && (9_000_000..18_000_000).contains(&o),
                "{o} {i}"
            );
        });
    }
}
