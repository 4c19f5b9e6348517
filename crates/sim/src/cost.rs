//! What things cost on a modelled machine. All times in nanoseconds at full speed of a core.

use serde::{Deserialize, Serialize};

/// The constants of one machine. One set serves every scenario on it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// What each of two busy threads of a core gets of its speed, 0..1.
    pub smt_share: f64,
    /// A cache line last written by another core of the same last-level cache.
    pub line_cache: f64,
    /// ... in another last-level cache of the node.
    pub line_node: f64,
    /// ... on another node.
    pub line_far: f64,
    /// Lines of bookkeeping that move with an item, whatever its size.
    pub item_lines: f64,
    /// Share of an item's payload lines whose transfer is not hidden by prefetching, 0..1.
    pub exposed: f64,
    /// Switching a CPU to another thread.
    pub switch: u64,
    /// From the wake-up call to the thread running, on a CPU that has just become idle.
    pub wake: u64,
    /// More than that if no CPU of its last-level cache was busy for longer than `idle_deep_after`.
    pub idle_exit: u64,
    /// See `idle_exit`.
    pub idle_deep_after: u64,
    /// A CPU that is idle for less than this on average pulls nothing when it becomes idle (`avg_idle` against
    /// `max_newidle_lb_cost` of the cache's domain).
    pub newidle_cache: u64,
    /// The same for other caches.
    pub newidle_node: u64,
    /// Utilisation that the scheduler sees of a CPU that is never idle, at a frequency below the highest one
    /// (`arch_scale_freq_capacity`), 0..1.
    pub busy_util: f64,
    /// What the waker pays for a wake-up.
    pub wake_call: u64,
    /// Holding a pool's lock once, lines at hand.
    pub lock_hold: u64,
    /// Lines that a holder of a pool's lock touches which the last holder wrote.
    pub lock_lines: f64,
    /// Making a thread.
    pub spawn: u64,
    /// How often activity outside the model moves an issuer to some other CPU, on average, for each issuer; 0 = never.
    pub wander: u64,
    /// Verifying one KiB (issuer).
    pub verify_kib: f64,
    /// Generating one KiB (issuer).
    pub generate_kib: f64,
    /// Encrypting or decrypting one KiB (worker).
    pub crypt_kib: f64,
    /// Issuer's fixed cost of one request (submit and reap).
    pub request: u64,
    /// Worker's fixed cost of one item.
    pub item: u64,
    /// Worker's cost of one command of a loop device over memory.
    pub loop_item: u64,
    /// What the writer's thread does with one encrypted write.
    pub writer: u64,
    /// What an interrupt of the device takes from the CPU that it interrupts, beside what follows from it.
    pub interrupt: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Costs::RYZEN_3900X
    }
}

impl Costs {
    /// The 3900X of the published figures (3.8 GHz fixed). How they were found: see the crate's README.
    pub const RYZEN_3900X: Costs = Costs {
        smt_share: 0.8,
        line_cache: 25.0,
        line_node: 65.0,
        line_far: 130.0,
        item_lines: 25.0,
        exposed: 0.1,
        switch: 850,
        wake: 960,
        idle_exit: 18_959,
        idle_deep_after: 200_000,
        newidle_cache: 2_743,
        newidle_node: 25_000,
        busy_util: 0.91,
        wake_call: 500,
        lock_hold: 150,
        lock_lines: 3.0,
        spawn: 30_000,
        wander: 460_000_000,
        verify_kib: 1_450.0,
        generate_kib: 1_450.0,
        crypt_kib: 5_900.0,
        request: 700,
        item: 500,
        loop_item: 300,
        writer: 1_000,
        interrupt: 1_500,
    };

    /// Two EPYC 7713. Guesses after the 3900X with a slower fabric; nothing published was fitted.
    pub const EPYC_7713: Costs = Costs {
        line_node: 80.0,
        line_far: 180.0,
        ..Costs::RYZEN_3900X
    };

    /// 72 cores behind one cache, without SMT.
    pub const GRACE: Costs = Costs {
        smt_share: 1.0,
        line_cache: 40.0,
        ..Costs::RYZEN_3900X
    };

    /// Moving `lines` cache lines over this distance.
    #[inline]
    pub fn lines(&self, near: crate::machine::Near, lines: f64) -> u64 {
        use crate::machine::Near;
        let each = match near {
            Near::Same | Near::Core => return 0,
            Near::Cache => self.line_cache,
            Near::Node => self.line_node,
            Near::Far => self.line_far,
        };
        (each * lines) as u64
    }

    /// The items' bookkeeping and the part of `bytes` of payload that is not hidden.
    #[inline]
    pub fn touch(&self, near: crate::machine::Near, bytes: u32) -> u64 {
        self.lines(
            near,
            self.item_lines + f64::from(bytes) / 64.0 * self.exposed,
        )
    }
}
