//! Scenarios: what load runs, by name or from a TOML file.

use serde::{Deserialize, Serialize};

/// How requests travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Block encryption on a device with a queue: a write is generated, encrypted by an item, written; a read is read,
    /// decrypted by an item, verified.
    Device,
    /// The same on a loop device over memory: instead of the device a second item, on a queue of its own (kernel's way, scope
    /// cache).
    Loop,
    /// One item, nothing else: queue, run, tell.
    Item,
}

/// A load. Times in microseconds, sizes in bytes, unless the name says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// For reports.
    pub name: String,
    /// Issuing threads.
    pub jobs: u32,
    /// Requests that each keeps in flight.
    pub depth: u32,
    /// Payload of a request.
    pub bytes: u32,
    /// Out of 100.
    pub reads_percent: u32,
    /// Each job stays on one CPU (the first ones of the machine, one after the other).
    pub pinned: bool,
    /// Pause before each request.
    pub think_us: u64,
    /// How requests travel.
    pub way: Way,
    /// The queue's limit; 0 = the default.
    pub max_active: u32,
    /// The device's time from submission to completion, beside its bandwidth.
    pub device_latency_us: u64,
    /// The device's bandwidth, MiB/s; 0 = unlimited.
    pub device_mib_s: u64,
    /// What an item costs in the way `item`.
    pub item_us: f64,
    /// Of it under a lock that all items share.
    pub locked_us: f64,
    /// How much longer the lock is held for each item that spins for it.
    pub lock_spread: f64,
    /// More than so many do not make it worse.
    pub lock_spinners: f64,
    /// Open loop: the mean time between arrivals at a job; 0 = closed loop.
    pub every_us: f64,
    /// Requests that one arrival brings.
    pub burst: u32,
    /// Simulated time that is measured.
    pub measure_ms: u64,
    /// Simulated time before that.
    pub warm_up_ms: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            name: String::from("custom"),
            jobs: 1,
            depth: 1,
            bytes: 4096,
            reads_percent: 50,
            pinned: false,
            think_us: 0,
            way: Way::Item,
            max_active: 0,
            device_latency_us: 80,
            device_mib_s: 0,
            item_us: 1.0,
            locked_us: 0.0,
            lock_spread: 0.0,
            lock_spinners: 0.0,
            every_us: 0.0,
            burst: 1,
            measure_ms: 200,
            warm_up_ms: 40,
        }
    }
}

/// What is wrong with a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError(String);

impl std::fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScenarioError {}

/// The names of the built-in scenarios.
pub const NAMES: [&str; 8] = [
    "high", "med", "low", "llow", "sync", "think", "limit", "queue",
];

impl Scenario {
    /// A built-in scenario; `cpus`: of the machine, for those whose job count follows it.
    ///
    /// | name | what |
    /// |---|---|
    /// | `high`, `med`, `low` | 24, 8, 4 jobs of depth 64, 32 KiB, on a device, generated and verified |
    /// | `llow` | one pinned job of depth 4, 512 bytes, loop |
    /// | `sync` | the same, depth 1 |
    /// | `think` | the same, with 1 ms pauses |
    /// | `limit` | 32 writers of depth 32 whose items share a lock; see `max_active` |
    /// | `queue` | one pinned job a CPU: queue one item, wait for it |
    pub fn named(name: &str, cpus: usize) -> Option<Scenario> {
        let big = |jobs| Scenario {
            jobs,
            depth: 64,
            bytes: 32 << 10,
            way: Way::Device,
            // One limit for each issuing CPU, as dm-crypt had it (`num_online_cpus()` a pwq).
            max_active: cpus as u32 * jobs.min(cpus as u32),
            ..Scenario::default()
        };
        let small = |depth, think_us, measure_ms| Scenario {
            depth,
            think_us,
            bytes: 512,
            pinned: true,
            way: Way::Loop,
            max_active: 96,
            measure_ms,
            ..Scenario::default()
        };
        let mut s = match name {
            "high" => big(24),
            "med" => big(8),
            "low" => big(4),
            "llow" => small(4, 0, 100),
            "sync" => small(1, 0, 100),
            "think" => small(1, 1000, 2000),
            "limit" => Scenario {
                jobs: 32,
                depth: 32,
                bytes: 64 << 10,
                reads_percent: 0,
                max_active: 8,
                item_us: 98.0,
                locked_us: 19.6,
                lock_spread: 0.07,
                lock_spinners: 21.5,
                ..Scenario::default()
            },
            "queue" => Scenario {
                jobs: cpus as u32,
                bytes: 0,
                item_us: 0.1,
                pinned: true,
                measure_ms: 20,
                warm_up_ms: 5,
                ..Scenario::default()
            },
            _ => return None,
        };
        s.name = name.to_string();
        Some(s)
    }

    /// Reads a scenario from TOML; the field names are those of this type.
    ///
    /// # Errors
    /// What is wrong, with line and field.
    pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
        let s: Scenario = toml::from_str(text).map_err(|e| ScenarioError(e.to_string()))?;
        let at = |field: &str| {
            text.lines()
                .position(|l| l.trim_start().starts_with(field))
                .map_or(String::new(), |n| format!("line {}: ", n + 1))
        };
        let bad = |field: &str, want: &str| {
            Err(ScenarioError(format!(
                "{}{field} must be {want}",
                at(field)
            )))
        };
        if s.jobs == 0 || s.jobs > 100_000 {
            return bad("jobs", "1 to 100000");
        }
        if s.depth == 0 || s.depth > 65_536 {
            return bad("depth", "1 to 65536");
        }
        if s.bytes > 64 << 20 {
            return bad("bytes", "at most 67108864");
        }
        if s.reads_percent > 100 {
            return bad("reads_percent", "0 to 100");
        }
        if s.measure_ms == 0 || s.measure_ms > 600_000 {
            return bad("measure_ms", "1 to 600000");
        }
        for (field, v, max) in [
            ("item_us", s.item_us, 1e9),
            ("locked_us", s.locked_us, 1e9),
            ("lock_spread", s.lock_spread, 1e3),
            ("lock_spinners", s.lock_spinners, 1e6),
            ("every_us", s.every_us, 1e9),
        ] {
            if !(0.0..=max).contains(&v) {
                return bad(field, &format!("0 to {max}"));
            }
        }
        Ok(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_scenario() {
        for n in NAMES {
            assert_eq!(Scenario::named(n, 8).unwrap().name, n);
        }
        assert!(Scenario::named("nonsense", 8).is_none());
    }

    #[test]
    fn errors_name_line_and_field() {
        let e = Scenario::parse("jobs = 4\ndepth = 0\n")
            .unwrap_err()
            .to_string();
        assert!(e.contains("line 2") && e.contains("depth"), "{e}");
        let e = Scenario::parse("jobs = 4\nway = \"boat\"\n")
            .unwrap_err()
            .to_string();
        assert!(e.contains("line 2") && e.contains("way"), "{e}");
        let e = Scenario::parse("jobz = 4\n").unwrap_err().to_string();
        assert!(e.contains("jobz"), "{e}");
        let e = Scenario::parse("item_us = -1.0\n").unwrap_err().to_string();
        assert!(e.contains("line 1: item_us"), "{e}");
    }

    #[test]
    fn a_scenario_survives_being_written_and_read() {
        for n in NAMES {
            let s = Scenario::named(n, 24).unwrap();
            assert_eq!(Scenario::parse(&toml::to_string(&s).unwrap()).unwrap(), s);
        }
    }
}
