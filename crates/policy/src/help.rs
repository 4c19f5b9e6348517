//! Who helps whom: work that waits in one pod and CPUs that are idle in another.
//!
//! Two ways lead from waiting work to an idle CPU. A worker about to park *looks* into the nearest other pods
//! ([`whom_to_help`]). And an item that no worker of its pod has started in time is *offered* outward ([`whom_to_offer`]).
//! Both visit a bounded number of pods, nearest first, same node before others; nobody scans all CPUs.

use cmwq_topology::{Distance, Distances, Pods};

/// An item that waited for less than this is never offered outward, however fast wake-ups are.
pub const MIN_HEDGE_NS: u64 = 100_000;
/// Pods of its own node that one look visits at most.
pub const NEAR_PODS: usize = 8;
/// Pods of other nodes that one look visits at most.
pub const FAR_PODS: usize = 4;
/// An item must have waited for this many hedge delays before another node may take it.
pub const FAR_HEDGES: u64 = 2;
/// A worker that was called to help and found that others want its CPU has come in vain: its pod is not called for this long.
pub const VAIN_NS: u64 = 1_000_000;

/// A worker that found others waiting for its CPU while near pods have CPUs to spare leaves its share of the pool to them for this
/// long.
pub const ASIDE_NS: u64 = 1_000_000;

/// After how long an item that no worker of its pod has started is offered outward: twice the measured 99th percentile of
/// wake-ups, at least [`MIN_HEDGE_NS`]. All in ns.
#[inline]
pub fn hedge_delay(p99_wake_ns: u64) -> u64 {
    p99_wake_ns.saturating_mul(2).max(MIN_HEDGE_NS)
}

/// Another pod, seen from one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Its number.
    pub pod: u32,
    /// It lies on another node.
    pub far: bool,
}

/// The pods that `pod` looks into, nearest first: at most [`NEAR_PODS`] of its node, then at most [`FAR_PODS`] others.
/// Computed once a pod and kept. Among equally near ones each pod begins with those behind it in number, so that pods do not
/// all look into the same one first.
pub fn neighbours(distances: &Distances, pods: &Pods, pod: usize) -> Vec<Neighbour> {
    let n = pods.len();
    let mut all = distances.nearest_pods(pods, pod);
    all.sort_by_key(|&(d, p)| (d, (p + n - pod) % n));
    let near = all.iter().filter(|(d, _)| *d <= Distance::NODE);
    let far = all.iter().filter(|(d, _)| *d > Distance::NODE);
    near.take(NEAR_PODS)
        .map(|&(_, p)| (p, false))
        .chain(far.take(FAR_PODS).map(|&(_, p)| (p, true)))
        .map(|(p, far)| Neighbour { pod: p as u32, far })
        .collect()
}

/// What a pool publishes about its waiting items; a hint, it may lag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// How long the first one has waited, ns.
    pub oldest_ns: u64,
    /// As many workers run as may: nobody of the pod will start it before one of them is done.
    pub saturated: bool,
}

/// The pod that a worker about to park helps: the nearest one with work that its own workers will not start soon. Work of
/// another node must have waited for [`FAR_HEDGES`] hedge delays.
pub fn whom_to_help(
    neighbours: &[Neighbour],
    hedge_ns: u64,
    mut waiting: impl FnMut(u32) -> Option<Waiting>,
) -> Option<u32> {
    neighbours
        .iter()
        .find(|n| {
            waiting(n.pod).is_some_and(|w| {
                if n.far {
                    w.oldest_ns >= hedge_ns.saturating_mul(FAR_HEDGES)
                } else {
                    w.saturated || w.oldest_ns >= hedge_ns
                }
            })
        })
        .map(|n| n.pod)
}

/// Whether a worker that was called by a pool still goes there.
pub fn still_wanted(waiting: Waiting, hedge_ns: u64) -> bool {
    waiting.saturated || waiting.oldest_ns >= hedge_ns
}

/// The pod to which waiting work is offered, if it is time: the nearest one that seems to have an idle CPU.
pub fn whom_to_offer(
    neighbours: &[Neighbour],
    hedge_ns: u64,
    oldest_ns: u64,
    mut has_idle_cpu: impl FnMut(u32) -> bool,
) -> Option<u32> {
    if oldest_ns < hedge_ns {
        return None;
    }
    let far = oldest_ns >= hedge_ns.saturating_mul(FAR_HEDGES);
    neighbours
        .iter()
        .find(|n| (far || !n.far) && has_idle_cpu(n.pod))
        .map(|n| n.pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmwq_topology::{AffinityScope, DEFAULT_CACHE_SHARD_SIZE, Topology};

    fn two_nodes() -> Vec<Neighbour> {
        let t = Topology::synthetic("package:2 l3:4 core:8 thread:2").unwrap();
        let d = Distances::new(&t, DEFAULT_CACHE_SHARD_SIZE);
        neighbours(&d, &t.pods(AffinityScope::Cache), 1)
    }

    #[test]
    fn neighbours_are_near_first_and_start_behind_the_pod_itself() {
        let pods: Vec<(u32, bool)> = two_nodes().iter().map(|n| (n.pod, n.far)).collect();
        assert_eq!(
            pods,
            [
                (2, false),
                (3, false),
                (0, false),
                (4, true),
                (5, true),
                (6, true),
                (7, true)
            ]
        );
    }

    #[test]
    fn a_look_visits_a_bounded_number_of_pods() {
        let t = Topology::synthetic("package:4 l3:32 core:4").unwrap();
        let d = Distances::new(&t, DEFAULT_CACHE_SHARD_SIZE);
        let n = neighbours(&d, &t.pods(AffinityScope::Cache), 70);
        assert_eq!(n.iter().filter(|n| !n.far).count(), NEAR_PODS);
        assert_eq!(n.iter().filter(|n| n.far).count(), FAR_PODS);
        assert!(n.iter().all(|n| n.pod != 70));
    }

    #[test]
    fn near_work_is_helped_when_its_pool_is_saturated_far_work_only_when_it_waits_long() {
        let n = two_nodes();
        let w = |oldest_ns, saturated| {
            Some(Waiting {
                oldest_ns,
                saturated,
            })
        };
        let only = |pod, x| move |p| if p == pod { x } else { None };
        assert_eq!(whom_to_help(&n, 100, only(3, w(0, true))), Some(3));
        assert_eq!(whom_to_help(&n, 100, only(3, w(99, false))), None);
        assert_eq!(whom_to_help(&n, 100, only(3, w(100, false))), Some(3));
        assert_eq!(whom_to_help(&n, 100, only(5, w(199, true))), None);
        assert_eq!(whom_to_help(&n, 100, only(5, w(200, true))), Some(5));
        assert_eq!(whom_to_help(&n, 100, |_| None), None);
    }

    #[test]
    fn an_item_is_offered_after_the_hedge_delay_and_to_another_node_after_twice_that() {
        let n = two_nodes();
        assert_eq!(whom_to_offer(&n, 100, 99, |_| true), None);
        assert_eq!(whom_to_offer(&n, 100, 100, |_| true), Some(2));
        assert_eq!(whom_to_offer(&n, 100, 100, |p| p == 6), None);
        assert_eq!(whom_to_offer(&n, 100, 200, |p| p == 6), Some(6));
        assert_eq!(hedge_delay(3_000), MIN_HEDGE_NS);
        assert_eq!(hedge_delay(80_000), 160_000);
    }
}
