//! Real changes of what the process may use, under load: cpuset, quota, affinity. Each in a child process of its own.

mod common;

use cmwq::{CpuSet, Runtime, Topology, Workqueue};
use common::{eventually, in_child, is_child};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Runs the test in a child, unless this is the child. False in the parent, whose part is over then.
fn child(test: &str) -> bool {
    if is_child() {
        return true;
    }
    let out = in_child(test);
    let text = String::from_utf8_lossy(&out.stdout);
    let said = |w: &str| text.lines().find(|l| l.starts_with(w)).map(str::to_owned);
    for line in [said("skipped:"), said("noticed")].into_iter().flatten() {
        println!("{line}");
    }
    assert!(
        out.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    false
}

fn usable_now() -> CpuSet {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    CpuSet::parse_list(line.trim()).unwrap()
}

fn two_cpus() -> bool {
    let ok = CpuSet::first_n(2).is_subset(&usable_now());
    if !ok {
        println!("skipped: CPUs 0 and 1 are not both usable here");
    }
    ok
}

/// A cgroup of our own in the version 1 hierarchy of a controller, with this process in it. Left and removed when dropped.
struct Group {
    dir: PathBuf,
    root: PathBuf,
}

impl Group {
    /// None, and says why, where that is not permitted or there is no such hierarchy.
    fn enter(
        controller: &str,
        prepare: impl FnOnce(&Path, &Path) -> std::io::Result<()>,
    ) -> Option<Group> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = mounts.lines().find_map(|l| {
            let (left, right) = l.split_once(" - ")?;
            let mut right = right.split(' ');
            let v1 = right.next() == Some("cgroup");
            let has = right.nth(1)?.split(',').any(|o| o == controller);
            (v1 && has).then(|| PathBuf::from(left.split(' ').nth(4).unwrap_or("/")))
        });
        let Some(root) = root else {
            println!("skipped: no cgroup v1 hierarchy with {controller} is mounted");
            return None;
        };
        let dir = root.join(format!("cmwq-test-{}", std::process::id()));
        let group = Group { dir, root };
        let made = std::fs::create_dir(&group.dir)
            .and_then(|()| prepare(&group.root, &group.dir))
            .and_then(|()| group.write("cgroup.procs", &std::process::id().to_string()));
        match made {
            Ok(()) => Some(group),
            Err(e) => {
                println!(
                    "skipped: no cgroup can be made under {}: {e}",
                    group.root.display()
                );
                None
            }
        }
    }

    fn cpuset(cpus: &str) -> Option<Group> {
        Group::enter("cpuset", |root, dir| {
            let mems = std::fs::read_to_string(root.join("cpuset.mems"))?;
            std::fs::write(dir.join("cpuset.mems"), mems.trim())?;
            std::fs::write(dir.join("cpuset.cpus"), cpus)
        })
    }

    fn write(&self, file: &str, value: &str) -> std::io::Result<()> {
        std::fs::write(self.dir.join(file), value)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(
            self.root.join("cgroup.procs"),
            std::process::id().to_string(),
        );
        let end = Instant::now() + Duration::from_secs(5);
        while self.dir.exists() && std::fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A runtime on the real CPUs, each said to have a cache of its own, that follows what happens to them.
fn following() -> Runtime {
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let n = CpuSet::parse_list(cpus.trim()).unwrap().last().unwrap() + 1;
    Runtime::builder()
        .topology(Topology::synthetic(&format!("l3:{n} core:1")).unwrap())
        .follow_changes(true)
        .build()
        .unwrap()
}

/// Items all the time, from a thread that goes where the system likes.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    issued: Arc<AtomicU64>,
    ran: Arc<AtomicU64>,
    /// CPUs on which items started since it was last cleared, as bits.
    seen: Arc<AtomicUsize>,
}

impl Load {
    fn on(wq: &Workqueue) -> Load {
        let load = Load {
            stop: Arc::default(),
            thread: None,
            issued: Arc::default(),
            ran: Arc::default(),
            seen: Arc::default(),
        };
        let (stop, issued, ran, seen) = (
            load.stop.clone(),
            load.issued.clone(),
            load.ran.clone(),
            load.seen.clone(),
        );
        let wq = wq.clone();
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                for _ in 0..50 {
                    let (ran, seen) = (ran.clone(), seen.clone());
                    issued.fetch_add(1, Ordering::SeqCst);
                    drop(wq.spawn(move || {
                        // SAFETY: no arguments.
                        let cpu = unsafe { libc::sched_getcpu() };
                        seen.fetch_or(1 << cpu.clamp(0, 63), Ordering::SeqCst);
                        let start = Instant::now();
                        while start.elapsed() < Duration::from_micros(20) {}
                        ran.fetch_add(1, Ordering::SeqCst);
                    }));
                }
                wq.flush().unwrap();
            }
        });
        Load {
            thread: Some(thread),
            ..load
        }
    }

    /// CPUs on which items start from now on, until `n` more have run.
    fn cpus_of_next(&self, n: u64) -> CpuSet {
        let before = self.ran.load(Ordering::SeqCst);
        eventually("items run on", || {
            self.ran.load(Ordering::SeqCst) > before + 50
        });
        self.seen.store(0, Ordering::SeqCst);
        eventually("items run on", || {
            self.ran.load(Ordering::SeqCst) > before + 50 + n
        });
        let bits = self.seen.load(Ordering::SeqCst);
        let mut set = CpuSet::new();
        (0..64).filter(|b| bits >> b & 1 == 1).for_each(|b| {
            set.insert(b);
        });
        set
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        assert_eq!(
            self.issued.load(Ordering::SeqCst),
            self.ran.load(Ordering::SeqCst),
            "no item is lost"
        );
    }
}

/// How long until the runtime says that these are its CPUs.
fn noticed(rt: &Runtime, cpus: &CpuSet, what: &str) -> Duration {
    let start = Instant::now();
    eventually(what, || rt.placement().usable == *cpus);
    start.elapsed()
}

#[test]
fn a_cpuset_that_shrinks_and_grows_is_followed_under_load() {
    if !child("a_cpuset_that_shrinks_and_grows_is_followed_under_load") || !two_cpus() {
        return;
    }
    let Some(group) = Group::cpuset("0-1") else {
        return;
    };
    let rt = following();
    let wq = rt.workqueue("t").build().unwrap();
    let strict = rt.workqueue("s").affinity_strict(true).build().unwrap();
    let percpu = rt.workqueue("p").per_cpu().build().unwrap();
    let load = Load::on(&wq);
    let strictly = Load::on(&strict);
    let both = CpuSet::first_n(2);
    assert_eq!(rt.placement().usable, both);
    load.cpus_of_next(200);
    percpu.try_spawn_on(1, || ()).unwrap().join().unwrap();
    let mut times = Vec::new();
    let followed = |n| eventually("all have followed", || rt.placement().changes == n);
    for round in 0..4 {
        let one = CpuSet::of(round % 2);
        group.write("cpuset.cpus", &one.to_string()).unwrap();
        times.push(noticed(&rt, &one, "the shrunk cpuset is noticed"));
        followed(2 * round as u64 + 1);
        assert_eq!(load.cpus_of_next(200), one);
        assert_eq!(strictly.cpus_of_next(200), one);
        // The queue of a CPU that is gone is still served.
        percpu
            .try_spawn_on(1 - round % 2, || ())
            .unwrap()
            .join()
            .unwrap();
        group.write("cpuset.cpus", "0-1").unwrap();
        times.push(noticed(&rt, &both, "the grown cpuset is noticed"));
        followed(2 * round as u64 + 2);
        let other = percpu
            // SAFETY: no arguments.
            .try_spawn_on(1 - round % 2, || unsafe { libc::sched_getcpu() })
            .unwrap();
        assert_eq!(other.join().unwrap(), 1 - round as i32 % 2, "it is back");
    }
    assert_eq!(rt.placement().changes, 8);
    times.sort();
    println!("\nnoticed after {times:?}");
    assert!(times[0] < Duration::from_millis(100), "{times:?}");
    load.end();
    strictly.end();
    assert!(rt.threads() <= 24, "{} threads are left", rt.threads());
    for q in [wq, strict, percpu] {
        q.destroy().unwrap();
    }
    rt.shutdown().unwrap();
}

#[test]
fn a_quota_is_followed_and_never_below_one_worker() {
    if !child("a_quota_is_followed_and_never_below_one_worker") || !two_cpus() {
        return;
    }
    let prepare = |_: &Path, dir: &Path| std::fs::write(dir.join("cpu.cfs_quota_us"), "200000");
    let Some(group) = Group::enter("cpu", prepare) else {
        return;
    };
    let rt = following();
    let wq = rt.workqueue("t").build().unwrap();
    let load = Load::on(&wq);
    load.cpus_of_next(100);
    for (quota, cpus) in [("150000", 2), ("50000", 1), ("-1", 0), ("90000", 1)] {
        group.write("cpu.cfs_quota_us", quota).unwrap();
        let want = (cpus > 0).then_some(cpus);
        eventually("the quota is noticed", || rt.placement().quota == want);
        load.cpus_of_next(100);
    }
    load.end();
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

fn set_affinity(tid: i32, cpus: &CpuSet) -> bool {
    // SAFETY: cpu_set_t is plain words for which zero is a value; the set is live and of the size that is said.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|c| libc::CPU_SET(c, &mut set));
        libc::sched_setaffinity(tid, size_of_val(&set), &raw const set) == 0
    }
}

fn threads() -> Vec<i32> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|t| t.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// As `taskset -a -p` does. A thread that ended meanwhile is none to be set.
fn set_all(cpus: &CpuSet) {
    for t in threads() {
        set_affinity(t, cpus);
    }
}

#[test]
fn affinity_of_the_process_that_is_narrowed_and_widened_is_followed_under_load() {
    let name = "affinity_of_the_process_that_is_narrowed_and_widened_is_followed_under_load";
    if !child(name) || !two_cpus() {
        return;
    }
    let rt = following();
    let wq = rt.workqueue("t").build().unwrap();
    let load = Load::on(&wq);
    load.cpus_of_next(100);
    let both = rt.placement().usable;
    let mut times = Vec::new();
    for round in 0..3 {
        let one = CpuSet::of(round % 2);
        set_all(&one);
        times.push(noticed(&rt, &one, "the narrowed affinity is noticed"));
        assert_eq!(load.cpus_of_next(200), one);
        set_all(&both);
        times.push(noticed(&rt, &both, "the widened affinity is noticed"));
        load.cpus_of_next(50);
    }
    println!("\nnoticed after {times:?}");
    assert_eq!(rt.placement().adopted, 0, "that was no single worker's");
    load.end();
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn the_affinity_that_the_process_was_started_with_is_respected() {
    if !child("the_affinity_that_the_process_was_started_with_is_respected") || !two_cpus() {
        return;
    }
    set_all(&CpuSet::of(1));
    for strict in [false, true] {
        let rt = following();
        assert_eq!(rt.placement().usable, CpuSet::of(1));
        assert_eq!(rt.cpumask(), CpuSet::of(1));
        let wq = rt.workqueue("t").affinity_strict(strict).build().unwrap();
        let load = Load::on(&wq);
        assert_eq!(load.cpus_of_next(100), CpuSet::of(1));
        load.end();
        wq.destroy().unwrap();
        rt.shutdown().unwrap();
    }
}

#[test]
fn a_main_thread_that_pins_itself_confines_nobody() {
    if !child("a_main_thread_that_pins_itself_confines_nobody") || !two_cpus() {
        return;
    }
    let rt = following();
    let both = rt.placement().usable;
    let wq = rt.workqueue("t").build().unwrap();
    let load = Load::on(&wq);
    load.cpus_of_next(50);
    assert!(set_affinity(std::process::id() as i32, &CpuSet::of(0)));
    let end = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < end {
        assert_eq!(rt.placement().usable, both);
        load.cpus_of_next(50);
    }
    load.end();
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

fn name_of(tid: i32) -> String {
    std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default()
}

fn mask_of(tid: i32) -> CpuSet {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    CpuSet::parse_list(line.trim()).unwrap()
}

#[test]
fn a_worker_that_somebody_moved_is_adopted_and_counted() {
    if !child("a_worker_that_somebody_moved_is_adopted_and_counted") || !two_cpus() {
        return;
    }
    let rt = following();
    let wq = rt.workqueue("t").per_cpu().build().unwrap();
    wq.try_spawn_on(0, || ()).unwrap().join().unwrap();
    let worker = threads()
        .into_iter()
        .find(|t| name_of(*t).starts_with("cmwq/0"))
        .unwrap();
    assert_eq!(mask_of(worker), CpuSet::of(0));
    assert!(set_affinity(worker, &CpuSet::of(1)));
    eventually("the moved worker is noticed", || {
        wq.try_spawn_on(0, || ()).unwrap().join().unwrap();
        rt.placement().adopted == 1
    });
    assert!(rt.warnings().iter().any(|w| w.contains("left alone")));
    // It stays where it was put, whatever changes.
    rt.set_cpumask(&CpuSet::of(0)).unwrap();
    assert_eq!(mask_of(worker), CpuSet::of(1));
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn following_costs_nothing_while_the_runtime_is_idle() {
    if !child("following_costs_nothing_while_the_runtime_is_idle") {
        return;
    }
    let rt = Runtime::builder().build().unwrap();
    let own = |t: &i32| name_of(*t).starts_with("cmwq/cpus");
    assert!(
        !threads().iter().any(own),
        "no thread before the first worker"
    );
    let wq = rt.workqueue("t").build().unwrap();
    wq.spawn(|| ()).join().unwrap();
    eventually("the thread is made", || threads().iter().any(own));
    let tid = threads().into_iter().find(own).unwrap();
    let switches = || {
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
        let n = text
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))
            .unwrap();
        n.trim().parse::<u64>().unwrap()
    };
    // It settles within two rounds of a second.
    std::thread::sleep(Duration::from_millis(2500));
    let before = switches();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(switches(), before, "asleep");
    // The next item wakes it.
    wq.spawn(|| ()).join().unwrap();
    eventually("activity wakes it", || switches() > before);
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
    drop(rt);
    eventually("it ends with the runtime", || !threads().iter().any(own));
}

#[test]
fn a_cpu_that_goes_offline_and_comes_back_is_followed() {
    if std::env::var_os("CMWQ_TEST_OFFLINE").is_none() && !is_child() {
        println!(
            "skipped: takes a CPU of the whole machine offline; set CMWQ_TEST_OFFLINE=1 for that"
        );
        return;
    }
    if !child("a_cpu_that_goes_offline_and_comes_back_is_followed") || !two_cpus() {
        return;
    }
    const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = std::fs::write(SWITCH, "1");
        }
    }
    let rt = Runtime::builder().build().unwrap();
    let before = rt.placement().usable;
    let wq = rt.workqueue("t").build().unwrap();
    let percpu = rt.workqueue("p").per_cpu().build().unwrap();
    percpu.try_spawn_on(1, || ()).unwrap().join().unwrap();
    let load = Load::on(&wq);
    load.cpus_of_next(50);
    let _back = Back;
    // Several times: masks change some milliseconds before and after the list of online CPUs does.
    for _ in 0..5 {
        if let Err(e) = std::fs::write(SWITCH, "0") {
            println!("skipped: CPU 1 cannot be taken offline: {e}");
            break;
        }
        eventually("the missing CPU is noticed", || {
            !rt.placement().usable.contains(1)
        });
        percpu.try_spawn_on(1, || ()).unwrap().join().unwrap();
        assert!(!load.cpus_of_next(100).contains(1));
        std::fs::write(SWITCH, "1").unwrap();
        eventually("it is back", || rt.placement().usable == before);
        percpu.try_spawn_on(1, || ()).unwrap().join().unwrap();
        assert_eq!(rt.placement().adopted, 0, "nobody has moved a worker");
    }
    load.end();
    for q in [wq, percpu] {
        q.destroy().unwrap();
    }
    rt.shutdown().unwrap();
}
