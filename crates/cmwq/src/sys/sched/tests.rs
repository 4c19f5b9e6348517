//! Tests against the running kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::*;

#[test]
fn a_sentinel_is_idle_class_pinned_and_can_be_unpinned_by_others() {
    let cpus: Vec<u32> = cpu::members(&cpu::affinity(0).unwrap()).collect();
    let (tid, stop) = (
        Arc::new(AtomicI32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (t, s) = (Arc::clone(&tid), Arc::clone(&stop));
    let last = cpus[cpus.len() - 1];
    let sentinel = std::thread::spawn(move || {
        enter_idle_class().unwrap();
        pin(0, last).unwrap();
        assert_eq!(cpu::current_cpu(), Some(last));
        t.store(cpu::gettid(), Ordering::Release);
        while !s.load(Ordering::Acquire) {
            yield_now();
        }
    });
    while tid.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let tid = tid.load(Ordering::Acquire);
    assert_eq!(cpu::policy(tid).unwrap(), Policy::Idle);
    assert_eq!(cpu::affinity(tid).unwrap(), cpu::single(last).unwrap());
    unpin(tid).unwrap();
    let wide = cpu::affinity(tid).unwrap();
    assert!(cpus.iter().all(|c| cpu::members(&wide).any(|w| w == *c)));
    stop.store(true, Ordering::Release);
    sentinel.join().unwrap();
}

#[test]
fn pinning_to_a_cpu_that_does_not_exist_is_an_error() {
    assert!(pin(0, 8191).is_err());
    let e = pin(0, 8192).unwrap_err();
    assert!(e.to_string().contains("CPU 8192"), "{e}");
}
