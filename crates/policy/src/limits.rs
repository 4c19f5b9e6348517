//! `max_active` and `min_active`: ranges, defaults, the split over nodes.

/// Upper end of `max_active` (kernel: WQ_MAX_ACTIVE, 2048 since 6.13).
pub const MAX_ACTIVE: u32 = 2048;
/// `max_active` when 0 is asked for (kernel: WQ_DFL_ACTIVE, 1024 since 6.13).
pub const DEFAULT_ACTIVE: u32 = 1024;
/// `min_active` unless set (kernel: WQ_DFL_MIN_ACTIVE, 8 since 6.9).
pub const DEFAULT_MIN_ACTIVE: u32 = 8;

/// What a requested `max_active` becomes, and whether it was out of range (0 asks for the default and is not).
pub fn clamp_max_active(requested: u32) -> (u32, bool) {
    match requested {
        0 => (DEFAULT_ACTIVE, false),
        n => (n.min(MAX_ACTIVE), n > MAX_ACTIVE),
    }
}

/// The `min_active` that goes with a new queue's `max_active`.
pub fn default_min_active(max_active: u32) -> u32 {
    max_active.min(DEFAULT_MIN_ACTIVE)
}

/// Each node's share of a system-wide limit (kernel 6.9 on): `clamp(ceil(max * cpus(node) / cpus), min, max)`, where the CPUs
/// are those that the queue may use and that are online. Without any such CPU every node gets `min_active`. The sum may
/// exceed `max_active`, and no share is 0; nodes that span everything ("no node") get `max_active` itself.
pub fn node_limits(max_active: u32, min_active: u32, cpus_per_node: &[u32]) -> Vec<u32> {
    let total: u64 = cpus_per_node.iter().map(|&n| u64::from(n)).sum();
    let min = min_active.min(max_active);
    cpus_per_node
        .iter()
        .map(|&n| {
            if total == 0 {
                return min.max(1);
            }
            let share = (u64::from(max_active) * u64::from(n)).div_ceil(total) as u32;
            // A queue may have items in a pool of a node that it should not use any more: they must get through too.
            share.clamp(min.max(1), max_active.max(1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_the_default_and_too_much_is_clamped() {
        assert_eq!(clamp_max_active(0), (1024, false));
        assert_eq!(clamp_max_active(1), (1, false));
        assert_eq!(clamp_max_active(2048), (2048, false));
        assert_eq!(clamp_max_active(2049), (2048, true));
    }

    #[test]
    fn a_single_node_reaches_the_limit_not_min_active() {
        assert_eq!(node_limits(100, 8, &[64]), [100]);
    }

    #[test]
    fn shares_follow_cpus_and_never_fall_below_min_active() {
        assert_eq!(node_limits(64, 8, &[24, 8]), [48, 16]);
        assert_eq!(node_limits(16, 8, &[60, 4]), [15, 8]);
        assert_eq!(node_limits(3, 8, &[1, 1]), [3, 3]);
    }

    #[test]
    fn no_usable_cpu_does_not_divide_by_zero() {
        assert_eq!(node_limits(100, 8, &[0, 0]), [8, 8]);
        assert_eq!(node_limits(100, 8, &[]), [0u32; 0]);
    }
}
