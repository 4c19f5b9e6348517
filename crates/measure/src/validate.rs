//! Checks a JSON value against the common form (see [`rows`](crate::rows)), member by member, and names every place that is wrong.
//! Stricter than a reader has to be: an unknown member of a row is a problem here, so that a figure without a unit cannot creep in;
//! it belongs under `figures`.

use std::fmt;

use serde_json::{Map, Value};

use crate::rows::{FORMAT, VERSION};

/// One place that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, as `$.rows[3].latency_us.p50`.
    pub path: String,
    /// What was expected.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Everything that is wrong with `value`; empty when it is in the form. Linear in its size, never panics.
pub fn validate(value: &Value) -> Vec<Problem> {
    let mut check = Check {
        problems: Vec::new(),
    };
    if let Some(document) = check.object("$", value) {
        check.document(document);
    }
    check.problems
}

/// What a member of a row must be.
#[derive(Clone, Copy)]
enum Kind {
    /// Any finite number.
    Number,
    /// A number >= 0.
    NonNegative,
    /// A whole number >= 0.
    Whole,
    /// 0 to 100.
    Share,
    Text,
    Flag,
    Spread,
    Latency,
}

const ROW: &[(&str, Kind)] = &[
    ("scenario", Kind::Text),
    ("setting", Kind::Text),
    ("bandwidth_mib_s", Kind::Spread),
    ("items_per_s", Kind::Spread),
    ("cpu_util_percent", Kind::NonNegative),
    ("cpu_util_of", Kind::Text),
    ("vs_system_percent", Kind::Number),
    ("latency_us", Kind::Latency),
    ("started_in_pod_percent", Kind::Share),
    ("migrations_per_item", Kind::NonNegative),
    ("mechanism", Kind::Text),
    ("hog", Kind::Flag),
    ("handover_us", Kind::Latency),
    ("error", Kind::Text),
];

const SPREAD: &[&str] = &["mean", "stdev", "median", "min", "max", "n"];
const LATENCY: &[&str] = &[
    "count", "mean", "stdev", "min", "p50", "p90", "p95", "p99", "p99_9", "max",
];
const RISING: &[&str] = &["min", "p50", "p90", "p95", "p99", "p99_9", "max"];
const MECHANISMS: &[&str] = &["said", "sentinel", "tick", "records", "auto"];

struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn wrong(&mut self, path: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(path, message));
    }

    fn object<'a>(&mut self, path: &str, value: &'a Value) -> Option<&'a Map<String, Value>> {
        let object = value.as_object();
        if object.is_none() {
            self.wrong(
                path,
                format!("expected an object, found {}", name_of(value)),
            );
        }
        object
    }

    fn document(&mut self, document: &Map<String, Value>) {
        match document.get("format") {
            Some(Value::String(s)) if s == FORMAT => {}
            other => self.wrong(
                "$.format",
                format!("expected {FORMAT:?}, found {}", shown(other)),
            ),
        }
        match document.get("version").and_then(Value::as_u64) {
            Some(v) if v == u64::from(VERSION) => {}
            _ => self.wrong(
                "$.version",
                format!(
                    "expected {VERSION}, found {}",
                    shown(document.get("version"))
                ),
            ),
        }
        if let Some(tool) = document.get("tool") {
            self.kind("$.tool", tool, Kind::Text);
        }
        match document.get("machine") {
            Some(machine) => self.machine(machine),
            None => self.wrong("$.machine", "missing"),
        }
        match document.get("settings") {
            Some(settings) => self.settings(settings),
            None => self.wrong("$.settings", "missing"),
        }
        if let Some(versions) = document.get("versions") {
            for (name, version) in self.object("$.versions", versions).into_iter().flatten() {
                self.kind(&format!("$.versions.{name}"), version, Kind::Text);
            }
        }
        match document.get("rows") {
            Some(Value::Array(rows)) => {
                for (i, row) in rows.iter().enumerate() {
                    self.row(&format!("$.rows[{i}]"), row);
                }
            }
            Some(other) => self.wrong(
                "$.rows",
                format!("expected a list, found {}", name_of(other)),
            ),
            None => self.wrong("$.rows", "missing"),
        }
        match document.get("verdicts") {
            Some(Value::Array(verdicts)) => {
                for (i, verdict) in verdicts.iter().enumerate() {
                    self.verdict(&format!("$.verdicts[{i}]"), verdict);
                }
            }
            Some(other) => self.wrong(
                "$.verdicts",
                format!("expected a list, found {}", name_of(other)),
            ),
            None => {}
        }
    }

    fn machine(&mut self, value: &Value) {
        let path = "$.machine";
        let Some(machine) = self.object(path, value) else {
            return;
        };
        match machine.get("cpus").and_then(Value::as_u64) {
            Some(1..) => {}
            _ => self.wrong(
                "$.machine.cpus",
                format!(
                    "expected a whole number from 1, found {}",
                    shown(machine.get("cpus"))
                ),
            ),
        }
        for (name, member) in machine {
            let path = format!("{path}.{name}");
            match name.as_str() {
                "cpus" => {}
                "name" | "model" | "architecture" | "kernel" | "topology" => {
                    self.kind(&path, member, Kind::Text)
                }
                "simulated" => self.kind(&path, member, Kind::Flag),
                "memory_bytes" => self.kind(&path, member, Kind::Whole),
                _ => self.wrong(&path, "unknown member"),
            }
        }
    }

    fn settings(&mut self, value: &Value) {
        let scalar = |v: &Value| matches!(v, Value::String(_) | Value::Number(_) | Value::Bool(_));
        for (name, member) in self.object("$.settings", value).into_iter().flatten() {
            let fine = scalar(member)
                || member
                    .as_array()
                    .is_some_and(|list| list.iter().all(scalar));
            if !fine {
                let found = name_of(member);
                self.wrong(
                    &format!("$.settings.{name}"),
                    format!("expected a string, number, boolean or a list of them, found {found}"),
                );
            }
        }
    }

    fn row(&mut self, path: &str, value: &Value) {
        let Some(row) = self.object(path, value) else {
            return;
        };
        for required in ["scenario", "setting"] {
            if row
                .get(required)
                .and_then(Value::as_str)
                .is_none_or(str::is_empty)
            {
                self.wrong(
                    &format!("{path}.{required}"),
                    "expected a string that is not empty",
                );
            }
        }
        for (name, member) in row {
            let path = format!("{path}.{name}");
            match ROW.iter().find(|(known, _)| known == name) {
                Some((_, kind)) => self.kind(&path, member, *kind),
                None if name == "figures" => self.figures(&path, member),
                None => self.wrong(
                    &path,
                    "unknown member; other figures belong under `figures`, with a unit",
                ),
            }
        }
        match row.get("cpu_util_of") {
            Some(Value::String(of)) if of == "machine" || of == "one-cpu" => {}
            Some(other) => {
                let found = shown(Some(other));
                self.wrong(
                    &format!("{path}.cpu_util_of"),
                    format!("expected \"machine\" or \"one-cpu\", found {found}"),
                );
            }
            None if row.contains_key("cpu_util_percent") => {
                self.wrong(
                    &format!("{path}.cpu_util_of"),
                    "missing beside cpu_util_percent",
                );
            }
            None => {}
        }
        if let Some(Value::String(mechanism)) = row.get("mechanism")
            && !MECHANISMS.contains(&mechanism.as_str())
        {
            self.wrong(
                &format!("{path}.mechanism"),
                format!("expected one of {MECHANISMS:?}, found {mechanism:?}"),
            );
        }
    }

    fn figures(&mut self, path: &str, value: &Value) {
        for (name, figure) in self.object(path, value).into_iter().flatten() {
            let path = format!("{path}.{name}");
            let Some(members) = self.object(&path, figure) else {
                continue;
            };
            match members.get("unit") {
                Some(Value::String(_)) => {}
                other => self.wrong(
                    &format!("{path}.unit"),
                    format!("expected a string, found {}", shown(other)),
                ),
            }
            self.numbers(&path, members, SPREAD, &["mean", "stdev"], &["unit"]);
        }
    }

    fn verdict(&mut self, path: &str, value: &Value) {
        let Some(verdict) = self.object(path, value) else {
            return;
        };
        for required in ["name", "setting", "metric"] {
            match verdict.get(required) {
                Some(Value::String(_)) => {}
                other => self.wrong(
                    &format!("{path}.{required}"),
                    format!("expected a string, found {}", shown(other)),
                ),
            }
        }
        let one_of = |member: &str, allowed: &[&str]| {
            let found = verdict.get(member);
            let fine = found
                .and_then(Value::as_str)
                .is_some_and(|s| allowed.contains(&s));
            (!fine).then(|| {
                Problem::new(
                    format!("{path}.{member}"),
                    format!("expected one of {allowed:?}, found {}", shown(found)),
                )
            })
        };
        self.problems
            .extend(one_of("verdict", &["holds", "fails", "undecided"]));
        self.problems
            .extend(one_of("relation", &["at-most", "at-least"]));
        for (required, kind) in [("limit", Kind::Number), ("rounds", Kind::Whole)] {
            match verdict.get(required) {
                Some(v) => self.kind(&format!("{path}.{required}"), v, kind),
                None => self.wrong(&format!("{path}.{required}"), "missing"),
            }
        }
        for optional in ["estimate", "lower", "upper", "half_width"] {
            if let Some(v) = verdict.get(optional) {
                self.kind(&format!("{path}.{optional}"), v, Kind::Number);
            }
        }
        for optional in ["against", "reason"] {
            if let Some(v) = verdict.get(optional) {
                self.kind(&format!("{path}.{optional}"), v, Kind::Text);
            }
        }
    }

    fn kind(&mut self, path: &str, value: &Value, kind: Kind) {
        match kind {
            Kind::Number | Kind::NonNegative | Kind::Share => match value.as_f64() {
                Some(v) if matches!(kind, Kind::NonNegative) && v < 0.0 => {
                    self.wrong(path, format!("{v} is below 0"))
                }
                Some(v) if matches!(kind, Kind::Share) && !(0.0..=100.0).contains(&v) => {
                    self.wrong(path, format!("{v} is not between 0 and 100"));
                }
                Some(_) => {}
                None => self.wrong(path, format!("expected a number, found {}", name_of(value))),
            },
            Kind::Whole if value.is_u64() => {}
            Kind::Whole => self.wrong(
                path,
                format!(
                    "expected a whole number from 0, found {}",
                    shown(Some(value))
                ),
            ),
            Kind::Text if value.is_string() => {}
            Kind::Text => self.wrong(path, format!("expected a string, found {}", name_of(value))),
            Kind::Flag if value.is_boolean() => {}
            Kind::Flag => self.wrong(
                path,
                format!("expected true or false, found {}", name_of(value)),
            ),
            Kind::Spread => {
                if let Some(members) = self.object(path, value) {
                    self.numbers(path, members, SPREAD, &["mean", "stdev"], &[]);
                }
            }
            Kind::Latency => {
                if let Some(members) = self.object(path, value) {
                    self.numbers(path, members, LATENCY, &[], &[]);
                    self.rising(path, members);
                }
            }
        }
    }

    /// An object of numbers: known names only, the required ones present, deviations and counts not below 0.
    fn numbers(
        &mut self,
        path: &str,
        members: &Map<String, Value>,
        known: &[&str],
        required: &[&str],
        also: &[&str],
    ) {
        for name in required {
            if !members.contains_key(*name) {
                self.wrong(&format!("{path}.{name}"), "missing");
            }
        }
        for (name, value) in members {
            let path = format!("{path}.{name}");
            if also.contains(&name.as_str()) {
                continue;
            }
            if !known.contains(&name.as_str()) {
                self.wrong(&path, format!("unknown member, expected one of {known:?}"));
                continue;
            }
            let kind = match name.as_str() {
                "n" | "count" => Kind::Whole,
                "stdev" => Kind::NonNegative,
                _ => Kind::Number,
            };
            self.kind(&path, value, kind);
        }
    }

    /// Percentiles must not fall.
    fn rising(&mut self, path: &str, members: &Map<String, Value>) {
        let mut before: Option<(&str, f64)> = None;
        for name in RISING {
            let Some(value) = members.get(*name).and_then(Value::as_f64) else {
                continue;
            };
            if value < 0.0 {
                self.wrong(&format!("{path}.{name}"), format!("{value} is below 0"));
            }
            if let Some((smaller, least)) = before
                && value < least
            {
                self.wrong(
                    &format!("{path}.{name}"),
                    format!("{value} is below {smaller}, {least}"),
                );
            }
            before = Some((name, value));
        }
    }
}

fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A short form for messages.
fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".into(),
        Some(v @ (Value::Object(_) | Value::Array(_))) => name_of(v).into(),
        Some(v) => v.to_string().chars().take(60).collect(),
    }
}

#[cfg(test)]
mod tests;
