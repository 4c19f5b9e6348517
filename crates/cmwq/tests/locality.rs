//! Where items start and who helps, on a made-up machine whose CPUs each have a cache of their own.

mod common;

use cmwq::{AffinityScope, Attrs, CpuSet, Runtime, Workqueue, WorkqueueBuilder};
use common::{Count, eventually, synthetic, waited_for_a_cpu, within};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Two CPUs that have only their node in common.
const APART: &str = "l3:2 core:1";

/// These tests load the machine: one at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn real_cpus() -> CpuSet {
    mask_of(0)
}

fn mask_of(tid: i32) -> CpuSet {
    let path = match tid {
        0 => "/proc/thread-self/status".to_owned(),
        t => format!("/proc/self/task/{t}/status"),
    };
    let text = std::fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    CpuSet::parse_list(line.trim()).unwrap()
}

fn pin(cpu: usize) {
    // SAFETY: cpu_set_t is plain words for which zero is a value; the set is live and of the size that is said.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(rc, 0, "CPU {cpu} can be had");
}

fn here() -> usize {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap()
}

fn burn(us: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(us) {
        std::hint::spin_loop();
    }
}

/// Whether CPUs 0 and 1 can be used; says so if not.
fn two_cpus() -> bool {
    let ok = CpuSet::first_n(2).is_subset(&real_cpus());
    if !ok {
        println!("skipped: CPUs 0 and 1 are not both usable here");
    }
    ok
}

/// On a thread pinned to CPU 0: as many items as one CPU needs some 100 ms for, all at once. The CPUs where they ran.
fn overload(wq: &Workqueue, items: usize, us: u64) -> Vec<usize> {
    let wq = wq.clone();
    within("overload", move || {
        pin(0);
        let ran = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..items {
            let ran = Arc::clone(&ran);
            drop(wq.spawn(move || {
                burn(us);
                ran.lock().unwrap().push(here());
            }));
        }
        wq.flush().unwrap();
        let ran = std::mem::take(&mut *ran.lock().unwrap());
        assert_eq!(ran.len(), items, "nothing is lost");
        ran
    })
}

/// Whether other load uses CPU 1, where helpers would run: they do not compete with others for a CPU. Says so.
fn others_use_the_second_cpu() -> bool {
    let got = std::thread::spawn(|| {
        pin(1);
        let (start, cpu) = (Instant::now(), cpu_time());
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        (cpu_time() - cpu).as_secs_f64() / start.elapsed().as_secs_f64()
    });
    let got = got.join().unwrap();
    let used = got < 0.9;
    if used {
        println!("skipped: other load uses CPU 1, a spinning thread gets {got:.2} of it");
    }
    used
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one live structure.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    assert_eq!(rc, 0, "every thread has a CPU clock");
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn share_outside(ran: &[usize], cpu: usize) -> f64 {
    ran.iter().filter(|c| **c != cpu).count() as f64 / ran.len() as f64
}

#[test]
fn items_start_in_the_pod_that_scope_and_mask_say() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let machines = [
        ("l3:2 core:1", [1, 1, 1, 1, 2, 2]),
        ("l3:1 core:2", [1, 1, 2, 2, 2, 2]),
        ("core:1 thread:2", [1, 2, 2, 2, 2, 2]),
        ("node:2 core:1", [1, 1, 1, 1, 1, 2]),
    ];
    for (spec, pod_sizes) in machines {
        let rt = synthetic(spec).build().unwrap();
        for (scope, size) in AffinityScope::ALL.into_iter().zip(pod_sizes) {
            for strict in [false, true] {
                for mask in [None, Some(0), Some(1)] {
                    for issuer in [0, 1] {
                        check_start(&rt, scope, strict, mask, issuer, size);
                    }
                }
            }
        }
        rt.shutdown().unwrap();
    }
}

fn check_start(
    rt: &Runtime,
    scope: AffinityScope,
    strict: bool,
    mask: Option<usize>,
    issuer: usize,
    pod_size: usize,
) {
    let mut b = rt
        .workqueue("pods")
        .affinity_scope(scope)
        .affinity_strict(strict);
    if let Some(cpu) = mask {
        b = b.cpumask(CpuSet::of(cpu));
    }
    let wq = b.build().unwrap();
    let outside = Count::new();
    let (w, o) = (wq.clone(), outside.clone());
    within("issuer", move || {
        pin(issuer);
        for _ in 0..20 {
            let o = o.clone();
            let allowed = mask.unwrap_or(issuer);
            let item = move || {
                if here() != allowed && pod_size == 1 {
                    o.up();
                }
            };
            w.spawn(item).join().unwrap();
        }
        w.flush().unwrap();
    });
    let s = wq.stats();
    let what = format!("{scope:?} strict {strict} mask {mask:?} issuer {issuer}: {s:?}");
    assert_eq!(s.started, 20, "{what}");
    // Who joins from outside does not run the item; whoever started it outside the pod was a helper.
    assert_eq!(s.in_pod + s.helped, 20, "{what}");
    if mask.is_some() || strict {
        assert_eq!(s.helped, 0, "{what}");
        assert_eq!(outside.get(), 0, "{what}");
    } else {
        assert!(outside.get() as u64 <= s.helped, "{what}");
    }
    wq.destroy().unwrap();
}

#[test]
fn a_pod_with_more_work_than_it_can_do_is_helped() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let rt = synthetic(APART).build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    let busy = others_use_the_second_cpu();
    let ran = overload(&wq, 3000, 50);
    let s = wq.stats();
    if !busy && !others_use_the_second_cpu() {
        assert!(s.helped > 0 && s.hedged > 0, "{s:?}");
        assert!(share_outside(&ran, 0) > 0.05, "{s:?}");
    }
    assert_eq!(s.in_pod + s.helped, 3000, "{s:?}");
    assert!(rt.threads() <= 8, "{} threads for two CPUs", rt.threads());
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn per_cpu_ordered_strict_localized_and_kernel_mode_queues_are_never_helped() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    type With = fn(WorkqueueBuilder) -> WorkqueueBuilder;
    // Whether the items must stay on the issuer's CPU, too.
    let kinds: [(&str, With, bool); 5] = [
        ("per-CPU", |b| b.per_cpu(), true),
        ("ordered", |b| b.ordered(), false),
        ("strict", |b| b.affinity_strict(true), true),
        ("localized", |b| b.localize(true), true),
        ("kernel", |b| b.kernel_mode(true), false),
    ];
    for (name, with, stays) in kinds {
        let rt = synthetic(APART).build().unwrap();
        // Beside it one that is helped, so that helpers are about.
        let other = rt.workqueue("other").build().unwrap();
        let wq = with(rt.workqueue("t")).build().unwrap();
        let o = other.clone();
        let busy = std::thread::spawn(move || overload(&o, 1000, 50));
        let ran = overload(&wq, 1000, 50);
        busy.join().unwrap();
        let s = wq.stats();
        assert_eq!((s.helped, s.hedged), (0, 0), "{name}: {s:?}");
        if stays {
            assert_eq!(share_outside(&ran, 0), 0.0, "{name}: {s:?}");
            assert_eq!(s.in_pod, 1000, "{name}");
        }
        wq.destroy().unwrap();
        other.destroy().unwrap();
        rt.shutdown().unwrap();
    }
}

#[test]
fn reusable_items_that_are_helped_still_never_run_twice_at_once() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let busy = others_use_the_second_cpu();
    let rt = synthetic(APART).build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    let works: Vec<_> = (0..40)
        .map(|_| {
            let running = AtomicU64::new(0);
            cmwq::Work::new(move |_| {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "not re-entered");
                burn(100);
                running.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    let w = wq.clone();
    within("reusable items", move || {
        pin(0);
        let end = Instant::now() + Duration::from_millis(800);
        while Instant::now() < end {
            for work in &works {
                w.queue(work).unwrap();
            }
            works[0].flush().unwrap();
        }
        w.flush().unwrap();
    });
    let s = wq.stats();
    assert_eq!((s.panicked, s.completed), (0, s.queued), "{s:?}");
    if !busy && !others_use_the_second_cpu() {
        assert!(s.helped > 0, "{s:?}");
    }
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn a_queue_that_keeps_up_is_hardly_ever_hedged() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let rt = synthetic(APART).build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    let waited = waited_for_a_cpu();
    for _ in 0..1000 {
        drop(wq.spawn(|| ()));
        std::thread::sleep(Duration::from_millis(1));
    }
    wq.flush().unwrap();
    let s = wq.stats();
    // The issuer sleeps for nearly all of this: what it waited for a CPU is other load's.
    let waited = waited_for_a_cpu() - waited;
    if waited > Duration::from_millis(20) {
        println!(
            "skipped: other load takes the CPUs ({waited:?} lost, {} hedged)",
            s.hedged
        );
    } else {
        // On an idle machine it is under 1 in 1000.
        assert!(s.hedged <= 50, "{} of 1000 items were hedged", s.hedged);
    }
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn a_hog_leaves_its_full_pod_and_comes_home() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let rt = synthetic(APART).thread_name("hog").build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    let w = wq.clone();
    within("hogs", move || {
        pin(0);
        // Until one was found while others waited.
        let end = Instant::now() + Duration::from_secs(30);
        while w.stats().repatriated == 0 && Instant::now() < end {
            for _ in 0..12 {
                drop(w.spawn(|| burn(60_000)));
            }
            w.flush().unwrap();
        }
    });
    let s = wq.stats();
    assert!(s.cpu_intensive > 0, "{s:?}");
    assert!(s.repatriated > 0, "{s:?}");
    // Idle workers are all inside a pod of one CPU again.
    eventually("all workers are at home", || {
        worker_masks().iter().all(|m| m.len() == 1)
    });
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

/// Masks of this process's threads that are named like workers of unbound pools of this test.
fn worker_masks() -> Vec<CpuSet> {
    tids("hog/u").into_iter().map(mask_of).collect()
}

fn tids(prefix: &str) -> Vec<i32> {
    let name =
        |t: &i32| std::fs::read_to_string(format!("/proc/self/task/{t}/comm")).unwrap_or_default();
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|t| t.ok()?.file_name().to_str()?.parse().ok())
        .filter(|t| name(t).starts_with(prefix))
        .collect()
}

#[test]
fn the_default_scope_changes_at_run_time_and_podding_follows() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let rt = synthetic(APART).build().unwrap();
    let wq = rt.workqueue("t").affinity_strict(true).build().unwrap();
    let fixed = rt
        .workqueue("fixed")
        .affinity_scope(AffinityScope::Cache)
        .affinity_strict(true)
        .build()
        .unwrap();
    assert_eq!(wq.effective_scope(), AffinityScope::CacheShard);
    assert_eq!(share_outside(&overload(&wq, 200, 50), 0), 0.0);
    rt.set_default_affinity_scope(AffinityScope::System);
    assert_eq!(wq.effective_scope(), AffinityScope::System);
    assert_eq!(rt.default_affinity_scope(), AffinityScope::System);
    // One pool for both CPUs now: nothing holds the items on CPU 0.
    let before = wq.stats().in_pod;
    overload(&wq, 200, 50);
    assert_eq!(wq.stats().in_pod - before, 200);
    assert_eq!(share_outside(&overload(&fixed, 200, 50), 0), 0.0);
    rt.set_default_affinity_scope(AffinityScope::Default);
    assert_eq!(wq.effective_scope(), AffinityScope::CacheShard);
    assert_eq!(share_outside(&overload(&wq, 200, 50), 0), 0.0);
    for q in [wq, fixed] {
        q.destroy().unwrap();
    }
    rt.shutdown().unwrap();
}

#[test]
fn the_global_mask_is_obeyed_and_an_empty_one_refused() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let rt = synthetic(APART).build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    assert_eq!(rt.cpumask(), CpuSet::first_n(2));
    for bad in [CpuSet::new(), CpuSet::of(7)] {
        let e = rt.set_cpumask(&bad).unwrap_err();
        assert!(e.to_string().contains("possible CPUs 0-1"), "{e}");
    }
    for cpu in [1, 0, 1] {
        rt.set_cpumask(&CpuSet::of(cpu)).unwrap();
        assert_eq!(rt.cpumask(), CpuSet::of(cpu));
        let ran = overload(&wq, 100, 20);
        assert_eq!(share_outside(&ran, cpu), 0.0, "global mask {cpu}");
    }
    rt.set_cpumask(&CpuSet::first_n(9)).unwrap();
    assert_eq!(
        rt.cpumask(),
        CpuSet::first_n(2),
        "impossible CPUs are left out"
    );
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn isolated_cpus_are_left_alone_unless_asked_for() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let machine = cmwq::Topology::synthetic("l3:4 core:1").unwrap();
    machine.write_tree(dir.path()).unwrap();
    let isolated = dir.path().join("sys/devices/system/cpu/isolated");
    std::fs::write(&isolated, "2-3\n").unwrap();
    let rt = Runtime::builder()
        .topology(cmwq::Topology::read(dir.path()))
        .build()
        .unwrap();
    assert_eq!(rt.placement().isolated.to_string(), "2-3");
    assert_eq!(rt.cpumask().to_string(), "0-1");
    rt.set_cpumask(&CpuSet::of(3)).unwrap();
    assert_eq!(rt.cpumask().to_string(), "3");
    rt.shutdown().unwrap();
}

#[test]
fn a_changed_nice_replaces_workers_and_the_call_says_so() {
    let _alone = alone();
    let rt = common::runtime();
    let wq = rt.workqueue("t").build().unwrap();
    let nice_of_item = |wq: &Workqueue| {
        // SAFETY: plain integers.
        wq.spawn(|| unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) })
            .join()
            .unwrap()
    };
    let before = nice_of_item(&wq);
    let nice = (before + 3).min(19);
    let change = wq.apply_attrs(Attrs::new().nice(nice)).unwrap();
    assert!(change.retired >= 1 && change.workers_replaced, "{change:?}");
    assert_eq!(nice_of_item(&wq), nice);
    let change = wq.apply_attrs(Attrs::new().nice(nice)).unwrap();
    assert!(!change.workers_replaced, "{change:?}");
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}

#[test]
fn localize_can_be_switched_under_load() {
    let _alone = alone();
    if !two_cpus() {
        return;
    }
    let rt = synthetic(APART).build().unwrap();
    let wq = rt
        .workqueue("t")
        .affinity_scope(AffinityScope::System)
        .build()
        .unwrap();
    let w = wq.clone();
    let load = std::thread::spawn(move || overload(&w, 4000, 20));
    for i in 0..40 {
        let attrs = Attrs::new()
            .affinity_scope(AffinityScope::System)
            .localize(i % 2 == 0);
        wq.apply_attrs(attrs).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    load.join().unwrap();
    wq.apply_attrs(
        Attrs::new()
            .affinity_scope(AffinityScope::System)
            .localize(true),
    )
    .unwrap();
    let ran = overload(&wq, 500, 20);
    assert_eq!(
        share_outside(&ran, 0),
        0.0,
        "items start on the issuing CPU"
    );
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
}
