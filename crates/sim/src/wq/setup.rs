//! Making queues, pools and workers' threads.

use super::{Batch, Kind, Link, Lock, PoolSt, QueueSt, Role, Watched};
use crate::os::Tid;
use crate::sim::Sim;
use cmwq_policy::flush::Flush;
use cmwq_policy::help;
use cmwq_policy::limits::{default_min_active, node_limits};
use cmwq_policy::pool::{Pool, PoolConfig, PoolKind, PwqConfig, PwqFlags};
use cmwq_policy::slot::Slot;
use cmwq_topology::masks::{PoolMap, node_of_mask};
use cmwq_topology::{AffinityScope, CpuSet, DEFAULT_CACHE_SHARD_SIZE, Distances};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a queue is made with.
#[derive(Debug, Clone)]
pub(crate) struct QueueSpec {
    pub(crate) kind: Kind,
    pub(crate) scope: AffinityScope,
    pub(crate) strict: bool,
    pub(crate) localize: bool,
    /// Unmanaged, no helping, wide masks with repatriation: the kernel's way.
    pub(crate) kernel: bool,
    pub(crate) max_active: u32,
    pub(crate) flags: PwqFlags,
    pub(crate) reserve: bool,
    pub(crate) max_workers: u32,
}

impl Default for QueueSpec {
    fn default() -> Self {
        QueueSpec {
            kind: Kind::Unbound,
            scope: AffinityScope::CacheShard,
            strict: false,
            localize: false,
            kernel: false,
            max_active: 0,
            flags: PwqFlags::default(),
            reserve: true,
            max_workers: u32::MAX,
        }
    }
}

impl Sim {
    fn online(&self) -> CpuSet {
        (0..self.os.cpus.len())
            .filter(|&c| self.os.cpus[c].online)
            .collect()
    }

    /// Makes a queue; returns its number.
    pub(crate) fn add_queue(&mut self, spec: &QueueSpec) -> u32 {
        let q = self.wq.queues.len() as u32;
        let (max, _) = cmwq_policy::limits::clamp_max_active(spec.max_active);
        let width = self.os.cpus.len();
        self.wq.queues.push(QueueSt {
            kind: spec.kind,
            max,
            slots: self.new_slots(spec, max),
            table: vec![0; width],
            flush: Flush::default(),
            arming: 0,
            arming_colour: 0,
            frozen: false,
            draining: false,
            order: VecDeque::new(),
            spec: spec.clone(),
            rescuer: None,
            mayday: VecDeque::new(),
        });
        if spec.flags.guaranteed {
            let all = Arc::new(self.os.m.topology.possible().clone());
            let t = self.os.spawn(0, all, -20);
            self.roles.push(Role::Rescuer { queue: q, at: None });
            self.wq.queues[q as usize].rescuer = Some(t);
        }
        self.link_all(q, spec);
        q
    }

    fn new_slots(&self, spec: &QueueSpec, max: u32) -> Vec<Slot> {
        if spec.kind != Kind::Unbound {
            return Vec::new();
        }
        let cpus: Vec<u32> = (0..self.os.m.node_count())
            .map(|n| {
                let all = self.os.m.node(n as u32).iter();
                all.filter(|&&c| self.os.cpus[c as usize].online).count() as u32
            })
            .collect();
        let mut slots: Vec<Slot> = node_limits(max, default_min_active(max), &cpus)
            .into_iter()
            .map(Slot::new)
            .collect();
        slots.push(Slot::new(max)); // for pools that span nodes
        slots
    }

    /// Links the queue to the pools that its attributes ask for; older links retire.
    pub(crate) fn link_all(&mut self, q: u32, spec: &QueueSpec) {
        self.wq.queues[q as usize].spec = spec.clone();
        let topology = Arc::clone(&self.os.m);
        let topology = &topology.topology;
        let possible = topology.possible().clone();
        let online = self.online();
        let old: Vec<usize> = (0..self.wq.links.len())
            .filter(|&l| self.wq.links[l].queue == q && self.wq.links[l].id.is_some())
            .collect();
        let pods = topology.pods(spec.scope);
        let map = match spec.kind {
            Kind::Ordered => PoolMap::ordered(&possible, &possible),
            _ => PoolMap::new(&pods, &possible, &possible, &online),
        };
        let mut links = vec![u32::MAX; map.masks().len()];
        let mut pools = vec![u32::MAX; map.masks().len()];
        for cpu in possible.iter() {
            let slot = map.slot(cpu);
            if links[slot] == u32::MAX {
                let set = map.masks()[slot].clone();
                let p = self.find_or_make_pool(spec, set);
                pools[slot] = p;
                links[slot] = self.link(q, p, spec, !old.is_empty());
            }
            self.wq.queues[q as usize].table[cpu] = links[slot];
        }
        if spec.kind == Kind::Unbound && !spec.kernel && !spec.strict {
            let distances = Distances::new(topology, DEFAULT_CACHE_SHARD_SIZE);
            let of_pod: Vec<Option<u32>> = pods
                .iter()
                .map(|pod| pod.cpus.first().map(|c| pools[map.slot(c)]))
                .collect();
            for (i, p) in of_pod.iter().enumerate() {
                let Some(p) = *p else { continue };
                let mut near = help::neighbours(&distances, &pods, i);
                near.retain_mut(|n| match of_pod[n.pod as usize] {
                    Some(other) if other != p => {
                        n.pod = other;
                        true
                    }
                    _ => false,
                });
                self.wq.pools[p as usize].neighbours = near;
            }
        }
        for l in old {
            let (p, id) = (self.wq.links[l].pool, self.wq.links[l].id);
            let id = id.expect("old links are live");
            self.wq.with(p, 0, |pool, d| pool.retire_pwq(id, d));
        }
        self.run_todo();
    }

    fn link(&mut self, q: u32, p: u32, spec: &QueueSpec, newer: bool) -> u32 {
        let tag = self.wq.links.len() as u32;
        let queue = &mut self.wq.queues[q as usize];
        let node = self.wq.pools[p as usize].node;
        let leased = spec.kind == Kind::Unbound;
        let plugged = spec.kind == Kind::Ordered && newer;
        let limit = match spec.kind {
            Kind::PerCpu => queue.max,
            Kind::Ordered => u32::from(!plugged),
            Kind::Unbound => 0,
        };
        let (colour, draining, frozen) = (queue.flush.colour(), queue.draining, queue.frozen);
        if leased {
            queue.slots[node as usize].join(u64::from(tag));
        }
        let helpable = self.wq.pools[p as usize].helped;
        let id = self.wq.pools[p as usize].pool.link_pwq(PwqConfig {
            tag: u64::from(tag),
            limit,
            leased,
            colour,
            flags: PwqFlags {
                helpable,
                ..spec.flags
            },
            draining,
            frozen,
        });
        self.wq.links.push(Link {
            queue: q,
            pool: p,
            id: Some(id),
            slot: node,
            leased,
            plugged,
            taken_back: 0,
        });
        tag
    }

    fn find_or_make_pool(&mut self, spec: &QueueSpec, set: CpuSet) -> u32 {
        let kind = match (spec.kind, spec.kernel) {
            (Kind::PerCpu, _) => PoolKind::PerCpu,
            (_, true) => PoolKind::Unmanaged,
            _ => PoolKind::Unbound,
        };
        let helped = kind == PoolKind::Unbound && spec.kind == Kind::Unbound && !spec.strict;
        let same = |p: &PoolSt| {
            p.set == set
                && p.strict == spec.strict
                && p.localize == spec.localize
                && p.pool.config().kind == kind
                && p.helped == helped
        };
        if let Some(p) = self.wq.pools.iter().position(same) {
            return p as u32;
        }
        let m = Arc::clone(&self.os.m);
        let numa = m.topology.pods(AffinityScope::Numa);
        let node = node_of_mask(&set, &numa).map_or(m.node_count(), |n| n) as u32;
        let cpus: Vec<u32> = set.iter().map(|c| c as u32).collect();
        let usable = cpus
            .iter()
            .filter(|&&c| self.os.cpus[c as usize].online)
            .count();
        let target = match spec.kind {
            Kind::PerCpu => 1,
            _ => usable.max(1) as u32,
        };
        let wide = kind == PoolKind::Unmanaged && !spec.strict;
        let mask = if wide {
            m.topology.possible().clone()
        } else {
            set.clone()
        };
        let cursor = self.rng.u32(0..cpus.len() as u32);
        self.wq.pools.push(PoolSt {
            pool: Watched::new(Pool::new(PoolConfig {
                kind,
                target,
                max_workers: spec.max_workers,
                histograms: false,
                reserve: spec.reserve,
                hog_extra: target,
                wake_cost_ns: m.costs.wake + m.costs.switch,
                ..PoolConfig::default()
            })),
            lock: Lock {
                free_at: 0,
                last_cpu: cpus.first().copied().unwrap_or(0),
            },
            cpus,
            set,
            node,
            mask: Arc::new(mask),
            strict: spec.strict,
            localize: spec.localize,
            helped,
            neighbours: Vec::new(),
            threads: Vec::new(),
            batches: Vec::new(),
            cursor,
            repatriated: 0,
            helps: 0,
            offers: 0,
            called_by: None,
            vain_until: 0,
        });
        let p = self.wq.pools.len() as u32 - 1;
        self.wq.pools[p as usize].pool.set_cores(m.core_of_cpus());
        p
    }

    /// A thread for a worker of pool `p` starts, where its mask has room.
    pub(crate) fn start_worker(&mut self, p: u32) -> Tid {
        let now = self.os.now;
        let st = &mut self.wq.pools[p as usize];
        let w = st.pool.worker_started(0, now);
        if st.batches.len() <= w as usize {
            st.batches.resize(w as usize + 1, Batch::default());
            st.threads.resize(w as usize + 1, Tid::MAX);
        }
        st.batches[w as usize] = Batch::default();
        let n = st.cpus.len() as u32;
        st.cursor = (st.cursor + 1) % n;
        let near = st.cpus[st.cursor as usize];
        let mask = Arc::clone(&st.mask);
        let t = self.os.spawn(near, mask, 0);
        self.wq.pools[p as usize].threads[w as usize] = t;
        self.roles.push(Role::Worker {
            pool: p,
            id: w,
            away: None,
        });
        let to = self.os.fork_cpu(t, near);
        self.os.wake(t, None, crate::os::Want::There(to));
        t
    }

    /// A batch record for a worker that attaches.
    pub(crate) fn batch_for(&mut self, p: u32, w: u32, t: Tid) {
        let st = &mut self.wq.pools[p as usize];
        if st.batches.len() <= w as usize {
            st.batches.resize(w as usize + 1, Batch::default());
            st.threads.resize(w as usize + 1, Tid::MAX);
        }
        st.batches[w as usize] = Batch::default();
        st.threads[w as usize] = t;
    }
}
