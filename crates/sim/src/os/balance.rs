//! Pulling waiting threads to idle CPUs, and levelling caches.

use super::{Os, Tstate};

/// How often caches are levelled when nobody is idle, ns (busy factor times the domain's interval).
const LEVEL_EVERY: u64 = 64_000_000;

/// What a look at the sibling costs: a CPU that is idle for less on average does not even do that.
const SMT_COST: u64 = 500;

impl Os {
    /// A CPU became idle: it pulls a thread that waits in its cache, or, if it tends to be idle for long enough, elsewhere.
    pub(super) fn newidle(&mut self, cpu: u32) {
        let llc = self.llc_of(cpu);
        let avg = self.cpus[cpu as usize].avg_idle;
        if avg < SMT_COST || (self.waiting[llc] > 0 && self.pull_from_sibling(cpu)) {
            return;
        }
        if avg < self.m.costs.newidle_cache {
            return;
        }
        if self.waiting[llc] > 0 && self.pull_from_llc(cpu, llc, true) {
            return;
        }
        if avg < self.m.costs.newidle_node {
            return;
        }
        self.pull_from_others(cpu, true);
    }

    /// From the siblings' queues whatever may move, however hot: they share all caches (`task_hot`).
    fn pull_from_sibling(&mut self, cpu: u32) -> bool {
        let core = self.m.core(self.m.place(cpu).core);
        let found = core.iter().filter(|&&c| c != cpu).find_map(|&c| {
            let q = &self.cpus[c as usize].queue;
            let i = q.iter().position(|&t| self.allowed(t, cpu))?;
            Some((c, i))
        });
        let Some((from, i)) = found else {
            return false;
        };
        self.pull(cpu, from, i);
        true
    }

    fn pull_from_others(&mut self, cpu: u32, hot_stays: bool) -> bool {
        let (llc, node) = (self.llc_of(cpu), self.m.place(cpu).node);
        let n = self.m.llc_count();
        for same_node in [true, false] {
            let there = |l: usize| {
                self.waiting[l] > 0
                    && self
                        .m
                        .llc(l as u32)
                        .first()
                        .is_some_and(|&c| (self.m.place(c).node == node) == same_node)
            };
            let mut from: Vec<usize> = (1..n)
                .map(|i| (llc + i) % n)
                .filter(|&l| there(l))
                .collect();
            // Threads that may not move count as load all the same (so an idle CPU may stay idle beside a sibling's long queue of
            // pinned ones), but not to an attentive system.
            let attentive = self.rules.domain_interval == 0;
            from.retain(|&l| attentive || self.runnable(l) > self.runnable(llc) + 1);
            // The busiest first; if all its threads are pinned, the next one (`LBF_ALL_PINNED`).
            from.sort_by_key(|&l| std::cmp::Reverse(self.waiting[l]));
            for l in from {
                if self.pull_from_llc(cpu, l, hot_stays) {
                    return true;
                }
            }
        }
        false
    }

    /// Pulls one thread from the longest queue of a cache that has one which may move.
    fn pull_from_llc(&mut self, cpu: u32, llc: usize, hot_stays: bool) -> bool {
        let mut best: Option<(usize, u32, usize)> = None;
        for &c in self.m.llc(llc as u32) {
            let q = &self.cpus[c as usize].queue;
            if c == cpu || best.is_some_and(|(n, ..)| n >= q.len()) {
                continue;
            }
            let found = q.iter().position(|&t| {
                self.allowed(t, cpu)
                    && (!hot_stays || self.now - self.threads[t as usize].ran_at >= self.rules.hot)
            });
            if let Some(i) = found {
                best = Some((q.len(), c, i));
            }
        }
        let Some((_, from, i)) = best else {
            return false;
        };
        self.pull(cpu, from, i);
        true
    }

    fn pull(&mut self, cpu: u32, from: u32, i: usize) {
        let t = self.unqueue(from, i);
        self.threads[t as usize].state = Tstate::Sleeping;
        self.place(t, cpu, false);
    }

    /// The periodic part, once a tick.
    pub(crate) fn balance_tick(&mut self) {
        self.note_utilisation();
        if !self.rules.periodic {
            return;
        }
        if self.waiting.iter().any(|&w| w > 0) {
            for l in 0..self.m.llc_count() {
                self.balance_idle(l);
            }
        }
        if self.now - self.last_level >= LEVEL_EVERY {
            self.last_level = self.now;
            self.level();
        }
    }

    /// The idle CPUs of a cache pull what waits in it. Each is due to look into the other caches every `domain_interval`, and does if
    /// it is the cache's first idle one then (`should_we_balance`; one of an idle core goes first); hot threads stay until that has failed twice (`cache_nice_tries`).
    fn balance_idle(&mut self, l: usize) {
        let mut first: Option<(u32, bool)> = None;
        for i in 0..self.m.llc(l as u32).len() {
            let cpu = self.m.llc(l as u32)[i];
            if !self.cpus[cpu as usize].is_idle() {
                continue;
            }
            if self.waiting[l] > 0 && self.pull_from_llc(cpu, l, false) {
                continue;
            }
            let core = self.m.core(self.m.place(cpu).core);
            let alone = core.iter().all(|&c| self.cpus[c as usize].curr.is_none());
            if first.is_none_or(|(_, was_alone)| alone && !was_alone) {
                first = Some((cpu, alone));
            }
        }
        let Some((first, _)) = first else {
            return;
        };
        for i in 0..self.m.llc(l as u32).len() {
            let cpu = self.m.llc(l as u32)[i];
            let (at, failed) = self.looked_far[cpu as usize];
            let due = self.now - at >= self.rules.domain_interval;
            if due && self.cpus[cpu as usize].is_idle() {
                let failed = if cpu == first && self.fill_from_others(l, cpu, failed) {
                    0
                } else {
                    failed + u32::from(cpu == first)
                };
                self.looked_far[cpu as usize] = (self.now, failed);
            }
        }
    }

    /// It fills what is spare in its cache (`migrate_util`): all to this CPU, from where the others take them.
    fn fill_from_others(&mut self, l: usize, cpu: u32, failed: u32) -> bool {
        let hot_stays = self.rules.domain_interval > 0 && failed < 2;
        let idle = |c: &&u32| self.cpus[**c as usize].is_idle();
        let spare = self.m.llc(l as u32).iter().filter(idle).count();
        let got = (0..spare).take_while(|_| self.pull_from_others(cpu, hot_stays));
        got.count() > 0
    }

    /// Threads that run or wait in a cache.
    fn runnable(&self, l: usize) -> u32 {
        self.llc_busy[l] + self.waiting[l]
    }

    fn note_utilisation(&mut self) {
        let keep = 0.5f64.powf(self.rules.tick as f64 / 32e6);
        for l in 0..self.m.llc_count() {
            let cpus = self.m.llc(l as u32);
            let busy: u64 = cpus.iter().map(|&c| self.busy_ns(c)).sum();
            let before = std::mem::replace(&mut self.util_busy[l], busy);
            let share = busy.saturating_sub(before) as f64
                / (self.rules.tick as f64 * cpus.len().max(1) as f64);
            self.util[l] = self.util[l] * keep + share.min(1.0) * (1.0 - keep);
        }
    }

    /// Moves one thread from the most to the least loaded cache (per CPU), and within each cache from the longest to the
    /// shortest queue, where they differ by two or more.
    fn level(&mut self) {
        for l in 0..self.m.llc_count() {
            let group: Vec<u32> = self.m.llc(l as u32).to_vec();
            self.level_within(&group);
        }
        let all: Vec<u32> = (0..self.cpus.len() as u32)
            .filter(|&c| self.cpus[c as usize].online)
            .collect();
        self.level_within(&all);
    }

    fn level_within(&mut self, group: &[u32]) {
        let len = |os: &Os, c: u32| {
            os.cpus[c as usize].queue.len() + usize::from(os.cpus[c as usize].curr.is_some())
        };
        let online = group
            .iter()
            .copied()
            .filter(|&c| self.cpus[c as usize].online);
        let Some(max) = online.clone().max_by_key(|&c| len(self, c)) else {
            return;
        };
        let Some(min) = online.min_by_key(|&c| len(self, c)) else {
            return;
        };
        if len(self, max) < len(self, min) + 2 {
            return;
        }
        let movable = self.cpus[max as usize]
            .queue
            .iter()
            .position(|&t| self.allowed(t, min));
        if let Some(i) = movable {
            self.pull(min, max, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cost::Costs;
    use crate::machine::Machine;
    use crate::os::{Os, Rules};
    use cmwq_topology::{CpuSet, Topology};
    use std::sync::Arc;

    /// Two caches of two CPUs: many pinned threads on the second CPU of one whose first idles, two that may move in the other one.
    fn beside_pinned(domain_interval: u64) -> Os {
        let t = Topology::synthetic("l3:2 core:2").unwrap();
        let m = Arc::new(Machine::new("", t, Costs::default()));
        let rules = Rules {
            domain_interval,
            newidle: false,
            ..Rules::default()
        };
        let mut os = Os::new(m, rules);
        let pinned = Arc::new(CpuSet::of(1));
        let free = Arc::new((0..4).collect::<CpuSet>());
        for _ in 0..8 {
            let t = os.spawn(1, Arc::clone(&pinned), 0);
            os.place(t, 1, false);
        }
        for _ in 0..2 {
            let t = os.spawn(2, Arc::clone(&free), 0);
            os.place(t, 2, false);
        }
        let t = os.spawn(3, free, 0);
        os.place(t, 3, false);
        os.now = 1_000_000_000;
        os
    }

    #[test]
    fn an_attentive_system_leaves_no_cpu_idle_beside_pinned_threads_while_others_may_move() {
        let mut os = beside_pinned(0);
        assert!(os.cpus[0].is_idle());
        os.balance_tick();
        assert!(!os.cpus[0].is_idle());
        // The other one weighs caches by all that waits there.
        let mut os = beside_pinned(24_000_000);
        os.balance_tick();
        assert!(os.cpus[0].is_idle());
    }
}
