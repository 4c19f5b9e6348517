//! Where results go: text or JSON on standard output, and a page.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use cmwq_measure::{Document, Drawing, Report};

use super::host::Host;

/// Fails if a measurement did, after everything was shown.
///
/// # Errors
/// With the number of failures and the first one.
pub(crate) fn all_measured(failures: &[String]) -> anyhow::Result<()> {
    match failures {
        [] => Ok(()),
        [first, ..] => anyhow::bail!(
            "{} measurements failed, the first one: {first}",
            failures.len()
        ),
    }
}

/// What every bench takes.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Output {
    /// Print JSON for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// Write one self-contained HTML page: the machine, tables, charts, settings
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl Output {
    /// Prints `text`, or the document as JSON, and writes the page.
    pub(crate) fn finish(
        &self,
        document: &Document,
        host: &Host,
        text: &str,
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.report {
            let drawing = host.drawing();
            let page = Report::new(document)
                .drawing(Drawing::Text(&drawing))
                .to_html()?;
            std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
        }
        match self.json {
            true => print(&document.to_json()?),
            false => print(text),
        }
    }
}

/// Prints; a reader that has seen enough is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write the result"),
    }
}
