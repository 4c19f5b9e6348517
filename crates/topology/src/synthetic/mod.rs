//! Machines made up from a short text.
//!
//! ```text
//! spec    = item { blank item }
//! item    = level ":" count | "core:" kind { "+" kind } | option "=" value
//! level   = "package" | "die" | "node" | "cluster" | "l3" | "l2" | "core" | "thread"
//! kind    = count [ "x" threads ] [ "@" capacity ]
//! ```
//!
//! Levels nest as written, outermost first: `package:2 l3:4 core:8` is two packages of four L3s of
//! eight cores. Each level may stand once, `core` after all others but `thread`, `thread` last.
//! A level that is missing counts as 1 and is not modelled: without `l3` and `l2` there are no
//! cache files. Without `node` every package is a NUMA node (give `node:1` first for a single
//! one). An L3 around nodes (`l3:1 node:2`) is how sub-NUMA clustering looks.
//!
//! Several kinds of cores: `core:6x2@1024+8x1@640` gives each innermost group six cores of two
//! threads and then eight of one, with capacities. `thread` is for kinds without their own.
//!
//! | option | value | default |
//! |---|---|---|
//! | `threads` | `last`: all first threads are numbered before all second ones; `adjacent` | `last` |
//! | `order` | `block`: cores are numbered along the tree; `round-robin`: over the nodes in turn | `block` |
//! | `cpus` | CPU numbers to use, as a list (holes allowed); must be as many as there are CPUs | `0-` |
//! | `possible` | further possible CPUs of which nothing is known, as a list | none |
//! | `offline`, `isolated` | CPUs, as a list | none |
//! | `memory-nodes` | number of nodes without CPUs, after the others | 0 |
//! | `distance` | node distances: within a node, between nodes of a package, between packages | `10,20,20` |
//! | `arch` | `x86`, `x86-amd`, `arm`, `riscv`, `power`, `s390`, `other` | `x86` |
//!
//! At most [`CpuSet::MAX_CPUS`](crate::CpuSet::MAX_CPUS) CPUs and 1024 nodes.
//!
//! ```
//! use cmwq_topology::{AffinityScope, Topology};
//! let machine = Topology::synthetic("package:2 l3:4 core:8 thread:2")?;
//! assert_eq!(machine.possible().len(), 128);
//! assert_eq!(machine.pods(AffinityScope::Cache).get(0).unwrap().cpus.to_string(), "0-7,64-71");
//! # Ok::<(), cmwq_topology::SpecError>(())
//! ```

mod build;
mod spec;
mod write;

#[cfg(test)]
mod tests;

pub use spec::SpecError;

pub(crate) use write::write_tree;

use crate::raw::RawMachine;

pub(crate) fn build(text: &str) -> Result<RawMachine, SpecError> {
    let spec = spec::parse(text)?;
    build::build(text, &spec)
}
