//! `cmwq trace`: records a timeline that a browser's trace viewer opens.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cmwq_control::snapshot::Detail;
use cmwq_control::trace::TraceOptions;
use cmwq_control::trace::chrome::{self, Recording};

use super::live::{self, Whom};

/// Record what a process does and write a timeline (Chrome trace JSON, for chrome://tracing or ui.perfetto.dev)
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Whom,
    /// Only these workqueues [default: all]
    #[arg(value_name = "WORKQUEUE")]
    workqueues: Vec<String>,
    /// Seconds to record
    #[arg(short, long, default_value = "2", value_parser = live::seconds, value_name = "SECS")]
    duration: Duration,
    /// The file to write; - for standard output
    #[arg(short, long, default_value = "cmwq-trace.json", value_name = "FILE")]
    output: PathBuf,
    /// Events that the process may hold between two visits
    #[arg(long, default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(16..=1 << 22))]
    buffer: u32,
    /// Stop early after so many events
    #[arg(long, default_value_t = 5_000_000, value_name = "N")]
    max_events: usize,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut client = self.whom.connect()?;
        let known = client.snapshot(Detail::COUNTERS)?.workqueues;
        if let Some(missing) = self
            .workqueues
            .iter()
            .find(|name| !known.iter().any(|q| q.name == **name))
        {
            let names: Vec<&str> = known.iter().map(|q| q.name.as_str()).collect();
            anyhow::bail!(
                "no workqueue `{missing}`; there are: {}",
                live::clean(&names.join(", "))
            );
        }
        // Before recording, so that a path that cannot be written costs the process nothing.
        let to_stdout = self.output.as_os_str() == "-";
        let file = if to_stdout {
            None
        } else {
            Some(
                File::create(&self.output)
                    .with_context(|| format!("cannot write {}", self.output.display()))?,
            )
        };
        client.trace_start(&TraceOptions {
            buffer_events: self.buffer,
            workqueues: self.workqueues.clone(),
        })?;
        // Who works already, and on what: their starts are not recorded.
        let begun = client.snapshot(Detail {
            workers: true,
            ..Detail::COUNTERS
        })?;
        let mut recording = Recording {
            process: client.process().clone(),
            begun: Some(begun),
            workqueues: self.workqueues.clone(),
            ..Recording::default()
        };
        let end = Instant::now() + self.duration;
        let mut stopped = false;
        loop {
            let chunk = client.trace_poll(20_000)?;
            recording.events.extend(chunk.events);
            recording.threads.extend(chunk.threads);
            recording.lost = chunk.lost.max(recording.lost);
            let full = recording.events.len() >= self.max_events;
            if chunk.more && !full {
                continue;
            }
            if stopped {
                break;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || full {
                client.trace_stop()?;
                stopped = true;
            } else {
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
        }
        recording.events.truncate(self.max_events);
        match file {
            Some(file) => chrome::write(&recording, BufWriter::new(file))
                .with_context(|| format!("cannot write {}", self.output.display()))?,
            None => {
                live::to_stdout(|out| Ok(chrome::write(&recording, out as &mut dyn io::Write)?))?
            }
        }
        if !to_stdout {
            eprintln!(
                "{} events, {} lost, written to {}",
                recording.events.len(),
                recording.lost,
                self.output.display()
            );
        }
        Ok(())
    }
}
