//! Waiting for a one-shot item: running it oneself where that is allowed, else sleeping.

use crate::control::{cpu_time, probe};
use crate::current;
use crate::error::JoinError;
use crate::item::{Header, ItemPtr};
use crate::pool::{link_arc, pool_by_id};
use crate::runtime::RtInner;
use crate::sys::futex::Timeout;
use crate::workqueue::{PwqLink, WorkqueueKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the decision came to.
enum Verdict {
    /// Ours to run.
    Ours(u32, Arc<PwqLink>, u64),
    /// Somebody else runs it, or it is not allowed: wait.
    Wait,
    Deadlock,
}

/// Runs the queued item on the calling thread if it has not started and the thread may. True if it did.
///
/// Allowed are workers of the same runtime whose nice is the queue's and whose pod lies within the queue's mask, and, on
/// queues built with `inline_wait`, any thread. The item's own permit covers it; if it is held back, only a caller that runs an
/// item of the same queue may start it, on that item's permit.
pub(crate) fn try_run(item: ItemPtr, h: &Header) -> Result<bool, JoinError> {
    let worker = current::worker();
    let mut seen = h.word();
    if seen.is_submitted() {
        pool_by_id(seen.pool()).absorb();
        seen = h.word();
    }
    if !seen.is_linked() {
        return Ok(false);
    }
    let shallow = current::depth() < MAX_DEPTH;
    let pool = pool_by_id(seen.pool());
    let verdict = pool.with(|p, drv| {
        let entry = seen.entry();
        let Some(e) = p
            .entry(entry)
            .filter(|e| e.item == item && h.word() == seen)
        else {
            return Verdict::Wait;
        };
        // SAFETY: the pool's lock is held and the entry's pwq is linked.
        let link = unsafe { link_arc(p.pwq(e.pwq).tag) };
        let own = current::runs_item_of(&link.wq);
        if link.wq.is_ordered() {
            return if own {
                Verdict::Deadlock
            } else {
                Verdict::Wait
            };
        }
        let config = &link.wq.config;
        let allowed = shallow
            && match &worker {
                Some(w) => {
                    Arc::ptr_eq(&w.rt, &link.wq.rt)
                        && !config.kernel_mode
                        && (std::ptr::eq(w.pool, pool)
                            || (config.kind == WorkqueueKind::Unbound && fits(w.pool, &link)))
                }
                None => config.inline_wait,
            };
        let now = drv.now();
        if allowed && p.inline_begin(entry, own, now, drv) {
            Verdict::Ours(entry, link, now)
        } else {
            Verdict::Wait
        }
    });
    match verdict {
        Verdict::Wait => Ok(false),
        Verdict::Deadlock => Err(JoinError::WouldDeadlock {
            // SAFETY: the caller holds the item.
            item: unsafe { item.name() },
            why: crate::task::BEHIND_ITSELF,
        }),
        Verdict::Ours(entry, link, start) => {
            link.wq.started_one();
            let outer = cpu_time::interrupt(&link.wq.records.cpu_time, start);
            // SAFETY: the caller holds the item.
            let named = unsafe { probe::name(item) };
            if let Some(named) = named {
                probe::execute_start(named, &link, entry);
            }
            // SAFETY: `inline_begin` gave the queued item to us alone; the entry keeps the pwq linked.
            unsafe { current::run_item(item, &link) };
            if let Some(named) = named {
                probe::execute_end(named, &link);
            }
            let end = pool.with(|p, drv| {
                let end = drv.now();
                p.inline_end(entry, start, end, drv);
                end
            });
            cpu_time::resume(outer, end);
            Ok(true)
        }
    }
}

/// How many items a thread runs one inside the other; then it waits, and another worker goes on with a stack of its own.
/// Bounds what a chain of items that each join the next needs: 2 MiB of stack are 64 KiB an item.
const MAX_DEPTH: usize = 32;

/// The caller is going to sleep until this item is over. If it runs items of the same queue, these lend their permits.
pub(crate) fn lend(item: ItemPtr, h: &Header) -> Option<current::Lent> {
    if !current::is_running() {
        return None;
    }
    let seen = h.word();
    if !seen.is_linked() {
        return None;
    }
    let link = pool_by_id(seen.pool()).with(|p, _| {
        let e = p.entry(seen.entry()).filter(|e| e.item == item)?;
        // SAFETY: the pool's lock is held and the entry's pwq is linked.
        Some(unsafe { link_arc(p.pwq(e.pwq).tag) })
    })?;
    Some(current::lend_to(&link.wq))
}

/// Whether a worker of `pool` may run items of `link`'s queue: same nice, and its pod lies within the queue's mask.
fn fits(pool: &crate::pool::RtPool, link: &PwqLink) -> bool {
    use crate::pool::PoolKey;
    let Some(key) = pool.key_hint() else {
        return false;
    };
    let PoolKey::Unbound {
        nice, pod, mask, ..
    } = &link.key
    else {
        return false;
    };
    key.nice() == *nice && key.pod().is_subset(mask.as_ref().unwrap_or(pod))
}

/// The runtime behind a queued item, if it is driven by hand (see [`crate::testing`]).
pub(crate) fn manual_runtime(h: &Header) -> Option<Arc<RtInner>> {
    let rt = runtime_of(h)?;
    rt.manual.is_some().then_some(rt)
}

fn runtime_of(h: &Header) -> Option<Arc<RtInner>> {
    let seen = h.word();
    if seen.pool() == cmwq_policy::word::NO_POOL {
        return None;
    }
    pool_by_id(seen.pool()).inspect(|inner| inner.rt.clone())
}

/// Sleeps by `sleep` until it reports success or the deadline comes. While the runtime has no thread that could make workers
/// (none could be made so far), the waiter itself tries again now and then.
pub(crate) fn watchful(
    h: &Header,
    deadline: Option<Instant>,
    sleep: impl FnMut(Timeout) -> bool,
) -> bool {
    let rt = runtime_of(h);
    let helpless = || rt.as_ref().is_some_and(|rt| rt.nudge_if_helpless());
    sleep_until(deadline, helpless, sleep)
}

/// Sleeps by `sleep` until it reports success or the deadline comes, and no longer than [`RETRY`] at a time while `is_helpless`.
pub(crate) fn sleep_until(
    deadline: Option<Instant>,
    is_helpless: impl Fn() -> bool,
    mut sleep: impl FnMut(Timeout) -> bool,
) -> bool {
    loop {
        let helpless = is_helpless();
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = match (helpless, left) {
            (true, Some(l)) => Timeout::After(l.min(RETRY)),
            (true, None) => Timeout::After(RETRY),
            (false, Some(l)) => Timeout::After(l),
            (false, None) => Timeout::Never,
        };
        if sleep(timeout) {
            return true;
        }
        if left.is_some_and(|l| l.is_zero()) {
            return false;
        }
    }
}

/// How often a waiter of a runtime without threads tries to get one.
const RETRY: Duration = Duration::from_millis(20);
