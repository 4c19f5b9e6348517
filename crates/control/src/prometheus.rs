//! A snapshot as Prometheus text (exposition format 0.0.4), for `cmwq metrics` and for an application's own endpoint.
//!
//! Serve it as `text/plain; version=0.0.4`. Times are seconds, counters end in `_total`. The bounds of the histograms are
//! every doubling from 1.024 us to 69 s, which are exact bounds of the recorded buckets.

use std::fmt::{self, Write};

use crate::histogram::HistogramSnapshot;
use crate::snapshot::{Counters, MechanismState, PoolKind, Snapshot, WorkqueueSnapshot};

/// The first and last bound of the exposed histograms: `1 << k` ns.
const FIRST_BOUND: u32 = 10;
const LAST_BOUND: u32 = 36;

/// The text for one snapshot; take it with histograms (`Detail { histograms: true, ..Detail::COUNTERS }` is enough).
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = String::with_capacity(4096 + 8192 * snapshot.workqueues.len());
    // Writing to a String cannot fail.
    let _ = write(snapshot, &mut text);
    text
}

/// Writes the text for one snapshot.
///
/// # Errors
/// Only those of `out`.
pub fn write(snapshot: &Snapshot, out: &mut impl Write) -> fmt::Result {
    let mut w = Writer { out };
    let process = &snapshot.process;
    w.head("cmwq_info", "gauge", "The process and its version of cmwq.")?;
    w.line(
        "cmwq_info",
        &[
            ("name", &process.name),
            ("runtime", &process.runtime),
            ("version", &process.version),
        ],
        1.0,
    )?;
    threads(&mut w, snapshot)?;
    queues(&mut w, snapshot)?;
    pools(&mut w, snapshot)?;
    detection(&mut w, snapshot)?;
    if let Some(quota) = &snapshot.cpu.quota {
        w.single(
            "cmwq_quota_cpus",
            "gauge",
            "CPUs' worth of time that the cgroup may use.",
            quota.cpus,
        )?;
    }
    Ok(())
}

struct Writer<'a, W> {
    out: &'a mut W,
}

impl<W: Write> Writer<'_, W> {
    fn head(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}")
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) -> fmt::Result {
        self.out.write_str(name)?;
        let mut open = false;
        for (label, text) in labels.iter().filter(|(_, text)| !text.is_empty()) {
            write!(self.out, "{}{label}=\"", if open { "," } else { "{" })?;
            open = true;
            for c in text.chars() {
                match c {
                    '\\' => self.out.write_str("\\\\")?,
                    '"' => self.out.write_str("\\\"")?,
                    '\n' => self.out.write_str("\\n")?,
                    c => self.out.write_char(c)?,
                }
            }
            self.out.write_char('"')?;
        }
        writeln!(self.out, "{} {value}", if open { "}" } else { "" })
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) -> fmt::Result {
        self.head(name, kind, help)?;
        self.line(name, &[], value)
    }

    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        h: &HistogramSnapshot,
    ) -> fmt::Result {
        let bucket = format!("{name}_bucket");
        let total = h.total();
        for k in FIRST_BOUND..=LAST_BOUND {
            let bound = seconds(1 << k).to_string();
            let mut all = labels.to_vec();
            all.push(("le", &bound));
            self.line(&bucket, &all, h.count_at_most((1 << k) - 1) as f64)?;
        }
        let mut all = labels.to_vec();
        all.push(("le", "+Inf"));
        self.line(&bucket, &all, total as f64)?;
        self.line(&format!("{name}_sum"), labels, seconds(h.sum_ns))?;
        self.line(&format!("{name}_count"), labels, total as f64)
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn threads<W: Write>(w: &mut Writer<'_, W>, snapshot: &Snapshot) -> fmt::Result {
    let t = &snapshot.threads;
    w.single(
        "cmwq_worker_threads",
        "gauge",
        "Worker threads alive.",
        t.workers.into(),
    )?;
    w.single(
        "cmwq_worker_threads_ceiling",
        "gauge",
        "The most worker threads allowed (0: no ceiling).",
        t.ceiling.into(),
    )?;
    let failures = t.create_failures as f64;
    w.single(
        "cmwq_thread_create_failures_total",
        "counter",
        "Threads that the system refused.",
        failures,
    )?;
    let refused = t.refused_by_ceiling as f64;
    w.single(
        "cmwq_threads_refused_by_ceiling_total",
        "counter",
        "Workers wanted and forbidden by the ceiling.",
        refused,
    )?;
    for (name, help, counts) in [
        (
            "cmwq_workers_created_total",
            "Workers made, by reason.",
            &t.births,
        ),
        (
            "cmwq_workers_ended_total",
            "Workers ended, by reason.",
            &t.deaths,
        ),
    ] {
        w.head(name, "counter", help)?;
        for c in counts {
            w.line(name, &[("reason", &c.reason)], c.count as f64)?;
        }
    }
    Ok(())
}

/// Name and help of a counter, and how to read it.
type CounterRow = (&'static str, &'static str, fn(&Counters) -> f64);

const COUNTERS: &[CounterRow] = &[
    ("queued", "Items accepted.", |c| c.queued as f64),
    ("started", "Items started.", |c| c.started as f64),
    ("completed", "Items completed.", |c| c.completed as f64),
    (
        "cancelled",
        "Accepted items cancelled before they started.",
        |c| c.cancelled as f64,
    ),
    ("panicked", "Items that panicked.", |c| c.panicked as f64),
    ("refused", "Items refused.", |c| c.refused as f64),
    ("cpu_seconds", "CPU time in items.", |c| {
        seconds(c.cpu_time_ns)
    }),
    ("run_seconds", "Wall time in items.", |c| {
        seconds(c.run_time_ns)
    }),
    ("cpu_local", "Items started on the issuing CPU.", |c| {
        c.cpu_local as f64
    }),
    (
        "cpu_intensive",
        "Items over the CPU-intensive threshold.",
        |c| c.cpu_intensive as f64,
    ),
    ("cm_wakeup", "Concurrency-management wake-ups.", |c| {
        c.cm_wakeup as f64
    }),
    ("repatriated", "Workers brought back to their pod.", |c| {
        c.repatriated as f64
    }),
    ("mayday", "Calls for the rescuer.", |c| c.mayday as f64),
    ("rescued", "Items run by the rescuer.", |c| c.rescued as f64),
    ("helped", "Items run by a worker of another pod.", |c| {
        c.helped as f64
    }),
    ("hedged", "Items offered to other pods.", |c| {
        c.hedged as f64
    }),
    (
        "widened",
        "Items whose worker was widened to the whole mask.",
        |c| c.widened as f64,
    ),
    (
        "inline_run",
        "Items run by the thread that waited for them.",
        |c| c.inline_run as f64,
    ),
    ("throttled", "Items that waited for a limit.", |c| {
        c.throttled as f64
    }),
    ("stalls", "Reports by the watchdog.", |c| c.stalls as f64),
];

type GaugeRow = (&'static str, &'static str, fn(&WorkqueueSnapshot) -> f64);

const GAUGES: &[GaugeRow] = &[
    ("active", "Active items.", |q| q.nr_active.into()),
    ("max_active", "Limit of active items.", |q| {
        q.max_active.into()
    }),
    ("in_flight", "Items that run.", |q| {
        q.counters.in_flight() as f64
    }),
    ("pending", "Active items that wait for a worker.", |q| {
        q.pending.total as f64
    }),
    ("inactive", "Items held back by a limit.", |q| {
        q.inactive.total as f64
    }),
    ("delayed", "Delayed items whose time has not come.", |q| {
        q.delayed as f64
    }),
];

fn queues<W: Write>(w: &mut Writer<'_, W>, snapshot: &Snapshot) -> fmt::Result {
    // Two queues may have one name; a series may exist only once, so the number tells them apart then.
    let ids: Vec<String> = snapshot
        .workqueues
        .iter()
        .map(|q| {
            let twice = snapshot
                .workqueues
                .iter()
                .filter(|other| other.name == q.name)
                .count()
                > 1;
            if twice {
                q.id.to_string()
            } else {
                String::new()
            }
        })
        .collect();
    let each = || snapshot.workqueues.iter().zip(&ids);
    for (name, help, value) in COUNTERS {
        let name = format!("cmwq_workqueue_{name}_total");
        w.head(&name, "counter", help)?;
        for (q, id) in each() {
            w.line(
                &name,
                &[("workqueue", &q.name), ("id", id)],
                value(&q.counters),
            )?;
        }
    }
    for (name, help, value) in GAUGES {
        let name = format!("cmwq_workqueue_{name}");
        w.head(&name, "gauge", help)?;
        for (q, id) in each() {
            w.line(&name, &[("workqueue", &q.name), ("id", id)], value(q))?;
        }
    }
    for (name, help, histogram) in [
        (
            "cmwq_workqueue_queue_to_start_seconds",
            "From queueing to start.",
            (|q| &q.queue_to_start) as fn(&WorkqueueSnapshot) -> &HistogramSnapshot,
        ),
        (
            "cmwq_workqueue_run_time_seconds",
            "From start to end.",
            |q| &q.run_time,
        ),
    ] {
        w.head(name, "histogram", help)?;
        for (q, id) in each() {
            w.histogram(name, &[("workqueue", &q.name), ("id", id)], histogram(q))?;
        }
    }
    Ok(())
}

fn pools<W: Write>(w: &mut Writer<'_, W>, snapshot: &Snapshot) -> fmt::Result {
    type Row = (
        &'static str,
        &'static str,
        fn(&crate::snapshot::PoolSnapshot) -> Option<f64>,
    );
    let rows: [Row; 7] = [
        ("workers", "Workers.", |p| Some(p.workers.into())),
        ("idle", "Idle workers.", |p| Some(p.idle.into())),
        ("running", "Running workers.", |p| Some(p.running.into())),
        ("target", "Workers that may run at once.", |p| {
            p.target.map(f64::from)
        }),
        ("blocked", "Workers known to be blocked.", |p| {
            Some(p.blocked.into())
        }),
        ("worklist", "Items that wait for a worker.", |p| {
            Some(p.worklist.into())
        }),
        (
            "stalled_seconds",
            "For how long the worklist has not moved.",
            |p| Some(seconds(p.stalled_ns.unwrap_or(0))),
        ),
    ];
    for (name, help, value) in rows {
        let name = format!("cmwq_pool_{name}");
        w.head(&name, "gauge", help)?;
        for p in &snapshot.pools {
            let id = p.id.to_string();
            let kind = if p.kind == PoolKind::PerCpu {
                "percpu"
            } else {
                "unbound"
            };
            if let Some(value) = value(p) {
                w.line(
                    &name,
                    &[
                        ("pool", &id),
                        ("kind", kind),
                        ("pod_cpus", p.pod_cpus.as_str()),
                    ],
                    value,
                )?;
            }
        }
    }
    Ok(())
}

fn detection<W: Write>(w: &mut Writer<'_, W>, snapshot: &Snapshot) -> fmt::Result {
    w.head(
        "cmwq_detection_in_force",
        "gauge",
        "Whether a mechanism that notices blocked workers works.",
    )?;
    for (name, m) in snapshot.detection.each() {
        let works = f64::from(u8::from(m.state == MechanismState::InForce));
        w.line("cmwq_detection_in_force", &[("mechanism", name)], works)?;
    }
    w.head(
        "cmwq_detection_cpu_seconds_total",
        "counter",
        "CPU time that a mechanism itself used.",
    )?;
    for (name, m) in snapshot.detection.each() {
        w.line(
            "cmwq_detection_cpu_seconds_total",
            &[("mechanism", name)],
            seconds(m.cpu_time_ns),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn sample() -> Snapshot {
        let mut q = WorkqueueSnapshot {
            name: "a\"b\\c\nd".into(),
            ..Default::default()
        };
        for us in [1_u64, 10, 100, 1000] {
            q.queue_to_start.record(us * 1000);
        }
        q.counters.started = 4;
        let twin = WorkqueueSnapshot {
            name: "twin".into(),
            id: 1,
            ..Default::default()
        };
        let other = WorkqueueSnapshot {
            id: 2,
            ..twin.clone()
        };
        Snapshot {
            workqueues: vec![q, twin, other],
            pools: vec![Default::default()],
            ..Default::default()
        }
    }

    /// A strict reader of the format: series are unique, typed before use, one block per metric.
    fn read(text: &str) -> HashMap<String, f64> {
        let mut series = HashMap::new();
        let (mut current, mut seen) = (String::new(), HashSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(current.clone()), "{current} declared twice");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(
                    name.starts_with(&current),
                    "{name} outside of its block {current}"
                );
                let bare = name.split('{').next().unwrap();
                assert!(
                    bare.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
                    "{bare}"
                );
                assert!(
                    series
                        .insert(name.to_owned(), value.parse().unwrap())
                        .is_none(),
                    "{name} twice"
                );
            }
        }
        series
    }

    #[test]
    fn the_format_is_kept() {
        let series = read(&render(&sample()));
        let label = r#"{workqueue="a\"b\\c\nd"}"#;
        assert_eq!(series[&format!("cmwq_workqueue_started_total{label}")], 4.0);
        assert_eq!(
            series[&format!("cmwq_workqueue_queue_to_start_seconds_count{label}")],
            4.0
        );
        assert!(series.contains_key(r#"cmwq_workqueue_started_total{workqueue="twin",id="2"}"#));
    }

    #[test]
    fn histogram_buckets_are_cumulative_and_end_at_the_count() {
        let text = render(&sample());
        let counts: Vec<f64> = text
            .lines()
            .filter(|l| l.starts_with("cmwq_workqueue_queue_to_start_seconds_bucket{workqueue=\"a"))
            .map(|l| l.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        assert_eq!(counts.len(), (LAST_BOUND - FIRST_BOUND + 2) as usize);
        assert!(counts.windows(2).all(|w| w[0] <= w[1]), "{counts:?}");
        assert_eq!((counts[0], counts[counts.len() - 1]), (1.0, 4.0));
    }
}
