//! The parser on made-up lines, the rest on real threads.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::sys::cpu::{self, gettid, own_cpu_time};

const TAIL: &str = " 1 2 2 0 -1 4194304 95 0 0 0 11 22 0 0 20 0 1 0 1044 2584576 192 18446744073709551615 1 1 0 0 0 0 0 \
                    4096 0 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0";

#[test]
fn names_cannot_confuse_the_parser() {
    for name in ["x", "", "a b", ") R 1 1 1", "((((", "a\nb", ")"] {
        let line = format!("77 ({name}) D{TAIL}\n");
        let expected = StatLine {
            state: ThreadState::Uninterruptible,
            user_ticks: 11,
            system_ticks: 22,
            cpu: Some(5),
        };
        assert_eq!(parse_stat(line.as_bytes()), Some(expected), "{name:?}");
    }
}

#[test]
fn each_letter_means_what_the_kernel_means() {
    for (letter, state) in [
        ('R', ThreadState::Runnable),
        ('S', ThreadState::Blocked),
        ('D', ThreadState::Uninterruptible),
        ('I', ThreadState::Blocked),
        ('T', ThreadState::Stopped),
        ('t', ThreadState::Stopped),
        ('Z', ThreadState::Gone),
        ('X', ThreadState::Gone),
        ('?', ThreadState::Unknown),
    ] {
        assert_eq!(
            parse_stat(format!("1 (a) {letter}{TAIL}").as_bytes())
                .unwrap()
                .state,
            state
        );
        assert_eq!(state.is_blocked(), "SDI".contains(letter));
    }
}

#[test]
fn short_or_foreign_text_is_refused() {
    for text in [
        "",
        "1 (a",
        "1 (a)",
        "1 (a) R",
        "1 (a) RR 1 2 3",
        "1 (a) R a b c d e f g h i j k l m",
    ] {
        assert_eq!(parse_stat(text.as_bytes()), None, "{text:?}");
    }
    // An old kernel that ends early still tells state and times.
    let early = parse_stat(b"1 (a) R 1 2 2 0 -1 4194304 95 0 0 0 11 22").unwrap();
    assert_eq!((early.user_ticks, early.cpu), (11, None));
}

proptest! {
    #[test]
    fn the_parser_never_panics(text in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_stat(&text);
    }
}

/// Polls until the thread looks as expected; fails after ten seconds with what it looked like last.
fn await_state(stat: &ThreadStat, expected: ThreadState) {
    let start = Instant::now();
    while stat.state() != expected {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}, not {expected:?}",
            stat.state()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn sees_a_real_thread_block_run_and_go() {
    if !Path::new("/proc/self/task").exists() {
        println!("skipped: no /proc");
        return;
    }
    let (tell, tid) = channel();
    let (go, wait) = channel::<u32>();
    let t = std::thread::spawn(move || {
        tell.send(gettid()).unwrap();
        for millis in wait {
            // Of CPU time: on a busy machine that takes longer.
            let start = own_cpu_time().unwrap();
            while own_cpu_time().unwrap() - start < Duration::from_millis(millis.into()) {}
            tell.send(0).unwrap();
        }
    });
    let mut tid = tid.iter();
    let id = tid.next().unwrap();
    let stat = ThreadStat::open(id).unwrap();
    await_state(&stat, ThreadState::Blocked);
    let before = stat.read().unwrap();
    go.send(60).unwrap();
    await_state(&stat, ThreadState::Runnable);
    tid.next().unwrap();
    await_state(&stat, ThreadState::Blocked);
    let after = stat.read().unwrap();
    assert!(
        after.user_ticks + after.system_ticks > before.user_ticks + before.system_ticks,
        "{before:?} {after:?}"
    );
    assert!(after.cpu.is_some());
    let report = StallReport::of(id);
    assert_eq!(report.state, Some(ThreadState::Blocked));
    assert!(report.name.is_some());
    match report.syscall {
        Some(n) => assert_eq!(n, libc::SYS_futex, "{report:?}"),
        None => println!("skipped: the kernel does not tell the system call"),
    }
    drop(go);
    t.join().unwrap();
    await_state(&stat, ThreadState::Gone);
    assert!(stat.read().unwrap_err().is_gone());
    assert!(ThreadStat::open(id).is_err());
    assert_eq!(StallReport::of(id), StallReport::default());
}

#[test]
fn a_thread_in_its_own_look_is_running() {
    match ThreadStat::open(gettid()) {
        Ok(stat) => assert_eq!(stat.state(), ThreadState::Runnable),
        Err(e) => println!("skipped: {e}"),
    }
}

#[test]
fn without_proc_there_is_a_reason_and_no_panic() {
    let empty = tempfile::tempdir().unwrap();
    let e = ThreadStat::open_in(empty.path(), 1).unwrap_err();
    assert!(
        e.is_gone() && e.to_string().contains("self/task/1/stat"),
        "{e}"
    );
    assert_eq!(StallReport::of_in(empty.path(), 1), StallReport::default());
    let task = empty.path().join("self/task/1");
    std::fs::create_dir_all(&task).unwrap();
    std::fs::write(task.join("stat"), "nonsense").unwrap();
    let stat = ThreadStat::open_in(empty.path(), 1).unwrap();
    assert_eq!(stat.state(), ThreadState::Unknown);
    assert_eq!(stat.read().unwrap_err().errno(), rustix::io::Errno::BADMSG);
}

#[test]
fn the_mask_in_proc_is_the_one_that_was_set() {
    let by_call = cpu::affinity(0).unwrap();
    let Some(all) = allowed_cpus(0) else {
        println!("skipped: no /proc");
        return;
    };
    let by_call: Vec<usize> = cpu::members(&by_call).map(|c| c as usize).collect();
    assert!(
        by_call.iter().all(|c| all.contains(*c)),
        "{by_call:?} {all:?}"
    );
    let one = u32::try_from(by_call[0]).unwrap();
    cpu::set_affinity(0, &cpu::single(one).unwrap()).unwrap();
    assert_eq!(
        allowed_cpus(0).unwrap().iter().collect::<Vec<_>>(),
        [by_call[0]]
    );
    assert_eq!(allowed_cpus(gettid()), allowed_cpus(0));
    assert_eq!(allowed_cpus(i32::MAX), None);
}
