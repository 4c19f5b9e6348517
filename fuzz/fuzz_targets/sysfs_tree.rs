//! A tree with any contents: never a panic, always a machine whose pods are a partition.
#![no_main]

use arbitrary::Arbitrary;
use cmwq_topology::masks::PoolMap;
use cmwq_topology::{AffinityScope, CpuSet, Distances, ProcessCpus, Topology};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::Path;

#[derive(Arbitrary, Debug)]
struct Entry {
    file: u8,
    cpu: u8,
    index: u8,
    text: Text,
}

/// Texts that get past the first character more often than chance allows.
#[derive(Arbitrary, Debug)]
enum Text {
    List(Vec<(u8, u8)>),
    Mask(Vec<u32>),
    Number(i32),
    Raw(Vec<u8>),
}

impl Text {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Text::List(ranges) => {
                let ranges = ranges
                    .iter()
                    .map(|(a, n)| format!("{a}-{}", u16::from(*a) + u16::from(*n)));
                ranges.collect::<Vec<_>>().join(",").into_bytes()
            }
            Text::Mask(groups) => {
                let groups = groups.iter().map(|g| format!("{g:08x}"));
                groups.collect::<Vec<_>>().join(",").into_bytes()
            }
            Text::Number(n) => n.to_string().into_bytes(),
            Text::Raw(raw) => raw.clone(),
        }
    }
}

const FILES: [&str; 40] = [
    "sys/devices/system/cpu/possible",
    "sys/devices/system/cpu/present",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/cpuC/online",
    "sys/devices/system/cpu/cpuC/cpu_capacity",
    "sys/devices/system/cpu/cpuC/nodeI",
    "sys/devices/system/cpu/cpuC/topology/core_cpus_list",
    "sys/devices/system/cpu/cpuC/topology/core_cpus",
    "sys/devices/system/cpu/cpuC/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpuC/topology/thread_siblings",
    "sys/devices/system/cpu/cpuC/topology/package_cpus_list",
    "sys/devices/system/cpu/cpuC/topology/core_siblings",
    "sys/devices/system/cpu/cpuC/topology/die_cpus_list",
    "sys/devices/system/cpu/cpuC/topology/cluster_cpus",
    "sys/devices/system/cpu/cpuC/topology/physical_package_id",
    "sys/devices/system/cpu/cpuC/topology/core_id",
    "sys/devices/system/cpu/cpuC/topology/die_id",
    "sys/devices/system/cpu/cpuC/cache/indexI/level",
    "sys/devices/system/cpu/cpuC/cache/indexI/type",
    "sys/devices/system/cpu/cpuC/cache/indexI/id",
    "sys/devices/system/cpu/cpuC/cache/indexI/size",
    "sys/devices/system/cpu/cpuC/cache/indexI/shared_cpu_list",
    "sys/devices/system/cpu/cpuC/cache/indexI/shared_cpu_map",
    "sys/devices/system/node/online",
    "sys/devices/system/node/nodeI/cpulist",
    "sys/devices/system/node/nodeI/cpumap",
    "sys/devices/system/node/nodeI/distance",
    "sys/devices/system/node/nodeI/meminfo",
    "sys/devices/cpu_atom/cpus",
    "proc/cpuinfo",
    "proc/sys/kernel/arch",
    "proc/self/status",
    "proc/self/cgroup",
    "proc/self/cpuset",
    "proc/self/mountinfo",
    "proc/mounts",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/a/cpuset.cpus.effective",
    "sys/fs/cgroup/cpuset.cpus",
];

const CPUINFO: [&str; 7] = [
    "vendor_id : GenuineIntel",
    "vendor_id : AuthenticAMD",
    "CPU implementer : 0x41",
    "isa : rv64",
    "vendor_id : IBM/S390",
    "cpu : POWER9",
    "",
];

fn put(root: &Path, file: &str, bytes: &[u8]) {
    let path = root.join(file);
    // Two entries may want a file and a folder in one place; the first has it.
    if fs::create_dir_all(path.parent().unwrap()).is_ok() {
        let _ = fs::write(path, bytes);
    }
}

fn check(machine: &Topology, process: &ProcessCpus) {
    assert!(machine.online().is_subset(machine.present()));
    assert!(machine.present().is_subset(machine.possible()));
    assert!(!machine.online().is_empty());
    for scope in AffinityScope::ALL {
        let pods = machine.pods(scope);
        let mut all = CpuSet::new();
        for pod in &pods {
            assert!(all.is_disjoint(&pod.cpus));
            all |= &pod.cpus;
        }
        assert_eq!(&all, machine.possible());
        let usable = process.usable(machine);
        assert!(usable.is_subset(machine.online()) && !usable.is_empty());
        let map = PoolMap::new(&pods, &usable, machine.possible(), machine.online());
        for cpu in machine.possible() {
            assert!(map.mask(cpu).is_subset(map.effective()));
            assert!(map.mask(cpu).intersects(machine.online()));
        }
    }
    let distances = Distances::new(machine, 8);
    let (first, last) = (machine.possible().first(), machine.possible().last());
    assert!(distances.between(first.unwrap(), last.unwrap()).is_some());
}

fuzz_target!(|input: (u8, Vec<Entry>, Vec<Entry>)| {
    let (arch, before, after) = input;
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder");
    let root = dir.path();
    let cpuinfo = CPUINFO[usize::from(arch) % CPUINFO.len()];
    put(root, "proc/cpuinfo", cpuinfo.as_bytes());
    let fill = |entries: &[Entry]| {
        for entry in entries.iter().take(60) {
            let file = FILES[usize::from(entry.file) % FILES.len()]
                .replace('C', &(entry.cpu % 9).to_string())
                .replace('I', &(entry.index % 4).to_string());
            put(root, &file, &entry.text.bytes());
        }
    };
    fill(&before);
    let machine = Topology::read(root);
    check(&machine, &ProcessCpus::read(root));
    fill(&after);
    check(&machine.reread(), &ProcessCpus::read(root));
});
