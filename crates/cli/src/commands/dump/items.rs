//! Items as in the kernel's report of all workqueues: in flight, pending, inactive, with functions and ages.

use std::io::{self, Write};

use cmwq_control::advise::human_ns;
use cmwq_control::snapshot::{
    ItemList, ItemSnapshot, Snapshot, WorkerRole, WorkerSnapshot, WorkqueueSnapshot,
};

use super::heading;

pub(super) fn write(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    heading(out, "Items")?;
    let busy = |q: &&WorkqueueSnapshot| {
        q.in_flight.total + q.pending.total + q.inactive.total + q.delayed > 0
    };
    if !s.workqueues.iter().any(|q| busy(&q)) {
        writeln!(out, "no workqueue has any")?;
    }
    for q in s.workqueues.iter().filter(busy) {
        let flags: Vec<&str> = q.flags.names().collect();
        let flags = if flags.is_empty() {
            String::new()
        } else {
            format!(" flags={}", flags.join(","))
        };
        writeln!(out, "workqueue {}: {}{flags}", q.name, q.kind.as_str())?;
        for pwq in q
            .pwqs
            .iter()
            .filter(|p| p.nr_in_flight > 0 || p.nr_active > 0 || p.nr_inactive > 0 || p.mayday)
        {
            let pool = s.pool(pwq.pool);
            let cpus = pool.map_or_else(String::new, |p| format!(" cpus={}", p.pod_cpus));
            let node = pool
                .and_then(|p| p.node)
                .map_or_else(String::new, |n| format!(" node={n}"));
            let nice = pool.map_or_else(String::new, |p| format!(" nice={}", p.nice));
            writeln!(
                out,
                "  pwq: pool={}{cpus}{node}{nice} active={} inactive={} refcnt={}{}{}",
                pwq.pool,
                pwq.nr_active,
                pwq.nr_inactive,
                pwq.refcnt,
                if pwq.mayday { " MAYDAY" } else { "" },
                if pwq.plugged { " PLUGGED" } else { "" },
            )?;
        }
        list(out, "in-flight", &q.in_flight, running)?;
        list(out, "pending", &q.pending, waiting)?;
        list(out, "inactive", &q.inactive, waiting)?;
        if q.delayed > 0 {
            writeln!(out, "    delayed: {}", q.delayed)?;
        }
    }
    busy_pools(out, s)
}

/// The pools with busy workers, as the kernel lists them: the age of the first item that waits, workers, who is idle.
fn busy_pools(out: &mut dyn Write, s: &Snapshot) -> io::Result<()> {
    let is_idle = |w: &&WorkerSnapshot| w.func.is_empty() && w.tid != 0;
    for p in &s.pools {
        if !p.worker_list.iter().any(|w| !w.func.is_empty()) {
            continue;
        }
        let node = p.node.map_or_else(String::new, |n| format!(" node={n}"));
        let hung = p.oldest_ns.unwrap_or(0) / 1_000_000_000;
        let manager = if p.flags & 2 != 0 {
            " manager at work"
        } else {
            ""
        };
        let idle: Vec<String> = p
            .worker_list
            .iter()
            .filter(is_idle)
            .map(|w| w.tid.to_string())
            .collect();
        let idle = if idle.is_empty() {
            String::new()
        } else {
            format!(" idle: {}", idle.join(" "))
        };
        writeln!(
            out,
            "pool {}: cpus={}{node} nice={} hung={hung}s workers={}{manager}{idle}",
            p.id, p.pod_cpus, p.nice, p.workers
        )?;
    }
    Ok(())
}

fn list(
    out: &mut dyn Write,
    name: &str,
    items: &ItemList,
    show: fn(&ItemSnapshot) -> String,
) -> io::Result<()> {
    if items.total == 0 {
        return Ok(());
    }
    let shown = items.items.iter().filter(|i| !i.barrier);
    let shown: u64 = shown.map(|i| u64::from(i.count.max(1))).sum();
    let text = |i: &ItemSnapshot| if i.barrier { function(i) } else { show(i) };
    let texts: Vec<String> = items.items.iter().map(text).collect();
    let more = items.total.saturating_sub(shown);
    let more = if more > 0 {
        format!(", and {more} more")
    } else {
        String::new()
    };
    writeln!(
        out,
        "    {name} ({}): {}{more}",
        items.total,
        texts.join(", ")
    )
}

/// `tid(RESCUER):func for 2.0 s`
fn running(item: &ItemSnapshot) -> String {
    let role = match item.role {
        WorkerRole::Worker => "",
        WorkerRole::Helper => "(HELPER)",
        WorkerRole::Rescuer => "(RESCUER)",
        WorkerRole::Waiter => "(WAITER)",
    };
    let tid = item.tid.map_or_else(|| "?".into(), |t| t.to_string());
    let waited = item
        .waited_ns
        .map_or_else(String::new, |ns| format!(" after {}", human_ns(ns as f64)));
    format!(
        "{tid}{role}:{} for {}{waited}",
        function(item),
        human_ns(item.age_ns as f64)
    )
}

/// `3*func waiting 2.0 s`
fn waiting(item: &ItemSnapshot) -> String {
    format!(
        "{} waiting {}",
        function(item),
        human_ns(item.age_ns as f64)
    )
}

/// `3*func`; for those who wait for the item before it `BAR(4712)` each, with the thread's id.
pub(crate) fn function(item: &ItemSnapshot) -> String {
    if item.barrier {
        return barrier(item);
    }
    match item.count {
        0 | 1 => item.func.to_string(),
        n => format!("{n}*{}", item.func),
    }
}

/// The most threads that are named behind one item.
const NAMED: usize = 8;

fn barrier(item: &ItemSnapshot) -> String {
    let named = item.waiters.iter().take(NAMED);
    let mut parts: Vec<String> = named.map(|tid| format!("BAR({tid})")).collect();
    match (item.count.max(1) as usize).saturating_sub(parts.len()) {
        0 => {}
        1 => parts.push("BAR(?)".into()),
        n => parts.push(format!("{n}*BAR(?)")),
    }
    parts.join(", ")
}
