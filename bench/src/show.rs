//! Tables for people: medians with their range, and ratios pair by pair.

use cmwq_measure::rounds::StopReason;
use cmwq_measure::table::{median_range, number};
use cmwq_measure::{Document, Row, Spread, Table, stats};

use crate::pools::{self, Entry};
use crate::suite::Measured;
use crate::workloads::{Metric, floor};

/// The reference of the ratio table.
const REFERENCE: &str = "crossbeam";

/// One workload: the figures, then the ratios to the bare channel and to the best peer.
pub fn workload(measured: &Measured, document: &Document, pools: &[&Entry]) -> String {
    let Measured { workload, rounds } = measured;
    let stop = match rounds.stop_reason() {
        StopReason::Settled => "every bar settled",
        StopReason::RoundCap => "the most that were asked for",
        StopReason::TimeCap => "time was over",
    };
    let mut text = format!(
        "\n{}: {} ({} paired rounds, {stop})\n",
        workload.name,
        workload.about,
        rounds.len()
    );
    let rows: Vec<&Row> = document.rows_of(workload.name).collect();
    let mut table =
        Table::new(std::iter::once("pool").chain(workload.metrics.iter().map(|m| m.head)));
    let mut notes = Vec::new();
    for row in &rows {
        let cell = |m: &Metric| {
            row.figures
                .get(m.name)
                .map_or_else(|| "-".into(), |f| median_range(&f.spread))
        };
        if row.figures.is_empty() {
            notes.push(format!(
                "{}: {}",
                row.setting,
                row.error.as_deref().unwrap_or("no figures")
            ));
            continue;
        }
        if let Some(error) = &row.error {
            notes.push(format!("{}: {error}", row.setting));
        }
        table.row(std::iter::once(row.setting.clone()).chain(workload.metrics.iter().map(cell)));
    }
    text.push_str(&table.render());
    for note in notes {
        text.push_str(&format!("  {note}\n"));
    }
    text.push_str(&ratios(measured, pools));
    text
}

/// Ratios, pair by pair: to the bare channel and to the peer with the best median.
fn ratios(measured: &Measured, pools: &[&Entry]) -> String {
    let Measured { workload, rounds } = measured;
    let metrics: Vec<&Metric> = workload.metrics.iter().filter(|m| m.compared).collect();
    let present: Vec<&&Entry> = pools.iter().filter(|p| p.missing.is_none()).collect();
    let mut heads = vec!["ratio, paired".to_owned()];
    let mut columns: Vec<(&Metric, String)> = Vec::new();
    for metric in metrics {
        let higher = metric.unit == "1/s";
        let medians = present
            .iter()
            .filter(|p| p.peer)
            .filter_map(|p| Some((p.name, stats::median(&rounds.values(p.name, metric.name))?)));
        let best = medians.min_by(|a, b| {
            if higher {
                b.1.total_cmp(&a.1)
            } else {
                a.1.total_cmp(&b.1)
            }
        });
        if present.iter().any(|p| p.name == REFERENCE) {
            heads.push(format!("{} / {REFERENCE}", metric.head));
            columns.push((metric, REFERENCE.to_owned()));
        }
        if let Some((best, _)) = best.filter(|(name, _)| *name != REFERENCE) {
            heads.push(format!("/ {best} (best)"));
            columns.push((metric, best.to_owned()));
        }
    }
    if columns.is_empty() || present.len() < 2 {
        return String::new();
    }
    let mut table = Table::new(heads);
    for pool in present {
        let cell = |(metric, reference): &(&Metric, String)| {
            Spread::of(&rounds.pairs(pool.name, reference, metric.name).ratios)
                .map_or_else(|| "-".into(), |s| median_range(&s))
        };
        table.row(std::iter::once(pool.name.to_owned()).chain(columns.iter().map(cell)));
    }
    table.render()
}

/// The floor in one line.
pub fn floor(document: &Document) -> String {
    let Some(row) = document.rows_of("floor").next() else {
        return String::new();
    };
    let part = |m: &Metric| {
        let value = row.figures.get(m.name).and_then(|f| f.spread.median);
        value.map(|v| format!("{} {}", m.head, number(v)))
    };
    let parts: Vec<String> = floor::METRICS.iter().filter_map(part).collect();
    format!("floor of this machine: {}\n", parts.join(", "))
}

/// The verdicts, one a line, with a count.
pub fn verdicts(document: &Document) -> String {
    use cmwq_measure::Verdict::{Fails, Holds, Undecided};
    if document.verdicts.is_empty() {
        return "\nbars: none of them speaks of what was measured\n".into();
    }
    let count = |v| document.verdicts.iter().filter(|j| j.verdict == v).count();
    let mut text = format!(
        "\nbars: {} hold, {} fail, {} undecided\n",
        count(Holds),
        count(Fails),
        count(Undecided)
    );
    for judgement in &document.verdicts {
        text.push_str(&format!("  {}\n", judgement.line()));
    }
    text
}

/// Pools and workloads for `--list`.
pub fn list() -> String {
    let mut table =
        Table::new(["pool", "version", "what"]).align(1, cmwq_measure::table::Align::Left);
    table = table.align(2, cmwq_measure::table::Align::Left);
    for pool in pools::ALL {
        let about = pool.missing.map_or_else(
            || pool.about.to_owned(),
            |why| format!("{} ({why})", pool.about),
        );
        table.row([pool.name, pool.version().unwrap_or(""), &about]);
    }
    let mut text = table.render();
    text.push('\n');
    let mut table = Table::new(["workload", "what"]).align(1, cmwq_measure::table::Align::Left);
    for workload in crate::workloads::ALL {
        table.row([workload.name, workload.about]);
    }
    text.push_str(&table.render());
    text
}
