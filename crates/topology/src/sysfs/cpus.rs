//! The folders `cpuN`: topology, caches, capacity.

use super::files::shorten;
use super::{Files, Found};
use crate::CpuSet;
use crate::machine::CacheKind;
use crate::raw::{CacheRef, RawCache, RawCpu, RawMachine, SetId};
use std::fmt::Write;

const DIR: &str = "sys/devices/system/cpu";

/// More caches than this a CPU are not read. Machines have four or five.
const MAX_CACHES: usize = 32;

pub(super) fn folders(files: &mut Files) -> CpuSet {
    files
        .numbered(DIR, "cpu", CpuSet::MAX_CPUS)
        .into_iter()
        .collect()
}

/// Does the CPU's own `online` file not say 0? CPUs that cannot go offline have none.
pub(super) fn says_online(files: &mut Files, cpu: usize) -> bool {
    !matches!(
        files.number(&format!("{DIR}/cpu{cpu}/online")),
        Found::Good(0)
    )
}

/// Sharing files under their new and old names, as list and as mask. All CPUs of a machine have
/// the same ones, so the one that was there last is tried first.
struct Variants {
    /// File name, and is it a mask? The lists first, then their masks in the same order.
    names: &'static [(&'static str, bool)],
    last: usize,
}

const SMT: &[(&str, bool)] = &[
    ("core_cpus_list", false),
    ("thread_siblings_list", false),
    ("core_cpus", true),
    ("thread_siblings", true),
];
const PACKAGE: &[(&str, bool)] = &[
    ("package_cpus_list", false),
    ("core_siblings_list", false),
    ("package_cpus", true),
    ("core_siblings", true),
];
const DIE: &[(&str, bool)] = &[("die_cpus_list", false), ("die_cpus", true)];
const CLUSTER: &[(&str, bool)] = &[("cluster_cpus_list", false), ("cluster_cpus", true)];

impl Variants {
    fn new(names: &'static [(&'static str, bool)]) -> Self {
        Self { names, last: 0 }
    }

    fn read(
        &mut self,
        files: &mut Files,
        raw: &mut RawMachine,
        path: &mut Path,
    ) -> Option<(SetId, &'static str)> {
        let others = (0..self.names.len()).filter(|i| *i != self.last);
        for i in std::iter::once(self.last).chain(others) {
            let (name, is_mask) = self.names[i];
            if let Found::Good(id) = files.set(path.file(name), is_mask, &mut raw.sets) {
                self.last = i;
                let half = self.names.len() / 2;
                if i < half {
                    let mask = path.file(self.names[i + half].0);
                    files.check_mask(mask, id, &raw.online, &mut raw.sets);
                }
                return Some((id, name));
            }
        }
        None
    }
}

/// A folder's path with room for a file name, so that a path costs no allocation.
struct Path {
    text: String,
    folder: usize,
}

impl Path {
    fn new() -> Self {
        Self {
            text: String::new(),
            folder: 0,
        }
    }

    fn folder(&mut self, args: std::fmt::Arguments<'_>) {
        self.text.clear();
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(args);
        self.folder = self.text.len();
    }

    fn file(&mut self, name: &str) -> &str {
        self.text.truncate(self.folder);
        self.text.push_str(name);
        &self.text
    }
}

pub(super) fn read(files: &mut Files, raw: &mut RawMachine, folders: &CpuSet) {
    let mut smt = Variants::new(SMT);
    let mut package = Variants::new(PACKAGE);
    let mut die = Variants::new(DIE);
    let mut cluster = Variants::new(CLUSTER);
    let mut path = Path::new();
    let mut bare = CpuSet::new();
    for cpu in &(folders & &raw.possible) {
        let mut found = RawCpu::default();
        path.folder(format_args!("{DIR}/cpu{cpu}/topology/"));
        if let Some((id, name)) = smt.read(files, raw, &mut path) {
            (found.smt, found.smt_file) = (Some(id), name);
        }
        if let Some((id, name)) = package.read(files, raw, &mut path) {
            (found.package, found.package_file) = (Some(id), name);
        }
        found.package_id = files.number(path.file("physical_package_id")).good();
        found.core_id = files.number(path.file("core_id")).good();
        if found.smt.is_some() || found.package.is_some() || found.core_id.is_some() {
            found.die = die.read(files, raw, &mut path).map(|f| f.0);
            found.die_id = files.number(path.file("die_id")).good();
            found.cluster = cluster.read(files, raw, &mut path).map(|f| f.0);
            found.cluster_id = files.number(path.file("cluster_id")).good();
        } else if raw.online.contains(cpu) {
            bare.insert(cpu);
        }
        path.folder(format_args!("{DIR}/cpu{cpu}/"));
        found.capacity = capacity(files, path.file("cpu_capacity"));
        found.caches = caches(files, raw, cpu, &mut path);
        *raw.cpu(cpu) = found;
    }
    if let Some(first) = bare.first() {
        let text = format!("nothing about the cores of CPUs {bare}: each is taken as a core");
        files.warn(&format!("{DIR}/cpu{first}/topology"), text);
    }
}

fn capacity(files: &mut Files, file: &str) -> Option<u32> {
    let number = files.number(file).good()?;
    let capacity = u32::try_from(number).ok().filter(|c| *c > 0);
    if capacity.is_none() {
        files.warn(file, format!("expected a capacity above 0, found {number}"));
    }
    capacity
}

fn caches(files: &mut Files, raw: &mut RawMachine, cpu: usize, path: &mut Path) -> Vec<CacheRef> {
    path.folder(format_args!("{DIR}/cpu{cpu}/cache"));
    let mut indices = files.numbered(path.file(""), "index", usize::from(u16::MAX));
    if indices.len() > MAX_CACHES {
        files.warn(
            path.file(""),
            format!("more than {MAX_CACHES} caches: the rest is left out"),
        );
        indices.truncate(MAX_CACHES);
    }
    let mut found = Vec::with_capacity(indices.len());
    for index in indices {
        path.folder(format_args!("{DIR}/cpu{cpu}/cache/index{index}/"));
        if let Some((cache, from_mask)) = cache(files, raw, path) {
            found.push(CacheRef {
                index: index as u16,
                cache: raw.cache(cache),
                from_mask,
            });
        }
    }
    found
}

fn cache(files: &mut Files, raw: &mut RawMachine, path: &mut Path) -> Option<(RawCache, bool)> {
    let level = match files.number(path.file("level")) {
        Found::Good(level @ 1..=255) => level as u8,
        Found::Good(level) => {
            let text = format!("expected a level from 1 to 255, found {level}: cache left out");
            files.warn(path.file("level"), text);
            return None;
        }
        Found::Missing => {
            files.warn(path.file("level"), "missing: cache left out");
            return None;
        }
        Found::Bad => return None,
    };
    let kind = match files.text(path.file("type")) {
        Found::Good("Data") => CacheKind::Data,
        Found::Good("Instruction") => CacheKind::Instruction,
        Found::Good("Unified") => CacheKind::Unified,
        Found::Good(other) => {
            let text = format!("unknown type {:?}: taken as Unified", shorten(other));
            files.warn(path.file("type"), text);
            CacheKind::Unified
        }
        Found::Missing => {
            files.warn(path.file("type"), "missing: taken as Unified");
            CacheKind::Unified
        }
        Found::Bad => CacheKind::Unified,
    };
    let id = files.number(path.file("id")).good();
    let size = match files.text(path.file("size")) {
        Found::Good(text) => parse_size(text).ok_or_else(|| shorten(text)),
        Found::Missing | Found::Bad => Ok(0),
    };
    let size = size.unwrap_or_else(|text| {
        let text = format!("expected a size such as 512K, found {text:?}");
        files.warn(path.file("size"), text);
        0
    });
    let (cpus, from_mask) = match files.set(path.file("shared_cpu_list"), false, &mut raw.sets) {
        Found::Good(id) => {
            let mask = path.file("shared_cpu_map");
            files.check_mask(mask, id, &raw.online, &mut raw.sets);
            (Some(id), false)
        }
        Found::Missing | Found::Bad => {
            let mask = files.set(path.file("shared_cpu_map"), true, &mut raw.sets);
            (mask.good(), true)
        }
    };
    let cache = RawCache {
        level,
        kind,
        id: id.and_then(|id| u32::try_from(id).ok()),
        size: (size > 0).then_some(size),
        cpus,
    };
    Some((cache, from_mask))
}

/// Bytes after a text such as `48K`, `8192K`, `2M`, `64`.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
