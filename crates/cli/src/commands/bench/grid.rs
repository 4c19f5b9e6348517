//! Settings times rounds for the smaller benches: one scenario, figures by name, one latency.

use cmwq_measure::rounds::{self, PlanError};
use cmwq_measure::rows::CpuUtilOf;
use cmwq_measure::{Document, Latency, Observation, Plan, Rounds, Row, Spread};

use super::host::Host;
use super::output::Output;
use super::progress::Progress;

/// What these benches take.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// Rounds: every setting is measured once in each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Seed of the order of settings in a round
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Let the runtime see these caches and nodes on the same CPUs, as for cmwq topology
    #[arg(long, value_name = "SPEC")]
    pub(crate) synthetic: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// One measurement.
pub(crate) struct Sample {
    pub(crate) figures: Observation,
    pub(crate) latency: Latency,
}

/// All measurements.
pub(crate) struct Measured {
    pub(crate) rounds: Rounds,
    scenario: &'static str,
    latency: Vec<(String, Latency)>,
}

impl Common {
    /// A document with what is common.
    pub(crate) fn document(&self, tool: &str, host: &Host) -> Document {
        Document::new(tool, host.machine())
            .versioned("cmwq", env!("CARGO_PKG_VERSION"))
            .setting("rounds", self.rounds)
            .setting("seed", self.seed)
    }

    /// Measures each setting once a round, interleaved.
    ///
    /// # Errors
    /// A setting that is named twice.
    pub(crate) fn measure<S>(
        &self,
        scenario: &'static str,
        settings: &[(String, S)],
        mut sample: impl FnMut(&S, usize) -> anyhow::Result<Sample>,
    ) -> Result<Measured, PlanError> {
        let n = self.rounds as usize;
        let plan = Plan {
            seed: self.seed,
            min_rounds: n,
            max_rounds: n,
            ..Plan::new(settings.iter().map(|(name, _)| name.clone()))
        };
        let mut progress = Progress::new(n * settings.len());
        let mut latency: Vec<(String, Latency)> = Vec::new();
        let rounds = rounds::run(&plan, &[], |trial| {
            let round = trial.round + 1;
            progress.step(&format!("{scenario} round {round}/{n} {}", trial.setting));
            let Some((name, setting)) = settings.iter().find(|(name, _)| name == trial.setting)
            else {
                anyhow::bail!("no such setting");
            };
            let sample = sample(setting, trial.round)?;
            match latency.iter_mut().find(|(have, _)| have == name) {
                Some((_, all)) => all.add(&sample.latency),
                None => latency.push((name.clone(), sample.latency)),
            }
            Ok(sample.figures)
        });
        progress.clear();
        Ok(Measured {
            rounds: rounds?,
            scenario,
            latency,
        })
    }
}

impl Measured {
    /// The row of a setting with its latency, items a second and use of the CPUs as far as they were measured, or with its error.
    pub(crate) fn row(&self, setting: &str) -> Row {
        let mut row = Row::new(self.scenario, setting);
        match self.rounds.errors(setting).first() {
            Some((round, e)) => row.error = Some(format!("round {}: {e}", round + 1)),
            None => {
                let found = self.latency.iter().find(|(name, _)| name == setting);
                row.latency_us = found.map(|(_, l)| l.summary());
                row.items_per_s = self.spread(setting, "items_per_s");
                row.cpu_util_percent = self.spread(setting, "cpu_percent").map(|s| s.mean);
                row.cpu_util_of = row.cpu_util_percent.map(|_| CpuUtilOf::Machine);
            }
        }
        row
    }

    /// A figure over the rounds; none for a setting that failed once.
    pub(crate) fn spread(&self, setting: &str, figure: &str) -> Option<Spread> {
        match self.rounds.errors(setting).is_empty() {
            true => Spread::of(&self.rounds.values(setting, figure)),
            false => None,
        }
    }
}

/// Fails if a row has an error, after everything was shown.
pub(crate) fn check(rows: &[Row]) -> anyhow::Result<()> {
    match rows.iter().find(|r| r.error.is_some()) {
        Some(Row {
            setting,
            error: Some(e),
            ..
        }) => anyhow::bail!("{setting}: {e}"),
        _ => Ok(()),
    }
}
