//! One module a subcommand.

mod crypt;

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Serve an encrypted block device over NBD, its requests run as work items
    #[command(subcommand)]
    Crypt(crypt::Crypt),
}

impl Command {
    /// Runs the subcommand; an error is printed by `main` and becomes exit status 1.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Crypt(c) => c.run(),
        }
    }
}
