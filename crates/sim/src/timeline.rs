//! A trace file for a browser's trace viewer (the JSON array form of the Trace Event Format): one row a CPU, one bar a
//! stretch of work.

use crate::os::{Os, Tid};
use crate::wq::Role;
use std::fmt::Write;

/// Collects what CPUs do, up to a number of entries.
pub(crate) struct Timeline {
    out: String,
    left: u32,
    since: Vec<u64>,
}

impl Timeline {
    pub(crate) fn new(cpus: usize, entries: u32) -> Timeline {
        Timeline {
            out: String::from("["),
            left: entries,
            since: vec![0; cpus],
        }
    }

    /// A thread has come to the end of a stretch.
    pub(crate) fn note(&mut self, os: &Os, roles: &[Role], t: Tid) {
        let cpu = os.threads[t as usize].cpu as usize;
        let from = std::mem::replace(&mut self.since[cpu], os.now);
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let name = match roles[t as usize] {
            Role::Issuer(i) => format!("issuer {i}"),
            Role::Server(n) => format!("server {n}"),
            Role::Worker { pool, id, away } => match away {
                Some((p, ..)) => format!("worker {pool}:{id} helps pool {p}"),
                None => format!("worker {pool}:{id}"),
            },
            Role::Rescuer { queue, .. } => format!("rescuer of queue {queue}"),
        };
        let comma = if self.out.len() > 1 { "," } else { "" };
        let start = from.max(os.now.saturating_sub(10_000_000));
        let _ = write!(
            self.out,
            "{comma}\n{{\"name\":\"{name}\",\"ph\":\"X\",\"pid\":0,\"tid\":{cpu},\"ts\":{:.3},\"dur\":{:.3}}}",
            start as f64 / 1e3,
            (os.now - start) as f64 / 1e3
        );
    }

    /// The file's text.
    pub(crate) fn finish(mut self) -> String {
        self.out.push_str("\n]\n");
        self.out
    }
}
