//! Trees that no kernel should make. Each must give a machine whose pods are a partition, and a
//! warning that names what is wrong.

use crate::{AffinityScope, Arch, CpuSet, Topology};
use std::fs;
use std::path::Path;

const CPU: &str = "sys/devices/system/cpu";
const NODE: &str = "sys/devices/system/node";

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A sound machine, to be damaged.
    fn of(spec: &str) -> Self {
        let tree = Self::new();
        let machine = Topology::synthetic(spec).unwrap();
        machine.write_tree(tree.0.path()).unwrap();
        tree
    }

    fn put(&self, file: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn cpu(&self, file: &str, text: impl AsRef<[u8]>) -> &Self {
        self.put(&format!("{CPU}/{file}"), text)
    }

    fn remove(&self, path: &str) -> &Self {
        let path = self.0.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
        self
    }

    fn read(&self) -> Topology {
        let machine = Topology::read(self.0.path());
        for scope in AffinityScope::ALL {
            let pods = machine.pods(scope);
            let mut all = CpuSet::new();
            for pod in pods.iter() {
                assert!(all.is_disjoint(&pod.cpus), "{scope}");
                all |= &pod.cpus;
            }
            assert_eq!(&all, machine.possible(), "{scope}");
        }
        assert!(machine.online().is_subset(machine.present()));
        assert!(machine.present().is_subset(machine.possible()));
        assert!(!machine.online().is_empty());
        machine
    }
}

fn warned<'a>(machine: &'a Topology, file: &str, text: &str) -> &'a str {
    let found = machine
        .warnings()
        .iter()
        .find(|w| w.path.ends_with(Path::new(file)) && w.text.contains(text));
    match found {
        Some(warning) => &warning.text,
        None => panic!(
            "no warning {text:?} about {file} in {:#?}",
            machine.warnings()
        ),
    }
}

fn pods(machine: &Topology, scope: AffinityScope) -> Vec<String> {
    let pods = machine.pods(scope);
    pods.iter().map(|pod| pod.cpus.to_string()).collect()
}

#[test]
fn an_empty_tree_is_one_cpu_and_says_so() {
    let machine = Tree::new().read();
    assert_eq!(machine.possible().to_string(), "0");
    assert_eq!(machine.arch(), Arch::Other);
    warned(&machine, CPU, "no CPU found");
    let nowhere = Topology::read(Path::new("/nonexistent/at/all"));
    assert_eq!(nowhere.possible().to_string(), "0");
}

#[test]
fn without_the_sets_the_folders_and_their_own_files_count() {
    let tree = Tree::of("package:1 l3:1 core:4 offline=2");
    for name in ["possible", "present", "online"] {
        tree.remove(&format!("{CPU}/{name}"));
    }
    let machine = tree.read();
    assert_eq!(machine.possible().to_string(), "0-3");
    assert_eq!(machine.present().to_string(), "0-3");
    assert_eq!(machine.online().to_string(), "0-1,3");
    for name in ["possible", "present", "online"] {
        warned(&machine, &format!("{CPU}/{name}"), "missing or of no use");
    }
}

#[test]
fn broken_sets_are_as_missing_ones_and_named() {
    let tree = Tree::of("package:1 l3:1 core:4");
    tree.cpu("possible", "")
        .cpu("present", "0-\n")
        .cpu("online", b"\xff\xfe0-3");
    let machine = tree.read();
    assert_eq!(machine.online().to_string(), "0-3");
    warned(&machine, "cpu/possible", "missing or of no use");
    warned(&machine, "cpu/present", "last CPU of the range");
    warned(&machine, "cpu/online", "not UTF-8");
}

#[test]
fn sets_that_contradict_each_other_are_widened() {
    let tree = Tree::of("package:1 l3:1 core:4");
    tree.cpu("possible", "0-1")
        .cpu("present", "0-2")
        .cpu("online", "0-1,5");
    let machine = tree.read();
    assert_eq!(machine.possible().to_string(), "0-2,5");
    assert_eq!(machine.present().to_string(), "0-2,5");
    warned(&machine, "cpu/possible", "does not have CPUs 2-3");
    warned(&machine, "cpu/present", "CPUs 2 are not in 'possible'");
    warned(&machine, "cpu/online", "CPUs 5 are not in 'possible'");
}

#[test]
fn huge_numbers_are_left_out() {
    let tree = Tree::of("package:1 l3:1 core:2");
    tree.cpu("cpu99999999/topology/core_id", "0")
        .cpu("cpu18446744073709551616/online", "1")
        .cpu("cpu007/online", "1")
        .cpu("cpu1/topology/core_cpus_list", "0-4294967295")
        .cpu("cpu1/topology/thread_siblings_list", "1")
        .cpu("cpu1/topology/physical_package_id", "99999999999999999999")
        .cpu("cpu1/cache/index0/level", "4000000000")
        .cpu("cpu1/cpu_capacity", "-7")
        .put(&format!("{NODE}/node5000/cpulist"), "0");
    let machine = tree.read();
    assert_eq!(machine.possible().to_string(), "0-1");
    warned(&machine, "cpu/cpu99999999", "not a number below 65536");
    warned(
        &machine,
        "cpu/cpu18446744073709551616",
        "not a number below",
    );
    warned(&machine, "cpu/cpu007", "not a number below");
    warned(&machine, "cpu1/topology/core_cpus_list", "below 65536");
    warned(
        &machine,
        "cpu1/topology/physical_package_id",
        "expected a number",
    );
    warned(&machine, "cpu1/cache/index0/level", "from 1 to 255");
    warned(&machine, "cpu1/cpu_capacity", "above 0");
    warned(&machine, "node/node5000", "not a number below 1024");
    assert_eq!(
        machine.siblings(1).unwrap().to_string(),
        "1",
        "the old file counts"
    );
}

#[test]
fn holes_and_a_wide_possible_set_are_no_trouble() {
    let tree = Tree::of("package:2 l3:1 core:2 cpus=3,40,8000,8191");
    tree.cpu("possible", "0-16383");
    let machine = tree.read();
    assert_eq!(machine.possible().len(), 16384);
    let online = |pods: Vec<String>| {
        pods.into_iter()
            .filter(|p| p.contains(','))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        online(pods(&machine, AffinityScope::Cache)),
        ["3,40", "8000,8191"]
    );
    assert!(!machine.is_known(1));
    assert_eq!(machine.node_of(8191), Some(1));
}

#[test]
fn a_file_that_is_a_pipe_or_a_folder_or_endless_stops_nobody() {
    let tree = Tree::of("package:1 l3:1 core:2");
    let at = |file: &str| tree.0.path().join(CPU).join(file);
    for file in [
        "cpu0/topology/core_cpus_list",
        "cpu0/topology/thread_siblings_list",
        "isolated",
    ] {
        fs::remove_file(at(file)).unwrap();
    }
    let made = std::process::Command::new("mkfifo")
        .arg(at("cpu0/topology/core_cpus_list"))
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: the pipe (no mkfifo)");
    }
    fs::create_dir(at("cpu0/topology/thread_siblings_list")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("isolated")).unwrap();
    let machine = tree.read();
    warned(
        &machine,
        "cpu0/topology/thread_siblings_list",
        "cannot be read",
    );
    warned(&machine, "cpu/isolated", "more than 262144 bytes");
    assert_eq!(
        machine.siblings(0).unwrap().to_string(),
        "0",
        "from the mask file"
    );
}

#[test]
fn links_in_circles_are_named() {
    let tree = Tree::of("package:1 l3:1 core:2");
    let root = tree.0.path().join(CPU);
    fs::remove_file(root.join("online")).unwrap();
    std::os::unix::fs::symlink("online", root.join("online")).unwrap();
    fs::remove_dir_all(root.join("cpu1/cache")).unwrap();
    std::os::unix::fs::symlink("cache", root.join("cpu1/cache")).unwrap();
    std::os::unix::fs::symlink("..", root.join("cpu1/cpu")).unwrap();
    let machine = tree.read();
    warned(&machine, "cpu/online", "cannot be read");
    warned(&machine, "cpu1/cache", "cannot be listed");
    warned(&machine, "cpu1/cache", "CPUs 1 name no cache");
}

#[test]
fn an_unreadable_file_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let tree = Tree::of("package:1 l3:1 core:2 thread:2");
    let path = tree.0.path().join(CPU).join("cpu0/topology/core_cpus_list");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&path).is_ok() {
        println!("skipped: this user may read everything");
        return;
    }
    let machine = tree.read();
    warned(&machine, "cpu0/topology/core_cpus_list", "cannot be read");
    assert_eq!(machine.siblings(0).unwrap().to_string(), "0,2");
}

#[test]
fn siblings_that_do_not_agree_still_form_cores() {
    let tree = Tree::of("package:1 l3:1 core:4");
    for (cpu, list) in [(0, "0-1"), (1, "1"), (2, "3"), (3, "1,3")] {
        for file in ["core_cpus_list", "thread_siblings_list"] {
            tree.cpu(&format!("cpu{cpu}/topology/{file}"), list);
        }
    }
    let machine = tree.read();
    assert_eq!(pods(&machine, AffinityScope::Smt), ["0-1", "2-3"]);
    warned(
        &machine,
        "cpu0/topology/core_cpus_list",
        "which does not name it",
    );
    warned(
        &machine,
        "cpu2/topology/core_cpus_list",
        "does not name CPU 2 itself",
    );
    warned(&machine, "cpu0/topology/core_cpus", "contradicts the list");
}

#[test]
fn caches_that_do_not_agree_are_grouped_by_the_lowest_cpu() {
    let tree = Tree::of("package:1 l3:1 core:4");
    tree.cpu("cpu2/cache/index0/shared_cpu_list", "2-3")
        .cpu("cpu2/cache/index0/shared_cpu_map", "c");
    let machine = tree.read();
    assert_eq!(pods(&machine, AffinityScope::Cache), ["0-1,3", "2"]);
    warned(
        &machine,
        "cpu0/cache/index0/shared_cpu_list",
        "does not agree with CPU 2's",
    );
}

#[test]
fn without_topology_folders_every_cpu_is_a_core() {
    let tree = Tree::of("package:1 l3:1 core:2 thread:2");
    for cpu in 0..4 {
        tree.remove(&format!("{CPU}/cpu{cpu}/topology"));
        tree.remove(&format!("{CPU}/cpu{cpu}/cache"));
    }
    let machine = tree.read();
    assert_eq!(pods(&machine, AffinityScope::Smt).len(), 4);
    warned(&machine, "cpu0/topology", "CPUs 0-3");
}

#[test]
fn without_sharing_files_equal_ids_share() {
    let tree = Tree::new();
    tree.cpu("possible", "0-3")
        .cpu("present", "0-3")
        .cpu("online", "0-3");
    tree.put("proc/cpuinfo", "vendor_id : GenuineIntel");
    for cpu in 0..4 {
        let folder = format!("cpu{cpu}/topology");
        tree.cpu(
            &format!("{folder}/physical_package_id"),
            (cpu / 2).to_string(),
        );
        tree.cpu(&format!("{folder}/core_id"), "7");
    }
    let machine = tree.read();
    assert_eq!(pods(&machine, AffinityScope::Smt), ["0-1", "2-3"]);
    assert_eq!(machine.package_cpus(3).unwrap().to_string(), "2-3");
    warned(&machine, "cpu0/topology/core_id", "equal ids share");
}

#[test]
fn nodes_that_overlap_or_forget_cpus_are_sorted_out() {
    let tree = Tree::of("package:2 l3:1 core:2");
    for cpu in 0..4 {
        let link = format!("{CPU}/cpu{cpu}/node{}", cpu / 2);
        fs::remove_file(tree.0.path().join(link)).unwrap();
    }
    tree.put(&format!("{NODE}/node0/cpulist"), "0-1,9")
        .put(&format!("{NODE}/node1/cpulist"), "1-2")
        .put(&format!("{NODE}/node1/distance"), "10 20 30")
        .put(&format!("{NODE}/node0/distance"), "ten");
    let machine = tree.read();
    assert_eq!(pods(&machine, AffinityScope::Numa), ["0-1,3", "2"]);
    warned(&machine, "node0/cpulist", "CPUs 9 are not possible");
    warned(
        &machine,
        "node1/cpulist",
        "CPUs 1 also belong to a lower node",
    );
    warned(&machine, "system/node", "CPUs 3 belong to no node");
    warned(&machine, "node1/distance", "has 3 distances for 2 nodes");
    warned(&machine, "node0/distance", "expected numbers");
    warned(&machine, "node1/cpumap", "contradicts");
    assert_eq!(machine.node_distance(0, 1), 20, "the kernel's default");
}

#[test]
fn an_offline_cpu_is_where_others_say_it_is() {
    let tree = Tree::of("package:1 l3:2 core:2 thread:2 offline=5");
    tree.remove(&format!("{CPU}/cpu5/topology"));
    tree.remove(&format!("{CPU}/cpu5/cache"));
    let machine = tree.read();
    assert!(!machine.is_known(5));
    assert_eq!(machine.siblings(5).unwrap().to_string(), "1,5");
    assert_eq!(machine.llc_cpus(5).unwrap().to_string(), "0-1,4-5");
    let unknown = Tree::of("package:1 l3:2 core:2 thread:2 offline=5");
    for cpu in 0..8 {
        let set = if cpu == 5 {
            ""
        } else {
            ["0,4", "1", "2,6", "3,7"][cpu % 4]
        };
        let llc = if cpu % 4 < 2 { "0-1,4" } else { "2-3,6-7" };
        unknown.remove(&format!("{CPU}/cpu{cpu}/topology"));
        unknown.cpu(&format!("cpu{cpu}/topology/core_cpus_list"), set);
        unknown.cpu(&format!("cpu{cpu}/cache/index0/shared_cpu_list"), llc);
        unknown.cpu(&format!("cpu{cpu}/cache/index0/shared_cpu_map"), "");
    }
    unknown.remove(&format!("{CPU}/cpu5/cache"));
    let machine = unknown.read();
    assert_eq!(
        machine.siblings(5).unwrap().to_string(),
        "5",
        "nobody names it"
    );
    assert_eq!(machine.llc_cpus(5).unwrap().to_string(), "5");
}

#[test]
fn cache_files_of_no_use_are_named_one_by_one() {
    let tree = Tree::of("package:1 l3:1 core:2");
    tree.cpu("cpu0/cache/index0/type", "Holographic")
        .cpu("cpu0/cache/index0/size", "many")
        .cpu("cpu1/cache/index0/size", "18446744073709551615G")
        .cpu("cpu1/cache/index7/type", "Data");
    for index in 10..60 {
        tree.cpu(&format!("cpu1/cache/index{index}/level"), "1");
        tree.cpu(&format!("cpu1/cache/index{index}/type"), "Data");
    }
    let machine = tree.read();
    warned(
        &machine,
        "cpu0/cache/index0/type",
        "unknown type \"Holographic\"",
    );
    warned(&machine, "cpu0/cache/index0/size", "expected a size");
    warned(&machine, "cpu1/cache/index0/size", "expected a size");
    warned(&machine, "cpu1/cache/index7/level", "missing");
    warned(&machine, "cpu1/cache", "more than 32 caches");
    assert_eq!(pods(&machine, AffinityScope::Cache), ["0-1"]);
}

#[test]
fn hybrid_kinds_are_read() {
    let tree = Tree::of("package:1 l3:1 core:2x2+4x1 threads=adjacent");
    tree.put("sys/devices/cpu_core/cpus", "0-3")
        .put("sys/devices/cpu_atom/cpus", "4-7,900");
    let machine = tree.read();
    assert_eq!(machine.core_kind(3), Some(crate::CoreKind::Performance));
    assert_eq!(machine.core_kind(7), Some(crate::CoreKind::Efficiency));
    let again = tempfile::tempdir().unwrap();
    machine.write_tree(again.path()).unwrap();
    assert_eq!(
        Topology::read(again.path()).core_kind(7),
        machine.core_kind(7)
    );
}

#[test]
fn a_kernel_that_ends_its_files_with_zero_bytes_is_understood() {
    let tree = Tree::of("package:1 l3:1 core:2 thread:2");
    tree.cpu("cpu0/topology/core_cpus_list", b"0,2\n\0");
    let machine = tree.read();
    assert_eq!(machine.warnings(), []);
}

#[test]
fn the_architecture_is_told_by_several_files() {
    let arch = |file: &str, text: &str| {
        let tree = Tree::of("package:1 l3:1 core:2");
        tree.remove("proc/cpuinfo").put(file, text);
        tree.read().arch()
    };
    assert_eq!(
        arch("proc/cpuinfo", "vendor_id\t: HygonGenuine"),
        Arch::X86Amd
    );
    assert_eq!(arch("proc/cpuinfo", "vendor_id\t: CentaurHauls"), Arch::X86);
    assert_eq!(
        arch("proc/cpuinfo", "cpu\t\t: POWER9 (raw), altivec"),
        Arch::Power
    );
    assert_eq!(
        arch("proc/cpuinfo", "vendor_id       : IBM/S390"),
        Arch::S390
    );
    assert_eq!(arch("proc/cpuinfo", "hart : 0\nisa : rv64"), Arch::RiscV);
    assert_eq!(arch("proc/sys/kernel/arch", "aarch64\n"), Arch::Arm);
    assert_eq!(arch("proc/sys/kernel/arch", "x86_64\n"), Arch::X86);
    assert_eq!(
        arch("proc/cpuinfo", "é".repeat(40_000).as_str()),
        Arch::Other
    );
}

#[test]
fn this_machine_has_cpus_that_this_process_may_use() {
    let machine = Topology::current();
    assert!(!machine.online().is_empty());
    let usable = crate::ProcessCpus::current().usable(&machine);
    assert!(usable.is_subset(machine.online()) && !usable.is_empty());
}
