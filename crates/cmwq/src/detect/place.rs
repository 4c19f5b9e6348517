//! Two running workers of a pool share a CPU while another one of the pod has nothing to do.
//!
//! The system puts a woken worker beside its waker when every CPU looks busy at that moment, and may take several ticks
//! (of 1-10 ms) to move it when one becomes idle. The sentinel of the idle CPU runs at once. If it finds nobody blocked,
//! one of two workers that are runnable on the same CPU is moved to the idle one: the one that does not have the CPU. Its mask is
//! narrowed and at once put back, so only its place changes. No thread is added.

use super::confirm::Noted;
use crate::pool::RtPool;
use crate::runtime::RtInner;
use crate::sys::cpu;
use std::sync::atomic::Ordering;

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
