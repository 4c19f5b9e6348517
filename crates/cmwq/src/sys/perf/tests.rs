//! Real threads, real records; skipped aloud where the kernel refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::time::{Duration, Instant};

use super::*;
use crate::sys::cpu::{self, gettid};
use crate::sys::parker::Parker;

/// False, with a word about it, where there are no records.
fn allowed() -> bool {
    match probe() {
        Ok(()) => true,
        Err(why) => {
            println!("skipped: {why}");
            false
        }
    }
}

/// A thread that computes or sleeps as told, and says which: `computing` is only true while it really runs its own code.
struct Subject {
    tid: i32,
    computing: Arc<AtomicBool>,
    compute: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    parker: Arc<Parker>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Subject {
    fn start(pin: Option<u32>) -> Self {
        let tid = Arc::new(AtomicI32::new(0));
        let [computing, compute, stop] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let parker = Arc::new(Parker::new());
        let (t, c, g, s, p) = (
            Arc::clone(&tid),
            Arc::clone(&computing),
            Arc::clone(&compute),
            Arc::clone(&stop),
            Arc::clone(&parker),
        );
        let thread = std::thread::spawn(move || {
            if let Some(cpu) = pin {
                cpu::set_affinity(0, &cpu::single(cpu).unwrap()).unwrap();
            }
            t.store(gettid(), Ordering::SeqCst);
            while !s.load(Ordering::SeqCst) {
                c.store(true, Ordering::SeqCst);
                while g.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                c.store(false, Ordering::SeqCst);
                p.park();
            }
        });
        while tid.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let tid = tid.load(Ordering::SeqCst);
        Self {
            tid,
            computing,
            compute,
            stop,
            parker,
            thread: Some(thread),
        }
    }

    fn compute(&self) {
        self.compute.store(true, Ordering::SeqCst);
        self.parker.unpark();
        while !self.computing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn sleep(&self) {
        self.compute.store(false, Ordering::SeqCst);
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.sleep();
        self.parker.unpark();
        let _ = self.thread.take().unwrap().join();
    }
}

fn eventually(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "never saw: {what}"
        );
        std::thread::yield_now();
    }
}

/// Moves the calling thread to a CPU that thread `tid` is not allowed on, if there is one.
fn step_aside(tid: i32) -> bool {
    cpu::set_affinity(0, &[u64::MAX; cpu::MAX_MASK_WORDS]).unwrap();
    let theirs: Vec<u32> = cpu::members(&cpu::affinity(tid).unwrap()).collect();
    let ours = cpu::affinity(0).unwrap();
    let other = cpu::members(&ours).find(|c| !theirs.contains(c));
    other.is_some_and(|c| cpu::set_affinity(0, &cpu::single(c).unwrap()).is_ok())
}

/// Looks many times while the subject says that it computes before *and* after the look.
///
/// Even a spinning thread blocks once in a while (a page fault that meets a mapping change of another thread), so a few
/// spells of "blocked" are borne; what must not be is that it stays so, as it would with a lost record.
fn hardly_ever_blocked_while_computing(s: &Subject, mut look: impl FnMut() -> SwitchState) {
    let (mut looks, mut seen_in, mut spells, mut last) = (0, 0, 0, SwitchState::Unknown);
    let start = Instant::now();
    // Seen from its own CPU it never runs. From another it may be preempted for a while, so look until it was seen running.
    let elsewhere = step_aside(s.tid);
    while (looks < 100_000 || (elsewhere && seen_in == 0) || last == SwitchState::OutBlocked)
        && start.elapsed() < Duration::from_secs(10)
    {
        if !s.computing.load(Ordering::SeqCst) {
            continue;
        }
        let state = look();
        if s.computing.load(Ordering::SeqCst) {
            looks += 1;
            seen_in += u32::from(state == SwitchState::In);
            spells += u32::from(state == SwitchState::OutBlocked && last != state);
            last = state;
        }
    }
    if elsewhere {
        assert!(
            seen_in > 0,
            "in {looks} looks never seen running, last {last:?}"
        );
    }
    assert_ne!(last, SwitchState::OutBlocked, "after {looks} looks");
    assert!(spells <= 5, "{spells} spells of blocking in {looks} looks");
}

#[test]
fn decodes_the_three_kinds() {
    let record = |misc: u64| 14 | misc << 32 | 8 << 48;
    assert_eq!(decode(record(0)), SwitchState::In);
    assert_eq!(decode(record(1 << 13)), SwitchState::OutBlocked);
    assert_eq!(decode(record(3 << 13)), SwitchState::OutPreempted);
    assert_eq!(decode(9), SwitchState::Unknown);
    assert_eq!(decode(0), SwitchState::Unknown);
    assert_eq!(
        ThreadState::from(SwitchState::OutPreempted),
        ThreadState::Runnable
    );
    assert_eq!(
        ThreadState::from(SwitchState::OutBlocked),
        ThreadState::Blocked
    );
    assert_eq!(mem::size_of::<Attr>(), 64);
}

#[test]
fn a_threads_ring_tells_blocked_from_running() {
    if !allowed() {
        return;
    }
    let cpu = cpu::members(&cpu::affinity(0).unwrap()).next().unwrap();
    let s = Subject::start(Some(cpu));
    let ring = ThreadRing::open(s.tid).unwrap();
    for _ in 0..3 {
        s.compute();
        hardly_ever_blocked_while_computing(&s, || ring.switch_state());
        s.sleep();
        eventually("blocked", || ring.switch_state() == SwitchState::OutBlocked);
        assert_eq!(ring.state(), ThreadState::Blocked);
    }
    // The thread goes first, then the ring, which stays readable and says nothing new.
    drop(s);
    let records = ring.records();
    let last = ring.switch_state();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((ring.records(), ring.switch_state()), (records, last));
}

#[test]
fn a_preempted_thread_is_not_a_blocked_one() {
    if !allowed() {
        return;
    }
    let cpu = cpu::members(&cpu::affinity(0).unwrap()).next().unwrap();
    let s = Subject::start(Some(cpu));
    let ring = ThreadRing::open(s.tid).unwrap();
    let rival = Subject::start(Some(cpu));
    rival.compute();
    s.compute();
    eventually("preempted", || {
        ring.switch_state() == SwitchState::OutPreempted
    });
    // The ring goes first, then the thread.
    drop(ring);
}

#[test]
fn the_ring_survives_being_overwritten() {
    if !allowed() {
        return;
    }
    let ring = ThreadRing::open(0).unwrap();
    let parker = Parker::new();
    for _ in 0..1_000 {
        parker.park_timeout(Duration::from_nanos(1));
        assert_eq!(
            ring.switch_state(),
            SwitchState::In,
            "after {} records",
            ring.records()
        );
    }
}

#[test]
fn one_ring_per_cpu_covers_all_threads_made_afterwards() {
    if !allowed() {
        return;
    }
    // On a thread of its own: the events stay with the thread that opened them.
    std::thread::spawn(|| {
        let cpus: Vec<u32> = cpu::members(&cpu::affinity(0).unwrap())
            .take(MAX_CPU_RINGS)
            .collect();
        let before = Subject::start(Some(cpus[0]));
        let rings = match CpuRings::open_for_children(cpus.iter().copied()) {
            Ok(rings) => rings,
            Err(e) => {
                println!("skipped: {e}");
                return;
            }
        };
        for cpu in &cpus {
            let ring = rings.get(*cpu).unwrap();
            let (a, b) = (Subject::start(Some(*cpu)), Subject::start(Some(*cpu)));
            for s in [&a, &b] {
                s.compute();
                hardly_ever_blocked_while_computing(s, || ring.switch_state(s.tid));
                s.sleep();
                eventually("blocked", || {
                    ring.switch_state(s.tid) == SwitchState::OutBlocked
                });
            }
            assert!(ring.last().is_some());
        }
        before.compute();
        before.sleep();
        assert_eq!(
            rings.get(cpus[0]).unwrap().switch_state(before.tid),
            SwitchState::Unknown
        );
        assert!(rings.get(u32::MAX).is_none());
    })
    .join()
    .unwrap();
}

#[test]
fn refusals_are_errors_with_a_reason() {
    assert!(ThreadRing::open(0x3fff_fff0).is_err());
    assert!(CpuRing::open_for_children(u32::MAX).is_err());
    if allowed() {
        let e = CpuRings::open_for_children(std::iter::repeat_n(0, MAX_CPU_RINGS + 1)).unwrap_err();
        assert_eq!(e.errno(), Errno::TOOBIG, "{e}");
    }
    let e = PerfRefusal::Call(
        SysError::new(
            "perf_event_open",
            crate::sys::Subject::Thread(0),
            Errno::ACCESS,
        ),
        Some(4),
    );
    assert!(
        e.to_string().ends_with("(kernel.perf_event_paranoid is 4)"),
        "{e}"
    );
}

#[test]
#[ignore = "prints a figure; run with --release -- --ignored --nocapture on a quiet machine"]
fn cost_of_a_look() {
    if !allowed() {
        return;
    }
    let s = Subject::start(None);
    let ring = ThreadRing::open(s.tid).unwrap();
    s.compute();
    const N: u32 = 1_000_000;
    let start = Instant::now();
    for _ in 0..N {
        std::hint::black_box(ring.switch_state());
    }
    println!(
        "{:.2} ns a look",
        start.elapsed().as_nanos() as f64 / f64::from(N)
    );
}
