//! What a running kernel did at every recorded stage (CPUs going down and up, masks, scopes and
//! strictness changing) against the pure functions: which pool each CPU of each queue leads to.

use crate::support::{self, list};
use cmwq_topology::masks::{self, PoolMap};
use cmwq_topology::{AffinityScope, CpuSet, Topology};
use serde_json::Value;
use std::collections::BTreeMap;

/// CPUs that were offline or isolated when the kernel booted are in CPU 0's cache pod by a quirk
/// that is not imitated: they are left out on both sides.
fn covered(boot: &Topology) -> CpuSet {
    boot.online() - boot.isolated()
}

fn scope_of(attrs: &Value, stage: &Value) -> AffinityScope {
    let parse = |v: &Value| v.as_str().unwrap().parse::<AffinityScope>().unwrap();
    parse(&attrs["affn_scope"]).resolve(parse(&stage["default_scope"]))
}

#[test]
fn every_cpu_of_every_queue_leads_to_the_pool_of_the_running_kernel() {
    let mut compared = 0;
    for machine in support::machines() {
        let Some(golden) = machine.golden() else {
            continue;
        };
        let dir = machine.unpack("sysfs");
        let boot = Topology::read(dir.path());
        let numa = boot.pods(AffinityScope::Numa);
        let covers = covered(&boot);
        for stage in golden["snapshots"].as_array().unwrap() {
            let online = list(&stage["cpus"]["online"]);
            let global = list(&stage["cpus"]["wq_unbound_cpumask"]);
            let pools: BTreeMap<i64, &Value> = stage["pools"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pool| (pool["id"].as_i64().unwrap(), pool))
                .collect();
            for queue in stage["workqueues"].as_array().unwrap() {
                let attrs = &queue["attrs"];
                if attrs.is_null() {
                    continue;
                }
                let at = format!("{} {} {}", machine.name, stage["stage"], queue["name"]);
                let wq = list(&attrs["cpumask"]);
                let strict = attrs["affn_strict"].as_bool().unwrap();
                let pods = boot.pods(scope_of(attrs, stage));
                let map = match attrs["ordered"].as_bool().unwrap() {
                    true => PoolMap::ordered(&wq, &global),
                    false => PoolMap::new(&pods, &wq, &global, &online),
                };
                let default = queue["dfl_pool"].as_i64().unwrap();
                let mask_of = |pool: i64| list(&pools[&pool]["pod_cpus"]);
                assert_eq!(mask_of(default), *map.effective(), "{at}: default pool");

                for (pool, cpus) in queue["pool_cpus"].as_object().unwrap() {
                    let pool: i64 = pool.parse().unwrap();
                    for cpu in &(&list(cpus) & &covers) {
                        let at = format!("{at}: CPU {cpu}");
                        let want = &mask_of(pool) & &covers;
                        assert_eq!(map.mask(cpu) & &covers, want, "{at}");
                        assert_eq!(map.is_default(cpu), pool == default, "{at}");
                        let info = pools[&pool];
                        let node = masks::node_of_mask(map.mask(cpu), &numa);
                        let node = node.map_or(-1, |node| node as i64);
                        // The first default pools are made before the kernel knows nodes, and
                        // the quirk widens a pod over nodes.
                        let early = *map.mask(cpu) == global && info["node"] == -1;
                        if !early && mask_of(pool).is_subset(&covers) {
                            assert_eq!(info["node"].as_i64(), Some(node), "{at}");
                        }
                        assert_eq!(info["strict"].as_bool(), Some(strict), "{at}");
                        let allowed = masks::allowed(strict, map.mask(cpu), map.effective());
                        let want = match strict {
                            true => list(&info["pod_cpus"]),
                            false => list(&info["cpus"]),
                        };
                        assert_eq!(allowed & &covers, &want & &covers, "{at}");
                        compared += 1;
                    }
                }
            }
        }
    }
    println!("{compared} links of a CPU to a pool compared");
}

#[test]
fn the_global_mask_at_boot_is_the_kernels() {
    for machine in support::machines() {
        let Some(golden) = machine.golden() else {
            continue;
        };
        let dir = machine.unpack("sysfs");
        let boot = Topology::read(dir.path());
        let line = golden["kernel_append"].as_str().unwrap_or_default();
        let unbound = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("workqueue.unbound_cpus="))
            .and_then(|text| CpuSet::parse_list(text).ok());
        let housekeeping = boot.possible() - boot.isolated();
        let (mask, ignored) =
            masks::initial_global(boot.possible(), &housekeeping, unbound.as_ref());
        let want = list(&golden["snapshots"][0]["cpus"]["wq_unbound_cpumask"]);
        assert_eq!(mask, want, "{}: {line}", machine.name);
        assert_eq!(ignored, [], "{}", machine.name);
    }
}

/// The kernel computes its pods once, at boot; the scheduler's own groups follow the CPUs that
/// are up. Reading again must follow the scheduler, and keep offline CPUs where they were.
#[test]
fn reading_again_regroups_cpus_that_came_up_and_keeps_those_that_went_down() {
    let mut stages = 0;
    for machine in support::machines() {
        let Some(golden) = machine.golden() else {
            continue;
        };
        let dir = machine.unpack("sysfs");
        let boot = Topology::read(dir.path());
        for stage in golden["snapshots"].as_array().unwrap() {
            let archive = format!("sysfs.{}", stage["stage"].as_str().unwrap());
            if !machine.folder.join(format!("{archive}.tar.gz")).exists() {
                continue;
            }
            stages += 1;
            let at = format!("{} {archive}", machine.name);
            let dir = machine.unpack(&archive);
            let now = boot.reread_from(dir.path());
            assert_eq!(*now.online(), list(&stage["cpus"]["online"]), "{at}");
            let cache = now.pods(AffinityScope::Cache);
            support::assert_partition(&at, &now, &cache);
            for cpus in stage["sd_llc_id"].as_object().unwrap().values() {
                let cpus = &list(cpus) & now.online();
                if let Some(pod) = cpus.first().and_then(|cpu| cache.pod_at(cpu)) {
                    assert_eq!(&pod.cpus & now.online(), cpus, "{at}");
                }
            }
            for cpu in &(boot.online() - now.online()) {
                for scope in AffinityScope::ALL {
                    let (before, after) = (boot.pods(scope), now.pods(scope));
                    let (before, after) = (before.pod_at(cpu), after.pod_at(cpu));
                    assert_eq!(before, after, "{at}: CPU {cpu} went down, {scope}");
                }
            }
        }
    }
    println!("{stages} stages read again");
}
