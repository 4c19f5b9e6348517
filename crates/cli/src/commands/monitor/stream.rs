//! The plain and the JSON stream.

use std::io::Write;
use std::time::{Duration, Instant};

use cmwq_control::client::Client;
use cmwq_control::snapshot::{Detail, Snapshot, WorkqueueSnapshot, WqKind};
use regex::Regex;
use serde_json::json;

use super::super::live;
use super::wanted;

/// Width of the name column.
const NAME: usize = 24;

pub(super) fn run(
    mut client: Client,
    patterns: &[Regex],
    interval: Duration,
    as_json: bool,
) -> anyhow::Result<()> {
    let mut next = Instant::now();
    loop {
        let snapshot = live::snapshot(&mut client, Detail::COUNTERS)?;
        let mut reader_left = true;
        live::to_stdout(|out| {
            if as_json {
                serde_json::to_writer(&mut *out, &json_line(&snapshot, patterns))
                    .map_err(std::io::Error::from)?;
                writeln!(out)?;
            } else {
                write(out, &snapshot, patterns)?;
            }
            out.flush()?;
            reader_left = false;
            Ok(())
        })?;
        if interval.is_zero() || reader_left {
            return Ok(());
        }
        // Looks keep to their rhythm however long one takes; missed ones are left out.
        next += interval;
        let now = Instant::now();
        if next <= now {
            next = now + interval;
        }
        std::thread::sleep(next - now);
    }
}

/// Headings and one row a queue; an empty line after.
fn write(out: &mut dyn Write, s: &Snapshot, patterns: &[Regex]) -> std::io::Result<()> {
    writeln!(
        out,
        "{:>NAME$} {:>8} {:>5} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7}",
        "", "total", "infl", "CPUtime", "CPUlocl", "CPUitsv", "CMW/RPR", "mayday", "rescued"
    )?;
    for q in s.workqueues.iter().filter(|q| wanted(patterns, &q.name)) {
        writeln!(out, "{}", row(q))?;
    }
    writeln!(out)
}

fn row(q: &WorkqueueSnapshot) -> String {
    let c = &q.counters;
    let percpu = q.kind == WqKind::PerCpu;
    // The last characters tell queues apart better than the first.
    let skip = q.name.chars().count().saturating_sub(NAME);
    let name: String = q.name.chars().skip(skip).collect();
    let dash_unless = |condition: bool, n: u64| if condition { n.to_string() } else { "-".into() };
    format!(
        "{name:<NAME$} {:>8} {:>5} {:>8.1} {:>8} {:>7} {:>7} {:>7} {:>7}",
        c.started,
        c.in_flight(),
        c.cpu_time_ns as f64 / 1e9,
        c.cpu_local,
        c.cpu_intensive,
        if percpu { c.cm_wakeup } else { c.repatriated },
        dash_unless(q.flags.mem_reclaim, c.mayday),
        dash_unless(q.flags.mem_reclaim, c.rescued),
    )
}

/// The kernel's keys, and ours.
fn json_line(s: &Snapshot, patterns: &[Regex]) -> serde_json::Value {
    let queues: Vec<_> = s
        .workqueues
        .iter()
        .filter(|q| wanted(patterns, &q.name))
        .map(|q| {
            let c = &q.counters;
            json!({
                "name": q.name, "kind": q.kind, "unbound": q.kind != WqKind::PerCpu, "mem_reclaim": q.flags.mem_reclaim,
                "queued": c.queued, "started": c.started, "completed": c.completed, "cpu_time": c.cpu_time_ns / 1000,
                "cpu_local": c.cpu_local, "cpu_intensive": c.cpu_intensive, "cm_wakeup": c.cm_wakeup,
                "repatriated": c.repatriated, "mayday": c.mayday, "rescued": c.rescued, "helped": c.helped,
                "hedged": c.hedged, "widened": c.widened, "inline_run": c.inline_run, "fairness_extra": c.fairness_extra, "stalls": c.stalls,
                "already_pending": c.already_pending, "cancelled": c.cancelled, "panicked": c.panicked, "refused": c.refused,
                "throttled": c.throttled, "active": q.nr_active, "max_active": q.max_active,
                "pending": q.pending.total, "inactive": q.inactive.total,
            })
        })
        .collect();
    json!({"format": 1, "timestamp": s.clock.unix_ms as f64 / 1000.0, "pid": s.process.pid, "workqueues": queues})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> WorkqueueSnapshot {
        let mut q = WorkqueueSnapshot {
            name: "a-queue-with-a-name-of-32-letters".into(),
            ..Default::default()
        };
        let c = &mut q.counters;
        (
            c.started,
            c.completed,
            c.cpu_time_ns,
            c.repatriated,
            c.cm_wakeup,
        ) = (120, 100, 1_550_000_000, 3, 4);
        q
    }

    #[test]
    fn columns_line_up_with_their_headings() {
        let s = Snapshot {
            workqueues: vec![sample()],
            ..Default::default()
        };
        let mut out = Vec::new();
        write(&mut out, &s, &[]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].len(), lines[1].len());
        assert!(
            lines[1].starts_with("e-with-a-name-of-32-letters".split_at(3).1),
            "{}",
            lines[1]
        );
        let cells: Vec<&str> = lines[1][NAME..].split_whitespace().collect();
        assert_eq!(cells, ["120", "20", "1.6", "0", "0", "3", "-", "-"]);
    }

    #[test]
    fn per_cpu_queues_show_wakeups_and_guaranteed_ones_the_rescuer() {
        let mut q = sample();
        (q.kind, q.flags.mem_reclaim) = (WqKind::PerCpu, true);
        let row = row(&q);
        assert_eq!(
            row[NAME..].split_whitespace().skip(5).collect::<Vec<_>>(),
            ["4", "0", "0"]
        );
    }

    #[test]
    fn json_has_the_kernels_keys_and_patterns_select() {
        let s = Snapshot {
            workqueues: vec![sample()],
            ..Default::default()
        };
        let line = json_line(&s, &[]);
        for key in [
            "name",
            "unbound",
            "mem_reclaim",
            "started",
            "completed",
            "cpu_time",
            "cpu_intensive",
            "cm_wakeup",
            "repatriated",
            "mayday",
            "rescued",
        ] {
            assert!(!line["workqueues"][0][key].is_null(), "{key}");
        }
        assert_eq!(line["workqueues"][0]["cpu_time"], 1_550_000);
        let none = json_line(&s, &[Regex::new("^x").unwrap()]);
        assert_eq!(none["workqueues"].as_array().unwrap().len(), 0);
    }
}
