//! From measurements to rows, bars and a table.

use cmwq_measure::rows::CpuUtilOf;
use cmwq_measure::{
    Against, Bar, Judgement, LatencySummary, Relation, Rounds, Row, Spread, Table, stats, table,
};

use super::super::setting::Setting;
use super::Scenario;

/// The default keeps at least this part of the throughput of the setting that keeps all CPUs busy.
const BUSY: f64 = 0.97;
/// A synchronous issuer loses at most this part against the setting that keeps it on its CPU.
const SYNC: f64 = 0.98;
/// Items that may be hedged on a machine that keeps up, percent.
const HEDGED: f64 = 0.1;

/// What is promised of the default, as far as the settings tell.
pub(super) fn bars(scenario: Scenario, settings: &[Setting]) -> Vec<Bar> {
    let has = |name: &str| settings.iter().any(|s| s.to_string() == name);
    let against = |title: &str, limit: f64, other: &str| {
        Bar::new(
            &format!("{}: {title}", scenario.name()),
            "default",
            "items_per_s",
            Relation::AtLeast,
            limit,
            Against::Setting(other.into()),
        )
    };
    let mut bars = Vec::new();
    if !has("default") {
        return bars;
    }
    match scenario {
        Scenario::Overload if has("system") => {
            bars.push(against("default keeps all CPUs busy", BUSY, "system"));
        }
        Scenario::Sync | Scenario::Pair => {
            if has("cpu") && scenario == Scenario::Sync {
                bars.push(against("default is as near as scope cpu", SYNC, "cpu"));
            }
            if has("system") {
                bars.push(against("default is ahead of scope system", 1.0, "system"));
            }
        }
        Scenario::Calm => bars.push(Bar::at_most(
            "calm: hardly an item is hedged",
            "default",
            "hedged_percent",
            HEDGED,
        )),
        Scenario::Overload | Scenario::EachCpu => {}
    }
    bars
}

/// A row for each setting.
pub(super) fn rows(scenario: Scenario, settings: &[Setting], rounds: &Rounds) -> Vec<Row> {
    let mean = |setting: &str, figure| stats::mean(&rounds.values(setting, figure));
    let system = mean("system", "items_per_s");
    let row = |setting: &Setting| {
        let name = setting.to_string();
        let mut row = Row::new(scenario.name(), name.clone());
        if let Some((round, e)) = rounds.errors(&name).first() {
            row.error = Some(format!("round {}: {e}", round + 1));
        }
        row.items_per_s = Spread::of(&rounds.values(&name, "items_per_s"));
        row.cpu_util_percent = mean(&name, "cpu_percent");
        row.cpu_util_of = row.cpu_util_percent.map(|_| CpuUtilOf::Machine);
        row.started_in_pod_percent = mean(&name, "in_pod_percent");
        row.migrations_per_item = mean(&name, "migrations");
        row.vs_system_percent = match (row.items_per_s, system) {
            (Some(i), Some(s)) if s > 0.0 => Some(100.0 * (i.mean / s - 1.0)),
            _ => None,
        };
        if let Some(p50) = mean(&name, "p50_us") {
            row.latency_us = Some(LatencySummary {
                p50: Some(p50),
                p90: mean(&name, "p90_us"),
                p95: mean(&name, "p95_us"),
                p99: mean(&name, "p99_us"),
                ..LatencySummary::default()
            });
        }
        for (figure, unit) in [
            ("helped_percent", "percent"),
            ("hedged_percent", "percent"),
            ("threads", "threads"),
        ] {
            if let Some(s) = Spread::of(&rounds.values(&name, figure)) {
                row = row.figure(figure, unit, s);
            }
        }
        row
    };
    settings.iter().map(row).collect()
}

/// The scenario for people.
pub(super) fn text(scenario: Scenario, rows: &[Row], verdicts: &[Judgement]) -> String {
    let mut t = Table::new([
        "setting",
        "items/s",
        "vs system",
        "CPU % of machine",
        "in pod %",
        "migrations/item",
        "p50 us",
        "p99 us",
        "helped %",
        "hedged %",
        "threads",
    ]);
    for r in rows {
        let number = |v: Option<f64>| v.map(table::number).unwrap_or_default();
        let figure = |name: &str| number(r.figures.get(name).map(|f| f.spread.mean));
        t.row([
            r.setting.clone(),
            r.items_per_s
                .as_ref()
                .map(table::spread)
                .or_else(|| r.error.clone())
                .unwrap_or_default(),
            r.vs_system_percent
                .map(|p| format!("{p:+.1} %"))
                .unwrap_or_default(),
            number(r.cpu_util_percent),
            number(r.started_in_pod_percent),
            number(r.migrations_per_item),
            number(r.latency_us.and_then(|l| l.p50)),
            number(r.latency_us.and_then(|l| l.p99)),
            figure("helped_percent"),
            figure("hedged_percent"),
            figure("threads"),
        ]);
    }
    let mut text = format!("{}\n{}", scenario.name(), t.render());
    for v in verdicts {
        text += &v.line();
        text.push('\n');
    }
    text
}
