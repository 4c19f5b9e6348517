//! `cmwq topology`: the machine, and the pods of every affinity scope.

mod draw;
mod json;
mod scopes;

use anyhow::{Context, bail};
use cmwq_topology::{AffinityScope, CpuSet, Pod, Pods, ProcessCpus, Topology};
use std::io::Write;
use std::path::PathBuf;

/// Show the machine and the pods that each affinity scope makes of it
///
/// Draws packages, NUMA nodes, last-level caches and cores, then lists the pods in the layout of
/// the kernel tree's wq_dump. Reads this machine unless --root or --synthetic is given. What was
/// wrong with the machine's files is said at the end.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the files below DIR (DIR/sys, DIR/proc) instead of this machine's
    #[arg(long, value_name = "DIR", conflicts_with = "synthetic")]
    root: Option<PathBuf>,

    /// Make up a machine, for instance 'package:2 l3:4 core:8 thread:2'
    ///
    /// Levels nest as written: package, die, node, cluster, l3, l2, core, thread, each with a count.
    /// Without 'node' every package is a NUMA node; without 'l3' and 'l2' there are no caches.
    /// Kinds of cores: 'core:6x2@1024+8x1@640' (count x threads @ capacity). Options:
    /// threads=last|adjacent, order=block|round-robin, cpus=LIST, possible=LIST, offline=LIST,
    /// isolated=LIST, memory-nodes=N, distance=LOCAL,SAME-PACKAGE,REMOTE,
    /// arch=x86|x86-amd|arm|riscv|power|s390|other
    #[arg(long, value_name = "SPEC")]
    synthetic: Option<String>,

    /// Show the pods of this scope only: cpu, smt, cache_shard, cache, numa, system or default
    #[arg(long, value_name = "SCOPE")]
    scope: Option<AffinityScope>,

    /// Show these CPUs only; pods are cut to them, as for a workqueue with this cpumask
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuSet>,

    /// Wanted number of cores in a pod of scope cache_shard
    #[arg(long, value_name = "CORES", default_value_t = cmwq_topology::DEFAULT_CACHE_SHARD_SIZE)]
    shard_size: usize,

    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

/// What is shown.
struct View {
    machine: Topology,
    /// `None` for a made-up machine.
    process: Option<ProcessCpus>,
    /// The CPUs that are shown.
    cpus: CpuSet,
    /// The mask of unbound workqueues: without isolated CPUs.
    unbound: CpuSet,
    scopes: Vec<(AffinityScope, Vec<Pod>)>,
}

impl Args {
    /// Reads, prints, and fails if the machine cannot be found or the CPUs do not exist.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let view = self.view()?;
        let text = match self.json {
            true => json::text(&view)?,
            false => format!(
                "{}\n{}{}",
                draw::machine(&view),
                scopes::text(&view),
                draw::notes(&view)
            ),
        };
        match std::io::stdout().write_all(text.as_bytes()) {
            // The reader has seen enough.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.context("cannot write the result"),
        }
    }

    fn view(&self) -> anyhow::Result<View> {
        let (machine, process) = match &self.synthetic {
            Some(spec) => {
                let machine = Topology::synthetic(spec);
                (
                    machine.with_context(|| format!("--synthetic {spec:?}"))?,
                    None,
                )
            }
            None => {
                let root = self.root.clone().unwrap_or_else(|| PathBuf::from("/"));
                let folder = root.join("sys/devices/system/cpu");
                if self.root.is_some() && !folder.is_dir() {
                    bail!(
                        "--root {}: {} is no folder",
                        root.display(),
                        folder.display()
                    );
                }
                (Topology::read(&root), Some(ProcessCpus::read(&root)))
            }
        };
        let possible = machine.possible();
        if let Some(stray) = self.cpus.as_ref().map(|cpus| cpus - possible)
            && !stray.is_empty()
        {
            bail!("--cpus: CPUs {stray} do not exist here; possible are {possible}");
        }
        if self.cpus.as_ref().is_some_and(CpuSet::is_empty) {
            bail!("--cpus: expected at least one CPU");
        }
        Ok(self.view_of(machine, process))
    }

    fn view_of(&self, machine: Topology, process: Option<ProcessCpus>) -> View {
        let possible = machine.possible();
        let cpus = self.cpus.clone().unwrap_or_else(|| possible.clone());
        let housekeeping = possible - machine.isolated();
        let (unbound, _) =
            cmwq_topology::masks::initial_global(possible, &housekeeping, self.cpus.as_ref());
        let scopes = match self.scope {
            Some(scope) => vec![scope.resolve(AffinityScope::DEFAULT)],
            None => AffinityScope::ALL.to_vec(),
        };
        let scopes = scopes
            .into_iter()
            .map(|scope| {
                let pods = machine.pods_with_shard_size(scope, self.shard_size);
                (scope, cut(&machine, &pods, &cpus))
            })
            .collect();
        View {
            machine,
            process,
            cpus,
            unbound,
            scopes,
        }
    }
}

/// The machine drawn, and a line for each scope with its pods: for commands that only mention it.
pub(crate) fn short(machine: Topology, process: Option<ProcessCpus>) -> String {
    /// Pods that a line lists.
    const PODS: usize = 8;
    let args = Args {
        root: None,
        synthetic: None,
        scope: None,
        cpus: None,
        shard_size: cmwq_topology::DEFAULT_CACHE_SHARD_SIZE,
        json: false,
    };
    let view = args.view_of(machine, process);
    let mut text = draw::machine(&view);
    text.push_str("\nscopes\n");
    for (scope, pods) in &view.scopes {
        let mark = match *scope == AffinityScope::DEFAULT {
            true => "  (default)",
            false => "",
        };
        let mut list: Vec<String> = pods.iter().take(PODS).map(|p| p.cpus.to_string()).collect();
        if pods.len() > PODS {
            list.push(format!("... {} pods", pods.len()));
        }
        text.push_str(&format!(
            "  {:<12}{}{mark}\n",
            scope.name(),
            list.join(" | ")
        ));
    }
    text
}

/// The pods as far as they are shown; the node stays that of the last CPU.
fn cut(machine: &Topology, pods: &Pods, cpus: &CpuSet) -> Vec<Pod> {
    let mut cut: Vec<Pod> = pods
        .iter()
        .map(|pod| &pod.cpus & cpus)
        .filter(|cpus| !cpus.is_empty())
        .map(|cpus| Pod {
            node: match pods.scope() {
                AffinityScope::System => None,
                _ => cpus.last().and_then(|cpu| machine.node_of(cpu)),
            },
            cpus,
        })
        .collect();
    cut.sort_by_key(|pod| pod.cpus.first());
    cut
}
