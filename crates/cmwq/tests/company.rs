//! Workers that are woken beside an issuer that waits for each item: where items run, and that nothing waits long for it.

mod common;

use common::{Count, eventually, within};
use std::time::{Duration, Instant};

fn pin(cpu: usize) {
    cmwq_pin(&[cpu]);
}

fn cmwq_pin(cpus: &[usize]) {
    // SAFETY: a set of plain words, written before it is used.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&c| libc::CPU_SET(c, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn usable() -> Vec<usize> {
    // SAFETY: as above.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        set
    };
    // SAFETY: within the set's size.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|&c| unsafe { libc::CPU_ISSET(c, &set) })
        .collect()
}

fn this_cpu() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::sched_getcpu() as usize }
}

fn masks_of_workers(name: &str) -> Vec<usize> {
    let mut counts = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |f: &str| std::fs::read_to_string(task.path().join(f)).unwrap_or_default();
        if !read("comm").starts_with(&format!("{name}/u")) {
            continue;
        }
        let status = read("status");
        let list = status
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
            .unwrap_or_default();
        let set: cmwq::CpuSet = list.trim().parse().unwrap();
        counts.push(set.iter().count());
    }
    counts
}

/// An issuer bound to a CPU that waits for each of its short items finds them run there in the end; one that goes on
/// working meanwhile does not wait for its own CPU; and no worker stays bound when it stops.
#[test]
fn items_of_a_waiting_issuer_run_beside_it_and_others_do_not() {
    let cpus = usable();
    if cpus.len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    let all = cpus.clone();
    within("company", move || {
        let rt = cmwq::Runtime::builder()
            .default_affinity_scope(cmwq::AffinityScope::System)
            .thread_name("comp")
            .build()
            .unwrap();
        let wq = rt.workqueue("short").build().unwrap();
        pin(cpus[0]);
        let done = Count::new();
        let beside = Count::new();
        let mine = cpus[0];
        let end = Instant::now() + Duration::from_secs(5);
        let mut issued = 0;
        while Instant::now() < end && beside.get() < 2_000 {
            let (d, b) = (done.clone(), beside.clone());
            wq.spawn(move || {
                d.up();
                if this_cpu() == mine {
                    b.up();
                }
            })
            .join()
            .unwrap();
            issued += 1;
        }
        assert_eq!(done.get(), issued, "each once");
        println!("{} of {issued} beside the issuer", beside.get());
        // It goes on working after each item: these must be run elsewhere, or in time all the same.
        let late = Count::new();
        for _ in 0..20 {
            let l = late.clone();
            let queued = Instant::now();
            wq.spawn_detached(move || {
                if queued.elapsed() > Duration::from_secs(2) {
                    l.up();
                }
            })
            .unwrap();
            let busy = Instant::now();
            while busy.elapsed() < Duration::from_millis(8) {
                std::hint::spin_loop();
            }
        }
        wq.flush().unwrap();
        assert_eq!(late.get(), 0, "no item waited for its issuer's CPU");
        // Long items, more than one at a time: every worker may go everywhere again.
        cmwq_pin(&all);
        eventually("no worker is bound", || {
            let gate = common::Gate::new();
            for _ in 0..all.len() + 1 {
                let g = gate.clone();
                drop(wq.spawn(move || g.pass()));
            }
            gate.await_arrivals(all.len() + 1);
            gate.open();
            wq.flush().unwrap();
            masks_of_workers("comp").iter().all(|&n| n == all.len())
        });
        wq.destroy().unwrap();
        rt.shutdown().unwrap();
    });
}
