use super::*;
use crate::{AffinityScope, Topology};

fn list(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

/// Four caches of four CPUs, two nodes.
fn machine() -> Topology {
    Topology::synthetic("package:2 l3:2 core:4").unwrap()
}

#[test]
fn a_wq_mask_outside_the_global_mask_is_replaced_by_it() {
    assert_eq!(effective(&list("0-3"), &list("2-9")), list("2-3"));
    assert_eq!(effective(&list("0-1"), &list("2-9")), list("2-9"));
    assert_eq!(effective(&list(""), &list("2-9")), list("2-9"));
}

#[test]
fn a_pod_keeps_its_offline_cpus_while_one_is_online() {
    let pod = list("0-3");
    assert_eq!(
        pod_mask(&pod, &list("2-9"), &list("3-9")),
        Some(list("2-3"))
    );
    assert_eq!(pod_mask(&pod, &list("2-9"), &list("0-1,4-9")), None);
    assert_eq!(pod_mask(&pod, &list("4-9"), &list("0-9")), None);
}

#[test]
fn the_last_cpu_of_a_pod_going_down_sends_it_to_the_default_pool() {
    let pods = machine().pods(AffinityScope::Cache);
    let all = list("0-15");
    let online = list("0,4-15");
    let before = PoolMap::new(&pods, &all, &all, &online);
    assert_eq!(before.mask(1), &list("0-3"));
    let after = PoolMap::new(&pods, &all, &all, &without(&online, 0));
    for cpu in 0..4 {
        assert!(after.is_default(cpu), "CPU {cpu}");
    }
    assert_eq!(after.mask(4), &list("4-7"));
}

#[test]
fn cpus_outside_the_queues_mask_lead_to_pools_inside_it() {
    let pods = machine().pods(AffinityScope::Cache);
    let all = list("0-15");
    let map = PoolMap::new(&pods, &list("2-9"), &all, &all);
    assert_eq!(map.effective(), &list("2-9"));
    assert_eq!(map.mask(0), &list("2-3"), "a pod that has part of the mask");
    assert_eq!(map.mask(8), &list("8-9"));
    assert!(map.is_default(12), "a pod outside of it");
    assert!(map.is_default(1000), "a CPU that does not exist");
    assert_eq!(map.masks().len(), 4);
}

#[test]
fn a_pod_that_has_the_whole_mask_is_the_default_pool() {
    let pods = machine().pods(AffinityScope::System);
    let all = list("0-15");
    let map = PoolMap::new(&pods, &all, &all, &all);
    assert_eq!(map.masks(), std::slice::from_ref(&all));
    assert!((0..16).all(|cpu| map.is_default(cpu)));
    let ordered = PoolMap::ordered(&list("3"), &all);
    assert_eq!(ordered.mask(9), &list("3"));
}

#[test]
fn strict_workers_stay_in_the_pod_and_others_start_there() {
    let (pod, effective) = (list("0-3"), list("0-15"));
    assert_eq!(allowed(true, &pod, &effective), &pod);
    assert_eq!(allowed(false, &pod, &effective), &effective);
    assert_eq!(worker_affinity(&pod, &list("2-9")), list("2-3"));
    assert_eq!(worker_affinity(&pod, &list("8-9")), pod, "nothing online");
}

#[test]
fn workers_of_a_dead_cpu_go_to_the_global_mask_or_anywhere() {
    let (global, possible) = (list("0-1"), list("0-15"));
    assert_eq!(orphaned(&global, &list("1-15"), &possible), &global);
    assert_eq!(orphaned(&global, &list("2-15"), &possible), &possible);
}

#[test]
fn a_restriction_that_would_leave_nothing_is_ignored_and_reported() {
    let possible = list("0-7");
    let at = |housekeeping: &str, unbound: Option<&str>| {
        let unbound = unbound.map(list);
        let (mask, ignored) = initial_global(&possible, &list(housekeeping), unbound.as_ref());
        (mask.to_string(), ignored)
    };
    use IgnoredRestriction::{Housekeeping, UnboundCpus};
    assert_eq!(at("0-5", Some("4-9")), ("4-5".into(), vec![]));
    assert_eq!(at("0-5", None), ("0-5".into(), vec![]));
    assert_eq!(at("", Some("4-9")), ("4-7".into(), vec![Housekeeping]));
    assert_eq!(at("0-3", Some("4-9")), ("0-3".into(), vec![UnboundCpus]));
    assert_eq!(
        at("9", Some("")),
        ("0-7".into(), vec![Housekeeping, UnboundCpus])
    );
}

#[test]
fn a_mask_has_a_node_only_if_it_lies_in_one() {
    let numa = machine().pods(AffinityScope::Numa);
    assert_eq!(node_of_mask(&list("9-11"), &numa), Some(1));
    assert_eq!(node_of_mask(&list("7-8"), &numa), None);
    assert_eq!(node_of_mask(&list(""), &numa), None);
    assert_eq!(node_of_mask(&list("99"), &numa), None);
}

#[test]
fn unbound_items_stay_local_or_go_round() {
    let (global, online) = (list("2-5"), list("0-3,5-7"));
    assert_eq!(
        unbound_cpu(4, &global, &online, 0),
        4,
        "local, even if going down"
    );
    let mut cursor = 0;
    let order: Vec<usize> = (0..4)
        .map(|_| {
            cursor = unbound_cpu(7, &global, &online, cursor);
            cursor
        })
        .collect();
    assert_eq!(order, [2, 3, 5, 2]);
    assert_eq!(
        unbound_cpu(7, &list("4"), &online, 0),
        7,
        "nowhere else to go"
    );
    assert_eq!(unbound_cpu(7, &list(""), &online, usize::MAX), 7);
}
