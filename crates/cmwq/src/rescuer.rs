//! A guaranteed queue's rescuer: a thread made with the queue, which runs the queue's items one at a time in pools that need a
//! worker and cannot get one.

use crate::control::cpu_time;
use crate::current::{self, WorkerContext};
use crate::pool::{WorkerShared, worker::run_one};
use crate::shim::sync::{Mutex, MutexGuard, PoisonError};
use crate::sys::cpu;
use crate::sys::thread::ThreadSpec;
use crate::workqueue::{PwqLink, WqInner};
use cmwq_policy::pool::{Here, WorkerKind};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A pwq that has had this many items of its turn makes room for other waiting ones (kernel: RESCUER_BATCH, 7.0).
const TURN: usize = 16;

/// How often a rescuer looks after pools while the runtime has no thread for that.
const STAND_IN: std::time::Duration = std::time::Duration::from_millis(5);

/// See the module text.
pub(crate) struct Rescuer {
    state: Mutex<State>,
    shared: Arc<WorkerShared>,
}

#[derive(Default)]
struct State {
    /// Pwqs that called, oldest first; each at most once.
    calls: VecDeque<Arc<PwqLink>>,
    stop: bool,
}

impl Rescuer {
    /// Makes the thread.
    pub(crate) fn start(wq: &Arc<WqInner>) -> std::io::Result<Arc<Rescuer>> {
        let rescuer = Arc::new(Rescuer {
            state: Mutex::default(),
            shared: Arc::new(WorkerShared::new()),
        });
        if wq.rt.manual.is_some() {
            return Ok(rescuer);
        }
        let own = Arc::clone(&rescuer);
        let weak = Arc::downgrade(wq);
        let spec = ThreadSpec {
            name: format!("cmwq/R-{}", wq.name()),
            stack: wq.rt.stack_size,
        };
        (wq.rt.factory)(&spec, Box::new(move || own.main(&weak)))
            .map_err(|e| std::io::Error::other(e.to_string()))?;
        Ok(rescuer)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pwq's pool needs help.
    pub(crate) fn call(&self, link: &Arc<PwqLink>) {
        self.lock().calls.push_back(Arc::clone(link));
        self.shared.parker.unpark();
    }

    /// The runtime may have nobody else who looks after pools.
    pub(crate) fn wake(&self) {
        self.shared.parker.unpark();
    }

    /// The queue is closed: the thread ends when the queue is gone.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.shared.parker.unpark();
    }

    /// The thread, for reports.
    pub(crate) fn tid(&self) -> i32 {
        self.shared.tid.load(Ordering::Relaxed)
    }

    fn main(&self, wq: &Weak<WqInner>) {
        self.shared.tid.store(cpu::gettid(), Ordering::Relaxed);
        loop {
            let (link, stop) = {
                let mut state = self.lock();
                (state.calls.pop_front(), state.stop)
            };
            match link {
                Some(link) => self.rescue(&link),
                // A closed queue may still hold items that only we can run: stay until it is gone.
                None if stop && wq.upgrade().is_none_or(|wq| wq.lock().links.is_empty()) => return,
                None if stop => {
                    self.shared
                        .parker
                        .park_timeout(std::time::Duration::from_millis(20));
                }
                None => match wq.upgrade().map(|wq| wq.rt.nudge_if_helpless()) {
                    // Threads cannot be made now, so pools have nobody else who would call us.
                    Some(true) => {
                        self.shared.parker.park_timeout(STAND_IN);
                    }
                    Some(false) => self.shared.parker.park(),
                    // The queue is gone and nobody closed it: its last handle did.
                    None => return,
                },
            }
        }
    }

    /// One turn in one pool.
    fn rescue(&self, link: &Arc<PwqLink>) {
        let pool = link.pool;
        let rt = &link.wq.rt;
        let tid = self.shared.tid.load(Ordering::Relaxed);
        rt.place_worker(pool, tid);
        let id = pool.inspect(|inner| {
            let pwq = link.id()?;
            inner.policy.rescue_begun(pwq);
            let now = inner.time.now();
            let id = inner.policy.attach(WorkerKind::Rescuer, tid as u64, now);
            inner.seat(id, &self.shared);
            Some(id)
        });
        let Some(id) = id else { return };
        current::enter(Arc::new(WorkerContext {
            rt: Arc::clone(rt),
            pool,
            worker: id,
            shared: Arc::clone(&self.shared),
            home: None,
        }));
        let mut batch = Vec::with_capacity(1);
        let mut done = 0;
        loop {
            let others_wait = !self.lock().calls.is_empty();
            let on = cpu::current_cpu().unwrap_or(u32::MAX);
            let took = pool.with(|p, drv| {
                // The pool has help of its own again and nobody struggles: leave it to them.
                let needed = p.counts().idle == 0;
                let Some(pwq) = link
                    .id()
                    .filter(|_| needed && !(others_wait && done >= TURN))
                else {
                    return false;
                };
                let now = drv.now();
                let here = Here {
                    cpu: on,
                    in_pod: true,
                };
                let took = p.next_attached(id, Some(pwq), here, now, &mut batch, drv);
                if took {
                    self.shared.batch.publish(batch.len(), now);
                    cpu_time::run(&link.wq.records.cpu_time, now);
                }
                took
            });
            if !took {
                break;
            }
            // SAFETY: the item was queued, and we have claimed it.
            unsafe { self.shared.about_to_run(batch[0].item) };
            run_one(&batch[0]);
            done += 1;
        }
        pool.with(|p, drv| {
            let now = drv.now();
            p.detach(id, now, drv);
            cpu_time::pause(now);
        });
        pool.inspect(|inner| inner.unseat(id, &self.shared));
        current::leave();
        if done >= TURN
            && link
                .pool
                .inspect(|inner| link.id().is_some_and(|id| !inner.policy.pwq(id).is_empty()))
        {
            self.call(link);
        }
    }
}
