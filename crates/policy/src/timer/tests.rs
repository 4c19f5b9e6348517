//! The wheel against a sorted map, and the invariants W1 to W5 of the README after every step.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Latest moment, in ns after the deadline, by which a timer set with this delay has fired.
fn allowed_lateness(delay: u64) -> u64 {
    if delay <= 60 * SECOND {
        GRANULE_NS
    } else {
        (delay as f64 * 0.016) as u64 + GRANULE_NS
    }
}

fn advance_all<T>(wheel: &mut TimerWheel<T>, now: u64) -> Vec<T> {
    let mut out = Vec::new();
    let done = wheel.advance(now, usize::MAX, |_, t| out.push(t));
    assert_eq!((done.fired, done.more), (out.len(), false));
    out
}

#[test]
fn precision_is_half_a_millisecond_to_a_minute_and_sixteen_per_mille_beyond() {
    const { assert!(GRANULE_NS <= MS) };
    for delay in [
        1,
        1000,
        MS,
        7 * MS,
        SECOND,
        59 * SECOND,
        60 * SECOND,
        61 * SECOND,
        3_600 * SECOND,
        1 << 55,
    ] {
        for start in [0, 1, GRANULE_NS - 1, 123_456_789_123] {
            let mut wheel = TimerWheel::new(start);
            let id = wheel.insert(start, start + delay, ());
            let at = wheel.next_expiry_ns().unwrap();
            assert_eq!(wheel.expiry_ns(id), Some(at));
            assert!(at >= start + delay, "early: {delay} from {start}");
            assert!(
                at - (start + delay) < allowed_lateness(delay),
                "late: {delay} from {start} at {at}"
            );
            assert!(advance_all(&mut wheel, at - 1).is_empty());
            assert_eq!(
                advance_all(&mut wheel, at).len(),
                1,
                "one wake-up is enough"
            );
        }
    }
}

#[test]
fn an_empty_wheel_asks_for_nothing() {
    let mut wheel = TimerWheel::<()>::new(5 * SECOND);
    assert_eq!(wheel.next_expiry_ns(), None);
    let id = wheel.insert(5 * SECOND, 6 * SECOND, ());
    assert_eq!(wheel.cancel(id), Some(()));
    assert_eq!(wheel.next_expiry_ns(), None);
    assert!(wheel.is_empty());
    assert!(advance_all(&mut wheel, u64::MAX).is_empty());
    assert!(advance_all(&mut wheel, 0).is_empty());
}

#[test]
fn the_past_is_due_at_once() {
    let mut wheel = TimerWheel::new(SECOND);
    wheel.insert(SECOND, 0, 'a');
    wheel.insert(SECOND, 1, 'b');
    assert!(wheel.next_expiry_ns().unwrap() <= SECOND);
    assert_eq!(advance_all(&mut wheel, SECOND), ['a', 'b']);
}

#[test]
fn ids_of_timers_that_are_gone_find_nothing() {
    let mut wheel = TimerWheel::new(0);
    let a = wheel.insert(0, MS, 'a');
    assert_eq!(wheel.get(a), Some(&'a'));
    assert_eq!(advance_all(&mut wheel, SECOND), ['a']);
    let b = wheel.insert(SECOND, 2 * SECOND, 'b');
    assert_ne!(a, b);
    assert_eq!((wheel.get(a), wheel.expiry_ns(a)), (None, None));
    assert_eq!(wheel.cancel(a), None);
    assert!(!wheel.modify(a, SECOND, SECOND));
    assert_eq!(wheel.cancel(b), Some('b'));
    assert_eq!(wheel.cancel(b), None);
    let other = TimerWheel::<char>::new(0);
    assert_eq!(other.get(b), None);
}

#[test]
fn modify_keeps_the_id_and_moves_both_ways() {
    let mut wheel = TimerWheel::new(0);
    let id = wheel.insert(0, 10 * SECOND, 'x');
    assert!(wheel.modify(id, 0, 20 * MS));
    assert!(wheel.modify(id, 0, 3_600 * SECOND));
    assert!(advance_all(&mut wheel, 100 * SECOND).is_empty());
    assert!(wheel.modify(id, 100 * SECOND, 101 * SECOND));
    *wheel.get_mut(id).unwrap() = 'y';
    assert_eq!(advance_all(&mut wheel, 101 * SECOND + MS), ['y']);
}

/// A wheel that nobody advanced for an hour must not take that hour for part of the next delay.
#[test]
fn a_stale_wheel_does_not_blur_a_short_timer() {
    let mut wheel = TimerWheel::new(0);
    let now = 3_600 * SECOND;
    wheel.insert(now, now + 60 * MS, ());
    let at = wheel.next_expiry_ns().unwrap();
    assert!((now + 60 * MS..now + 61 * MS).contains(&at));
}

#[test]
fn the_end_of_time_never_comes_and_breaks_nothing() {
    let mut wheel = TimerWheel::new(0);
    let never = wheel.insert(0, u64::MAX, "never");
    wheel.insert(0, u64::MAX / 2, "late");
    wheel.check();
    assert_eq!(advance_all(&mut wheel, u64::MAX), ["late"]);
    assert_eq!(wheel.next_expiry_ns(), Some(u64::MAX));
    assert_eq!(wheel.cancel(never), Some("never"));
}

/// Not the length of the jump counts, but the timers.
#[test]
fn a_jump_of_a_century_is_bounded_work() {
    let mut wheel = TimerWheel::new(0);
    for i in 0..10_u64 {
        wheel.insert(0, i * 333 * SECOND + 7, i);
    }
    wheel.insert(0, 200 * 365 * 86_400 * SECOND, 99);
    let mut fired = Vec::new();
    let done = wheel.advance(100 * 365 * 86_400 * SECOND, 11 * 8, |_, i| fired.push(i));
    assert!(!done.more, "eight touches a timer are enough");
    assert_eq!(fired, (0..10).collect::<Vec<_>>());
    wheel.check();
}

#[test]
fn a_budget_interrupts_and_nothing_is_lost_or_doubled() {
    let mut wheel = TimerWheel::new(0);
    let ids: Vec<_> = (0..1_000_u64)
        .map(|i| wheel.insert(0, 5 * SECOND + i % 100 * MS, i))
        .collect();
    let (mut fired, mut calls) = (Vec::new(), 0);
    let mut more = true;
    while more {
        let done = wheel.advance(6 * SECOND, 7, |_, i| fired.push(i));
        assert!(done.fired <= 7);
        more = done.more;
        calls += 1;
        wheel.check();
        if more {
            assert!(wheel.next_expiry_ns().unwrap() <= 6 * SECOND);
        }
        // In between: cancel one that is due, set one that is due, move one away.
        if calls == 3 {
            assert_eq!(wheel.cancel(ids[999]), Some(999));
            wheel.insert(6 * SECOND, 5 * SECOND, 5_000);
            assert!(wheel.modify(ids[998], 6 * SECOND, 60 * SECOND));
            wheel.check();
        }
    }
    fired.sort_unstable();
    assert_eq!(fired, (0..998).chain([5_000]).collect::<Vec<_>>());
    assert_eq!(wheel.len(), 1);
    assert_eq!(advance_all(&mut wheel, 61 * SECOND), [998]);
}

#[test]
fn a_million_timers_each_on_time() {
    const N: u64 = 1_000_000;
    let mut wheel = TimerWheel::new(0);
    let mut random = 1_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut ids = Vec::new();
    for _ in 0..N {
        let deadline = next() % (600 * SECOND);
        ids.push(wheel.insert(0, deadline, deadline));
    }
    for id in ids.iter().step_by(2) {
        assert!(wheel.cancel(*id).is_some());
    }
    wheel.check();
    let (mut fired, mut calls) = (0, 0);
    while let Some(now) = wheel.next_expiry_ns() {
        calls += 1;
        let done = wheel.advance(now, usize::MAX, |_, deadline| {
            assert!(
                now >= deadline && now - deadline < allowed_lateness(deadline),
                "{deadline} at {now}"
            );
        });
        fired += done.fired;
    }
    assert_eq!(fired as u64, N / 2);
    // At most once per tick of 600 s.
    assert!(calls < 600 * SECOND / GRANULE_NS + 1, "{calls} wake-ups");
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Cancel(usize),
    Modify(usize, u64),
    Advance(u64, usize),
    Next,
}

fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0..3 * GRANULE_NS,
        0..200 * MS,
        0..70 * SECOND,
        0..100_000 * SECOND,
        (0_u32..60).prop_map(|bits| 1 << bits),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => delay().prop_map(Op::Insert),
        2 => any::<usize>().prop_map(Op::Cancel),
        2 => (any::<usize>(), delay()).prop_map(|(i, d)| Op::Modify(i, d)),
        3 => (delay(), prop_oneof![Just(usize::MAX), 0_usize..5]).prop_map(|(d, b)| Op::Advance(d, b)),
        3 => Just(Op::Next),
    ]
}

/// What the model knows of a timer: when it was set for, and the last moment at which it may fire.
#[derive(Clone, Copy, Debug)]
struct Set {
    id: TimerId,
    deadline: u64,
    latest: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn behaves_like_a_sorted_map(start in prop_oneof![Just(0), 0..1_u64 << 61], ops in prop::collection::vec(op(), 1..120)) {
        let mut now = start;
        let mut wheel = TimerWheel::new(now);
        let mut model: BTreeMap<u32, Set> = BTreeMap::new();
        let mut next_key = 0_u32;
        let (mut took_out, mut interrupted) = (false, false);
        let pick = |model: &BTreeMap<u32, Set>, i: usize| model.keys().nth(i % model.len().max(1)).copied();
        for op in ops {
            let latest = |d: u64| (now + d).saturating_add(allowed_lateness(d));
            match op {
                Op::Insert(d) => {
                    let id = wheel.insert(now, now + d, next_key);
                    model.insert(next_key, Set { id, deadline: now + d, latest: latest(d) });
                    next_key += 1;
                }
                Op::Cancel(i) => {
                    if let Some(key) = pick(&model, i) {
                        prop_assert_eq!(wheel.cancel(model[&key].id), Some(key));
                        prop_assert_eq!(wheel.cancel(model[&key].id), None);
                        model.remove(&key);
                        took_out = true;
                    }
                }
                Op::Modify(i, d) => {
                    if let Some(key) = pick(&model, i) {
                        prop_assert!(wheel.modify(model[&key].id, now, now + d));
                        let set = model.get_mut(&key).unwrap();
                        (set.deadline, set.latest) = (now + d, latest(d));
                        took_out = true;
                    }
                }
                Op::Advance(..) | Op::Next => {
                    let budget = match op {
                        Op::Advance(d, budget) => {
                            now = (now + d).min(1 << 62);
                            budget
                        }
                        _ => {
                            now = now.max(wheel.next_expiry_ns().unwrap_or(now)).min(1 << 62);
                            usize::MAX
                        }
                    };
                    let mut fired = Vec::new();
                    let done = wheel.advance(now, budget, |id, key| fired.push((id, key)));
                    interrupted = done.more;
                    prop_assert_eq!(done.fired, fired.len());
                    for (id, key) in fired {
                        let set = model.remove(&key).expect("fires once, and only what is set");
                        prop_assert_eq!(set.id, id);
                        prop_assert!(set.deadline <= now, "early");
                    }
                    if !done.more {
                        for set in model.values() {
                            prop_assert!(now < set.latest, "{set:?} not fired at {now}");
                        }
                    }
                }
            }
            wheel.check();
            prop_assert_eq!(wheel.len(), model.len());
            let first = model.values().map(|s| wheel.expiry_ns(s.id).unwrap()).min();
            match (wheel.next_expiry_ns(), first) {
                (None, None) => {}
                // Perhaps too early, never too late.
                (Some(told), Some(first)) if interrupted || took_out => prop_assert!(told <= first.max(now)),
                // Exact; what is due already is told as some moment up to now.
                (Some(told), Some(first)) => prop_assert!(told == first || first.max(told) <= now, "{told}, {first}"),
                other => prop_assert!(false, "{other:?}"),
            }
            let mut listed: Vec<u32> = wheel.iter().map(|(_, _, key)| *key).collect();
            listed.sort_unstable();
            prop_assert_eq!(listed, model.keys().copied().collect::<Vec<_>>());
        }
        // However it was treated, it comes to rest, in few calls.
        let mut calls = 0;
        while let Some(next) = wheel.next_expiry_ns() {
            now = now.max(next);
            let _ = wheel.advance(now, usize::MAX, |_, key| {
                let set = model.remove(&key).expect("fires once");
                assert!(set.deadline <= now);
            });
            calls += 1;
            prop_assert!(calls < 2_000);
        }
        prop_assert!(model.is_empty());
    }
}

#[test]
#[ignore = "prints a figure; run with --release -- --ignored --nocapture on a quiet machine"]
fn cost_with_a_million_timers_set() {
    const N: u64 = 1_000_000;
    let mut wheel = TimerWheel::new(0);
    let mut ids: Vec<_> = (0..N).map(|i| wheel.insert(0, i * 600_000, i)).collect();
    let time = |what: &str, f: &mut dyn FnMut()| {
        let start = std::time::Instant::now();
        f();
        println!(
            "{what}: {:.1} ns each",
            start.elapsed().as_nanos() as f64 / N as f64
        );
    };
    time("modify", &mut || {
        for (i, id) in (0..).zip(&ids) {
            assert!(wheel.modify(*id, 0, (i * 7_919 % N) * 600_000));
        }
    });
    time("cancel + insert", &mut || {
        for id in &mut ids {
            let i = wheel.cancel(*id).unwrap();
            *id = wheel.insert(0, i * 600_000, i);
        }
    });
    time("expire", &mut || {
        while let Some(now) = wheel.next_expiry_ns() {
            let _ = wheel.advance(now, usize::MAX, |_, _| {});
        }
    });
}
