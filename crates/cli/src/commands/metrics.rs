//! `cmwq metrics`: Prometheus text.

use cmwq_control::prometheus;
use cmwq_control::snapshot::Detail;

use super::live::{self, Whom};

/// Print the counters of a process as Prometheus text
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Whom,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let snapshot = self.whom.connect()?.snapshot(Detail {
            histograms: true,
            ..Detail::COUNTERS
        })?;
        let text = prometheus::render(&snapshot);
        live::to_stdout(|out| Ok(out.write_all(text.as_bytes())?))
    }
}
