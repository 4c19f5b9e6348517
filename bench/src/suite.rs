//! A whole run: every workload in paired rounds over the pools, each measurement in a process of its own, the rows of the common form.

use std::time::Duration;

use anyhow::{Context, Result};
use cmwq_measure::rounds::{self, Rounds};
use cmwq_measure::{Document, LatencySummary, Machine, Plan, Row, Spread};
use serde_json::json;

use crate::bars;
use crate::child::Launcher;
use crate::pools::{self, Entry};
use crate::workloads::{Metric, Workload, floor};

/// What to run.
#[derive(Debug, Clone)]
pub struct Suite {
    /// Workloads in order.
    pub workloads: Vec<&'static Workload>,
    /// Pools, those missing from this build included.
    pub pools: Vec<&'static Entry>,
    /// Rounds before anything is judged.
    pub min_rounds: usize,
    /// The most rounds.
    pub max_rounds: usize,
    /// No round of a workload is begun after this long.
    pub max_time: Duration,
    /// Seed of the order.
    pub seed: u64,
}

/// One workload's rounds.
#[derive(Debug)]
pub struct Measured {
    /// Which.
    pub workload: &'static Workload,
    /// The figures.
    pub rounds: Rounds,
}

impl Suite {
    /// Pools that can run.
    fn present(&self) -> Vec<String> {
        self.pools
            .iter()
            .filter(|p| p.missing.is_none())
            .map(|p| p.name.to_owned())
            .collect()
    }

    /// Runs everything; `progress` is called before every child with a line for people, and `done` with each workload's result.
    ///
    /// # Errors
    /// When no pool is left, or the floor cannot be measured. A pool that fails is a result, not an error.
    pub fn run(
        &self,
        launcher: &Launcher,
        mut progress: impl FnMut(&str),
        mut done: impl FnMut(&Measured, &Document),
    ) -> Result<Document> {
        let settings = self.present();
        let mut document = self.document(launcher);
        progress("the machine's floor");
        document.rows.push(floor_row(launcher)?);
        for (at, workload) in self.workloads.iter().enumerate() {
            let plan = Plan {
                seed: self.seed,
                min_rounds: self.min_rounds,
                max_rounds: self.max_rounds,
                max_time: Some(self.max_time),
                ..Plan::new(settings.clone())
            };
            let goals = bars::of(workload.name, &settings, &launcher.job);
            // Without a bar to settle, more rounds are not asked for.
            let plan = if goals.is_empty() {
                Plan {
                    max_rounds: plan.min_rounds,
                    ..plan
                }
            } else {
                plan
            };
            let rounds = rounds::run(&plan, &goals, |trial| {
                progress(&format!(
                    "{} ({} of {}), round {}, {}",
                    workload.name,
                    at + 1,
                    self.workloads.len(),
                    trial.round + 1,
                    trial.setting
                ));
                launcher
                    .run(trial.setting, workload.name)
                    .map_err(|e| format!("{e:#}"))
            })
            .context("planning the rounds")?;
            document.verdicts.extend(rounds.judge(&goals));
            let measured = Measured { workload, rounds };
            self.add_rows(&measured, &mut document);
            done(&measured, &document);
        }
        Ok(document)
    }

    fn document(&self, launcher: &Launcher) -> Document {
        let job = launcher.job;
        let mut document = Document::new("bench", Machine::detect())
            .setting("threads", job.threads)
            .setting("quick", job.quick)
            .setting("seed", self.seed)
            .setting("min_rounds", self.min_rounds)
            .setting("max_rounds", self.max_rounds)
            .setting("max_seconds_per_workload", self.max_time.as_secs())
            .setting("optimised", !cfg!(debug_assertions))
            .setting("steps_per_us", job.rate.steps_per_us);
        for pool in &self.pools {
            if let Some(version) = pool.version() {
                document = document.versioned(pool.package, version);
            }
        }
        document
    }

    fn add_rows(&self, measured: &Measured, document: &mut Document) {
        let (workload, rounds) = (measured.workload, &measured.rounds);
        for pool in &self.pools {
            let mut row = Row::new(workload.name, pool.name);
            row.error = pool.missing.map(str::to_owned).or_else(|| {
                let errors = rounds.errors(pool.name);
                let (_, first) = errors.first()?;
                Some(format!(
                    "{} of {} rounds failed: {first}",
                    errors.len(),
                    rounds.len()
                ))
            });
            for metric in workload.metrics {
                if let Some(spread) = Spread::of(&rounds.values(pool.name, metric.name)) {
                    row = row.figure(metric.name, metric.unit, spread);
                }
            }
            standard_figures(&mut row, rounds);
            if workload.name == "mix" && row.setting == "cmwq" && row.error.is_none() {
                let part = |kind: &str| {
                    let figure = |name: &str| {
                        row.figures
                            .get(&format!("mix_{kind}_{name}"))
                            .and_then(|f| f.spread.median)
                    };
                    let computed = figure("ms");
                    let ideal = computed
                        .zip(figure("x_ideal"))
                        .map(|(ms, times)| ms / times);
                    json!({"compute_ms": computed, "ideal_ms": ideal, "workers": figure("threads")})
                };
                document.extras.insert(
                    "mix".into(),
                    json!({"warm": part("warm"), "cold": part("cold")}),
                );
            }
            document.rows.push(row);
        }
    }
}

/// The standard members that the workload's figures have a meaning for: medians over rounds.
fn standard_figures(row: &mut Row, rounds: &Rounds) {
    let values = |name: &str| rounds.values(&row.setting, name);
    let middle = |name: &str| cmwq_measure::stats::median(&values(name));
    let per_second = |ns: &str| Spread::of(&values(ns).iter().map(|v| 1e9 / v).collect::<Vec<_>>());
    match row.scenario.as_str() {
        "ext" => row.items_per_s = per_second("ext_ns"),
        "int" => row.items_per_s = per_second("int_ns"),
        "compute" => row.items_per_s = Spread::of(&values("compute_items_per_s")),
        "lat" if middle("lat_p50_us").is_some() => {
            row.latency_us = Some(rising(
                middle("lat_p50_us"),
                middle("lat_p99_us"),
                middle("lat_p99_9_us"),
            ));
            row.cpu_util_percent = middle("lat_cpu_percent");
            row.cpu_util_of = row
                .cpu_util_percent
                .map(|_| cmwq_measure::rows::CpuUtilOf::OneCpu);
        }
        "pp" if middle("pp_p50_us").is_some() => {
            row.latency_us = Some(rising(middle("pp_p50_us"), middle("pp_p99_us"), None));
        }
        "handover" if middle("handover_p50_us").is_some() => {
            row.handover_us = Some(rising(
                middle("handover_p50_us"),
                middle("handover_p99_us"),
                None,
            ));
        }
        _ => {}
    }
}

fn rising(p50: Option<f64>, p99: Option<f64>, p99_9: Option<f64>) -> LatencySummary {
    LatencySummary {
        p50,
        p99,
        p99_9,
        ..LatencySummary::default()
    }
}

/// The floor, in this process: it needs no pool. Median of three.
fn floor_row(launcher: &Launcher) -> Result<Row> {
    let runs: Vec<_> = (0..3)
        .map(|_| floor::measure(launcher.job.quick))
        .collect::<Result<_>>()
        .context("measuring the floor")?;
    let mut row = Row::new("floor", "this machine");
    for Metric { name, unit, .. } in floor::METRICS {
        let values: Vec<f64> = runs.iter().filter_map(|r| r.get(*name).copied()).collect();
        if let Some(spread) = Spread::of(&values) {
            row = row.figure(*name, *unit, spread);
        }
    }
    Ok(row)
}

/// The pools named in a list, in the order of [`pools::ALL`]; `None` is all.
///
/// # Errors
/// A name that no pool has.
pub fn choose_pools(list: Option<&[String]>) -> Result<Vec<&'static Entry>> {
    let Some(list) = list else {
        return Ok(pools::ALL.iter().collect());
    };
    for name in list {
        anyhow::ensure!(
            pools::entry(name).is_some(),
            "no pool {name:?}; `--list` names them"
        );
    }
    Ok(pools::ALL
        .iter()
        .filter(|e| list.iter().any(|n| n == e.name))
        .collect())
}

/// The workloads named in a list, in their usual order; `None` is all.
///
/// # Errors
/// A name that no workload has.
pub fn choose_workloads(list: Option<&[String]>) -> Result<Vec<&'static Workload>> {
    let all = crate::workloads::ALL;
    let Some(list) = list else {
        return Ok(all.iter().collect());
    };
    for name in list {
        anyhow::ensure!(
            crate::workloads::find(name).is_some(),
            "no workload {name:?}; `--list` names them"
        );
    }
    Ok(all
        .iter()
        .filter(|w| list.iter().any(|n| n == w.name))
        .collect())
}
