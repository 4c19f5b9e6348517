//! One module a subcommand.

mod advise;
mod attrs;
pub(crate) mod bench;
mod crypt;
mod dump;
mod latency;
mod list;
mod live;
mod metrics;
mod monitor;
mod sim;
mod topology;
mod trace;

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Topology(topology::Args),
    List(list::Args),
    Dump(dump::Args),
    Monitor(monitor::Args),
    Latency(latency::Args),
    Get(attrs::GetArgs),
    Set(attrs::SetArgs),
    Metrics(metrics::Args),
    Trace(trace::Args),
    Advise(advise::Args),
    /// Measure: settings side by side, in interleaved rounds
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Serve an encrypted block device over NBD, its requests run as work items
    #[command(subcommand)]
    Crypt(crypt::Crypt),
    Sim(sim::Args),
}

impl Command {
    /// Runs the subcommand; an error is printed by `main` and becomes exit status 1.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Topology(args) => args.run(),
            Command::List(args) => args.run(),
            Command::Dump(args) => args.run(),
            Command::Monitor(args) => args.run(),
            Command::Latency(args) => args.run(),
            Command::Get(args) => args.run(),
            Command::Set(args) => args.run(),
            Command::Metrics(args) => args.run(),
            Command::Trace(args) => args.run(),
            Command::Advise(args) => args.run(),
            Command::Bench(b) => b.run(),
            Command::Crypt(c) => c.run(),
            Command::Sim(args) => args.run(),
        }
    }
}
