//! Made-up trees for the finding of files, temporary files and real cgroups for the events.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

fn readable(watch: &CgroupWatch, within: Duration) -> bool {
    let mut fds = [PollFd::new(watch, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: within.subsec_nanos().into(),
    };
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[test]
fn a_write_is_an_event_and_draining_forgets_it() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = ["a", "b"].map(|n| dir.path().join(n)).into();
    fs::write(&files[0], "0-3").unwrap();
    // One of two is missing: the other is watched.
    let watch = CgroupWatch::on(files.clone()).unwrap();
    assert_eq!(watch.watched(), &files[..1]);
    assert_eq!(watch.drain().unwrap(), Changes::default());
    assert!(!readable(&watch, Duration::ZERO));
    for _ in 0..100 {
        fs::write(&files[0], "0-1").unwrap();
    }
    assert!(readable(&watch, Duration::from_secs(10)));
    assert_eq!(
        watch.drain().unwrap(),
        Changes {
            changed: true,
            stale: false
        }
    );
    assert_eq!(watch.drain().unwrap(), Changes::default());
    fs::remove_file(&files[0]).unwrap();
    assert!(readable(&watch, Duration::from_secs(10)));
    assert_eq!(
        watch.drain().unwrap(),
        Changes {
            changed: true,
            stale: true
        }
    );
}

#[test]
fn nothing_to_watch_is_an_error_that_says_what() {
    let e = CgroupWatch::on([PathBuf::from("/nonexistent/cpu.max")]).unwrap_err();
    assert!(e.to_string().contains("/nonexistent/cpu.max"), "{e}");
    assert!(matches!(CgroupWatch::on([]), Err(WatchError::NotFound(_))));
    let empty = tempfile::tempdir().unwrap();
    let e = files_of_process(empty.path()).unwrap_err();
    assert!(e.to_string().contains("mountinfo"), "{e}");
}

/// A tree with `/proc/self/{mountinfo,cgroup}` and cgroup files; returns what is found, relative to the tree.
fn found(mountinfo: &str, cgroup: &str, files: &[&str]) -> Result<Vec<String>, WatchError> {
    let tree = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
    let root = tree.path().to_str().unwrap().to_owned();
    fs::create_dir_all(tree.path().join("proc/self")).unwrap();
    fs::write(
        tree.path().join("proc/self/mountinfo"),
        mountinfo.replace("ROOT", &root.replace(' ', "\\040")),
    )
    .unwrap();
    fs::write(tree.path().join("proc/self/cgroup"), cgroup).unwrap();
    for file in files {
        let path = tree.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let found = files_of_process(&tree.path().join("proc"))?;
    Ok(found
        .iter()
        .map(|p| {
            p.strip_prefix(tree.path())
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect())
}

#[test]
fn version_2_own_group_first_then_upwards() {
    let files = found(
        "24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 / ROOT/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        "0::/app.slice/x.service\n",
        &[
            "cg/app.slice/x.service/cpu.max",
            "cg/app.slice/cpu.max",
            "cg/app.slice/cpuset.cpus",
            "cg/other/cpu.max",
        ],
    );
    assert_eq!(
        files.unwrap(),
        [
            "cg/app.slice/x.service/cpu.max",
            "cg/app.slice/cpuset.cpus",
            "cg/app.slice/cpu.max"
        ]
    );
}

#[test]
fn version_1_takes_the_right_hierarchies() {
    let files = found(
        "32 31 0:29 / ROOT/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
         34 31 0:31 / ROOT/cpuset rw - cgroup cgroup rw,cpuset\n\
         35 31 0:32 / ROOT/memory rw - cgroup cgroup rw,memory\n",
        "3:cpuset:/jobs/7\n2:cpu,cpuacct:/\n1:memory:/m\n0::/\n",
        &[
            "cpu,cpuacct/cpu.cfs_quota_us",
            "cpu,cpuacct/cpuset.cpus",
            "cpuset/jobs/7/cpuset.cpus",
            "cpuset/jobs/7/cpuset.effective_cpus",
            "cpuset/cpuset.cpus",
            "memory/m/cpuset.cpus",
        ],
    );
    assert_eq!(
        files.unwrap(),
        [
            "cpu,cpuacct/cpu.cfs_quota_us",
            "cpuset/jobs/7/cpuset.cpus",
            "cpuset/jobs/7/cpuset.effective_cpus",
            "cpuset/cpuset.cpus"
        ]
    );
}

/// The host's view of a container's mount, and a path outside of what is mounted.
#[test]
fn containers_see_their_own_root() {
    let mount = |root: &str| format!("30 24 0:26 {root} ROOT/cg ro - cgroup2 cgroup rw\n");
    let files = ["cg/cpu.max", "cg/sub/cpu.max"];
    let all = ["cg/sub/cpu.max", "cg/cpu.max"];
    assert_eq!(
        found(&mount("/docker/77"), "0::/docker/77/sub\n", &files).unwrap(),
        all
    );
    assert_eq!(
        found(&mount("/docker/77"), "0::/elsewhere\n", &files).unwrap(),
        ["cg/cpu.max"]
    );
    assert_eq!(
        found(&mount("/"), "0::/../../other\n", &files).unwrap(),
        ["cg/cpu.max"]
    );
    let e = found(&mount("/"), "0::/\n", &[]).unwrap_err();
    assert!(e.to_string().contains("self/cgroup"), "{e}");
    for garbage in ["", "x", " - ", "1 2 3 - cgroup2", "::::"] {
        assert!(found(garbage, garbage, &files).is_err());
    }
}

#[test]
fn octal_escapes() {
    assert_eq!(unescape("a\\040b\\134c\\011"), "a b\\c\t");
    assert_eq!(unescape("\\04"), "\\04");
    assert_eq!(unescape("\\999\\777x"), "\\999\\777x");
}

#[test]
fn this_process_can_be_watched_or_says_why_not() {
    match CgroupWatch::own() {
        Ok(watch) => {
            println!("{:?}", watch.watched());
            assert!(watch.watched().iter().all(|f| f.exists()));
            watch.drain().unwrap();
        }
        Err(e) => println!("skipped: {e}"),
    }
}

/// Does the kernel really report a write to a cgroup file? Makes a cgroup without members and takes it away again.
#[test]
fn the_kernel_reports_a_write_to_a_real_cgroup() {
    struct Group(PathBuf);
    impl Drop for Group {
        fn drop(&mut self) {
            if let Err(e) = fs::remove_dir(&self.0) {
                println!("left behind: {}: {e}", self.0.display());
            }
        }
    }
    let own = match files_of_process(Path::new("/proc")) {
        Ok(files) => files,
        Err(e) => return println!("skipped: {e}"),
    };
    for (file, value) in [
        ("cpuset.cpus", "0"),
        ("cpu.max", "max 100000"),
        ("cpu.cfs_quota_us", "-1"),
    ] {
        let parent = own
            .iter()
            .find(|f| f.ends_with(file))
            .and_then(|f| f.parent());
        let Some(dir) = parent.map(|p| p.join(format!("cmwq-test-{}-{file}", std::process::id())))
        else {
            println!("skipped: no {file}");
            continue;
        };
        if let Err(e) = fs::create_dir(&dir) {
            println!("skipped: {}: {e}", dir.display());
            continue;
        }
        let group = Group(dir);
        let path = group.0.join(file);
        if !path.exists() {
            println!("skipped: no {} in a new cgroup", path.display());
            continue;
        }
        let watch = CgroupWatch::on([path.clone()]).unwrap();
        if let Err(e) = fs::write(&path, value) {
            println!("skipped: {}: {e}", path.display());
            continue;
        }
        assert!(
            readable(&watch, Duration::from_secs(10)),
            "no event for {}",
            path.display()
        );
        assert_eq!(
            watch.drain().unwrap(),
            Changes {
                changed: true,
                stale: false
            },
            "{file}"
        );
        println!("{file}: reported");
    }
}
