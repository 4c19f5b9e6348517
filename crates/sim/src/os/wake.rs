//! Where a woken thread is put.

use super::{Os, Tid, Tstate, Want};

impl Os {
    /// Wakes a sleeping thread; no effect on others. `waker`: the CPU that calls, `None` for a timer.
    pub(crate) fn wake(&mut self, t: Tid, waker: Option<u32>, want: Want) {
        if self.threads[t as usize].state != Tstate::Sleeping {
            return;
        }
        self.threads[t as usize].sleep_gen = self.threads[t as usize].sleep_gen.wrapping_add(1);
        let cpu = match want {
            Want::There(c) if self.allowed(t, c) => c,
            Want::Prev(c) if self.allowed(t, c) => self.select(t, c, waker),
            _ => {
                let prev = self.threads[t as usize].cpu;
                let prev = if self.allowed(t, prev) {
                    prev
                } else {
                    self.fallback(t, prev)
                };
                self.select(t, prev, waker)
            }
        };
        self.lift(t);
        self.place(t, cpu, true);
    }

    #[inline]
    fn load(&self, cpu: u32) -> usize {
        let c = &self.cpus[cpu as usize];
        c.queue.len() + usize::from(c.curr.is_some())
    }

    /// `select_task_rq_fair` for a wake-up, as far as it matters here.
    fn select(&self, t: Tid, prev: u32, waker: Option<u32>) -> u32 {
        let mut target = prev;
        if let Some(w) =
            waker.filter(|&w| self.rules.wake_affine && w != prev && self.allowed(t, w))
        {
            let (here, there) = (&self.cpus[w as usize], &self.cpus[prev as usize]);
            if here.is_idle() {
                // An interrupt on an idle CPU: the waker's CPU, if that shares the cache and the previous one is busy.
                if self.llc_of(w) == self.llc_of(prev) && !there.is_idle() {
                    target = w;
                }
            } else if self.load(w) + 1 < self.load(prev) {
                target = w;
            }
        }
        if self.cpus[target as usize].is_idle() || !self.rules.idle_sibling {
            return target;
        }
        let llc = self.llc_of(target);
        if prev != target && self.llc_of(prev) == llc && self.cpus[prev as usize].is_idle() {
            return prev;
        }
        if let Some(c) = self.idle_in_llc(t, llc as u32, target, Some(prev)) {
            return c;
        }
        if self.rules.sis_node {
            // The node's other caches in turn, the next one first.
            let node = self.m.place(target).node;
            let n = self.m.llc_count() as u32;
            for l in (1..n).map(|i| (llc as u32 + i) % n) {
                let first = self.m.llc(l).first().copied();
                let Some(c) = first.filter(|&c| self.m.place(c).node == node) else {
                    continue;
                };
                if let Some(c) = self.idle_in_llc(t, l, c, None) {
                    return c;
                }
            }
        }
        target
    }

    /// `select_idle_cpu` and `select_idle_smt`: a CPU of an idle core, else the idle sibling of the previous CPU, else an idle
    /// one of the few CPUs behind `from` that are looked at.
    fn idle_in_llc(&self, t: Tid, llc: u32, from: u32, prev: Option<u32>) -> Option<u32> {
        let set = self.m.llc(llc);
        let idle_core = |&c: &u32| {
            let core = self.m.core(self.m.place(c).core);
            core.iter().all(|&s| self.cpus[s as usize].curr.is_none())
        };
        if !self.rules.sis_util || set.iter().any(idle_core) {
            return self.idle_in(t, set, from);
        }
        let usable = |c: u32| self.cpus[c as usize].is_idle() && self.allowed(t, c);
        if let Some(prev) = prev.filter(|&p| self.m.place(p).llc == llc) {
            let core = self.m.core(self.m.place(prev).core);
            if let Some(&c) = core.iter().find(|&&c| usable(c)) {
                return Some(c);
            }
        }
        // `update_idle_cpu_scan`: 1 - (1.17 x)^2 of the cache's CPUs.
        let x = self.util[llc as usize] * self.m.costs.busy_util * 1.17;
        let scan = ((1.0 - x * x).max(0.0) * set.len() as f64) as usize;
        let start = set.partition_point(|&c| c <= from);
        let order = (0..scan).map(|i| set[(start + i) % set.len()]);
        order.into_iter().find(|&c| usable(c))
    }

    /// An idle CPU of `set` that the thread may use, one with an idle core first, looking from behind `from` on.
    pub(super) fn idle_in(&self, t: Tid, set: &[u32], from: u32) -> Option<u32> {
        let start = set.partition_point(|&c| c <= from);
        let mut some = None;
        for i in 0..set.len() {
            let c = set[(start + i) % set.len()];
            if !self.cpus[c as usize].is_idle() || !self.allowed(t, c) {
                continue;
            }
            let core = self.m.core(self.m.place(c).core);
            if core.iter().all(|&s| self.cpus[s as usize].curr.is_none()) {
                return Some(c);
            }
            some = some.or(Some(c));
        }
        some
    }

    /// Where a new thread starts: an idle CPU of the least loaded cache that it may use (`find_idlest_cpu`).
    pub(crate) fn fork_cpu(&mut self, t: Tid, from: u32) -> u32 {
        let n = self.m.llc_count() as u32;
        self.cursor = self.cursor.wrapping_add(1);
        let start = self.cursor;
        let m = std::sync::Arc::clone(&self.m);
        let best = (0..n)
            .map(|i| (start + i) % n)
            .filter_map(|l| {
                let usable = m.llc(l).iter().filter(|&&c| self.allowed(t, c));
                let (load, cpus) = usable.fold((0, 0), |(a, k), &c| (a + self.load(c), k + 1));
                (cpus > 0).then(|| (load * 1000 / cpus, l))
            })
            .min_by_key(|x| x.0);
        match best {
            Some((_, l)) => self
                .idle_in(t, m.llc(l), from)
                .unwrap_or_else(|| self.fallback(t, from)),
            None => self.fallback(t, from),
        }
    }

    /// Moves a thread that runs or waits to another CPU, as activity outside the model does now and then.
    pub(crate) fn shove(&mut self, t: Tid, to: u32) {
        let cpu = self.threads[t as usize].cpu;
        if cpu == to || !self.allowed(t, to) {
            return;
        }
        match self.threads[t as usize].state {
            Tstate::Running | Tstate::Queued => {
                self.leave_cpu(t, Tstate::Sleeping);
                self.lift(t);
                self.place(t, to, false);
            }
            Tstate::Sleeping => {
                self.lift(t);
                let th = &mut self.threads[t as usize];
                th.cpu = to;
                th.vr += self.cpus[to as usize].min_vr;
            }
            Tstate::Dead => {}
        }
    }

    /// A CPU for a thread that may not stay on `from`: an idle one, else the least loaded of its mask, else any online one.
    pub(crate) fn fallback(&mut self, t: Tid, from: u32) -> u32 {
        let n = self.cpus.len() as u32;
        self.cursor = (self.cursor + 1) % n;
        let start = self.cursor;
        let order = (0..n).map(|i| (start + i) % n);
        let best = order
            .clone()
            .filter(|&c| self.allowed(t, c))
            .min_by_key(|&c| (self.load(c), self.m.near(from, c)));
        best.or_else(|| order.clone().find(|&c| self.cpus[c as usize].online))
            .unwrap_or(from)
    }
}
