//! An active-limit slot: the permits of one unbound workqueue on one node.
//!
//! The kernel counts active items of an unbound queue per node in one shared counter. Here the pwqs lease permits from the
//! slot, a few at a time while they are plentiful, one at a time when others wait. Invariants:
//!
//! - S1: the permits leased never exceed `max`, except right after `max` was lowered; then none is granted until they do not.
//! - S2: who asked first is served first; a pwq that wants more joins the end of the queue.
//! - S3: while somebody waits, no pwq keeps a spare permit for longer than its next completed item, and those that had
//!   spares when the first one began to wait are swept at once. So no permit lies idle while an item waits for one.

use crate::pool::PwqTag;
use std::collections::VecDeque;

/// Permits are handed out in lots of at most this many. 16 covers a full batch of a worker.
pub const MAX_LOT: u32 = 16;

/// What a slot asks of its driver; carried out after the slot's lock was dropped.
pub trait SlotDriver {
    /// Later: [`crate::pool::Pool::grant`].
    fn grant(&mut self, pwq: PwqTag, n: u32, keep: u32);
    /// Later: [`crate::pool::Pool::reclaim`], and what it returns goes to [`Slot::give_back`].
    fn sweep(&mut self, pwq: PwqTag);
}

/// Who wants permits of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contention {
    /// Nobody waits.
    Nobody,
    /// One pwq waits.
    One(PwqTag),
    /// Several wait, or more is leased than the limit allows.
    Many,
}

impl Contention {
    /// Whether somebody else than this pwq wants permits. A pwq that waits alone uses its freed permits itself.
    #[inline]
    pub fn for_pwq(self, pwq: PwqTag) -> bool {
        match self {
            Contention::Nobody => false,
            Contention::One(tag) => tag != pwq,
            Contention::Many => true,
        }
    }
}

/// The permits of one node.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    max: u32,
    leased: u32,
    waiting: VecDeque<PwqTag>,
    members: Vec<PwqTag>,
    /// Some pwq may hold spare permits.
    lent_spares: bool,
}

impl Slot {
    /// A slot with `max` permits.
    pub fn new(max: u32) -> Slot {
        Slot {
            max,
            ..Slot::default()
        }
    }

    /// The limit.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Permits handed out.
    pub fn leased(&self) -> u32 {
        self.leased
    }

    /// Pwqs that wait for a permit.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Who wants permits; a pwq hands its freed ones back at once if [`Contention::for_pwq`] says so.
    #[inline]
    pub fn contention(&self) -> Contention {
        if self.leased > self.max || self.waiting.len() > 1 {
            return Contention::Many;
        }
        self.waiting
            .front()
            .map_or(Contention::Nobody, |&pwq| Contention::One(pwq))
    }

    /// A pwq that will lease here.
    pub fn join(&mut self, pwq: PwqTag) {
        self.members.push(pwq);
    }

    /// The pwq is gone; it held `limit` permits.
    pub fn leave<D: SlotDriver>(&mut self, pwq: PwqTag, limit: u32, drv: &mut D) {
        self.members.retain(|&m| m != pwq);
        self.waiting.retain(|&m| m != pwq);
        self.give_back(limit, drv);
    }

    /// The pwq has items that its permits do not cover.
    pub fn ask<D: SlotDriver>(&mut self, pwq: PwqTag, drv: &mut D) {
        if self.waiting.is_empty() && self.leased < self.max {
            let free = self.max - self.leased;
            let lot = (free / (2 * self.members.len().max(1) as u32)).clamp(1, MAX_LOT);
            let keep = if lot > 1 { lot } else { 0 };
            self.lent_spares |= keep > 0;
            self.leased += lot;
            drv.grant(pwq, lot, keep);
            return;
        }
        self.waiting.push_back(pwq);
        self.sweep(drv);
    }

    fn sweep<D: SlotDriver>(&mut self, drv: &mut D) {
        if std::mem::take(&mut self.lent_spares) {
            for &m in &self.members {
                drv.sweep(m);
            }
        }
    }

    /// Permits come back; who waits gets them.
    pub fn give_back<D: SlotDriver>(&mut self, n: u32, drv: &mut D) {
        debug_assert!(n <= self.leased);
        self.leased -= n;
        self.serve(drv);
    }

    fn serve<D: SlotDriver>(&mut self, drv: &mut D) {
        while self.leased < self.max {
            let Some(pwq) = self.waiting.pop_front() else {
                break;
            };
            self.leased += 1;
            drv.grant(pwq, 1, 0);
        }
    }

    /// Changes the limit. Raised: those who wait are served in order. Lowered: nothing is taken from running items; permits
    /// are withheld as they come back.
    pub fn set_max<D: SlotDriver>(&mut self, max: u32, drv: &mut D) {
        self.max = max;
        if self.leased > max {
            self.sweep(drv);
        }
        self.serve(drv);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two to four pwqs that use permits at random, against "no more than max, nobody waits while one is free".
    #[derive(Default)]
    struct Pwqs {
        active: Vec<u32>,
        limit: Vec<u32>,
        keep: Vec<u32>,
        wanted: Vec<u32>,
        asking: Vec<bool>,
        todo: VecDeque<(char, u64, u32, u32)>,
    }

    impl SlotDriver for Pwqs {
        fn grant(&mut self, pwq: PwqTag, n: u32, keep: u32) {
            self.todo.push_back(('g', pwq, n, keep));
        }
        fn sweep(&mut self, pwq: PwqTag) {
            self.todo.push_back(('s', pwq, 0, 0));
        }
    }

    fn run_todo(slot: &mut Slot, p: &mut Pwqs) {
        while let Some((what, tag, n, keep)) = p.todo.pop_front() {
            let i = tag as usize;
            if what == 'g' {
                p.asking[i] = false;
                p.limit[i] += n;
                p.keep[i] = keep;
            } else {
                let spare = p.limit[i] - p.active[i];
                p.limit[i] -= spare;
                p.keep[i] = 0;
                slot.give_back(spare, p);
            }
            settle(slot, p, i);
        }
    }

    fn settle(slot: &mut Slot, p: &mut Pwqs, i: usize) {
        let start = p.wanted[i].min(p.limit[i] - p.active[i]);
        p.active[i] += start;
        p.wanted[i] -= start;
        if p.wanted[i] > 0 && !p.asking[i] {
            p.asking[i] = true;
            slot.ask(i as u64, p);
        }
        let keep = if slot.contention().for_pwq(i as u64) {
            0
        } else {
            p.keep[i]
        };
        let spare = p.limit[i] - p.active[i];
        if spare > keep {
            p.limit[i] -= spare - keep;
            slot.give_back(spare - keep, p);
        }
    }

    proptest! {
        #[test]
        fn s1_s3_limit_holds_and_no_permit_is_idle_while_somebody_waits(
            max in 1u32..80,
            ops in proptest::collection::vec((0usize..4, 0u32..3, 1u32..60), 1..200),
        ) {
            let mut slot = Slot::new(max);
            let mut p = Pwqs { active: vec![0; 4], limit: vec![0; 4], keep: vec![0; 4], wanted: vec![0; 4], asking: vec![false; 4], ..Default::default() };
            (0..4).for_each(|i| slot.join(i));
            let mut lowered = false;
            for (i, what, n) in ops {
                match what {
                    0 => p.wanted[i] += n,
                    1 => {
                        let done = n.min(p.active[i]);
                        p.active[i] -= done;
                    }
                    _ => {
                        lowered = n < slot.leased();
                        slot.set_max(n, &mut p);
                        run_todo(&mut slot, &mut p);
                    }
                }
                settle(&mut slot, &mut p, i);
                run_todo(&mut slot, &mut p);
                prop_assert_eq!(slot.leased(), p.limit.iter().sum::<u32>());
                if !lowered {
                    prop_assert!(slot.leased() <= slot.max(), "S1");
                }
                lowered &= slot.leased() > slot.max();
                if p.wanted.iter().any(|&w| w > 0) {
                    let active: u32 = p.active.iter().sum();
                    prop_assert!(active >= slot.max(), "S3: {} active of {} while items wait", active, slot.max());
                }
            }
        }
    }
}
