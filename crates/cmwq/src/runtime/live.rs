//! Following changes of the CPUs that the process may use, while the runtime lives.
//!
//! One thread, made with the first worker, sleeps in `poll` on the cgroup files that concern the process
//! ([`crate::sys::watch`]). What cannot be watched (a CPU going offline, a move to another cgroup, affinity set from outside) is
//! found by looking once a second while items run. While none do, it sleeps without a timeout; the first worker that wakes up
//! afterwards calls it, and it looks at once.
//!
//! The thread is also the probe for the process's affinity: nobody but this runtime sets its mask, so a mask other than what the
//! cpuset makes of the one that was set says that somebody has changed all of the process's threads (`taskset -a`). The mask of
//! the main thread says nothing: programs pin it for reasons of their own.
//!
//! The system itself changes masks too while a CPU goes or comes, some milliseconds before or after it says so elsewhere. Masks
//! are therefore compared on the online CPUs only, and a difference is believed when a second look finds the same one.
//!
//! - V1: asleep without a timeout only after `asleep` was set and no worker had stirred since: a worker that stirs sets `stirred`
//!   and then reads `asleep`, the thread sets `asleep` and then reads `stirred`; both sequentially consistent, so one sees the
//!   other.

use super::placing::{Suspicion, expected, mask_words, other_mask};
use super::{Machine, RtInner};
use crate::shim::leaf::OnceLock;
use crate::shim::leaf::{Mutex, PoisonError};
use crate::sys::sleeper::Sleeper;
use crate::sys::thread::ThreadSpec;
use crate::sys::watch::CgroupWatch;
use crate::sys::{clock::monotonic, cpu};
use cmwq_topology::{CpuSet, ProcessCpus, Topology};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often it looks while items run: with [`BELIEF`] a second in all.
const LOOK: Duration = Duration::from_millis(900);
/// How long a mask must have been another one than the runtime set before somebody outside is taken to have set it. Taking a
/// CPU offline or back takes 18-36 ms (the write to its `online` file, measured on a two-CPU guest beside builds).
pub(super) const BELIEF: Duration = Duration::from_millis(100);
/// When it looks first. A look takes a millisecond of CPU time, and a runtime's first worker usually has better use for it.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// It needs little stack, but reading files takes some.
const STACK: usize = 256 << 10;

const UNMADE: u8 = 0;
const MADE: u8 = 1;
const OFF: u8 = 2;

/// See the module text.
pub(crate) struct Live {
    state: AtomicU8,
    /// The topology is the system's too, not one that was given.
    real_topology: bool,
    sleeper: OnceLock<Sleeper>,
    asleep: AtomicBool,
    stirred: AtomicBool,
    stop: AtomicBool,
    /// One look at a time.
    looking: Mutex<()>,
}

impl Live {
    pub(crate) fn new(follow: bool, real_topology: bool) -> Live {
        Live {
            state: AtomicU8::new(if follow { UNMADE } else { OFF }),
            real_topology,
            sleeper: OnceLock::new(),
            asleep: AtomicBool::new(false),
            stirred: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            looking: Mutex::new(()),
        }
    }

    /// Whether changes are followed.
    pub(crate) fn follows(&self) -> bool {
        self.state.load(Ordering::Relaxed) != OFF
    }

    /// A worker has woken up. Two loads of words that hardly ever change, unless the thread sleeps for good.
    #[inline]
    pub(crate) fn stir(&self) {
        if self.state.load(Ordering::Relaxed) != MADE || self.stirred.load(Ordering::Relaxed) {
            return;
        }
        self.stir_slow();
    }

    #[cold]
    fn stir_slow(&self) {
        // Ordering: SeqCst, here and below: V1.
        self.stirred.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(s) = self.sleeper.get()
        {
            s.call();
        }
    }

    /// Makes the thread if there is none and there should be. Called by the spawner.
    pub(crate) fn start(&self, rt: &Arc<RtInner>) {
        if self.state.load(Ordering::Relaxed) != UNMADE {
            return;
        }
        self.state.store(MADE, Ordering::Relaxed);
        let result = match Sleeper::new() {
            Ok(s) => {
                let _ = self.sleeper.set(s);
                let weak = Arc::downgrade(rt);
                let live = Arc::clone(&rt.live);
                let spec = ThreadSpec {
                    name: "cmwq/cpus".to_owned(),
                    stack: Some(STACK),
                };
                (rt.factory)(&spec, Box::new(move || main(&weak, &live))).map_err(|e| e.to_string())
            }
            Err(e) => Err(e.to_string()),
        };
        if let Err(e) = result {
            self.state.store(OFF, Ordering::Relaxed);
            rt.warn(format!(
                "changes of the CPUs are not followed: no thread for it: {e}"
            ));
        }
    }

    /// The thread ends.
    pub(crate) fn stop(&self) {
        // Ordering: Release pairs with the Acquire in `main`.
        self.stop.store(true, Ordering::Release);
        if let Some(s) = self.sleeper.get() {
            s.call();
        }
    }
}

fn main(weak: &Weak<RtInner>, live: &Arc<Live>) {
    let Some(sleeper) = live.sleeper.get() else {
        return;
    };
    let mut watch: Option<CgroupWatch> = None;
    let mut watched_group = None;
    let mut probe = Probe::default();
    let mut next_look = Duration::ZERO;
    let mut watch_failed = false;
    let mut must_look = true;
    // From now on a mask that is set from outside differs from what was wished.
    if let Some(rt) = weak.upgrade() {
        rt.wish(&mut probe);
    }
    if sleeper.sleep(None, Some(FIRST_LOOK)).is_err() {
        return;
    }
    loop {
        let timeout = {
            let Some(rt) = weak.upgrade() else { return };
            if must_look {
                let group = rt.look(&mut probe);
                if watch.is_none() || watched_group != group {
                    watched_group = group;
                    watch = match CgroupWatch::own() {
                        Ok(w) => Some(w),
                        Err(e) => {
                            if !std::mem::replace(&mut watch_failed, true) {
                                rt.warn(format!(
                                    "changes of cgroups are found by looking only: {e}"
                                ));
                            }
                            None
                        }
                    };
                    // What was written between the look and the watch.
                    rt.look(&mut probe);
                }
                next_look = monotonic() + if probe.suspects() { BELIEF } else { LOOK };
            }
            // Ordering: SeqCst, here and below: V1.
            let stirred = live.stirred.swap(false, Ordering::SeqCst);
            if stirred || probe.suspects() || rt.has_work() {
                Some(next_look.saturating_sub(monotonic()))
            } else {
                // Ordering: SeqCst, all three: V1.
                live.asleep.store(true, Ordering::SeqCst);
                if live.stirred.load(Ordering::SeqCst) {
                    live.asleep.store(false, Ordering::SeqCst);
                    Some(LOOK)
                } else {
                    None
                }
            }
        };
        // Ordering: Acquire pairs with the Release of `stop`.
        if live.stop.load(Ordering::Acquire) {
            return;
        }
        let fd = watch.as_ref().map(|w| w.as_fd());
        let Ok(roused) = sleeper.sleep(fd, timeout) else {
            return; // no memory for a poll: nothing that could be followed
        };
        live.asleep.store(false, Ordering::Relaxed);
        // Ordering: as above.
        if live.stop.load(Ordering::Acquire) {
            return;
        }
        must_look = roused.readable || monotonic() >= next_look;
        if roused.readable {
            match watch.as_ref().map(CgroupWatch::drain) {
                Some(Ok(changes)) if !changes.stale => {}
                // Gone or useless: a new one comes with the look.
                _ => watch = None,
            }
        }
    }
}

/// The thread as the probe for masks that are set from outside.
#[derive(Default)]
struct Probe {
    /// The mask that it asked for.
    wish: Option<CpuSet>,
    /// Its own mask was another one than that at the last look.
    own: Suspicion,
    /// Workers whose mask was another one than their pool's at the last look.
    workers: Vec<(i32, Suspicion)>,
}

impl Probe {
    /// Something is to be looked at once more soon.
    fn suspects(&self) -> bool {
        self.own.is_some() || !self.workers.is_empty()
    }
}

impl RtInner {
    fn has_work(&self) -> bool {
        self.pools()
            .iter()
            .any(|p| p.inspect(|inner| inner.policy.entries() > 0))
    }

    /// Reads what the process may use and follows it. By the thread of this file only.
    /// Returns the cgroup that the cpuset was read from.
    fn look(self: &Arc<Self>, probe: &mut Probe) -> Option<std::path::PathBuf> {
        let old = self.machine.load_full();
        let mut process = ProcessCpus::current();
        let mut affinity = old.affinity.clone();
        if let Some(wish) = &probe.wish {
            let now = old.changed(self.topology_now(&old), affinity.clone(), &process);
            let own = other_mask(0, &expected(wish, &now), &now);
            // Read before and after: if the cpuset is the same, a mask that does not follow from it was set from outside.
            let again = ProcessCpus::current();
            if again.cpuset != process.cpuset {
                probe.own.clear();
            } else if let Some(own) = probe.own.believe(own, monotonic()) {
                affinity = (!now.cpuset.is_subset(&own)).then_some(own);
            }
            process = again;
        }
        let group = process.cpuset_group.clone();
        self.follow(&process, affinity);
        self.wish(probe);
        self.adopt_moved(&self.machine.load_full(), &mut probe.workers);
        group
    }

    /// The calling thread is the probe for the process's affinity: its mask is set to what the runtime takes that for.
    fn wish(&self, probe: &mut Probe) {
        let machine = self.machine.load();
        let wish = machine
            .affinity
            .clone()
            .unwrap_or_else(|| machine.topology.possible().clone());
        if probe.wish.as_ref() != Some(&wish) {
            // A refusal means that the cpuset has none of them; then the system's choice stays, and `expected` says the same.
            let _ = cpu::set_affinity(0, &mask_words(&wish));
            probe.wish = Some(wish);
            probe.own.clear();
        }
    }

    fn topology_now(&self, old: &Machine) -> Arc<Topology> {
        if !self.live.real_topology {
            return Arc::clone(&old.topology);
        }
        let path = old.topology.root().join("sys/devices/system/cpu/online");
        let online = std::fs::read_to_string(path)
            .ok()
            .and_then(|s| CpuSet::parse_list(s.trim()).ok());
        match online {
            Some(o) if o != *old.topology.online() => Arc::new(old.topology.reread()),
            _ => Arc::clone(&old.topology),
        }
    }

    /// Puts what the process may use now in force, if it is something else: pools get new targets, queues are podded anew, workers
    /// get new masks. Nothing queued is lost or stopped.
    pub(crate) fn follow(
        self: &Arc<Self>,
        process: &ProcessCpus,
        affinity: Option<CpuSet>,
    ) -> bool {
        let _one = self
            .live
            .looking
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let old = self.machine.load_full();
        let new = old.changed(self.topology_now(&old), affinity, process);
        if new.is_same(&old) {
            return false;
        }
        self.machine.store(Arc::new(new));
        self.machine_changed();
        // Ordering: Release pairs with the Acquire of `Runtime::placement`: what is counted is in force.
        self.changes.fetch_add(1, Ordering::Release);
        true
    }

    /// Replaces the machine by what `change` makes of it, and follows.
    pub(crate) fn change_machine(self: &Arc<Self>, change: impl FnOnce(&Machine) -> Machine) {
        let _one = self
            .live
            .looking
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let new = change(&self.machine.load());
        self.machine.store(Arc::new(new));
        self.machine_changed();
    }

    fn machine_changed(self: &Arc<Self>) {
        // Workers first: what runs now is to be inside the new masks as soon as may be.
        self.replace_workers();
        self.wqs().iter().for_each(|wq| wq.machine_changed());
        self.refit_pools();
    }
}
