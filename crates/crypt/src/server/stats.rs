//! Counters, one set a reader, so that counting shares no cache line.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::Shared;
use crate::nbd::request::Command;

#[derive(Debug, Default)]
struct Set {
    connections: AtomicU64,
    refused_connections: AtomicU64,
    expired_connections: AtomicU64,
    requests: AtomicU64,
    refused_requests: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
}

/// One reader's counters.
#[derive(Debug, Default)]
pub(crate) struct Counters(CachePadded<Set>);

/// What a server did. Counts of different things are read one after the other, so they need not fit together to the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Clients that were served.
    pub connections: u64,
    /// Clients that were turned away, told or not.
    pub refused_connections: u64,
    /// Clients that were closed because they were stuck.
    pub expired_connections: u64,
    /// Requests that were begun.
    pub requests: u64,
    /// Requests that were answered with an error before they were begun.
    pub refused_requests: u64,
    /// Bytes asked for by reads.
    pub read: u64,
    /// Bytes of writes, without zeroes.
    pub written: u64,
    /// Bytes of data held for requests at this moment.
    pub bytes_in_flight: u64,
    /// Clients being served at this moment.
    pub open_connections: u64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn sum(all: &[Counters]) -> Stats {
        let mut s = Stats::default();
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        for Counters(c) in all {
            s.connections += get(&c.connections);
            s.refused_connections += get(&c.refused_connections);
            s.expired_connections += get(&c.expired_connections);
            s.requests += get(&c.requests);
            s.refused_requests += get(&c.refused_requests);
            s.read += get(&c.read);
            s.written += get(&c.written);
        }
        s
    }
}

impl Shared {
    pub(crate) fn count(&self, reader: usize, command: Command, len: u32) {
        let c = &self.counters[reader].0;
        add(&c.requests, 1);
        match command {
            Command::Read => add(&c.read, u64::from(len)),
            Command::Write => add(&c.written, u64::from(len)),
            _ => {}
        }
    }

    pub(crate) fn count_refused(&self, reader: usize) {
        add(&self.counters[reader].0.refused_requests, 1);
    }

    pub(crate) fn count_connection(&self, reader: usize) {
        add(&self.counters[reader].0.connections, 1);
    }

    pub(crate) fn count_refused_connection(&self, reader: usize) {
        add(&self.counters[reader].0.refused_connections, 1);
    }

    pub(crate) fn count_expired(&self, reader: usize) {
        add(&self.counters[reader].0.expired_connections, 1);
    }
}
