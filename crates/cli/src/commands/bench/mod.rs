//! `cmwq bench`: one module a subcommand, and what they share.

mod blocking;
mod cost;
mod crypt;
mod host;
mod output;
mod progress;
mod setting;
mod way;

/// The subcommands of `cmwq bench`.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    Blocking(blocking::Args),
    Cost(cost::Args),
    Crypt(crypt::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Blocking(args) => args.run(),
            Bench::Cost(args) => args.run(),
            Bench::Crypt(args) => args.run(),
        }
    }
}
