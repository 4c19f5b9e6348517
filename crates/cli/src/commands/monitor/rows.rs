//! What the full-screen view shows about each queue: rates over the last interval, quantiles, their history.

use std::collections::HashMap;
use std::collections::VecDeque;

use cmwq_control::histogram::HistogramSnapshot;
use cmwq_control::snapshot::{Snapshot, WorkqueueSnapshot, WqKind};

use super::super::live::rate;

/// Samples kept for the sparklines.
pub(super) const HISTORY: usize = 60;

/// One queue over the last interval.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) active: u32,
    pub(super) max_active: u32,
    pub(super) waiting: u64,
    /// Items started per second.
    pub(super) per_second: f64,
    /// CPU use, per cent of one CPU.
    pub(super) cpu: f64,
    /// Items started on the issuing CPU, per cent of those started.
    pub(super) local: Option<f64>,
    pub(super) intensive: u64,
    /// CM wake-ups (per-CPU) or repatriations (unbound).
    pub(super) cmw_rpr: u64,
    /// Items run by helpers, per cent of those started.
    pub(super) helped: Option<f64>,
    /// From queueing to start, ns.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// The columns by which rows can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortBy {
    Name,
    Active,
    Waiting,
    Rate,
    Cpu,
    P99,
}

impl SortBy {
    pub(super) const ALL: [SortBy; 6] = [
        SortBy::Name,
        SortBy::Active,
        SortBy::Waiting,
        SortBy::Rate,
        SortBy::Cpu,
        SortBy::P99,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            SortBy::Name => "name",
            SortBy::Active => "active",
            SortBy::Waiting => "waiting",
            SortBy::Rate => "items/s",
            SortBy::Cpu => "CPU",
            SortBy::P99 => "p99",
        }
    }

    pub(super) fn next(self) -> SortBy {
        let at = SortBy::ALL.iter().position(|s| *s == self).unwrap_or(0);
        SortBy::ALL[(at + 1) % SortBy::ALL.len()]
    }

    fn key(self, row: &Row) -> f64 {
        match self {
            SortBy::Name => 0.0,
            SortBy::Active => row.active.into(),
            SortBy::Waiting => row.waiting as f64,
            SortBy::Rate => row.per_second,
            SortBy::Cpu => row.cpu,
            SortBy::P99 => row.p99.unwrap_or(-1.0),
        }
    }
}

/// Names ascending, figures descending; `reverse` turns that round. Equal figures go by name.
pub(super) fn sort(rows: &mut [Row], by: SortBy, reverse: bool) {
    rows.sort_by(|a, b| {
        let figures = by.key(b).total_cmp(&by.key(a));
        let order = figures
            .then_with(|| a.name.cmp(&b.name))
            .then(a.id.cmp(&b.id));
        if reverse { order.reverse() } else { order }
    });
}

/// What happened to a queue between two snapshots.
pub(super) struct Interval {
    pub(super) queue_to_start: HistogramSnapshot,
    pub(super) run_time: HistogramSnapshot,
}

pub(super) fn interval(q: &WorkqueueSnapshot, before: Option<&Snapshot>) -> Interval {
    match before.and_then(|b| {
        b.workqueues
            .iter()
            .find(|o| o.id == q.id && o.name == q.name)
    }) {
        Some(old) => Interval {
            queue_to_start: q.queue_to_start.since(&old.queue_to_start),
            run_time: q.run_time.since(&old.run_time),
        },
        None => Interval {
            queue_to_start: q.queue_to_start.clone(),
            run_time: q.run_time.clone(),
        },
    }
}

/// The rows of a sample; without an earlier one, rates are zero and quantiles are of the queue's whole life.
pub(super) fn rows(now: &Snapshot, before: Option<&Snapshot>) -> Vec<Row> {
    let ns = before.map_or(0, |b| {
        now.clock.monotonic_ns.saturating_sub(b.clock.monotonic_ns)
    });
    now.workqueues
        .iter()
        .map(|q| {
            let old = before.and_then(|b| {
                b.workqueues
                    .iter()
                    .find(|o| o.id == q.id && o.name == q.name)
            });
            let c = &q.counters;
            let o = old.map_or(*c, |o| o.counters);
            let started = c.started.saturating_sub(o.started);
            let share = |n: u64, o: u64| {
                (started > 0).then(|| n.saturating_sub(o) as f64 * 100.0 / started as f64)
            };
            let waits = interval(q, before).queue_to_start;
            Row {
                id: q.id,
                name: q.name.clone(),
                kind: match q.kind {
                    WqKind::Unbound if q.attrs.affinity_strict => "unbound,S",
                    kind => kind.as_str(),
                },
                active: q.nr_active,
                max_active: q.max_active,
                waiting: q.pending.total + q.inactive.total,
                per_second: rate(c.started, o.started, ns),
                cpu: rate(c.cpu_time_ns, o.cpu_time_ns, ns) / 1e7,
                local: share(c.cpu_local, o.cpu_local),
                intensive: c.cpu_intensive,
                cmw_rpr: if q.kind == WqKind::PerCpu {
                    c.cm_wakeup
                } else {
                    c.repatriated
                },
                helped: share(c.helped, o.helped),
                p50: waits.quantile_ns(0.5),
                p99: waits.quantile_ns(0.99),
            }
        })
        .collect()
}

/// The 99th percentiles of the last samples, by queue.
#[derive(Debug, Default)]
pub(super) struct History {
    by_queue: HashMap<u32, VecDeque<Option<f64>>>,
}

impl History {
    pub(super) fn push(&mut self, rows: &[Row]) {
        // Queues that are gone take their history with them.
        self.by_queue
            .retain(|id, _| rows.iter().any(|r| r.id == *id));
        for row in rows {
            let line = self.by_queue.entry(row.id).or_default();
            if line.len() == HISTORY {
                line.pop_front();
            }
            line.push_back(row.p99);
        }
    }

    /// A line of `width` characters, newest at the right, scaled to its own greatest value; blanks where nothing ran.
    pub(super) fn sparkline(&self, id: u32, width: usize) -> String {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let Some(line) = self.by_queue.get(&id) else {
            return String::new();
        };
        let values: Vec<Option<f64>> = line
            .iter()
            .skip(line.len().saturating_sub(width))
            .copied()
            .collect();
        let most = values.iter().flatten().fold(0.0_f64, |m, v| m.max(*v));
        let pad = width.saturating_sub(values.len());
        let bars = values.iter().map(|v| match v {
            Some(v) if most > 0.0 => LEVELS[((v / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
            Some(_) => LEVELS[0],
            None => ' ',
        });
        std::iter::repeat_n(' ', pad).chain(bars).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(started: u64, ns: u64) -> Snapshot {
        let mut q = WorkqueueSnapshot {
            name: "q".into(),
            ..Default::default()
        };
        q.counters.started = started;
        q.counters.cpu_local = started / 4;
        q.counters.cpu_time_ns = started * 1_000_000;
        let mut s = Snapshot {
            workqueues: vec![q],
            ..Default::default()
        };
        s.clock.monotonic_ns = ns;
        s
    }

    #[test]
    fn rates_are_of_the_interval() {
        let (before, now) = (sample(1000, 0), sample(1500, 500_000_000));
        let r = &rows(&now, Some(&before))[0];
        assert_eq!((r.per_second, r.local), (1000.0, Some(25.0)));
        assert!((r.cpu - 100.0).abs() < 1e-9, "{}", r.cpu);
        assert_eq!(rows(&now, None)[0].per_second, 0.0);
    }

    #[test]
    fn sorting_is_stable_and_reversible() {
        let base = rows(&sample(0, 0), None).remove(0);
        let named = |name: &str, waiting| Row {
            name: name.into(),
            waiting,
            ..base.clone()
        };
        let mut all = vec![named("b", 5), named("a", 5), named("c", 9)];
        let order = |rows: &[Row]| rows.iter().map(|r| r.name.clone()).collect::<String>();
        sort(&mut all, SortBy::Waiting, false);
        assert_eq!(order(&all), "cab");
        sort(&mut all, SortBy::Name, false);
        assert_eq!(order(&all), "abc");
        sort(&mut all, SortBy::Name, true);
        assert_eq!(order(&all), "cba");
        assert_eq!(
            SortBy::ALL.iter().fold(SortBy::Name, |s, _| s.next()),
            SortBy::Name
        );
    }

    #[test]
    fn sparklines_scale_to_their_greatest_value() {
        let mut h = History::default();
        let base = rows(&sample(0, 0), None).remove(0);
        for p99 in [Some(1.0), None, Some(8.0)] {
            h.push(&[Row {
                p99,
                ..base.clone()
            }]);
        }
        assert_eq!(h.sparkline(0, 5), "  ▁ █");
        assert_eq!(h.sparkline(0, 1), "█");
        h.push(&[]);
        assert_eq!(h.sparkline(0, 5), "");
    }
}
