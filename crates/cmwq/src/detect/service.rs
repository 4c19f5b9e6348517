//! The service: one ordinary thread a runtime, made at first need by the spawner. While items wait although nobody is on the
//! way to them it ticks, every 1-4 ms; otherwise it sleeps, without a deadline unless idle workers are to be culled.
//!
//! If the thread cannot be made, others tick in its place: the spawner, rescuers, and threads that wait
//! ([`Detect::stand_in`]).

use super::sentinel::{Bell, Crew, Sentinel};
use super::{Detect, confirm, hogs, watchdog};
use crate::pool::RtPool;
use crate::runtime::RtInner;
use crate::shim::leaf::{Mutex, PoisonError};
use crate::sys::clock::Clock;
use crate::sys::cpu;
use crate::sys::thread::ThreadSpec;
use cmwq_policy::pool::{Backlog, LONG_WAIT_NS, Time, WorkerState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After this many ticks that found nothing the period grows fourfold.
const FRUITLESS: u32 = 8;
/// Ticks after a call that come sooner.
const HURRIED: u32 = 3;
/// After calls in a row for which nothing was found, up to so many slow periods pass before the next call is heard: a load whose
/// items wait now and then and never block calls all the time, and a tick looks into `/proc`.
const LONGEST_DEAF: u32 = 15;
/// A pool without waiting items leaves the list after this many ticks: a load with short pauses does not wake the service
/// each time.
const QUIET: u32 = 25;
/// The tick leaves items alone that began less than this ago, ns: most are over before anybody could look.
const YOUNG_NS: Time = 100_000;
/// Sentinels end when nobody has needed them for this long; so does their memory of who they watched.
const SENTINEL_IDLE: Duration = Duration::from_secs(10);
/// The most sentinels of a runtime; pools on further CPUs have the tick.
const MAX_SENTINELS: usize = 128;
/// The most sentinels that look after one pool.
const MAX_CREW: usize = 32;

/// What the service's lock guards.
#[derive(Default)]
pub(crate) struct State {
    armed: Vec<Armed>,
    /// Pools with more than two workers, which may have idle ones to cull.
    cullable: Vec<&'static RtPool>,
    cull_at: Option<Time>,
    retire_at: Option<Time>,
    fruitless: u32,
    last_tick: Time,
    /// When it looked at everything last, not at one CPU only.
    last_full: Time,
    ticking: bool,
}

struct Armed {
    pool: &'static RtPool,
    quiet: u32,
    new: bool,
    stall: watchdog::Stall,
}

/// What a tick looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The CPU of the sentinel that called: everything was looked at a moment ago.
    Asked,
    /// Workers that run: a tick soon after a call is there to find new blocked ones.
    Running,
    /// Those that were found blocked, too: each costs about 3 us.
    All,
}

/// Buffers of a tick, kept between ticks.
#[derive(Default)]
struct Buffers {
    noted: Vec<confirm::Noted>,
    calls: Calls,
}

/// Calls that end the service's longer sleeps, and whether they are worth it.
#[derive(Default)]
struct Calls {
    /// Ticks since the last one.
    ticks: u32,
    /// Something was found since then.
    found: bool,
    /// So many in a row were for nothing.
    vain: u32,
    /// Slow periods until one is heard again.
    deaf: u32,
}

impl Calls {
    /// The service was woken by somebody.
    fn came(&mut self) {
        self.vain = if std::mem::take(&mut self.found) {
            0
        } else {
            self.vain.saturating_add(1)
        };
        self.ticks = 0;
        let doubled = 1_u32 << self.vain.saturating_sub(1).min(LONGEST_DEAF.ilog2() + 1);
        self.deaf = (doubled - 1).min(LONGEST_DEAF);
    }

    /// Ticks soon after a call come sooner still.
    fn are_recent(&self) -> bool {
        self.ticks < HURRIED
    }

    /// The service sleeps for a slow period: whether a call ends it.
    fn are_heard(&mut self) -> bool {
        let heard = self.deaf == 0;
        self.deaf = self.deaf.saturating_sub(1);
        heard
    }
}

impl Detect {
    /// Items wait in `pool` and nobody is on the way: it goes on the list.
    pub(crate) fn arm(&self, rt: &Arc<RtInner>, pool: &'static RtPool) {
        if rt.manual.is_some() || cfg!(any(loom, shuttle)) {
            return;
        }
        let mut state = self.lock();
        if state.armed.iter().all(|a| !std::ptr::eq(a.pool, pool)) {
            state.armed.push(Armed {
                pool,
                quiet: 0,
                new: true,
                stall: watchdog::Stall::default(),
            });
        }
        state.fruitless = 0;
        drop(state);
        self.nudge(rt);
    }

    /// A pool has more than two workers: one day some may have to go.
    pub(crate) fn may_cull(&self, rt: &Arc<RtInner>, pool: &'static RtPool) {
        if rt.manual.is_some() || cfg!(any(loom, shuttle)) {
            return;
        }
        let mut state = self.lock();
        if state.cullable.iter().any(|p| std::ptr::eq(*p, pool)) {
            return;
        }
        state.cullable.push(pool);
        if state.cull_at.is_some() {
            return;
        }
        state.cull_at = Some(rt.time.now().saturating_add(rt.idle_timeout_ns()));
        drop(state);
        self.nudge(rt);
    }

    /// Wakes the service, or has it made.
    fn nudge(&self, rt: &Arc<RtInner>) {
        if self.alive.swap(true, Ordering::Relaxed) {
            self.bell.parker.unpark();
        } else {
            rt.spawner.request_service(rt);
        }
    }

    /// The service is not there and cannot be made now; it is asked for again later.
    pub(crate) fn service_failed(&self) {
        self.alive.store(false, Ordering::Relaxed);
    }

    /// Whether somebody must look after pools and the service does not.
    pub(crate) fn is_helpless(&self) -> bool {
        self.service_tid.load(Ordering::Relaxed) == 0 && !self.lock().armed.is_empty()
    }

    /// One tick by somebody else, if the service is missing. True if it was needed.
    pub(crate) fn stand_in(&self, rt: &Arc<RtInner>) -> bool {
        if !self.is_helpless() {
            return false;
        }
        self.tick(rt, &mut Buffers::default());
        if rt.spawner.is_alive() && !self.alive.swap(true, Ordering::Relaxed) {
            rt.spawner.request_service(rt);
        }
        true
    }

    /// One round over the pools on the list. How long until the next one; none if there is nothing to wait for.
    fn tick(&self, rt: &Arc<RtInner>, buffers: &mut Buffers) -> Option<Duration> {
        let again = self.tick_once(rt, buffers)?;
        // Called just now: what blocks then does so soon, before sentinels are there or in place of those that starve.
        let hurry: [u32; HURRIED as usize] = [4, 4, 2];
        let hurry = hurry.get(buffers.calls.ticks as usize).copied();
        buffers.calls.ticks = buffers.calls.ticks.saturating_add(1);
        match hurry {
            Some(part) if again <= 4 * self.switches.period => {
                self.bell.dozing.store(false, Ordering::Relaxed);
                Some(again.min(self.switches.period / part))
            }
            _ => Some(again),
        }
    }

    fn tick_once(&self, rt: &Arc<RtInner>, buffers: &mut Buffers) -> Option<Duration> {
        let mut armed = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.ticking, true) {
                return Some(self.switches.period);
            }
            std::mem::take(&mut state.armed)
        };
        let now = rt.time.now();
        let asked = self.bell.take_question();
        let busy = !armed.is_empty();
        let scope = {
            let mut state = self.lock();
            let soon = self.switches.period.as_nanos() as u64 / 8;
            if asked.is_some() && now.saturating_sub(state.last_full) < soon {
                Scope::Asked
            } else {
                state.last_full = now;
                if buffers.calls.are_recent() {
                    Scope::Running
                } else {
                    Scope::All
                }
            }
        };
        let mut fruitful = false;
        let asleep_too_long = self.was_paused(now);
        armed.retain_mut(|a| {
            if asleep_too_long {
                a.stall.touch(now);
            }
            match self.tick_pool(rt, a, asked, scope, now, buffers) {
                Some(found) => {
                    fruitful |= found;
                    a.quiet < QUIET || !self.disarm(a.pool)
                }
                None => false,
            }
        });
        if busy {
            self.sentinels().iter().for_each(|s| s.look_after());
            self.counts.ticks.fetch_add(1, Ordering::Relaxed);
            Clock::maintain();
        }
        let mut state = self.lock();
        state.ticking = false;
        state.last_tick = now;
        // Some may have come meanwhile, one of them perhaps for a pool that was on the list and left it.
        for a in armed {
            if state.armed.iter().all(|b| !std::ptr::eq(a.pool, b.pool)) {
                state.armed.push(a);
            }
        }
        buffers.calls.found |= fruitful;
        state.fruitless = if fruitful {
            0
        } else {
            state.fruitless.saturating_add(1)
        };
        let slow = state.fruitless >= FRUITLESS;
        let waiting = !state.armed.is_empty();
        drop(state);
        let later = self.cull_and_retire(rt, now, busy);
        if waiting {
            let heard = slow && buffers.calls.are_heard();
            self.bell.dozing.store(heard, Ordering::Relaxed);
            return Some(self.switches.period * if slow { 4 } else { 1 });
        }
        later
    }

    /// The machine (or this process) stood still: a tick came half the watchdog's threshold late. What did not move
    /// meanwhile is not to blame.
    fn was_paused(&self, now: Time) -> bool {
        let last = self.lock().last_tick;
        let limit = self.watchdog_ns.load(Ordering::Relaxed) / 2;
        limit > 0 && last > 0 && now.saturating_sub(last) > limit
    }

    /// None if the pool is not this runtime's any more; else whether something was found.
    /// `asked`: the CPU of a sentinel that found no idle worker to wake.
    fn tick_pool(
        &self,
        rt: &Arc<RtInner>,
        a: &mut Armed,
        asked: Option<u32>,
        scope: Scope,
        now: Time,
        buffers: &mut Buffers,
    ) -> Option<bool> {
        let pool = a.pool;
        let all = scope == Scope::All;
        if !confirm::note(rt, pool, all, &mut buffers.noted) {
            return None;
        }
        let noted = &mut buffers.noted;
        let mut found = false;
        if asked.is_some() && pool.watch.is_wanted() {
            let f = confirm::look(rt, pool, noted, asked, 0);
            found |= f.blocked > 0 || f.moved;
            if scope == Scope::Asked {
                noted.clear();
                return Some(found);
            }
            if !confirm::note(rt, pool, all, noted) {
                return None;
            }
        }
        if self.switches.tick {
            let f = confirm::look(rt, pool, noted, None, YOUNG_NS);
            self.counts
                .found_by_tick
                .fetch_add(u64::from(f.blocked), Ordering::Relaxed);
            found |= f.blocked > 0;
        }
        if self.hog_ns.load(Ordering::Relaxed) > 0 {
            hogs::look(rt, pool, noted);
        }
        let (owed, backlog, late) = pool.with_tick(|p, drv| {
            let now = drv.now();
            let waited = p.oldest_waiting().map_or(0, |t| now.saturating_sub(t));
            (p.tick(now, drv), p.backlog(), waited >= LONG_WAIT_NS)
        });
        if late {
            pool.part_company();
        }
        if owed.is_some() {
            self.counts.fairness.fetch_add(1, Ordering::Relaxed);
        }
        a.quiet = if backlog == Backlog::None {
            a.quiet + 1
        } else {
            0
        };
        watchdog::look(rt, pool, &mut a.stall, now);
        let on_service = self.service_tid.load(Ordering::Relaxed) != 0;
        if on_service && (a.quiet == 0 || a.new) {
            a.new = false;
            self.man(rt, pool, noted);
        }
        // So that nothing of a worker is kept alive between ticks.
        noted.clear();
        Some(found)
    }

    /// Takes the pool off the list, unless items wait again. Its lock decides: whoever finds it unarmed there arms it.
    fn disarm(&self, pool: &'static RtPool) -> bool {
        let off = pool.inspect(|inner| {
            if inner.policy.wants_tick() {
                return false;
            }
            inner.watched.armed = false;
            inner.watched.crew = None;
            true
        });
        if off {
            self.sentinels().iter().for_each(|s| s.unwatch(pool));
        }
        off
    }

    /// Sees to it that each CPU where a worker of the pool runs has a sentinel, and that they are runnable.
    fn man(&self, rt: &Arc<RtInner>, pool: &'static RtPool, noted: &[confirm::Noted]) {
        let mut cpus: Vec<u32> = noted
            .iter()
            .filter(|n| n.state == WorkerState::Running && n.cpu != u32::MAX)
            .map(|n| n.cpu)
            .collect();
        let running = cpus.len();
        cpus.sort_unstable();
        cpus.dedup();
        // One more worker may be about to run.
        let soon = usize::from(pool.inspect(|inner| running < inner.policy.target() as usize));
        if cpus.len() < running + soon {
            // Some share a CPU, so another one of the pod may be idle.
            let pod = pool.key_hint().map(|k| k.pod()).unwrap_or_default();
            let others = pod.intersection(&rt.machine.load().usable);
            for cpu in &others {
                let cpu = cpu as u32;
                if cpus.len() < running + soon && !cpus.contains(&cpu) {
                    cpus.push(cpu);
                }
            }
        }
        let old = pool.inspect(|inner| inner.watched.crew.clone());
        // Who watched before stays: a worker that runs elsewhere now comes back.
        let mut sentinels: Vec<&'static Sentinel> = old
            .iter()
            .flat_map(|c| c.sentinels.iter().copied())
            .filter(|s| s.is_there())
            .collect();
        if self.switches.sentinel {
            for cpu in cpus {
                if sentinels.len() < MAX_CREW
                    && sentinels.iter().all(|s| s.cpu() != cpu)
                    && let Some(s) = self.sentinel_of(rt, cpu)
                    && s.watch(pool)
                {
                    sentinels.push(s);
                }
            }
        }
        let crew = match old {
            Some(old) if old.sentinels.len() == sentinels.len() => old,
            _ => {
                let crew = Arc::new(Crew {
                    sentinels,
                    service: Arc::clone(&self.bell),
                });
                pool.inspect(|inner| {
                    if inner.watched.armed {
                        inner.watched.crew = Some(Arc::clone(&crew));
                    }
                });
                crew
            }
        };
        let wanted = |s: &&&'static Sentinel| pool.watch.is_wanted_on(s.cpu());
        crew.sentinels.iter().filter(wanted).for_each(|s| s.rouse());
        self.lock().retire_at = None;
    }

    /// The sentinel of a CPU, made if there is none.
    fn sentinel_of(&self, rt: &Arc<RtInner>, cpu: u32) -> Option<&'static Sentinel> {
        let s = {
            let mut all = self
                .sentinels
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match all.iter().find(|s| s.cpu() == cpu) {
                Some(s) => *s,
                None if all.len() >= MAX_SENTINELS => return None,
                None => {
                    let s = Sentinel::place(cpu, Arc::clone(&self.bell));
                    all.push(s);
                    s
                }
            }
        };
        if s.claim_start() {
            let spec = ThreadSpec {
                name: format!("{}/s{cpu}", rt.thread_name),
                stack: Some(SENTINEL_STACK),
            };
            if (rt.factory)(&spec, Box::new(move || s.main())).is_err() {
                s.not_started();
                return None;
            }
        }
        (!s.is_refused()).then_some(s)
    }

    /// Culls idle workers whose time has come; ends sentinels that nobody has needed for long. How long until the next.
    fn cull_and_retire(&self, rt: &Arc<RtInner>, now: Time, busy: bool) -> Option<Duration> {
        let timeout = rt.idle_timeout_ns();
        let mut state = self.lock();
        if state.cull_at.is_some_and(|t| t <= now) {
            let pools = std::mem::take(&mut state.cullable);
            drop(state);
            let mut kept: Vec<(&'static RtPool, Time)> = Vec::new();
            for pool in pools {
                let mine = pool.inspect(|i| i.rt.as_ref().is_some_and(|r| Arc::ptr_eq(r, rt)));
                if !mine {
                    continue;
                }
                let (n, due, workers) = pool.with(|p, drv| {
                    let now = drv.now();
                    let n = p.cull(timeout, now, drv);
                    (n, p.cull_due(timeout), p.counts().own())
                });
                self.counts
                    .culled
                    .fetch_add(u64::from(n), Ordering::Relaxed);
                if workers > 2 {
                    kept.push((pool, due.unwrap_or(now.saturating_add(timeout))));
                }
            }
            state = self.lock();
            state.cull_at = kept.iter().map(|k| k.1.max(now + 1_000_000)).min();
            for (pool, _) in kept {
                if state.cullable.iter().all(|p| !std::ptr::eq(*p, pool)) {
                    state.cullable.push(pool);
                }
            }
            if state.cull_at.is_none() && !state.cullable.is_empty() {
                state.cull_at = Some(now.saturating_add(timeout));
            }
        }
        if busy {
            state.retire_at = None;
        } else if state.retire_at.is_none() && self.sentinels().iter().any(|s| s.is_in_force()) {
            state.retire_at = Some(now.saturating_add(SENTINEL_IDLE.as_nanos() as u64));
        }
        if state.retire_at.is_some_and(|t| t <= now) {
            state.retire_at = None;
            drop(state);
            self.sentinels().iter().for_each(|s| s.retire());
            state = self.lock();
        }
        let next = [state.cull_at, state.retire_at]
            .into_iter()
            .flatten()
            .min()?;
        Some(Duration::from_nanos(next.saturating_sub(now).max(1)))
    }
}

/// Sentinels do next to nothing: 64 KiB are plenty.
const SENTINEL_STACK: usize = 64 << 10;
/// The service calls the application's report hook, hence more.
pub(crate) const SERVICE_STACK: usize = 512 << 10;

/// The body of the service's thread.
pub(crate) fn service_main(weak: &Weak<RtInner>, bell: &Bell) {
    let buffers = Mutex::new(Buffers::default());
    let mut first = true;
    loop {
        let Some(rt) = weak.upgrade() else { return };
        let detect = &rt.detect;
        if std::mem::take(&mut first) {
            rt.roam();
            detect.service_tid.store(cpu::gettid(), Ordering::Relaxed);
        }
        if detect.stop.load(Ordering::Relaxed) {
            return;
        }
        let mut b = buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let sleep = detect.tick(&rt, &mut b);
        drop(b);
        drop(rt);
        let called = match sleep {
            Some(d) => bell.parker.park_timeout(d),
            None => {
                bell.parker.park();
                true
            }
        };
        if called {
            let mut b = buffers.lock().unwrap_or_else(PoisonError::into_inner);
            b.calls.came();
        }
        bell.dozing.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// For how many slow periods in a row no call is heard.
    fn deaf(calls: &mut Calls) -> u32 {
        (0..).find(|_| calls.are_heard()).unwrap_or(u32::MAX)
    }

    #[test]
    fn calls_for_nothing_are_heard_ever_more_rarely_until_one_finds_something() {
        let mut calls = Calls::default();
        let mut all = Vec::new();
        for _ in 0..7 {
            calls.came();
            assert!(calls.are_recent());
            all.push(deaf(&mut calls));
        }
        assert_eq!(all, [0, 1, 3, 7, 15, 15, 15]);
        calls.found = true;
        calls.came();
        assert_eq!(deaf(&mut calls), 0);
    }
}
