//! The facts of a machine as they were found, before they are checked against each other. The
//! sysfs reader and the synthetic builder both fill a [`RawMachine`]; [`Topology`] is assembled
//! from it in one place.
//!
//! [`Topology`]: crate::Topology

use crate::CpuSet;
use crate::machine::{Arch, CacheKind, CoreKind, Node};
use crate::warning::Warnings;
use std::collections::HashMap;
use std::path::PathBuf;

/// Index of an interned set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SetId(u32);

/// Every distinct set once: thousands of CPUs name the same few groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sets {
    sets: Vec<CpuSet>,
    index: HashMap<CpuSet, SetId>,
}

impl Sets {
    pub(crate) fn add(&mut self, set: CpuSet) -> SetId {
        if let Some(id) = self.index.get(&set) {
            return *id;
        }
        let id = SetId(self.sets.len() as u32);
        self.sets.push(set.clone());
        self.index.insert(set, id);
        id
    }

    pub(crate) fn get(&self, id: SetId) -> &CpuSet {
        &self.sets[id.0 as usize]
    }

    /// Gives up the index, which only the building needs.
    pub(crate) fn seal(&mut self) {
        self.index = HashMap::new();
    }
}

/// One cache as one CPU sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawCache {
    pub(crate) level: u8,
    pub(crate) kind: CacheKind,
    pub(crate) id: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) cpus: Option<SetId>,
}

/// What is known of one CPU. All of it may be missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawCpu {
    pub(crate) smt: Option<SetId>,
    pub(crate) cluster: Option<SetId>,
    pub(crate) die: Option<SetId>,
    pub(crate) package: Option<SetId>,
    pub(crate) core_id: Option<i64>,
    pub(crate) cluster_id: Option<i64>,
    pub(crate) die_id: Option<i64>,
    pub(crate) package_id: Option<i64>,
    pub(crate) capacity: Option<u32>,
    pub(crate) kind: Option<CoreKind>,
    pub(crate) caches: Vec<CacheRef>,
    /// The file names that `smt` and `package` came from.
    pub(crate) smt_file: &'static str,
    pub(crate) package_file: &'static str,
    /// Kept from an earlier read: other CPUs' files need not agree with it.
    pub(crate) stale: bool,
}

impl RawCpu {
    /// Is anything known beyond its number and node?
    pub(crate) fn is_known(&self) -> bool {
        self.smt.is_some() || self.package.is_some() || !self.caches.is_empty()
    }
}

/// A cache of a CPU, and the folder `indexN` that told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheRef {
    pub(crate) index: u16,
    /// Index into [`RawMachine::caches`].
    pub(crate) cache: u32,
    /// The sharing CPUs came from `shared_cpu_map`.
    pub(crate) from_mask: bool,
}

/// The facts of a machine as found.
#[derive(Debug)]
pub(crate) struct RawMachine {
    /// Where it was read from; empty for a synthetic one. Warnings name files below it.
    pub(crate) root: PathBuf,
    pub(crate) arch: Arch,
    pub(crate) possible: CpuSet,
    pub(crate) present: CpuSet,
    pub(crate) online: CpuSet,
    pub(crate) isolated: CpuSet,
    /// By CPU number, as far as anything is known.
    pub(crate) cpus: Vec<RawCpu>,
    pub(crate) caches: Vec<RawCache>,
    pub(crate) cache_index: HashMap<RawCache, u32>,
    /// Ascending by id. A CPU may stand in several, or in none.
    pub(crate) nodes: Vec<Node>,
    pub(crate) sets: Sets,
    pub(crate) warnings: Warnings,
}

impl RawMachine {
    pub(crate) fn new(root: PathBuf, arch: Arch) -> Self {
        Self {
            root,
            arch,
            possible: CpuSet::new(),
            present: CpuSet::new(),
            online: CpuSet::new(),
            isolated: CpuSet::new(),
            cpus: Vec::new(),
            caches: Vec::new(),
            cache_index: HashMap::new(),
            nodes: Vec::new(),
            sets: Sets::default(),
            warnings: Warnings::default(),
        }
    }

    /// The record of `cpu`, made if need be.
    pub(crate) fn cpu(&mut self, cpu: usize) -> &mut RawCpu {
        if self.cpus.len() <= cpu {
            self.cpus.resize_with(cpu + 1, RawCpu::default);
        }
        &mut self.cpus[cpu]
    }

    pub(crate) fn cache(&mut self, cache: RawCache) -> u32 {
        if let Some(index) = self.cache_index.get(&cache) {
            return *index;
        }
        let index = self.caches.len() as u32;
        self.caches.push(cache.clone());
        self.cache_index.insert(cache, index);
        index
    }
}
