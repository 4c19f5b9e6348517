//! `cmwq bench`: one module a subcommand, and what they share.

mod blocking;
mod crypt;
mod host;
mod output;
mod progress;
mod scopes;
mod setting;
mod way;

/// The subcommands of `cmwq bench`.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    Blocking(blocking::Args),
    Crypt(crypt::Args),
    Scopes(scopes::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Blocking(args) => args.run(),
            Bench::Crypt(args) => args.run(),
            Bench::Scopes(args) => args.run(),
        }
    }
}
