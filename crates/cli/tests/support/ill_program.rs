//! Served programs that are ill, each in one way, on the real runtime; and one that is well.

use std::io::Read as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cmwq::{AffinityScope, Detectors, Runtime, RuntimeBuilder, Topology, Workqueue};

use crate::support::NAME;

/// The body of the program, which is called as its illness is; runs until standard input closes.
pub(crate) fn served_program() {
    let Ok(illness) = std::env::var(NAME) else {
        return;
    };
    let rt = builder(&illness).build().unwrap();
    // What every program of these tests does; before the illness, which may leave nothing for it.
    let ingest = rt.workqueue("ingest").build().unwrap();
    for _ in 0..50 {
        ingest.spawn(|| {}).join().unwrap();
    }
    let queues = fall_ill(&rt, &illness);
    let control = cmwq::control::builder()
        .runtime(&rt)
        .name(illness)
        .allow_set(true)
        .listen()
        .unwrap();
    println!("\nserved {}", control.path().unwrap().display());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(queues);
    drop(control);
    std::process::exit(0);
}

fn builder(illness: &str) -> RuntimeBuilder {
    let machine = |spec| Runtime::builder().topology(Topology::synthetic(spec).unwrap());
    match illness {
        "per-cpu-limit" | "strict" => machine("core:4"),
        // One CPU, and nobody is set aside for keeping it.
        "crowded-out" => machine("core:1").detectors(Detectors::new().hogs(false)),
        "ceiling" => Runtime::builder()
            .max_threads(3)
            .watchdog(Duration::from_secs(1)),
        "refused" => {
            let made = Mutex::new(0);
            Runtime::builder().thread_faults(move |name| {
                let mut made = made.lock().unwrap();
                *made += u32::from(name.starts_with("cmwq/"));
                *made <= 2
            })
        }
        _ => Runtime::builder(),
    }
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// By the thread's own CPU clock, so that a busy machine makes no short item of it.
fn hog() {
    let cpu = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    };
    let end = cpu() + 25_000_000;
    while cpu() < end {
        spin(Duration::from_micros(100));
    }
}

fn wait_for_ever() {
    cmwq::blocking(|| std::thread::sleep(Duration::from_secs(3600)));
}

fn waiting(wq: &Workqueue) -> u64 {
    let s = wq.stats();
    s.queued.saturating_sub(s.completed)
}

/// Keeps the queue's backlog at about so many items.
fn feed(wq: &Workqueue, backlog: u64, item: impl Fn() + Send + Copy + 'static) {
    let wq = wq.clone();
    std::thread::spawn(move || {
        loop {
            while waiting(&wq) < backlog {
                if wq.spawn_detached(item).is_err() {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}

fn fall_ill(rt: &Runtime, illness: &str) -> Vec<Workqueue> {
    match illness {
        "healthy" => {
            let wq = rt.workqueue("works").max_active(2).build().unwrap();
            let load = wq.clone();
            std::thread::spawn(move || {
                loop {
                    let three: Vec<_> = (0..3)
                        .map(|_| load.spawn(|| spin(Duration::from_micros(50))))
                        .collect();
                    three.into_iter().for_each(|h| h.join().unwrap());
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            vec![wq]
        }
        // Meant: four connections. Got: four on each of four CPUs.
        "per-cpu-limit" => {
            let wq = rt
                .workqueue("connections")
                .per_cpu()
                .max_active(4)
                .build()
                .unwrap();
            for cpu in (0..4).cycle().take(20) {
                drop(wq.try_spawn_on(cpu, wait_for_ever).unwrap());
            }
            vec![wq]
        }
        "loose-limit" => {
            let wq = rt.workqueue("wide").max_active(256).build().unwrap();
            for _ in 0..1500 {
                wq.spawn(|| {}).join().unwrap();
            }
            vec![wq]
        }
        "strict" => {
            let wq = rt
                .workqueue("pinned")
                .affinity_scope(AffinityScope::Cpu)
                .affinity_strict(true)
                .build()
                .unwrap();
            let load = wq.clone();
            std::thread::spawn(move || {
                loop {
                    while waiting(&load) < 50 {
                        drop(load.try_spawn_on(0, || spin(Duration::from_millis(3))));
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            vec![wq]
        }
        "hogs" => {
            let crunch = rt.workqueue("crunch").per_cpu().build().unwrap();
            let grind = rt.workqueue("grind").build().unwrap();
            feed(&crunch, 4, hog);
            feed(&grind, 4, hog);
            vec![crunch, grind]
        }
        "narrow" => {
            let wq = rt.workqueue("narrow").max_active(1).build().unwrap();
            feed(&wq, 400, || {
                cmwq::blocking(|| std::thread::sleep(Duration::from_millis(20)));
            });
            vec![wq]
        }
        "crowded-out" => {
            let bulk = rt.workqueue("bulk").build().unwrap();
            let late = rt.workqueue("late").build().unwrap();
            feed(&bulk, 60, || spin(Duration::from_millis(200)));
            feed(&late, 4, || {});
            vec![bulk, late]
        }
        "ceiling" => {
            let wq = rt.workqueue("io").build().unwrap();
            for _ in 0..8 {
                wq.spawn_detached(wait_for_ever).unwrap();
            }
            vec![wq]
        }
        "refused" => {
            let wq = rt.workqueue("io").build().unwrap();
            for _ in 0..16 {
                wq.spawn_detached(wait_for_ever).unwrap();
            }
            vec![wq]
        }
        "one-lock" => {
            let lock = Arc::new(Mutex::new(()));
            let held = Arc::clone(&lock);
            let (send, locked) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let _held = held.lock();
                let _ = send.send(());
                std::thread::sleep(Duration::from_secs(3600));
            });
            locked.recv().unwrap();
            let wq = rt.workqueue("accounts").build().unwrap();
            for _ in 0..12 {
                let lock = Arc::clone(&lock);
                wq.spawn_detached(move || drop(lock.lock())).unwrap();
            }
            vec![wq]
        }
        "panics" => {
            let wq = rt.workqueue("fragile").build().unwrap();
            std::panic::set_hook(Box::new(|_| {}));
            feed(&wq, 1, || panic!("expected by the test"));
            vec![wq]
        }
        other => panic!("no illness {other}"),
    }
}
