//! Everything at once from many threads, with an exact count of every item's fate.
//!
//! Issuers queue one-shot closures, reusable and delayed work on queues of every kind, cancel, disable, flush and join at
//! random; a tuner changes limits and attributes, freezes and thaws; a reaper drains, closes and destroys queues and makes new
//! ones. At the end, for each closure: accepted = ran + cancelled, exactly; each ran at most once; refused ones came back. For
//! each reusable item: what the queues accepted is what ran or was cancelled, and it never ran twice at a time.
//!
//! Runs for 3 seconds; `CMWQ_SOAK_SECONDS=600` looks harder, `CMWQ_SEED` repeats the random choices (not the schedule).

mod common;

use cmwq::{AffinityScope, Attrs, Concurrency, DelayedWork, QueueError, Runtime, Work, Workqueue};
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// splitmix64 (Steele, Lea, Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// What became of closures.
#[derive(Default)]
struct Fates {
    accepted: AtomicU64,
    ran: AtomicU64,
    cancelled: AtomicU64,
    panicked: AtomicU64,
    refused: AtomicU64,
    came_back: AtomicU64,
    dropped_unrun: AtomicU64,
}

/// Travels in a closure: says whether it ran when it is dropped.
struct Ticket {
    fates: Arc<Fates>,
    ran: AtomicBool,
}

impl Ticket {
    fn new(fates: &Arc<Fates>) -> Ticket {
        Ticket {
            fates: Arc::clone(fates),
            ran: AtomicBool::new(false),
        }
    }

    fn run(&self) {
        assert!(
            !self.ran.swap(true, Ordering::SeqCst),
            "a closure ran twice"
        );
        self.fates.ran.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !*self.ran.get_mut() {
            self.fates.dropped_unrun.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A reusable item that notices running twice at a time. Each is queued on queues of one runtime only, one at a time.
struct Reusable {
    delayed: DelayedWork,
    inside: Arc<AtomicUsize>,
    runs: Arc<AtomicU64>,
    /// The queue that it is queued on; a second one would give non-reentrancy up (kernel rule).
    home: usize,
}

impl Reusable {
    fn new(home: usize) -> Reusable {
        let (inside, runs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let (i, r) = (inside.clone(), runs.clone());
        let delayed = DelayedWork::new(move |_: &Work| {
            assert_eq!(
                i.fetch_add(1, Ordering::SeqCst),
                0,
                "a work runs twice at a time"
            );
            for _ in 0..20 {
                std::hint::spin_loop();
            }
            i.fetch_sub(1, Ordering::SeqCst);
            r.fetch_add(1, Ordering::SeqCst);
        });
        Reusable {
            delayed,
            inside,
            runs,
            home,
        }
    }
}

struct World {
    rt: Runtime,
    queues: Vec<Lock<Workqueue>>,
    gone: Lock<Vec<Workqueue>>,
    fates: Arc<Fates>,
    works: Vec<Reusable>,
    stop: AtomicBool,
    cpus: usize,
}

fn make_queue(rt: &Runtime, slot: usize) -> Workqueue {
    let b = rt.workqueue(format!("soak-{slot}"));
    match slot % 8 {
        0 => b.max_active(4),
        1 => b.per_cpu(),
        2 => b.ordered(),
        3 => b.freezable().max_active(2),
        4 => b.concurrency(Concurrency::Unmanaged).max_active(6),
        5 => b.per_cpu().freezable().max_active(1),
        6 => b.max_pending(50).inline_wait(true),
        _ => b.kernel_mode(true).affinity_scope(AffinityScope::Cpu),
    }
    .build()
    .unwrap()
}

impl World {
    fn queue(&self, slot: usize) -> Workqueue {
        self.queues[slot].lock().unwrap().clone()
    }

    fn issue(&self, seed: u64) {
        let mut rng = Rng(seed);
        let mut handles = Vec::new();
        while !self.stop.load(Ordering::SeqCst) {
            let slot = rng.below(self.queues.len());
            match rng.below(100) {
                0..=44 => self.spawn(&mut rng, slot, &mut handles),
                45..=59 if !handles.is_empty() => {
                    let h: cmwq::JoinHandle<()> = handles.swap_remove(rng.below(handles.len()));
                    match rng.below(4) {
                        0 => {
                            if h.cancel() {
                                self.fates.cancelled.fetch_add(1, Ordering::SeqCst);
                            }
                            if rng.below(2) == 0 {
                                drop(h);
                            }
                        }
                        1 => drop(h),
                        // The queue may be frozen: never wait for good.
                        2 => match h.join_timeout(Duration::from_micros(500)) {
                            Ok(_) => {}
                            Err(h) => handles.push(h),
                        },
                        _ => {
                            let mut h = Box::pin(h);
                            let own = CountingWaker::new();
                            let _ = poll_once(h.as_mut(), &std::task::Waker::from(own));
                        }
                    }
                }
                60..=94 => self.reusable(&mut rng),
                95 => {
                    let wq = self.queue(slot);
                    // Not of freezable ones, which may stay frozen for a while.
                    if ![3, 5].contains(&(slot % 8)) {
                        wq.flush().unwrap();
                    }
                }
                96 => {
                    let s = self.queue(slot).stats();
                    assert!(s.completed + s.cancelled <= s.queued, "{s:?}");
                }
                _ => std::thread::yield_now(),
            }
            if handles.len() > 200 {
                handles.clear();
            }
        }
    }

    fn spawn(&self, rng: &mut Rng, slot: usize, handles: &mut Vec<cmwq::JoinHandle<()>>) {
        let wq = self.queue(slot);
        let ticket = Ticket::new(&self.fates);
        let what = rng.below(40);
        // Chained: an item that queues on its own queue and perhaps waits for it.
        let chain = (what < 6).then(|| {
            (
                wq.clone(),
                Ticket::new(&self.fates),
                Arc::clone(&self.fates),
            )
        });
        let body = move || {
            ticket.run();
            match what {
                0..=5 => {
                    let (wq, ticket, fates) = chain.unwrap();
                    match wq.try_spawn(move || ticket.run()) {
                        Ok(h) => {
                            fates.accepted.fetch_add(1, Ordering::SeqCst);
                            if what < 3 && h.cancel() {
                                fates.cancelled.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        Err(e) => {
                            fates.refused.fetch_add(1, Ordering::SeqCst);
                            drop(e.func);
                            fates.came_back.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
                6 => {
                    ticket.fates.panicked.fetch_add(1, Ordering::SeqCst);
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                7 => cmwq::blocking(|| std::thread::sleep(Duration::from_micros(50))),
                8 => std::thread::sleep(Duration::from_micros(50)),
                _ => {}
            }
        };
        let cpu = rng.below(self.cpus);
        let result = if rng.below(2) == 0 {
            wq.try_spawn(body)
        } else {
            wq.try_spawn_on(cpu, body)
        };
        match result {
            Ok(h) => {
                self.fates.accepted.fetch_add(1, Ordering::SeqCst);
                handles.push(h);
            }
            Err(e) => {
                assert!(
                    matches!(
                        e.error,
                        QueueError::Draining { .. }
                            | QueueError::Closed { .. }
                            | QueueError::Full { .. }
                    ),
                    "{}",
                    e.error
                );
                self.fates.refused.fetch_add(1, Ordering::SeqCst);
                drop(e.func);
                self.fates.came_back.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn reusable(&self, rng: &mut Rng) {
        let r = &self.works[rng.below(self.works.len())];
        let wq = self.queue(r.home);
        let frozen_queue = [3, 5].contains(&(r.home % 8));
        let (d, w) = (&r.delayed, r.delayed.work());
        let cpu = rng.below(self.cpus);
        let delay = Duration::from_micros(rng.below(3000) as u64);
        match rng.below(12) {
            0..=2 => drop(wq.queue_on(cpu, w)),
            3 => drop(wq.queue(w)),
            4 => drop(wq.queue_delayed(d, delay)),
            5 => drop(wq.mod_delayed(d, delay)),
            6 => drop(d.cancel()),
            7 => drop(w.cancel_sync().unwrap()),
            8 => {
                w.disable_sync().unwrap();
                w.enable().unwrap();
            }
            9 => {
                w.disable();
                let _ = w.enable_and_queue(&wq);
            }
            10 if !frozen_queue => drop(d.flush().unwrap()),
            _ => drop(w.busy()),
        }
    }

    fn tune(&self, seed: u64) {
        let mut rng = Rng(seed);
        while !self.stop.load(Ordering::SeqCst) {
            let slot = rng.below(self.queues.len());
            let wq = self.queue(slot);
            match rng.below(6) {
                0 => drop(wq.set_max_active(1 + rng.below(12) as u32)),
                1 => drop(wq.set_min_active(rng.below(5) as u32)),
                2 | 3 => {
                    let scope = AffinityScope::ALL[rng.below(AffinityScope::ALL.len())];
                    let first = rng.below(self.cpus);
                    let attrs = Attrs::new()
                        .affinity_scope(scope)
                        .affinity_strict(rng.below(2) == 0)
                        .nice(rng.below(3) as i32)
                        .cpumask((first..self.cpus).collect());
                    drop(wq.apply_attrs(attrs));
                }
                4 => {
                    self.rt.freeze();
                    std::thread::sleep(Duration::from_micros(rng.below(500) as u64));
                    self.rt.thaw();
                }
                _ => drop(wq.congested()),
            }
            std::thread::sleep(Duration::from_micros(rng.below(400) as u64));
        }
        self.rt.thaw();
    }

    fn reap(&self, seed: u64) {
        let mut rng = Rng(seed);
        while !self.stop.load(Ordering::SeqCst) {
            let slot = rng.below(self.queues.len());
            match rng.below(3) {
                0 => {
                    // Works stay with the slot's queue: none of theirs may be on the old one when the new one comes.
                    let mut place = self.queues[slot].lock().unwrap();
                    for r in self.works.iter().filter(|r| r.home == slot) {
                        r.delayed.cancel_sync().unwrap();
                    }
                    let old = std::mem::replace(&mut *place, make_queue(&self.rt, slot));
                    if rng.below(2) == 0 {
                        old.clone().destroy().unwrap();
                    } else {
                        old.close();
                    }
                    // It lives on in counts only.
                    self.gone.lock().unwrap().push(old);
                }
                _ => self.queue(slot).drain().unwrap(),
            }
            std::thread::sleep(Duration::from_millis(rng.below(5) as u64));
        }
    }
}

fn soak(spec: &str, seconds: f64, seed: u64) {
    let rt = synthetic(spec).build().unwrap();
    let cpus = rt.topology().possible().len();
    let slots = 8;
    let world = World {
        queues: (0..slots).map(|s| Lock::new(make_queue(&rt, s))).collect(),
        gone: Lock::default(),
        fates: Arc::default(),
        works: (0..slots * 4).map(|i| Reusable::new(i % slots)).collect(),
        stop: AtomicBool::new(false),
        cpus,
        rt,
    };
    std::thread::scope(|s| {
        let w = &world;
        let mut threads: Vec<_> = (0..4).map(|t| s.spawn(move || w.issue(seed + t))).collect();
        threads.push(s.spawn(|| w.tune(seed + 100)));
        threads.push(s.spawn(|| w.reap(seed + 200)));
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        w.stop.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    for r in &world.works {
        r.delayed.cancel_sync().unwrap();
        assert_eq!(r.inside.load(Ordering::SeqCst), 0);
    }
    let mut all: Vec<Workqueue> = world
        .queues
        .iter()
        .map(|q| q.lock().unwrap().clone())
        .collect();
    all.extend(world.gone.lock().unwrap().iter().cloned());
    for wq in &all {
        wq.clone().destroy().unwrap();
    }
    let f = &world.fates;
    let get = |a: &AtomicU64| a.load(Ordering::SeqCst);
    let (mut queued, mut completed, mut cancelled, mut panicked) = (0, 0, 0, 0);
    for wq in &all {
        let s = wq.stats();
        assert_eq!(
            (s.active, s.inactive, s.pwqs),
            (0, 0, 0),
            "{}: {s:?}",
            wq.name()
        );
        assert_eq!(s.started, s.completed, "{}", wq.name());
        assert_eq!(s.queued, s.completed + s.cancelled, "{}", wq.name());
        assert_eq!(wq.pending(), 0);
        queued += s.queued;
        completed += s.completed;
        cancelled += s.cancelled;
        panicked += s.panicked;
    }
    let work_runs: u64 = world.works.iter().map(|r| get(&r.runs)).sum();
    println!(
        "seed {seed} on \"{spec}\": {} closures accepted, {} ran, {} cancelled, {} refused; works ran {work_runs} times; \
         {} queues, {queued} queued in all",
        get(&f.accepted),
        get(&f.ran),
        get(&f.cancelled),
        get(&f.refused),
        all.len(),
    );
    assert_eq!(
        get(&f.accepted),
        get(&f.ran) + get(&f.cancelled),
        "every accepted closure ran or was cancelled"
    );
    assert_eq!(get(&f.refused), get(&f.came_back));
    assert_eq!(
        completed,
        get(&f.ran) + work_runs,
        "the queues counted every run"
    );
    assert_eq!(panicked, get(&f.panicked));
    assert!(cancelled >= get(&f.cancelled));
    // A ticket is dropped unrun for each cancelled or refused closure, and for each chained one of those.
    assert!(get(&f.dropped_unrun) >= get(&f.cancelled) + get(&f.refused));
    assert!(get(&f.ran) > 0 && work_runs > 0);
    let rt = world.rt.clone();
    drop((world.queues, all));
    rt.shutdown().unwrap();
    eventually("all workers leave", || rt.threads() == 0);
}

#[test]
fn every_item_has_one_fate() {
    let seconds: f64 = std::env::var("CMWQ_SOAK_SECONDS")
        .map(|s| s.parse().expect("CMWQ_SOAK_SECONDS: a number of seconds"))
        .unwrap_or(3.0);
    let seed: u64 = std::env::var("CMWQ_SEED")
        .map(|s| s.parse().expect("CMWQ_SEED: a number"))
        .unwrap_or(1);
    // Items panic without the hook; whatever else panics, on whatever thread, is a bug.
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        hook(info);
    }));
    let machines = [
        "package:1 l3:1 core:2",
        "package:2 l3:2 core:2 thread:2",
        "package:1 l3:4 core:1",
    ];
    let deadline = Duration::from_secs_f64(seconds) + PATIENCE;
    let (tx, rx) = std::sync::mpsc::channel();
    let soaking = std::thread::spawn(move || {
        for (i, spec) in machines.into_iter().enumerate() {
            soak(
                spec,
                seconds / machines.len() as f64,
                seed + 1000 * i as u64,
            );
        }
        tx.send(()).unwrap();
    });
    match rx.recv_timeout(deadline) {
        Ok(()) => {
            soaking.join().unwrap();
            assert_eq!(
                PANICS.load(Ordering::SeqCst),
                0,
                "a thread panicked (seed {seed})"
            );
        }
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the soak hangs (seed {seed})"),
        Err(_) => panic!("the soak failed (seed {seed})"),
    }
}
