//! The end of a run: workers are allowed to run, and everything accepted must end.

use super::World;
use cmwq_policy::pool::WorkerId;

impl World {
    /// Lets everything finish. `ticks`: how many rounds of ticks may be needed after nothing else moves.
    ///
    /// # Panics
    /// If something is lost.
    pub(crate) fn finish(&mut self, ticks: u32) {
        self.create_fails = false;
        self.lag = false;
        self.publish();
        for q in 0..self.queues.len() {
            self.set_frozen(q, false);
        }
        let now = self.now;
        for (p, e, item, _) in std::mem::take(&mut self.inline) {
            self.end_item(item);
            self.with_pool(p, |pool, d| pool.inline_end(e, now, now, d));
        }
        let mut ticks_left = ticks;
        for round in 0.. {
            assert!(round < 1_000_000, "the world never comes to rest");
            self.check();
            if !self.todo.is_empty() {
                let req = self.todo.remove(0);
                self.carry_out(req, 1);
                continue;
            }
            let awake = self.awake();
            for &(p, w) in &awake {
                if self.workers[p].contains_key(&w) {
                    self.work(p, w);
                    self.check();
                }
            }
            if !awake.is_empty() {
                continue;
            }
            if self.all_over() {
                break;
            }
            assert!(
                ticks_left > 0,
                "items are left and nothing moves:\n{}",
                self.left()
            );
            ticks_left -= 1;
            self.now += 2_100_000_000;
            for p in 0..self.pools.len() {
                let now = self.now;
                if self.pools[p].wants_tick() {
                    self.with_pool(p, |pool, d| pool.tick(now, d));
                }
            }
        }
        for q in &self.queues {
            assert_eq!(q.flush.waiting(), 0, "every flusher gets through");
        }
        assert!(
            self.flushers.is_empty() && self.barriers.is_empty(),
            "every waiter is told"
        );
        for p in &self.pools {
            assert_eq!(p.entries(), 0, "no entry is left");
            let c = p.counts();
            assert_eq!(
                c.running + c.waking + c.blocked + c.intensive + c.attached,
                0,
                "all rest"
            );
            for (_, pwq) in p.pwqs() {
                let k = &pwq.counters;
                assert_eq!(k.started, k.completed, "what was started is completed");
                assert_eq!(
                    k.queued,
                    k.completed + k.cancelled,
                    "what was queued has ended"
                );
            }
        }
    }

    fn awake(&self) -> Vec<(usize, WorkerId)> {
        let mut all: Vec<_> = self
            .workers
            .iter()
            .enumerate()
            .flat_map(|(p, ws)| {
                ws.iter()
                    .filter(|(_, b)| !b.asleep)
                    .map(move |(&w, _)| (p, w))
            })
            .collect();
        all.sort_unstable();
        all
    }

    fn all_over(&self) -> bool {
        self.items
            .iter()
            .all(|it| it.ended + it.cancelled == it.accepted)
    }

    fn left(&self) -> String {
        let mut s = String::new();
        for (i, it) in self.items.iter().enumerate() {
            if it.ended + it.cancelled < it.accepted {
                s += &format!("item {i}: {it:?}\n");
            }
        }
        for (i, p) in self.pools.iter().enumerate() {
            s += &format!(
                "pool {i}: {:?}, waiting {}, limit {}\n",
                p.counts(),
                p.waiting(),
                p.limit_now()
            );
            for (_, pwq) in p.pwqs() {
                s += &format!(
                    "  pwq {}: active {} limit {} inactive {} asking {}\n",
                    pwq.tag,
                    pwq.active(),
                    pwq.limit(),
                    pwq.inactive_len(),
                    pwq.is_asking()
                );
            }
        }
        for l in self
            .log
            .iter()
            .rev()
            .take(60)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            s += &format!("  {l}\n");
        }
        s
    }
}
