//! The corpus of machines: folders with `sysfs*.tar.gz`, `expected.json` and, for those recorded
//! from a running kernel, `golden.json`.

use cmwq_topology::{AffinityScope, CpuSet, Pods, Topology};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};

pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) expected: Value,
}

impl Machine {
    /// Unpacks one archive of the machine, `sysfs` or `sysfs.STAGE`.
    pub(crate) fn unpack(&self, archive: &str) -> tempfile::TempDir {
        // Ten thousands of small files: in memory where that is possible.
        let memory = tempfile::tempdir_in("/dev/shm");
        let dir = memory
            .or_else(|_| tempfile::tempdir())
            .expect("a temporary folder");
        let path = self.folder.join(format!("{archive}.tar.gz"));
        let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
        tar.set_preserve_permissions(false);
        tar.set_preserve_mtime(false);
        tar.unpack(dir.path())
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        dir
    }

    pub(crate) fn golden(&self) -> Option<Value> {
        let text = std::fs::read_to_string(self.folder.join("golden.json")).ok()?;
        Some(serde_json::from_str(&text).expect("golden.json"))
    }
}

/// The machines copied into this crate, and all of `CMWQ_TOPOLOGIES` where that is set.
pub(crate) fn machines() -> Vec<Machine> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let all = match std::env::var_os("CMWQ_TOPOLOGIES") {
        Some(folder) => PathBuf::from(folder),
        None => {
            println!(
                "skipped: the machines that are not in tests/data (CMWQ_TOPOLOGIES is not set)"
            );
            own
        }
    };
    let mut machines: Vec<Machine> = std::fs::read_dir(&all)
        .unwrap_or_else(|e| panic!("{}: {e}", all.display()))
        .map(|entry| entry.expect("a folder").path())
        .filter_map(|folder| {
            let text = std::fs::read_to_string(folder.join("expected.json")).ok()?;
            Some(Machine {
                name: folder.file_name()?.to_str()?.to_owned(),
                expected: serde_json::from_str(&text).expect("expected.json"),
                folder,
            })
        })
        .collect();
    machines.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!machines.is_empty(), "{} has no machine", all.display());
    machines
}

pub(crate) fn list(value: &Value) -> CpuSet {
    CpuSet::parse_list(value.as_str().expect("a CPU list")).expect("a CPU list")
}

/// Pods as `(cpus, node)`.
pub(crate) type Groups = Vec<(CpuSet, Option<i64>)>;

pub(crate) fn groups_of(pods: &Value) -> Groups {
    let pods = pods.as_array().expect("a list of pods");
    pods.iter()
        .map(|pod| (list(&pod["cpus"]), pod["node"].as_i64()))
        .collect()
}

/// The pods cut to `covers`, with the node of the last CPU that is left.
pub(crate) fn cut(machine: &Topology, pods: &Pods, covers: &CpuSet) -> Groups {
    let mut groups: Groups = pods
        .iter()
        .map(|pod| &pod.cpus & covers)
        .filter(|cpus| !cpus.is_empty())
        .map(|cpus| {
            let node = match pods.scope() {
                AffinityScope::System => -1,
                _ => machine.node_of(cpus.last().unwrap()).unwrap() as i64,
            };
            (cpus, Some(node))
        })
        .collect();
    groups.sort_by_key(|(cpus, _)| cpus.first());
    groups
}

/// Pods partition the possible CPUs, are numbered by first CPU and agree with `pod_of`.
pub(crate) fn assert_partition(name: &str, machine: &Topology, pods: &Pods) {
    let mut all = CpuSet::new();
    let mut last = None;
    for (index, pod) in pods.iter().enumerate() {
        assert!(!pod.cpus.is_empty(), "{name}: empty pod");
        assert!(all.is_disjoint(&pod.cpus), "{name}: pods overlap");
        assert!(pod.cpus.first() > last, "{name}: pods are out of order");
        last = pod.cpus.first();
        all |= &pod.cpus;
        for cpu in &pod.cpus {
            assert_eq!(pods.pod_of(cpu), Some(index), "{name}: CPU {cpu}");
        }
    }
    assert_eq!(&all, machine.possible(), "{name}: {}", pods.scope());
}
