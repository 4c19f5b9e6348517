//! `cmwq dump`: the whole state of a process, once.
//!
//! The five sections of the kernel's `wq_dump` with its columns, then what only we know.

mod items;
pub(crate) use items::function;
mod kernel;
mod ours;

use std::io::{self, Write};

use cmwq_control::snapshot::{Detail, Snapshot};

use super::live::{self, Whom};

/// Show the configuration and state of a process: pods, pools, workqueues, rescuers, limits, detection, items
///
/// Affinity Scopes .. node_nr/max_active: the five sections of the kernel's wq_dump. Concurrency: for each pool how many
/// workers may run (TARGET) and do (RUNNING), blocked and CPU-intensive ones, items that wait, the age of the oldest, items
/// run for other pools (HELPED) and by them (RECEIVED), after how long an item is offered to other pods (HEDGE). Counters:
/// what happened to each workqueue's items; what never happened is left out. PENDING: requests that found the item pending,
/// LOCAL: started on the issuing CPU, INLINE: run by a waiter, ITSV: CPU-intensive, CMW: concurrency-management wake-ups, RPR:
/// repatriated workers, FAIR: extra workers by the fairness rule. Threads: how many and why they were made and ended, what the busy ones do.
/// Detection: by which means blocked workers are noticed, and why. Items: what runs and waits, with functions and ages.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Whom,
    /// The whole snapshot as one JSON object
    #[arg(long)]
    json: bool,
    /// Leave the items out (they can be many)
    #[arg(long)]
    no_items: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut client = self.whom.connect()?;
        let detail = Detail {
            items: !self.no_items,
            ..Detail::FULL
        };
        if self.json {
            return live::print_json(&client.snapshot(detail)?);
        }
        let snapshot = live::snapshot(&mut client, detail)?;
        live::to_stdout(|out| Ok(write(out, &snapshot, !self.no_items)?))
    }
}

fn write(out: &mut dyn Write, s: &Snapshot, with_items: bool) -> io::Result<()> {
    ours::process(out, s)?;
    kernel::scopes(out, s)?;
    kernel::pools(out, s)?;
    kernel::cpu_to_pool(out, s)?;
    kernel::rescuers(out, s)?;
    kernel::node_limits(out, s)?;
    ours::concurrency(out, s)?;
    ours::counters(out, s)?;
    ours::threads(out, s)?;
    ours::detection(out, s)?;
    ours::tunables(out, s)?;
    if with_items {
        items::write(out, s)?;
    }
    Ok(())
}

/// A section's heading, underlined.
fn heading(out: &mut dyn Write, text: &str) -> io::Result<()> {
    writeln!(out, "\n{text}\n{}", "=".repeat(text.chars().count()))
}

#[cfg(test)]
pub(crate) mod tests {
    use cmwq_control::CpuList;
    use cmwq_control::snapshot::*;

    use super::*;

    fn cpus(range: std::ops::Range<u32>) -> CpuList {
        CpuList::from_cpus(range)
    }

    /// Two pods on two nodes, three queues, one item of each kind.
    pub(crate) fn sample() -> Snapshot {
        let process = ProcessInfo {
            pid: 42,
            name: "sample".into(),
            version: "0.1.0".into(),
            ..Default::default()
        };
        let mut s = Snapshot {
            process,
            ..Default::default()
        };
        s.topology = TopologySummary {
            nr_cpu_ids: 4,
            possible: cpus(0..4),
            online: cpus(0..4),
            unbound_cpumask: cpus(0..4),
            nodes: vec![
                NodeCpus {
                    node: 0,
                    cpus: cpus(0..2),
                },
                NodeCpus {
                    node: 1,
                    cpus: cpus(2..4),
                },
            ],
            default_scope: "cache".into(),
            scopes: vec![ScopeSnapshot {
                name: "cache".into(),
                pods: vec![
                    PodSnapshot {
                        cpus: cpus(0..2),
                        node: Some(0),
                    },
                    PodSnapshot {
                        cpus: cpus(2..4),
                        node: Some(1),
                    },
                ],
            }],
        };
        s.pools = vec![
            PoolSnapshot {
                id: 0,
                kind: PoolKind::PerCpu,
                cpu: Some(1),
                cpus: cpus(1..2),
                pod_cpus: cpus(1..2),
                workers: 3,
                idle: 2,
                target: Some(1),
                running: 1,
                ..Default::default()
            },
            PoolSnapshot {
                id: 7,
                nice: -20,
                cpus: cpus(0..4),
                pod_cpus: cpus(2..4),
                strict: true,
                node: Some(1),
                help_received: 5,
                hedge_delay_ns: Some(123_000),
                births: vec![ReasonCount {
                    reason: reasons::BLOCKED.into(),
                    count: 9,
                }],
                worker_list: vec![
                    WorkerSnapshot {
                        tid: 4711,
                        func: "f".into(),
                        workqueue: "q".into(),
                        ..Default::default()
                    },
                    WorkerSnapshot {
                        tid: 4712,
                        ..Default::default()
                    },
                ],
                ..Default::default()
            },
        ];
        let mut q = WorkqueueSnapshot {
            name: "q".into(),
            max_active: 16,
            min_active: 8,
            cpu_pool: vec![
                PoolSlot {
                    cpus: cpus(0..2),
                    pool: Some(7),
                },
                PoolSlot {
                    cpus: cpus(2..4),
                    pool: None,
                },
            ],
            default_pool: Some(7),
            nodes: vec![
                NodeLimit {
                    node: Some(0),
                    nr: 3,
                    max: 8,
                },
                NodeLimit {
                    node: Some(1),
                    nr: 0,
                    max: 8,
                },
                NodeLimit {
                    node: None,
                    nr: 0,
                    max: 16,
                },
            ],
            pwqs: vec![PwqSnapshot {
                pool: 7,
                refcnt: 2,
                nr_active: 3,
                nr_inactive: 2,
                ..Default::default()
            }],
            rescuer: Some(RescuerSnapshot {
                tid: 99,
                cpus: cpus(0..4),
                busy: false,
            }),
            ..Default::default()
        };
        q.flags.mem_reclaim = true;
        q.counters.helped = 77;
        q.counters.widened = 78;
        q.counters.rescued = 79;
        q.attrs.effective_cpumask = cpus(0..4);
        q.in_flight.push(ItemSnapshot {
            func: "f".into(),
            pool: 7,
            tid: Some(4711),
            age_ns: 2_000_000_000,
            ..Default::default()
        });
        for _ in 0..3 {
            q.inactive.push(ItemSnapshot {
                func: "g".into(),
                pool: 7,
                ..Default::default()
            });
        }
        q.inactive.push(ItemSnapshot {
            func: "g".into(),
            count: 4,
            pool: 7,
            barrier: true,
            waiters: vec![4713, 4714],
            ..Default::default()
        });
        let ordered = WorkqueueSnapshot {
            name: "journal".into(),
            id: 1,
            kind: WqKind::Ordered,
            ..Default::default()
        };
        let percpu = WorkqueueSnapshot {
            name: "ticks".into(),
            id: 2,
            kind: WqKind::PerCpu,
            ..Default::default()
        };
        s.workqueues = vec![q, ordered, percpu];
        s.detection.tick.state = MechanismState::Unavailable;
        s.detection.tick.reason = "no /proc".into();
        s
    }

    fn text() -> String {
        let mut out = Vec::new();
        write(&mut out, &sample(), true).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_kernels_five_sections_are_there() {
        let text = text();
        for heading in [
            "Affinity Scopes",
            "Worker Pools",
            "Workqueue CPU -> pool",
            "Workqueue -> rescuer",
            "Unbound workqueue -> node_nr/max_active",
        ] {
            assert!(text.contains(&format!("\n{heading}\n=")), "{heading}");
        }
    }

    #[test]
    fn columns_are_the_kernels() {
        let text = text();
        for part in [
            "CACHE (default)",
            "nr_pods  2",
            "pod_cpus [0]=00000003 [1]=0000000c",
            "pod_node [0]=0 [1]=1",
            "cpu_pod  [0]=0 [1]=0 [2]=1 [3]=1",
            "pool[0] flags=0x0 ref=0 nice=  0 idle/workers=  2/  3 cpu=1",
            "nice=-20 idle/workers=  0/  0 cpus=0000000f pod_cpus=0000000c strict",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let row = text
            .lines()
            .find(|l| l.starts_with('q') && l.contains("unbound"))
            .unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["q", "unbound", "7", "7", "-", "-", "7"]
        );
        let limits = text.lines().find(|l| l.contains("3/8")).unwrap();
        assert_eq!(
            limits.split_whitespace().collect::<Vec<_>>(),
            ["q", "8", "16", "3/8", "0/8", "0/16"]
        );
    }

    #[test]
    fn what_only_we_know_is_there() {
        let text = text();
        for part in [
            "tick",
            "unavailable",
            "no /proc",
            "blocked 9",
            "123 us",
            "3*g",
            "4711",
            "3*g waiting 0 ns, BAR(4713), BAR(4714), 2*BAR(?)",
            "for 2.00 s",
            "pool 7: cpus=2-3 node=1 nice=-20 hung=0s workers=0 idle: 4712",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn counters_are_under_their_headings() {
        let text = text();
        let lines: Vec<&str> = text.lines().collect();
        let at = lines
            .iter()
            .position(|l| l.starts_with("WORKQUEUE") && l.contains("HELPED"))
            .unwrap();
        let words =
            |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        let (head, row) = (words(lines[at]), words(lines[at + 1]));
        assert_eq!(head.len(), row.len(), "{text}");
        for (name, value) in [("HELPED", "77"), ("WIDENED", "78"), ("RESCUED", "79")] {
            let column = head.iter().position(|h| h == name).unwrap();
            assert_eq!(row[column], value, "{name}");
        }
    }

    #[test]
    fn an_empty_snapshot_prints() {
        let mut out = Vec::new();
        write(&mut out, &Snapshot::default(), true).unwrap();
        assert!(!out.is_empty());
    }
}
