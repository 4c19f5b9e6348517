//! Settings that are compared: affinity scope, strictness, localization, and whether the queue works in the kernel's way.

use cmwq_topology::AffinityScope;

/// One column of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The queue's scope.
    pub scope: AffinityScope,
    /// Workers never leave their pod.
    pub strict: bool,
    /// Items start where they were issued, if they can.
    pub localize: bool,
    /// The kernel's way: unmanaged, no helping, wide masks with repatriation at wake-up.
    pub kernel: bool,
    /// The scheduler looks for an idle CPU in the node's other caches too.
    pub sis_node: bool,
}

const fn k(name: &'static str, scope: AffinityScope, strict: bool, localize: bool) -> Setting {
    Setting {
        name,
        scope,
        strict,
        localize,
        kernel: true,
        sis_node: false,
    }
}

/// All settings, `system` first, our default last.
pub const ALL: [Setting; 15] = [
    k("system", AffinityScope::System, false, false),
    k("numa", AffinityScope::Numa, false, false),
    k("cache", AffinityScope::Cache, false, false),
    k("cache-strict", AffinityScope::Cache, true, false),
    k("cache-shard", AffinityScope::CacheShard, false, false),
    k("cache-shard-strict", AffinityScope::CacheShard, true, false),
    k("smt", AffinityScope::Smt, false, false),
    k("smt-strict", AffinityScope::Smt, true, false),
    k("cpu", AffinityScope::Cpu, false, false),
    k("cpu-strict", AffinityScope::Cpu, true, false),
    k("system-local", AffinityScope::System, false, true),
    k("cache-local", AffinityScope::Cache, false, true),
    Setting {
        sis_node: true,
        ..k("cache-sn", AffinityScope::Cache, false, false)
    },
    Setting {
        sis_node: true,
        ..k("cache-sn-local", AffinityScope::Cache, false, true)
    },
    Setting {
        name: "default",
        scope: AffinityScope::CacheShard,
        strict: false,
        localize: false,
        kernel: false,
        sis_node: false,
    },
];

impl Setting {
    /// The setting of this name.
    pub fn named(name: &str) -> Option<Setting> {
        ALL.iter().find(|s| s.name == name).copied()
    }
}
