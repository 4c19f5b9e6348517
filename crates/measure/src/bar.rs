//! A bar: a limit on one figure of one setting, absolute or relative to another setting of the same rounds, and its verdict.
//!
//! *Holds* means that the one-sided confidence bound on the side of danger is within the limit: for "at most 1.1 times", the
//! upper bound of the paired ratio is at most 1.1. *Fails* means that the other bound is beyond the limit. Everything else,
//! too few rounds included, is *undecided*, with the reason.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rounds::Rounds;
use crate::stats::{self, Bounds, Method};

/// Which side of the limit is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// The figure must not exceed the limit.
    AtMost,
    /// The figure must reach the limit.
    AtLeast,
}

/// What the limit is a multiple of.
#[derive(Debug, Clone, PartialEq)]
pub enum Against {
    /// Nothing: the limit is in the figure's own unit.
    Absolute,
    /// The same figure of this setting, pair by pair.
    Setting(String),
    /// The same figure of the best of these settings: lowest median for [`Relation::AtMost`], highest for
    /// [`Relation::AtLeast`]. Chosen on the same data, which favours the reference and so never the candidate.
    BestOf(Vec<String>),
    /// As `BestOf`, and the limit is widened by the best setting's own relative spread (half its interquartile range over
    /// its median): "no worse than the best within its spread".
    BestWithinSpread(Vec<String>),
}

/// A limit to be held.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// What is promised, for people.
    pub name: String,
    /// The setting that has to hold it.
    pub setting: String,
    /// Name of the figure.
    pub metric: String,
    /// Good side.
    pub relation: Relation,
    /// The limit: a factor, or with [`Against::Absolute`] a value.
    pub limit: f64,
    /// What it is relative to.
    pub against: Against,
}

/// The answer to a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The bound on the dangerous side is within the limit.
    Holds,
    /// The bound on the other side is beyond the limit.
    Fails,
    /// Neither; see the reason.
    Undecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::Fails => "FAILS",
            Self::Undecided => "undecided",
        })
    }
}

/// A bar with its verdict and the figures behind it. Part of the JSON form (`verdicts`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// As in the bar.
    pub name: String,
    /// As in the bar.
    pub setting: String,
    /// As in the bar.
    pub metric: String,
    /// As in the bar.
    pub relation: Relation,
    /// The setting compared with; absent for an absolute limit, or where none had figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// The limit in force (widened by the spread where the bar says so).
    pub limit: f64,
    /// The answer.
    pub verdict: Verdict,
    /// Median or mean of the figure or ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<f64>,
    /// One-sided lower bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<f64>,
    /// One-sided upper bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<f64>,
    /// Half-width of the interval as part of the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_width: Option<f64>,
    /// Rounds that counted.
    pub rounds: usize,
    /// Why it is undecided, or what was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Judgement {
    /// Whether more rounds are not needed: precise enough, or (where that is allowed now) decided.
    pub fn is_settled(&self, may_decide_early: bool, half_width: f64) -> bool {
        may_decide_early && self.verdict != Verdict::Undecided
            || self.half_width.is_some_and(|w| w < half_width)
    }

    /// One line for people: verdict, name, figure with bounds, limit, reason.
    pub fn line(&self) -> String {
        let sign = if self.relation == Relation::AtMost {
            "<="
        } else {
            ">="
        };
        let shown = |v| self.shown(v);
        let figure = match (self.estimate, self.lower, self.upper) {
            (Some(e), Some(l), Some(u)) => format!("{} [{}..{}]", shown(e), shown(l), shown(u)),
            (Some(e), ..) => shown(e),
            _ => "no figure".into(),
        };
        let against = self
            .against
            .as_ref()
            .map(|a| format!(" x {a}"))
            .unwrap_or_default();
        let reason = self
            .reason
            .as_ref()
            .map(|r| format!(" ({r})"))
            .unwrap_or_default();
        let limit = shown(self.limit);
        format!(
            "{:<9}  {}: {} {figure}, limit {sign} {limit}{against}, {} rounds{reason}",
            self.verdict, self.name, self.metric, self.rounds
        )
    }

    /// A figure, bound or limit of this bar as text.
    pub(crate) fn shown(&self, value: f64) -> String {
        if self.against.is_some() {
            crate::table::ratio(value)
        } else {
            crate::table::number(value)
        }
    }
}

impl Bar {
    /// `setting`'s `metric` at most `limit` in its own unit.
    pub fn at_most(name: &str, setting: &str, metric: &str, limit: f64) -> Self {
        Self::new(
            name,
            setting,
            metric,
            Relation::AtMost,
            limit,
            Against::Absolute,
        )
    }

    /// All fields in order.
    pub fn new(
        name: &str,
        setting: &str,
        metric: &str,
        relation: Relation,
        limit: f64,
        against: Against,
    ) -> Self {
        Self {
            name: name.into(),
            setting: setting.into(),
            metric: metric.into(),
            relation,
            limit,
            against,
        }
    }

    /// The settings that the bar speaks of.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        let others: &[String] = match &self.against {
            Against::Absolute => &[],
            Against::Setting(s) => std::slice::from_ref(s),
            Against::BestOf(list) | Against::BestWithinSpread(list) => list,
        };
        std::iter::once(self.setting.as_str()).chain(others.iter().map(String::as_str))
    }

    /// The best of `list` in this figure, among those that have it.
    fn best<'a>(&self, rounds: &Rounds, list: &'a [String]) -> Option<&'a str> {
        let mut best: Option<(&str, f64)> = None;
        for name in list {
            let Some(middle) = stats::median(&rounds.values(name, &self.metric)) else {
                continue;
            };
            let better = best.is_none_or(|(_, have)| match self.relation {
                Relation::AtMost => middle < have,
                Relation::AtLeast => middle > have,
            });
            if better {
                best = Some((name, middle));
            }
        }
        best.map(|(name, _)| name)
    }

    /// Judges the bar on these rounds, at the plan's confidence.
    pub fn judge(&self, rounds: &Rounds) -> Judgement {
        let mut limit = self.limit;
        let (against, values, left_out) = match &self.against {
            Against::Absolute => {
                let values = rounds.values(&self.setting, &self.metric);
                let left_out = rounds.len() - values.len();
                (None, values, left_out)
            }
            Against::Setting(reference) => self.paired(rounds, Some(reference)),
            Against::BestOf(list) => self.paired(rounds, self.best(rounds, list)),
            Against::BestWithinSpread(list) => {
                let best = self.best(rounds, list);
                let spread = best
                    .and_then(|b| stats::relative_spread(&rounds.values(b, &self.metric)))
                    .unwrap_or(0.0);
                limit *= if self.relation == Relation::AtMost {
                    1.0 + spread
                } else {
                    1.0 - spread
                };
                self.paired(rounds, best)
            }
        };
        let plan = rounds.plan();
        let bounds_at = |confidence: f64| match (&against, plan.method) {
            (Some(reference), _) => {
                rounds.ratio_bounds(&self.setting, reference, &self.metric, confidence)
            }
            (None, method) => stats::bounds(&values, method, confidence),
        };
        let wanted = plan.confidence_per_look();
        let bounds = bounds_at(wanted);
        // A two-sided interval of the same confidence leaves half the error on either side.
        let half_width = bounds_at(1.0 - (1.0 - plan.confidence) / 2.0).and_then(half_width);
        let verdict = bounds.map_or(Verdict::Undecided, |b| self.verdict(&b, limit));
        let reason = match (&bounds, verdict) {
            _ if values.is_empty() && against.is_none() && self.against != Against::Absolute => {
                Some("no peer with this figure was measured".to_owned())
            }
            _ if values.is_empty() => Some("not measured".to_owned()),
            (None, _) => {
                let needed = stats::values_needed(plan.method, wanted);
                Some(if values.len() < needed {
                    format!(
                        "{} rounds; a bound at {:.2} % needs {needed}",
                        values.len(),
                        wanted * 100.0
                    )
                } else {
                    "a ratio of zero or infinity has no mean".to_owned()
                })
            }
            (Some(_), Verdict::Undecided) => Some("the limit lies within the bounds".to_owned()),
            _ if left_out > 0 => Some(format!("{left_out} rounds left out: a trial failed")),
            _ => None,
        };
        let centre = match plan.method {
            Method::Median => stats::median(&values),
            Method::Mean => stats::mean(&values),
        };
        let finite = |v: f64| v.is_finite().then_some(v);
        Judgement {
            name: self.name.clone(),
            setting: self.setting.clone(),
            metric: self.metric.clone(),
            relation: self.relation,
            against: against.map(str::to_owned),
            limit,
            verdict,
            estimate: bounds.map(|b| b.estimate).or(centre).and_then(finite),
            lower: bounds.and_then(|b| finite(b.lower)),
            upper: bounds.and_then(|b| finite(b.upper)),
            half_width,
            rounds: values.len(),
            reason,
        }
    }

    fn paired<'a>(
        &self,
        rounds: &Rounds,
        reference: Option<&'a str>,
    ) -> (Option<&'a str>, Vec<f64>, usize)
    where
        Self: 'a,
    {
        match reference {
            Some(reference) => {
                let pairs = rounds.pairs(&self.setting, reference, &self.metric);
                (Some(reference), pairs.ratios, pairs.left_out)
            }
            None => (None, Vec::new(), rounds.len()),
        }
    }

    fn verdict(&self, bounds: &Bounds, limit: f64) -> Verdict {
        match self.relation {
            Relation::AtMost if bounds.upper <= limit => Verdict::Holds,
            Relation::AtMost if bounds.lower > limit => Verdict::Fails,
            Relation::AtLeast if bounds.lower >= limit => Verdict::Holds,
            Relation::AtLeast if bounds.upper < limit => Verdict::Fails,
            _ => Verdict::Undecided,
        }
    }
}

fn half_width(bounds: Bounds) -> Option<f64> {
    let width = (bounds.upper - bounds.lower) / 2.0;
    let relative = if width == 0.0 {
        0.0
    } else {
        width / bounds.estimate.abs()
    };
    relative.is_finite().then_some(relative)
}

#[cfg(test)]
mod tests;
