//! One test a symptom: what went wrong once, here or in the kernel (`row n` = the reference's list of bugs).

mod world;

use cmwq_policy::pool::{CALL_PATIENCE_NS, HogVerdict, Removed, WorkerId, WorkerKind};
use world::{Batch, Req, Setup, Truth, World};

fn world(targets: [u32; 3], max: [u32; 3], percpu_limit: u32) -> World {
    World::new(&Setup {
        targets,
        max,
        percpu_limit,
        intensive: false,
        reserve: false,
        lag: false,
        create_fails: false,
        max_workers: u32::MAX,
    })
}

/// `n` one-shot items of queue `q`, through its `which`-th pwq.
fn queue(w: &mut World, q: usize, which: usize, n: usize) -> Vec<u32> {
    (0..n)
        .map(|_| {
            let item = w.add_item(q, true);
            w.enqueue(q, item, which);
            w.check();
            item
        })
        .collect()
}

/// Carries out everything that is owed, in order.
fn settle(w: &mut World) {
    while !w.todo.is_empty() {
        let r = w.todo.remove(0);
        w.carry_out(r, 1);
        w.check();
    }
}

/// Lets every worker of `p` that is awake and runs nothing ask for work, until none does.
fn start_all(w: &mut World, p: usize) {
    loop {
        settle(w);
        let mut ids: Vec<WorkerId> = w.workers[p]
            .iter()
            .filter(|(_, b)| !b.asleep && !b.running)
            .map(|(&id, _)| id)
            .collect();
        ids.sort_unstable();
        let Some(&id) = ids.first() else { return };
        w.work(p, id);
        w.check();
    }
}

fn running(w: &World, p: usize) -> Vec<(WorkerId, u32)> {
    let mut all: Vec<_> = w.workers[p]
        .iter()
        .filter(|(_, b)| b.running)
        .map(|(&id, b)| (id, b.items[b.claimed as usize - 1].item))
        .collect();
    all.sort_unstable();
    all
}

fn entry_of(w: &World, item: u32) -> (usize, u32) {
    match w.items[item as usize].truth {
        Truth::Pending(p, e) => (p, e),
        Truth::Idle => panic!("item {item} is not pending"),
    }
}

/// A worker of pool 0 with a batch of several items, the first running; target 1, so nobody else comes.
fn a_batch(w: &mut World) -> (WorkerId, Vec<u32>) {
    let items = queue(w, 0, 0, 12);
    start_all(w, 0);
    let (id, _) = running(w, 0)[0];
    assert!(w.workers[0][&id].items.len() > 2, "a batch was taken");
    (id, items)
}

#[test]
fn cancelling_an_item_that_ended_inside_a_batch_says_started() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    let (id, items) = a_batch(&mut w);
    let (_, e) = entry_of(&w, items[1]);
    w.work(0, id); // ends items[0], claims items[1]
    w.work(0, id); // ends items[1], claims items[2]
    let now = w.now;
    assert_eq!(w.with_pool(0, |p, d| p.remove(e, now, d)), Removed::Started);
    w.check();
    w.finish(0);
}

#[test]
fn waiting_inline_for_an_item_that_ended_inside_a_batch_is_refused() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    let (id, items) = a_batch(&mut w);
    let (_, e) = entry_of(&w, items[1]);
    w.work(0, id);
    w.work(0, id);
    let now = w.now;
    assert!(!w.with_pool(0, |p, d| p.inline_begin(e, true, now, d)));
    w.finish(0);
}

#[test]
fn permits_that_arrive_after_a_sweep_do_not_lie_idle_while_another_pwq_waits() {
    let mut w = world([8, 8, 8], [40, 5, 5], 4);
    w.lag = true; // the hint never helps
    let item = queue(&mut w, 0, 0, 1)[0];
    let ask = w.todo.remove(
        w.todo
            .iter()
            .position(|r| matches!(r, Req::Ask(_)))
            .unwrap(),
    );
    w.carry_out(ask, 1);
    let late = w
        .todo
        .iter()
        .copied()
        .find(|r| matches!(r, Req::Grant(..)))
        .unwrap();
    let Req::Grant(_, n, keep) = late else {
        unreachable!()
    };
    assert!(n > 1 && keep > 0, "a lot with spares is under way");
    // The other pool's pwq uses up the rest and waits; the sweep overtakes the grant.
    queue(&mut w, 0, 1, 60);
    let others = |r: &Req| !matches!(r, Req::Create(_)) && *r != late;
    while let Some(i) = w.todo.iter().position(others) {
        w.perform(i, 1);
    }
    let (p, e) = entry_of(&w, item);
    let now = w.now;
    assert_eq!(w.with_pool(p, |p, d| p.remove(e, now, d)), Removed::Removed);
    w.items[item as usize].truth = Truth::Idle;
    w.items[item as usize].cancelled += 1;
    while let Some(i) = w.todo.iter().position(|r| !matches!(r, Req::Create(_))) {
        w.perform(i, 1);
    }
    w.check(); // S3
    w.finish(0);
}

#[test]
fn an_endless_item_does_not_hold_back_what_lies_behind_it_in_its_batch() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    let items = queue(&mut w, 0, 0, 4);
    start_all(&mut w, 0);
    let (id, first) = running(&w, 0)[0];
    assert_eq!(first, items[0]);
    // All but the endless one lie in its batch or behind it; nobody is told that it blocks.
    let mut ticks = 0;
    loop {
        assert!(
            w.pools[0].wants_tick() || ticks > 0,
            "items wait, if only in a batch"
        );
        w.now += 2_100_000_000;
        ticks += 1;
        let now = w.now;
        w.with_pool(0, |p, d| p.tick(now, d));
        start_all(&mut w, 0);
        for (other, _) in running(&w, 0) {
            if other != id {
                w.work(0, other);
            }
        }
        start_all(&mut w, 0);
        if items[1..].iter().all(|&i| w.items[i as usize].ended == 1) {
            break;
        }
        assert!(ticks < 10, "the liveness floor gets the others through");
    }
    assert_eq!(running(&w, 0), [(id, first)]);
    w.finish(0);
}

#[test]
fn the_liveness_floor_starts_for_items_that_came_back_from_a_batch() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    let (id, _) = a_batch(&mut w);
    // Empty the worklist, so that only the batch holds items; then have it recalled.
    while w.pools[0].waiting() > 0 {
        let e = w.pools[0].worklist().next().map(|e| e.item).unwrap();
        let (_, entry) = entry_of(&w, e);
        let now = w.now;
        w.with_pool(0, |p, d| p.remove(entry, now, d));
        w.items[e as usize].truth = Truth::Idle;
        w.items[e as usize].cancelled += 1;
    }
    w.now += 5_000_000_000;
    let now = w.now;
    w.with_pool(0, |p, d| p.recall(id, now, d));
    for _ in 0..3 {
        w.now += 600_000_000;
        let now = w.now;
        w.with_pool(0, |p, d| p.tick(now, d));
    }
    assert!(w.pools[0].limit_now() > 1, "one more worker may run");
    w.finish(0);
}

#[test]
fn an_idle_worker_takes_items_out_of_a_batch_rather_than_sleep() {
    let mut w = world([2, 1, 1], [40, 5, 5], 4);
    let items = queue(&mut w, 0, 0, 2);
    start_all(&mut w, 0); // both run, two workers exist
    for (id, _) in running(&w, 0) {
        w.work(0, id);
    }
    start_all(&mut w, 0);
    let more = queue(&mut w, 0, 0, 16);
    // One worker comes and takes a batch; it is slow.
    let Req::Wake(0, a) = w.todo.remove(0) else {
        panic!("one worker is woken")
    };
    w.workers[0].get_mut(&a).unwrap().asleep = false;
    w.work(0, a);
    assert!(w.workers[0][&a].items.len() > 1);
    start_all(&mut w, 0);
    // The other one works through everything else, the slow one's batch included.
    for _ in 0..200 {
        for (id, _) in running(&w, 0) {
            if id != a {
                w.work(0, id);
            }
        }
        start_all(&mut w, 0);
    }
    let left: Vec<_> = more
        .iter()
        .filter(|&&i| w.items[i as usize].ended == 0)
        .collect();
    assert_eq!(left.len(), 1, "only the slow item itself is left");
    assert!(items.iter().all(|&i| w.items[i as usize].ended == 1));
    w.finish(0);
}

/// The first pool has two workers, which have run an item each and are idle.
fn two_idle_workers() -> World {
    let mut w = world([2, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 2);
    start_all(&mut w, 0);
    for (id, _) in running(&w, 0) {
        w.work(0, id);
    }
    start_all(&mut w, 0);
    w
}

#[test]
fn a_wakeup_that_nobody_sent_leaves_the_idle_list_whole() {
    let mut w = two_idle_workers();
    for id in w.workers[0].keys().copied().collect::<Vec<_>>() {
        w.work(0, id); // both were asleep and idle
        w.check();
    }
    assert_eq!(w.pools[0].counts().idle, 2);
    w.finish(0);
}

#[test]
fn an_item_run_by_its_waiter_counts_as_started() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    let item = queue(&mut w, 2, 0, 1)[0];
    let (p, e) = entry_of(&w, item);
    let now = w.now;
    assert!(w.with_pool(p, |p, d| p.inline_begin(e, false, now, d)));
    let c = w.pools[p].pwqs().next().unwrap().1.counters;
    assert_eq!((c.started, c.inlined, c.completed), (1, 1, 0));
    w.items[item as usize].truth = Truth::Idle;
    w.items[item as usize].running = 1;
    w.inline.push((p, e, item, false));
    w.finish(0);
}

#[test]
fn the_started_count_never_shrinks_when_a_batch_is_recalled() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    let (id, _) = a_batch(&mut w);
    w.work(0, id);
    let count = |w: &World| w.pools[0].pwqs().next().unwrap().1.counters;
    let before = count(&w).started;
    let now = w.now;
    w.with_pool(0, |p, d| p.recall(id, now, d));
    let after = count(&w);
    assert!(after.started >= before);
    assert_eq!(
        (after.started, after.completed),
        (2, 1),
        "one ended, one runs, none else was started"
    );
    w.finish(0);
}

#[test]
fn an_unmanaged_pool_never_puts_an_item_behind_another_in_a_batch() {
    let mut w = world([1, 1, 1], [40, 5, 20], 4);
    let items = queue(&mut w, 4, 1, 12); // through pool 4
    start_all(&mut w, 4);
    assert_eq!(
        running(&w, 4).len(),
        items.len(),
        "every active item has a worker"
    );
    w.finish(0);
}

#[test]
fn a_hog_in_an_unmanaged_pool_is_counted_once() {
    let mut w = world([1, 1, 1], [40, 5, 20], 4);
    queue(&mut w, 4, 1, 1);
    start_all(&mut w, 4);
    let (id, _) = running(&w, 4)[0];
    let now = w.now;
    assert_eq!(
        w.with_pool(4, |p, d| p.mark_hog(id, now, d)),
        HogVerdict::NoExtra
    );
    assert_eq!(
        w.with_pool(4, |p, d| p.mark_hog(id, now, d)),
        HogVerdict::Known
    );
    assert_eq!(
        w.pools[4].pwqs().next().unwrap().1.counters.cpu_intensive,
        1
    );
    w.finish(0);
}

#[test]
fn a_worker_that_was_just_made_counts_as_on_its_way() {
    let mut w = world([3, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 6);
    settle(&mut w); // one was made and has not asked for work yet
    queue(&mut w, 0, 0, 1);
    assert!(
        w.todo.is_empty(),
        "no second one is asked for meanwhile: {:?}",
        w.todo
    );
    w.finish(0);
}

#[test]
fn row_1_a_limit_holds_over_all_pools_of_a_node() {
    let mut w = world([8, 8, 8], [5, 5, 5], 4);
    for which in [0, 1, 0, 1] {
        queue(&mut w, 0, which, 10);
    }
    start_all(&mut w, 0);
    start_all(&mut w, 1);
    start_all(&mut w, 0);
    assert_eq!(running(&w, 0).len() + running(&w, 1).len(), 5);
    w.finish(0);
}

#[test]
fn row_7_a_cancel_while_a_flush_runs_does_not_leave_the_flush_waiting() {
    let mut w = world([1, 1, 1], [40, 5, 5], 1);
    let items = queue(&mut w, 2, 0, 3);
    w.begin_flush(2);
    settle(&mut w);
    queue(&mut w, 2, 0, 1); // of the next colour
    for item in items {
        let (p, e) = entry_of(&w, item);
        let now = w.now;
        assert_eq!(w.with_pool(p, |p, d| p.remove(e, now, d)), Removed::Removed);
        w.items[item as usize].truth = Truth::Idle;
        w.items[item as usize].cancelled += 1;
    }
    settle(&mut w);
    assert!(w.flushers.is_empty(), "nothing of its colour is left");
    w.finish(0);
}

#[test]
fn row_10_after_a_raise_a_new_item_stays_behind_those_held_back() {
    let mut w = world([8, 1, 1], [40, 5, 5], 1);
    let items = queue(&mut w, 2, 0, 3);
    let pwq = entry_of(&w, items[0]);
    let id = w.pools[pwq.0].entry(pwq.1).unwrap().pwq;
    let now = w.now;
    w.with_pool(3, |p, d| p.set_limit(id, 2, now, d));
    let last = queue(&mut w, 2, 0, 1)[0];
    let order: Vec<u32> = w.pools[3].worklist().map(|e| e.item).collect();
    assert_eq!(order, items[..2]);
    let held: Vec<u32> = w.pools[3].inactive(id).map(|e| e.item).collect();
    assert_eq!(held, [items[2], last]);
    w.queues[2].max = 2;
    w.finish(0);
}

#[test]
fn row_16_a_pwq_that_waits_for_permits_with_nothing_left_is_not_released_before_the_answer() {
    let mut w = world([8, 8, 1], [40, 1, 5], 4);
    queue(&mut w, 1, 0, 1);
    settle(&mut w);
    let item = queue(&mut w, 1, 1, 1)[0]; // waits at the slot
    settle(&mut w);
    let (p, e) = entry_of(&w, item);
    let now = w.now;
    w.with_pool(p, |p, d| p.remove(e, now, d));
    w.items[item as usize].truth = Truth::Idle;
    w.items[item as usize].cancelled += 1;
    let tag = w.queues[1].current[&p];
    let id = w.links[tag as usize].id.unwrap();
    let flags = w.flags(tag);
    w.link(1, p, flags);
    w.with_pool(p, |p, d| p.retire_pwq(id, d));
    assert!(!w.todo.contains(&Req::Drained(tag)));
    start_all(&mut w, 0);
    let (worker, _) = running(&w, 0)[0];
    w.work(0, worker);
    start_all(&mut w, 0); // the permit goes to the waiting pwq, which gives it back and leaves
    assert!(w.links[tag as usize].id.is_none());
    w.finish(0);
}

#[test]
fn row_37_a_worker_found_blocked_and_a_hog_at_once_is_counted_out_once() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 2, 0, 1);
    start_all(&mut w, 3);
    let (id, _) = running(&w, 3)[0];
    let now = w.now;
    w.with_pool(3, |p, d| {
        p.blocked(id, now, d);
        p.blocked(id, now, d);
        assert_eq!(p.mark_hog(id, now, d), HogVerdict::Known);
    });
    assert_eq!(
        (w.pools[3].counts().running, w.pools[3].counts().blocked),
        (0, 1)
    );
    w.pools[3].resumed(id);
    w.pools[3].resumed(id);
    assert_eq!(
        w.with_pool(3, |p, d| p.mark_hog(id, now, d)),
        HogVerdict::SetAside
    );
    let c = *w.pools[3].counts();
    assert_eq!(
        (c.running, c.intensive),
        (0, 1),
        "set aside, it does not count"
    );
    assert!(!w.with_pool(3, |p, d| p.blocked(id, now, d)));
    w.check();
    w.finish(0);
}

#[test]
fn row_45_an_unbound_queue_with_limit_1_is_not_ordered() {
    let mut w = world([1, 1, 1], [1, 1, 1], 4);
    let a = queue(&mut w, 1, 0, 2);
    let b = queue(&mut w, 1, 1, 1);
    start_all(&mut w, 0);
    let (id, first) = running(&w, 0)[0];
    assert_eq!(first, a[0]);
    w.work(0, id);
    start_all(&mut w, 0);
    start_all(&mut w, 1);
    let second = running(&w, 0).first().or(running(&w, 1).first()).copied();
    assert_eq!(
        second.unwrap().1,
        b[0],
        "the other pool's item had waited for longer than the second one here"
    );
    w.finish(0);
}

#[test]
fn row_11_an_ordered_item_queued_again_while_it_runs_goes_to_the_newest_pwq() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    let item = w.items.iter().position(|i| i.queue == 3).unwrap() as u32;
    w.enqueue(3, item, 0);
    start_all(&mut w, 0);
    let old = w.queues[3].current[&0];
    let id = w.links[old as usize].id.unwrap();
    let flags = w.flags(old);
    w.queues[3].current.clear();
    w.link(3, 1, flags); // new attributes: another pool
    w.with_pool(0, |p, d| p.retire_pwq(id, d));
    w.enqueue(3, item, 0);
    assert_eq!(entry_of(&w, item).0, 1);
    start_all(&mut w, 1);
    assert!(
        running(&w, 1).is_empty(),
        "plugged until the old pwq is gone"
    );
    w.finish(0);
}

#[test]
fn row_26_a_rescuer_takes_one_item_at_a_time() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 5);
    while let Some(i) = w.todo.iter().position(|r| !matches!(r, Req::Create(_))) {
        let r = w.todo.remove(i);
        w.carry_out(r, 1);
    }
    w.todo.clear();
    let now = w.now;
    w.pools[0].creation_failed(now);
    w.now += 11_000_000;
    let now = w.now;
    w.with_pool(0, |p, d| p.tick(now, d));
    let mayday: Vec<Req> = w.todo.drain(..).collect();
    assert!(matches!(mayday[..], [Req::Mayday(_)]), "{mayday:?}");
    w.carry_out(mayday[0], 1);
    let id = *w.workers[0].keys().next().unwrap();
    w.work(0, id);
    assert_eq!(w.workers[0][&id].items.len(), 1);
    assert_eq!(w.pools[0].waiting(), 4);
    w.finish(5);
}

#[test]
fn a_helper_that_leaves_while_items_wait_leaves_somebody_on_the_way() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 3);
    settle(&mut w);
    let now = w.now;
    let h = w.pools[0].attach(WorkerKind::Helper, 2, now);
    w.workers[0].insert(
        h,
        Batch {
            attached: Some(None),
            ..Batch::default()
        },
    );
    w.work(0, h);
    let item = running(&w, 0)[0].1;
    w.work(0, h);
    assert_eq!(w.items[item as usize].ended, 1);
    let now = w.now;
    w.with_pool(0, |p, d| p.detach(h, now, d));
    w.workers[0].remove(&h);
    w.check(); // P5
    w.finish(0);
}

#[test]
fn a_cpu_intensive_worker_that_ends_wakes_nobody_in_its_own_place() {
    let mut w = World::new(&Setup {
        targets: [1, 1, 1],
        max: [40, 5, 5],
        percpu_limit: 1,
        intensive: true,
        reserve: false,
        lag: false,
        create_fails: false,
        max_workers: u32::MAX,
    });
    queue(&mut w, 2, 0, 2); // limit 1: the second is held back
    start_all(&mut w, 3);
    let (id, _) = running(&w, 3)[0];
    w.work(3, id); // its item ends
    w.work(3, id); // and it takes the second one itself
    assert!(w.todo.is_empty(), "nobody else is needed: {:?}", w.todo);
    assert_eq!(running(&w, 3).len(), 1);
    w.finish(0);
}

#[test]
fn a_queue_is_owed_nothing_for_the_time_its_own_limit_held_items_back() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 1);
    start_all(&mut w, 0);
    w.set_frozen(1, true);
    queue(&mut w, 1, 0, 1);
    settle(&mut w);
    w.now += 50_000_000;
    w.set_frozen(1, false);
    settle(&mut w);
    let now = w.now;
    assert_eq!(w.with_pool(0, |p, d| p.tick(now, d)), None);
    assert_eq!(w.pools[0].oldest_waiting(), Some(now));
    w.finish(1);
}

#[test]
fn where_wake_ups_are_cheap_a_second_worker_comes_for_short_items() {
    for (cost, more) in [(20_000, false), (1_000, true)] {
        let mut w = world([2, 1, 1], [40, 5, 5], 4);
        let mut config = *w.pools[0].config();
        config.wake_cost_ns = cost;
        let now = w.now;
        w.with_pool(0, |p, d| p.configure(config, now, d));
        // Two workers exist; items take 2 us.
        for _ in 0..40 {
            queue(&mut w, 0, 0, 2);
            start_all(&mut w, 0);
            w.now += 2_000;
            for (id, _) in running(&w, 0) {
                w.work(0, id);
            }
            start_all(&mut w, 0);
        }
        for (id, _) in running(&w, 0) {
            w.work(0, id);
        }
        start_all(&mut w, 0);
        queue(&mut w, 0, 0, 1);
        start_all(&mut w, 0);
        queue(&mut w, 0, 0, 1);
        let woken = w
            .todo
            .iter()
            .any(|r| matches!(r, Req::Wake(..) | Req::Create(_)));
        assert_eq!(woken, more, "a wake-up costs {cost} ns");
        w.finish(1);
    }
}

#[test]
fn a_queue_that_others_have_served_is_owed_nothing_any_more() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 1);
    start_all(&mut w, 0);
    let (busy, _) = running(&w, 0)[0];
    let item = queue(&mut w, 1, 0, 1)[0];
    settle(&mut w);
    w.now += 20_000_000;
    let now = w.now;
    let owed = w
        .with_pool(0, |p, d| p.tick(now, d))
        .expect("the second queue is owed a worker");
    assert!(owed.waited_ns >= 10_000_000);
    assert_eq!(w.pools[0].limit_now(), 2);
    let (_, e) = entry_of(&w, item);
    w.with_pool(0, |p, d| p.remove(e, now, d));
    w.items[item as usize].truth = Truth::Idle;
    w.items[item as usize].cancelled += 1;
    queue(&mut w, 0, 0, 1);
    w.with_pool(0, |p, d| p.tick(now, d));
    assert_eq!(w.pools[0].limit_now(), 1, "what it was owed is gone");
    let _ = busy;
    w.finish(1);
}

#[test]
fn a_worker_owed_to_one_queue_that_never_ends_does_not_keep_the_next_queue_waiting() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 1);
    start_all(&mut w, 0);
    let tick = |w: &mut World| {
        let now = w.now;
        let owed = w.with_pool(0, |p, d| p.tick(now, d)).is_some();
        start_all(w, 0);
        owed
    };
    queue(&mut w, 1, 0, 1);
    settle(&mut w);
    w.now += 11_000_000;
    assert!(tick(&mut w), "the second queue is owed a worker");
    assert_eq!(running(&w, 0).len(), 2);
    queue(&mut w, 3, 0, 1);
    settle(&mut w);
    w.now += 11_000_000;
    assert!(!tick(&mut w), "one extra at a time");
    w.now += 90_000_000;
    assert!(tick(&mut w), "the second queue's item takes for ever");
    assert_eq!(running(&w, 0).len(), 3);
    w.finish(2);
}

#[test]
fn a_worker_owed_to_a_queue_is_no_extra_any_more_once_it_blocks() {
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    queue(&mut w, 0, 0, 1);
    start_all(&mut w, 0);
    queue(&mut w, 1, 0, 1);
    settle(&mut w);
    w.now += 11_000_000;
    let now = w.now;
    w.with_pool(0, |p, d| p.tick(now, d));
    start_all(&mut w, 0);
    assert_eq!(w.pools[0].limit_now(), 2);
    let (extra, _) = running(&w, 0)[1];
    w.with_pool(0, |p, d| p.blocked(extra, now, d));
    assert_eq!(w.pools[0].limit_now(), 1);
    w.with_pool(0, |p, _| p.resumed(extra));
    w.finish(2);
}

#[test]
fn a_backlog_is_told_apart_by_who_is_on_the_way() {
    use cmwq_policy::pool::Backlog;
    let mut w = world([1, 1, 1], [40, 5, 5], 4);
    assert_eq!(w.pools[0].backlog(), Backlog::None);
    queue(&mut w, 0, 0, 1);
    start_all(&mut w, 0);
    assert_eq!(w.pools[0].backlog(), Backlog::None);
    queue(&mut w, 0, 0, 1);
    settle(&mut w);
    assert_eq!(
        w.pools[0].backlog(),
        Backlog::Behind,
        "one runs, no more may"
    );
    let (id, _) = running(&w, 0)[0];
    let now = w.now;
    w.with_pool(0, |p, d| p.blocked(id, now, d));
    assert_eq!(w.pools[0].backlog(), Backlog::Short, "none is idle");
    start_all(&mut w, 0);
    assert_eq!(w.pools[0].backlog(), Backlog::None);
    w.with_pool(0, |p, _| p.resumed(id));
    w.finish(3);
}

#[test]
fn a_frozen_queue_starts_nothing_new_and_thaws_in_order() {
    let mut w = world([4, 1, 1], [3, 5, 5], 2);
    // A fixed limit (2 of 5 active) and a leased one (3 of 6).
    let fixed = queue(&mut w, 2, 0, 5);
    let leased = queue(&mut w, 0, 0, 6);
    start_all(&mut w, 3);
    start_all(&mut w, 0);
    w.set_frozen(2, true);
    w.set_frozen(0, true);
    for _ in 0..20 {
        for p in [0, 3] {
            for (id, _) in running(&w, p) {
                w.work(p, id);
                w.check();
            }
            start_all(&mut w, p);
        }
    }
    let ended = |w: &World, items: &[u32]| {
        items
            .iter()
            .filter(|&&i| w.items[i as usize].ended == 1)
            .count()
    };
    assert_eq!(
        ended(&w, &fixed),
        2,
        "what was active has ended, nothing else started"
    );
    assert_eq!(ended(&w, &leased), 3);
    let now = w.now;
    let id = w.links[w.queues[2].current[&3] as usize].id.unwrap();
    w.with_pool(3, |p, d| p.set_limit(id, 4, now, d));
    assert_eq!(
        w.pools[3].pwq(id).active(),
        0,
        "a raised limit does not thaw"
    );
    w.set_frozen(2, false);
    assert_eq!(w.pools[3].pwq(id).active(), 3);
    w.queues[2].max = 4;
    w.finish(0);
}

/// An item waits for another of its queue with its permit lent, and is queued again. Its queue's attributes changed meanwhile, so
/// that its next run comes through a new pwq: the permit which that got did nothing, and the item that was waited for never started.
#[test]
fn an_item_that_waits_with_its_permit_lent_and_is_queued_again_through_a_new_pwq_holds_up_nobody() {
    let mut w = world([4, 4, 4], [40, 1, 5], 4);
    let again = 3; // the first reusable item of queue 1
    w.enqueue(1, again, 0);
    start_all(&mut w, 0);
    let (worker, item) = running(&w, 0)[0];
    assert_eq!(item, again);
    let now = w.now;
    let (_, entry, old) = w.pools[0].running(again).expect("it runs");
    w.link(1, 0, w.pools[0].pwq(old).flags);
    w.with_pool(0, |p, d| p.retire_pwq(old, d));
    // Another pod's item, for which it waits; its own next run; in the order that used to hang.
    assert!(w.with_pool(0, |p, d| p.lend_permit(entry, now, d)));
    w.with_pool(0, |p, d| p.blocked(worker, now, d));
    settle(&mut w);
    w.enqueue(1, again, 0);
    start_all(&mut w, 0);
    let (_, next) = entry_of(&w, again);
    let awaited = queue(&mut w, 1, 1, 1)[0];
    settle(&mut w);
    let active = w.pools[1].worklist().any(|e| e.item == awaited);
    assert!(active, "the permit serves for what is waited for");
    assert!(w.pools[0].entry(next).is_some_and(|e| e.lent));
    // It runs beside the one that waits: one too many.
    w.lag = true;
    w.queues[1].lowered.insert(0);
    start_all(&mut w, 1);
    let (helper, _) = running(&w, 1)[0];
    w.work(1, helper);
    start_all(&mut w, 1);
    w.pools[0].take_permit_back(entry);
    w.with_pool(0, |p, _| p.resumed(worker));
    w.finish(0);
    assert_eq!(w.items[again as usize].ended, 2);
}

#[test]
fn a_called_worker_that_never_comes_does_not_keep_its_whole_pod_from_helping() {
    let mut w = two_idle_workers();
    w.now += 1_000_000;
    let called = w.now;
    let call = |w: &mut World| {
        let now = w.now;
        let seen = w.pools[0].outlook().is_idle(now);
        let came = w.with_pool(0, |p, d| p.call_helper(now, d));
        w.check();
        assert_eq!(seen, came, "what others see is what they get");
        came
    };
    assert!(call(&mut w));
    w.now = called + CALL_PATIENCE_NS - 1;
    assert!(!call(&mut w), "one is on its way");
    // Its CPU stands still.
    w.now = called + CALL_PATIENCE_NS;
    assert!(call(&mut w), "another one comes");
    let woken = |w: &World| w.pools[0].counts().waking;
    assert_eq!(woken(&w), 2);
    assert!(!call(&mut w), "that one has its time too");
    w.now += CALL_PATIENCE_NS;
    assert!(call(&mut w), "for the CPU of the first");
    w.carry_out(Req::Create(0), 1);
    assert_eq!(woken(&w), 3);
    w.now += CALL_PATIENCE_NS;
    assert!(!call(&mut w), "but no more than CPUs and one");
    w.todo.retain(|r| !matches!(r, Req::Create(_)));
    w.finish(0);
}
