//! `cmwq bench scopes`: what affinity scopes cost and give, with items that only compute.

mod load;
mod results;

use std::time::Duration;

use anyhow::Context as _;
use cmwq_measure::{Bar, Document, Plan, rounds};

use super::crypt::seconds;
use super::host::Host;
use super::output::{Output, all_measured};
use super::progress::Progress;
use super::setting::Setting;
use load::Load;

/// What is run.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scenario {
    /// An issuer bound to one CPU, with more work than that CPU can do
    Overload,
    /// An issuer bound to one CPU that queues one item and waits for it
    Sync,
    /// An issuer bound to no CPU that queues one item and waits for it
    Pair,
    /// A thread bound to each CPU, each queues one item and waits for it
    EachCpu,
    /// 1,000 items a second on a machine that has nothing else to do
    Calm,
}

impl Scenario {
    const ALL: [Scenario; 5] = [
        Scenario::Overload,
        Scenario::Sync,
        Scenario::Pair,
        Scenario::EachCpu,
        Scenario::Calm,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Scenario::Overload => "overload",
            Scenario::Sync => "sync",
            Scenario::Pair => "pair",
            Scenario::EachCpu => "each-cpu",
            Scenario::Calm => "calm",
        }
    }
}

/// Run the same items with every affinity scope, side by side
///
/// Settings with a scope's name are static and run in kernel mode (unmanaged, no helping); "default" is the library's default.
/// Settings run interleaved, round by round; a verdict is the lower bound of the paired ratio. Rounds are added until verdicts are
/// clear or --max-rounds is reached.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// What to run, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    scenario: Vec<Scenario>,
    /// Settings, separated by commas: default, or a scope (cpu, smt, cache-shard, cache, numa, system) with -strict, -local or
    /// both behind [default: those that tell most, by scenario]
    #[arg(long, alias = "scopes", value_name = "LIST", value_delimiter = ',')]
    settings: Vec<Setting>,
    /// Let the runtime take each CPU for one with a last-level cache of its own
    #[arg(long, conflicts_with = "synthetic")]
    one_cache_per_cpu: bool,
    /// Let the runtime see these caches and nodes on the same CPUs, as for cmwq topology
    #[arg(long, value_name = "SPEC")]
    synthetic: Option<String>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    runtime: Duration,
    /// Rounds at least: every setting is measured once in each
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rounds at most
    #[arg(long, value_name = "N", default_value_t = 28, value_parser = clap::value_parser!(u32).range(1..))]
    max_rounds: u32,
    /// Microseconds that an item of overload and calm computes
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    work_us: u64,
    /// Microseconds that an item computes in the scenarios that wait for each
    #[arg(long, value_name = "US", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    sync_work_us: u64,
    /// Seed of the order of settings in a round
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let spec = match self.one_cache_per_cpu {
            true => Some(one_cache_per_cpu()?),
            false => self.synthetic.clone(),
        };
        let host = Host::new(spec.as_deref())?;
        let (document, text, failures) = self.measure(&host)?;
        self.output.finish(&document, &host, &text)?;
        all_measured(&failures)
    }

    fn settings_of(&self, scenario: Scenario) -> anyhow::Result<Vec<Setting>> {
        if !self.settings.is_empty() {
            let other = self.settings.iter().find(|s| s.scope().is_none());
            if let Some(s) = other {
                anyhow::bail!("--settings: {s} has no scope; it is for cmwq bench crypt");
            }
            return Ok(self.settings.clone());
        }
        let named = |names: &str| {
            names
                .split(' ')
                .map(|n| n.parse().expect("a name"))
                .collect()
        };
        Ok(match scenario {
            Scenario::EachCpu => named("cpu smt cache-shard cache numa system default"),
            Scenario::Calm => named("system cache-shard default"),
            _ => named("system cache cache-strict cpu cpu-strict system-local cache-local default"),
        })
    }

    fn measure(&self, host: &Host) -> anyhow::Result<(Document, String, Vec<String>)> {
        let scenarios = match self.scenario.is_empty() {
            true => Scenario::ALL.to_vec(),
            false => self.scenario.clone(),
        };
        let (min, max) = (
            self.rounds as usize,
            self.max_rounds.max(self.rounds) as usize,
        );
        let mut steps = 0;
        for s in &scenarios {
            steps += self.settings_of(*s)?.len() * max;
        }
        let mut progress = Progress::new(steps);
        let mut document = Document::new("cmwq bench scopes", host.machine())
            .versioned("cmwq", env!("CARGO_PKG_VERSION"))
            .setting("rounds_min", min)
            .setting("rounds_max", max)
            .setting("runtime_s", self.runtime.as_secs_f64())
            .setting("work_us", self.work_us)
            .setting("sync_work_us", self.sync_work_us)
            .setting("one_cache_per_cpu", self.one_cache_per_cpu)
            .setting("seed", self.seed);
        let (mut text, mut failures) = (String::new(), Vec::new());
        for scenario in scenarios {
            let settings = self.settings_of(scenario)?;
            let load = Load {
                scenario,
                host,
                runtime: self.runtime,
                work: Duration::from_micros(match scenario {
                    Scenario::Overload | Scenario::Calm => self.work_us,
                    _ => self.sync_work_us,
                }),
            };
            let goals: Vec<Bar> = results::bars(scenario, &settings);
            let plan = Plan {
                seed: self.seed,
                min_rounds: min,
                // Without a goal more rounds would settle nothing.
                max_rounds: if goals.is_empty() { min } else { max },
                ..Plan::new(settings.iter().map(Setting::to_string))
            };
            let measured = rounds::run(&plan, &goals, |trial| {
                progress.step(&format!(
                    "{} round {} {}",
                    scenario.name(),
                    trial.round + 1,
                    trial.setting
                ));
                let setting = settings
                    .iter()
                    .find(|s| s.to_string() == trial.setting)
                    .context("no such setting")?;
                load.measure(*setting)
            })?;
            let rows = results::rows(scenario, &settings, &measured);
            let verdicts: Vec<_> = goals.iter().map(|g| g.judge(&measured)).collect();
            text += &results::text(scenario, &rows, &verdicts);
            text.push('\n');
            for s in &settings {
                for (round, e) in measured.errors(&s.to_string()) {
                    failures.push(format!("{} {s} round {}: {e}", scenario.name(), round + 1));
                }
            }
            document.rows.extend(rows);
            document.verdicts.extend(verdicts);
        }
        progress.clear();
        Ok((document, text, failures))
    }
}

/// The CPUs that this process may use, each with a last-level cache of its own.
fn one_cache_per_cpu() -> anyhow::Result<String> {
    let host = Host::new(None)?;
    let n = host.cpus();
    anyhow::ensure!(
        host.usable == cmwq::CpuSet::first_n(n),
        "--one-cache-per-cpu: this process may use the CPUs {}; a made-up machine has them numbered from 0 without gaps",
        host.usable
    );
    Ok(format!("l3:{n} core:1"))
}

#[cfg(test)]
mod tests;
