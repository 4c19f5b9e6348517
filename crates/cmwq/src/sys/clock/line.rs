//! The straight line from counter ticks to nanoseconds, and the rules by which it is laid and bent. No clock is read here,
//! except through the closures of [`Reading::take`].

/// Wait this long before the first line, in ns: with readings 50 ns wide, 100 / 20,000,000 = 5 ppm.
const FIRST_BASELINE: u64 = 20_000_000;
/// Widest error of the first line, in parts per billion; a wider one waits for more distance.
const FIRST_ERROR_PPB: u64 = 10_000;
/// After this long the first line is laid with whatever error it has.
const FIRST_BASELINE_MAX: u64 = 2_000_000_000;
/// Baselines after that. The last one bounds how long a newly begun slewing goes unnoticed.
const BASELINES: [u64; 3] = [100_000_000, 1_000_000_000, 10_000_000_000];
/// Rates further apart than this come from a jump, not from slewing (which the kernel limits to 500 ppm).
const JUMP_PPM: u64 = 1000;
/// Strongest bend towards the other clock.
const BEND_PPM: i128 = 500;

/// Nanoseconds per tick are kept in units of 2^-32: at 5 GHz the unit is 1.2 parts per billion, and 64 x 64 bit products fit
/// 128 bits for any tick count.
const FRACTION: u32 = 32;

/// One simultaneous look at both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The counter just before.
    pub(crate) ticks: u64,
    /// `CLOCK_MONOTONIC`.
    pub(crate) ns: u64,
    /// Ticks until just after: how simultaneous it was.
    pub(crate) width: u64,
}

impl Reading {
    /// The narrowest of a few looks.
    pub(crate) fn take(counter: impl Fn() -> u64, monotonic: impl Fn() -> u64) -> Self {
        let look = || {
            let ticks = counter();
            let ns = monotonic();
            Self {
                ticks,
                ns,
                width: counter().saturating_sub(ticks),
            }
        };
        let mut best = look();
        for _ in 0..7 {
            let next = look();
            if next.width <= best.width {
                best = next;
            }
        }
        best
    }
}

/// At `ticks` it is `ns`, and a tick lasts `rate` / 2^32 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) ticks: u64,
    pub(crate) ns: u64,
    pub(crate) rate: u64,
}

impl Line {
    /// The nanoseconds at `ticks`; before the line's start, its start.
    #[inline]
    pub(crate) fn at(&self, ticks: u64) -> u64 {
        let product = u128::from(ticks.saturating_sub(self.ticks)) * u128::from(self.rate);
        self.ns.wrapping_add((product >> FRACTION) as u64)
    }
}

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing yet.
    TooEarly,
    /// From now on this line.
    Line(Line),
}

/// Turns readings into lines.
#[derive(Debug)]
pub(crate) struct Calibrator {
    last: Reading,
    line: Option<Line>,
    /// `CLOCK_MONOTONIC` minus stamp.
    offset: u64,
    /// Index into `BASELINES` of the one now being measured.
    stage: usize,
    /// The last reading was a jump: the next rate is believed whatever it is.
    jumped: bool,
    jumps: u64,
    error_ppb: u64,
}

impl Calibrator {
    /// Stamp 0 is at `first`.
    pub(crate) fn new(first: Reading) -> Self {
        Self {
            last: first,
            line: None,
            offset: first.ns,
            stage: 0,
            jumped: false,
            jumps: 0,
            error_ppb: 0,
        }
    }

    /// Starts with a rate that the hardware states. It is checked like a measured one, and replaced if it is wrong.
    pub(crate) fn assume_rate(&mut self, hz: u64) -> Line {
        let rate = u64::try_from((1_000_000_000_u128 << FRACTION) / u128::from(hz.max(1)))
            .unwrap_or(u64::MAX);
        let line = Line {
            ticks: self.last.ticks,
            ns: self.last.ns - self.offset,
            rate,
        };
        self.line = Some(line);
        self.jumped = true;
        line
    }

    /// `CLOCK_MONOTONIC` minus stamp.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Jumps seen.
    pub(crate) fn jumps(&self) -> u64 {
        self.jumps
    }

    /// Bound of the rate's error by the widths of the readings, in parts per billion.
    pub(crate) fn error_ppb(&self) -> u64 {
        self.error_ppb
    }

    /// The stamp from which a step may lead to something.
    pub(crate) fn due(&self) -> u64 {
        let wait = if self.line.is_some() {
            BASELINES[self.stage]
        } else {
            FIRST_BASELINE
        };
        self.last
            .ns
            .saturating_sub(self.offset)
            .saturating_add(wait)
    }

    /// Takes a reading into account. Readings come in the order in which they were taken.
    pub(crate) fn step(&mut self, new: Reading) -> Outcome {
        let elapsed = new.ns.saturating_sub(self.last.ns);
        let ticks = new.ticks.saturating_sub(self.last.ticks);
        let wait = if self.line.is_some() {
            BASELINES[self.stage]
        } else {
            FIRST_BASELINE
        };
        if elapsed < wait {
            return Outcome::TooEarly;
        }
        let rate = if ticks == 0 {
            0
        } else {
            (u128::from(elapsed) << FRACTION) / u128::from(ticks)
        };
        let rate = u64::try_from(rate).unwrap_or(0);
        let widths = u128::from(new.width) + u128::from(self.last.width);
        let error_ppb =
            u64::try_from(widths * 1_000_000_000 / u128::from(ticks.max(1))).unwrap_or(u64::MAX);
        let line = match self.line {
            None => {
                if rate == 0 || (error_ppb > FIRST_ERROR_PPB && elapsed < FIRST_BASELINE_MAX) {
                    return Outcome::TooEarly;
                }
                // The counter was read first, so the line runs ahead by up to the reading's width: a thread that still took
                // its last stamp from the other clock does not see time go back.
                Line {
                    ticks: new.ticks,
                    ns: new.ns - self.offset,
                    rate,
                }
            }
            Some(old) => {
                let predicted = old.at(new.ticks);
                let actual = new.ns.saturating_sub(self.offset);
                let apart = u128::from(rate.abs_diff(old.rate)) * 1_000_000;
                if rate == 0 || apart > u128::from(old.rate) * u128::from(JUMP_PPM) {
                    self.jump(new, old, rate, predicted, actual)
                } else {
                    self.stage = (self.stage + 1).min(BASELINES.len() - 1);
                    self.jumped = false;
                    Line {
                        ticks: new.ticks,
                        ns: predicted,
                        rate: self.bend(rate, predicted, actual),
                    }
                }
            }
        };
        self.last = new;
        self.error_ppb = error_ppb;
        self.line = Some(line);
        Outcome::Line(line)
    }

    /// The clocks moved apart. Stamps go on from the later of the two; the old rate is kept once, because the measured one
    /// spans the jump, and a second disagreement in a row means that the old one was wrong.
    fn jump(&mut self, new: Reading, old: Line, rate: u64, predicted: u64, actual: u64) -> Line {
        let believed = if self.jumped && rate != 0 {
            rate
        } else {
            old.rate
        };
        // A stated rate that turns out wrong is no jump of the counter.
        self.jumps += u64::from(!self.jumped);
        self.jumped = !self.jumped;
        self.stage = 0;
        let ns = predicted.max(actual);
        self.offset = new.ns.wrapping_sub(ns);
        Line {
            ticks: new.ticks,
            ns,
            rate: believed,
        }
    }

    /// The rate that meets the other clock at the end of the next baseline.
    fn bend(&self, rate: u64, predicted: u64, actual: u64) -> u64 {
        let next = i128::from(BASELINES[self.stage]);
        let behind = i128::from(actual) - i128::from(predicted);
        let limit = i128::from(rate) * BEND_PPM / 1_000_000;
        let bend = (i128::from(rate) * behind / next).clamp(-limit, limit);
        u64::try_from(i128::from(rate) + bend).unwrap_or(rate)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A counter of `hz` and a monotonic clock that is `ppm` fast against it.
    struct Fake {
        hz: f64,
        ppm: f64,
        base: f64,
    }

    impl Fake {
        fn ticks(&self, t: f64) -> u64 {
            (self.base + t * self.hz) as u64
        }
        fn ns(&self, t: f64) -> u64 {
            5_000_000_000 + (t * 1e9 * (1.0 + self.ppm * 1e-6)) as u64
        }
        /// A reading at second `t`, somewhere within `width` ns.
        fn reading(&self, t: f64, width: f64, place: f64) -> Reading {
            Reading {
                ticks: self.ticks(t),
                ns: self.ns(t + width * place * 1e-9),
                width: (width * 1e-9 * self.hz) as u64,
            }
        }
    }

    #[test]
    fn the_first_line_waits_for_its_baseline_and_its_precision() {
        let f = Fake {
            hz: 2.45e9,
            ppm: 0.0,
            base: 1e15,
        };
        let mut c = Calibrator::new(f.reading(0.0, 50.0, 0.5));
        assert_eq!(c.step(f.reading(0.0199, 50.0, 0.5)), Outcome::TooEarly);
        // Far too blurred for 20 ms.
        assert_eq!(c.step(f.reading(0.021, 5_000.0, 0.5)), Outcome::TooEarly);
        let Outcome::Line(line) = c.step(f.reading(0.022, 50.0, 0.9)) else {
            panic!("no line")
        };
        assert!(c.error_ppb() <= 10_000, "{}", c.error_ppb());
        for t in [0.03, 0.1, 1.0] {
            let off = line.at(f.ticks(t)).abs_diff(f.ns(t) - c.offset());
            assert!(
                off as f64 <= 100.0 + 10e-6 * t * 1e9,
                "{off} ns off at {t} s"
            );
        }
        // Blurred for ever: laid after two seconds all the same, with its error told.
        let mut c = Calibrator::new(f.reading(0.0, 50_000.0, 0.5));
        assert!(matches!(
            c.step(f.reading(2.1, 50_000.0, 0.5)),
            Outcome::Line(_)
        ));
        assert!(c.error_ppb() > 10_000);
    }

    /// The other clock is slewed from 20 s to 220 s; sampled 20 times a second, as a busy runtime does.
    #[test]
    fn follows_a_slewed_clock_without_ever_going_back() {
        const STEP: u64 = 50_000_000;
        for ppm in [-400_i64, -3, 0, 250, 500] {
            let (mut ticks, mut ns) = (7_000_000_000_000_u64, 5_000_000_000_u64);
            let mut c = Calibrator::new(Reading {
                ticks,
                ns,
                width: 120,
            });
            let mut line: Option<Line> = None;
            let (mut last, mut settled, mut slewing) = (0, 0, 0);
            for i in 1..=10_000_u64 {
                let slew = if (400..4_400).contains(&i) { ppm } else { 0 };
                ticks += STEP / 10 * 31;
                ns = (ns + STEP).wrapping_add_signed(STEP as i64 / 1_000_000 * slew);
                let reading = Reading {
                    ticks,
                    ns: ns + i * 7 % 40,
                    width: 120,
                };
                if let Outcome::Line(new) = c.step(reading)
                    && let Some(old) = line.replace(new)
                {
                    assert_eq!(old.at(new.ticks), new.ns, "the lines meet at the joint");
                }
                let Some(line) = line else { continue };
                let now = line.at(ticks);
                assert!(now >= last, "went back by {} in step {i}", last - now);
                last = now;
                let apart = now.abs_diff(ns - c.offset());
                if !(400..=8_800).contains(&i) {
                    settled = settled.max(apart);
                } else {
                    slewing = slewing.max(apart);
                }
            }
            // Settled: within the width of a reading or two. While slewing begins or ends: 500 ppm of the baseline.
            assert!(settled < 500, "{ppm} ppm: {settled} ns apart when settled");
            assert!(
                slewing <= 10_000_000_000 / 1_000_000 * ppm.unsigned_abs() * 2 + 500,
                "{ppm} ppm: {slewing} ns"
            );
            assert_eq!(c.jumps(), 0);
        }
    }

    #[test]
    fn converges_after_a_bad_first_line() {
        let f = Fake {
            hz: 2.0e9,
            ppm: 0.0,
            base: 0.0,
        };
        let mut c = Calibrator::new(f.reading(0.0, 100.0, 0.0));
        let mut line = None;
        for i in 1..3_000 {
            let t = f64::from(i) * 0.05;
            if let Outcome::Line(l) = c.step(f.reading(t, 100.0, if i == 1 { 1.0 } else { 0.5 })) {
                line = Some(l);
            }
        }
        let off = line
            .unwrap()
            .at(f.ticks(160.0))
            .abs_diff(f.ns(160.0) - c.offset());
        assert!(off < 500, "{off} ns after 160 s");
    }

    /// Suspended for an hour: the counter ran on, the other clock did not.
    #[test]
    fn a_counter_that_ran_through_a_suspend_moves_the_offset_not_the_rate() {
        let f = Fake {
            hz: 2.0e9,
            ppm: 0.0,
            base: 0.0,
        };
        let mut c = Calibrator::new(f.reading(0.0, 50.0, 0.5));
        let Outcome::Line(before) = c.step(f.reading(0.05, 50.0, 0.5)) else {
            panic!()
        };
        let mut r = f.reading(3600.0, 50.0, 0.5);
        r.ns = f.ns(0.3);
        let Outcome::Line(after) = c.step(r) else {
            panic!()
        };
        assert_eq!(after.ns, before.at(r.ticks));
        assert_eq!(after.rate, before.rate);
        assert_eq!(c.jumps(), 1);
        assert_eq!(after.ns.wrapping_add(c.offset()), r.ns);
        // And the next ordinary reading is ordinary.
        let mut r2 = f.reading(3600.2, 50.0, 0.5);
        r2.ns = f.ns(0.5);
        assert!(matches!(c.step(r2), Outcome::Line(_)));
        assert_eq!(c.jumps(), 1);
    }

    /// Suspended, and the counter started from zero.
    #[test]
    fn a_counter_that_restarted_does_not_take_time_back() {
        let f = Fake {
            hz: 2.0e9,
            ppm: 0.0,
            base: 1e14,
        };
        let mut c = Calibrator::new(f.reading(0.0, 50.0, 0.5));
        assert!(matches!(
            c.step(f.reading(0.05, 50.0, 0.5)),
            Outcome::Line(_)
        ));
        let shown = f.ns(5.0) - c.offset();
        let r = Reading {
            ticks: 1000,
            ns: f.ns(5.0),
            width: 100,
        };
        let Outcome::Line(line) = c.step(r) else {
            panic!()
        };
        assert!(line.at(1000) >= shown);
        assert_eq!(c.jumps(), 1);
        assert_eq!(
            line.at(1000 + 2_000_000_000) / 1_000,
            (shown + 1_000_000_000) / 1_000
        );
    }

    #[test]
    fn a_wrong_stated_rate_is_replaced() {
        let f = Fake {
            hz: 25.0e6,
            ppm: 0.0,
            base: 0.0,
        };
        let mut c = Calibrator::new(f.reading(0.0, 80.0, 0.5));
        let line = c.assume_rate(24_000_000);
        assert!(line.rate > 0);
        for i in 1..200 {
            c.step(f.reading(f64::from(i) * 0.05, 80.0, 0.5));
        }
        let rate = c.line.unwrap().rate as f64 / f64::from(2.0_f32).powi(32);
        assert!((rate - 40.0).abs() < 40.0 * 600e-6, "{rate} ns a tick");
        assert_eq!(c.jumps(), 0);
    }
}
