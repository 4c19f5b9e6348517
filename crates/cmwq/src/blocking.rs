//! Telling the pool that a worker is about to block.

use crate::control::probe;
use crate::current::{self, WorkerContext};
use cmwq_control::trace::TraceKind;
use cmwq_policy::pool::WorkerState;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Calls `f`, having told the pool that this worker is about to block: items that wait get another worker at once, instead of
/// when the block is detected. Outside a work item it just calls `f`. May be nested; the outermost call counts.
///
/// Costs two holds of the pool's lock, and a wake-up if items wait.
///
/// ```
/// # let file = std::fs::File::open("/dev/null")?;
/// cmwq::blocking(|| file.sync_all()).ok();
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn blocking<R>(f: impl FnOnce() -> R) -> R {
    let _away = current::is_running().then(enter);
    f()
}

/// Ends a blocking section when dropped.
pub(crate) struct Away(Option<Arc<WorkerContext>>);

/// Begins a blocking section of the calling worker. In a section already, or on a thread that is no worker: does nothing.
pub(crate) fn enter() -> Away {
    let Some(w) = current::worker() else {
        return Away(None);
    };
    w.rt.detect.counts.said.fetch_add(1, Ordering::Relaxed);
    let ours = match w.home {
        // A helper does not count where it helps, but its own pool may send another one.
        Some((home, id)) => {
            let first = !w.shared.away.swap(true, Ordering::Relaxed);
            first && {
                home.with(|p, _| p.away_blocked(id));
                true
            }
        }
        None => {
            let began = w.pool.with(|p, drv| {
                let now = drv.now();
                let full = p.counts().running >= p.target();
                if p.blocked(w.worker, now, drv) && full {
                    drv.hand_over(crate::sys::cpu::current_cpu());
                }
                p.worker(w.worker)
                    .is_some_and(|x| x.state == WorkerState::Blocked)
            });
            // A nested section finds the worker blocked by the outer one, which also ends it.
            began && !w.shared.away.swap(true, Ordering::Relaxed)
        }
    };
    if ours {
        probe::worker_event(&w.rt, || TraceKind::WorkerBlocked {
            worker_tid: w.shared.tid.load(Ordering::Relaxed) as u32,
            by: "said".into(),
        });
    }
    Away(ours.then_some(w))
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Some(w) = &self.0 {
            w.shared.away.store(false, Ordering::Relaxed);
            match w.home {
                Some((home, id)) => home.with(|p, _| p.away_resumed(id)),
                None => w.pool.with(|p, _| p.resumed(w.worker)),
            }
            probe::worker_event(&w.rt, || TraceKind::WorkerResumed {
                worker_tid: w.shared.tid.load(Ordering::Relaxed) as u32,
            });
        }
    }
}
