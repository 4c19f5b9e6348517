//! One module a subcommand.

mod topology;

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Topology(topology::Args),
}

impl Command {
    /// Runs the subcommand; an error is printed by `main` and becomes exit status 1.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Topology(args) => args.run(),
        }
    }
}
