use super::*;
use proptest::prelude::*;

fn cpus(pods: &Pods) -> Vec<String> {
    pods.iter().map(|pod| pod.cpus.to_string()).collect()
}

/// Rule for rule, independent of the code: for each cache, the cores whose first CPU is in it;
/// their number over the wanted size, rounded half up, at least one; the first shards one larger.
fn reference(machine: &Topology, size: usize) -> Vec<CpuSet> {
    let mut shards = Vec::new();
    for cache in machine.pods(AffinityScope::Cache).iter() {
        let cores: Vec<CpuSet> = machine
            .pods(AffinityScope::Smt)
            .iter()
            .filter(|core| cache.cpus.contains(core.cpus.first().unwrap()))
            .map(|core| core.cpus.clone())
            .collect();
        let count = ((cores.len() as f64 / size as f64 + 0.5).floor() as usize).max(1);
        let mut from = 0;
        for shard in 0..count {
            let take = cores.len() / count + usize::from(shard < cores.len() % count);
            let cpus = cores[from..from + take].iter().flatten().collect();
            shards.push(cpus);
            from += take;
        }
    }
    shards.retain(|shard: &CpuSet| !shard.is_empty());
    shards.sort_by_key(|shard| shard.first());
    shards
}

fn assert_shards(spec: &str, size: usize) {
    let machine = Topology::synthetic(spec).unwrap();
    let found = machine.pods_with_shard_size(AffinityScope::CacheShard, size);
    let found: Vec<CpuSet> = found.iter().map(|pod| pod.cpus.clone()).collect();
    assert_eq!(found, reference(&machine, size), "{spec} size {size}");
}

#[test]
fn shards_follow_the_rule_on_caches_of_every_awkward_size() {
    for cores in [1, 2, 9, 11, 12, 19, 36, 72] {
        for rest in ["", " thread:2", " thread:2 threads=adjacent", " thread:4"] {
            assert_shards(&format!("package:2 l3:1 core:{cores}{rest}"), 8);
        }
        for size in [1, 2, 3, 5, 7, 16, 1000] {
            assert_shards(&format!("l3:2 core:{cores} thread:2"), size);
        }
    }
    assert_shards("l3:1 core:6x2@1024+8x1@640 threads=adjacent", 8);
    assert_shards("l3:1 core:8x2+16x1+4x1", 8);
    assert_shards("package:2 l3:1 core:12 thread:2 offline=0,13,24-30", 8);
    assert_shards("l3:1 node:2 core:9 thread:2", 8);
    assert_shards("package:1 core:16 thread:2", 8);
}

#[test]
fn shards_of_known_sizes() {
    let sizes = |spec: &str| {
        let machine = Topology::synthetic(spec).unwrap();
        let pods = machine.pods(AffinityScope::CacheShard);
        pods.iter().map(|pod| pod.cpus.len()).collect::<Vec<_>>()
    };
    assert_eq!(sizes("l3:1 core:9"), [9]);
    assert_eq!(sizes("l3:1 core:11"), [11]);
    assert_eq!(sizes("l3:1 core:12"), [6, 6]);
    assert_eq!(sizes("l3:1 core:19"), [10, 9]);
    assert_eq!(sizes("l3:1 core:36"), [8, 7, 7, 7, 7]);
    assert_eq!(sizes("l3:1 core:72"), [8; 9]);
    assert_eq!(sizes("l3:1 core:12 thread:2"), [12, 12]);
    assert_eq!(
        sizes("l3:1 core:6x2+8x1"),
        [13, 7],
        "siblings stay together"
    );
}

#[test]
fn size_zero_counts_as_one() {
    let machine = Topology::synthetic("l3:1 core:3 thread:2").unwrap();
    let pods = machine.pods_with_shard_size(AffinityScope::CacheShard, 0);
    assert_eq!(cpus(&pods), ["0,3", "1,4", "2,5"]);
}

#[test]
fn the_node_of_a_pod_is_that_of_its_last_cpu_and_system_has_none() {
    let machine = Topology::synthetic("package:2 l3:1 core:2").unwrap();
    let node = |scope| {
        let pods = machine.pods(scope);
        pods.iter().map(|pod| pod.node).collect::<Vec<_>>()
    };
    assert_eq!(node(AffinityScope::Numa), [Some(0), Some(1)]);
    assert_eq!(node(AffinityScope::System), [None]);
    let pods = machine.pods(AffinityScope::Default);
    assert_eq!(pods.scope(), AffinityScope::CacheShard);
}

#[test]
fn a_memory_only_node_makes_no_pod() {
    let machine = Topology::synthetic("package:2 core:2 memory-nodes=2").unwrap();
    assert_eq!(machine.nodes().len(), 4);
    assert_eq!(machine.pods(AffinityScope::Numa).len(), 2);
}

/// Specs of machines of every shape.
pub(crate) fn spec() -> impl Strategy<Value = String> {
    let levels = ["package:2", "die:2", "node:2", "cluster:3", "l3:2", "l2:2"];
    let levels = prop::sample::subsequence(levels.to_vec(), 0..=levels.len()).prop_shuffle();
    let core = prop::sample::select(vec!["core:1", "core:3", "core:12", "core:2x2@900+3x1@300"]);
    let thread = prop::sample::select(vec!["", "thread:2", "thread:3"]);
    let rest = prop::sample::subsequence(
        vec![
            "threads=adjacent",
            "order=round-robin",
            "offline=1,3-4",
            "isolated=0",
            "possible=500-510",
            "memory-nodes=2",
        ],
        0..=6,
    );
    let arch = prop::sample::select(vec![
        "x86", "x86-amd", "arm", "riscv", "s390", "power", "other",
    ]);
    (levels, core, thread, rest, arch).prop_map(|(levels, core, thread, rest, arch)| {
        let mut items = levels;
        items.extend([core, thread]);
        items.extend(rest);
        format!("{} arch={arch}", items.join(" "))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pods_partition_the_possible_cpus_in_every_scope(spec in spec(), size in 1usize..12) {
        let machine = match Topology::synthetic(&spec) {
            Ok(machine) => machine,
            // Small machines may lose all their CPUs to `offline`.
            Err(e) => {
                prop_assert!(e.text.contains("stay online"), "{spec}: {e}");
                return Ok(());
            }
        };
        for scope in AffinityScope::ALL {
            let pods = machine.pods_with_shard_size(scope, size);
            let mut all = CpuSet::new();
            let mut first = None;
            for (index, pod) in pods.iter().enumerate() {
                prop_assert!(all.is_disjoint(&pod.cpus));
                prop_assert!(pod.cpus.first() > first);
                first = pod.cpus.first();
                all |= &pod.cpus;
                prop_assert!(pod.cpus.iter().all(|cpu| pods.pod_of(cpu) == Some(index)));
            }
            prop_assert_eq!(&all, machine.possible());
            prop_assert_eq!(pods.cpu_pods().count(), all.len());
        }
    }

    #[test]
    fn shards_never_split_siblings_and_never_cross_a_cache(spec in spec(), size in 1usize..12) {
        let Ok(machine) = Topology::synthetic(&spec) else {
            return Ok(());
        };
        let shards = machine.pods_with_shard_size(AffinityScope::CacheShard, size);
        let cache = machine.pods(AffinityScope::Cache);
        for core in machine.pods(AffinityScope::Smt).iter() {
            let shard = shards.pod_at(core.cpus.first().unwrap()).unwrap();
            prop_assert!(core.cpus.is_subset(&shard.cpus), "{spec}");
        }
        for shard in shards.iter() {
            let pod = cache.pod_at(shard.cpus.first().unwrap()).unwrap();
            prop_assert!(shard.cpus.is_subset(&pod.cpus), "{spec}");
        }
        let found: Vec<CpuSet> = shards.iter().map(|pod| pod.cpus.clone()).collect();
        prop_assert_eq!(found, reference(&machine, size));
    }
}
