//! Blocked workers are noticed without being told, by each means alone and by all together; preempted ones are not.

mod common;

use cmwq::{DetectorState, DetectorStatus, Detectors, Runtime, Workqueue};
use common::{Count, Gate, Opener, PATIENCE, eventually, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn spin(d: Duration) {
    let t = Instant::now();
    while t.elapsed() < d {
        std::hint::spin_loop();
    }
}

fn status(rt: &Runtime, name: &str) -> DetectorStatus {
    rt.detection().into_iter().find(|d| d.name == name).unwrap()
}

struct Mix {
    computed: Duration,
    threads: usize,
}

const SLEEPERS: usize = 16;

/// Sleepers of 4 ms, 8 a CPU, and computing items of 50 us queued behind them, 32 a CPU.
fn mix(rt: &Runtime, wq: &Workqueue) -> Mix {
    let scale = cpus().div_ceil(2);
    let computing = 64 * scale;
    let done = Count::new();
    let main = std::thread::current();
    let start = Instant::now();
    let mut handles = Vec::new();
    for _ in 0..SLEEPERS * scale {
        handles.push(wq.spawn(|| std::thread::sleep(Duration::from_millis(4))));
    }
    for _ in 0..computing {
        let (done, main) = (done.clone(), main.clone());
        handles.push(wq.spawn(move || {
            spin(Duration::from_micros(50));
            if done.up() == computing {
                main.unpark();
            }
        }));
    }
    while done.get() < computing {
        std::thread::park();
    }
    let computed = start.elapsed();
    let threads = rt.threads();
    handles.into_iter().for_each(|h| h.join().unwrap());
    Mix { computed, threads }
}

/// The best of some rounds, and the most threads that were seen: the machine may be busy with other things.
fn best_mix(rt: &Runtime, wq: &Workqueue, rounds: usize) -> Mix {
    let mut best = mix(rt, wq);
    for _ in 1..rounds {
        let m = mix(rt, wq);
        best.computed = best.computed.min(m.computed);
        best.threads = best.threads.max(m.threads);
    }
    best
}

#[test]
fn computing_items_do_not_wait_for_sleeping_ones() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("mix").build().unwrap();
    let best = best_mix(&rt, &wq, 20);
    println!("computed in {:?}, {} threads", best.computed, best.threads);
    // What blocks, what runs, one in reserve; on a machine that is busy otherwise, what time alone adds.
    let by_time = wq.stats().fairness as usize;
    let most = SLEEPERS * cpus().div_ceil(2) + cpus() + 1 + by_time;
    assert!(
        best.threads <= most,
        "{} threads, at most {most}",
        best.threads
    );
    assert!(status(&rt, "proc-stat").found > 0);
}

#[test]
fn the_sentinel_alone_finds_blocked_workers() {
    let rt = Runtime::builder()
        .detectors(Detectors::new().tick(false))
        .build()
        .unwrap();
    let wq = rt.workqueue("mix").build().unwrap();
    let s = rounds_until(&rt, &wq, || status(&rt, "sentinel").found > 0, "sentinel");
    if s.state == DetectorState::Refused {
        println!("skipped: {}", s.reason);
        return;
    }
    if s.found == 0 && others_use_the_cpus() {
        println!("skipped: other load leaves the idle class no CPU ({s:?})");
        return;
    }
    assert!(s.found > 0, "{s:?}");
    assert_eq!(status(&rt, "tick").found, 0);
    assert_eq!(status(&rt, "tick").state, DetectorState::Off);
}

/// Rounds of the mixed load until `enough`, for some seconds at most.
fn rounds_until(
    rt: &Runtime,
    wq: &Workqueue,
    enough: impl Fn() -> bool,
    name: &str,
) -> DetectorStatus {
    let began = Instant::now();
    while !enough() && began.elapsed() < Duration::from_secs(20) {
        let m = mix(rt, wq);
        println!("computed in {:?}, {} threads", m.computed, m.threads);
        if status(rt, name).state == DetectorState::Refused {
            break;
        }
    }
    status(rt, name)
}

/// Whether more threads than there are CPUs wanted to run during the last minute.
fn others_use_the_cpus() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load
        .split(' ')
        .next()
        .and_then(|l| l.parse().ok())
        .unwrap_or(0.0);
    load > cpus() as f64
}

fn tick_alone(detectors: Detectors, means: &str) {
    let rt = Runtime::builder()
        .detectors(detectors.sentinel(false))
        .build()
        .unwrap();
    let wq = rt.workqueue("mix").build().unwrap();
    let m = rounds_until(&rt, &wq, || status(&rt, "tick").found > 0, means);
    if m.state == DetectorState::Refused {
        println!("skipped: {}", m.reason);
        return;
    }
    assert!(status(&rt, "tick").found > 0);
    assert_eq!(status(&rt, "sentinel").state, DetectorState::Off);
    assert_eq!(status(&rt, "sentinel").looks, 0);
    assert!(m.looks > 0, "{m:?}");
}

#[test]
fn the_tick_alone_finds_blocked_workers_by_proc() {
    tick_alone(Detectors::new(), "proc-stat");
}

#[test]
fn the_tick_alone_finds_blocked_workers_by_their_cpu_clocks() {
    tick_alone(Detectors::new().proc_stat(false), "cpu-clock");
}

#[test]
fn the_tick_alone_finds_blocked_workers_by_context_switch_records() {
    tick_alone(Detectors::new().records(true), "records");
}

#[test]
fn items_said_to_block_are_replaced_with_everything_else_off() {
    let rt = Runtime::builder()
        .detectors(Detectors::none())
        .build()
        .unwrap();
    let wq = rt.workqueue("said").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let n = 4 * cpus();
    let waiting: Vec<_> = (0..n)
        .map(|_| {
            let g = gate.clone();
            wq.spawn(move || g.pass())
        })
        .collect();
    gate.await_arrivals(n);
    assert_eq!(wq.spawn(|| 7).join().unwrap(), 7);
    assert_eq!(status(&rt, "said").found, n as u64);
    gate.open();
    waiting.into_iter().for_each(|h| h.join().unwrap());
}

/// Preemption is not blocking: beside busy threads a computing worker loses its CPU again and again, and no thread is added.
#[test]
fn a_preempted_worker_is_not_taken_for_a_blocked_one() {
    let stop = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..2 * cpus())
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let rt = Runtime::builder()
        .detectors(Detectors::new().hogs(false))
        .build()
        .unwrap();
    let wq = rt.workqueue("compute").build().unwrap();
    let items: Vec<_> = (0..20 * cpus())
        .map(|_| {
            wq.spawn(|| {
                let mut x = 1_u64;
                for i in 0..3_000_000_u64 {
                    x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
                }
                x
            })
        })
        .collect();
    for h in items {
        h.join().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    hogs.into_iter().for_each(|h| h.join().unwrap());
    let (tick, proc_stat) = (status(&rt, "tick"), status(&rt, "proc-stat"));
    println!("{tick:?}\n{proc_stat:?}\n{:?}", rt.thread_counts());
    if proc_stat.state != DetectorState::InForce {
        println!("skipped: {}", proc_stat.reason);
        return;
    }
    // A worker that waits for the pool's lock or frees memory sleeps for a moment, hence not exactly none.
    assert!(proc_stat.found <= proc_stat.looks / 50, "{proc_stat:?}");
    let c = rt.thread_counts();
    assert_eq!(c.born_blocked, 0);
    // Fairness and the floor go by time alone, which passes beside busy threads.
    let by_time = (wq.stats().fairness + c.born_floor) as usize;
    assert!(rt.threads() <= cpus() + 1 + by_time, "{c:?}");
}

#[test]
fn a_worker_that_resumes_counts_again_and_surplus_ones_retire() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("resume").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let n = 2 * cpus();
    let running = Count::new();
    let over = Count::new();
    // They block unseen, then compute for long.
    let long: Vec<_> = (0..n)
        .map(|_| {
            let (g, running, over) = (gate.clone(), running.clone(), over.clone());
            wq.spawn(move || {
                g.pass_silently();
                running.up();
                while over.get() == 0 {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    gate.await_arrivals(n);
    gate.open();
    eventually("all run", || running.get() == n);
    // Items wait now, so somebody looks: all n run, so none of the new ones is started beyond what hogs and floor add.
    let late: Vec<_> = (0..200).map(|_| wq.spawn(|| ())).collect();
    eventually("resumed workers are seen", || {
        let s = status(&rt, "tick");
        s.looks > 20
    });
    over.up();
    for h in long.into_iter().chain(late) {
        h.join().unwrap();
    }
    // n blocked, then at most as many as the CPUs, a reserve, and what hogs may add.
    assert!(
        rt.threads() <= n + 2 * cpus() + 2,
        "{} threads",
        rt.threads()
    );
}

/// Workers that block for moments again and again: threads stay within what blocks at once, and work goes on.
#[test]
fn a_storm_of_short_blocks_does_not_breed_threads() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("storm").build().unwrap();
    let items: Vec<_> = (0..400)
        .map(|_| {
            wq.spawn(|| {
                for _ in 0..20 {
                    std::thread::sleep(Duration::from_micros(20));
                    spin(Duration::from_micros(20));
                }
            })
        })
        .collect();
    let mut most = 0;
    for h in items {
        h.join().unwrap();
        most = most.max(rt.threads());
    }
    let c = rt.thread_counts();
    println!("{most} threads, {c:?}");
    assert!(most <= 8 * cpus() + 8, "{most} threads for {} CPUs", cpus());
}

#[test]
fn all_workers_of_one_queue_blocked_for_ever_do_not_hold_up_another() {
    for detectors in [Detectors::new(), Detectors::none()] {
        within("another queue progresses", move || {
            let rt = Runtime::builder().detectors(detectors).build().unwrap();
            let stuck = rt.workqueue("stuck").build().unwrap();
            let live = rt.workqueue("live").build().unwrap();
            let gate = Gate::new();
            let _open = Opener(&gate);
            let n = 3 * cpus();
            let held: Vec<_> = (0..n)
                .map(|_| {
                    let g = gate.clone();
                    stuck.spawn(move || g.pass_silently())
                })
                .collect();
            for i in 0..20 {
                assert_eq!(live.spawn(move || i).join().unwrap(), i);
            }
            gate.open();
            held.into_iter().for_each(|h| h.join().unwrap());
        });
    }
}

/// Items that spin until the next one has started: nothing blocks, nothing ends, and on two CPUs only hogs (two extra workers)
/// and the liveness floor (after 1, 2, 4, 8 s) get the eighth started.
#[test]
fn a_chain_of_items_that_spin_for_one_another_ends_with_every_detector_denied() {
    let detectors = Detectors::new()
        .sentinel(false)
        .tick(false)
        .proc_stat(false);
    let rt = common::synthetic("package:1 l3:1 core:2")
        .detectors(detectors)
        .build()
        .unwrap();
    let wq = rt.workqueue("chain").build().unwrap();
    let started = Count::new();
    let start = Instant::now();
    let items: Vec<_> = (0..8)
        .map(|i| {
            let started = started.clone();
            wq.spawn(move || {
                started.up();
                while started.get() < 8 && start.elapsed() < PATIENCE {
                    std::hint::spin_loop();
                }
                assert!(started.get() == 8, "item {i} waited in vain");
            })
        })
        .collect();
    items.into_iter().for_each(|h| h.join().unwrap());
    let c = rt.thread_counts();
    println!("{:?}, {c:?}", start.elapsed());
    assert!(rt.threads() <= 9, "{} threads", rt.threads());
}
