use super::*;
use std::fs;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, file: &str, text: &str) -> &Self {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn read(&self) -> ProcessCpus {
        ProcessCpus::read(self.0.path())
    }
}

fn list(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn an_empty_tree_limits_nothing() {
    let found = Tree::new().read();
    assert_eq!(found, ProcessCpus::default());
    let machine = Topology::synthetic("core:4").unwrap();
    assert_eq!(found.usable(&machine), list("0-3"));
    assert_eq!(found.parallelism(&machine), 4);
}

#[test]
fn version_2_takes_the_tightest_quota_on_the_way_up() {
    let tree = Tree::new();
    tree.put(
        "proc/self/status",
        "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n",
    )
    .put("proc/self/cgroup", "0::/a/b/c\n")
    .put("proc/self/mountinfo", V2)
    .put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n")
    .put("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n")
    .put("sys/fs/cgroup/a/cpu.max", "300000 50000\n")
    .put("sys/fs/cgroup/a/b/cpuset.cpus.effective", "1-2,5\n")
    .put("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n");
    let found = tree.read();
    assert_eq!(found.warnings, []);
    assert_eq!(found.affinity, Some(list("0-3")));
    assert_eq!(
        found.cpuset,
        Some(list("1-2,5")),
        "the nearest group that has one"
    );
    assert!(
        found
            .cpuset_group
            .as_ref()
            .unwrap()
            .ends_with("sys/fs/cgroup/a/b")
    );
    let quota = found.quota.as_ref().unwrap();
    assert_eq!((quota.quota_us, quota.period_us), (150_000, 100_000));
    assert!(quota.group.ends_with("a/b"));
    assert_eq!((quota.cpus(), quota.cpus_rounded_up()), (1.5, 2));
    let machine = Topology::synthetic("core:8").unwrap();
    assert_eq!(found.usable(&machine), list("1-2"));
    assert_eq!(found.parallelism(&machine), 2);
}

#[test]
fn a_smaller_share_of_a_longer_period_is_tighter() {
    let tree = Tree::new();
    tree.put("proc/self/cgroup", "0::/a/b\n")
        .put("proc/self/mountinfo", V2)
        .put("sys/fs/cgroup/a/b/cpu.max", "20000 10000")
        .put("sys/fs/cgroup/a/cpu.max", "900000 1000000");
    let quota = tree.read().quota.unwrap();
    assert_eq!(quota.period_us, 1_000_000);
    assert_eq!(quota.cpus_rounded_up(), 1);
}

#[test]
fn version_1_hierarchies_are_each_followed() {
    let tree = Tree::new();
    tree.put(
        "proc/self/cgroup",
        "4:cpuset:/job\n3:cpu,cpuacct:/job/step\n1:name=systemd:/x\n",
    )
    .put(
        "proc/self/mountinfo",
        "30 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 25 0:28 / /sys/fs/cgroup/cpu\\040set rw - cgroup cgroup rw,cpuset\n",
    )
    .put("sys/fs/cgroup/cpu set/job/cpuset.cpus", "2-3\n")
    .put(
        "sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us",
        "-1\n",
    )
    .put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n")
    .put(
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us",
        "100000\n",
    );
    let found = tree.read();
    assert_eq!(found.warnings, []);
    assert_eq!(found.cpuset, Some(list("2-3")));
    assert_eq!(found.quota.as_ref().unwrap().cpus_rounded_up(), 3);
}

#[test]
fn old_cpusets_without_control_groups_are_found() {
    let tree = Tree::new();
    tree.put("proc/self/cpuset", "/job\n")
        .put(
            "proc/mounts",
            "cpuset /dev/cpuset cgroup rw,cpuset,noprefix 0 0\n",
        )
        .put("dev/cpuset/job/cpus", "1\n");
    assert_eq!(tree.read().cpuset, Some(list("1")));
}

#[test]
fn a_container_sees_its_group_below_the_mounts_top() {
    let tree = Tree::new();
    tree.put("proc/self/cgroup", "0::/pods/one/app\n")
        .put(
            "proc/self/mountinfo",
            "29 23 0:26 /pods/one /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        )
        .put("sys/fs/cgroup/app/cpu.max", "100000 100000\n");
    let found = tree.read();
    assert_eq!(found.warnings, []);
    assert_eq!(found.quota.unwrap().cpus_rounded_up(), 1);
}

#[test]
fn a_group_outside_of_the_mount_counts_as_the_mount_point() {
    for path in ["/elsewhere", "/../../x", "not/absolute"] {
        let tree = Tree::new();
        tree.put("proc/self/cgroup", &format!("0::{path}\n"))
            .put(
                "proc/self/mountinfo",
                "29 23 0:26 /pods /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            )
            .put("sys/fs/cgroup/cpu.max", "100000 100000\n")
            .put("x/cpu.max", "1 100000\n");
        let found = tree.read();
        assert_eq!(found.quota.unwrap().quota_us, 100_000, "{path}");
        assert!(found.warnings[0].text.contains("not below /pods"), "{path}");
    }
    let tree = Tree::new();
    tree.put("proc/self/cgroup", "0::/../../x\n")
        .put("proc/self/mountinfo", V2)
        .put("x/cpu.max", "1 100000\n");
    assert_eq!(tree.read().quota, None, "never outside of the root");
}

#[test]
fn nonsense_is_no_limit_and_is_named() {
    let tree = Tree::new();
    tree.put("proc/self/status", "Cpus_allowed_list:\t0-\n")
        .put("proc/self/cgroup", "0::/a\n::\nx\n")
        .put("proc/self/mountinfo", &format!("nonsense\n - \n{V2}"))
        .put("sys/fs/cgroup/a/cpu.max", "0 100000\n")
        .put("sys/fs/cgroup/a/cpuset.cpus.effective", "zero\n")
        .put("sys/fs/cgroup/cpu.max", "many\n");
    let found = tree.read();
    assert_eq!(
        (&found.affinity, &found.cpuset, &found.quota),
        (&None, &None, &None)
    );
    for (file, text) in [
        ("self/status", "Cpus_allowed_list"),
        ("a/cpu.max", "above 0"),
        ("a/cpuset.cpus.effective", "a CPU number"),
        ("cgroup/cpu.max", "expected 'max'"),
    ] {
        let named = |w: &Warning| w.path.ends_with(file) && w.text.contains(text);
        assert!(
            found.warnings.iter().any(named),
            "{file} in {:?}",
            found.warnings
        );
    }
}

#[test]
fn a_restriction_that_leaves_nothing_is_passed_over() {
    let machine = Topology::synthetic("core:4").unwrap();
    let process = ProcessCpus {
        affinity: Some(list("2-9")),
        cpuset: Some(list("8-9")),
        ..ProcessCpus::default()
    };
    assert_eq!(process.usable(&machine), list("2-3"));
}

#[test]
fn a_huge_quota_does_not_overflow() {
    let quota = |quota_us, period_us| Quota {
        quota_us,
        period_us,
        group: PathBuf::new(),
    };
    assert!(quota(1, 2).is_tighter(&quota(u64::MAX, u64::MAX)));
    assert_eq!(quota(u64::MAX, 1).cpus_rounded_up(), u64::MAX as usize);
    assert_eq!(quota(1, 1000).cpus_rounded_up(), 1);
}

#[test]
fn this_process_has_an_affinity() {
    let found = ProcessCpus::current();
    if !Path::new("/proc/self/status").exists() {
        println!("skipped: no /proc");
        return;
    }
    assert!(found.affinity.is_some_and(|set| !set.is_empty()));
}
