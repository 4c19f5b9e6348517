//! The driver of paired rounds: every round runs every setting once, in an order that changes from round to round, so that
//! what disturbs the machine for a while disturbs all settings alike and what comes first does not always come first.
//!
//! Rounds are added until every [`Bar`] given as a goal is settled, or a cap on rounds or time is reached; what
//! is open then is *undecided*. A goal is settled when the half-width of its interval is under [`Plan::half_width`], or, with
//! [`Plan::decide_early`], as soon as its bound clears the limit. Looking again and again at growing data until it pleases
//! would make a false answer likely, so an early decision is looked for only after `min_rounds` times 1, 2, 4, ... rounds, and
//! the permitted error is divided by the number of looks (Bonferroni): the chance that any look errs stays under
//! `1 - confidence` for a bar.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::bar::{Bar, Judgement};
use crate::seed::SplitMix64;
use crate::stats::{self, Bounds, Method};

/// The figures of one setting in one round, by name. The unit belongs into the name (`ext_ns`, `cpu_percent`).
pub type Observation = BTreeMap<String, f64>;

/// How the order of the settings changes from round to round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// A fresh shuffle each round, drawn from the seed.
    #[default]
    Shuffled,
    /// Each round starts one setting later than the one before; the seed chooses where round 0 starts.
    Rotated,
}

/// What to run and when to stop.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Names of the settings, at least one, no name twice.
    pub settings: Vec<String>,
    /// Seed of the order: the same seed gives the same order.
    pub seed: u64,
    /// How the order changes.
    pub order: Order,
    /// Rounds to run before anything is judged. Below [`Plan::rounds_needed`] nothing can be decided early.
    pub min_rounds: usize,
    /// The most rounds.
    pub max_rounds: usize,
    /// No round is begun after this long; a round that runs is finished, so that pairs stay complete.
    pub max_time: Option<Duration>,
    /// A goal is settled when the two-sided interval's half-width is under this part of the estimate (0.01 = 1 %).
    pub half_width: f64,
    /// Confidence of each one-sided bound (0.95).
    pub confidence: f64,
    /// Median with sign-test bounds, or mean with Student's t.
    pub method: Method,
    /// Also stop once every goal's bound has cleared its limit.
    pub decide_early: bool,
}

impl Plan {
    /// A plan for these settings: shuffled, 7 to 56 rounds, medians, 95 %, half-width 1 %, early decisions allowed.
    pub fn new<S: Into<String>>(settings: impl IntoIterator<Item = S>) -> Self {
        Self {
            settings: settings.into_iter().map(Into::into).collect(),
            seed: 1,
            order: Order::default(),
            min_rounds: 7,
            max_rounds: 56,
            max_time: None,
            half_width: 0.01,
            confidence: 0.95,
            method: Method::default(),
            decide_early: true,
        }
    }

    /// Confidence of a bound at one look: [`Plan::confidence`] itself, or stricter when several looks may decide early.
    pub fn confidence_per_look(&self) -> f64 {
        if self.decide_early {
            1.0 - (1.0 - self.confidence) / self.looks().len().max(1) as f64
        } else {
            self.confidence
        }
    }

    /// The fewest rounds from which a bar can be decided under this plan.
    pub fn rounds_needed(&self) -> usize {
        stats::values_needed(self.method, self.confidence_per_look())
    }

    /// Round counts after which the goals are looked at for an early decision.
    fn looks(&self) -> Vec<usize> {
        let mut looks = Vec::new();
        let mut at = self.min_rounds.max(1);
        while at < self.max_rounds {
            looks.push(at);
            at = at.saturating_mul(2);
        }
        looks.push(self.max_rounds.max(1));
        looks
    }

    /// The order of settings in this round, as indices into [`Plan::settings`].
    pub fn order_of(&self, round: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.settings.len()).collect();
        match self.order {
            Order::Shuffled => {
                // Odd multiplier: every round has a stream of its own.
                let stream = self.seed ^ (round as u64 + 1).wrapping_mul(0xD134_2543_DE82_EF95);
                SplitMix64::new(stream).shuffle(&mut order);
            }
            Order::Rotated if !order.is_empty() => {
                let start = SplitMix64::new(self.seed).below(order.len());
                let by = (start + round) % order.len();
                order.rotate_left(by);
            }
            Order::Rotated => {}
        }
        order
    }
}

/// One call of the measuring closure.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// Which round, from 0.
    pub round: usize,
    /// Position within the round, from 0.
    pub position: usize,
    /// The setting to measure.
    pub setting: &'a str,
}

/// Why the rounds ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Every goal was settled.
    Settled,
    /// `max_rounds` were run.
    RoundCap,
    /// `max_time` was over.
    TimeCap,
}

/// What was measured: for every round and setting the figures, or the error text of a trial that failed.
#[derive(Debug, Clone)]
pub struct Rounds {
    plan: Plan,
    outcomes: Vec<Vec<Result<Observation, String>>>,
    stop: StopReason,
}

/// A plan that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// No settings.
    NoSettings,
    /// The same name twice.
    Duplicate(String),
    /// `max_rounds` is 0 or below `min_rounds`.
    Rounds {
        /// As given.
        min: usize,
        /// As given.
        max: usize,
    },
    /// A goal names a setting that is not in the plan.
    UnknownSetting {
        /// Name of the goal.
        bar: String,
        /// The setting that is missing.
        setting: String,
    },
    /// `confidence` is not between 0.5 and 1, or `half_width` is not above 0.
    Precision,
}

impl Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoSettings => f.write_str("no settings to measure"),
            Self::Duplicate(name) => write!(f, "setting {name:?} is given twice"),
            Self::Rounds { min, max } => write!(
                f,
                "rounds: at least {min} and at most {max}: expected 1 <= least <= most"
            ),
            Self::UnknownSetting { bar, setting } => write!(
                f,
                "bar {bar:?} names setting {setting:?}, which is not measured"
            ),
            Self::Precision => {
                f.write_str("confidence must be between 0.5 and 1, half_width above 0")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// Runs the plan. `measure` is called once for every setting and round, on this thread, one at a time; an `Err` (or a figure
/// that is not a number) makes that trial a failed one, whose pairs are left out and counted, and the run goes on.
///
/// Blocks as long as the trials take. Not for use from a work item.
///
/// # Errors
/// [`PlanError`] before anything runs.
pub fn run<E: Display>(
    plan: &Plan,
    goals: &[Bar],
    mut measure: impl FnMut(Trial<'_>) -> Result<Observation, E>,
) -> Result<Rounds, PlanError> {
    check(plan, goals)?;
    let began = Instant::now();
    let looks = plan.looks();
    let mut rounds = Rounds {
        plan: plan.clone(),
        outcomes: Vec::new(),
        stop: StopReason::RoundCap,
    };
    for round in 0..plan.max_rounds {
        if round > 0 && plan.max_time.is_some_and(|cap| began.elapsed() >= cap) {
            rounds.stop = StopReason::TimeCap;
            break;
        }
        let mut outcome: Vec<Result<Observation, String>> =
            vec![Err("not run".into()); plan.settings.len()];
        for (position, index) in plan.order_of(round).into_iter().enumerate() {
            let trial = Trial {
                round,
                position,
                setting: &plan.settings[index],
            };
            outcome[index] = measure(trial)
                .map_err(|e| e.to_string())
                .and_then(
                    |figures| match figures.iter().find(|(_, v)| !v.is_finite()) {
                        Some((name, value)) => {
                            Err(format!("{name} is {value}, not a finite number"))
                        }
                        None => Ok(figures),
                    },
                );
        }
        rounds.outcomes.push(outcome);
        let done = round + 1;
        if done < plan.min_rounds || goals.is_empty() && done < plan.max_rounds {
            continue;
        }
        let may_decide = plan.decide_early && looks.contains(&done);
        if !goals.is_empty()
            && goals
                .iter()
                .all(|bar| bar.judge(&rounds).is_settled(may_decide, plan.half_width))
        {
            rounds.stop = StopReason::Settled;
            break;
        }
    }
    Ok(rounds)
}

fn check(plan: &Plan, goals: &[Bar]) -> Result<(), PlanError> {
    if plan.settings.is_empty() {
        return Err(PlanError::NoSettings);
    }
    for (i, name) in plan.settings.iter().enumerate() {
        if plan.settings[..i].contains(name) {
            return Err(PlanError::Duplicate(name.clone()));
        }
    }
    if plan.max_rounds == 0 || plan.min_rounds > plan.max_rounds {
        return Err(PlanError::Rounds {
            min: plan.min_rounds,
            max: plan.max_rounds,
        });
    }
    if !(plan.confidence > 0.5 && plan.confidence < 1.0 && plan.half_width > 0.0) {
        return Err(PlanError::Precision);
    }
    for bar in goals {
        if let Some(setting) = bar
            .settings()
            .find(|s| !plan.settings.iter().any(|have| have == s))
        {
            return Err(PlanError::UnknownSetting {
                bar: bar.name.clone(),
                setting: setting.to_owned(),
            });
        }
    }
    Ok(())
}

/// Figures of two settings, pair by pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    /// Candidate over reference, one per complete round.
    pub ratios: Vec<f64>,
    /// Rounds left out because one side failed or lacks the figure.
    pub left_out: usize,
}

impl Rounds {
    /// The plan that was run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Rounds that were run.
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether no round was run (never after [`run`] succeeded).
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Why the rounds ended.
    pub fn stop_reason(&self) -> StopReason {
        self.stop
    }

    fn index(&self, setting: &str) -> Option<usize> {
        self.plan.settings.iter().position(|s| s == setting)
    }

    /// The outcome of a setting in each round; empty for an unknown setting.
    pub fn outcomes(&self, setting: &str) -> impl Iterator<Item = &Result<Observation, String>> {
        let index = self.index(setting);
        self.outcomes
            .iter()
            .filter_map(move |round| round.get(index?))
    }

    /// Errors of a setting's trials with their round.
    pub fn errors(&self, setting: &str) -> Vec<(usize, &str)> {
        self.outcomes(setting)
            .enumerate()
            .filter_map(|(i, o)| o.as_ref().err().map(|e| (i, e.as_str())))
            .collect()
    }

    /// The values of one figure of one setting, one per round that has it, in the order of rounds.
    pub fn values(&self, setting: &str, metric: &str) -> Vec<f64> {
        self.outcomes(setting)
            .filter_map(|o| o.as_ref().ok()?.get(metric).copied())
            .collect()
    }

    /// Names of all figures that any successful trial of the setting has.
    pub fn metrics(&self, setting: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .outcomes(setting)
            .filter_map(|o| o.as_ref().ok())
            .flat_map(|o| o.keys().cloned())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Candidate over reference, pair by pair. A pair of zeros is 1; something over zero is infinite.
    pub fn pairs(&self, candidate: &str, reference: &str, metric: &str) -> Pairs {
        let figure =
            |o: &Result<Observation, String>| o.as_ref().ok().and_then(|m| m.get(metric).copied());
        let mut pairs = Pairs {
            ratios: Vec::new(),
            left_out: 0,
        };
        for (a, b) in self.outcomes(candidate).zip(self.outcomes(reference)) {
            match (figure(a), figure(b)) {
                (Some(a), Some(b)) => pairs.ratios.push(if a == b { 1.0 } else { a / b }),
                _ => pairs.left_out += 1,
            }
        }
        pairs
    }

    /// One-sided bounds of the paired ratio at the plan's confidence per look. With [`Method::Mean`] the mean is taken of the
    /// logarithms, so that swapping the settings gives the reciprocal; a ratio of 0 or infinity then has no bounds.
    pub fn ratio_bounds(
        &self,
        candidate: &str,
        reference: &str,
        metric: &str,
        confidence: f64,
    ) -> Option<Bounds> {
        let ratios = self.pairs(candidate, reference, metric).ratios;
        match self.plan.method {
            Method::Median => stats::bounds(&ratios, Method::Median, confidence),
            Method::Mean => {
                let logs: Vec<f64> = ratios.iter().map(|r| r.ln()).collect();
                if logs.iter().any(|l| !l.is_finite()) {
                    return None;
                }
                let b = stats::bounds(&logs, Method::Mean, confidence)?;
                Some(Bounds {
                    estimate: b.estimate.exp(),
                    lower: b.lower.exp(),
                    upper: b.upper.exp(),
                    ..b
                })
            }
        }
    }

    /// By how many percent the candidate is above (positive) or below the reference: the `vs_system_percent` of the rows
    /// where the reference is `system`. The centre of the paired ratios, by the plan's method.
    pub fn versus_percent(&self, candidate: &str, reference: &str, metric: &str) -> Option<f64> {
        let ratios = self.pairs(candidate, reference, metric).ratios;
        let centre = match self.plan.method {
            Method::Median => stats::median(&ratios)?,
            Method::Mean => stats::mean(&ratios.iter().map(|r| r.ln()).collect::<Vec<_>>())?.exp(),
        };
        let percent = (centre - 1.0) * 100.0;
        percent.is_finite().then_some(percent)
    }

    /// Judges every bar on what was measured.
    pub fn judge(&self, bars: &[Bar]) -> Vec<Judgement> {
        bars.iter().map(|bar| bar.judge(self)).collect()
    }
}

#[cfg(test)]
mod tests;
