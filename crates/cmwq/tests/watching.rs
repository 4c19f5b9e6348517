//! Hogs, stalls, culling, and that an idle runtime does nothing.

mod common;

use cmwq::{Detectors, Report, Runtime};
use common::{Gate, Opener, eventually, in_child, is_child};
use std::sync::{Arc, Mutex};
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

fn hogging() {
    // By the clock of the thread: the machine may be busy.
    let mut t = libc_thread_time();
    let end = t + Duration::from_millis(25);
    while t < end {
        spin(Duration::from_micros(100));
        t = libc_thread_time();
    }
}

fn libc_thread_time() -> Duration {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[test]
fn a_function_that_hogs_its_cpu_is_reported_with_the_fourth_find() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let rt = Runtime::builder()
        .on_report(move |r| log.lock().unwrap().push(r.clone()))
        .build()
        .unwrap();
    let wq = rt.workqueue("greedy").max_active(64).build().unwrap();
    let items: Vec<_> = (0..12 * cpus()).map(|_| wq.spawn(hogging)).collect();
    items.into_iter().for_each(|h| h.join().unwrap());
    let seen = seen.lock().unwrap();
    let counts: Vec<u64> = seen
        .iter()
        .filter_map(|r| match r {
            Report::Hog(h) => Some(h.found),
            _ => None,
        })
        .collect();
    println!("{counts:?}");
    assert!(counts.starts_with(&[4, 5, 7]), "{counts:?}");
    assert_eq!(*seen, rt.reports());
    let Report::Hog(h) = &seen[0] else {
        panic!("{:?}", seen[0])
    };
    assert_eq!(h.queue, "greedy");
    assert!(h.item.contains("hogging"), "{}", h.item);
    assert!(h.on_cpu >= Duration::from_millis(10));
    assert!(seen[0].to_string().contains("greedy"));
    assert!(wq.stats().cpu_intensive >= 7);
    // Compute loads do not breed threads: one more a CPU, and where the machine is busy otherwise what time alone adds.
    let c = rt.thread_counts();
    let by_time = (wq.stats().fairness + c.born_floor) as usize;
    assert!(rt.threads() <= 2 * cpus() + 1 + by_time, "{c:?}");
}

#[test]
fn a_hog_on_a_per_cpu_queue_is_set_aside() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("percpu").per_cpu().build().unwrap();
    let gate = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let g = gate.clone();
    let hog = wq
        .try_spawn_on(0, move || {
            while !g.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
        .unwrap();
    // Where other load leaves the item next to no CPU time, what waits behind it may run by the liveness floor first.
    let until = Instant::now() + Duration::from_secs(60);
    while wq.stats().cpu_intensive == 0 && Instant::now() < until {
        let behind = wq.try_spawn_on(0, || 5).unwrap();
        assert_eq!(behind.join().unwrap(), 5);
    }
    gate.store(true, std::sync::atomic::Ordering::Relaxed);
    hog.join().unwrap();
    let s = wq.stats();
    assert_eq!(
        s.cpu_intensive,
        1,
        "{:?} {:#?} cm {}",
        rt.thread_counts(),
        rt.detection(),
        s.cm_wakeup
    );
}

#[test]
fn hogs_are_not_looked_for_when_switched_off() {
    let rt = Runtime::builder()
        .detectors(Detectors::new().hogs(false))
        .build()
        .unwrap();
    let wq = rt.workqueue("greedy").build().unwrap();
    let items: Vec<_> = (0..3 * cpus()).map(|_| wq.spawn(hogging)).collect();
    items.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(wq.stats().cpu_intensive, 0);
}

#[test]
fn a_worklist_that_does_not_move_is_reported_with_what_holds_it_up() {
    const THRESHOLD: Duration = Duration::from_millis(300);
    let times = Arc::new(Mutex::new(Vec::new()));
    let log = times.clone();
    let rt = Runtime::builder()
        .max_threads(1)
        .watchdog(THRESHOLD)
        .on_report(move |_| log.lock().unwrap().push(Instant::now()))
        .build()
        .unwrap();
    let wq = rt.workqueue("held-up").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let g = gate.clone();
    let first = wq.spawn(move || {
        cmwq::describe("at the gate");
        g.pass_silently();
    });
    gate.await_arrivals(1);
    let second = wq.spawn(|| 2);
    eventually("a stall is reported", || !rt.reports().is_empty());
    let reports = rt.reports();
    let Report::Stall(s) = &reports[0] else {
        panic!("{reports:?}")
    };
    println!("{}", reports[0]);
    assert_eq!((s.queue.as_str(), s.waiting), ("held-up", 1));
    assert!(s.stalled >= THRESHOLD);
    assert_eq!(s.workers.len(), 1);
    let w = &s.workers[0];
    assert_eq!(w.queue, "held-up");
    assert!(
        w.item.contains("a_worklist_that_does_not_move"),
        "{}",
        w.item
    );
    assert_eq!(w.description, "at the gate");
    if std::path::Path::new("/proc/self/stat").exists() {
        assert_eq!(w.sleeping, Some(true));
    }
    // Once per period, not with every tick.
    eventually("the stall lasts and is reported again", || {
        times.lock().unwrap().len() >= 3
    });
    for pair in times.lock().unwrap().windows(2) {
        assert!(pair[1] - pair[0] > THRESHOLD * 9 / 10, "{pair:?}");
    }
    gate.open();
    first.join().unwrap();
    assert_eq!(second.join().unwrap(), 2);
}

/// The body of a process that stalls for ever; `limit` sets when it is to end.
fn stall_for_ever(limit: impl FnOnce(cmwq::RuntimeBuilder) -> cmwq::RuntimeBuilder) {
    let builder = Runtime::builder()
        .max_threads(1)
        .watchdog(Duration::from_millis(100));
    let rt = limit(builder).build().unwrap();
    let wq = rt.workqueue("held-up").build().unwrap();
    let gate = Gate::new();
    let g = gate.clone();
    let first = wq.spawn(move || g.pass_silently());
    drop(wq.spawn(|| ()));
    first.join().unwrap();
}

fn assert_aborted(test: &str, says: &str) {
    use std::os::unix::process::ExitStatusExt as _;
    let out = in_child(test);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{errors}");
    assert!(
        errors.contains("held-up") && errors.contains(says),
        "{errors}"
    );
}

#[test]
fn a_process_that_asked_for_it_aborts_at_the_second_stall() {
    if is_child() {
        return stall_for_ever(|b| b.abort_on_stall(2));
    }
    let test = "a_process_that_asked_for_it_aborts_at_the_second_stall";
    assert_aborted(test, "this is stall 2 (panic_on_stall=2)");
}

#[test]
fn a_process_that_asked_for_it_aborts_when_a_stall_lasts() {
    if is_child() {
        return stall_for_ever(|b| b.abort_on_stall_time(Duration::from_millis(300)));
    }
    let test = "a_process_that_asked_for_it_aborts_when_a_stall_lasts";
    assert_aborted(test, "panic_on_stall_time=0.3");
}

#[test]
fn touching_the_watchdog_forgives() {
    let rt = Runtime::builder()
        .max_threads(1)
        .watchdog(Duration::from_millis(300))
        .build()
        .unwrap();
    let wq = rt.workqueue("held-up").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let g = gate.clone();
    let first = wq.spawn(move || g.pass_silently());
    let second = wq.spawn(|| ());
    let start = Instant::now();
    let mut longest_pause = Duration::ZERO;
    let mut last = Instant::now();
    while start.elapsed() < Duration::from_millis(900) {
        longest_pause = longest_pause.max(last.elapsed());
        last = Instant::now();
        rt.touch_watchdog();
        std::thread::sleep(Duration::from_millis(10));
    }
    let reports = rt.reports();
    gate.open();
    first.join().unwrap();
    second.join().unwrap();
    if longest_pause > Duration::from_millis(250) {
        println!("skipped: this thread did not run for {longest_pause:?}");
        return;
    }
    assert_eq!(reports, []);
}

#[test]
fn surplus_idle_workers_are_culled() {
    let rt = Runtime::builder()
        .idle_timeout(Duration::from_millis(30))
        .build()
        .unwrap();
    let wq = rt.workqueue("crowd").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let n = 10 * cpus();
    let items: Vec<_> = (0..n)
        .map(|_| {
            let g = gate.clone();
            wq.spawn(move || g.pass())
        })
        .collect();
    gate.await_arrivals(n);
    assert!(rt.threads() >= n);
    gate.open();
    items.into_iter().for_each(|h| h.join().unwrap());
    // Kernel's rule: two stay however idle.
    eventually("idle workers leave", || rt.threads() <= 2);
    let c = rt.thread_counts();
    println!("{c:?}");
    assert!(c.left_culled as usize >= n - 2);
    assert_eq!(c.left_shutdown, 0);
    assert_eq!(wq.spawn(|| 3).join().unwrap(), 3);
}

#[test]
fn idle_workers_stay_for_their_time() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("crowd").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let items: Vec<_> = (0..8)
        .map(|_| {
            let g = gate.clone();
            wq.spawn(move || g.pass())
        })
        .collect();
    gate.await_arrivals(8);
    gate.open();
    items.into_iter().for_each(|h| h.join().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    assert!(rt.threads() >= 8);
    assert_eq!(rt.thread_counts().left_culled, 0);
}

/// Context switches and CPU time of all threads of this process but the calling one.
fn activity() -> (u64, Duration) {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let mut switches = 0;
    for t in std::fs::read_dir("/proc/self/task").unwrap() {
        let t = t.unwrap();
        if own.ends_with(t.file_name()) {
            continue;
        }
        let Ok(s) = std::fs::read_to_string(t.path().join("status")) else {
            continue;
        };
        switches += s
            .lines()
            .filter(|l| l.contains("ctxt_switches"))
            .filter_map(|l| l.split_whitespace().last()?.parse::<u64>().ok())
            .sum::<u64>();
    }
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) };
    (
        switches,
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32).saturating_sub(libc_thread_time()),
    )
}

#[test]
fn an_idle_runtime_uses_no_cpu_and_wakes_nobody() {
    if !std::path::Path::new("/proc/self/task").exists() {
        println!("skipped: no /proc");
        return;
    }
    if !is_child() {
        let out = in_child("an_idle_runtime_uses_no_cpu_and_wakes_nobody");
        println!("{}", String::from_utf8_lossy(&out.stdout));
        assert!(out.status.success(), "{out:?}");
        return;
    }
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("burst").build().unwrap();
    let items: Vec<_> = (0..200)
        .map(|i| {
            wq.spawn(move || {
                if i % 10 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                spin(Duration::from_micros(30));
            })
        })
        .collect();
    items.into_iter().for_each(|h| h.join().unwrap());
    // The tick goes on for a moment after the last item that waited, and where the machine is busy otherwise a sentinel may
    // have to wait for a CPU before it can go to sleep.
    let mut seen = Vec::new();
    for _ in 0..15 {
        std::thread::sleep(Duration::from_millis(500));
        let before = activity();
        std::thread::sleep(Duration::from_secs(1));
        let after = activity();
        seen.push((after.0 - before.0, after.1.saturating_sub(before.1)));
        if seen.last().is_some_and(|s| s.0 == 0) {
            break;
        }
    }
    println!("context switches and CPU time, second by second: {seen:?}");
    let (switches, cpu) = seen[seen.len() - 1];
    assert_eq!(switches, 0, "somebody wakes up again and again");
    assert!(cpu < Duration::from_millis(1), "{cpu:?}");
}
