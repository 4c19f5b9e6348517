//! The one JSON form of every bench and of the simulator, version 1. The crate's README shows it as a whole; [`validate`](crate::validate()) checks
//! a value against it; this is its Rust side.
//!
//! Writers use [`Document::to_json`], which refuses what readers could not rely on (a NaN, an empty setting name). Readers
//! ignore members they do not know; a change of meaning or the loss of a member raises [`VERSION`].

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bar::Judgement;
use crate::latency::LatencySummary;
use crate::stats;
use crate::validate::{Problem, validate};

/// Value of the member `format`.
pub const FORMAT: &str = "cmwq-rows";
/// Value of the member `version`.
pub const VERSION: u32 = 1;

/// The whole object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`FORMAT`].
    pub format: String,
    /// [`VERSION`] when written by this crate.
    pub version: u32,
    /// The command that wrote it, for example `cmwq bench crypt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Where it was measured or what was modelled.
    pub machine: Machine,
    /// How it was measured: rounds, seed, block size ...; each a string, number, boolean, or a list of these.
    pub settings: BTreeMap<String, Value>,
    /// Versions of what was compared, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// The results, in the order in which they are to be shown.
    pub rows: Vec<Row>,
    /// Bars that were judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Judgement>,
    /// Further members of the object, such as `mix`.
    #[serde(flatten)]
    pub extras: BTreeMap<String, Value>,
}

/// The machine. Everything but `cpus` may be unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Short name, for a modelled or a published machine (`ryzen-3900x`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// True when it was modelled, not measured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// CPUs that the process may use, or that the model has.
    pub cpus: usize,
    /// Processor model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `x86_64`, `aarch64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Kernel release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// One line on caches and nodes, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
}

/// One result: one setting in one scenario.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Row {
    /// What was run (`high`, `overload`, `ext`). Rows with the same scenario form a table.
    pub scenario: String,
    /// What was compared (`system`, `cache-strict`, `default`, `crossbeam`).
    pub setting: String,
    /// Throughput in MiB per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_mib_s: Option<Spread>,
    /// Items per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_s: Option<Spread>,
    /// CPU use in percent; of what, says `cpu_util_of`, which must then be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_util_percent: Option<f64>,
    /// What 100 % of `cpu_util_percent` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_util_of: Option<CpuUtilOf>,
    /// Throughput above (or below) the setting `system` of the same scenario, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_system_percent: Option<f64>,
    /// Latency in microseconds: completion, or queue to start; the scenario says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<LatencySummary>,
    /// Items that started on a CPU of their issuer's pod, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_in_pod_percent: Option<f64>,
    /// Worker migrations between CPUs an item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrations_per_item: Option<f64>,
    /// How it was noticed that a worker blocked: `said`, `sentinel`, `tick`, `records`, `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<String>,
    /// Whether a foreign thread kept the CPU busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hog: Option<bool>,
    /// From a worker blocking to the next item running on its CPU, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_us: Option<LatencySummary>,
    /// Any other figures by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, Figure>,
    /// Why there are no (or not all) figures: the setting failed, is not installed, needs a privilege.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What 100 % CPU use means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuUtilOf {
    /// All CPUs of the machine.
    Machine,
    /// One CPU.
    OneCpu,
}

/// A value over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation; 0 of a single round.
    pub stdev: f64,
    /// Median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// Smallest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Number of rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
}

impl Spread {
    /// The spread of these values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            mean: stats::mean(values)?,
            stdev: stats::stdev(values)?,
            median: stats::median(values),
            min: stats::quantile(values, 0.0),
            max: stats::quantile(values, 1.0),
            n: Some(values.len() as u64),
        })
    }

    /// A value without spread.
    pub fn exact(value: f64) -> Self {
        Self {
            mean: value,
            ..Self::default()
        }
    }
}

/// A named figure of a row, with its unit (`ns`, `percent`, `threads`, `1/item`; empty for a pure number).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Unit, may be empty.
    pub unit: String,
    /// The value over rounds.
    #[serde(flatten)]
    pub spread: Spread,
}

impl Row {
    /// A row without figures.
    pub fn new(scenario: impl Into<String>, setting: impl Into<String>) -> Self {
        Self {
            scenario: scenario.into(),
            setting: setting.into(),
            ..Self::default()
        }
    }

    /// Adds a named figure.
    #[must_use]
    pub fn figure(
        mut self,
        name: impl Into<String>,
        unit: impl Into<String>,
        spread: Spread,
    ) -> Self {
        self.figures.insert(
            name.into(),
            Figure {
                unit: unit.into(),
                spread,
            },
        );
        self
    }

    /// All figures of the row one by one, standard ones first, for tables and charts.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        let mut put = |name: &str, unit: &str, spread: Option<Spread>, better: Better| {
            if let Some(spread) = spread {
                cells.push(Cell {
                    name: name.to_owned(),
                    unit: unit.to_owned(),
                    spread,
                    better,
                });
            }
        };
        put("bandwidth", "MiB/s", self.bandwidth_mib_s, Better::Higher);
        put("items/s", "1/s", self.items_per_s, Better::Higher);
        let of = match self.cpu_util_of {
            Some(CpuUtilOf::OneCpu) => "% of one CPU",
            _ => "% of machine",
        };
        put(
            "CPU",
            of,
            self.cpu_util_percent.map(Spread::exact),
            Better::Neither,
        );
        put(
            "vs system",
            "%",
            self.vs_system_percent.map(Spread::exact),
            Better::Higher,
        );
        for (group, summary) in [
            ("latency", self.latency_us),
            ("hand-over", self.handover_us),
        ] {
            for (name, value) in summary.iter().flat_map(LatencySummary::figures) {
                if name == "stdev" {
                    continue; // shown as the spread of the mean
                }
                let stdev = if name == "mean" {
                    summary.and_then(|s| s.stdev).unwrap_or(0.0)
                } else {
                    0.0
                };
                let label = format!("{group} {}", name.replace("p99_9", "p99.9"));
                put(
                    &label,
                    "us",
                    Some(Spread {
                        mean: value,
                        stdev,
                        ..Spread::default()
                    }),
                    Better::Lower,
                );
            }
        }
        put(
            "started in pod",
            "%",
            self.started_in_pod_percent.map(Spread::exact),
            Better::Higher,
        );
        put(
            "migrations",
            "1/item",
            self.migrations_per_item.map(Spread::exact),
            Better::Lower,
        );
        for (name, figure) in &self.figures {
            put(name, &figure.unit, Some(figure.spread), Better::Neither);
        }
        cells
    }
}

/// One figure of one row, as tables and charts show it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Label.
    pub name: String,
    /// Unit, may be empty.
    pub unit: String,
    /// Value and spread.
    pub spread: Spread,
    /// Which direction is good, where that is known.
    pub better: Better,
}

/// Which direction of a figure is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// Depends, or unknown.
    Neither,
}

/// The document is not in the form; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidDocument(pub Vec<Problem>);

impl std::fmt::Display for InvalidDocument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a valid cmwq-rows document:")?;
        self.0.iter().try_for_each(|p| write!(f, "\n  {p}"))
    }
}

impl std::error::Error for InvalidDocument {}

impl Document {
    /// An empty document about this machine.
    pub fn new(tool: impl Into<String>, machine: Machine) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            tool: Some(tool.into()),
            machine,
            settings: BTreeMap::new(),
            versions: BTreeMap::new(),
            rows: Vec::new(),
            verdicts: Vec::new(),
            extras: BTreeMap::new(),
        }
    }

    /// Notes how it was measured.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    /// Notes a version.
    #[must_use]
    pub fn versioned(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.versions.insert(name.into(), version.into());
        self
    }

    /// The scenarios in the order of their first row.
    pub fn scenarios(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.scenario.as_str()) {
                names.push(&row.scenario);
            }
        }
        names
    }

    /// The rows of a scenario.
    pub fn rows_of<'a>(&'a self, scenario: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |r| r.scenario == scenario)
    }

    /// Indented JSON with a newline at the end.
    ///
    /// # Errors
    /// What [`validate`](crate::validate()) finds wrong; a NaN shows as "expected a number".
    pub fn to_json(&self) -> Result<String, InvalidDocument> {
        let wrong = |e: serde_json::Error| InvalidDocument(vec![Problem::new("$", e.to_string())]);
        let value = serde_json::to_value(self).map_err(wrong)?;
        let problems = validate(&value);
        if !problems.is_empty() {
            return Err(InvalidDocument(problems));
        }
        let mut text = serde_json::to_string_pretty(&value).map_err(wrong)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads and checks a document.
    ///
    /// # Errors
    /// Text that is no JSON, or what [`validate`](crate::validate()) finds wrong.
    pub fn from_json(text: &str) -> Result<Self, InvalidDocument> {
        let wrong = |e: serde_json::Error| InvalidDocument(vec![Problem::new("$", e.to_string())]);
        let value: Value = serde_json::from_str(text).map_err(wrong)?;
        let problems = validate(&value);
        if !problems.is_empty() {
            return Err(InvalidDocument(problems));
        }
        serde_json::from_value(value).map_err(wrong)
    }
}

impl Machine {
    /// This machine, as far as the system tells: `/proc/cpuinfo`, `/proc/meminfo`, `/proc/sys/kernel/osrelease`. What cannot be
    /// read is left out. No host name, no addresses.
    pub fn detect() -> Self {
        let line = |text: &str, key: &str| {
            text.lines()
                .find(|l| l.starts_with(key))?
                .split_once(':')
                .map(|(_, v)| v.trim().to_owned())
        };
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kb = line(&meminfo, "MemTotal")
            .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: line(&cpuinfo, "model name")
                .or_else(|| line(&cpuinfo, "CPU part").map(|p| format!("CPU part {p}"))),
            architecture: Some(std::env::consts::ARCH.to_owned()),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .ok()
                .map(|s| s.trim().to_owned()),
            memory_bytes: memory_kb.map(|kb| kb.saturating_mul(1024)),
            ..Self::default()
        }
    }

    /// One line for people: name or model, CPUs, kernel.
    pub fn line(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.name.clone());
        if self.simulated {
            parts.push("simulated".into());
        }
        parts.extend(self.model.clone());
        parts.push(format!(
            "{} CPU{}",
            self.cpus,
            if self.cpus == 1 { "" } else { "s" }
        ));
        parts.extend(self.topology.clone());
        parts.extend(
            self.memory_bytes
                .map(|b| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64)),
        );
        parts.extend(self.kernel.as_ref().map(|k| format!("Linux {k}")));
        parts.extend(self.architecture.clone());
        parts.join(", ")
    }
}

#[cfg(test)]
pub(crate) mod tests;
