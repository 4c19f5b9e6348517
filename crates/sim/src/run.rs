//! One run of one scenario with one setting on one machine.

use crate::load::{Device, Issuer, Shape, Stage};
use crate::machine::Machine;
use crate::os::Rules;
use crate::scenario::{Scenario, Way};
use crate::setting::Setting;
use crate::sim::Sim;
use crate::timeline::Timeline;
use crate::wq::{Kind, QueueSpec, Role};
use cmwq_policy::hist::Histogram;
use cmwq_topology::{AffinityScope, CpuSet};
use std::sync::Arc;

/// What a run showed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Read bandwidth, MiB/s; of all requests where there are no reads.
    pub bandwidth_mib_s: f64,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Items a second.
    pub items_per_s: f64,
    /// CPU use, percent of one CPU.
    pub cpu_percent: f64,
    /// From a read's start to its end, ns; of all requests where there are no reads.
    pub latency: Histogram,
    /// Items that started in the issuer's last-level cache, percent.
    pub in_pod_percent: f64,
    /// Mean time from queueing to start, ns.
    pub wait_ns: f64,
    /// Moves of threads between CPUs an item.
    pub migrations_per_item: f64,
    /// Items that helpers of other pods ran, percent.
    pub helped_percent: f64,
    /// Items queued, started and ended, all together, over the whole run: what the speed of the simulator is counted in.
    pub item_events: u64,
    /// A trace for a browser's trace viewer, if asked for.
    pub timeline: Option<String>,
}

/// Simulates. The same arguments give the same outcome, bit for bit.
pub fn run(machine: &Arc<Machine>, s: &Scenario, setting: &Setting, seed: u64) -> Outcome {
    run_with(machine, s, setting, seed, Rules::default(), 0)
}

/// [`run`] with scheduler rules of one's own, and with a trace of so many entries.
pub fn run_with(
    machine: &Arc<Machine>,
    s: &Scenario,
    setting: &Setting,
    seed: u64,
    mut rules: Rules,
    trace: u32,
) -> Outcome {
    rules.sis_node |= setting.sis_node;
    let mut sim = Sim::new(Arc::clone(machine), rules, seed);
    if trace > 0 {
        sim.timeline = Some(Timeline::new(machine.width(), trace));
    }
    let q = sim.add_queue(&QueueSpec {
        kind: Kind::Unbound,
        scope: setting.scope,
        strict: setting.strict,
        localize: setting.localize,
        kernel: setting.kernel,
        max_active: s.max_active,
        ..QueueSpec::default()
    });
    set_up_load(&mut sim, s, q, setting.kernel);
    sim.arm_ticks();
    if !s.pinned {
        sim.wander();
    }
    let warm = s.warm_up_ms * 1_000_000;
    sim.run_until(warm);
    let before = Counts::of(&sim);
    sim.load.latency = Histogram::default();
    sim.run_until(warm + s.measure_ms * 1_000_000);
    let after = Counts::of(&sim);
    outcome(&mut sim, s, &before, &after)
}

struct Counts {
    done: u64,
    reads: u64,
    ended: u64,
    started: u64,
    in_llc: u64,
    wait: u64,
    busy: u64,
    migrations: u64,
    helps: u64,
}

impl Counts {
    fn of(sim: &Sim) -> Counts {
        Counts {
            done: sim.load.done,
            reads: sim.load.done_reads,
            ended: sim.stats.ended,
            started: sim.stats.started,
            in_llc: sim.stats.in_llc,
            wait: sim.stats.wait_ns,
            busy: (0..sim.os.cpus.len() as u32)
                .map(|c| sim.os.busy_ns(c))
                .sum(),
            migrations: sim.os.threads.iter().map(|t| t.migrations).sum(),
            helps: sim.wq.pools.iter().map(|p| p.helps).sum(),
        }
    }
}

fn outcome(sim: &mut Sim, s: &Scenario, a: &Counts, b: &Counts) -> Outcome {
    let secs = s.measure_ms as f64 / 1e3;
    let per = |x: u64, y: u64| if y == 0 { 0.0 } else { x as f64 / y as f64 };
    let done = b.done - a.done;
    let counted = if s.reads_percent == 0 {
        done
    } else {
        b.reads - a.reads
    };
    let started = b.started - a.started;
    Outcome {
        bandwidth_mib_s: counted as f64 * f64::from(s.bytes) / secs / f64::from(1 << 20),
        requests_per_s: done as f64 / secs,
        items_per_s: (b.ended - a.ended) as f64 / secs,
        cpu_percent: (b.busy - a.busy) as f64 / secs / 1e7,
        latency: std::mem::take(&mut sim.load.latency),
        in_pod_percent: per(b.in_llc - a.in_llc, started) * 100.0,
        wait_ns: per(b.wait - a.wait, started),
        migrations_per_item: per(b.migrations - a.migrations, started),
        helped_percent: per(b.helps - a.helps, started) * 100.0,
        item_events: sim.stats.queued + sim.stats.started + sim.stats.ended,
        timeline: sim.timeline.take().map(Timeline::finish),
    }
}

fn set_up_load(sim: &mut Sim, s: &Scenario, q: u32, kernel: bool) {
    let m = Arc::clone(&sim.os.m);
    let c = &m.costs;
    let kib = f64::from(s.bytes) / 1024.0;
    let crypt = (c.crypt_kib * kib) as u64;
    let item = |queue, ns| Stage::Item {
        queue,
        ns,
        locked: 0,
    };
    let writer = match s.way {
        Way::Device | Way::Loop => sim.add_thread_server(c.writer),
        Way::Item => 0,
    };
    let (ways, before, after) = match s.way {
        Way::Device => (
            [
                vec![Stage::Device, item(q, crypt)],
                vec![item(q, crypt), Stage::Server(writer), Stage::Device],
            ],
            [c.request, c.request + (c.generate_kib * kib) as u64],
            [(c.verify_kib * kib) as u64 + c.request, c.request],
        ),
        Way::Loop => {
            // The loop device's own queue has the default attributes of whoever implements workqueues.
            let lo = sim.add_queue(&QueueSpec {
                scope: if kernel {
                    AffinityScope::Cache
                } else {
                    AffinityScope::CacheShard
                },
                kernel,
                ..QueueSpec::default()
            });
            let lo = sim.add_item_server(lo, c.loop_item);
            (
                [
                    vec![Stage::Server(lo), item(q, crypt)],
                    vec![item(q, crypt), Stage::Server(writer), Stage::Server(lo)],
                ],
                [c.request, c.request + (c.generate_kib * kib) as u64],
                [(c.verify_kib * kib) as u64 + c.request, c.request],
            )
        }
        Way::Item => {
            let locked = (s.locked_us * 1e3) as u64;
            let ns = ((s.item_us * 1e3) as u64).saturating_sub(locked);
            let way = vec![Stage::Item {
                queue: q,
                ns,
                locked,
            }];
            ([way.clone(), way], [c.request; 2], [c.request / 2; 2])
        }
    };
    sim.load.lock_spread = s.lock_spread;
    sim.load.lock_spinners = s.lock_spinners;
    sim.load.device = Device {
        latency: s.device_latency_us * 1000,
        per_request: if s.device_mib_s == 0 {
            0
        } else {
            u64::from(s.bytes) * 1_000_000_000 / (s.device_mib_s << 20)
        },
        free_at: 0,
    };
    sim.load.shape = Shape {
        bytes: s.bytes,
        before,
        after,
        ways,
        think: s.think_us * 1000,
        every: (s.every_us * 1e3) as u64,
        burst: s.burst,
        reads: s.reads_percent,
        one_by_one: s.way != Way::Item,
    };
    // Pinned jobs take the machine's CPUs in order; others start spread over the caches, as the scheduler would have it.
    let mut cpus: Vec<u32> = m.topology.online().iter().map(|c| c as u32).collect();
    if !s.pinned {
        let nth = |c: u32| {
            let llc = m.llc(m.place(c).llc);
            llc.iter().position(|&x| x == c).unwrap_or(0)
        };
        cpus.sort_by_key(|&c| (nth(c), c));
    }
    let all = Arc::new(m.topology.online().clone());
    for i in 0..s.jobs {
        let cpu = cpus[i as usize % cpus.len()];
        let mask = if s.pinned {
            Arc::new(CpuSet::of(cpu as usize))
        } else {
            Arc::clone(&all)
        };
        let t = sim.os.spawn(cpu, mask, 0);
        sim.roles.push(Role::Issuer(i));
        sim.load.issuers.push(Issuer {
            tid: t,
            cpu,
            credit: if s.every_us > 0.0 { 0 } else { s.depth },
            ..Issuer::default()
        });
        if s.every_us > 0.0 {
            sim.arrival(i);
        } else {
            sim.os.wake(t, None, crate::os::Want::There(cpu));
        }
    }
}
