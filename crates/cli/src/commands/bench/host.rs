//! The machine that a bench runs on, or is told that it runs on.

use anyhow::{Context, ensure};
use cmwq::{AffinityScope, CpuSet, Runtime, Topology};
use cmwq_measure::Machine;
use cmwq_topology::ProcessCpus;

/// The machine as runtimes will see it.
pub(crate) struct Host {
    pub(crate) topology: Topology,
    process: ProcessCpus,
    /// CPUs that the process may run on.
    pub(crate) usable: CpuSet,
    synthetic: Option<String>,
}

impl Host {
    /// This machine; with `synthetic`, these CPUs with other caches and nodes than they have.
    pub(crate) fn new(synthetic: Option<&str>) -> anyhow::Result<Host> {
        let process = ProcessCpus::current();
        let real = Topology::current();
        let mut usable = process.usable(&real);
        if usable.is_empty() {
            usable = real.online().clone();
        }
        let topology = match synthetic {
            None => real,
            Some(spec) => {
                let made =
                    Topology::synthetic(spec).with_context(|| format!("--synthetic {spec:?}"))?;
                ensure!(
                    *made.online() == usable,
                    "--synthetic {spec:?} has the CPUs {}, this process may use {usable}: a made-up machine must have the same ones",
                    made.online(),
                );
                made
            }
        };
        Ok(Host {
            topology,
            process,
            usable,
            synthetic: synthetic.map(str::to_owned),
        })
    }

    /// A runtime of its own on this machine.
    pub(crate) fn runtime(&self) -> anyhow::Result<Runtime> {
        Runtime::builder()
            .topology(self.topology.clone())
            .process_cpus(self.process.clone())
            .build()
            .context("runtime")
    }

    /// CPUs that may run at once, at least 1.
    pub(crate) fn cpus(&self) -> usize {
        self.usable.len().max(1)
    }

    /// For the JSON form.
    pub(crate) fn machine(&self) -> Machine {
        let count = |scope| self.topology.pods(scope).len();
        let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let mut topology = format!(
            "{}, {}, {}",
            many(self.topology.nodes().len().max(1), "node"),
            many(count(AffinityScope::Cache), "last-level cache"),
            many(count(AffinityScope::Smt), "core"),
        );
        if let Some(spec) = &self.synthetic {
            topology += &format!(" (made up: {spec})");
        }
        Machine {
            cpus: self.cpus(),
            topology: Some(topology),
            ..Machine::detect()
        }
    }

    /// The machine drawn, and one line a scope.
    pub(crate) fn drawing(&self) -> String {
        let process = self.synthetic.is_none().then(|| self.process.clone());
        crate::commands::topology::short(self.topology.clone(), process)
    }
}
