//! Which pools are near which, kept up as pools come and go.
//!
//! Distances are those between the pods' first CPUs: pods of one scope are alike, and of several scopes nested, so that is as
//! good as the least distance of any two of theirs, and one look-up.

use super::Machine;
use crate::pool::{Near, PoolKey, RtPool};
use cmwq_policy::help::{FAR_PODS, NEAR_PODS, Neighbour};
use cmwq_topology::Distance;
use std::collections::HashMap;

type Pools = HashMap<PoolKey, &'static RtPool>;

/// The pool of `key` is new: works out who is near it, and tells those that it is near to. O(pools).
pub(super) fn joined(machine: &Machine, pools: &Pools, key: &PoolKey) {
    if !key.is_open() {
        return;
    }
    let others: Vec<&PoolKey> = pools
        .keys()
        .filter(|k| k.is_open() && may_help(k, key))
        .collect();
    refit(machine, pools, key);
    // Only lists that it belongs into change, and those were cut to their bounds: work them out anew.
    others.into_iter().for_each(|k| refit(machine, pools, k));
}

/// The pool of this number is gone. O(pools), and O(pools) for each that it was near to, which are few.
pub(super) fn left(machine: &Machine, pools: &Pools, id: u32) {
    for (key, pool) in pools {
        if pool.outward.near().list.iter().any(|n| n.pod == id) {
            refit(machine, pools, key);
        }
    }
}

/// The machine changed: everybody's. O(pools squared).
pub(super) fn all(machine: &Machine, pools: &Pools) {
    pools
        .keys()
        .filter(|k| k.is_open())
        .for_each(|k| refit(machine, pools, k));
}

/// Whether workers of a pool `helper` may run items of the pool `owner`.
fn may_help(helper: &PoolKey, owner: &PoolKey) -> bool {
    let (
        PoolKey::Unbound { pod, nice, .. },
        PoolKey::Unbound {
            pod: theirs,
            nice: n,
            mask,
            ..
        },
    ) = (helper, owner)
    else {
        return false;
    };
    nice == n && pod.is_disjoint(theirs) && mask.as_ref().is_some_and(|m| pod.is_subset(m))
}

fn refit(machine: &Machine, pools: &Pools, key: &PoolKey) {
    let PoolKey::Unbound { pod, .. } = key else {
        return;
    };
    let (Some(pool), Some(at)) = (pools.get(key), pod.first()) else {
        return;
    };
    let end = machine.topology.possible().last().map_or(1, |c| c + 1);
    let distances = machine.distances();
    let mut all: Vec<(Distance, usize, &'static RtPool)> = pools
        .iter()
        .filter(|(k, p)| p.id != pool.id && k.is_open() && may_help(key, k))
        .filter_map(|(k, &p)| {
            let PoolKey::Unbound { pod, .. } = k else {
                return None;
            };
            let first = pod.first()?;
            // Among equally near ones each begins with those behind it.
            Some((distances.between(at, first)?, (first + end - at) % end, p))
        })
        .collect();
    all.sort_by_key(|&(d, behind, p)| (d, behind, p.id));
    let mut near = Near::default();
    for far in [false, true] {
        let max = if far { FAR_PODS } else { NEAR_PODS };
        for (_, _, p) in all
            .iter()
            .filter(|(d, ..)| (*d > Distance::NODE) == far)
            .take(max)
        {
            near.list.push(Neighbour { pod: p.id, far });
            near.uses.push(p.outward.this_use());
        }
    }
    pool.outward.set_near(near);
}
