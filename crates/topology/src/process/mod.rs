//! What this process may use of the machine.

mod cgroup;

#[cfg(test)]
mod tests;

use crate::sysfs::Files;
use crate::warning::Warning;
use crate::{CpuSet, Topology};
use std::path::{Path, PathBuf};

/// A limit on CPU time: `quota` in every `period`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Microseconds of CPU time that may be used in each period.
    pub quota_us: u64,
    /// Microseconds. Never zero.
    pub period_us: u64,
    /// The control group that sets it.
    pub group: PathBuf,
}

impl Quota {
    /// The limit in CPUs: 1.5 is one CPU and a half.
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }

    /// The limit in whole CPUs, rounded up, at least one.
    pub fn cpus_rounded_up(&self) -> usize {
        let cpus = self.quota_us.div_ceil(self.period_us).max(1);
        usize::try_from(cpus).unwrap_or(usize::MAX)
    }

    fn is_tighter(&self, other: &Quota) -> bool {
        let product = |quota: u64, period: u64| u128::from(quota) * u128::from(period);
        product(self.quota_us, other.period_us) < product(other.quota_us, self.period_us)
    }
}

/// What this process may use: affinity, cpuset and CPU quota, at the moment of reading. Kept
/// apart from [`Topology`], because it changes while the machine does not.
///
/// Reading it takes about ten small files (some 100 us), whatever the size of the machine, so it
/// can be read again every few seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessCpus {
    /// The affinity of the process's first thread (`taskset` sets it at the start); `None` where
    /// `proc` does not say.
    pub affinity: Option<CpuSet>,
    /// The CPUs of its cpuset (control groups of version 1 or 2); `None` where there is none.
    pub cpuset: Option<CpuSet>,
    /// The control group that `cpuset` was read from.
    pub cpuset_group: Option<PathBuf>,
    /// The tightest CPU quota from the process's own control group up to the topmost one that
    /// can be seen.
    pub quota: Option<Quota>,
    /// What was wrong with the files.
    pub warnings: Vec<Warning>,
}

impl ProcessCpus {
    /// Reads for this process: [`ProcessCpus::read`] of `/`.
    pub fn current() -> Self {
        Self::read(Path::new("/"))
    }

    /// Reads below `root`: `proc/self/{status,cgroup,cpuset,mountinfo}` (or `proc/mounts`) and
    /// the control group folders that they lead to, below `root` too. Blocks on these files.
    ///
    /// Never fails: what is missing is `None` (no limit is known), and what is of no use is named
    /// in `warnings`.
    pub fn read(root: &Path) -> Self {
        let mut files = Files::new(root);
        let mut result = Self {
            affinity: affinity(&mut files),
            ..Self::default()
        };
        cgroup::read(&mut files, &mut result);
        result.warnings = files.warnings.finish(root);
        result
    }

    /// The online CPUs of `machine` that the process may use: inside its affinity and its cpuset.
    /// A restriction that leaves none is passed over (the kernel never leaves a process without
    /// CPUs; so it is out of date, or from another machine). Never empty.
    pub fn usable(&self, machine: &Topology) -> CpuSet {
        let mut cpus = machine.online().clone();
        for limit in [&self.cpuset, &self.affinity].into_iter().flatten() {
            let cut = &cpus & limit;
            if !cut.is_empty() {
                cpus = cut;
            }
        }
        cpus
    }

    /// How many CPUs' worth of work the process can do at once: the usable CPUs, or its quota
    /// rounded up if that is less. At least 1.
    pub fn parallelism(&self, machine: &Topology) -> usize {
        let cpus = self.usable(machine).len();
        let quota = self.quota.as_ref().map(Quota::cpus_rounded_up);
        quota.map_or(cpus, |quota| quota.min(cpus))
    }
}

fn affinity(files: &mut Files) -> Option<CpuSet> {
    const STATUS: &str = "proc/self/status";
    let text = files.text(STATUS).good()?;
    let found = ["Cpus_allowed_list:", "Cpus_allowed:"]
        .iter()
        .find_map(|key| {
            let value = text.lines().find_map(|line| line.strip_prefix(key))?;
            Some(match *key {
                "Cpus_allowed:" => CpuSet::parse_mask(value),
                _ => CpuSet::parse_list(value),
            })
        });
    match found {
        Some(Ok(set)) if !set.is_empty() => Some(set),
        Some(Ok(_)) => {
            files.warn(STATUS, "allows no CPU: affinity passed over");
            None
        }
        Some(Err(e)) => {
            files.warn(STATUS, format!("Cpus_allowed_list: {e}"));
            None
        }
        None => {
            files.warn(STATUS, "has no line Cpus_allowed_list");
            None
        }
    }
}
