//! [`Topology`]: what is known of a machine.

mod assemble;
mod keep;
#[cfg(test)]
mod tests;

use crate::raw::{SetId, Sets};
use crate::warning::Warning;
use crate::{AffinityScope, CpuSet, DEFAULT_CACHE_SHARD_SIZE, Pods};
use std::path::{Path, PathBuf};

/// Processor architecture and, on x86, the vendor: what a shared last-level cache groups depends
/// on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// x86 of any vendor but AMD and Hygon.
    X86,
    /// x86 by AMD or Hygon.
    X86Amd,
    /// 32-bit and 64-bit Arm.
    Arm,
    /// RISC-V.
    RiscV,
    /// PowerPC.
    Power,
    /// IBM Z.
    S390,
    /// Any other that was recognized, or none was.
    Other,
}

impl Arch {
    /// A short lower-case name: `x86`, `x86-amd`, `arm`, `riscv`, `power`, `s390`, `other`.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::X86 => "x86",
            Arch::X86Amd => "x86-amd",
            Arch::Arm => "arm",
            Arch::RiscV => "riscv",
            Arch::Power => "power",
            Arch::S390 => "s390",
            Arch::Other => "other",
        }
    }
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// The kind of a core of a hybrid x86 processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoreKind {
    /// Listed by `sys/devices/cpu_core`.
    Performance,
    /// Listed by `sys/devices/cpu_atom`.
    Efficiency,
    /// Listed by `sys/devices/cpu_lowpower`.
    LowPower,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// The kernel's id, unique within a level and kind where the kernel knows one.
    pub id: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// The CPUs that share it, as the files say; `None` where they do not say.
    pub cpus: Option<CpuSet>,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The node's number; numbers may have holes.
    pub id: usize,
    /// Its possible CPUs; empty for a memory-only node.
    pub cpus: CpuSet,
    /// Bytes of memory; `None` where the files do not say.
    pub memory: Option<u64>,
    /// Distance to other nodes as `(node, distance)`, ascending by node. 10 is the local
    /// distance, 20 means twice the latency (the ACPI SLIT's unit). Empty where unknown.
    pub distances: Vec<(usize, u32)>,
}

impl Node {
    /// The distance to `other`, if the files say.
    pub fn distance_to(&self, other: usize) -> Option<u32> {
        let at = self.distances.binary_search_by_key(&other, |d| d.0).ok()?;
        Some(self.distances[at].1)
    }
}

/// One possible CPU, after all checks.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) smt: SetId,
    pub(crate) llc: SetId,
    pub(crate) cluster: Option<SetId>,
    pub(crate) die: Option<SetId>,
    pub(crate) package: Option<SetId>,
    pub(crate) core_id: Option<i64>,
    pub(crate) cluster_id: Option<i64>,
    pub(crate) die_id: Option<i64>,
    pub(crate) package_id: Option<i64>,
    pub(crate) node: usize,
    pub(crate) capacity: Option<u32>,
    pub(crate) kind: Option<CoreKind>,
    pub(crate) caches: Vec<u32>,
    /// Anything beyond its number and node is known.
    pub(crate) known: bool,
}

/// A machine: its CPUs, caches and NUMA nodes, how they share, and what was wrong with the files
/// that said so.
///
/// A plain value; it does not change when the machine does. After a CPU went up or down,
/// [`reread`](Topology::reread) makes a new one that keeps what was known of offline CPUs.
#[derive(Clone, Debug)]
pub struct Topology {
    root: PathBuf,
    arch: Arch,
    possible: CpuSet,
    present: CpuSet,
    online: CpuSet,
    isolated: CpuSet,
    /// By CPU number; `None` in the holes of the numbering.
    cpus: Vec<Option<Cpu>>,
    caches: Vec<Cache>,
    nodes: Vec<Node>,
    sets: Sets,
    warnings: Vec<Warning>,
}

impl Topology {
    /// Reads the machine this process runs on: [`Topology::read`] of `/`.
    ///
    /// Takes about 10 us a file and some 20 files a CPU: 10 ms on a 48-CPU machine. Call it
    /// once and keep the result.
    pub fn current() -> Self {
        Self::read(Path::new("/"))
    }

    /// Reads the tree under `root`: `sys/devices/system/{cpu,node}`, `sys/devices/cpu_*` and
    /// `proc/cpuinfo`. Blocks on these files.
    ///
    /// Never fails and never panics, whatever the tree holds. What is missing is replaced as the
    /// kernel would, and [`warnings`](Topology::warnings) names each such file: no `possible`
    /// means possible = present = the CPU folders; no `online` means the CPUs whose own `online`
    /// file does not say 0; no SMT siblings means the CPU alone; no node folder means node 0.
    /// Without any CPU folder the result is CPU 0 alone. Files are read up to a bound, numbers
    /// above [`CpuSet::MAX_CPUS`] are dropped with a warning.
    pub fn read(root: &Path) -> Self {
        assemble::assemble(crate::sysfs::read(root))
    }

    /// Reads the same tree again. Of CPUs that are offline now, whose files the kernel takes
    /// away, it keeps what `self` knew. This is how CPUs that were offline at first come to be
    /// regrouped when they come online, and how a pod keeps an offline member.
    pub fn reread(&self) -> Self {
        let mut raw = crate::sysfs::read(&self.root);
        keep::keep_known(&mut raw, self);
        assemble::assemble(raw)
    }

    /// As [`reread`](Topology::reread), from another tree.
    pub fn reread_from(&self, root: &Path) -> Self {
        let mut raw = crate::sysfs::read(root);
        keep::keep_known(&mut raw, self);
        assemble::assemble(raw)
    }

    /// A made-up machine after a short text; for tests, for the simulator, for users who want to
    /// know how a machine would be cut into pods. For instance
    /// `package:2 l3:4 core:8 thread:2`; the module [`synthetic`](crate::synthetic) has the
    /// grammar.
    ///
    /// # Errors
    /// Where the text stops making sense, and what was expected there.
    pub fn synthetic(spec: &str) -> Result<Self, crate::SpecError> {
        Ok(assemble::assemble(crate::synthetic::build(spec)?))
    }

    /// Writes this machine as a tree of files below `root`, such that [`Topology::read`] of it
    /// gives the same machine: CPU sets, sharing, nodes and pods are equal.
    ///
    /// # Errors
    /// The first file or folder that could not be written, named in the error.
    pub fn write_tree(&self, root: &Path) -> std::io::Result<()> {
        crate::synthetic::write_tree(self, root)
    }

    /// The same machine with another set of online CPUs (cut to the possible ones).
    pub fn with_online(&self, online: &CpuSet) -> Self {
        let online = online & &self.possible;
        Self {
            online,
            ..self.clone()
        }
    }

    /// Where it was read from; empty for a synthetic machine.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The architecture.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The CPUs that can ever exist while this kernel runs. Never empty.
    pub fn possible(&self) -> &CpuSet {
        &self.possible
    }

    /// The CPUs that are plugged in.
    pub fn present(&self) -> &CpuSet {
        &self.present
    }

    /// The CPUs that run.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// The CPUs taken out of load balancing at boot (`isolcpus=`).
    pub fn isolated(&self) -> &CpuSet {
        &self.isolated
    }

    /// The NUMA nodes, ascending by id. At least one: a machine without NUMA is node 0.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this id. O(log nodes).
    pub fn node(&self, id: usize) -> Option<&Node> {
        let at = self.nodes.binary_search_by_key(&id, |n| n.id).ok()?;
        Some(&self.nodes[at])
    }

    /// The node of a possible CPU.
    pub fn node_of(&self, cpu: usize) -> Option<usize> {
        Some(self.cpu(cpu)?.node)
    }

    /// The distance between two nodes: as the files say, else 10 within a node and 20 otherwise
    /// (the kernel's own defaults).
    pub fn node_distance(&self, from: usize, to: usize) -> u32 {
        self.node(from)
            .and_then(|node| node.distance_to(to))
            .unwrap_or(if from == to { 10 } else { 20 })
    }

    /// The hardware threads of `cpu`'s core, itself included. The sets of all possible CPUs are a
    /// partition. `None` if `cpu` is not possible.
    pub fn siblings(&self, cpu: usize) -> Option<&CpuSet> {
        Some(self.sets.get(self.cpu(cpu)?.smt))
    }

    /// The CPUs that share `cpu`'s last-level cache by the scheduler's rules, itself included:
    /// its pod of scope `cache`. The sets of all possible CPUs are a partition.
    pub fn llc_cpus(&self, cpu: usize) -> Option<&CpuSet> {
        Some(self.sets.get(self.cpu(cpu)?.llc))
    }

    /// The CPUs of `cpu`'s cluster as its file says.
    pub fn cluster_cpus(&self, cpu: usize) -> Option<&CpuSet> {
        Some(self.sets.get(self.cpu(cpu)?.cluster?))
    }

    /// The CPUs of `cpu`'s die as its file says.
    pub fn die_cpus(&self, cpu: usize) -> Option<&CpuSet> {
        Some(self.sets.get(self.cpu(cpu)?.die?))
    }

    /// The CPUs of `cpu`'s package (socket) as its file says.
    pub fn package_cpus(&self, cpu: usize) -> Option<&CpuSet> {
        Some(self.sets.get(self.cpu(cpu)?.package?))
    }

    /// The kernel's core id: unique within a package at best.
    pub fn core_id(&self, cpu: usize) -> Option<i64> {
        self.cpu(cpu)?.core_id
    }

    /// The kernel's cluster id.
    pub fn cluster_id(&self, cpu: usize) -> Option<i64> {
        self.cpu(cpu)?.cluster_id
    }

    /// The kernel's die id: unique within a package at best.
    pub fn die_id(&self, cpu: usize) -> Option<i64> {
        self.cpu(cpu)?.die_id
    }

    /// The kernel's package id; -1 where the kernel does not know.
    pub fn package_id(&self, cpu: usize) -> Option<i64> {
        self.cpu(cpu)?.package_id
    }

    /// The CPU's capacity, 1024 being the machine's strongest; only on machines whose kernel
    /// tells (big.LITTLE).
    pub fn capacity(&self, cpu: usize) -> Option<u32> {
        self.cpu(cpu)?.capacity
    }

    /// The kind of core on a hybrid x86 machine.
    pub fn core_kind(&self, cpu: usize) -> Option<CoreKind> {
        self.cpu(cpu)?.kind
    }

    /// The caches that `cpu` uses, in the order of their folders.
    pub fn caches(&self, cpu: usize) -> impl Iterator<Item = &Cache> {
        let caches = self.cpu(cpu).map_or(&[][..], |c| &c.caches);
        caches.iter().map(|index| &self.caches[*index as usize])
    }

    /// Is anything known of this CPU beyond its number and node? Typically not for CPUs that have
    /// been offline since boot.
    pub fn is_known(&self, cpu: usize) -> bool {
        self.cpu(cpu).is_some_and(|c| c.known)
    }

    /// What was wrong with the files, at most about a hundred entries.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The pods of a scope, with shards of [`DEFAULT_CACHE_SHARD_SIZE`] cores. `default` means
    /// [`AffinityScope::DEFAULT`]. O(CPUs).
    pub fn pods(&self, scope: AffinityScope) -> Pods {
        self.pods_with_shard_size(scope, DEFAULT_CACHE_SHARD_SIZE)
    }

    /// The pods of a scope; `shard_size` is the wanted number of cores in a pod of `cache_shard`.
    /// As in the kernel, 0 counts as 1.
    pub fn pods_with_shard_size(&self, scope: AffinityScope, shard_size: usize) -> Pods {
        crate::pods::build(self, scope.resolve(AffinityScope::DEFAULT), shard_size)
    }

    pub(crate) fn cpu(&self, cpu: usize) -> Option<&Cpu> {
        self.cpus.get(cpu)?.as_ref()
    }

    pub(crate) fn set(&self, id: SetId) -> &CpuSet {
        self.sets.get(id)
    }
}
