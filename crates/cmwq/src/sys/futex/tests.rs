//! Tests against the running kernel.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::*;
use crate::sys::clock::monotonic;

#[test]
fn a_changed_word_is_not_waited_on() {
    let f = Futex::new(1);
    assert_eq!(f.wait(0, Timeout::Never), Wait::Changed);
}

#[test]
fn times_out_at_the_deadline_and_not_before() {
    let f = Futex::new(0);
    for absolute in [false, true] {
        let (start, wait) = (Instant::now(), Duration::from_millis(20));
        let timeout = if absolute {
            Timeout::AtMonotonic(monotonic() + wait)
        } else {
            Timeout::After(wait)
        };
        while f.wait(0, timeout) != Wait::TimedOut {}
        assert!(
            start.elapsed() >= wait,
            "{timeout:?} after {:?}",
            start.elapsed()
        );
    }
    assert_eq!(
        f.wait(0, Timeout::AtMonotonic(Duration::ZERO)),
        Wait::TimedOut
    );
}

#[test]
fn an_enormous_timeout_is_never_not_an_error() {
    let f = Arc::new(Futex::new(0));
    for timeout in [
        Timeout::After(Duration::MAX),
        Timeout::AtMonotonic(Duration::MAX),
    ] {
        f.word().store(0, Ordering::SeqCst);
        let g = Arc::clone(&f);
        let waiter = std::thread::spawn(move || {
            while g.word().load(Ordering::SeqCst) == 0 {
                assert_ne!(g.wait(0, timeout), Wait::TimedOut);
            }
        });
        f.word().store(1, Ordering::SeqCst);
        f.wake(1);
        waiter.join().unwrap();
    }
}

#[test]
fn a_waker_may_outlive_its_word() {
    let word = Box::new(Futex::new(0));
    let waker = word.waker();
    drop(word);
    assert_eq!(waker.wake(1), 0);
}

/// Signals must neither end a wait early nor stretch it.
#[test]
fn interrupted_waits_keep_their_deadline() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing, installed without SA_RESTART so that waits really see EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let tid = Arc::new(std::sync::atomic::AtomicI32::new(0));
    let seen = Arc::clone(&tid);
    let waiter = std::thread::spawn(move || {
        seen.store(crate::sys::cpu::gettid(), Ordering::SeqCst);
        let start = Instant::now();
        assert_eq!(
            Futex::new(0).wait(0, Timeout::After(Duration::from_millis(100))),
            Wait::TimedOut
        );
        start.elapsed()
    });
    while !waiter.is_finished() {
        let t = tid.load(Ordering::SeqCst);
        if t != 0 {
            // SAFETY: plain system call; at worst the thread is gone and the call fails with ESRCH.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), t, libc::SIGURG) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = waiter.join().unwrap();
    assert!(took >= Duration::from_millis(100), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
