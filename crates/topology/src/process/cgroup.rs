//! Control groups, version 1 and 2: the cpuset, and the tightest CPU quota on the way up.

use super::{ProcessCpus, Quota};
use crate::CpuSet;
use crate::sysfs::{Files, Found};
use std::path::{Path, PathBuf};

/// Deeper groups than this are not followed upwards.
const MAX_DEPTH: usize = 64;

/// Of a mount table no more is read. Hosts with thousands of containers have long ones; the
/// control groups are mounted early.
const MAX_MOUNTS: usize = 4 << 20;

/// A mounted hierarchy.
#[derive(Debug)]
struct Mount {
    /// Where it is mounted, without the leading slash.
    point: String,
    /// Which group of the hierarchy is visible there.
    top: String,
    /// Version 1: the controllers. Empty for version 2.
    controllers: Vec<String>,
    version2: bool,
    /// Version 1 cpuset mounted without the names' prefix.
    noprefix: bool,
}

/// The process's place in a hierarchy.
struct Place {
    /// The mount point, relative to the root.
    point: PathBuf,
    /// Below it.
    group: PathBuf,
}

impl Place {
    /// The group's folder and those above it, up to the mount point.
    fn upwards(&self) -> impl Iterator<Item = PathBuf> {
        let groups = self.group.ancestors().take(MAX_DEPTH);
        groups.map(|group| self.point.join(group))
    }
}

pub(super) fn read(files: &mut Files, result: &mut ProcessCpus) {
    let mounts = mounts(files);
    let memberships = memberships(files);
    for mount in &mounts {
        if mount.version2 {
            if let Some(place) = place(files, mount, &memberships, "") {
                version2(files, &place, result);
            }
            continue;
        }
        let has = |controller: &str| mount.controllers.iter().any(|c| c == controller);
        if has("cpuset")
            && let Some(place) = place(files, mount, &memberships, "cpuset")
        {
            cpuset1(files, &place, mount.noprefix, result);
        }
        if has("cpu")
            && let Some(place) = place(files, mount, &memberships, "cpu")
        {
            quota1(files, &place, result);
        }
    }
}

/// `(controllers, path)`; the controllers are empty for version 2.
fn memberships(files: &mut Files) -> Vec<(String, String)> {
    let text = files.text("proc/self/cgroup");
    if let Some(text) = text.good() {
        return text
            .lines()
            .filter_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                Some((controllers.to_owned(), path.to_owned()))
            })
            .collect();
    }
    // Kernels without control groups may still have cpusets.
    let path = files.text("proc/self/cpuset").good().map(str::to_owned);
    path.map(|path| vec![("cpuset".to_owned(), path)])
        .unwrap_or_default()
}

fn mounts(files: &mut Files) -> Vec<Mount> {
    if let Some(text) = files.head("proc/self/mountinfo", MAX_MOUNTS).good() {
        return text.lines().filter_map(of_mountinfo).collect();
    }
    if let Some(text) = files.head("proc/mounts", MAX_MOUNTS).good() {
        return text.lines().filter_map(of_mounts).collect();
    }
    vec![Mount {
        point: "sys/fs/cgroup".to_owned(),
        top: "/".to_owned(),
        controllers: Vec::new(),
        version2: true,
        noprefix: false,
    }]
}

/// `36 35 98:0 /top /point rw,noatime shared:1 - cgroup2 cgroup2 rw`
fn of_mountinfo(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (top, point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
    mount(kind, point, top, options)
}

/// `cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0`
fn of_mounts(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ').skip(1);
    let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
    mount(kind, point, "/", options)
}

fn mount(kind: &str, point: &str, top: &str, options: &str) -> Option<Mount> {
    let options = || options.split(',');
    let controllers: Vec<String> = match kind {
        "cgroup2" => Vec::new(),
        "cgroup" => options().map(str::to_owned).collect(),
        "cpuset" => vec!["cpuset".to_owned()],
        _ => return None,
    };
    Some(Mount {
        point: unescape(point).trim_start_matches('/').to_owned(),
        top: unescape(top),
        controllers,
        version2: kind == "cgroup2",
        noprefix: kind == "cpuset" || options().any(|o| o == "noprefix"),
    })
}

/// Mount tables write blanks and backslashes as `\040` and the like.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn place(
    files: &mut Files,
    mount: &Mount,
    memberships: &[(String, String)],
    controller: &str,
) -> Option<Place> {
    let (_, path) = memberships
        .iter()
        .find(|(controllers, _)| match controller {
            "" => controllers.is_empty(),
            _ => controllers.split(',').any(|c| c == controller),
        })?;
    let below = Path::new(path).strip_prefix(&mount.top);
    let normal = |path: &Path| {
        path.components()
            .all(|c| matches!(c, std::path::Component::Normal(_)))
    };
    let group = match below {
        Ok(below) if normal(below) => below.to_path_buf(),
        // Inside a container the group may be named as seen from outside, or lie outside of what
        // is mounted. The mount point is then the nearest that can be seen.
        _ => {
            let text = format!(
                "group {path} is not below {}: the limits of the mount point are taken",
                mount.top
            );
            files.warn(&mount.point, text);
            PathBuf::new()
        }
    };
    Some(Place {
        point: PathBuf::from(&mount.point),
        group,
    })
}

fn version2(files: &mut Files, place: &Place, result: &mut ProcessCpus) {
    for folder in place.upwards() {
        if result.cpuset.is_none() {
            let file = folder.join("cpuset.cpus.effective");
            take_cpuset(files, &file, result);
        }
        let file = folder.join("cpu.max");
        let Found::Good(text) = files.text(&file.to_string_lossy()) else {
            continue;
        };
        let mut fields = text.split_ascii_whitespace();
        let limit = match (fields.next(), fields.next()) {
            (Some("max"), _) => continue,
            (Some(quota), period) => (quota.parse(), period.unwrap_or("100000").parse()),
            (None, _) => (Ok(0), Ok(0)),
        };
        let (Ok(quota), Ok(period)) = limit else {
            let expected = "expected 'max' or microseconds, and a period: no limit taken";
            files.warn(&file.to_string_lossy(), expected);
            continue;
        };
        take_quota(files, &file, folder, quota, period, result);
    }
}

fn cpuset1(files: &mut Files, place: &Place, noprefix: bool, result: &mut ProcessCpus) {
    let names: &[&str] = match noprefix {
        true => &["effective_cpus", "cpus"],
        false => &["cpuset.effective_cpus", "cpuset.cpus"],
    };
    for folder in place.upwards() {
        for name in names {
            if result.cpuset.is_none() {
                take_cpuset(files, &folder.join(name), result);
            }
        }
    }
}

/// An empty cpuset says nothing: the one above counts.
fn take_cpuset(files: &mut Files, file: &Path, result: &mut ProcessCpus) {
    let set = files.cpu_list(&file.to_string_lossy());
    if let Some(set) = set.filter(|set: &CpuSet| !set.is_empty()) {
        result.cpuset = Some(set);
        result.cpuset_group = file.parent().map(|folder| files.root.join(folder));
    }
}

fn quota1(files: &mut Files, place: &Place, result: &mut ProcessCpus) {
    for folder in place.upwards() {
        let file = folder.join("cpu.cfs_quota_us");
        let quota = files.number(&file.to_string_lossy()).good();
        let Some(quota) = quota.and_then(|quota| u64::try_from(quota).ok()) else {
            // Missing, or -1: no limit.
            continue;
        };
        let period = folder.join("cpu.cfs_period_us");
        let period = files.number(&period.to_string_lossy()).good();
        let period = period.and_then(|p| u64::try_from(p).ok()).unwrap_or(0);
        take_quota(files, &file, folder, quota, period, result);
    }
}

fn take_quota(
    files: &mut Files,
    file: &Path,
    folder: PathBuf,
    quota_us: u64,
    period_us: u64,
    result: &mut ProcessCpus,
) {
    if quota_us == 0 || period_us == 0 {
        let text = "expected a quota and a period above 0: no limit taken";
        files.warn(&file.to_string_lossy(), text);
        return;
    }
    let found = Quota {
        quota_us,
        period_us,
        group: files.root.join(folder),
    };
    if result.quota.as_ref().is_none_or(|q| found.is_tighter(q)) {
        result.quota = Some(found);
    }
}
