//! `cmwq list`: the processes that are served, their queues and rates.

use std::io::Write;
use std::time::Duration;

use cmwq_control::client::Found;
use cmwq_control::snapshot::{Detail, Snapshot};
use serde_json::json;

use super::live::{self, Place, Table, human_rate, human_span, rate};

/// List the processes that can be seen, their workqueues and rates
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Seconds over which rates are taken
    #[arg(short, long, default_value = "0.5", value_parser = live::seconds, value_name = "SECS")]
    interval: Duration,
    /// One JSON array
    #[arg(long)]
    json: bool,
}

struct Line {
    found: Found,
    /// Two snapshots, or why there are none.
    seen: Result<(Snapshot, Snapshot), String>,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut found = self.place.open()?.list()?;
        let first: Vec<Result<Snapshot, String>> = found.iter_mut().map(look).collect();
        if first.iter().any(Result::is_ok) {
            std::thread::sleep(self.interval);
        }
        let lines: Vec<Line> = found
            .into_iter()
            .zip(first)
            .map(|(mut found, first)| {
                let seen = first.and_then(|first| Ok((first, look(&mut found)?)));
                Line { found, seen }
            })
            .collect();
        if self.json {
            return live::print_json(&lines.iter().map(as_json).collect::<Vec<_>>());
        }
        live::to_stdout(|out| {
            if lines.is_empty() {
                writeln!(
                    out,
                    "no process is served; a program opts in with `cmwq::control::listen()`"
                )?;
            }
            for line in &lines {
                print(out, line)?;
            }
            Ok(())
        })
    }
}

fn look(found: &mut Found) -> Result<Snapshot, String> {
    match &mut found.client {
        Ok(client) => live::snapshot(client, Detail::COUNTERS).map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

fn uptime_seconds(s: &Snapshot) -> u64 {
    s.clock.unix_ms.saturating_sub(s.process.started_unix_ms) / 1000
}

fn print(out: &mut dyn Write, line: &Line) -> anyhow::Result<()> {
    let (before, now) = match &line.seen {
        Ok(both) => both,
        Err(e) => {
            writeln!(out, "{}  {}", line.found.pid, live::clean(e))?;
            return Ok(());
        }
    };
    let p = &now.process;
    writeln!(
        out,
        "{}  {}  cmwq {}, up {}, {} workers, {}",
        line.found.pid,
        p.name,
        p.version,
        human_span(uptime_seconds(now)),
        now.threads.workers,
        if p.allow_set {
            "changes allowed"
        } else {
            "read-only"
        },
    )?;
    let mut table = Table::new(&[
        "<WORKQUEUE",
        "<KIND",
        "ACTIVE/MAX",
        "WAITING",
        "ITEMS/S",
        "TOTAL",
    ]);
    let ns = now
        .clock
        .monotonic_ns
        .saturating_sub(before.clock.monotonic_ns);
    for q in &now.workqueues {
        let old = before
            .workqueues
            .iter()
            .find(|o| o.id == q.id)
            .map_or(0, |o| o.counters.started);
        table.row(vec![
            q.name.clone(),
            q.kind.as_str().into(),
            format!("{}/{}", q.nr_active, q.max_active),
            (q.pending.total + q.inactive.total).to_string(),
            human_rate(rate(q.counters.started, old, ns)),
            q.counters.started.to_string(),
        ]);
    }
    table.write(out, "    ")?;
    Ok(())
}

fn as_json(line: &Line) -> serde_json::Value {
    match &line.seen {
        Err(e) => {
            json!({"format": 1, "pid": line.found.pid, "socket": line.found.path, "error": e})
        }
        Ok((before, now)) => {
            let ns = now
                .clock
                .monotonic_ns
                .saturating_sub(before.clock.monotonic_ns);
            let queues: Vec<_> = now
                .workqueues
                .iter()
                .map(|q| {
                    let old = before.workqueues.iter().find(|o| o.id == q.id).map_or(0, |o| o.counters.started);
                    json!({
                        "name": q.name, "kind": q.kind, "active": q.nr_active, "max_active": q.max_active,
                        "waiting": q.pending.total + q.inactive.total, "started": q.counters.started,
                        "items_per_second": rate(q.counters.started, old, ns),
                    })
                })
                .collect();
            json!({
                "format": 1, "pid": line.found.pid, "socket": line.found.path, "process": now.process,
                "uptime_seconds": uptime_seconds(now), "workers": now.threads.workers, "workqueues": queues,
            })
        }
    }
}
