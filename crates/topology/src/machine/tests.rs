use super::*;
use crate::{CpuSet, Distances, Pods, ProcessCpus};

fn list(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

#[test]
fn everything_may_be_sent_shared_and_cloned() {
    fn plain<T: Send + Sync + Clone + 'static>() {}
    plain::<Topology>();
    plain::<CpuSet>();
    plain::<Pods>();
    plain::<Distances>();
    plain::<ProcessCpus>();
    plain::<Warning>();
}

#[test]
fn another_online_set_leaves_the_pods() {
    let machine = Topology::synthetic("package:2 l3:2 core:2").unwrap();
    let less = machine.with_online(&list("0,3,99"));
    assert_eq!(less.online(), &list("0,3"));
    for scope in AffinityScope::ALL {
        assert_eq!(machine.pods(scope), less.pods(scope));
    }
}

fn offline(root: &Path, machine: &Topology, cpu: usize) {
    let dir = root.join("sys/devices/system/cpu");
    let online = crate::masks::without(machine.online(), cpu);
    std::fs::write(dir.join("online"), online.to_string()).unwrap();
    std::fs::remove_dir_all(dir.join(format!("cpu{cpu}/topology"))).unwrap();
    std::fs::remove_dir_all(dir.join(format!("cpu{cpu}/cache"))).unwrap();
    let strike = |file: std::path::PathBuf| {
        let text = std::fs::read_to_string(&file).unwrap();
        let set = crate::masks::without(&CpuSet::parse_list(&text).unwrap(), cpu);
        std::fs::write(file, set.to_string()).unwrap();
    };
    for other in &online {
        let folder = dir.join(format!("cpu{other}"));
        for file in ["core_cpus_list", "package_cpus_list"] {
            strike(folder.join("topology").join(file));
        }
        strike(folder.join("cache/index0/shared_cpu_list"));
    }
    let node = machine.node_of(cpu).unwrap();
    strike(root.join(format!("sys/devices/system/node/node{node}/cpulist")));
    std::fs::remove_file(dir.join(format!("cpu{cpu}/node{node}"))).unwrap();
}

#[test]
fn a_cpu_that_went_down_stays_in_its_pods() {
    let dir = tempfile::tempdir().unwrap();
    let made = Topology::synthetic("package:2 l3:2 core:2 thread:2").unwrap();
    made.write_tree(dir.path()).unwrap();
    let before = Topology::read(dir.path());
    offline(dir.path(), &before, 13);
    offline(dir.path(), &before.reread(), 5);
    let fresh = Topology::read(dir.path());
    assert!(!fresh.is_known(13), "the files say nothing any more");
    let after = before.reread();
    assert!(!after.online().contains(13));
    assert!(after.is_known(13));
    for scope in AffinityScope::ALL {
        assert_eq!(after.pods(scope), before.pods(scope), "{scope}");
    }
    assert_eq!(after.package_cpus(13), before.package_cpus(13));
    assert_eq!(
        after.reread().pods(AffinityScope::Smt),
        before.pods(AffinityScope::Smt)
    );
}

#[test]
fn a_whole_core_that_went_down_stays_a_core() {
    let dir = tempfile::tempdir().unwrap();
    let made = Topology::synthetic("package:1 l3:2 core:2 thread:2").unwrap();
    made.write_tree(dir.path()).unwrap();
    let before = Topology::read(dir.path());
    offline(dir.path(), &before, 1);
    let between = before.reread();
    offline(dir.path(), &between, 5);
    let after = between.reread();
    for scope in AffinityScope::ALL {
        assert_eq!(after.pods(scope), before.pods(scope), "{scope}");
    }
}

#[test]
fn unknown_numbers_have_no_facts() {
    let machine = Topology::synthetic("core:2 cpus=1,3").unwrap();
    for cpu in [0, 2, 4, usize::MAX] {
        assert_eq!(machine.node_of(cpu), None);
        assert_eq!(machine.siblings(cpu), None);
        assert_eq!(machine.caches(cpu).count(), 0);
        assert!(!machine.is_known(cpu));
    }
    assert_eq!(machine.node(7), None);
    assert_eq!(machine.node_distance(7, 7), 10);
}
