//! What a bench says on standard error while it runs.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// A line that is rewritten on a terminal; elsewhere a line now and then.
pub(crate) struct Progress {
    total: usize,
    done: usize,
    began: Instant,
    terminal: bool,
    last_line: Option<Instant>,
}

/// Between two lines where nobody rewrites them.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl Progress {
    /// `total` steps will come.
    pub(crate) fn new(total: usize) -> Progress {
        Progress {
            total,
            done: 0,
            began: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            last_line: None,
        }
    }

    /// A step begins.
    pub(crate) fn step(&mut self, what: &str) {
        self.done += 1;
        let before = self.done - 1;
        let left = match before {
            0 => String::new(),
            _ => {
                let each = self.began.elapsed().as_secs_f64() / before as f64;
                let left = each * self.total.saturating_sub(before) as f64;
                format!(", about {left:.0} s left")
            }
        };
        let line = format!("[{}/{}] {what}{left}", self.done, self.total);
        // Standard error that cannot be written to is no reason to stop measuring.
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        } else if self.last_line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            let _ = writeln!(std::io::stderr(), "{line}");
            self.last_line = Some(Instant::now());
        }
    }

    /// All is done: the line goes.
    pub(crate) fn clear(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
