//! The six scenarios of the published table, scaled to the machine.

use cmwq::CpuSet;
use std::time::Duration;

/// What `--scenario` takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Name {
    /// 32 KiB blocks, depth 64, a job on each CPU
    High,
    /// 32 KiB blocks, depth 64, a job for each 3 CPUs
    Med,
    /// 32 KiB blocks, depth 64, a job for each 6 CPUs
    Low,
    /// 512-byte blocks, depth 4, one pinned job
    Llow,
    /// 512-byte blocks, depth 1, one pinned job
    Sync,
    /// As sync, with 1 ms of thinking after each request
    Think,
    /// All six
    All,
}

/// One scenario on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Bytes of a request.
    pub(crate) block: usize,
    /// Requests in flight of a job.
    pub(crate) depth: usize,
    /// Issuing threads.
    pub(crate) jobs: usize,
    /// The CPU that the issuer is bound to.
    pub(crate) pinned: Option<usize>,
    /// Pause after each request.
    pub(crate) think: Duration,
    /// CPU use is told of one CPU, not of the machine.
    pub(crate) of_one_cpu: bool,
}

impl Scenario {
    /// The scenarios of these names, each once, in the table's order. `jobs` overrides the number of issuers of the first three.
    pub(crate) fn choose(names: &[Name], cpus: &CpuSet, jobs: Option<usize>) -> Vec<Scenario> {
        const TABLE: [Name; 6] = [
            Name::High,
            Name::Med,
            Name::Low,
            Name::Llow,
            Name::Sync,
            Name::Think,
        ];
        TABLE
            .into_iter()
            .filter(|n| names.contains(n) || names.contains(&Name::All))
            .map(|n| Scenario::new(n, cpus, jobs))
            .collect()
    }

    fn new(name: Name, cpus: &CpuSet, jobs: Option<usize>) -> Scenario {
        let count = cpus.len().max(1);
        // The table's machine has 24 threads and 24, 8, 4 jobs.
        let wide = |name, share| Scenario {
            name,
            block: 32 << 10,
            depth: 64,
            jobs: jobs.unwrap_or(count / share).max(1),
            pinned: None,
            think: Duration::ZERO,
            of_one_cpu: false,
        };
        // The last one: the first CPUs tend to have the interrupts.
        let narrow = |name, depth, think| Scenario {
            name,
            block: 512,
            depth,
            jobs: 1,
            pinned: cpus.last(),
            think,
            of_one_cpu: true,
        };
        match name {
            Name::High | Name::All => wide("high", 1),
            Name::Med => wide("med", 3),
            Name::Low => wide("low", 6),
            Name::Llow => narrow("llow", 4, Duration::ZERO),
            Name::Sync => narrow("sync", 1, Duration::ZERO),
            Name::Think => narrow("think", 1, Duration::from_millis(1)),
        }
    }

    /// Blocks of each job's part of the device: several times what is in flight, at most about 16 MiB.
    pub(crate) fn blocks(&self) -> usize {
        ((16 << 20) / self.block).min(4096).max(4 * self.depth)
    }

    /// Bytes of the device.
    pub(crate) fn device_bytes(&self) -> u64 {
        (self.jobs * self.blocks() * self.block) as u64
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let block = match self.block {
            n if n >= 1024 => format!("{} KiB", n / 1024),
            n => format!("{n} bytes"),
        };
        let jobs = if self.jobs == 1 { "job" } else { "jobs" };
        let mut line = format!(
            "{}: {block}, depth {}, {} {jobs}",
            self.name, self.depth, self.jobs
        );
        if let Some(cpu) = self.pinned {
            line += &format!(" on CPU {cpu}");
        }
        if !self.think.is_zero() {
            line += &format!(", {} ms between requests", self.think.as_millis());
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_keep_the_published_ratio_and_one_is_the_least() {
        for (cpus, expected) in [
            (24, [24, 8, 4]),
            (96, [96, 32, 16]),
            (2, [2, 1, 1]),
            (1, [1, 1, 1]),
        ] {
            let set: CpuSet = (0..cpus).collect();
            let all = Scenario::choose(&[Name::All], &set, None);
            assert_eq!(all.len(), 6);
            assert_eq!([all[0].jobs, all[1].jobs, all[2].jobs], expected);
            for s in &all[3..] {
                assert_eq!((s.jobs, s.pinned, s.block), (1, Some(cpus - 1), 512));
            }
        }
    }

    #[test]
    fn given_jobs_are_for_the_wide_scenarios_and_order_is_the_tables() {
        let set: CpuSet = (0..4).collect();
        let some = Scenario::choose(&[Name::Sync, Name::Low, Name::Low], &set, Some(7));
        let names: Vec<_> = some.iter().map(|s| (s.name, s.jobs)).collect();
        assert_eq!(names, [("low", 7), ("sync", 1)]);
    }

    #[test]
    fn a_job_has_room_for_what_is_in_flight() {
        for s in [1, 2, 24, 512].into_iter().flat_map(|cpus| {
            let set: CpuSet = (0..cpus).collect();
            Scenario::choose(&[Name::All], &set, None)
        }) {
            assert!(s.blocks() >= 2 * s.depth, "{}", s.name);
            assert!(s.blocks() * s.block <= 16 << 20, "{}", s.name);
        }
    }
}
