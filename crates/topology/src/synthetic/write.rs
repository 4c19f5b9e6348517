//! Writing a machine as a tree of files, in the shape of a present-day kernel's sysfs.

use crate::machine::{Arch, CacheKind, CoreKind};
use crate::{CpuSet, Topology};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One folder to write files into; errors name the file.
struct Folder {
    path: PathBuf,
    /// Width of the masks.
    bits: usize,
}

impl Folder {
    fn new(path: PathBuf, bits: usize) -> io::Result<Self> {
        fs::create_dir_all(&path).map_err(|e| named(&path, &e))?;
        Ok(Self { path, bits })
    }

    fn folder(&self, name: &str) -> io::Result<Self> {
        Self::new(self.path.join(name), self.bits)
    }

    fn file(&self, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
        let path = self.path.join(name);
        fs::write(&path, format!("{value}\n")).map_err(|e| named(&path, &e))
    }

    fn optional(&self, name: &str, value: Option<impl std::fmt::Display>) -> io::Result<()> {
        value.map_or(Ok(()), |value| self.file(name, value))
    }

    /// A set under each pair of names for its list and its mask.
    fn set(&self, names: &[[&str; 2]], set: Option<&CpuSet>) -> io::Result<()> {
        let Some(set) = set else {
            return Ok(());
        };
        for [list, mask] in names {
            self.file(list, set.list())?;
            self.file(mask, set.mask().width(self.bits))?;
        }
        Ok(())
    }
}

fn named(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

pub(crate) fn write_tree(topology: &Topology, root: &Path) -> io::Result<()> {
    let possible = topology.possible();
    let bits = possible.last().map_or(1, |last| last + 1);
    let system = Folder::new(root.join("sys/devices/system"), bits)?;
    let cpu_dir = system.folder("cpu")?;
    cpu_dir.file("possible", possible)?;
    cpu_dir.file("present", topology.present())?;
    cpu_dir.file("online", topology.online())?;
    cpu_dir.file("offline", possible - topology.online())?;
    cpu_dir.file("isolated", topology.isolated())?;
    cpu_dir.file("kernel_max", bits - 1)?;
    for cpu in topology.present() {
        let folder = cpu_dir.folder(&format!("cpu{cpu}"))?;
        folder.file("online", u8::from(topology.online().contains(cpu)))?;
        folder.optional("cpu_capacity", topology.capacity(cpu))?;
        if topology.is_known(cpu) {
            write_cpu(topology, cpu, &folder)?;
        }
        let node = topology.node_of(cpu).unwrap_or(0);
        let link = folder.path.join(format!("node{node}"));
        let target = format!("../../node/node{node}");
        match std::os::unix::fs::symlink(target, &link) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(named(&link, &e)),
            _ => {}
        }
    }
    write_nodes(topology, &system.folder("node")?)?;
    write_kinds(topology, root, bits)?;
    Folder::new(root.join("proc"), bits)?.file("cpuinfo", cpuinfo(topology.arch()))
}

fn write_cpu(topology: &Topology, cpu: usize, folder: &Folder) -> io::Result<()> {
    let files = folder.folder("topology")?;
    let smt = [
        ["core_cpus_list", "core_cpus"],
        ["thread_siblings_list", "thread_siblings"],
    ];
    files.set(&smt, topology.siblings(cpu))?;
    let package = [
        ["package_cpus_list", "package_cpus"],
        ["core_siblings_list", "core_siblings"],
    ];
    files.set(&package, topology.package_cpus(cpu))?;
    files.set(&[["die_cpus_list", "die_cpus"]], topology.die_cpus(cpu))?;
    let cluster = [["cluster_cpus_list", "cluster_cpus"]];
    files.set(&cluster, topology.cluster_cpus(cpu))?;
    files.optional("physical_package_id", topology.package_id(cpu))?;
    files.optional("die_id", topology.die_id(cpu))?;
    files.optional("cluster_id", topology.cluster_id(cpu))?;
    files.optional("core_id", topology.core_id(cpu))?;
    for (index, cache) in topology.caches(cpu).enumerate() {
        let files = folder.folder(&format!("cache/index{index}"))?;
        files.file("level", cache.level)?;
        let kind = match cache.kind {
            CacheKind::Data => "Data",
            CacheKind::Instruction => "Instruction",
            CacheKind::Unified => "Unified",
        };
        files.file("type", kind)?;
        files.optional("id", cache.id)?;
        let size = cache.size.map(|bytes| match bytes % 1024 {
            0 => format!("{}K", bytes / 1024),
            _ => bytes.to_string(),
        });
        files.optional("size", size)?;
        files.set(
            &[["shared_cpu_list", "shared_cpu_map"]],
            cache.cpus.as_ref(),
        )?;
    }
    Ok(())
}

fn write_nodes(topology: &Topology, dir: &Folder) -> io::Result<()> {
    let nodes = topology.nodes();
    let list = |keep: fn(&crate::Node) -> bool| {
        let ids = nodes.iter().filter(|n| keep(n)).map(|n| n.id);
        ids.collect::<CpuSet>()
    };
    let all = list(|_| true);
    dir.file("possible", &all)?;
    dir.file("online", &all)?;
    dir.file("has_cpu", list(|n| !n.cpus.is_empty()))?;
    dir.file("has_memory", list(|n| n.memory != Some(0)))?;
    for node in nodes {
        let folder = dir.folder(&format!("node{}", node.id))?;
        // The kernel lists the online CPUs; the others have their link.
        folder.set(
            &[["cpulist", "cpumap"]],
            Some(&(&node.cpus & topology.present())),
        )?;
        if node.distances.len() == nodes.len() {
            let numbers: Vec<String> = node.distances.iter().map(|d| d.1.to_string()).collect();
            folder.file("distance", numbers.join(" "))?;
        }
        let memory = node.memory.map(|bytes| {
            let (id, kilobytes) = (node.id, bytes / 1024);
            format!("Node {id} MemTotal:       {kilobytes} kB")
        });
        folder.optional("meminfo", memory)?;
    }
    Ok(())
}

fn write_kinds(topology: &Topology, root: &Path, bits: usize) -> io::Result<()> {
    let kinds = [
        ("cpu_core", CoreKind::Performance),
        ("cpu_atom", CoreKind::Efficiency),
        ("cpu_lowpower", CoreKind::LowPower),
    ];
    for (name, kind) in kinds {
        let possible = topology.possible().iter();
        let cpus: CpuSet = possible
            .filter(|cpu| topology.core_kind(*cpu) == Some(kind))
            .collect();
        if !cpus.is_empty() {
            let folder = Folder::new(root.join("sys/devices").join(name), bits)?;
            folder.file("cpus", cpus)?;
        }
    }
    Ok(())
}

/// The line by which the architecture is told.
fn cpuinfo(arch: Arch) -> &'static str {
    match arch {
        Arch::X86 => "processor\t: 0\nvendor_id\t: GenuineIntel",
        Arch::X86Amd => "processor\t: 0\nvendor_id\t: AuthenticAMD",
        Arch::Arm => "processor\t: 0\nCPU implementer\t: 0x41",
        Arch::RiscV => "processor\t: 0\nisa\t\t: rv64imafdc",
        Arch::Power => "processor\t: 0\ncpu\t\t: POWER9",
        Arch::S390 => "vendor_id       : IBM/S390",
        Arch::Other => "processor\t: 0",
    }
}
