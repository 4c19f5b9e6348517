//! Recording of a timeline: bounded buffers, one a thread; what does not fit is dropped and counted.
//!
//! Off, an event costs one relaxed load ([`on`]). On, an event takes its thread's own buffer lock, which nobody but a poll
//! ever takes besides. How many events lie in all buffers is bounded by credit: each thread takes some in advance, a poll gives
//! it back.

use crate::shim::leaf::{Mutex, MutexGuard, PoisonError};
use crate::sys::clock::Clock;
use crate::sys::cpu;
use arc_swap::ArcSwapOption;
use cmwq_control::attr::{SetError, SetErrorKind};
use cmwq_control::trace::{TraceChunk, TraceEvent, TraceKind, TraceOptions};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How many traces run in this process.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// Numbers sessions, so that a thread knows whether its buffer belongs to the current one.
static SESSIONS: AtomicU64 = AtomicU64::new(1);

/// Whether any runtime of this process records. One relaxed load.
#[inline]
pub(crate) fn on() -> bool {
    RUNNING.load(Ordering::Relaxed) != 0
}

/// An event as it lies in a buffer: names of queues are shared, not copied.
#[derive(Debug)]
pub(crate) enum Event {
    Queue {
        item: u64,
        func: &'static str,
        wq: Arc<str>,
        req_cpu: Option<u32>,
        pool: u32,
    },
    Start {
        item: u64,
        func: &'static str,
        wq: Arc<str>,
        pool: u32,
        waited_ns: u64,
        helped: bool,
    },
    Mayday {
        wq: Arc<str>,
        pool: u32,
    },
    Other(TraceKind),
}

impl Event {
    fn into_kind(self) -> TraceKind {
        match self {
            Event::Queue {
                item,
                func,
                wq,
                req_cpu,
                pool,
            } => TraceKind::QueueWork {
                item,
                func: func.into(),
                workqueue: wq.to_string().into(),
                req_cpu,
                pool,
            },
            Event::Start {
                item,
                func,
                wq,
                pool,
                waited_ns,
                helped,
            } => TraceKind::ExecuteStart {
                item,
                func: func.into(),
                workqueue: wq.to_string().into(),
                pool,
                waited_ns,
                helped,
            },
            Event::Mayday { wq, pool } => TraceKind::Mayday {
                workqueue: wq.to_string().into(),
                pool,
            },
            Event::Other(kind) => kind,
        }
    }
}

struct Raw {
    ns: u64,
    cpu: u32,
    event: Event,
}

struct Buffer {
    tid: u32,
    /// The thread's name, until a poll takes it.
    name: Mutex<Option<String>>,
    /// Events that the thread may still add; only the thread itself changes it.
    credit: AtomicUsize,
    events: Mutex<VecDeque<Raw>>,
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Raw>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One trace from its start to the next one's.
struct Session {
    id: u64,
    filter: Vec<String>,
    running: AtomicBool,
    /// Events that may still be buffered.
    room: AtomicUsize,
    /// How many a thread takes in advance.
    lot: usize,
    lost: AtomicU64,
    buffers: Mutex<Vec<Arc<Buffer>>>,
}

/// A thread's place in a session.
struct Mine {
    session: u64,
    buffer: Arc<Buffer>,
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

impl Session {
    fn buffers(&self) -> MutexGuard<'_, Vec<Arc<Buffer>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, event: Event) {
        let raw = Raw {
            ns: u64::try_from(Clock::to_monotonic(Clock::now()).as_nanos()).unwrap_or(u64::MAX),
            cpu: cpu::current_cpu().unwrap_or(0),
            event,
        };
        let kept = MINE.try_with(|mine| {
            // A second event within the first (a signal handler) is lost like one without room.
            let Ok(mut mine) = mine.try_borrow_mut() else {
                return false;
            };
            if mine.as_ref().is_none_or(|m| m.session != self.id) {
                let buffer = Arc::new(Buffer {
                    tid: cpu::gettid() as u32,
                    name: Mutex::new(cpu::own_name().ok()),
                    credit: AtomicUsize::new(0),
                    events: Mutex::default(),
                });
                self.buffers().push(Arc::clone(&buffer));
                *mine = Some(Mine {
                    session: self.id,
                    buffer,
                });
            }
            let Some(mine) = mine.as_ref() else {
                return false;
            };
            let credit = match mine.buffer.credit.load(Ordering::Relaxed) {
                0 => self.take_room(),
                n => n,
            };
            if credit == 0 {
                return false;
            }
            mine.buffer.credit.store(credit - 1, Ordering::Relaxed);
            mine.buffer.lock().push_back(raw);
            true
        });
        // A thread that is ending has no place of its own any more.
        if !kept.unwrap_or(false) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take_room(&self) -> usize {
        let mut got = 0;
        let _ = self
            .room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| {
                got = room.min(self.lot);
                Some(room - got)
            });
        got
    }

    fn poll(&self, max: usize) -> TraceChunk {
        let buffers: Vec<Arc<Buffer>> = self.buffers().clone();
        let mut events = Vec::new();
        let mut more = false;
        let mut threads = Vec::new();
        for buffer in &buffers {
            let name = buffer
                .name
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            threads.extend(name.map(|name| (buffer.tid, name)));
            let taken: Vec<Raw> = {
                let mut held = buffer.lock();
                let n = held.len().min(max - events.len());
                let taken = held.drain(..n).collect();
                more |= !held.is_empty();
                taken
            };
            self.room.fetch_add(taken.len(), Ordering::Relaxed);
            events.extend(taken.into_iter().map(|raw| TraceEvent {
                ns: raw.ns,
                tid: buffer.tid,
                cpu: raw.cpu,
                kind: raw.event.into_kind(),
            }));
        }
        // Buffers of threads that have ended: the session and this call are the last that know them.
        self.buffers().retain(|b| {
            let stays = Arc::strong_count(b) > 2 || !b.lock().is_empty();
            if !stays {
                self.room
                    .fetch_add(b.credit.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            stays
        });
        TraceChunk {
            events,
            lost: self.lost.load(Ordering::Relaxed),
            more,
            threads,
        }
    }
}

/// A runtime's recording.
#[derive(Default)]
pub(crate) struct Tracer {
    session: ArcSwapOption<Session>,
    /// Starting and stopping, one at a time.
    change: Mutex<()>,
}

impl Tracer {
    /// See [`cmwq_control::Process::trace_start`].
    pub(super) fn start(&self, options: &TraceOptions) -> Result<(), SetError> {
        let _change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if self
            .session
            .load()
            .as_ref()
            .is_some_and(|s| s.running.load(Ordering::Relaxed))
        {
            return Err(SetError::new(
                SetErrorKind::Busy,
                "a trace of this process is running already; stop that one first",
            ));
        }
        let capacity = options.buffer_events.max(1) as usize;
        self.session.store(Some(Arc::new(Session {
            id: SESSIONS.fetch_add(1, Ordering::Relaxed),
            filter: options.workqueues.clone(),
            running: AtomicBool::new(true),
            room: AtomicUsize::new(capacity),
            lot: (capacity / 64).clamp(1, 32),
            lost: AtomicU64::new(0),
            buffers: Mutex::default(),
        })));
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// See [`cmwq_control::Process::trace_poll`].
    pub(super) fn poll(&self, max: usize) -> TraceChunk {
        self.session
            .load()
            .as_ref()
            .map_or_else(TraceChunk::default, |s| s.poll(max))
    }

    /// See [`cmwq_control::Process::trace_stop`].
    pub(super) fn stop(&self) {
        let _change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if self
            .session
            .load()
            .as_ref()
            .is_some_and(|s| s.running.swap(false, Ordering::Relaxed))
        {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records an event of this queue (of none in particular: `None`), if that is wanted.
    pub(crate) fn record(&self, wq: Option<&str>, event: impl FnOnce() -> Event) {
        let session = self.session.load();
        let Some(session) = session
            .as_ref()
            .filter(|s| s.running.load(Ordering::Relaxed))
        else {
            return;
        };
        let wanted = session.filter.is_empty()
            || wq.is_none_or(|name| session.filter.iter().any(|f| f == name));
        if wanted {
            session.record(event());
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn event(n: u64) -> Event {
        Event::Other(TraceKind::ExecuteEnd {
            item: n,
            func: "f".into(),
            panicked: false,
        })
    }

    fn options(buffer_events: u32) -> TraceOptions {
        TraceOptions {
            buffer_events,
            workqueues: Vec::new(),
        }
    }

    #[test]
    fn events_come_out_in_order_and_what_does_not_fit_is_counted() {
        let t = Tracer::default();
        t.record(None, || {
            unreachable!("nothing is built while no trace runs")
        });
        t.start(&options(100)).unwrap();
        assert!(on());
        assert_eq!(t.start(&options(5)).unwrap_err().kind, SetErrorKind::Busy);
        (0..150).for_each(|n| t.record(None, || event(n)));
        let first = t.poll(60);
        assert_eq!((first.events.len(), first.lost, first.more), (60, 50, true));
        let items: Vec<u64> = first
            .events
            .iter()
            .map(|e| match e.kind {
                TraceKind::ExecuteEnd { item, .. } => item,
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(items, (0..60).collect::<Vec<_>>());
        assert!(first.events.windows(2).all(|w| w[0].ns <= w[1].ns));
        assert_eq!(first.threads.len(), 1, "the thread is named once");
        // What was taken out has made room.
        (0..60).for_each(|n| t.record(None, || event(n)));
        t.stop();
        t.record(None, || unreachable!("stopped"));
        let rest = t.poll(usize::MAX);
        assert_eq!((rest.events.len(), rest.lost, rest.more), (100, 50, false));
        assert!(rest.threads.is_empty());
        t.start(&options(100)).unwrap();
        assert_eq!(t.poll(10), TraceChunk::default());
    }

    #[test]
    fn the_bound_holds_over_many_threads_and_only_wanted_queues_are_kept() {
        let t = Tracer::default();
        t.start(&TraceOptions {
            buffer_events: 640,
            workqueues: vec!["a".into()],
        })
        .unwrap();
        std::thread::scope(|s| {
            let record = || {
                for n in 0..1000 {
                    t.record(Some("b"), || event(n));
                    t.record(Some("a"), || event(n));
                }
            };
            let threads: Vec<_> = (0..4).map(|_| s.spawn(record)).collect();
            // Joined one by one: a thread's own places are gone then, which the end of the scope does not promise.
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
        let chunk = t.poll(usize::MAX);
        assert_eq!(chunk.events.len() as u64 + chunk.lost, 4000);
        assert!(
            chunk.events.len() <= 640 && chunk.events.len() >= 600,
            "{}",
            chunk.events.len()
        );
        assert!(
            t.session.load().as_ref().unwrap().buffers().is_empty(),
            "ended threads leave nothing"
        );
    }
}
