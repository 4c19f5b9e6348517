//! One module a subcommand.

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {}

impl Command {
    /// Runs the subcommand; an error is printed by `main` and becomes exit status 1.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {}
    }
}
