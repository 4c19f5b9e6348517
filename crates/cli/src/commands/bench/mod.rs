//! `cmwq bench`: one module a subcommand, and what they share.

mod blocking;
mod cost;
mod crypt;
mod grid;
mod host;
mod latency;
mod limit;
mod monitor;
mod output;
mod progress;
mod queue;
mod reality;
mod scopes;
mod setting;
mod way;

pub(crate) use crypt::Args as CryptArgs;
pub(crate) use host::Host;
pub(crate) use output::{all_measured, print};
pub(crate) use setting::own_nice;

/// The subcommands of `cmwq bench`.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    Blocking(blocking::Args),
    Cost(cost::Args),
    Crypt(crypt::Args),
    Scopes(scopes::Args),
    Queue(queue::Args),
    Limit(limit::Args),
    Latency(latency::Args),
    Monitor(monitor::Args),
    Reality(reality::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Blocking(args) => args.run(),
            Bench::Cost(args) => args.run(),
            Bench::Crypt(args) => args.run(),
            Bench::Scopes(args) => args.run(),
            Bench::Queue(args) => args.run(),
            Bench::Limit(args) => args.run(),
            Bench::Latency(args) => args.run(),
            Bench::Monitor(args) => args.run(),
            Bench::Reality(args) => args.run(),
        }
    }
}
