//! Reads the counters and says in plain words what is wrong and what to set.
//!
//! Every rule is a pure function of one or two snapshots; none ever changes anything. A rule that cannot be sure says what
//! it saw, so that the reader can judge.

mod limits;
mod machine;
mod waiting;

use crate::snapshot::{Counters, Snapshot, WorkqueueSnapshot};

/// What the rules look at.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The state now, with [`Detail::FULL`](crate::snapshot::Detail::FULL).
    pub now: &'a Snapshot,
    /// An earlier state of the same process, for rates. Without it rules look at the whole life of the process.
    pub before: Option<&'a Snapshot>,
}

impl Inputs<'_> {
    /// The queue's counters over the interval (or its life).
    fn counters(&self, q: &WorkqueueSnapshot) -> Counters {
        let mut c = q.counters;
        if let Some(old) = self.earlier(q) {
            let o = &old.counters;
            for (now, before) in [
                (&mut c.queued, o.queued),
                (&mut c.started, o.started),
                (&mut c.completed, o.completed),
                (&mut c.panicked, o.panicked),
                (&mut c.refused, o.refused),
                (&mut c.cpu_intensive, o.cpu_intensive),
                (&mut c.throttled, o.throttled),
                (&mut c.stalls, o.stalls),
            ] {
                *now = now.saturating_sub(before);
            }
        }
        c
    }

    fn earlier(&self, q: &WorkqueueSnapshot) -> Option<&WorkqueueSnapshot> {
        self.before?
            .workqueues
            .iter()
            .find(|old| old.id == q.id && old.name == q.name)
    }
}

/// How urgent a piece of advice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Severity {
    /// Work is late or lost now.
    Problem,
    /// Performance is given away.
    Warning,
    /// Worth knowing.
    Note,
}

impl Severity {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Problem => "problem",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Advice {
    /// The rule that spoke, a stable word.
    pub rule: String,
    /// How urgent.
    pub severity: Severity,
    /// The queue concerned; empty for the whole process.
    pub workqueue: String,
    /// What was seen and what it means.
    pub says: String,
    /// What to set: arguments of `cmwq set PID`, ready to use; empty where nothing can be set.
    pub set: Vec<String>,
}

/// Version of the form of a [`Report`]: raised when a field changes its meaning or goes away, not when one is added.
pub const ADVICE_FORMAT: u32 = 1;

/// What `cmwq advise --json` prints: all advice about one process, with what it was taken from.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// [`ADVICE_FORMAT`].
    pub format: u32,
    /// When the state was taken: Unix time, seconds.
    pub timestamp: f64,
    /// The process.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// Over how many seconds counters were compared; none: the whole life of the process.
    pub interval_seconds: Option<f64>,
    /// The most urgent first; empty if there is nothing to complain about.
    pub advice: Vec<Advice>,
}

impl Report {
    /// Runs every rule.
    pub fn of(inputs: &Inputs<'_>) -> Report {
        let (now, before) = (inputs.now, inputs.before);
        let since = |old: &Snapshot| {
            let ns = now
                .clock
                .monotonic_ns
                .saturating_sub(old.clock.monotonic_ns);
            ns as f64 / 1e9
        };
        Report {
            format: ADVICE_FORMAT,
            timestamp: now.clock.unix_ms as f64 / 1000.0,
            pid: now.process.pid,
            name: now.process.name.clone(),
            interval_seconds: before.map(since),
            advice: advise(inputs),
        }
    }
}

/// A rule.
pub type Rule = fn(&Inputs<'_>) -> Vec<Advice>;

/// Every rule, with the word that its advice carries.
pub const RULES: &[(&str, Rule)] = &[
    ("stalled", waiting::stalled),
    ("starving", waiting::starving),
    ("blocked_on_one_thing", waiting::blocked_on_one_thing),
    ("strict_with_idle_pods", waiting::strict_with_idle_pods),
    ("thread_ceiling", limits::thread_ceiling),
    ("threads_refused", limits::threads_refused),
    ("limit_meant_as_global", limits::limit_meant_as_global),
    ("limit_never_reached", limits::limit_never_reached),
    ("hogs", machine::hogs),
    ("panics", machine::panics),
    ("detection_is_blind", machine::detection_is_blind),
    ("throttled_by_quota", machine::throttled_by_quota),
];

/// Runs every rule; the most urgent advice comes first.
pub fn advise(inputs: &Inputs<'_>) -> Vec<Advice> {
    let mut all: Vec<Advice> = RULES.iter().flat_map(|(_, rule)| rule(inputs)).collect();
    all.sort_by_key(|a| a.severity);
    all
}

fn advice(rule: &str, severity: Severity, workqueue: &str, says: String, set: &[String]) -> Advice {
    Advice {
        rule: rule.into(),
        severity,
        workqueue: workqueue.into(),
        says,
        set: set.to_vec(),
    }
}

/// Arguments that set an attribute of a queue.
fn set(workqueue: &str, attr: &str, value: impl std::fmt::Display) -> String {
    format!("{workqueue} {attr}={value}")
}

/// A duration for people: three digits and a unit.
pub fn human_ns(ns: f64) -> String {
    if ns == 0.0 {
        return "0 ns".into();
    }
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn of(workqueues: Vec<WorkqueueSnapshot>) -> Snapshot {
        let mut s = Snapshot {
            workqueues,
            ..Default::default()
        };
        s.cpu.usable = crate::CpuList::from_cpus(0..16);
        s
    }

    pub(crate) fn run(rule: Rule, now: &Snapshot) -> Vec<Advice> {
        rule(&Inputs { now, before: None })
    }

    #[test]
    fn a_healthy_process_gets_no_advice() {
        let q = WorkqueueSnapshot {
            name: "q".into(),
            max_active: 1024,
            ..Default::default()
        };
        assert_eq!(
            advise(&Inputs {
                now: &of(vec![q]),
                before: None
            }),
            []
        );
        assert_eq!(
            advise(&Inputs {
                now: &Snapshot::default(),
                before: None
            }),
            []
        );
    }

    #[test]
    fn rates_come_from_the_interval() {
        let mut q = WorkqueueSnapshot {
            name: "q".into(),
            ..Default::default()
        };
        q.counters.panicked = 5;
        let old = of(vec![q.clone()]);
        let now = of(vec![q]);
        assert_eq!(
            machine::panics(&Inputs {
                now: &now,
                before: Some(&old)
            }),
            []
        );
        assert_eq!(
            machine::panics(&Inputs {
                now: &now,
                before: None
            })
            .len(),
            1
        );
    }

    #[test]
    fn a_report_says_what_it_was_taken_from() {
        let mut old = of(vec![]);
        old.process.pid = 42;
        old.clock.monotonic_ns = 1_000_000_000;
        let mut now = old.clone();
        now.clock.monotonic_ns = 3_500_000_000;
        let report = |before| Report::of(&Inputs { now: &now, before });
        assert_eq!(report(Some(&old)).interval_seconds, Some(2.5));
        let whole_life = report(None);
        assert_eq!(whole_life.interval_seconds, None);
        assert_eq!((whole_life.format, whole_life.pid), (ADVICE_FORMAT, 42));
    }

    #[test]
    fn durations_for_people() {
        assert_eq!(human_ns(0.0), "0 ns");
        assert_eq!(human_ns(12.0), "12.0 ns");
        assert_eq!(human_ns(1500.0), "1.50 us");
        assert_eq!(human_ns(250e6), "250 ms");
        assert_eq!(human_ns(12.34e9), "12.3 s");
    }
}
