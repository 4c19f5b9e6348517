//! `cmwq advise`: what is wrong, in plain words, and what to set.

use std::time::Duration;

use cmwq_control::advise::{Inputs, Report};
use cmwq_control::snapshot::Detail;

use super::live::{self, Whom};

/// Read the counters of a process and say what is wrong and what to set
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Whom,
    /// Seconds to watch; 0 looks at the whole life of the process
    #[arg(short, long, default_value = "2", value_parser = live::seconds, value_name = "SECS")]
    interval: Duration,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut client = self.whom.connect()?;
        let before = if self.interval.is_zero() {
            None
        } else {
            let first = live::snapshot(
                &mut client,
                Detail {
                    histograms: true,
                    ..Detail::COUNTERS
                },
            )?;
            std::thread::sleep(self.interval);
            Some(first)
        };
        let now = live::snapshot(&mut client, Detail::FULL)?;
        let report = Report::of(&Inputs {
            now: &now,
            before: before.as_ref(),
        });
        if self.json {
            return live::print_json(&report);
        }
        let all = &report.advice;
        live::to_stdout(|out| {
            if all.is_empty() {
                writeln!(
                    out,
                    "nothing to complain about ({} workqueues, {} pools)",
                    now.workqueues.len(),
                    now.pools.len()
                )?;
            }
            for a in all {
                let about = if a.workqueue.is_empty() {
                    String::new()
                } else {
                    format!(" {}:", a.workqueue)
                };
                writeln!(
                    out,
                    "{} [{}]{about} {}",
                    a.severity.as_str(),
                    a.rule,
                    a.says
                )?;
                for set in &a.set {
                    writeln!(out, "    cmwq set {} {set}", self.whom.who)?;
                }
            }
            Ok(())
        })
    }
}
