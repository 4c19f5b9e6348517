//! The kernel's worked example of concurrency management: one CPU, three items that burn 5 ms and sleep 10 ms, the first
//! one burning 5 ms more. Driven in virtual time.

use cmwq_policy::pool::{
    BirthReason, Driver, Enqueue, Here, Next, Pool, PoolConfig, PoolKind, PwqConfig, PwqFlags,
    PwqTag, WorkerId,
};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy)]
enum Phase {
    Burn(u64),
    Sleep(u64),
}

#[derive(Default)]
struct Asked {
    wake: Vec<WorkerId>,
    create: u32,
}

impl Driver<()> for Asked {
    fn wake(&mut self, w: WorkerId) {
        self.wake.push(w);
    }
    fn create(&mut self, _: BirthReason) {
        self.create += 1;
    }
    fn barrier(&mut self, (): ()) {}
    fn flushed(&mut self, _: PwqTag, _: u8) {}
    fn ask(&mut self, _: PwqTag) {}
    fn give_back(&mut self, _: PwqTag, _: u32) {}
    fn drained(&mut self, _: PwqTag) {}
    fn mayday(&mut self, _: PwqTag) {}
    fn contended(&self, _: PwqTag) -> bool {
        false
    }
    fn claimed(&self, _: WorkerId) -> u32 {
        1
    }
    fn recall(&mut self, _: WorkerId) -> u32 {
        1
    }
    fn start_stamp(&self, _: WorkerId, _: u32) -> u64 {
        0
    }
}

/// One CPU that runs one burst after the other; threads that wake up look for work at once.
#[derive(Default)]
struct Cpu {
    now: u64,
    run: VecDeque<WorkerId>,
    sleepers: BTreeMap<(u64, WorkerId), ()>,
    todo: BTreeMap<WorkerId, (u32, VecDeque<Phase>)>,
    started: BTreeMap<u32, u64>,
    finished: BTreeMap<u32, u64>,
}

fn script(item: u32) -> VecDeque<Phase> {
    let mut s = VecDeque::from([Phase::Burn(5), Phase::Sleep(10)]);
    if item == 0 {
        s.push_back(Phase::Burn(5));
    }
    s
}

impl Cpu {
    fn answer(&mut self, pool: &mut Pool<u32, ()>, asked: Asked) {
        let made: Vec<WorkerId> = (0..asked.create)
            .map(|_| pool.worker_started(0, self.now))
            .collect();
        for w in asked.wake.into_iter().chain(made) {
            self.ask(pool, w);
        }
    }
    fn ask(&mut self, pool: &mut Pool<u32, ()>, w: WorkerId) {
        let (mut out, mut asked) = (Vec::new(), Asked::default());
        let here = Here {
            cpu: 0,
            in_pod: true,
        };
        if pool.next(w, here, self.now, &mut out, &mut asked) == Next::Run {
            assert_eq!(out.len(), 1);
            self.started.insert(out[0].item, self.now);
            self.todo.insert(w, (out[0].item, script(out[0].item)));
            self.run.push_back(w);
        }
        pool.check();
        self.answer(pool, asked);
    }
    fn go(&mut self, pool: &mut Pool<u32, ()>) {
        loop {
            if let Some(w) = self.run.pop_front() {
                let end = match self.todo.get_mut(&w).unwrap().1.pop_front() {
                    Some(Phase::Burn(ms)) => self.now + ms,
                    _ => self.now,
                };
                self.wake_until(pool, end);
                self.now = end;
                match self.todo.get_mut(&w).unwrap().1.pop_front() {
                    Some(Phase::Sleep(ms)) => {
                        self.sleepers.insert((self.now + ms, w), ());
                        let mut asked = Asked::default();
                        pool.blocked(w, self.now, &mut asked);
                        self.answer(pool, asked);
                    }
                    _ => self.end(pool, w),
                }
            } else if let Some((&(at, _), ())) = self.sleepers.first_key_value() {
                self.wake_until(pool, at);
                self.now = at;
            } else {
                return;
            }
        }
    }
    fn end(&mut self, pool: &mut Pool<u32, ()>, w: WorkerId) {
        let (item, _) = self.todo.remove(&w).unwrap();
        self.finished.insert(item, self.now);
        self.ask(pool, w);
    }
    fn wake_until(&mut self, pool: &mut Pool<u32, ()>, end: u64) {
        while let Some((&(at, w), ())) = self.sleepers.first_key_value() {
            if at > end {
                return;
            }
            self.sleepers.pop_first();
            pool.resumed(w);
            if self.todo[&w].1.is_empty() {
                let now = std::mem::replace(&mut self.now, at);
                self.end(pool, w);
                self.now = now;
            } else {
                self.run.push_back(w);
            }
        }
    }
}

fn run(limit: u32, intensive: bool) -> (Vec<u64>, Vec<u64>) {
    let mut pool = Pool::new(PoolConfig {
        kind: PoolKind::PerCpu,
        linger_ns: 0,
        ..PoolConfig::default()
    });
    let link = |tag, cpu_intensive| PwqConfig {
        tag,
        limit,
        leased: false,
        colour: 0,
        flags: PwqFlags {
            cpu_intensive,
            ..Default::default()
        },
        draining: false,
        frozen: false,
    };
    let q0 = pool.link_pwq(link(0, false));
    let q1 = pool.link_pwq(link(1, true));
    let mut cpu = Cpu::default();
    for item in 0..3 {
        let mut asked = Asked::default();
        let pwq = if intensive && item > 0 { q1 } else { q0 };
        let e = Enqueue {
            item,
            pwq,
            oneshot: true,
            chained: false,
            issuer_cpu: 0,
        };
        pool.enqueue(e, 0, &mut asked).unwrap();
        cpu.answer(&mut pool, asked);
    }
    cpu.go(&mut pool);
    (
        cpu.started.into_values().collect(),
        cpu.finished.into_values().collect(),
    )
}

#[test]
fn finish_times_are_those_of_the_kernels_example() {
    assert_eq!(run(3, false).1, [20, 20, 25], "max_active 3 and more");
    assert_eq!(run(2, false).1, [20, 20, 35], "max_active 2");
    assert_eq!(run(1, false).1, [20, 35, 50], "one at a time");
}

#[test]
fn cpu_intensive_items_start_together_once_the_counted_worker_sleeps() {
    let (started, _) = run(3, true);
    assert_eq!(started, [0, 5, 5]);
}
