//! `cmwq bench`: one module a bench.

mod blocking;

/// Measure this machine and cmwq on it
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    Blocking(blocking::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Blocking(args) => args.run(),
        }
    }
}
