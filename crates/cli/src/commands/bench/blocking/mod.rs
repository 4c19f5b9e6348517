//! `cmwq bench blocking`: how soon a blocked worker is replaced, by each means of noticing it, and what that costs.
//!
//! | file | what |
//! |---|---|
//! | `handover.rs` | from an item blocking to the next item running on its CPU |
//! | `hog.rs` | a foreign process that keeps the CPU busy, in this or another cgroup; the delay of a thread woken beside it |
//! | `mix.rs` | computing items queued behind sleeping ones |
//! | `overhead.rs` | what detection costs workers that compute, and workers that switch all the time, and a foreign process |
//! | `groups.rs` | cgroups made for the purpose |
//! | `leaving.rs` | ends of processes and runtimes, and `setuid`, beside busy processes |

mod groups;
mod handover;
mod hog;
mod leaving;
mod mix;
mod overhead;

use cmwq_measure::rows::{Row, Spread};
use cmwq_measure::{Document, LatencySummary, Machine, Table, stats};
use groups::{Confined, Rule};
use hog::{Group, Hog};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// Measure how soon a blocked worker is replaced, and what that costs
///
/// Rows: from an item blocking (on a futex) to the next item running on its CPU, in microseconds, for each means of noticing:
/// said (cmwq::blocking), sentinel, tick and records each alone, and auto (the default); alone on the CPU, beside a process
/// that keeps it busy, beside one in another cgroup, in a cgroup with cpu.idle and under a quota, where such can be made.
/// thread_wake_us: the delay of an ordinary thread woken there. mix: 16 items that sleep 4 ms and 64 that compute
/// 50 us queued behind (on two CPUs; more on more), until the computing ones are done, with the workers already made (warm) and
/// on a new runtime (cold). cost: time with detection to time without. leaving: how long an exit, a runtime's shutdown and
/// a setuid take beside three busy processes, with sentinels and without. Medians over rounds that run everything in turn.
/// Other thread pools beside cmwq, for hand-overs and the mix: cargo run --release -p bench -- --only handover,mix (in the
/// source tree).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON for programs (the form of cmwq bench)
    #[arg(long)]
    json: bool,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// A fifth of the samples
    #[arg(long)]
    quick: bool,

    /// Only these parts
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    only: Vec<Part>,

    /// Keep this CPU busy until standard input ends (used by the bench itself)
    #[arg(long, value_name = "CPU", hide = true)]
    hog: Option<u32>,

    /// Leave in this way (used by the bench itself)
    #[arg(long, value_name = "WAY", hide = true)]
    leave: Option<String>,
}

/// A part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Handover,
    Mix,
    Cost,
    Leaving,
}

/// Where hand-overs are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scene {
    Alone,
    Hog,
    HogElsewhere,
    IdleGroup,
    Quota,
}

const SCENES: [Scene; 5] = [
    Scene::Alone,
    Scene::Hog,
    Scene::HogElsewhere,
    Scene::IdleGroup,
    Scene::Quota,
];

/// What a scene needs, until it is dropped.
struct Setting {
    _hog: Option<Hog>,
    _confined: Option<Confined>,
}

impl Scene {
    fn name(self) -> &'static str {
        match self {
            Scene::Alone => "handover",
            Scene::Hog => "handover beside a hog",
            Scene::HogElsewhere => "handover beside a hog in another cgroup",
            Scene::IdleGroup => "handover in a cgroup with cpu.idle",
            Scene::Quota => "handover under a quota",
        }
    }

    fn has_hog(self) -> bool {
        matches!(self, Scene::Hog | Scene::HogElsewhere)
    }

    fn set(self, cpu: u32) -> anyhow::Result<Setting> {
        let hog = match self {
            Scene::Hog => Some(Hog::start(cpu, Group::Same)?),
            Scene::HogElsewhere => Some(Hog::start(cpu, Group::Other)?),
            _ => None,
        };
        let confined = match self {
            Scene::IdleGroup => Some(Confined::by(Rule::Idle)?),
            Scene::Quota => Some(Confined::by(Rule::Quota)?),
            _ => None,
        };
        Ok(Setting {
            _hog: hog,
            _confined: confined,
        })
    }

    /// How many hand-overs a round measures. What takes a tick or a scheduler's slice each time is sampled less often.
    fn samples(self, m: Mechanism, scale: usize) -> usize {
        let n = match (self.has_hog(), m) {
            (true, Mechanism::Sentinel) => 5,
            (true, _) => 40,
            (false, Mechanism::Tick | Mechanism::Records) => 10,
            (false, _) => 60,
        };
        n * scale
    }
}

/// How a worker that blocks is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mechanism {
    Said,
    Sentinel,
    Tick,
    Records,
    Auto,
}

const MECHANISMS: [Mechanism; 5] = [
    Mechanism::Said,
    Mechanism::Sentinel,
    Mechanism::Tick,
    Mechanism::Records,
    Mechanism::Auto,
];

impl Mechanism {
    fn name(self) -> &'static str {
        match self {
            Mechanism::Said => "said",
            Mechanism::Sentinel => "sentinel",
            Mechanism::Tick => "tick",
            Mechanism::Records => "records",
            Mechanism::Auto => "auto",
        }
    }

    fn detectors(self) -> cmwq::Detectors {
        let d = cmwq::Detectors::new();
        match self {
            Mechanism::Said => cmwq::Detectors::none(),
            Mechanism::Sentinel => d.tick(false),
            Mechanism::Tick => d.sentinel(false),
            Mechanism::Records => d.sentinel(false).records(true),
            Mechanism::Auto => d,
        }
    }
}

/// Per-round figures of one setting.
#[derive(Default)]
struct Series {
    p50: Vec<f64>,
    p99: Vec<f64>,
    count: u64,
    error: Option<String>,
}

impl Series {
    fn add(&mut self, round: anyhow::Result<cmwq_measure::Latency>) {
        match round {
            Ok(l) => {
                self.p50.extend(l.percentile_us(50.0));
                self.p99.extend(l.percentile_us(99.0));
                self.count += l.count();
            }
            Err(e) => self.error = Some(format!("{e:#}")),
        }
    }

    fn summary(&self) -> Option<LatencySummary> {
        Some(LatencySummary {
            count: Some(self.count),
            p50: Some(stats::median(&self.p50)?),
            p99: Some(stats::median(&self.p99)?),
            ..LatencySummary::default()
        })
    }
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if let Some(cpu) = self.hog {
            return hog::be_one(cpu);
        }
        if let Some(way) = &self.leave {
            return leaving::leave(way);
        }
        let cpus = hog::usable_cpus()?;
        let (main_cpu, cpu) = (cpus[0], cpus[cpus.len() - 1]);
        let scale = if self.quick { 1 } else { 5 };
        let wants = |part: Part| self.only.is_empty() || self.only.contains(&part);
        let mut series: BTreeMap<(Scene, Mechanism), Series> = BTreeMap::new();
        let mut floor: BTreeMap<Scene, Series> = BTreeMap::new();
        let mut mixes = mix::Mixes::default();
        let mut costs = overhead::Costs::default();
        let mut leaves = leaving::Leaves::default();
        for round in 0..self.rounds {
            for scene in SCENES {
                if !wants(Part::Handover) {
                    break;
                }
                let setting = match scene.set(cpu) {
                    Ok(setting) => setting,
                    Err(e) => {
                        if round == 0 {
                            eprintln!("skipped: {}: {e:#}", scene.name());
                        }
                        for m in MECHANISMS {
                            series.entry((scene, m)).or_default().error = Some(format!("{e:#}"));
                        }
                        continue;
                    }
                };
                for m in MECHANISMS {
                    let n = scene.samples(m, scale);
                    let lat = handover::round(m, cpu, n, || hog::pin_self(main_cpu));
                    hog::pin_self_to(&cpus)?;
                    series.entry((scene, m)).or_default().add(lat);
                }
                let n = scene.samples(Mechanism::Auto, scale);
                floor.entry(scene).or_default().add(hog::wake_delay(cpu, n));
                drop(setting);
            }
            if wants(Part::Mix) {
                mixes.round(cpus.len())?;
            }
            if wants(Part::Cost) {
                costs.round(cpu, round == 0)?;
            }
            if wants(Part::Leaving) {
                leaves.round(&cpus)?;
            }
        }
        let mut document = self.document(&series, &floor, cpu);
        document.extras.insert("mix".to_owned(), mixes.json());
        document.extras.insert("cost".to_owned(), costs.json());
        document.extras.insert("leaving".to_owned(), leaves.json());
        if self.json {
            println!("{}", document.to_json()?);
        } else {
            print(&document);
        }
        Ok(())
    }

    fn document(
        &self,
        series: &BTreeMap<(Scene, Mechanism), Series>,
        floor: &BTreeMap<Scene, Series>,
        cpu: u32,
    ) -> Document {
        let mut document = Document::new("cmwq bench blocking", Machine::detect())
            .setting("rounds", self.rounds)
            .setting("quick", self.quick)
            .setting("cpu", cpu)
            .versioned("cmwq", env!("CARGO_PKG_VERSION"));
        for ((scene, m), s) in series {
            document.rows.push(Row {
                mechanism: Some(m.name().to_owned()),
                hog: Some(scene.has_hog()),
                handover_us: s.summary(),
                error: s.error.clone(),
                ..Row::new(scene.name(), m.name())
            });
        }
        let delays: serde_json::Map<String, serde_json::Value> = floor
            .iter()
            .filter_map(|(scene, s)| {
                let l = s.summary()?;
                Some((
                    scene.name().to_owned(),
                    json!({ "p50": l.p50, "p99": l.p99 }),
                ))
            })
            .collect();
        document
            .extras
            .insert("thread_wake_us".to_owned(), delays.into());
        document
    }
}

fn print(document: &Document) {
    println!("{}", document.machine.line());
    println!("from an item blocking to the next one running on its CPU, us; medians over rounds");
    let mut table = Table::new(["scenario", "mechanism", "p50", "p99", "samples", ""]);
    for row in &document.rows {
        let l = row.handover_us.unwrap_or_default();
        let show = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.1}"));
        table.row([
            row.scenario.clone(),
            row.setting.clone(),
            show(l.p50),
            show(l.p99),
            l.count.map_or("-".to_owned(), |n| n.to_string()),
            row.error.clone().unwrap_or_default(),
        ]);
    }
    println!("{}", table.render());
    for name in ["thread_wake_us", "mix", "cost", "leaving"] {
        if let Some(v) = document.extras.get(name) {
            println!("{name}: {v}");
        }
    }
}

/// The median of durations, in milliseconds.
fn median_ms(of: &[Duration]) -> Option<f64> {
    let ms: Vec<f64> = of.iter().map(|d| d.as_secs_f64() * 1e3).collect();
    stats::median(&ms)
}

/// A value with its spread as JSON.
fn spread_json(values: &[f64]) -> serde_json::Value {
    Spread::of(values).map_or(
        serde_json::Value::Null,
        |s| json!({ "median": s.median, "min": s.min, "max": s.max, "n": s.n }),
    )
}
