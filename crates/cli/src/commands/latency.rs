//! `cmwq latency`: how long items wait and run, and comparisons.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cmwq_control::advise::human_ns;
use cmwq_control::histogram::{HistogramSnapshot, bucket_bounds};
use cmwq_control::snapshot::{Detail, Snapshot, WorkqueueSnapshot};
use regex::Regex;
use serde_json::json;

use super::live::{self, Place, Table, Whom};

/// Show how long work items wait for a start and how long they run
///
/// Compares two moments (`--save before.json`, later `--against before.json`) or two processes (`--against PID`): the
/// columns then stand side by side, with the difference.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Whom,
    /// Only workqueues whose name matches one of these regular expressions
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Regex>,
    /// Watch for so many seconds; without it, the whole life of the process
    #[arg(short, long, value_parser = live::seconds, value_name = "SECS")]
    interval: Option<Duration>,
    /// Keep what was measured in a file, to compare with later
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare with a saved file or with another process
    #[arg(long, value_name = "FILE|PID")]
    against: Option<String>,
    /// Leave the bar pictures out
    #[arg(long)]
    no_bars: bool,
    /// One JSON object (times in us)
    #[arg(long)]
    json: bool,
}

/// The two histograms of each queue, by name.
type Measured = Vec<(String, [HistogramSnapshot; 2])>;

const KINDS: [&str; 2] = ["queue_to_start", "run_time"];
const TITLES: [&str; 2] = ["queue to start", "run time"];

/// The rows of the table.
const ROWS: [&str; 9] = [
    "count", "average", "median", "p90", "p99", "p99.9", "min", "max", "stdev",
];

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut client = self.whom.connect()?;
        let first = client.snapshot(Detail {
            histograms: true,
            ..Detail::COUNTERS
        })?;
        let other = self.against.as_deref().map(|a| self.other(a)).transpose()?;
        let (now, other) = match self.interval {
            None => (first.clone(), other.map(Other::whole).transpose()?),
            Some(interval) => {
                std::thread::sleep(interval);
                let other = other.map(Other::interval).transpose()?;
                (
                    client.snapshot(Detail {
                        histograms: true,
                        ..Detail::COUNTERS
                    })?,
                    other,
                )
            }
        };
        if let Some(path) = &self.save {
            save(path, &now)?;
        }
        let before = self.interval.map(|_| &first);
        let here = self.select(measure(&now, before));
        if here.is_empty() {
            let names: Vec<&str> = now.workqueues.iter().map(|q| q.name.as_str()).collect();
            bail!(
                "no workqueue matches; there are: {}",
                live::clean(&names.join(", "))
            );
        }
        // Against the same process at an earlier moment, what counts is what happened since.
        let (here, there) = match other {
            Some(other) if same_process(&other.now, &now) => (
                self.select(measure(&now, Some(&other.now))),
                Some(self.select(measure(&other.now, None))),
            ),
            Some(other) => (
                here,
                Some(self.select(measure(&other.now, other.before.as_ref()))),
            ),
            None => (here, None),
        };
        if self.json {
            return live::print_json(&as_json(&here, there.as_ref()));
        }
        let labels = match &there {
            Some(_) => (
                self.against.clone().unwrap_or_default(),
                self.whom.who.clone(),
            ),
            None => (String::new(), String::new()),
        };
        live::to_stdout(|out| print(out, &here, there.as_ref(), &labels, !self.no_bars))
    }

    fn select(&self, measured: Measured) -> Measured {
        let wanted =
            |name: &str| self.patterns.is_empty() || self.patterns.iter().any(|p| p.is_match(name));
        measured
            .into_iter()
            .filter(|(name, _)| wanted(name))
            .collect()
    }

    fn other(&self, against: &str) -> anyhow::Result<Other> {
        let path = Path::new(against);
        // A pid or a process's name may be a file's name too: what looks like a file (a suffix or a slash) is one.
        if against.contains('/')
            || path.extension().is_some()
            || (path.is_file() && against.parse::<u32>().is_err())
        {
            let file = File::open(path).with_context(|| format!("cannot open {against}"))?;
            let snapshot: Snapshot = serde_json::from_reader(BufReader::new(file))
                .with_context(|| format!("{against} is no snapshot that `cmwq latency --save` or `cmwq dump --json` wrote"))?;
            return Ok(Other::File(Box::new(snapshot)));
        }
        let place = Place {
            dir: self.whom.place.dir.clone(),
        };
        let mut client = place.connect(against)?;
        let first = client.snapshot(Detail {
            histograms: true,
            ..Detail::COUNTERS
        })?;
        Ok(Other::Live(Box::new((client, first))))
    }
}

/// What is compared with.
enum Other {
    File(Box<Snapshot>),
    Live(Box<(cmwq_control::client::Client, Snapshot)>),
}

struct Moments {
    now: Snapshot,
    before: Option<Snapshot>,
}

impl Other {
    fn whole(self) -> anyhow::Result<Moments> {
        Ok(match self {
            Other::File(now) => Moments {
                now: *now,
                before: None,
            },
            Other::Live(live) => Moments {
                now: live.1,
                before: None,
            },
        })
    }

    /// The same interval as ours: called at its end.
    fn interval(self) -> anyhow::Result<Moments> {
        match self {
            Other::File(_) => self.whole(),
            Other::Live(mut live) => {
                let now = live.0.snapshot(Detail {
                    histograms: true,
                    ..Detail::COUNTERS
                })?;
                Ok(Moments {
                    now,
                    before: Some(live.1),
                })
            }
        }
    }
}

fn same_process(a: &Snapshot, b: &Snapshot) -> bool {
    let (a, b) = (&a.process, &b.process);
    a.pid == b.pid && a.start_ticks == b.start_ticks && a.started_unix_ms == b.started_unix_ms
}

fn save(path: &Path, snapshot: &Snapshot) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut out = BufWriter::new(file);
    serde_json::to_writer(&mut out, snapshot)?;
    out.flush()
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The histograms of every queue; queues of one name are merged.
fn measure(now: &Snapshot, before: Option<&Snapshot>) -> Measured {
    let mut all: Measured = Vec::new();
    for q in &now.workqueues {
        let old: Option<&WorkqueueSnapshot> = before.and_then(|b| {
            b.workqueues
                .iter()
                .find(|o| o.id == q.id && o.name == q.name)
        });
        let diff = |now: &HistogramSnapshot, get: fn(&WorkqueueSnapshot) -> &HistogramSnapshot| {
            match old {
                Some(old) => now.since(get(old)),
                None => now.clone(),
            }
        };
        let pair = [
            diff(&q.queue_to_start, |q| &q.queue_to_start),
            diff(&q.run_time, |q| &q.run_time),
        ];
        let name = live::clean(&q.name);
        match all.iter_mut().find(|(n, _)| *n == name) {
            Some((_, sum)) => sum.iter_mut().zip(&pair).for_each(|(sum, h)| sum.merge(h)),
            None => all.push((name, pair)),
        }
    }
    all
}

/// The figures of one histogram in the order of [`ROWS`], ns but for the count; `None` where nothing was measured.
fn figures(h: &HistogramSnapshot) -> [Option<f64>; 9] {
    [
        Some(h.total() as f64),
        h.mean_ns(),
        h.quantile_ns(0.5),
        h.quantile_ns(0.9),
        h.quantile_ns(0.99),
        h.quantile_ns(0.999),
        h.min_bound_ns().map(|v| v as f64),
        h.max_bound_ns().map(|v| v as f64),
        h.stdev_ns(),
    ]
}

fn cell(row: usize, value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(count) if row == 0 => format!("{count:.0}"),
        Some(ns) => human_ns(ns),
    }
}

fn percent(from: Option<f64>, to: Option<f64>) -> String {
    match (from, to) {
        (Some(from), Some(to)) if from > 0.0 => format!("{:+.1} %", (to / from - 1.0) * 100.0),
        _ => "-".into(),
    }
}

fn print(
    out: &mut dyn Write,
    here: &Measured,
    there: Option<&Measured>,
    labels: &(String, String),
    bars: bool,
) -> anyhow::Result<()> {
    for (kind, title) in TITLES.iter().enumerate() {
        writeln!(out, "{}{title}", if kind > 0 { "\n" } else { "" })?;
        match there {
            None => side_by_side(here, kind).write(out, "  ")?,
            Some(there) => {
                for (name, h) in here {
                    let empty = HistogramSnapshot::default();
                    let old = there
                        .iter()
                        .find(|(n, _)| n == name)
                        .map_or(&empty, |(_, h)| &h[kind]);
                    writeln!(out, "  {name}")?;
                    compare(old, &h[kind], labels).write(out, "    ")?;
                }
            }
        }
        if bars {
            for (name, h) in here.iter().filter(|(_, h)| !h[kind].is_empty()) {
                writeln!(out, "\n  {name}")?;
                picture(out, &h[kind], "    ")?;
            }
        }
    }
    Ok(())
}

/// One column a queue.
fn side_by_side(measured: &Measured, kind: usize) -> Table {
    let mut headings = vec!["<"];
    headings.extend(measured.iter().map(|(name, _)| name.as_str()));
    let mut table = Table::new(&headings);
    let columns: Vec<_> = measured.iter().map(|(_, h)| figures(&h[kind])).collect();
    for (row, title) in ROWS.iter().enumerate() {
        let mut cells = vec![(*title).to_owned()];
        cells.extend(columns.iter().map(|column| cell(row, column[row])));
        table.row(cells);
    }
    table
}

/// Before, after, difference.
fn compare(old: &HistogramSnapshot, new: &HistogramSnapshot, labels: &(String, String)) -> Table {
    let mut table = Table::new(&["<", &labels.0, &labels.1, "change"]);
    let (old, new) = (figures(old), figures(new));
    for (row, title) in ROWS.iter().enumerate() {
        // Two counts say how much was measured, not what became faster.
        let change = if row == 0 {
            String::new()
        } else {
            percent(old[row], new[row])
        };
        table.row(vec![
            (*title).into(),
            cell(row, old[row]),
            cell(row, new[row]),
            change,
        ]);
    }
    table
}

/// One bar for each doubling that has values, with its share.
fn picture(out: &mut dyn Write, h: &HistogramSnapshot, indent: &str) -> anyhow::Result<()> {
    const WIDTH: f64 = 40.0;
    let octave = |low: u64| if low < 1024 { 9 } else { low.ilog2() };
    let mut bars: Vec<(u32, u64)> = Vec::new();
    for &(i, n) in &h.buckets {
        let k = octave(bucket_bounds(i as usize).0);
        match bars.last_mut() {
            Some((last, sum)) if *last == k => *sum += n,
            Some((last, _)) => {
                // Empty doublings between are drawn too: gaps are what one looks for.
                for gap in *last + 1..k {
                    bars.push((gap, 0));
                }
                bars.push((k, n));
            }
            None => bars.push((k, n)),
        }
    }
    let most = bars.iter().map(|b| b.1).max().unwrap_or(0).max(1);
    let total = h.total().max(1);
    for (k, n) in bars {
        let from = if k == 9 { 0.0 } else { (1_u64 << k) as f64 };
        let length = (n as f64 / most as f64 * WIDTH).ceil() as usize;
        let share = n as f64 * 100.0 / total as f64;
        writeln!(
            out,
            "{indent}{:>8} .. {:>8} |{:<width$}| {share:5.1} % {n}",
            human_ns(from),
            human_ns((2_u64 << k) as f64),
            "#".repeat(length),
            width = WIDTH as usize
        )?;
    }
    Ok(())
}

fn as_json(here: &Measured, there: Option<&Measured>) -> serde_json::Value {
    let one = |h: &HistogramSnapshot| {
        let f = figures(h);
        let us = |i: usize| f[i].map(|ns| ns / 1000.0);
        json!({
            "count": h.total(), "average_us": us(1), "median_us": us(2), "p90_us": us(3), "p99_us": us(4),
            "p99_9_us": us(5), "min_us": us(6), "max_us": us(7), "stdev_us": us(8),
        })
    };
    let all = |m: &Measured| -> serde_json::Value {
        m.iter()
            .map(|(name, h)| {
                let kinds: serde_json::Map<String, serde_json::Value> = KINDS
                    .iter()
                    .zip(h)
                    .map(|(kind, h)| ((*kind).to_owned(), one(h)))
                    .collect();
                (name.clone(), kinds.into())
            })
            .collect::<serde_json::Map<String, serde_json::Value>>()
            .into()
    };
    json!({"format": 1, "workqueues": all(here), "against": there.map(all)})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl IntoIterator<Item = u64>) -> HistogramSnapshot {
        let mut h = HistogramSnapshot::default();
        values.into_iter().for_each(|v| h.record(v));
        h
    }

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_comparison_shows_differences() {
        let (old, new) = (histogram([100_000; 10]), histogram([50_000; 10]));
        let labels = ("old".into(), "new".into());
        let text = text(|out| compare(&old, &new, &labels).write(out, "").unwrap());
        let average = text.lines().find(|l| l.starts_with("average")).unwrap();
        assert!(average.ends_with("-50.0 %"), "{average}");
        assert!(text.lines().count() == 10, "{text}");
    }

    #[test]
    fn the_picture_has_gaps_and_shares() {
        let h = histogram([2_000, 2_000, 2_000, 100_000]);
        let text = text(|out| picture(out, &h, "").unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(
            lines[0].contains(&"#".repeat(40)) && lines[0].contains("75.0 %"),
            "{text}"
        );
        assert!(
            lines[3].contains("0.0 %") && !lines[3].contains('#'),
            "{text}"
        );
    }

    #[test]
    fn nothing_measured_prints_dashes() {
        let measured = vec![(
            "q".to_owned(),
            [HistogramSnapshot::default(), HistogramSnapshot::default()],
        )];
        let text = text(|out| print(out, &measured, None, &Default::default(), true).unwrap());
        assert!(
            text.lines()
                .any(|l| l.split_whitespace().eq(["median", "-"])),
            "{text}"
        );
        assert!(as_json(&measured, None)["workqueues"]["q"]["run_time"]["median_us"].is_null());
    }

    #[test]
    fn queues_of_one_name_are_merged() {
        let q = WorkqueueSnapshot {
            name: "q".into(),
            queue_to_start: histogram([5]),
            ..Default::default()
        };
        let twin = WorkqueueSnapshot {
            id: 1,
            queue_to_start: histogram([7, 9]),
            ..q.clone()
        };
        let s = Snapshot {
            workqueues: vec![q, twin],
            ..Default::default()
        };
        let m = measure(&s, None);
        assert_eq!((m.len(), m[0].1[0].total()), (1, 3));
        assert_eq!(measure(&s, Some(&s))[0].1[0].total(), 0);
    }
}
