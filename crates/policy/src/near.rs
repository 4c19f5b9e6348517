//! Where the worker of a pool at rest is woken: where the system likes, or beside whoever queued the item.
//!
//! The system wakes a thread on an idle CPU if there is one. That is right for an issuer that goes on working. An issuer that
//! queues a short item and waits for it leaves its own CPU idle, and then the other CPU is a detour: two wake-ups across CPUs
//! (on a guest 30-50 us each) for an item of a few microseconds. Which it is, only measuring tells: a pool keeps the mean time from
//! queueing to start for both ways, uses the better one, and tries the other one now and then, the more rarely the more
//! often it lost.
//!
//! Beside the issuer is tried only while issuers sleep about once per item (the driver says so) and items are short: a worker
//! that takes the issuer's CPU costs it, at most, so much.

use crate::pool::Time;

/// Items that take longer than this, on average, are never run beside their issuer, ns: then a wake-up on another CPU is the
/// smaller part.
pub const BRIEF_NS: u64 = 50_000;
/// The other way is tried after this many wake-ups at first...
const FIRST_GAP: u32 = 32;
/// ...and at least after this many: two or three detours of 60 us (measured on a guest) are then 0.2 % of the time of round
/// trips that take 3 us.
const LONGEST_GAP: u32 = 1 << 15;
/// ...for so many in a row.
const TRIAL: u32 = 6;
/// A mean over about so many wake-ups...
const WEIGHT: u64 = 8;
/// ...of which each counts for at most so many times the mean: one that something else held up says little.
const OUTLIER: u64 = 6;

/// A way to wake a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Where the system likes.
    Anywhere,
    /// On the issuer's CPU.
    Beside,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Anywhere => Way::Beside,
            Way::Beside => Way::Anywhere,
        }
    }
}

/// What a pool has learned; see the module text.
#[derive(Debug, Clone)]
pub struct Near {
    /// Mean time from waking to start, ns, by way; 0: not known.
    mean: [Time; 2],
    best: Way,
    /// What was said last.
    chosen: Way,
    /// The way of the last worker that came: the first one after a change pays for the change, which says nothing.
    last: Way,
    /// Wake-ups until the other way is tried.
    left: u32,
    gap: u32,
    /// Wake-ups of the trial that is under way.
    trial: u32,
}

impl Default for Near {
    fn default() -> Self {
        Near {
            mean: [0; 2],
            best: Way::Anywhere,
            chosen: Way::Anywhere,
            last: Way::Anywhere,
            left: FIRST_GAP,
            gap: FIRST_GAP,
            trial: 0,
        }
    }
}

impl Near {
    /// How to wake a worker now; none: where the system likes, and nothing is to be learned from it. `sleepy`: the issuer sleeps
    /// about once per item; `average_run_ns`: what items take.
    pub fn choose(&mut self, sleepy: bool, average_run_ns: u64) -> Option<Way> {
        let way = self.choose_if(sleepy, average_run_ns);
        self.chosen = way.unwrap_or(Way::Anywhere);
        way
    }

    fn choose_if(&mut self, sleepy: bool, average_run_ns: u64) -> Option<Way> {
        if !sleepy || average_run_ns > BRIEF_NS {
            return None;
        }
        if self.trial > 0 {
            self.trial -= 1;
            return Some(self.best.other());
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Some(self.best);
        }
        self.left = self.gap;
        self.trial = TRIAL - 1;
        self.mean[self.best.other() as usize] = 0;
        Some(self.best.other())
    }

    /// A worker that was woken this way came after `ns`.
    pub fn learned(&mut self, way: Way, ns: Time) {
        if std::mem::replace(&mut self.last, way) != way {
            return;
        }
        let ns = ns.max(1);
        let tried = way != self.best;
        let mean = &mut self.mean[way as usize];
        *mean = match *mean {
            0 => ns,
            m => (m * (WEIGHT - 1) + ns.min(m * OUTLIER)) / WEIGHT,
        };
        let (tried_mean, best_mean) = (
            self.mean[self.best.other() as usize],
            self.mean[self.best as usize],
        );
        let known = tried_mean != 0 && best_mean != 0;
        // A trial is judged at its end, or as soon as it goes badly. The way in use is judged at once. Either has to be clearly
        // better: a change costs a wake-up, and equal ways would change places for ever.
        let lost = known && tried_mean > 2 * best_mean;
        if tried && self.trial > 0 && !lost {
            return;
        }
        let won = if tried {
            tried_mean < best_mean * 3 / 4
        } else {
            2 * tried_mean < best_mean
        };
        if known && won || tried && best_mean == 0 {
            self.best = self.best.other();
            (self.gap, self.left, self.trial) = (FIRST_GAP, FIRST_GAP, 0);
        } else if tried {
            self.gap = (self.gap * 2).min(LONGEST_GAP);
            (self.left, self.trial) = (self.gap, 0);
        }
    }

    /// Whether the worker that was woken last for a pool at rest came beside its issuer.
    #[inline]
    pub fn is_beside(&self) -> bool {
        self.chosen == Way::Beside
    }

    /// The way that is better as far as is known.
    pub fn best(&self) -> Way {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wakes `n` workers that come after what `takes` says; returns how often each way was used.
    fn run(near: &mut Near, n: u32, takes: impl Fn(Way) -> u64) -> [u32; 2] {
        let mut used = [0; 2];
        for _ in 0..n {
            let way = near.choose(true, 2_000).unwrap();
            used[way as usize] += 1;
            near.learned(way, takes(way));
        }
        used
    }

    #[test]
    fn the_better_way_is_found_and_kept() {
        let mut near = Near::default();
        let beside_wins = |w| if w == Way::Beside { 3_000 } else { 40_000 };
        run(&mut near, 100, beside_wins);
        assert_eq!(near.best(), Way::Beside);
        let [anywhere, beside] = run(&mut near, 10_000, beside_wins);
        assert!(anywhere < 60, "{anywhere} detours in {}", anywhere + beside);
    }

    #[test]
    fn an_issuer_that_stops_waiting_is_noticed_at_once() {
        let mut near = Near::default();
        run(&mut near, 100, |w| {
            if w == Way::Beside { 3_000 } else { 40_000 }
        });
        // It keeps its CPU now: what is woken there waits for the tick.
        let [_, beside] = run(&mut near, 1_000, |w| {
            if w == Way::Beside { 1_000_000 } else { 40_000 }
        });
        assert_eq!(near.best(), Way::Anywhere);
        assert!(beside < 16, "{beside} items waited for a tick");
    }

    #[test]
    fn issuers_that_go_on_and_long_items_are_never_run_beside() {
        let mut near = Near::default();
        run(&mut near, 100, |w| {
            if w == Way::Beside { 3_000 } else { 40_000 }
        });
        assert!((0..1000).all(|_| near.choose(false, 2_000).is_none()));
        assert!((0..1000).all(|_| near.choose(true, BRIEF_NS + 1).is_none()));
    }
}
