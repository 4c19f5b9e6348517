//! Being told that the CPUs or the quota of this process's cgroup changed.
//!
//! One inotify descriptor on the files through which somebody changes them: `cpuset.cpus`, `cpuset.cpus.partition` and
//! `cpu.max` (cgroup v2), `cpuset.cpus`, `cpu.cfs_quota_us` and `cpu.cfs_period_us` (v1), of the own cgroup and of all those
//! above that are visible, because a parent's limits reach down. The kernel reports *writes* to cgroup files, not changes of
//! what they say: nothing is reported for `cpuset.cpus.effective`, which is never written (it is watched all the same, in
//! case a kernel does). Likewise unreported: a CPU taken offline, this process being moved to another cgroup, `taskset` from
//! outside, and what happens above the root of a container's cgroup namespace.
//!
//! So an event means "read again now", and silence means nothing: the runtime reads again now and then anyway (only while it
//! has work), and everything works, just later, if there is no watch at all.
//!
//! Costs one descriptor and one of the user's inotify instances (`fs.inotify.max_user_instances`, usually 128), and nothing
//! while nothing changes.

use std::fmt;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify;
use rustix::io::Errno;

use super::{Subject, SysError};

/// Why there is no watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchError {
    /// The cgroup files could not be found: what was looked for, and what was in the way.
    NotFound(String),
    /// inotify was refused: a limit (`EMFILE`, `ENOSPC`) or a filter.
    Refused(SysError),
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(why) => f.write_str(why),
            Self::Refused(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for WatchError {}

/// What has happened since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Something was written (or events were lost, which is taken for it): read the files again.
    pub(crate) changed: bool,
    /// A watched file is gone, as its cgroup was removed: make a new watch.
    pub(crate) stale: bool,
}

/// The watch. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct CgroupWatch {
    fd: OwnedFd,
    watched: Vec<PathBuf>,
}

impl CgroupWatch {
    /// Watches what concerns this process. Some 100 us.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub(crate) fn own() -> Result<Self, WatchError> {
        let files = files_of_process(Path::new("/proc"))?;
        Self::on(files)
    }

    /// Watches those of `files` that can be watched.
    ///
    /// # Errors
    /// inotify refuses, or none of the files can be watched.
    pub(crate) fn on(files: impl IntoIterator<Item = PathBuf>) -> Result<Self, WatchError> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map_err(|e| WatchError::Refused(SysError::new("inotify_init1", Subject::None, e)))?;
        let flags = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::DELETE_SELF
            | inotify::WatchFlags::MOVE_SELF;
        let (mut watched, mut failed) = (Vec::new(), None);
        for file in files {
            match inotify::add_watch(&fd, &file, flags) {
                Ok(_) => watched.push(file),
                Err(e) => failed = Some(SysError::new("inotify_add_watch", file_subject(&file), e)),
            }
        }
        match failed {
            Some(e) if watched.is_empty() => Err(WatchError::Refused(e)),
            None if watched.is_empty() => {
                Err(WatchError::NotFound("no cgroup file to watch".into()))
            }
            _ => Ok(Self { fd, watched }),
        }
    }

    /// The files in view.
    pub(crate) fn watched(&self) -> &[PathBuf] {
        &self.watched
    }

    /// Takes all events that have arrived and says what they come to. Does not block. One system call if there are none.
    ///
    /// # Errors
    /// None is known; the watch is of no use then.
    pub(crate) fn drain(&self) -> Result<Changes, SysError> {
        // Events for watched files carry no name: 16 bytes each.
        let mut buffer = [MaybeUninit::<u8>::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.fd, &mut buffer);
        let mut changes = Changes::default();
        let gone = inotify::ReadFlags::IGNORED
            | inotify::ReadFlags::DELETE_SELF
            | inotify::ReadFlags::MOVE_SELF;
        loop {
            match events.next() {
                Ok(event) => {
                    if event.events().intersects(gone) {
                        changes.stale = true;
                    }
                    // What a removed cgroup allowed is no longer what holds, either.
                    changes.changed = true;
                }
                Err(Errno::AGAIN) => return Ok(changes),
                Err(Errno::INTR) => {}
                Err(e) => return Err(SysError::new("read of inotify", Subject::None, e)),
            }
        }
    }
}

impl AsFd for CgroupWatch {
    /// Readable when [`drain`](CgroupWatch::drain) has something to say: for `poll`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn file_subject(path: &Path) -> Subject {
    Subject::File(path.display().to_string())
}

/// Names of the files by hierarchy.
const V2_FILES: [&str; 4] = [
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.cpus.partition",
    "cpu.max",
];
const V1_CPUSET_FILES: [&str; 2] = ["cpuset.cpus", "cpuset.effective_cpus"];
const V1_CPU_FILES: [&str; 2] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"];

/// The files that exist, nearest cgroup first.
pub(crate) fn files_of_process(proc: &Path) -> Result<Vec<PathBuf>, WatchError> {
    let read = |name: &str| {
        let path = proc.join("self").join(name);
        fs::read_to_string(&path)
            .map_err(|e| WatchError::Refused(SysError::from_io("read", file_subject(&path), &e)))
    };
    let (mounts, groups) = (read("mountinfo")?, read("cgroup")?);
    let mut files = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let names: &[&[&str]] = match mount.kind.as_str() {
            "cgroup2" => &[&V2_FILES],
            _ => &[
                if mount.has("cpuset") {
                    &V1_CPUSET_FILES
                } else {
                    &[]
                },
                if mount.has("cpu") { &V1_CPU_FILES } else { &[] },
            ],
        };
        let Some(path) = groups.lines().find_map(|line| mount.path_in(line)) else {
            continue;
        };
        for dir in mount.dirs_up_from(path) {
            let there = names
                .iter()
                .copied()
                .flatten()
                .map(|name| dir.join(name))
                .filter(|f| f.exists());
            files.extend(there.filter(|f| !files.contains(f)).collect::<Vec<_>>());
        }
    }
    if files.is_empty() {
        let proc = proc.display();
        return Err(WatchError::NotFound(format!(
            "no cpuset or cpu limit files in the cgroups of {proc}/self/cgroup (are the cgroup hierarchies mounted?)"
        )));
    }
    Ok(files)
}

/// A mounted cgroup hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// `cgroup` or `cgroup2`.
    kind: String,
    /// The cgroup that the mount shows as its root.
    root: String,
    /// Where.
    point: PathBuf,
    /// Mount options, controllers of v1 among them.
    options: String,
}

impl Mount {
    /// A line of `mountinfo`: `ID PARENT DEV ROOT POINT OPTIONS [TAGS..] - KIND SOURCE OPTIONS`.
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (unescape(left.next()?), unescape(left.next()?));
        let mut right = right.split(' ');
        let kind = right
            .next()
            .filter(|k| matches!(*k, "cgroup" | "cgroup2"))?
            .to_owned();
        let options = right.nth(1).unwrap_or("").to_owned();
        Some(Self {
            kind,
            root,
            point: point.into(),
            options,
        })
    }

    fn has(&self, controller: &str) -> bool {
        self.kind == "cgroup" && self.options.split(',').any(|o| o == controller)
    }

    /// The path in a line of `/proc/self/cgroup` (`ID:CONTROLLERS:PATH`), if the line is about this hierarchy.
    fn path_in<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match self.kind.as_str() {
            "cgroup2" => id == "0" && controllers.is_empty(),
            _ => controllers.split(',').any(|c| !c.is_empty() && self.has(c)),
        };
        ours.then_some(path)
    }

    /// The directory of the cgroup and those above it, within the mount. If the path leads out of what is mounted (a cgroup
    /// namespace seen from inside, a bind mount of another group), only the mount's own root.
    fn dirs_up_from(&self, path: &str) -> Vec<PathBuf> {
        let inner = Path::new(path)
            .strip_prefix(&self.root)
            .ok()
            .filter(|p| !p.starts_with(".."));
        let inner = inner.unwrap_or(Path::new(""));
        inner.ancestors().map(|p| self.point.join(p)).collect()
    }
}

/// `mountinfo` writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .filter(|d| first == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match digits
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok())
        {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
