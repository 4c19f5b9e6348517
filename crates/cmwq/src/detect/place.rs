//! Where woken workers run: two remedies for a scheduler that, when every CPU looks busy, leaves a woken thread where it ran last.
//!
//! 1. A worker that is woken because another one blocks is wanted on the CPU that becomes free: its mask is narrowed to it, and
//!    the worker puts its mask back itself as soon as it runs ([`PlaceWords`]).
//! 2. Two running workers of a pool share a CPU while another one of the pod has nothing to do ([`unstack`]).
//!
//! Neither touches a thread whose mask is not the one that the runtime set: its item chose it, or somebody outside.
//!
//! The system puts a woken worker beside its waker when every CPU looks busy at that moment, and may take several ticks
//! (of 1-10 ms) to move it when one becomes idle. The sentinel of the idle CPU runs at once. If it finds nobody blocked,
//! one of two workers that are runnable on the same CPU is moved to the idle one: the one that does not have the CPU. Its mask is
//! narrowed and at once put back, so only its place changes. No thread is added.

use super::confirm::Noted;
use crate::pool::RtPool;
use crate::runtime::RtInner;
use crate::sys::cpu;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// CPUs beyond these are left to the system.
const WORDS: usize = 1024 / 64;

/// A worker's mask as the runtime set it, and as the system said right after (less what is offline or outside the cpuset).
/// Fixed words, since sentinels read them.
#[derive(Default)]
pub(crate) struct PlaceWords {
    set: [AtomicU64; WORDS],
    seen: [AtomicU64; WORDS],
    /// How many words of each count; 0: not known.
    len: AtomicUsize,
    seen_len: AtomicUsize,
    /// The mask was narrowed and is to be put back.
    narrowed: AtomicBool,
}

impl PlaceWords {
    /// The calling worker has this mask now.
    pub(crate) fn remember(&self, tid: i32, mask: &[u64]) {
        let Ok(seen) = cpu::affinity(tid) else { return };
        if mask.len() > WORDS || seen.len() > WORDS || seen.is_empty() {
            return;
        }
        let put = |to: &[AtomicU64; WORDS], from: &[u64]| {
            for (t, f) in to.iter().zip(from) {
                t.store(*f, Ordering::Relaxed);
            }
        };
        put(&self.set, mask);
        put(&self.seen, &seen);
        self.seen_len.store(seen.len(), Ordering::Relaxed);
        // Ordering: Release pairs with the Acquire of `narrow`.
        self.len.store(mask.len(), Ordering::Release);
    }

    pub(crate) fn forget(&self) {
        self.len.store(0, Ordering::Relaxed);
        self.narrowed.store(false, Ordering::Relaxed);
    }

    /// Whether its mask is narrowed for the moment.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.narrowed.load(Ordering::Relaxed)
    }

    /// Lets the sleeping thread run on this CPU only. True if it was done. Allocates nothing, takes no lock of ours.
    pub(crate) fn narrow(&self, tid: i32, cpu: u32) -> bool {
        // Ordering: Acquire pairs with the Release of `remember`.
        if self.len.load(Ordering::Acquire) == 0 || cpu as usize >= WORDS * 64 || tid == 0 {
            return false;
        }
        let mut seen = [0; WORDS];
        for (t, f) in seen.iter_mut().zip(&self.seen) {
            *t = f.load(Ordering::Relaxed);
        }
        let seen = &seen[..self.seen_len.load(Ordering::Relaxed).min(WORDS)];
        let (word, bit) = (cpu as usize / 64, 1_u64 << (cpu % 64));
        let alone = seen.iter().map(|w| w.count_ones()).sum::<u32>() == 1;
        if alone || seen.get(word).is_none_or(|w| w & bit == 0) || !cpu::affinity_is(tid, seen) {
            return false;
        }
        let mut one = [0; WORDS];
        one[word] = bit;
        // Before and after: a worker that runs meanwhile puts back what it finds, and finds what came after that as well.
        self.narrowed.store(true, Ordering::Relaxed);
        let done = cpu::set_affinity(tid, &one[..=word]).is_ok();
        if done {
            // Ordering: Release pairs with the Acquire of `widen`: the mask was narrowed before.
            self.narrowed.store(true, Ordering::Release);
        }
        done
    }

    /// Somebody else puts the thread's mask back, if it was narrowed.
    pub(crate) fn widen_other(&self, tid: i32) {
        if self.narrowed.load(Ordering::Relaxed) && tid != 0 {
            self.put_back(tid);
        }
    }

    /// The worker itself puts its mask back, if it was narrowed. One load if not, 1 us if so.
    #[inline]
    pub(crate) fn widen(&self) {
        if self.narrowed.load(Ordering::Relaxed) {
            self.put_back(0);
        }
    }

    /// `tid` 0: the calling thread.
    #[cold]
    fn put_back(&self, tid: i32) {
        // Ordering: Acquire pairs with the Release of `narrow`.
        if self.narrowed.swap(false, Ordering::Acquire) {
            let mut set = [0; WORDS];
            for (t, f) in set.iter_mut().zip(&self.set) {
                *t = f.load(Ordering::Relaxed);
            }
            let len = self.len.load(Ordering::Relaxed).min(WORDS);
            if len > 0 && cpu::set_affinity(tid, &set[..len]).is_err() {
                // Every CPU of it is gone: run where there are some.
                let _ = crate::sys::sched::unpin(tid);
            }
        }
    }
}

/// Moves a worker to `idle_cpu` if two of `runnable` (index into `noted`, CPU) share another one. True if one was moved.
pub(super) fn unstack(
    rt: &RtInner,
    pool: &RtPool,
    noted: &[Noted],
    runnable: &[(usize, u32)],
    idle_cpu: u32,
) -> bool {
    if runnable.iter().any(|r| r.1 == idle_cpu) {
        return false; // it has one to run
    }
    let shares = |cpu: u32| runnable.iter().filter(|r| r.1 == cpu).count() > 1;
    let stacked: Vec<&Noted> = runnable
        .iter()
        .filter(|r| shares(r.1))
        .map(|r| &noted[r.0])
        .collect();
    let clock = |n: &Noted| cpu::thread_cpu_time(n.shared.tid.load(Ordering::Relaxed)).ok();
    let before: Vec<_> = stacked.iter().map(|n| clock(n)).collect();
    let waits = stacked
        .iter()
        .zip(&before)
        .find(|(n, b)| b.is_some() && clock(n) == **b);
    let Some((n, _)) = waits else { return false };
    let Some(masks) = rt.worker_mask(pool) else {
        return false;
    };
    if !masks.contains(idle_cpu as usize) {
        return false;
    }
    let moved = {
        // Its thread stays as long as this is held.
        let _held = n.shared.evidence.hold();
        let tid = n.shared.tid.load(Ordering::Relaxed);
        n.shared.batch.mark().start == n.mark.start
            && tid != 0
            && move_to(rt, tid, idle_cpu, &masks)
    };
    rt.detect
        .counts
        .moved
        .fetch_add(u64::from(moved), Ordering::Relaxed);
    moved
}

/// Narrows the thread's mask to one CPU and puts it back. Not if the thread has another mask than its pool's workers have:
/// its item chose it, or somebody outside.
fn move_to(rt: &RtInner, tid: i32, to: u32, mask: &cmwq_topology::CpuSet) -> bool {
    let words = crate::runtime::mask_words(mask);
    let usable = crate::runtime::mask_words(&mask.intersection(&rt.machine.load().usable));
    if cpu::affinity(tid).ok().as_deref() != Some(&usable) {
        return false;
    }
    let Some(one) = cpu::single(to) else {
        return false;
    };
    let moved = cpu::set_affinity(tid, &one).is_ok();
    moved && cpu::set_affinity(tid, &words).is_ok()
}
