//! Delayed items: the wheel of `cmwq-policy`, looked at when it says so, or late, a few timers at a time.

use super::{ItemId, Truth};
use crate::os::Ev;
use crate::sim::Sim;
use cmwq_policy::timer::GRANULE_NS;

/// In a fault run whoever looks after the wheel comes up to this late.
const LATE_NS: u64 = 3_000_000;
/// Looks at a wheel with many due timers follow each other by this.
const NEXT_LOOK_NS: u64 = 1_000;

impl Sim {
    /// Sets the timer of an item that is not pending in any way.
    pub(crate) fn delay_item(&mut self, item: ItemId, delay: u64) {
        let now = self.os.now;
        let it = &self.wq.items[item as usize];
        assert!(
            it.timer.is_none() && it.truth == Truth::Idle,
            "what is pending is not delayed"
        );
        let id = self.wq.timers.insert(now, now + delay, item);
        self.wq.items[item as usize].timer = Some((id, now + delay));
        self.arm_timers();
    }

    /// Changes when a delayed item is due. False if it has no timer.
    pub(crate) fn change_delay(&mut self, item: ItemId, delay: u64) -> bool {
        let now = self.os.now;
        let Some((id, _)) = self.wq.items[item as usize].timer else {
            return false;
        };
        assert!(
            self.wq.timers.modify(id, now, now + delay),
            "a timer that has not fired can be changed"
        );
        self.wq.items[item as usize].timer = Some((id, now + delay));
        self.arm_timers();
        true
    }

    /// Cancels a delayed item's timer. False if it has none.
    pub(crate) fn undelay(&mut self, item: ItemId) -> bool {
        let Some((id, _)) = self.wq.items[item as usize].timer.take() else {
            return false;
        };
        assert_eq!(
            self.wq.timers.cancel(id),
            Some(item),
            "a timer that has not fired can be cancelled"
        );
        self.stats.disarmed += 1;
        true
    }

    fn arm_timers(&mut self) {
        let Some(next) = self.wq.timers.next_expiry_ns() else {
            return;
        };
        if next >= self.wq.timers_due {
            return;
        }
        self.wq.timers_due = next;
        let late = match self.disturb {
            Some(d) if d.step_ns > 0 => self.rng.u64(0..LATE_NS),
            _ => 0,
        };
        // Whoever comes earlier than that anyway (late for another timer, or with more to do) is not held up by it.
        self.look_at_timers(next.max(self.os.now) + late);
    }

    fn look_at_timers(&mut self, at: u64) {
        if at < self.wq.timers_look {
            self.wq.timers_look = at;
            self.os.ev.push(at, Ev::Timers(at));
        }
    }

    /// It is time to look at the wheel, if no other look came between.
    pub(crate) fn timers_due(&mut self, look: u64) {
        if look != self.wq.timers_look {
            return;
        }
        (self.wq.timers_due, self.wq.timers_look) = (u64::MAX, u64::MAX);
        let (now, budget) = (self.os.now, self.rng.usize(1..6));
        let mut fired = Vec::new();
        let did = self
            .wq
            .timers
            .advance(now, budget, |_, item| fired.push(item));
        if did.more {
            // Before what fires sets timers anew.
            self.wq.timers_due = now;
            self.look_at_timers(now + NEXT_LOOK_NS);
        }
        for item in fired {
            self.fire(item);
        }
        if !did.more {
            self.arm_timers();
        }
    }

    fn fire(&mut self, item: ItemId) {
        let now = self.os.now;
        let timer = self.wq.items[item as usize].timer.take();
        let (_, due) = timer.expect("a timer fires once, and not after it was cancelled");
        assert!(now >= due, "no timer fires early");
        let jumped = self.load.plan.as_ref().map_or(0, |p| p.jumped_at);
        assert!(
            due <= jumped || now - due <= GRANULE_NS + LATE_NS + 1_000_000,
            "a timer fires at the next look after its granule: {} ns late",
            now - due
        );
        self.stats.fired += 1;
        let from = self.wq.items[item as usize].issuer_cpu as usize;
        let online = |c: &usize| self.os.cpus[*c].online;
        let cpu = Some(from)
            .filter(online)
            .or_else(|| (0..self.os.cpus.len()).find(online));
        let cpu = cpu.expect("a CPU is online") as u32;
        self.at = cpu;
        // A queue that drains refuses it: then it is as if it had never been set.
        self.queue_item(item, cpu, false);
    }
}
