//! `cmwq monitor`: what the queues do, as it happens.
//!
//! A plain stream with the kernel's `wq_monitor` columns where output is no terminal (or with `--plain`), JSON lines with
//! `--json`, a full-screen view otherwise.

mod app;
mod columns;
mod draw;
mod machine;
mod rows;
mod screen;
mod stream;

use std::io::IsTerminal;
use std::time::Duration;

use regex::Regex;

use super::live::{self, Whom};

/// Watch the workqueues of a process
///
/// Columns: total = items started, infl = in flight, CPUtime = CPU seconds in items, CPUlocl = items started on the issuing
/// CPU, CPUitsv = items over the CPU-intensive threshold, CMW/RPR = concurrency-management wake-ups (per-CPU) or repatriated
/// workers (unbound), mayday and rescued = calls for the rescuer and items that it ran.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Whom,
    /// Only workqueues whose name matches one of these regular expressions
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Regex>,
    /// Seconds between two looks; 0 looks once
    #[arg(short, long, default_value = "1", value_parser = live::seconds, value_name = "SECS")]
    interval: Duration,
    /// One JSON object a look
    #[arg(short, long)]
    json: bool,
    /// A plain stream even on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = self.whom.connect()?;
        let full_screen = !self.json
            && !self.plain
            && !self.interval.is_zero()
            && std::io::stdout().is_terminal()
            && std::io::stdin().is_terminal();
        if full_screen {
            let whom = self.whom;
            screen::run(client, move || whom.connect(), self.patterns, self.interval)
        } else {
            stream::run(client, &self.patterns, self.interval, self.json)
        }
    }
}

/// Whether a queue is among those asked for.
fn wanted(patterns: &[Regex], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|p| p.is_match(name))
}
