//! What is compared: a workqueue in one of its settings, or another way to run requests.

use std::fmt;
use std::str::FromStr;

use cmwq::{AffinityScope, Runtime, WorkqueueBuilder};

/// One setting, by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Setting {
    /// The library's default.
    Default,
    /// The default, and a waiting issuer may run the awaited item itself.
    DefaultInline,
    /// A static setting, as the kernel has it: unmanaged, no helping.
    Static {
        scope: AffinityScope,
        strict: bool,
        local: bool,
    },
    /// A new thread for each request.
    Thread,
    /// One thread a CPU, one queue.
    Pool,
    /// One pinned thread with a queue of its own on each CPU; a request goes to the CPU that it was issued on.
    PoolPerCpu,
    /// As `PoolPerCpu`, its threads with the highest priority that is permitted.
    PoolPerCpuHigh,
}

impl Setting {
    const fn fixed(scope: AffinityScope, strict: bool, local: bool) -> Setting {
        Setting::Static {
            scope,
            strict,
            local,
        }
    }

    /// The settings of the published table, the default, and the other ways.
    pub(crate) const TABLE: [Setting; 10] = [
        Setting::fixed(AffinityScope::System, false, false),
        Setting::fixed(AffinityScope::Cache, false, false),
        Setting::fixed(AffinityScope::Cache, true, false),
        Setting::fixed(AffinityScope::Cpu, true, false),
        Setting::fixed(AffinityScope::System, false, true),
        Setting::fixed(AffinityScope::Cache, false, true),
        Setting::Default,
        Setting::Thread,
        Setting::Pool,
        Setting::PoolPerCpu,
    ];

    /// Whether it is one of the kernel's.
    pub(crate) fn is_static(self) -> bool {
        matches!(self, Setting::Static { .. })
    }

    /// The scope whose pods it uses, if any.
    pub(crate) fn scope(self) -> Option<AffinityScope> {
        match self {
            Setting::Default | Setting::DefaultInline => Some(AffinityScope::DEFAULT),
            Setting::Static { scope, .. } => Some(scope),
            Setting::Thread | Setting::Pool | Setting::PoolPerCpu | Setting::PoolPerCpuHigh => None,
        }
    }

    /// Starts a workqueue of this setting; `None` for the other ways.
    pub(crate) fn builder(self, runtime: &Runtime) -> Option<WorkqueueBuilder> {
        // Workers have the nice of their queue, other threads that of their parent: all ways are to run with the same one.
        let builder = runtime.workqueue("bench").nice(own_nice());
        match self {
            Setting::Default => Some(builder),
            Setting::DefaultInline => Some(builder.inline_wait(true)),
            Setting::Static {
                scope,
                strict,
                local,
            } => Some(
                builder
                    .affinity_scope(scope)
                    .affinity_strict(strict)
                    .localize(local)
                    .kernel_mode(true),
            ),
            Setting::Thread | Setting::Pool | Setting::PoolPerCpu | Setting::PoolPerCpuHigh => None,
        }
    }
}

/// The nice of the calling thread, which is the process's unless someone changed it; 0 where the system does not tell.
pub(crate) fn own_nice() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Setting::Default => f.pad("default"),
            Setting::DefaultInline => f.pad("default-inline"),
            Setting::Thread => f.pad("thread"),
            Setting::Pool => f.pad("pool"),
            Setting::PoolPerCpu => f.pad("pool-per-cpu"),
            Setting::PoolPerCpuHigh => f.pad("pool-per-cpu-high"),
            Setting::Static {
                scope,
                strict,
                local,
            } => {
                let strict = if strict { "-strict" } else { "" };
                let local = if local { "-local" } else { "" };
                f.pad(&format!(
                    "{}{strict}{local}",
                    scope.name().replace('_', "-")
                ))
            }
        }
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let named = [
            Setting::Default,
            Setting::DefaultInline,
            Setting::Thread,
            Setting::Pool,
            Setting::PoolPerCpu,
            Setting::PoolPerCpuHigh,
        ];
        if let Some(s) = named.into_iter().find(|s| s.to_string() == text) {
            return Ok(s);
        }
        let (rest, local) = match text.strip_suffix("-local") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (scope, strict) = match rest.strip_suffix("-strict") {
            Some(scope) => (scope, true),
            None => (rest, false),
        };
        match scope.replace('-', "_").parse() {
            Ok(scope) if scope != AffinityScope::Default => {
                Ok(Setting::fixed(scope, strict, local))
            }
            _ => Err(format!(
                "unknown setting {text:?}: expected default, default-inline, thread, pool, pool-per-cpu, pool-per-cpu-high, or one of cpu, smt, \
                 cache-shard, cache, numa, system, with -strict, -local or both behind"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_nothing_else_is_taken() {
        for s in Setting::TABLE.into_iter().chain([Setting::DefaultInline]) {
            assert_eq!(s.to_string().parse(), Ok(s));
        }
        assert_eq!(
            "cache-shard-strict-local".parse(),
            Ok(Setting::fixed(AffinityScope::CacheShard, true, true))
        );
        for bad in [
            "",
            "default-strict",
            "cache-",
            "l3",
            "thread-local",
            "-local",
        ] {
            let e = bad.parse::<Setting>().unwrap_err();
            assert!(e.contains("pool-per-cpu"), "{bad}: {e}");
        }
    }
}
