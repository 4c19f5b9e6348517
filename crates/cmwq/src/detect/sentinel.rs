//! The idle-class sentinel: a thread that gets a CPU when nobody else wants it.
//!
//! One per CPU in use, pinned, in `SCHED_IDLE` for good (leaving needs a privilege). It is runnable only while items wait
//! behind what runs, and then the system runs it when no ordinary thread of its group wants the CPU, which is when a worker
//! blocked. It wakes the idle worker that the pool has published, or else the service; whoever wakes looks whether a running
//! worker is really blocked ([`super::confirm`]) and goes back to sleep if not. The folder's README lists what must hold.

use crate::pool::RtPool;
use crate::shim::leaf::OnceLock;
use crate::shim::leaf::{Mutex, PoisonError};
use crate::sys::clock::monotonic_ns;
use crate::sys::parker::Parker;
use crate::sys::{cpu, sched};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Pools that one sentinel looks after; those beyond have the tick.
const POOLS: usize = 8;
/// How long it waits for the answer to a wake-up, ns, letting others run: somewhat longer than it takes to wake a thread on
/// another, halted CPU of a guest (measured 20-60 us).
const ANSWER_NS: u64 = 80_000;
/// As much for a worker, which is woken on this CPU, where it preempts us at once. Longer would not be nothing: the system
/// may give us a whole slice beside a worker that has just run.
const ANSWER_HERE_NS: u64 = 20_000;
/// After this many wake-ups in a row that found nothing, it pauses.
const STRIKES: u32 = 3;
/// Wake-ups further apart than this are no row. A busy CPU yields it a crumb 10-14 times a second (measured), which is no
/// reason to pause.
const STRIKE_WINDOW_NS: u64 = 50_000_000;
const FIRST_PAUSE_NS: u64 = 500_000;
const LONGEST_PAUSE_NS: u64 = 32_000_000;
/// A sentinel starves if the tick finds this many blocked workers in a row on its CPU while it was runnable...
const STARVED_MISSES: u32 = 3;
/// ...and perhaps if it has been runnable for this long and has not run: an item of ours may compute, or a foreign thread.
const STARVED_NS: u64 = 20_000_000;
/// Then its thread ends, and another one is made after so long at the earliest, twice that the next time, until one finds a
/// blocked worker again. Runnable beside a thread that keeps the CPU it helps nobody, makes ordinary threads of its group wait
/// for the end of that thread's slice now and then when they are woken there (measured: one wake-up in 100, 1-4 ms), and holds
/// up whoever must wait for all threads of the process (`setuid`: see the README's limits).
const FIRST_AWAY_NS: u64 = 64_000_000;
const LONGEST_AWAY_NS: u64 = 8_192_000_000;
/// Its CPU time for wake-ups that found nothing: at most 1 in this many of the time that passes...
const IDLE_SHARE: u64 = 100;
/// ...on top of this much: a load that makes many threads at its start has some dozens.
const ALLOWANCE_NS: u64 = 1_000_000;

/// See the module text. Never given back: `rouse` may come at any time.
pub(crate) struct Sentinel {
    cpu: u32,
    parker: Parker,
    tid: AtomicI32,
    stop: AtomicBool,
    /// It sleeps off a pause: do not wake it.
    pausing: AtomicBool,
    /// It was let run elsewhere because nobody needs it now.
    aside: AtomicBool,
    /// How often it came round; what the service saw of that at its last tick, and since when (ns; 0: it moves).
    beats: AtomicU32,
    seen_beats: AtomicU32,
    still_since: AtomicU64,
    /// Blocked workers of its CPU that the tick found, in a row.
    misses: AtomicU32,
    /// How long it stays away if it starves, ns, and until when it does.
    away_ns: AtomicU64,
    away_until: AtomicU64,
    /// It is away on a suspicion only.
    in_doubt: AtomicBool,
    pools: [AtomicPtr<RtPool>; POOLS],
    service: Arc<Bell>,
    pub(super) runs: AtomicU64,
    pub(super) found: AtomicU64,
    pub(super) pauses: AtomicU64,
    /// CPU time of earlier threads in this place, ns.
    cpu_before: AtomicU64,
    state: AtomicI32,
}

/// Not started, started, in force, refused.
const NEW: i32 = 0;
const STARTED: i32 = 1;
const IN_FORCE: i32 = 2;
const REFUSED: i32 = 3;
const OVER: i32 = 4;

/// Who is to know that items of a pool wait: the sentinels of the CPUs that its workers run on, and the service.
pub(crate) struct Crew {
    pub(super) sentinels: Vec<&'static Sentinel>,
    pub(super) service: Arc<Bell>,
}

impl Crew {
    /// Makes them runnable, or that of one CPU. 5 ns each if they are, about 1 us if one sleeps.
    pub(crate) fn rouse(&self, only: Option<u32>) {
        let Some(cpu) = only else {
            self.service.hurry();
            self.sentinels.iter().for_each(|s| s.rouse());
            return;
        };
        let mut there = self.sentinels.iter();
        match there.find(|s| s.cpu == cpu && s.is_there()) {
            // Short items one at a time: the service's slow tick is enough besides.
            Some(s) => s.rouse(),
            // It stays away because its CPU is kept busy. Those of idle CPUs would be woken for nothing with each item, which
            // costs an issuer on a guest 13 us.
            None => self.service.hurry(),
        }
    }
}

/// The service's sleeping place.
pub(crate) struct Bell {
    pub(crate) parker: Parker,
    /// The service sleeps for longer than the shortest period.
    pub(super) dozing: AtomicBool,
    /// The CPU of the sentinel that called the service last, plus 1.
    asked: AtomicU32,
}

impl Bell {
    pub(super) fn new() -> Bell {
        Bell {
            parker: Parker::new(),
            dozing: AtomicBool::new(false),
            asked: AtomicU32::new(0),
        }
    }

    /// The sentinel of this CPU wants the service to look.
    fn ask(&self, cpu: u32) {
        // Ordering: Release, and the parker's own: who wakes sees the question.
        self.asked.store(cpu.saturating_add(1), Ordering::Release);
        self.parker.unpark();
    }

    /// Which sentinel's CPU is to be looked at.
    pub(super) fn take_question(&self) -> Option<u32> {
        // Ordering: Acquire pairs with the Release of `ask`.
        self.asked.swap(0, Ordering::Acquire).checked_sub(1)
    }

    /// Wakes the service if it sleeps for long: at most once for each such sleep.
    fn hurry(&self) {
        if self.dozing.load(Ordering::Relaxed) && self.dozing.swap(false, Ordering::Relaxed) {
            self.parker.unpark();
        }
    }
}

impl Sentinel {
    /// A place for a sentinel of `cpu`.
    pub(super) fn place(cpu: u32, service: Arc<Bell>) -> &'static Sentinel {
        Box::leak(Box::new(Sentinel {
            cpu,
            parker: Parker::new(),
            tid: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            pausing: AtomicBool::new(false),
            aside: AtomicBool::new(false),
            beats: AtomicU32::new(0),
            seen_beats: AtomicU32::new(0),
            still_since: AtomicU64::new(0),
            misses: AtomicU32::new(0),
            away_ns: AtomicU64::new(FIRST_AWAY_NS),
            away_until: AtomicU64::new(0),
            in_doubt: AtomicBool::new(false),
            pools: [const { AtomicPtr::new(ptr::null_mut()) }; POOLS],
            service,
            runs: AtomicU64::new(0),
            found: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            cpu_before: AtomicU64::new(0),
            state: AtomicI32::new(NEW),
        }))
    }

    pub(super) fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Whether a thread is to be made for it; the caller makes it.
    pub(super) fn claim_start(&self) -> bool {
        let from = self.state.load(Ordering::Relaxed);
        (from == NEW || from == OVER)
            && monotonic_ns() >= self.away_until.load(Ordering::Relaxed)
            && !self.stop.load(Ordering::Relaxed)
            && self
                .state
                .compare_exchange(from, STARTED, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// The thread could not be made.
    pub(super) fn not_started(&self) {
        self.state.store(NEW, Ordering::Relaxed);
    }

    /// Whether the system refused it its class or its CPU.
    pub(super) fn is_refused(&self) -> bool {
        self.state.load(Ordering::Relaxed) == REFUSED
    }

    /// Whether it has a thread, or gets one.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), STARTED | IN_FORCE)
            && !self.stop.load(Ordering::Relaxed)
    }

    /// Whether its thread watches.
    pub(super) fn is_in_force(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IN_FORCE
    }

    /// Puts a pool among those that it looks after; false if there is no room.
    pub(super) fn watch(&self, pool: &'static RtPool) -> bool {
        let p = ptr::from_ref(pool).cast_mut();
        if self.pools.iter().any(|s| s.load(Ordering::Relaxed) == p) {
            return true;
        }
        for slot in &self.pools {
            // Ordering: Release pairs with the Acquire of the sentinel's load; pools are never given back.
            if slot
                .compare_exchange(ptr::null_mut(), p, Ordering::Release, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
        }
        false
    }

    /// Takes a pool out. Without any it may run anywhere, so that whoever must wait for all threads of the process (`setuid`, an
    /// exit) does not wait for a busy CPU.
    pub(super) fn unwatch(&self, pool: &'static RtPool) {
        let p = ptr::from_ref(pool).cast_mut();
        for slot in &self.pools {
            let _ = slot.compare_exchange(p, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
        }
        if self
            .pools
            .iter()
            .all(|s| s.load(Ordering::Relaxed).is_null())
        {
            self.step_aside();
        }
    }

    /// The service looks, once a tick, whether it gets the CPU at all. If not, for long, it goes for a while.
    pub(super) fn look_after(&self) {
        let beats = self.beats.load(Ordering::Relaxed);
        let moves = self.seen_beats.swap(beats, Ordering::Relaxed) != beats;
        if moves || !self.is_in_force() || self.parker.is_parked() {
            self.still_since.store(0, Ordering::Relaxed);
            return;
        }
        let (now, since) = (monotonic_ns(), self.still_since.load(Ordering::Relaxed));
        if since == 0 {
            self.still_since.store(now.max(1), Ordering::Relaxed);
        } else if now.saturating_sub(since) >= STARVED_NS {
            self.starve(true);
        }
    }

    /// The tick found a blocked worker on its CPU, which was its business if it was runnable and has not run since the last tick.
    pub(super) fn missed(&self) {
        if !self.is_there() {
            // It stays away for nothing: the CPU is not kept busy.
            if self.in_doubt.swap(false, Ordering::Relaxed) {
                self.away_until.store(0, Ordering::Relaxed);
            }
            return;
        }
        if !self.is_in_force() || self.pausing.load(Ordering::Relaxed) {
            return;
        }
        let same = self.beats.load(Ordering::Relaxed) == self.seen_beats.load(Ordering::Relaxed);
        if !same || self.parker.is_parked() {
            return;
        }
        if self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= STARVED_MISSES {
            self.starve(false);
        }
    }

    fn starve(&self, in_doubt: bool) {
        self.still_since.store(0, Ordering::Relaxed);
        self.misses.store(0, Ordering::Relaxed);
        self.in_doubt.store(in_doubt, Ordering::Relaxed);
        let away = self.away_ns.load(Ordering::Relaxed);
        self.away_ns
            .store((2 * away).min(LONGEST_AWAY_NS), Ordering::Relaxed);
        self.away_until
            .store(monotonic_ns() + away, Ordering::Relaxed);
        self.pauses.fetch_add(1, Ordering::Relaxed);
        self.end();
    }

    /// Lets the thread run on other CPUs; see [`let_go`](Self::let_go) for why which.
    fn step_aside(&self) {
        let tid = self.tid.load(Ordering::Relaxed);
        if tid == 0 || !self.is_in_force() {
            return;
        }
        // Ordering: Release pairs with the Acquire of `watch_cpu`; before the mask changes, so that it pins itself again.
        self.aside.store(true, Ordering::Release);
        self.widen(tid);
    }

    fn widen(&self, tid: i32) {
        let mut mask = [u64::MAX; cpu::MAX_MASK_WORDS];
        if !self.parker.is_parked()
            && let Some(word) = mask.get_mut(self.cpu as usize / 64)
        {
            *word &= !(1 << (self.cpu % 64));
        }
        if cpu::set_affinity(tid, &mask).is_err() {
            let _ = sched::unpin(tid);
        }
    }

    /// Makes it runnable.
    #[inline]
    pub(super) fn rouse(&self) {
        if !self.pausing.load(Ordering::Relaxed) && !self.parker.is_notified() {
            self.parker.unpark();
        }
    }

    /// CPU time that it has used.
    pub(super) fn cpu_time(&self) -> Duration {
        let tid = self.tid.load(Ordering::Relaxed);
        let now = if tid == 0 {
            Duration::ZERO
        } else {
            cpu::thread_cpu_time(tid).unwrap_or_default()
        };
        now + Duration::from_nanos(self.cpu_before.load(Ordering::Relaxed))
    }

    /// Ends the thread. Does not wait; lets it run elsewhere first, see [`let_go`](Self::let_go).
    pub(super) fn end(&self) {
        // Ordering: SeqCst, with the check in `main`.
        self.stop.store(true, Ordering::SeqCst);
        self.let_go();
        self.parker.unpark();
    }

    /// Lets the thread run where it can, so that nobody waits long for it: back in the ordinary class where that is permitted,
    /// and on other CPUs. If it sleeps it may wake up anywhere; if it is runnable, and starves perhaps, a mask without its CPU
    /// moves it at once, while one that merely adds CPUs leaves it where it is.
    fn let_go(&self) {
        let tid = self.tid.load(Ordering::Relaxed);
        if tid == 0 {
            return;
        }
        let _ = cpu::set_policy(tid, cpu::Policy::Other);
        self.widen(tid);
    }

    /// Ends the thread for now; it is made again when it is needed.
    pub(super) fn retire(&self) {
        if self.is_in_force() {
            self.end();
        }
    }

    /// The thread's body.
    pub(super) fn main(&'static self) {
        let tid = cpu::gettid();
        // Known to those who must let it run before it can starve: as an ordinary thread it runs soon, and it moves at once.
        self.tid.store(tid, Ordering::Relaxed);
        at_exit(self);
        let ready = sched::pin(0, self.cpu).and_then(|()| {
            // Whoever lets sentinels run sets this first: either it is seen here, or the mask is widened after the pinning.
            // Ordering: SeqCst, with the stores in `release_all` and `end`.
            if EXITING.load(Ordering::SeqCst) || self.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            sched::enter_idle_class().map(|()| true)
        });
        match ready {
            Ok(true) => {}
            Ok(false) => return self.over(),
            Err(e) => {
                refusals().push(e.to_string());
                self.over();
                // Not in the idle class it would compete with those whom it watches.
                self.state.store(REFUSED, Ordering::Relaxed);
                return;
            }
        }
        self.state.store(IN_FORCE, Ordering::Relaxed);
        self.watch_cpu();
        self.over();
    }

    /// The thread ends.
    fn over(&self) {
        let used = cpu::own_cpu_time().unwrap_or_default();
        self.cpu_before
            .fetch_add(used.as_nanos() as u64, Ordering::Relaxed);
        self.tid.store(0, Ordering::Relaxed);
        forget_at_exit(self);
        self.stop.store(false, Ordering::Relaxed);
        self.state.store(OVER, Ordering::Relaxed);
    }

    fn watch_cpu(&self) {
        let mut strikes = Strikes::new();
        while !self.stop.load(Ordering::Relaxed) {
            let Some(pool) = self.wanted() else {
                // A call that came since `wanted` looked is buffered and ends this sleep at once.
                self.parker.park();
                continue;
            };
            self.beats.fetch_add(1, Ordering::Relaxed);
            // Ordering: Acquire pairs with the Release of `step_aside`.
            if self.aside.load(Ordering::Acquire) {
                self.come_back();
                continue;
            }
            if pool.watch.is_coming() && !self.is_late(pool) {
                continue;
            }
            self.runs.fetch_add(1, Ordering::Relaxed);
            let answer = self.call_somebody(pool);
            if answer == Answer::Busy {
                // An ordinary thread wants the CPU, and the system has given us a turn all the same, as it does a few times a
                // second: back to waiting. (This puts our next turn beside ordinary threads off by a slice at our weight.)
                sched::yield_now();
            }
            if answer == Answer::Found {
                self.found.fetch_add(1, Ordering::Relaxed);
                self.misses.store(0, Ordering::Relaxed);
                self.away_ns.store(FIRST_AWAY_NS, Ordering::Relaxed);
            }
            if let Some(pause) = strikes.after(answer) {
                self.pauses.fetch_add(1, Ordering::Relaxed);
                self.sleep_off(pause);
            }
        }
    }

    /// A pause. A call that came before is no reason to end it.
    fn sleep_off(&self, ns: u64) {
        self.pausing.store(true, Ordering::Relaxed);
        let until = monotonic_ns() + ns;
        loop {
            let left = until.saturating_sub(monotonic_ns());
            if left == 0 || self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.parker.park_timeout(Duration::from_nanos(left));
        }
        self.pausing.store(false, Ordering::Relaxed);
    }

    /// It runs somewhere, not necessarily on its CPU: back there.
    fn come_back(&self) {
        self.aside.store(false, Ordering::Relaxed);
        if sched::pin(0, self.cpu).is_err() {
            // The CPU is gone, or out of the cpuset: the tick remains.
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the worker that is on its way does not come within its patience.
    fn is_late(&self, pool: &RtPool) -> bool {
        let until = monotonic_ns() + cmwq_policy::pool::WAKE_PATIENCE_NS;
        while pool.watch.is_coming() && !self.stop.load(Ordering::Relaxed) {
            if monotonic_ns() >= until {
                return true;
            }
            pause();
        }
        false
    }

    /// A pool that has items waiting behind what runs.
    fn wanted(&self) -> Option<&'static RtPool> {
        self.pools.iter().find_map(|slot| {
            // Ordering: Acquire pairs with the Release of `watch`.
            let p = slot.load(Ordering::Acquire);
            // SAFETY: null or a pool, and pools are never given back.
            unsafe { p.as_ref() }.filter(|p| p.watch.is_wanted_on(self.cpu))
        })
    }

    /// Wakes the pool's standby worker, or else the service, and waits a little for what it finds.
    fn call_somebody(&self, pool: &'static RtPool) -> Answer {
        let (answers, found) = pool.watch.answers();
        let patience = match pool.watch.standby() {
            Some(worker) => {
                worker.poke(self.cpu);
                ANSWER_HERE_NS
            }
            None => {
                self.service.ask(self.cpu);
                ANSWER_NS
            }
        };
        // Usually it has preempted us within the call, and we are back because this CPU has nothing else to do.
        let until = monotonic_ns() + patience;
        while pool.watch.answers().0 == answers && !self.stop.load(Ordering::Relaxed) {
            pause();
            if monotonic_ns() >= until {
                break;
            }
        }
        let (now, confirmed) = pool.watch.answers();
        if confirmed != found {
            Answer::Found
        } else if now != answers && pool.watch.is_busy() {
            Answer::Busy
        } else {
            Answer::Nothing
        }
    }
}

/// Lets some time pass. Spinning: on a CPU where an idle-class thread runs nobody else wants to, and whoever does preempts it.
/// (Each `sched_yield` would put its next turn beside ordinary threads off by a whole slice at its weight.)
fn pause() {
    for _ in 0..20 {
        std::hint::spin_loop();
    }
}

/// What a call came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// A worker was blocked, or one was moved here.
    Found,
    /// A worker of ours wants this CPU.
    Busy,
    /// Nobody is blocked, or nobody has answered.
    Nothing,
}

/// When to pause.
struct Strikes {
    row: u32,
    last: u64,
    pause: u64,
    began: u64,
    /// CPU time of runs that found nothing.
    wasted: u64,
    cpu: u64,
}

impl Strikes {
    fn new() -> Strikes {
        Strikes {
            row: 0,
            last: 0,
            pause: FIRST_PAUSE_NS,
            began: monotonic_ns(),
            wasted: 0,
            cpu: own_cpu(),
        }
    }

    /// One run is over: how long to pause, ns.
    fn after(&mut self, answer: Answer) -> Option<u64> {
        let cpu = own_cpu();
        let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu));
        if answer == Answer::Found {
            self.row = 0;
            self.pause = FIRST_PAUSE_NS;
            return None;
        }
        let now = monotonic_ns();
        self.wasted += used;
        if now.saturating_sub(self.last) > STRIKE_WINDOW_NS + self.pause {
            self.row = 0;
            self.pause = FIRST_PAUSE_NS;
        }
        if answer == Answer::Nothing {
            self.last = now;
            self.row += 1;
        }
        let allowed = ALLOWANCE_NS + now.saturating_sub(self.began) / IDLE_SHARE;
        if self.wasted > allowed {
            let pause = (self.wasted - allowed).saturating_mul(IDLE_SHARE);
            return Some(pause.min(LONGEST_PAUSE_NS));
        }
        if self.row < STRIKES {
            return None;
        }
        self.row = 0;
        let pause = self.pause;
        self.pause = (2 * pause).min(LONGEST_PAUSE_NS);
        Some(pause)
    }
}

fn own_cpu() -> u64 {
    cpu::own_cpu_time().map_or(0, |t| t.as_nanos() as u64)
}

/// Reasons for which sentinels could not be, at most a few.
struct Refusals(Mutex<Vec<String>>);

impl Refusals {
    fn push(&self, e: String) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < 4 {
            list.push(e);
        }
    }
}

fn refusals() -> &'static Refusals {
    static REFUSALS: Refusals = Refusals(Mutex::new(Vec::new()));
    &REFUSALS
}

/// Why a sentinel could not be, if one could not.
pub(super) fn refusal() -> Option<String> {
    refusals()
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .first()
        .cloned()
}

/// Sentinels with threads: fixed places, so that nothing is locked when the process exits.
static PINNED: [AtomicPtr<Sentinel>; 1024] = [const { AtomicPtr::new(ptr::null_mut()) }; 1024];
/// The process whose threads these are: a forked child leaves its parent's alone.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The process ends.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Has the thread released when the process exits: the process is not gone before its last thread has run once more.
fn at_exit(s: &'static Sentinel) {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        OWNER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handler makes system calls on a static table only. If it cannot be registered, an exit beside busy
        // threads may take longer; nothing else is lost.
        unsafe { libc::atexit(let_all_go) };
    });
    let p = ptr::from_ref(s).cast_mut();
    for slot in &PINNED {
        // Ordering: Release pairs with the Acquire of `let_all_go`: its thread id is in place.
        if slot
            .compare_exchange(ptr::null_mut(), p, Ordering::Release, Ordering::Relaxed)
            .is_ok()
        {
            return;
        }
    }
}

fn forget_at_exit(s: &Sentinel) {
    let p = ptr::from_ref(s).cast_mut();
    for slot in &PINNED {
        let _ = slot.compare_exchange(p, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

extern "C" fn let_all_go() {
    if OWNER.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    // Ordering: SeqCst, with the check in `Sentinel::main`.
    EXITING.store(true, Ordering::SeqCst);
    for slot in &PINNED {
        // Ordering: Acquire pairs with the Release of `at_exit`.
        // SAFETY: null or a sentinel, and those are never given back.
        if let Some(s) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
            s.let_go();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn three_runs_in_a_row_that_found_nothing_make_a_growing_pause() {
        let mut s = Strikes::new();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            pauses.extend(s.after(Answer::Nothing));
            s.wasted = 0;
        }
        assert_eq!(
            pauses,
            [
                FIRST_PAUSE_NS,
                2 * FIRST_PAUSE_NS,
                4 * FIRST_PAUSE_NS,
                8 * FIRST_PAUSE_NS
            ]
        );
        assert_eq!(s.after(Answer::Found), None);
        assert_eq!(
            (s.after(Answer::Nothing), s.after(Answer::Nothing)),
            (None, None)
        );
        assert_eq!(
            s.after(Answer::Nothing),
            Some(FIRST_PAUSE_NS),
            "a find starts anew"
        );
    }

    #[test]
    fn time_spent_for_nothing_is_paid_for_a_hundredfold() {
        let mut s = Strikes::new();
        s.wasted = ALLOWANCE_NS + s.began.abs_diff(monotonic_ns()) / IDLE_SHARE + 200_000;
        let pause = s.after(Answer::Nothing).unwrap();
        assert!((15_000_000..=LONGEST_PAUSE_NS).contains(&pause), "{pause}");
        s.wasted += 10_000_000;
        assert_eq!(s.after(Answer::Nothing), Some(LONGEST_PAUSE_NS));
    }
}
