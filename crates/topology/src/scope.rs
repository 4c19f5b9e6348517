//! [`AffinityScope`]: which CPUs share one pod.

use std::fmt;

/// How far the CPUs of one pod reach. The names and their spelling are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AffinityScope {
    /// Whatever is the default where the scope is used. Callers resolve it with
    /// [`AffinityScope::resolve`]; what only knows this crate takes
    /// [`AffinityScope::DEFAULT`] for it.
    Default,
    /// Every CPU is a pod.
    Cpu,
    /// The hardware threads of one core.
    Smt,
    /// About eight cores of one last-level cache.
    CacheShard,
    /// The CPUs that share a last-level cache.
    Cache,
    /// The CPUs of one NUMA node.
    Numa,
    /// All CPUs.
    System,
}

/// A text that names no affinity scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseAffinityScopeError {
    /// The text, cut to its first 64 characters.
    pub text: String,
}

impl fmt::Display for ParseAffinityScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown affinity scope {:?}: expected default, cpu, smt, cache_shard, cache, numa or system",
            self.text
        )
    }
}

impl std::error::Error for ParseAffinityScopeError {}

impl AffinityScope {
    /// What `default` means unless somebody says otherwise: `cache_shard`, as in Linux from 7.1.
    pub const DEFAULT: AffinityScope = AffinityScope::CacheShard;

    /// The six scopes that group CPUs, narrowest first; `default` is not among them.
    pub const ALL: [AffinityScope; 6] = [
        AffinityScope::Cpu,
        AffinityScope::Smt,
        AffinityScope::CacheShard,
        AffinityScope::Cache,
        AffinityScope::Numa,
        AffinityScope::System,
    ];

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            AffinityScope::Default => "default",
            AffinityScope::Cpu => "cpu",
            AffinityScope::Smt => "smt",
            AffinityScope::CacheShard => "cache_shard",
            AffinityScope::Cache => "cache",
            AffinityScope::Numa => "numa",
            AffinityScope::System => "system",
        }
    }

    /// `default` becomes `default_scope`; the others stay. A `default_scope` of `default` means
    /// [`AffinityScope::DEFAULT`], so the result always groups CPUs.
    pub const fn resolve(self, default_scope: AffinityScope) -> AffinityScope {
        match (self, default_scope) {
            (AffinityScope::Default, AffinityScope::Default) => AffinityScope::DEFAULT,
            (AffinityScope::Default, other) | (other, _) => other,
        }
    }
}

impl std::str::FromStr for AffinityScope {
    type Err = ParseAffinityScopeError;

    /// The exact name, in lower case, with nothing around it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        std::iter::once(AffinityScope::Default)
            .chain(AffinityScope::ALL)
            .find(|scope| scope.name() == text)
            .ok_or_else(|| ParseAffinityScopeError {
                text: text.chars().take(64).collect(),
            })
    }
}

impl fmt::Display for AffinityScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_nothing_else_is_taken() {
        for scope in AffinityScope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
        }
        assert_eq!("default".parse(), Ok(AffinityScope::Default));
        for bad in [
            "", "CPU", "Cache", "cach", "cachex", " cache", "cache\n", "0",
        ] {
            let error = bad.parse::<AffinityScope>().unwrap_err();
            assert!(error.to_string().contains("cache_shard"), "{error}");
        }
    }

    #[test]
    fn resolving_never_leaves_default() {
        use AffinityScope as S;
        assert_eq!(S::Default.resolve(S::Numa), S::Numa);
        assert_eq!(S::Default.resolve(S::Default), S::CacheShard);
        assert_eq!(S::Cpu.resolve(S::Numa), S::Cpu);
    }
}
