//! Timers for delayed work: a hierarchical wheel as a plain data structure. It has no clock and no thread; time comes in as
//! nanoseconds of whatever clock the caller keeps, expired timers go out through a closure.
//!
//! See the README beside this file for the invariants.
//!
//! ```
//! use cmwq_policy::timer::TimerWheel;
//!
//! let mut wheel = TimerWheel::new(0);
//! let id = wheel.insert(0, 50_000_000, "tick");
//! assert!(wheel.modify(id, 0, 70_000_000));
//! let wake = wheel.next_expiry_ns().unwrap();
//! assert!(wake >= 70_000_000 && wake < 70_000_000 + cmwq_policy::timer::GRANULE_NS);
//! let mut fired = Vec::new();
//! wheel.advance(wake, usize::MAX, |_, name| fired.push(name));
//! assert_eq!(fired, ["tick"]);
//! ```

mod slab;
mod wheel;

pub use slab::TimerId;
pub use wheel::{Advance, TimerWheel};

/// log2 of [`GRANULE_NS`].
const GRANULE_BITS: u32 = 19;

/// The wheel's unit of time: 2^19 ns = 0.524 ms. A power of two, so that a shift finds the tick; the largest one for which a
/// timer of up to a minute is less than 1 ms late.
pub const GRANULE_NS: u64 = 1 << GRANULE_BITS;

/// Delays of up to this many ticks (68.7 s) are kept to the granule.
const FINE_TICKS: u64 = 1 << 17;

/// Longer ones are rounded up to a power of two of at most 1/64 of the delay: 1.6 %.
const COARSE_BITS: u32 = 6;

/// The tick at which a timer set at `now_ns` for `deadline_ns` fires: the first one that is not before the deadline, or for
/// long delays a rounder one soon after.
fn tick_for(now_ns: u64, deadline_ns: u64) -> u64 {
    let tick = deadline_ns.div_ceil(GRANULE_NS);
    let delay = tick.saturating_sub(now_ns >> GRANULE_BITS);
    if delay <= FINE_TICKS {
        return tick;
    }
    let bits = delay.ilog2() - COARSE_BITS;
    tick.div_ceil(1 << bits) << bits
}

/// The first nanosecond of a tick; ticks beyond the end of time are there.
fn tick_to_ns(tick: u64) -> u64 {
    tick.saturating_mul(GRANULE_NS)
}

#[cfg(test)]
mod tests;
