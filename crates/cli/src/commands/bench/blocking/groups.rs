//! Cgroups made for the purpose, with CPU time of their own.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a group imposes on its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// They run when nobody outside wants the CPU.
    Idle,
    /// Half a CPU.
    Quota,
}

/// This process lies in a group of its own until this is dropped.
pub(super) struct Confined {
    home: PathBuf,
    dir: PathBuf,
}

impl Confined {
    pub(super) fn by(rule: Rule) -> anyhow::Result<Confined> {
        let settings: &[(&str, &str)] = match rule {
            Rule::Idle => &[("cpu.idle", "1")],
            // One of the two forms; the other file does not exist.
            Rule::Quota => &[("cpu.max", "50000 100000"), ("cpu.cfs_quota_us", "50000")],
        };
        let dir = make("own", settings)?;
        let home = dir.parent().context("a group has a parent")?.to_owned();
        let confined = Confined { home, dir };
        move_here(&confined.dir)?;
        Ok(confined)
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        if let Err(e) = move_here(&self.home) {
            eprintln!("cmwq: this process stays in {}: {e:#}", self.dir.display());
        }
        remove(Some(&self.dir));
    }
}

fn move_here(dir: &Path) -> anyhow::Result<()> {
    let file = dir.join("cgroup.procs");
    std::fs::write(&file, std::process::id().to_string())
        .with_context(|| format!("moving this process: {}", file.display()))
}

/// Removes a group whose processes have left.
pub(super) fn remove(dir: Option<&Path>) {
    let Some(dir) = dir else { return };
    // The kernel lets go of a dead process a moment after it was waited for.
    for _ in 0..50 {
        if std::fs::remove_dir(dir).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    eprintln!("cmwq: {} could not be removed", dir.display());
}

/// A cgroup inside this process's own, with a scheduling group of its own. Of `settings`, files and what is written to them, those
/// that the kernel does not have are left out; at least one must be there if any is given.
pub(super) fn make(name: &str, settings: &[(&str, &str)]) -> anyhow::Result<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|c| c == "cpu") {
            continue;
        }
        let mount = mounts.lines().find_map(|m| {
            let f: Vec<&str> = m.split(' ').collect();
            let fits = match f.get(2) {
                Some(&"cgroup2") => unified,
                Some(&"cgroup") => !unified && f.get(3)?.split(',').any(|o| o == "cpu"),
                _ => false,
            };
            fits.then(|| PathBuf::from(f[1]))
        });
        let Some(mount) = mount else { continue };
        let parent = mount.join(path.trim_start_matches('/'));
        if unified {
            let on = std::fs::read_to_string(parent.join("cgroup.subtree_control"));
            if !on.is_ok_and(|c| c.split_whitespace().any(|c| c == "cpu")) {
                continue;
            }
        }
        let dir = parent.join(format!("cmwq-bench-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        return match apply(&dir, settings) {
            Ok(()) => Ok(dir),
            Err(e) => {
                remove(Some(&dir));
                Err(e)
            }
        };
    }
    bail!("no cgroup hierarchy here gives a new group CPU time of its own")
}

fn apply(dir: &Path, settings: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut done = 0;
    for (file, value) in settings {
        let file = dir.join(file);
        if file.exists() {
            std::fs::write(&file, value)
                .with_context(|| format!("writing {value} to {}", file.display()))?;
            done += 1;
        }
    }
    if done == 0
        && let Some((file, _)) = settings.first()
    {
        bail!("the kernel has no {file}");
    }
    Ok(())
}
