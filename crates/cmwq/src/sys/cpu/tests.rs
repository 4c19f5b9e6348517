//! Tests against the running kernel, on a thread of their own where they change it.

use super::*;

/// Runs `f` on a fresh thread, so that what it changes dies with it.
fn aside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(f).join().unwrap()
}

/// An id that no thread has: above the kernel's highest possible.
const NOBODY: i32 = 0x3fff_fff0;

#[test]
fn the_current_cpu_is_one_of_those_allowed() {
    let mask = affinity(0).unwrap();
    let cpu = current_cpu().unwrap();
    assert!(members(&mask).any(|c| c == cpu), "{cpu} of {mask:?}");
}

#[test]
fn pinning_by_id_moves_the_thread() {
    aside(|| {
        let all = affinity(0).unwrap();
        for cpu in members(&all) {
            set_affinity(gettid(), &single(cpu).unwrap()).unwrap();
            assert_eq!(current_cpu(), Some(cpu));
            assert_eq!(affinity(0).unwrap(), single(cpu).unwrap());
        }
        // The widest mask that exists may be asked for: the kernel intersects.
        set_affinity(0, &[u64::MAX; MAX_MASK_WORDS]).unwrap();
        assert!(members(&all).all(|c| members(&affinity(0).unwrap()).any(|d| c == d)));
        // Longer ones too, as long as the excess is zero.
        let mut long = vec![0; MAX_MASK_WORDS + 3];
        long[..all.len()].copy_from_slice(&all);
        set_affinity(0, &long).unwrap();
        long[MAX_MASK_WORDS] = 1;
        assert_eq!(set_affinity(0, &long).unwrap_err().errno(), Errno::INVAL);
    });
}

#[test]
fn an_impossible_mask_is_an_error_that_names_the_thread() {
    for mask in [&[][..], &[0, 0]] {
        let e = set_affinity(0, mask).unwrap_err();
        assert_eq!(e.errno(), Errno::INVAL, "{e}");
    }
    let e = set_affinity(NOBODY, &[1]).unwrap_err();
    assert!(
        e.is_gone() && e.to_string().contains(&NOBODY.to_string()),
        "{e}"
    );
    assert!(affinity(NOBODY).unwrap_err().is_gone());
    assert_eq!(single(8192), None);
    assert_eq!(members(&single(8191).unwrap()).collect::<Vec<_>>(), [8191]);
}

#[test]
fn nice_goes_up_for_one_thread_only() {
    let before = nice(0).unwrap();
    aside(move || {
        let up = (before + 3).min(19);
        set_nice(gettid(), up).unwrap();
        assert_eq!(nice(0).unwrap(), up);
        // Down again needs a privilege; either answer is right, a panic is not.
        match set_nice(0, before) {
            Ok(()) => assert_eq!(nice(0).unwrap(), before),
            Err(e) => assert!(e.is_refused(), "{e}"),
        }
    });
    assert_eq!(nice(0).unwrap(), before);
    assert!(nice(NOBODY).unwrap_err().is_gone());
    assert!(set_nice(NOBODY, 5).unwrap_err().is_gone());
}

#[test]
fn anyone_may_enter_the_idle_class() {
    aside(|| {
        set_policy(0, Policy::Idle).unwrap();
        assert_eq!(policy(gettid()).unwrap(), Policy::Idle);
        match set_policy(0, Policy::Other) {
            Ok(()) => assert_eq!(policy(0).unwrap(), Policy::Other),
            Err(e) => assert!(e.is_refused(), "{e}"),
        }
    });
    assert_eq!(
        set_policy(0, Policy::Unlike(1)).unwrap_err().errno(),
        Errno::INVAL
    );
    assert!(policy(NOBODY).unwrap_err().is_gone());
}

#[test]
fn names_are_cut_at_fifteen_bytes_between_characters() {
    assert_eq!(fit_name("cmwq/3:1"), "cmwq/3:1");
    assert_eq!(fit_name("0123456789abcdefgh"), "0123456789abcde");
    assert_eq!(fit_name("0123456789abcdé"), "0123456789abcd");
    assert_eq!(fit_name("a\0b"), "a");
    assert_eq!(fit_name(""), "");
    aside(|| {
        set_own_name("0123456789abcdé").unwrap();
        assert_eq!(own_name().unwrap(), "0123456789abcd");
        if std::path::Path::new("/proc/self/task").exists() {
            set_name(gettid(), "other/name:that is long").unwrap();
            assert_eq!(own_name().unwrap(), "other/name:that");
        } else {
            println!("skipped: no /proc");
        }
    });
    assert!(set_name(NOBODY, "x").is_err());
}

#[test]
fn cpu_clocks_of_both_kinds_agree() {
    let own = own_cpu_time().unwrap();
    let by_id = thread_cpu_time(gettid()).unwrap();
    assert!(by_id >= own);
    assert!(by_id - own < Duration::from_secs(1));
    assert!(thread_cpu_time(NOBODY).is_err());
}

#[test]
fn another_threads_clock_advances_only_while_it_runs() {
    let (send, tids) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let t = std::thread::spawn(move || {
        send.send(gettid()).unwrap();
        wait.recv().unwrap();
        let start = own_cpu_time().unwrap();
        while own_cpu_time().unwrap() - start < Duration::from_millis(20) {}
        send.send(0).unwrap();
        wait.recv().unwrap();
    });
    let tid = tids.recv().unwrap();
    let mut before = thread_cpu_time(tid).unwrap();
    // It has sent and now goes to sleep: its clock comes to a halt.
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let now = thread_cpu_time(tid).unwrap();
        if now == before {
            break;
        }
        before = now;
    }
    go.send(()).unwrap();
    tids.recv().unwrap();
    assert!(thread_cpu_time(tid).unwrap() - before >= Duration::from_millis(20));
    go.send(()).unwrap();
    t.join().unwrap();
}

#[test]
fn usage_counts_sleeping_as_voluntary_switches() {
    aside(|| {
        let before = own_usage().unwrap();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let after = own_usage().unwrap();
        assert!(
            after.voluntary >= before.voluntary + 5,
            "{before:?} {after:?}"
        );
        assert!(after.user + after.system >= before.user + before.system);
    });
}
