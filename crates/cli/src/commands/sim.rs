//! `cmwq sim`: what a setting would do on a machine that is not at hand, and fault runs of the policy.

use super::bench::print;
use anyhow::{Context, bail};
use cmwq_measure::report::Report;
use cmwq_measure::rows::{CpuUtilOf, Machine as MachineInfo, Row, Spread};
use cmwq_measure::{Document, LatencySummary, Table};
use cmwq_sim::{
    Machine, Outcome, Rules, Scenario, Setting, faults, machines, run_with, scenario, setting,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Simulate workqueues on a machine of any size
///
/// Runs scenarios with several settings on a modelled machine and prints a table. Percentages are bandwidth against the setting
/// `system`. The same seed gives the same result, bit for bit. What the model holds and where it is off is in the README of the
/// crate cmwq-sim. With --faults: random machines, loads and faults, every invariant of the policy checked after every event.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A built-in machine, a folder with a sysfs tree, an archive of one, or a specification
    ///
    /// Built in: ryzen-3900x, epyc-7713-nps1, epyc-7713-nps2, epyc-7713-nps4, grace-72, btrfs-96. A specification is for instance
    /// 'package:2 l3:4 core:8 thread:2', see cmwq topology --synthetic.
    #[arg(
        long,
        value_name = "NAME|DIR|ARCHIVE|SPEC",
        default_value = "ryzen-3900x"
    )]
    machine: String,

    /// Scenarios by name or TOML file, several with commas: high, med, low, llow, sync, think, limit, queue
    #[arg(
        long,
        value_name = "NAME|FILE",
        value_delimiter = ',',
        default_value = "high,med,low"
    )]
    scenario: Vec<String>,

    /// Settings, with commas; `all` for all
    ///
    /// system, numa, cache, cache-strict, cache-shard, cache-shard-strict, smt, smt-strict, cpu, cpu-strict, system-local,
    /// cache-local, cache-sn, cache-sn-local (all in the kernel's way; -sn: the scheduler looks into the node's other caches
    /// too), default (cmwq's own)
    #[arg(
        long,
        visible_alias = "scopes",
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "system,cache,cache-strict,cpu-strict,default"
    )]
    settings: Vec<String>,

    /// Number of issuing threads instead of the scenario's
    #[arg(long, value_name = "N")]
    jobs: Option<u32>,

    /// Limit of the queue instead of the scenario's
    #[arg(long, value_name = "N")]
    max_active: Option<u32>,

    /// Runs of each cell, with seeds from --seed on
    #[arg(long, value_name = "N", default_value_t = 3)]
    seeds: u64,

    /// First seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Print JSON for programs (the form of cmwq bench)
    #[arg(long, conflicts_with_all = ["report", "faults"])]
    json: bool,

    /// Write a page with tables and charts
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write a trace of the first cell for a browser's trace viewer (about://tracing, ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,

    /// Switch off rules of the modelled scheduler: wake-affine, idle-sibling, newidle, periodic; with commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    without: Vec<String>,

    /// Run this many seeds of random machines, loads and faults instead of scenarios
    #[arg(long, value_name = "N", conflicts_with_all = ["report", "timeline"])]
    faults: Option<u64>,

    /// With --faults 1: only these operations of the run, by number
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "faults")]
    only: Option<Vec<u32>>,

    /// Threads for --faults
    #[arg(long, value_name = "N", default_value_t = 2, requires = "faults")]
    threads: usize,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.faults {
            Some(n) => self.run_faults(n),
            None => self.run_scenarios(),
        }
    }

    fn run_faults(&self, n: u64) -> anyhow::Result<()> {
        if let Some(only) = &self.only {
            return match faults::run_seed(self.seed, Some(only)) {
                Ok(r) => {
                    println!("no violation: {} events, {} items", r.events, r.items);
                    Ok(())
                }
                Err(v) => {
                    print!("{}", v.operations());
                    bail!("{}", v.what)
                }
            };
        }
        let start = std::time::Instant::now();
        let (good, sum, bad) = faults::run_many(self.seed, n, self.threads);
        println!(
            "{good} of {n} seeds from {} on without a violation: {} items, {} events, every invariant checked after each; {:.1} s; trace {:016x}",
            self.seed,
            sum.items,
            sum.events,
            start.elapsed().as_secs_f64(),
            sum.trace
        );
        for v in &bad {
            println!("violation: {v}");
        }
        if !bad.is_empty() {
            bail!("{} seeds broke an invariant", bad.len());
        }
        Ok(())
    }

    fn rules(&self) -> anyhow::Result<Rules> {
        let mut r = Rules::default();
        for name in &self.without {
            match name.as_str() {
                "wake-affine" => r.wake_affine = false,
                "idle-sibling" => r.idle_sibling = false,
                "newidle" => r.newidle = false,
                "periodic" => r.periodic = false,
                _ => bail!(
                    "--without {name}: expected wake-affine, idle-sibling, newidle or periodic"
                ),
            }
        }
        Ok(r)
    }

    fn run_scenarios(&self) -> anyhow::Result<()> {
        let machine =
            Arc::new(machines::find(&self.machine).map_err(|e| anyhow::anyhow!("--machine: {e}"))?);
        let cpus = machine.topology.online().len();
        let scenarios: Vec<Scenario> = self
            .scenario
            .iter()
            .map(|s| self.scenario(s, cpus))
            .collect::<anyhow::Result<_>>()?;
        let settings: Vec<Setting> = if self.settings.iter().any(|s| s == "all") {
            setting::ALL.to_vec()
        } else {
            self.settings
                .iter()
                .map(|s| {
                    Setting::named(s).with_context(|| {
                        let all: Vec<&str> = setting::ALL.iter().map(|s| s.name).collect();
                        format!("--settings {s}: expected one of {}", all.join(", "))
                    })
                })
                .collect::<anyhow::Result<_>>()?
        };
        if self.seeds == 0 {
            bail!("--seeds must be at least 1");
        }
        let rules = self.rules()?;
        let mut rows = Vec::new();
        let mut timeline = None;
        for s in &scenarios {
            let mut base = None;
            for set in &settings {
                let mut outcomes = Vec::new();
                for seed in self.seed..self.seed + self.seeds {
                    let trace = if self.timeline.is_some() && timeline.is_none() {
                        200_000
                    } else {
                        0
                    };
                    let mut o = run_with(&machine, s, set, seed, rules, trace);
                    timeline = timeline.or(o.timeline.take());
                    outcomes.push(o);
                }
                rows.push(row(s, set, &outcomes, cpus, &mut base));
            }
        }
        if let (Some(path), Some(text)) = (&self.timeline, timeline) {
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
        let doc = self.document(&machine, cpus, rows);
        if let Some(path) = &self.report {
            let html = Report::new(&doc)
                .title(format!("cmwq sim: {}", machine.name))
                .to_html()
                .map_err(|e| anyhow::anyhow!("{e}"))?;
            std::fs::write(path, html).with_context(|| path.display().to_string())?;
            eprintln!("written: {}", path.display());
        }
        if self.json {
            return print(&format!("{}\n", doc.to_json()?));
        }
        print(&format!(
            "{}: {} (modelled)\n\n{}",
            machine.name,
            machine.line(),
            Table::of_rows(&doc.rows).render()
        ))
    }

    fn scenario(&self, name: &str, cpus: usize) -> anyhow::Result<Scenario> {
        let mut s = match Scenario::named(name, cpus) {
            Some(s) => s,
            None => {
                let text = std::fs::read_to_string(name).with_context(|| {
                    format!(
                        "--scenario {name}: neither one of {} nor a file",
                        scenario::NAMES.join(", ")
                    )
                })?;
                let mut s = Scenario::parse(&text).with_context(|| name.to_string())?;
                if s.name == "custom" {
                    s.name = name.to_string();
                }
                s
            }
        };
        s.jobs = self.jobs.unwrap_or(s.jobs).max(1);
        s.max_active = self.max_active.unwrap_or(s.max_active);
        Ok(s)
    }

    fn document(&self, machine: &Machine, cpus: usize, rows: Vec<Row>) -> Document {
        let machine = MachineInfo {
            name: Some(machine.name.clone()),
            simulated: true,
            cpus,
            topology: Some(machine.line()),
            ..MachineInfo::default()
        };
        let mut doc = Document::new("cmwq sim", machine)
            .setting("seed", self.seed)
            .setting("seeds", self.seeds);
        doc.rows = rows;
        doc
    }
}

fn row(s: &Scenario, set: &Setting, o: &[Outcome], cpus: usize, base: &mut Option<f64>) -> Row {
    let all = |f: &dyn Fn(&Outcome) -> f64| Spread::of(&o.iter().map(f).collect::<Vec<_>>());
    let mut row = Row::new(&*s.name, set.name);
    let mean = |f: &dyn Fn(&Outcome) -> f64| all(f).map_or(0.0, |s| s.mean);
    if s.bytes > 0 {
        row.bandwidth_mib_s = all(&|o| o.bandwidth_mib_s);
    }
    row.items_per_s = all(&|o| o.items_per_s);
    let one = s.pinned && s.jobs == 1;
    row.cpu_util_of = Some(if one {
        CpuUtilOf::OneCpu
    } else {
        CpuUtilOf::Machine
    });
    row.cpu_util_percent = Some(mean(&|o| o.cpu_percent) / if one { 1.0 } else { cpus as f64 });
    let rate = mean(&|o| o.requests_per_s);
    if set.name == "system" {
        *base = Some(rate);
    }
    row.vs_system_percent = base.filter(|&b| b > 0.0).map(|b| (rate / b - 1.0) * 100.0);
    let mut h = o[0].latency.clone();
    o[1..].iter().for_each(|x| h.merge(&x.latency));
    if h.count > 0 {
        let us = |q| Some(h.quantile(q) as f64 / 1e3);
        row.latency_us = Some(LatencySummary {
            count: Some(h.count),
            mean: Some(h.sum as f64 / h.count as f64 / 1e3),
            p50: us(0.5),
            p95: us(0.95),
            p99: us(0.99),
            max: Some(h.max as f64 / 1e3),
            ..LatencySummary::default()
        });
    }
    row.started_in_pod_percent = Some(mean(&|o| o.in_pod_percent));
    row.migrations_per_item = Some(mean(&|o| o.migrations_per_item));
    if !set.kernel
        && let Some(helped) = all(&|o| o.helped_percent)
    {
        row = row.figure("helped", "%", helped);
    }
    row
}
