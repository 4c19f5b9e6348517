//! Every machine of the corpus gives exactly its expected pods, scope by scope.

use crate::support::{self, Groups, cut, groups_of, list};
use cmwq_topology::{AffinityScope, CpuSet, Topology};

/// Which CPUs the expectation speaks of. Offline and isolated CPUs of a running kernel lie in
/// CPU 0's cache pod by a quirk of its boot, which is not imitated.
fn covered(machine: &support::Machine, topology: &Topology) -> CpuSet {
    match machine.expected["covers"].as_str() {
        Some("online CPUs of the dump") => topology.online().clone(),
        Some("all possible CPUs") => topology.online() - topology.isolated(),
        other => panic!("{}: unknown covers {other:?}", machine.name),
    }
}

/// A golden's pods without the CPUs that are left out; those may change a pod's node.
fn cut_expected(
    pods: Groups,
    topology: &Topology,
    scope: AffinityScope,
    covers: &CpuSet,
) -> Groups {
    let mut pods: Groups = pods
        .into_iter()
        .map(|(cpus, node)| {
            let left = &cpus & covers;
            if left == cpus || scope == AffinityScope::System {
                return (left, node);
            }
            let node = left.last().and_then(|cpu| topology.node_of(cpu));
            (left, node.map(|node| node as i64))
        })
        .filter(|(cpus, _)| !cpus.is_empty())
        .collect();
    pods.sort_by_key(|(cpus, _)| cpus.first());
    pods
}

#[test]
fn every_machine_of_the_corpus_has_its_expected_pods() {
    let mut wrong = Vec::new();
    let mut asserted = 0;
    for machine in support::machines() {
        let dir = machine.unpack("sysfs");
        let topology = Topology::read(dir.path());
        for (key, set) in [
            ("possible", topology.possible()),
            ("present", topology.present()),
            ("online", topology.online()),
        ] {
            let expected = &machine.expected["cpus"][key];
            if expected.is_string() && list(expected) != *set {
                wrong.push(format!(
                    "{}: {key} is {set:?}, expected {expected}",
                    machine.name
                ));
            }
            if expected.is_null() && key != "online" {
                let folders = list(&machine.expected["cpus"]["cpu_dirs"]);
                assert_eq!(*set, folders, "{}: {key}", machine.name);
                let file = topology.warnings().iter().find(|w| w.path.ends_with(key));
                assert!(file.is_some(), "{}: no warning about {key}", machine.name);
            }
        }
        let covers = covered(&machine, &topology);
        for scope in AffinityScope::ALL {
            let pods = topology.pods(scope);
            support::assert_partition(&machine.name, &topology, &pods);
            let expected = &machine.expected["scopes"][scope.name()];
            if expected.is_null() {
                continue;
            }
            let found = cut(&topology, &pods, &covers);
            if expected["status"] == "unverified" {
                println!("{} {scope}: unverified, found {found:?}", machine.name);
                println!("    candidates {}", expected["candidates"]);
                continue;
            }
            let mut want = groups_of(&expected["pods"]);
            if machine.golden().is_some() {
                want = cut_expected(want, &topology, scope, &covers);
            }
            let same = want.len() == found.len()
                && want.iter().zip(&found).all(|(want, found)| {
                    // A dump of which no tool knew the node has null there.
                    want.0 == found.0 && (want.1.is_none() || want.1 == found.1)
                });
            asserted += 1;
            if !same {
                wrong.push(format!(
                    "{} {scope}:\n   found    {found:?}\n   expected {want:?}",
                    machine.name
                ));
            }
        }
    }
    println!("{asserted} scopes compared");
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
