//! `cmwq bench`: one module a subcommand, and what they share.

mod cost;

/// The subcommands of `cmwq bench`.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    Cost(cost::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Cost(args) => args.run(),
        }
    }
}
