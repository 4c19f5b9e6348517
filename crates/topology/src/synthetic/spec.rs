//! Reading a spec.

use crate::CpuSet;
use crate::machine::Arch;
use std::fmt;

/// A text that describes no machine: where, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// Byte offset into the text.
    pub offset: usize,
    /// What is wrong there and what was expected.
    pub text: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.text)
    }
}

impl std::error::Error for SpecError {}

/// A level that groups cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Package,
    Die,
    Node,
    Cluster,
    L3,
    L2,
}

impl Level {
    const ALL: [(&'static str, Level); 6] = [
        ("package", Level::Package),
        ("die", Level::Die),
        ("node", Level::Node),
        ("cluster", Level::Cluster),
        ("l3", Level::L3),
        ("l2", Level::L2),
    ];
}

/// One kind of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) count: usize,
    pub(super) threads: Option<usize>,
    pub(super) capacity: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Spec {
    /// Outermost first.
    pub(super) levels: Vec<(Level, usize)>,
    pub(super) kinds: Vec<Kind>,
    pub(super) threads: usize,
    pub(super) adjacent: bool,
    pub(super) round_robin: bool,
    /// With the offset of the option, for errors.
    pub(super) cpus: Option<(usize, CpuSet)>,
    pub(super) possible: CpuSet,
    pub(super) offline: (usize, CpuSet),
    pub(super) isolated: CpuSet,
    pub(super) memory_nodes: usize,
    pub(super) distances: [u32; 3],
    pub(super) arch: Arch,
}

fn error(offset: usize, text: impl Into<String>) -> SpecError {
    SpecError {
        offset,
        text: text.into(),
    }
}

const LEVELS: &str = "package, die, node, cluster, l3, l2, core or thread";
const OPTIONS: &str =
    "threads, order, cpus, possible, offline, isolated, memory-nodes, distance or arch";

pub(super) fn parse(text: &str) -> Result<Spec, SpecError> {
    let mut spec = Spec {
        levels: Vec::new(),
        kinds: Vec::new(),
        threads: 1,
        adjacent: false,
        round_robin: false,
        cpus: None,
        possible: CpuSet::new(),
        offline: (0, CpuSet::new()),
        isolated: CpuSet::new(),
        memory_nodes: 0,
        distances: [10, 20, 20],
        arch: Arch::X86,
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut offset = 0;
    while let Some(start) = text[offset..].find(|c: char| !c.is_whitespace()) {
        let start = offset + start;
        let rest = &text[start..];
        let item = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
        offset = start + item.len();
        let Some(at) = item.find([':', '=']) else {
            let expected = format!(
                "expected level:count or option=value, found {}",
                quote(item)
            );
            return Err(error(start, expected));
        };
        let (name, value) = (&item[..at], &item[at + 1..]);
        if seen.contains(&name) {
            return Err(error(start, format!("{} stands twice", quote(name))));
        }
        seen.push(name);
        let value_at = start + at + 1;
        if item.as_bytes()[at] == b':' {
            level(&mut spec, &seen, (start, name), (value_at, value))?;
        } else {
            option(&mut spec, (start, name), (value_at, value))?;
        }
    }
    if seen.is_empty() {
        return Err(error(0, format!("expected a level ({LEVELS})")));
    }
    if spec.kinds.is_empty() {
        spec.kinds.push(Kind {
            count: 1,
            threads: None,
            capacity: None,
        });
    }
    Ok(spec)
}

fn quote(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

fn level(
    spec: &mut Spec,
    seen: &[&str],
    (start, name): (usize, &str),
    (at, value): (usize, &str),
) -> Result<(), SpecError> {
    if seen.contains(&"thread") && name != "thread" {
        return Err(error(start, "'thread' is the last level"));
    }
    match name {
        "core" => spec.kinds = kinds(at, value)?,
        "thread" => spec.threads = count(at, value)?,
        _ => {
            let Some((_, level)) = Level::ALL.iter().find(|(known, _)| *known == name) else {
                let text = format!("expected a level ({LEVELS}), found {}", quote(name));
                return Err(error(start, text));
            };
            if seen.contains(&"core") {
                return Err(error(start, "only 'thread' may come after 'core'"));
            }
            spec.levels.push((*level, count(at, value)?));
        }
    }
    Ok(())
}

fn count(at: usize, text: &str) -> Result<usize, SpecError> {
    let number = number(at, text)?;
    if !(1..=CpuSet::MAX_CPUS).contains(&number) {
        let text = format!("expected a count from 1 to {}", CpuSet::MAX_CPUS);
        return Err(error(at, text));
    }
    Ok(number)
}

fn number(at: usize, text: &str) -> Result<usize, SpecError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => Ok(number),
        _ => Err(error(
            at,
            format!("expected a number, found {}", quote(text)),
        )),
    }
}

fn kinds(at: usize, text: &str) -> Result<Vec<Kind>, SpecError> {
    let mut kinds = Vec::new();
    let mut offset = at;
    for part in text.split('+') {
        let (cores, capacity) = match part.split_once('@') {
            Some((cores, capacity)) => (cores, Some((offset + cores.len() + 1, capacity))),
            None => (part, None),
        };
        let (number, threads) = match cores.split_once('x') {
            Some((number, threads)) => (number, Some((offset + number.len() + 1, threads))),
            None => (cores, None),
        };
        let capacity = capacity.map(|(at, text)| match self::number(at, text)? {
            capacity @ 1..=1024 => Ok(capacity as u32),
            _ => Err(error(at, "expected a capacity from 1 to 1024")),
        });
        kinds.push(Kind {
            count: count(offset, number)?,
            threads: threads.map(|(at, text)| count(at, text)).transpose()?,
            capacity: capacity.transpose()?,
        });
        offset += part.len() + 1;
    }
    Ok(kinds)
}

fn option(
    spec: &mut Spec,
    (start, name): (usize, &str),
    (at, value): (usize, &str),
) -> Result<(), SpecError> {
    let choice = |expected: [&str; 2]| match value {
        _ if value == expected[0] => Ok(false),
        _ if value == expected[1] => Ok(true),
        _ => {
            let [a, b] = expected;
            let text = format!("expected {a} or {b}, found {}", quote(value));
            Err(error(at, text))
        }
    };
    let list = || CpuSet::parse_list(value).map_err(|e| error(at + e.offset, describe(&e)));
    match name {
        "threads" => spec.adjacent = choice(["last", "adjacent"])?,
        "order" => spec.round_robin = choice(["block", "round-robin"])?,
        "cpus" => spec.cpus = Some((at, list()?)),
        "possible" => spec.possible = list()?,
        "offline" => spec.offline = (at, list()?),
        "isolated" => spec.isolated = list()?,
        "memory-nodes" => {
            spec.memory_nodes = number(at, value)?;
            if spec.memory_nodes > super::build::MAX_NODES {
                return Err(error(at, "expected at most 1024 nodes"));
            }
        }
        "distance" => {
            let mut from = at;
            let mut parts = value.split(',');
            for slot in &mut spec.distances {
                let part = parts.next().unwrap_or_default();
                from = from.min(at + value.len());
                *slot = match number(from, part)? {
                    distance @ 1..=255 => distance as u32,
                    _ => return Err(error(from, "expected a distance from 1 to 255")),
                };
                from += part.len() + 1;
            }
            if parts.next().is_some() {
                return Err(error(from, "expected three distances"));
            }
        }
        "arch" => {
            let known = [
                Arch::X86,
                Arch::X86Amd,
                Arch::Arm,
                Arch::RiscV,
                Arch::Power,
                Arch::S390,
                Arch::Other,
            ];
            let arch = known.into_iter().find(|arch| arch.name() == value);
            spec.arch = arch.ok_or_else(|| {
                let names = known.map(Arch::name).join(", ");
                error(
                    at,
                    format!("expected one of {names}, found {}", quote(value)),
                )
            })?;
        }
        _ => {
            let text = format!("expected an option ({OPTIONS}), found {}", quote(name));
            return Err(error(start, text));
        }
    }
    Ok(())
}

fn describe(e: &crate::ParseCpuSetError) -> String {
    match e.found {
        Some(c) => format!("expected {}, found {c:?}", e.expected),
        None => format!("expected {}", e.expected),
    }
}
