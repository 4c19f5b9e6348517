//! `cmwq bench crypt`: the six published scenarios on an encrypted device in this process.

mod block;
mod fio;
mod issuer;
mod port;
mod results;
mod scenario;
mod trial;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use cmwq_crypt::cipher::{IvUnit, Key, SectorCipher, SectorSize};
use cmwq_crypt::device::{FileDevice, FileOptions, Volume};
use cmwq_measure::{Document, Plan, rounds};

use super::host::Host;
use super::output::{Output, all_measured, print};
use super::progress::Progress;
use super::setting::Setting;
use results::Results;
use scenario::{Name, Scenario};
use trial::Bench;

/// Encrypt, write, read back and verify, in six scenarios and many settings side by side
///
/// Issuing threads write blocks with a SHA-512 of their own to an encrypted device, read them back and verify them; each request
/// is one work item: cipher and device. Settings run interleaved, round by round. Settings with a scope's name are static and
/// run in kernel mode; "default" is the library's default; "thread" starts a thread for each request, "pool" is one thread a CPU
/// with one queue, "pool-per-cpu" a pinned thread with its own queue on each CPU.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// What to run, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_enum,
        default_value = "all"
    )]
    pub(crate) scenario: Vec<Name>,
    /// Settings, separated by commas: default, default-inline, thread, pool, pool-per-cpu, or a scope (cpu, smt, cache-shard,
    /// cache, numa, system) with -strict, -local or both behind [default: those of the published table, and the others]
    #[arg(long, alias = "settings", value_name = "LIST", value_delimiter = ',')]
    pub(crate) scopes: Vec<Setting>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub(crate) runtime: Duration,
    /// Rounds: every setting is measured once in each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Keep the device in this file, which is made if it is missing; else in memory. What is in it is lost
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Issuing threads of high, med and low [default: the published ratios to the CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) jobs: Option<u32>,
    /// Then run the same scenarios with fio through cmwq crypt serve, beside nbdkit where that is installed
    #[arg(long)]
    pub(crate) fio: bool,
    /// Seed of the order of settings in a round
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Let the runtime see these caches and nodes on the same CPUs, as for cmwq topology: 'package:1 l3:2 core:1' has a cache
    /// for each of two CPUs
    #[arg(long, value_name = "SPEC")]
    pub(crate) synthetic: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Takes text for people.
pub(crate) type Show<'a> = &'a mut dyn FnMut(&str) -> anyhow::Result<()>;

/// A positive number of seconds, at most an hour.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 3600.0 => Ok(Duration::from_secs_f64(s)),
        _ => Err("expected seconds, more than 0 and at most 3600".into()),
    }
}

impl Args {
    /// All scenarios in memory, with the usual settings.
    pub(crate) fn short(runtime: Duration, rounds: u32) -> Args {
        Args {
            scenario: vec![Name::All],
            scopes: Vec::new(),
            runtime,
            rounds,
            file: None,
            jobs: None,
            fio: false,
            seed: 1,
            synthetic: None,
            output: Output::default(),
        }
    }

    pub(crate) fn run(self) -> anyhow::Result<()> {
        let host = Host::new(self.synthetic.as_deref())?;
        let json = self.output.json;
        let mut show = |text: &str| if json { Ok(()) } else { print(text) };
        let (document, failures) = self.measure(&host, &mut show)?;
        self.output.finish(&document, &host, "")?;
        all_measured(&failures)
    }

    /// The results, and what failed. Each scenario's table is shown as soon as it is there.
    pub(crate) fn measure(
        &self,
        host: &Host,
        show: Show<'_>,
    ) -> anyhow::Result<(Document, Vec<String>)> {
        let jobs = self.jobs.map(|n| n as usize);
        let scenarios = Scenario::choose(&self.scenario, &host.usable, jobs);
        let volumes = scenarios
            .iter()
            .map(|s| self.volume(s.device_bytes()))
            .collect::<anyhow::Result<Vec<_>>>();
        let (mut document, mut failures) = self.measure_on(host, &scenarios, volumes?, show)?;
        if self.fio {
            let (rows, failed) = fio::run(self, &scenarios, &fio::this_program()?, show)?;
            document.rows.extend(rows);
            failures.extend(failed);
        }
        Ok((document, failures))
    }

    fn settings(&self, scenario: &Scenario) -> Vec<Setting> {
        if !self.scopes.is_empty() {
            return self.scopes.clone();
        }
        let mut all = Setting::TABLE.to_vec();
        if scenario.depth == 1 {
            all.push(Setting::DefaultInline);
        }
        all
    }

    fn measure_on(
        &self,
        host: &Host,
        scenarios: &[Scenario],
        volumes: Vec<Arc<Volume>>,
        show: Show<'_>,
    ) -> anyhow::Result<(Document, Vec<String>)> {
        let rounds = self.rounds as usize;
        let steps = scenarios.iter().map(|s| self.settings(s).len() * rounds);
        let mut progress = Progress::new(steps.sum());
        let mut document = Document::new("cmwq bench crypt", host.machine())
            .versioned("cmwq", env!("CARGO_PKG_VERSION"))
            .setting("rounds", rounds)
            .setting("runtime_s", self.runtime.as_secs_f64())
            .setting("seed", self.seed)
            .setting("fio", self.fio)
            .setting("verify", "sha512")
            .setting(
                "device",
                if self.file.is_some() {
                    "file"
                } else {
                    "memory"
                },
            )
            .setting("cipher", "aes-256-xts-plain64")
            .setting(
                "scopes",
                self.scopes
                    .iter()
                    .map(|s| s.to_string())
                    .collect::<Vec<String>>(),
            );
        let mut failures = Vec::new();
        for (scenario, volume) in scenarios.iter().zip(volumes) {
            let settings = self.settings(scenario);
            let mut bench = Bench::new(host, scenario, volume)?;
            let plan = Plan {
                seed: self.seed,
                min_rounds: rounds,
                max_rounds: rounds,
                ..Plan::new(settings.iter().map(Setting::to_string))
            };
            let mut results = Results::new(scenario, &settings);
            let measured = rounds::run(&plan, &[], |trial| {
                progress.step(&format!(
                    "{} round {}/{rounds} {}",
                    scenario.name,
                    trial.round + 1,
                    trial.setting
                ));
                let setting = settings
                    .iter()
                    .find(|s| s.to_string() == trial.setting)
                    .context("no such setting")?;
                let tally = bench.trial(*setting, self.runtime)?;
                anyhow::Ok(results.keep(*setting, tally))
            })?;
            let verdicts = results.verdicts(&measured);
            let rows = results.rows(&measured);
            progress.clear();
            show(&format!("{}\n", results.text(&rows, &verdicts)))?;
            failures.extend(results.failures(&measured));
            document.rows.extend(rows);
            document.verdicts.extend(verdicts);
        }
        Ok((document, failures))
    }

    fn volume(&self, bytes: u64) -> anyhow::Result<Arc<Volume>> {
        let device = match &self.file {
            Some(path) => FileDevice::open(
                path,
                FileOptions {
                    read_only: false,
                    size: Some(bytes),
                },
            )?,
            None => {
                FileDevice::memory(bytes).with_context(|| format!("{bytes} bytes of memory"))?
            }
        };
        let cipher = SectorCipher::new(Key::generate()?, SectorSize::B512, IvUnit::B512)?;
        Ok(Arc::new(Volume::encrypted(Arc::new(device), cipher)))
    }
}

#[cfg(test)]
mod tests;
