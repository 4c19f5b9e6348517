//! Reading and grouping a 4096-CPU tree against only reading its files.
//!
//! `cargo bench -p cmwq-topology` prints the time of both and their ratio, as medians of paired
//! rounds in one run, with the range that the middle half of the rounds covers.

use cmwq_topology::{AffinityScope, Topology};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

const SPEC: &str = "package:4 node:4 l3:4 l2:32 core:1 thread:2";
const ROUNDS: usize = 15;

/// Names of the files that the reader opens in a sound tree of this shape.
const READ: [&str; 26] = [
    "possible",
    "present",
    "online",
    "isolated",
    "core_cpus_list",
    "core_cpus",
    "package_cpus_list",
    "package_cpus",
    "die_cpus_list",
    "die_cpus",
    "cluster_cpus_list",
    "cluster_cpus",
    "physical_package_id",
    "core_id",
    "die_id",
    "cluster_id",
    "level",
    "type",
    "id",
    "size",
    "shared_cpu_list",
    "shared_cpu_map",
    "cpulist",
    "cpumap",
    "distance",
    "cpuinfo",
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("the tree");
    for entry in entries.map(|e| e.expect("the tree")) {
        let kind = entry.file_type().expect("the tree");
        let name = entry.file_name();
        // A CPU's own `online` file matters only where the set of online CPUs is missing.
        let unread = name == "online" && !folder.ends_with("cpu") && !folder.ends_with("node");
        if kind.is_dir() {
            files(&entry.path(), found);
        } else if READ.iter().any(|r| name == **r) && !unread {
            found.push(entry.path());
        }
    }
}

fn only_read(files: &[PathBuf], buffer: &mut Vec<u8>) -> usize {
    let mut bytes = 0;
    for path in files {
        buffer.clear();
        bytes += File::open(path)
            .and_then(|mut file| file.read_to_end(buffer))
            .expect("a file of the tree");
    }
    bytes
}

fn read_and_group(root: &Path) -> usize {
    let machine = Topology::read(root);
    assert_eq!(machine.warnings(), []);
    AffinityScope::ALL
        .iter()
        .map(|scope| machine.pods(*scope).len())
        .sum()
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values.len() / 4, values.len() / 2, values.len() * 3 / 4].map(|at| values[at])
}

fn main() {
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder");
    let made = Topology::synthetic(SPEC).expect("a sound spec");
    made.write_tree(dir.path()).expect("room for the tree");
    let mut list = Vec::new();
    files(dir.path(), &mut list);

    let mut buffer = Vec::new();
    let (mut plain, mut full, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let bytes = only_read(&list, &mut buffer);
        let middle = Instant::now();
        let pods = read_and_group(dir.path());
        let end = Instant::now();
        assert!(bytes > 0 && pods > 0);
        let (a, b) = (
            (middle - started).as_secs_f64(),
            (end - middle).as_secs_f64(),
        );
        plain.push(a * 1e3);
        full.push(b * 1e3);
        ratio.push(b / a);
    }
    println!(
        "{} CPUs, {} files, {ROUNDS} rounds: median (middle half)",
        made.possible().len(),
        list.len()
    );
    for (name, values, unit) in [
        ("only read", plain, "ms"),
        ("read and group", full, "ms"),
        ("ratio", ratio, ""),
    ] {
        let [low, median, high] = quartiles(values);
        println!("{name:16} {median:9.2} {unit:2} ({low:.2} .. {high:.2})");
    }
}
