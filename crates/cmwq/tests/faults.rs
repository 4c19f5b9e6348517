//! What fails must lose nothing and run nothing twice: thread creation at every point and for any time, refused facilities,
//! panics, forks, items that misbehave, a machine that stands still.

mod common;

use cmwq::{DetectorState, Detectors, Report, Runtime, Workqueue};
use common::{BadDrop, Count, Gate, Opener, eventually, in_child, is_child, within};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Items of several kinds, each of which counts how often it ran; waits for all, and says what was wrong.
fn run_everything_once(wq: &Workqueue) {
    let n = 120;
    let runs: Arc<Vec<AtomicUsize>> = Arc::new((0..n).map(|_| AtomicUsize::new(0)).collect());
    let handles: Vec<_> = (0..n)
        .map(|i| {
            let runs = runs.clone();
            wq.spawn(move || {
                runs[i].fetch_add(1, Ordering::SeqCst);
                if i % 10 == 0 {
                    std::thread::sleep(Duration::from_micros(300));
                }
                i
            })
        })
        .collect();
    for (i, h) in handles.into_iter().enumerate() {
        assert_eq!(h.join().unwrap(), i);
    }
    for (i, r) in runs.iter().enumerate() {
        assert_eq!(r.load(Ordering::SeqCst), 1, "item {i}");
    }
}

/// The k-th thread that is asked for, whichever it is (spawner, worker, service, sentinel, timer thread), and those right
/// after it cannot be made.
#[test]
fn thread_creation_fails_at_every_point() {
    let cases: Vec<_> = (0..8)
        .flat_map(|first| [1, 3].map(|length| (first, length)))
        .map(|(first, length)| {
            std::thread::spawn(move || {
                let asked = AtomicUsize::new(0);
                let rt = Runtime::builder()
                    .thread_faults(move |_| {
                        let k = asked.fetch_add(1, Ordering::SeqCst);
                        !(first..first + length).contains(&k)
                    })
                    .build()
                    .unwrap();
                let wq = rt.workqueue("t").build().unwrap();
                run_everything_once(&wq);
                let delayed = Count::new();
                let d = delayed.clone();
                let tick = cmwq::DelayedWork::new(move |_| {
                    d.up();
                });
                wq.queue_delayed(&tick, Duration::from_millis(3)).unwrap();
                wq.flush().unwrap();
                eventually("the timer fires", || {
                    // Who waits looks after timers while no thread can.
                    let _ = wq.flush();
                    delayed.get() == 1
                });
                wq.destroy().unwrap();
                rt.shutdown().unwrap();
            })
        })
        .collect();
    for c in cases {
        c.join().unwrap();
    }
}

#[test]
fn while_no_thread_can_be_made_a_guaranteed_queue_still_progresses_without_anybody_waiting() {
    let allowed = Arc::new(AtomicBool::new(true));
    let a = allowed.clone();
    let rt = Runtime::builder()
        .thread_faults(move |_| a.load(Ordering::SeqCst))
        .build()
        .unwrap();
    let wq = rt.workqueue("safe").guaranteed().build().unwrap();
    let other = rt.workqueue("other").build().unwrap();
    allowed.store(false, Ordering::SeqCst);
    let done = Count::new();
    for _ in 0..40 {
        let d = done.clone();
        drop(wq.spawn(move || d.up()));
    }
    let stranded = other.spawn(|| 11);
    eventually("the rescuer runs them", || done.get() == 40);
    let s = wq.stats();
    assert_eq!((s.rescued, s.completed), (40, 40));
    assert!(s.mayday >= 1);
    assert!(rt.thread_counts().failed >= 1);
    assert!(!stranded.is_finished(), "it has no rescuer");
    // Threads can be made again: everything recovers by itself.
    allowed.store(true, Ordering::SeqCst);
    assert_eq!(stranded.join().unwrap(), 11);
    let n = wq.stats().rescued;
    eventually("workers run the queue's items again", || {
        run_everything_once(&wq);
        wq.stats().completed > wq.stats().rescued + 50
    });
    println!("{n} rescued, {:?}", rt.thread_counts());
    wq.destroy().unwrap();
}

#[test]
fn the_rescuer_serves_other_pools_of_its_queue_while_one_item_blocks_in_it() {
    within("other items progress", || {
        let allowed = Arc::new(AtomicBool::new(true));
        let a = allowed.clone();
        let rt = Runtime::builder()
            .thread_faults(move |_| a.load(Ordering::SeqCst))
            .build()
            .unwrap();
        let wq = rt.workqueue("safe").guaranteed().build().unwrap();
        // One worker exists before nothing more can be made.
        assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
        allowed.store(false, Ordering::SeqCst);
        let gate = Gate::new();
        let _open = Opener(&gate);
        // One more may have been in the making.
        let made = || {
            let pools = rt.snapshot().pools;
            pools.iter().map(|p| p.workers as usize).sum::<usize>()
        };
        eventually("all that were made have begun", || made() == rt.threads());
        let threads = made();
        let held: Vec<_> = (0..threads)
            .map(|_| {
                let g = gate.clone();
                wq.spawn(move || g.pass())
            })
            .collect();
        gate.await_arrivals(threads);
        assert_eq!(wq.spawn(|| 2).join().unwrap(), 2);
        assert!(wq.stats().rescued >= 1);
        gate.open();
        held.into_iter().for_each(|h| h.join().unwrap());
    });
}

#[test]
fn the_thread_ceiling_holds_and_nothing_is_lost() {
    let rt = Runtime::builder().max_threads(1).build().unwrap();
    let wq = rt.workqueue("narrow").build().unwrap();
    run_everything_once(&wq);
    assert!(rt.threads() <= 1);
}

/// Really: an ordinary user whose processes and threads are at their limit.
#[test]
fn an_ordinary_user_at_the_limit_of_processes_is_served_by_the_rescuer() {
    if !is_child() {
        run_child_as_ordinary_user(
            "an_ordinary_user_at_the_limit_of_processes_is_served_by_the_rescuer",
        );
        return;
    }
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("safe").guaranteed().build().unwrap();
    set_process_limit(1);
    let refused = std::thread::Builder::new().spawn(|| ()).is_err();
    if !refused {
        println!("skipped: the limit on processes does not bind this user");
        return;
    }
    let done = Count::new();
    for _ in 0..30 {
        let d = done.clone();
        drop(wq.spawn(move || d.up()));
    }
    eventually("the rescuer runs them", || done.get() == 30);
    assert_eq!(wq.stats().rescued, 30);
    assert!(
        rt.warnings().iter().any(|w| w.contains("EAGAIN")),
        "{:?}",
        rt.warnings()
    );
    set_process_limit(u64::MAX);
    let plain = rt.workqueue("plain").build().unwrap();
    assert_eq!(plain.spawn(|| 3).join().unwrap(), 3);
}

fn set_process_limit(n: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls take a live structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit), 0);
        limit.rlim_cur = n.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit), 0);
    }
}

/// Runs the test again in a child; if this is root, as another user.
fn run_child_as_ordinary_user(test: &str) {
    let exe = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(&exe);
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("CMWQ_CHILD", "1");
    // SAFETY: plain query.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(61_234).gid(61_234);
    }
    match command.output() {
        Ok(out) => {
            println!("{}", String::from_utf8_lossy(&out.stdout));
            assert!(out.status.success(), "{out:?}");
        }
        Err(e) => println!(
            "skipped: {} cannot be run as another user: {e}",
            exe.display()
        ),
    }
}

/// Makes the system refuse these calls with `EPERM` for the calling thread and those it makes, for good. False if filters
/// cannot be had.
fn refuse_calls(calls: &[libc::c_long]) -> bool {
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for &c in calls {
        program.push(op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            c as u32,
            0,
            1,
        ));
        program.push(op(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        ));
    }
    program.push(op(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
        0,
        0,
    ));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program is alive during the call, which copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ) == 0
    }
}

/// Blocked unseen, four a CPU, and others behind them.
fn blocked_items_are_replaced(rt: &Runtime) {
    let wq = rt.workqueue("unseen").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let n = 2 * cpus();
    let held: Vec<_> = (0..n)
        .map(|_| {
            let g = gate.clone();
            wq.spawn(move || g.pass_silently())
        })
        .collect();
    assert_eq!(wq.spawn(|| 4).join().unwrap(), 4);
    gate.open();
    held.into_iter().for_each(|h| h.join().unwrap());
}

#[test]
fn a_filter_that_denies_every_facility_leaves_the_tick_with_clocks() {
    const NAME: &str = "a_filter_that_denies_every_facility_leaves_the_tick_with_clocks";
    if !is_child() {
        let out = in_child(NAME);
        println!("{}", String::from_utf8_lossy(&out.stdout));
        assert!(out.status.success(), "{out:?}");
        return;
    }
    if !refuse_calls(&[
        libc::SYS_perf_event_open,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setaffinity,
        libc::SYS_setpriority,
        libc::SYS_openat,
    ]) {
        println!("skipped: no seccomp filters here");
        return;
    }
    let rt = Runtime::builder()
        .detectors(Detectors::new().records(true))
        .build()
        .unwrap();
    blocked_items_are_replaced(&rt);
    let wq = rt.workqueue("t").build().unwrap();
    run_everything_once(&wq);
    let status = rt.detection();
    let state = |name: &str| status.iter().find(|d| d.name == name).unwrap();
    for d in &status {
        println!("{}: {} ({})", d.name, d.state.as_str(), d.reason);
    }
    assert_eq!(state("records").state, DetectorState::Refused);
    assert!(state("records").reason.contains("perf_event_open"));
    assert_eq!(state("proc-stat").state, DetectorState::Refused);
    assert_ne!(state("sentinel").state, DetectorState::InForce);
    assert_eq!(state("cpu-clock").state, DetectorState::InForce);
}

#[test]
fn without_proc_clocks_are_compared() {
    const NAME: &str = "without_proc_clocks_are_compared";
    if !is_child() {
        let out = in_child(NAME);
        println!("{}", String::from_utf8_lossy(&out.stdout));
        assert!(out.status.success(), "{out:?}");
        return;
    }
    let rt = Runtime::builder().build().unwrap();
    let empty = tempfile::tempdir().unwrap();
    // SAFETY: zero-terminated path.
    let rc = unsafe {
        let path = std::ffi::CString::new(empty.path().to_str().unwrap()).unwrap();
        libc::chroot(path.as_ptr())
    };
    if rc != 0 {
        println!("skipped: changing the root needs a privilege");
        return;
    }
    std::env::set_current_dir("/").unwrap();
    blocked_items_are_replaced(&rt);
    let status = rt.detection();
    let state = |name: &str| status.iter().find(|d| d.name == name).unwrap().state;
    assert_eq!(state("proc-stat"), DetectorState::Refused, "{status:?}");
    assert_eq!(state("cpu-clock"), DetectorState::InForce);
}

#[test]
fn panics_in_items_and_in_drop_glue_cost_no_worker() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("panics").build().unwrap();
    let handles: Vec<_> = (0..60)
        .map(|i| {
            let bad = BadDrop("a captured value");
            wq.spawn(move || {
                let _keep = &bad;
                if i % 3 == 0 {
                    std::panic::panic_any(BadDrop("a payload"));
                }
                if i % 3 == 1 {
                    panic!("item {i}");
                }
                i
            })
        })
        .collect();
    for h in handles {
        // Whatever it resolves to, it resolves; its value may be one whose drop panics.
        let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(h.join())));
        if let Err(p) = r {
            std::mem::forget(p);
        }
    }
    run_everything_once(&wq);
    let c = rt.thread_counts();
    assert_eq!((c.left_shutdown, c.left_culled), (0, 0), "{c:?}");
}

/// An item that moves its thread, lowers its priority, renames it, blocks its signals.
#[test]
fn items_that_change_their_thread_do_not_stop_others() {
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("meddlers").build().unwrap();
    let items: Vec<_> = (0..4 * cpus())
        .map(|i| {
            wq.spawn(move || {
                // SAFETY: calls about the calling thread with live arguments.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(i % cpus(), &mut set);
                    libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
                    libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as u32, 5);
                    libc::prctl(libc::PR_SET_NAME, c"meddled".as_ptr());
                    let mut all: libc::sigset_t = std::mem::zeroed();
                    libc::sigfillset(&raw mut all);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
                }
            })
        })
        .collect();
    items.into_iter().for_each(|h| h.join().unwrap());
    run_everything_once(&wq);
    blocked_items_are_replaced(&rt);
}

/// Stopped for longer than the watchdog's threshold while items wait: nothing is to blame for that.
#[test]
fn a_machine_that_stood_still_is_no_stall() {
    const NAME: &str = "a_machine_that_stood_still_is_no_stall";
    if !is_child() {
        let exe = std::env::current_exe().unwrap();
        let child = std::process::Command::new(exe)
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env("CMWQ_CHILD", "1")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        std::thread::sleep(Duration::from_millis(700));
        // SAFETY: signals to a child that has not been waited for.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        std::thread::sleep(Duration::from_millis(3500));
        // SAFETY: as above.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        let out = child.wait_with_output().unwrap();
        println!("{}", String::from_utf8_lossy(&out.stdout));
        assert!(out.status.success(), "{out:?}");
        return;
    }
    let rt = Runtime::builder()
        .max_threads(1)
        .watchdog(Duration::from_secs(3))
        .build()
        .unwrap();
    let wq = rt.workqueue("paused").build().unwrap();
    let gate = Gate::new();
    let _open = Opener(&gate);
    let g = gate.clone();
    let first = wq.spawn(move || g.pass_silently());
    let second = wq.spawn(|| ());
    // This thread is stopped too, so it opens the gate about 1.5 s of running time after it began.
    for _ in 0..150 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let stalls: Vec<Report> = rt.reports();
    gate.open();
    first.join().unwrap();
    second.join().unwrap();
    assert_eq!(stalls, []);
}
