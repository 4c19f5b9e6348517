//! The clock of this machine, and the latch under fire.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::*;

#[test]
fn the_counter_is_used_only_if_cpu_and_kernel_agree() {
    let tsc = Some((Source::Tsc, "tsc"));
    assert_eq!(choose_by(tsc, Ok(()), Ok("tsc\n".into())).0, Source::Tsc);
    let (s, why) = choose_by(tsc, Ok(()), Ok("kvm-clock\n".into()));
    assert_eq!(s, Source::OsClock);
    assert!(why.contains("kvm-clock"), "{why}");
    let (s, why) = choose_by(tsc, Err("not steady"), Ok("tsc".into()));
    assert_eq!((s, why.as_str()), (Source::OsClock, "not steady"));
    let (s, why) = choose_by(tsc, Ok(()), Err("no such file".into()));
    assert_eq!(s, Source::OsClock);
    assert!(why.contains("no such file"), "{why}");
    assert_eq!(choose_by(None, Ok(()), Ok("tsc".into())).0, Source::OsClock);
}

#[test]
fn keeps_up_with_the_os_clock() {
    let start = monotonic_ns();
    let mut worst = 0;
    while monotonic_ns() - start < 400_000_000 {
        // Bracketed, so that a preemption between the two readings widens the bracket and not the error.
        let before = monotonic_ns();
        let stamp = Clock::to_monotonic(Clock::now()).as_nanos() as u64;
        let after = monotonic_ns();
        worst = worst
            .max(before.saturating_sub(stamp))
            .max(stamp.saturating_sub(after));
        Clock::maintain();
    }
    let status = Clock::status();
    println!("{status:?}, at most {worst} ns outside the bracket");
    // 10 ppm of 400 ms is 4 us.
    assert!(worst < 10_000, "{worst} ns; {status:?}");
    assert_eq!(status.calibrated, status.source != Source::OsClock);
}

#[test]
fn stamps_of_one_thread_do_not_decrease() {
    let threads: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(|| {
                let mut last = 0;
                for i in 0..200_000 {
                    let now = Clock::now();
                    // See "Monotony" in the module: preempted maintainers may cost a little.
                    assert!(now + 5_000 >= last, "back by {}", last - now);
                    last = last.max(now);
                    if i % 64 == 0 {
                        Clock::maintain();
                    }
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
}

/// Readers must never combine words of two lines. The lines are such that any mixture gives another result.
#[test]
fn the_latch_never_shows_a_mixture() {
    static LATCH: Latch = Latch::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    const TICKS: u64 = 1 << 40;
    // At TICKS each of these lines reads 2^40 exactly.
    let line = |i: u64| Line {
        ticks: TICKS - (i << 20),
        ns: TICKS - (i << 20) * (i % 7 + 1),
        rate: (i % 7 + 1) << 32,
    };
    assert_eq!(LATCH.read(|| TICKS), None);
    LATCH.publish(line(1));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(|| {
                let mut n = 0_u64;
                while !STOP.load(Ordering::Relaxed) {
                    assert_eq!(LATCH.read(|| TICKS), Some(TICKS));
                    n += 1;
                }
                n
            })
        })
        .collect();
    let start = Instant::now();
    let mut i = 1;
    while start.elapsed() < Duration::from_millis(200) {
        i += 1;
        LATCH.publish(line(i % 1000 + 1));
    }
    STOP.store(true, Ordering::Relaxed);
    for r in readers {
        assert!(r.join().unwrap() > 0);
    }
    assert!(i > 1000);
}

#[test]
#[ignore = "prints a figure; run with --release -- --ignored --nocapture"]
fn cost_of_a_stamp() {
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_millis(200) {
        Clock::now();
        Clock::maintain();
    }
    const N: u32 = 1_000_000;
    let per = |f: &dyn Fn() -> u64| {
        let mut rounds: Vec<f64> = (0..9)
            .map(|_| {
                // CPU time, so that other load hardly counts.
                let start = crate::sys::cpu::own_cpu_time().unwrap();
                for _ in 0..N {
                    std::hint::black_box(f());
                }
                (crate::sys::cpu::own_cpu_time().unwrap() - start).as_nanos() as f64 / f64::from(N)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        format!("{:.1} [{:.1}..{:.1}]", rounds[4], rounds[0], rounds[8])
    };
    println!("source {:?}", Clock::status());
    println!(
        "Clock::now {} ns, clock_gettime {} ns, counter alone {} ns",
        per(&Clock::now),
        per(&monotonic_ns),
        per(&counter::now)
    );
}
