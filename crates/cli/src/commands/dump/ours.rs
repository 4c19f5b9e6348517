//! What the kernel's script does not show: concurrency, threads, detection, CPU set, tunables.

use std::io::{self, Write};

use cmwq_control::advise::human_ns;
use cmwq_control::snapshot::{Counters, PoolSnapshot, ReasonCount, Snapshot, WorkerState};

use super::super::live::{Table, human_span};
use super::heading;

pub(super) fn process(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    let p = &s.process;
    let up = s.clock.unix_ms.saturating_sub(p.started_unix_ms) / 1000;
    writeln!(
        out,
        "process {} ({}), cmwq {}, up {}",
        p.pid,
        p.name,
        p.version,
        human_span(up)
    )?;
    writeln!(
        out,
        "changes over the control socket: {}",
        if p.allow_set {
            "allowed"
        } else {
            "not allowed"
        }
    )?;
    let c = &s.cpu;
    let list = |l: &cmwq_control::CpuList| {
        if l.is_empty() {
            "not known".to_owned()
        } else {
            l.to_string()
        }
    };
    writeln!(
        out,
        "CPUs in use: {} (affinity at start {}, cpuset {}), changed {} times, {} workers re-affined from outside",
        list(&c.usable),
        list(&c.affinity_at_start),
        list(&c.cpuset),
        c.changes,
        c.foreign_affinity
    )?;
    match &c.quota {
        None => writeln!(out, "CPU quota: none"),
        Some(q) => {
            let throttled = q
                .throttled
                .map_or_else(String::new, |n| format!(", throttled {n} times"));
            let cgroup = if q.cgroup.is_empty() {
                String::new()
            } else {
                format!(" in {}", q.cgroup)
            };
            writeln!(
                out,
                "CPU quota: {:.2} CPUs ({} us of {} us{cgroup}){throttled}",
                q.cpus, q.quota_us, q.period_us
            )
        }
    }
}

pub(super) fn concurrency(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Concurrency")?;
    let mut table = Table::new(&[
        "POOL", "<CPUS", "TARGET", "RUNNING", "BLOCKED", "ITSV", "WORKLIST", "OLDEST", "HELPED",
        "RECEIVED", "HEDGE", "WAKE-P99", "NICE", "<STATE",
    ]);
    for p in &s.pools {
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| human_ns(ns as f64));
        table.row(vec![
            p.id.to_string(),
            p.pod_cpus.to_string(),
            p.target.map_or_else(|| "-".into(), |t| t.to_string()),
            p.running.to_string(),
            p.blocked.to_string(),
            p.cpu_intensive.to_string(),
            p.worklist.to_string(),
            time(p.oldest_ns),
            p.help_given.to_string(),
            p.help_received.to_string(),
            time(p.hedge_delay_ns),
            time(p.wakeup_p99_ns),
            if p.nice == p.nice_in_force {
                p.nice.to_string()
            } else {
                format!("{} (is {})", p.nice, p.nice_in_force)
            },
            state(s, p),
        ]);
    }
    table.write(out, "")
}

/// A heading, and what is shown under it.
type Column = (&'static str, fn(&Counters) -> u64);

const COUNTERS: [Column; 22] = [
    ("QUEUED", |c| c.queued),
    ("STARTED", |c| c.started),
    ("DONE", |c| c.completed),
    ("CANCELLED", |c| c.cancelled),
    ("PANICKED", |c| c.panicked),
    ("REFUSED", |c| c.refused),
    ("PENDING", |c| c.already_pending),
    ("THROTTLED", |c| c.throttled),
    ("LOCAL", |c| c.cpu_local),
    ("HELPED", |c| c.helped),
    ("HEDGED", |c| c.hedged),
    ("WIDENED", |c| c.widened),
    ("INLINE", |c| c.inline_run),
    ("ITSV", |c| c.cpu_intensive),
    ("CMW", |c| c.cm_wakeup),
    ("RPR", |c| c.repatriated),
    ("FAIR", |c| c.fairness_extra),
    ("MAYDAY", |c| c.mayday),
    ("RESCUED", |c| c.rescued),
    ("STALLS", |c| c.stalls),
    ("MOST-ACTIVE", |c| c.peak_active),
    ("MOST-WAITING", |c| c.peak_waiting),
];

/// What happened to the items of each queue; what never happened to any but being queued and run is left out.
pub(super) fn counters(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Counters")?;
    let shown: Vec<_> = COUNTERS
        .iter()
        .enumerate()
        .filter(|(i, (_, get))| *i < 3 || s.workqueues.iter().any(|q| get(&q.counters) > 0))
        .map(|(_, column)| column)
        .collect();
    let mut headings = vec!["<WORKQUEUE"];
    headings.extend(shown.iter().map(|(name, _)| *name));
    let mut table = Table::new(&headings);
    for q in &s.workqueues {
        let figures = shown.iter().map(|(_, get)| get(&q.counters).to_string());
        table.row(std::iter::once(q.name.clone()).chain(figures).collect());
    }
    table.write(out, "")
}

fn state(s: &Snapshot, p: &PoolSnapshot) -> String {
    match p.stalled_ns {
        Some(ns) => format!("STALLED for {}", human_ns(ns as f64)),
        None if p.worklist > 0 => {
            let ago = s.clock.monotonic_ns.saturating_sub(p.last_progress_ns);
            format!("progress {} ago", human_ns(ago as f64))
        }
        None => String::new(),
    }
}

fn counts(list: &[ReasonCount]) -> String {
    if list.is_empty() {
        return "none".into();
    }
    list.iter()
        .map(|c| format!("{} {}", c.reason, c.count))
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) fn threads(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Threads")?;
    let t = &s.threads;
    let ceiling = if t.ceiling == 0 {
        "no ceiling".to_owned()
    } else {
        format!("ceiling {}", t.ceiling)
    };
    writeln!(
        out,
        "{} workers ({ceiling}, peak {}), {} other threads; {} refused by the ceiling, {} by the system{}",
        t.workers,
        t.peak,
        t.others,
        t.refused_by_ceiling,
        t.create_failures,
        if t.last_failure.is_empty() {
            String::new()
        } else {
            format!(" ({})", t.last_failure)
        }
    )?;
    writeln!(
        out,
        "made: {}\nended: {}",
        counts(&t.births),
        counts(&t.deaths)
    )?;
    for p in s
        .pools
        .iter()
        .filter(|p| !p.births.is_empty() || !p.deaths.is_empty())
    {
        writeln!(
            out,
            "pool {}: made: {}; ended: {}",
            p.id,
            counts(&p.births),
            counts(&p.deaths)
        )?;
    }
    let busy: Vec<_> = s
        .pools
        .iter()
        .flat_map(|p| p.worker_list.iter().map(move |w| (p, w)))
        .filter(|(_, w)| !w.func.is_empty())
        .collect();
    if busy.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        "POOL",
        "TID",
        "<STATE",
        "CPU",
        "FOR",
        "<WORKQUEUE",
        "<FUNCTION",
        "<BLOCKED ON",
        "<DESCRIPTION",
    ]);
    for (p, w) in busy {
        table.row(vec![
            p.id.to_string(),
            w.tid.to_string(),
            w.state.as_str().into(),
            w.cpu.map_or_else(|| "-".into(), |c| c.to_string()),
            human_ns(w.for_ns as f64),
            w.workqueue.clone(),
            w.func.to_string(),
            if w.state == WorkerState::Blocked {
                w.blocked_on.to_string()
            } else {
                String::new()
            },
            w.description.clone(),
        ]);
    }
    table.write(out, "")
}

pub(super) fn detection(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Detection of blocked workers")?;
    let mut table = Table::new(&[
        "<MECHANISM",
        "<STATE",
        "LOOKS",
        "FOUND",
        "UNCONFIRMED",
        "OWN CPU",
        "THREADS",
        "<WHY",
    ]);
    for (name, m) in s.detection.each() {
        table.row(vec![
            name.into(),
            m.state.as_str().into(),
            m.looks.to_string(),
            m.found.to_string(),
            m.unconfirmed.to_string(),
            human_ns(m.cpu_time_ns as f64),
            m.threads.to_string(),
            m.reason.to_string(),
        ]);
    }
    table.write(out, "")
}

pub(super) fn tunables(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    if s.tunables.is_empty() {
        return Ok(());
    }
    heading(out, "Tunables")?;
    for t in &s.tunables {
        writeln!(
            out,
            "{}={}{}",
            t.name,
            t.value,
            if t.writable { "" } else { " (read-only)" }
        )?;
    }
    Ok(())
}
