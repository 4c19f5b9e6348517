//! Shutdown, exit, drop, fork (design: exit and drop behaviour; kernel semantics: 2.10).

mod common;

use cmwq::{BuildError, DelayedWork, JoinError, QueueError, Runtime, WaitError, Work, Workqueue};
use common::*;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn an_unused_runtime_has_no_threads() {
    let rt = Runtime::builder().thread_name("unused").build().unwrap();
    let _wq = rt.workqueue("t").build().unwrap();
    let _system = rt.system();
    assert_eq!((rt.threads(), threads_named("unused")), (0, 0));
}

#[test]
fn shutdown_runs_everything_and_then_refuses() {
    within("shutdown", || {
        let rt = runtime();
        let a = rt.workqueue("a").max_active(1).build().unwrap();
        let b = rt.workqueue("b").build().unwrap();
        let ran = Count::new();
        // Items of one queue that queue on another which is looked at before.
        let r = ran.clone();
        let a2 = a.clone();
        for _ in 0..50 {
            let (r, a) = (r.clone(), a2.clone());
            drop(b.spawn(move || {
                r.up();
                let r = r.clone();
                // Refused as soon as `a` drains, since this is no item of `a`.
                drop(a.spawn(move || r.up()));
            }));
        }
        let armed = DelayedWork::new(|_| panic!("an hour has not passed"));
        a.queue_delayed(&armed, HOUR).unwrap();
        rt.shutdown().unwrap();
        assert!(ran.get() >= 50);
        assert!(armed.cancelled_by_drain());
        assert!(matches!(a.spawn(|| ()).join(), Err(JoinError::Refused(_))));
        assert!(matches!(
            rt.workqueue("late").build(),
            Err(BuildError::ShutDown)
        ));
        rt.shutdown().unwrap();
        let (sa, sb) = (a.stats(), b.stats());
        assert_eq!(sa.completed + sb.completed, ran.get() as u64);
        eventually("all workers leave", || rt.threads() == 0);
    });
}

#[test]
fn shutdown_timeout_reports_what_is_left() {
    within("shutdown with a timeout", || {
        let rt = runtime();
        let wq = rt.workqueue("busy").max_active(1).build().unwrap();
        let gate = Gate::new();
        let _opener = Opener(&gate);
        let g = gate.clone();
        let w = Work::with_name("the_slow_one", move |_| g.pass());
        wq.queue(&w).unwrap();
        gate.await_arrivals(1);
        drop(wq.spawn(|| ()));
        let left = rt
            .shutdown_timeout(Duration::from_millis(10))
            .unwrap()
            .unwrap_err();
        assert_eq!(left.left.len(), 1);
        let l = &left.left[0];
        assert_eq!((l.wq.as_str(), l.active, l.inactive), ("busy", 1, 1));
        assert_eq!(l.running, ["the_slow_one"]);
        assert!(left.to_string().contains("the_slow_one"));
        gate.open();
        rt.shutdown_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(wq.stats().completed, 2);
    });
}

/// peers (tokio 6463): shutdown races everything that items may do.
#[test]
fn shutdown_against_busy_items_ends() {
    within("shutdown against everything", || {
        for round in 0..40 {
            let rt = runtime();
            let wq = rt.workqueue("t").build().unwrap();
            let n = Count::new();
            let accepted: usize = std::thread::scope(|s| {
                let issuer = s.spawn(|| {
                    (0..300)
                        .filter(|_| {
                            let n = n.clone();
                            wq.try_spawn(move || {
                                cmwq::blocking(std::thread::yield_now);
                                n.up();
                            })
                            .map(drop)
                            .is_ok()
                        })
                        .count()
                });
                std::thread::sleep(Duration::from_micros(round * 20));
                rt.shutdown().unwrap();
                issuer.join().unwrap()
            });
            assert_eq!(n.get(), accepted, "what was accepted has run");
        }
    });
}

#[test]
fn dropping_the_runtime_runs_what_is_queued_and_ends_the_threads() {
    within("drop of a runtime", || {
        let ran = Count::new();
        {
            let rt = Runtime::builder().thread_name("dropped").build().unwrap();
            let wq = rt.workqueue("t").build().unwrap();
            for _ in 0..500 {
                let r = ran.clone();
                drop(wq.spawn(move || r.up()));
            }
            drop(rt.system().unbound.spawn(|| ()));
        }
        eventually("all has run", || ran.get() == 500);
        eventually("the threads end", || threads_named("dropped") == 0);
    });
}

#[test]
fn the_last_runtime_handle_may_go_inside_a_worker() {
    within("drop inside a worker", || {
        let rt = Runtime::builder().thread_name("inside").build().unwrap();
        let wq = rt.workqueue("t").build().unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let queue = wq.clone();
        drop(wq.spawn(move || {
            drop((queue, rt));
            tx.send(()).unwrap();
        }));
        drop(wq);
        rx.recv_timeout(PATIENCE).unwrap();
        eventually("the threads end", || threads_named("inside") == 0);
    });
}

/// A thousand runtimes come and go; neither threads nor descriptors are left.
#[test]
fn runtimes_come_and_go_without_leaving_anything() {
    within("many runtimes", || {
        let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let one = || {
            let rt = Runtime::builder().thread_name("comego").build().unwrap();
            let wq = rt.workqueue("t").build().unwrap();
            assert_eq!(wq.spawn(|| 1).join().unwrap(), 1);
            let d = DelayedWork::new(|_| ());
            wq.queue_delayed(&d, HOUR).unwrap();
        };
        one();
        let before = fds();
        (0..200).for_each(|_| one());
        eventually("the threads end", || threads_named("comego") == 0);
        assert!(
            fds() <= before + 20,
            "{before} descriptors before, {} after",
            fds()
        );
    });
}

/// When `main` returns, the process ends, whatever is queued.
#[test]
fn main_returns_with_work_pending() {
    if !is_child() {
        let out = in_child("main_returns_with_work_pending");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    let wq = Workqueue::builder("t").build().unwrap();
    let d = DelayedWork::new(|_| ());
    wq.queue_delayed(&d, HOUR).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    drop(wq.spawn(move || {
        tx.send(()).unwrap();
        std::thread::sleep(HOUR);
    }));
    for _ in 0..1000 {
        drop(wq.spawn(|| std::thread::sleep(HOUR)));
    }
    rx.recv_timeout(PATIENCE).unwrap();
    // The test harness now returns from its main; the parent sees that the process ends.
}

#[test]
fn exit_inside_an_item_ends_the_process_with_its_code() {
    if !is_child() {
        let out = in_child("exit_inside_an_item_ends_the_process_with_its_code");
        assert_eq!(out.status.code(), Some(7));
        return;
    }
    let wq = Workqueue::builder("t").build().unwrap();
    drop(wq.spawn(|| std::process::exit(7)));
    std::thread::sleep(HOUR);
}

#[test]
fn the_global_runtime_is_made_once() {
    if !is_child() {
        let out = in_child("the_global_runtime_is_made_once");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    let own = Runtime::builder()
        .thread_name("mine")
        .build_global()
        .unwrap();
    assert!(Runtime::builder().build_global().is_err());
    let name = Workqueue::builder("t")
        .build()
        .unwrap()
        .spawn(|| std::thread::current().name().unwrap().to_owned())
        .join()
        .unwrap();
    assert!(name.starts_with("mine/"), "{name}");
    assert_eq!(own.threads(), Runtime::global().threads());
}

/// Runs `f` in a forked child; its answer is the exit status.
fn forked(f: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child calls `f` and `_exit`. `f` allocates, which the C library makes possible in a forked child, and
    // otherwise does what these tests are about: it calls the library with the parent's threads gone.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(99);
            libc::_exit(code.into());
        }
        let start = std::time::Instant::now();
        let mut status = 0;
        while libc::waitpid(pid, &raw mut status, libc::WNOHANG) == 0 {
            if start.elapsed() > PATIENCE {
                libc::kill(pid, libc::SIGKILL);
                panic!("the forked child hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(libc::WIFEXITED(status), "the child ended by {status:#x}");
        libc::WEXITSTATUS(status)
    }
}

/// peers (rayon 708, turbovec): after a fork every call says so; nothing hangs; inherited handles can be dropped.
#[test]
fn in_a_forked_child_calls_say_so_and_nothing_hangs() {
    let rt = runtime();
    let wq = rt.workqueue("t").max_active(1).build().unwrap();
    let gate = Gate::new();
    let _opener = Opener(&gate);
    let g = gate.clone();
    let running = wq.spawn(move || g.pass());
    gate.await_arrivals(1);
    let mut waiting = Some(wq.spawn(|| 1));
    let awaited = wq.spawn(|| 2);
    let cancelled = wq.spawn(|| 3);
    let done = wq.spawn(|| ());
    assert!(done.cancel());
    let queued = Work::new(|_| ());
    wq.queue(&queued).unwrap();
    let idle = Work::new(|_| ());
    let armed = DelayedWork::new(|_| ());
    wq.queue_delayed(&armed, HOUR).unwrap();
    let code = forked(|| {
        let mut step = 0;
        let mut check = |ok: bool| {
            step += 1;
            assert!(ok, "step {step}");
        };
        check(matches!(
            wq.spawn(|| ()).join(),
            Err(JoinError::Refused(QueueError::Forked))
        ));
        check(matches!(wq.queue(&idle), Err(QueueError::Forked)));
        check(matches!(wq.queue(&queued), Err(QueueError::Forked)));
        check(matches!(
            wq.queue_delayed(&armed, HOUR),
            Err(QueueError::Forked)
        ));
        check(matches!(
            wq.mod_delayed(&armed, HOUR),
            Err(QueueError::Forked)
        ));
        check(wq.flush() == Err(WaitError::Forked));
        check(wq.drain() == Err(WaitError::Forked));
        check(wq.clone().destroy() == Err(WaitError::Forked));
        check(wq.set_max_active(3).is_err() && wq.apply_attrs(wq.attrs()).is_err());
        check(matches!(rt.workqueue("x").build(), Err(BuildError::Forked)));
        check(rt.shutdown() == Err(WaitError::Forked));
        let joined = waiting.take().unwrap().join();
        check(matches!(
            joined,
            Err(JoinError::Refused(QueueError::Forked))
        ));
        check(matches!(
            block_on(awaited),
            Err(JoinError::Refused(QueueError::Forked))
        ));
        check(!cancelled.cancel());
        check(matches!(done.join(), Err(JoinError::Cancelled { .. })));
        // Reusable items are idle here, whatever they were there, and serve a runtime of the child's own.
        check(!queued.cancel() && queued.cancel_sync() == Ok(false) && queued.flush() == Ok(false));
        check(!armed.cancel() && armed.flush() == Ok(false) && !armed.is_pending());
        check(!queued.busy().running && !queued.disable() && queued.enable() == Ok(true));
        check(wq.stats().queued == 0 && !wq.congested());
        rt.freeze();
        rt.thaw();
        let own = runtime();
        let own_wq = own.workqueue("child").build().unwrap();
        check(own_wq.spawn(|| 5).join().unwrap() == 5);
        own_wq.queue(&queued).unwrap();
        check(queued.flush().is_ok());
        own_wq
            .queue_delayed(&armed, Duration::from_millis(1))
            .unwrap();
        check(armed.flush().unwrap());
        drop((wq.clone(), rt.clone(), running));
        own_wq.destroy().unwrap();
        0
    });
    assert_eq!(code, 0);
    gate.open();
    wq.flush().unwrap();
    assert_eq!(wq.stats().completed, 5);
}

/// An item that forks and returns in the child: the child must not go on with the parent's items.
#[test]
fn an_item_that_forks_and_returns_runs_nothing_twice() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_owned();
    let rt = synthetic("package:1 l3:1 core:1").build().unwrap();
    let wq = rt.workqueue("t").build().unwrap();
    let note = move |line: &str| {
        use std::io::Write;
        let mut f = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        writeln!(f, "{line}").unwrap();
    };
    let gate = Gate::new();
    let g = gate.clone();
    drop(wq.spawn(move || g.pass()));
    gate.await_arrivals(1);
    let forking = wq.spawn(|| {
        // SAFETY: the child returns from the item and, as is shown here, does nothing more.
        unsafe { libc::fork() }
    });
    for i in 0..50 {
        let note = note.clone();
        drop(wq.spawn(move || note(&format!("item {i}"))));
    }
    gate.open();
    let pid = forking.join().unwrap();
    wq.flush().unwrap();
    let mut status = 0;
    // SAFETY: plain system calls on our own child.
    unsafe {
        let start = std::time::Instant::now();
        while libc::waitpid(pid, &raw mut status, libc::WNOHANG) == 0 {
            if start.elapsed() > PATIENCE {
                libc::kill(pid, libc::SIGKILL);
                panic!("the forked child hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert!(libc::WIFEXITED(status), "{status:#x}");
    let lines = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(lines.lines().count(), 50, "{lines}");
}

#[test]
fn builders_refuse_nonsense_by_name() {
    for (b, what) in [
        (Runtime::builder().max_threads(0), "max_threads"),
        (Runtime::builder().thread_name(""), "thread_name"),
        (Runtime::builder().thread_name("a\0b"), "thread_name"),
    ] {
        let e = b.build().unwrap_err();
        assert!(e.to_string().contains(what), "{e}");
    }
}
