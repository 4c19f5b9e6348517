//! Closures that borrow from the stack of the one who waits for them.
//!
//! Invariant S1: no borrow ends before every closure of the scope has been run or dropped, its result too if its handle is
//! gone. Each closure is one [`Job`], which counts itself out as the last thing when it is dropped. Results of closures whose
//! handle still exists belong to the handle, which cannot outlive the scope's body; a handle that is forgotten keeps its
//! result for ever, undropped and unseen.

use crate::completion::Completion;
use crate::current;
use crate::error::{JoinError, TrySpawnError, quietly};
use crate::shim::sync::{Mutex, PoisonError};
use crate::task::JoinHandle;
use crate::workqueue::{Place, Workqueue};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// From [`Workqueue::scope`]: spawns closures that may borrow what outlives the scope.
pub struct Scope<'scope, 'env: 'scope> {
    wq: Workqueue,
    shared: Arc<Shared>,
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

struct Shared {
    /// Jobs that exist, and one for the scope itself.
    open: AtomicUsize,
    over: Arc<Completion>,
    /// Panics that no handle has reported.
    panics: AtomicUsize,
}

/// Counts a job out when dropped.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        // Ordering: AcqRel: everything the closures did happens before the scope ends.
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.over.complete();
        }
    }
}

/// The outcome, shared by job and handle.
struct Packet<T> {
    result: Mutex<Option<Result<T, JoinError>>>,
    shared: Arc<Shared>,
}

impl<T> Drop for Packet<T> {
    fn drop(&mut self) {
        let result = self
            .result
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if quietly(move || drop(result)) {
            self.shared.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A closure on its way. The order of the fields is the order in which they are dropped (S1).
struct Job<F, T> {
    func: F,
    packet: Arc<Packet<T>>,
    open: Open,
}

impl<F: FnOnce() -> T, T> Job<F, T> {
    fn run(self) {
        let Job { func, packet, open } = self;
        let outcome = match catch_unwind(AssertUnwindSafe(func)) {
            Ok(value) => Some(Ok(value)),
            Err(payload) => {
                // Counted before the scope or a joiner can learn that it is over.
                current::count_panic();
                packet.shared.panics.fetch_add(1, Ordering::Relaxed);
                let name = std::any::type_name::<F>();
                if Arc::strong_count(&packet) > 1 {
                    Some(Err(JoinError::panicked(payload, name)))
                } else {
                    crate::runtime::report_panic(name, payload);
                    None
                }
            }
        };
        *packet.result.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        drop(packet);
        drop(open);
    }
}

/// Waits for a closure of a [`Scope`]. Dropping it detaches from the closure; the scope still waits for it.
#[must_use = "the scope waits all the same; say so with `drop`"]
pub struct ScopedHandle<'scope, T> {
    handle: JoinHandle<()>,
    packet: Arc<Packet<T>>,
    _scope: PhantomData<&'scope ()>,
}

impl<T> std::fmt::Debug for ScopedHandle<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScopedHandle")
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

impl<T> ScopedHandle<'_, T> {
    /// Waits for the result; see [`JoinHandle::join`]. Blocks. A panic reported here is not raised again at the end of the scope.
    ///
    /// # Errors
    /// As for [`JoinHandle::join`].
    pub fn join(self) -> Result<T, JoinError> {
        self.handle.join()?;
        let outcome = self
            .packet
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .expect("a closure that is over has left its outcome for its handle");
        if outcome.is_err() {
            self.packet.shared.panics.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Whether the closure is over.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// See [`JoinHandle::cancel`].
    pub fn cancel(&self) -> bool {
        self.handle.cancel()
    }
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope")
            .field("wq", &self.wq)
            .finish_non_exhaustive()
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Queues a closure; see [`Workqueue::spawn`]. In an item of the scope's own ordered queue, where the closure could start
    /// only after the item and with it the scope, it is dropped and its handle resolves to [`JoinError::WouldDeadlock`].
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.spawn_at(f, Place::Here)
    }

    /// Queues a closure to the pool that `cpu` leads to; on the calling CPU if there is no such CPU.
    pub fn spawn_on<F, T>(&'scope self, cpu: usize, f: F) -> ScopedHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.spawn_at(f, Place::Cpu(cpu))
    }

    fn spawn_at<F, T>(&'scope self, f: F, place: Place) -> ScopedHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let wq = self.wq.inner();
        if wq.is_ordered() && current::runs_item_of(wq) {
            return ScopedHandle {
                handle: JoinHandle::would_deadlock(std::any::type_name::<F>()),
                packet: self.packet(),
                _scope: PhantomData,
            };
        }
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        let packet = self.packet();
        let job = Job {
            func: f,
            packet: Arc::clone(&packet),
            open: Open(Arc::clone(&self.shared)),
        };
        // SAFETY: the job exists until its closure is over or dropped, and `run` below does not return before every job is
        // gone (S1).
        let handle = match unsafe { self.wq.spawn_at(move || job.run(), place) } {
            Ok(handle) => handle,
            Err(TrySpawnError { error, func }) => {
                drop(func);
                JoinHandle::refused(error)
            }
        };
        ScopedHandle {
            handle,
            packet,
            _scope: PhantomData,
        }
    }

    fn packet<T>(&self) -> Arc<Packet<T>> {
        Arc::new(Packet {
            result: Mutex::new(None),
            shared: Arc::clone(&self.shared),
        })
    }
}

pub(crate) fn run<'env, F, R>(wq: &Workqueue, f: F) -> R
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
{
    let shared = Arc::new(Shared {
        open: AtomicUsize::new(1),
        over: Completion::new(),
        panics: AtomicUsize::new(0),
    });
    let scope = Scope {
        wq: wq.clone(),
        shared: Arc::clone(&shared),
        _scope: PhantomData,
        _env: PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    drop(Open(Arc::clone(&shared)));
    // An item that waits for closures of its own queue lends them its permit.
    let lent = (!shared.over.is_done()).then(|| current::lend_to(wq.inner()));
    if let Err(e) = wq
        .inner()
        .rt
        .wait(&shared.over, || "the closures of a scope".to_owned())
    {
        // Returning would end borrows that queued closures still hold.
        eprintln!(
            "cmwq: a scope on workqueue \"{}\" can never end: {e}",
            wq.name()
        );
        std::process::abort();
    }
    drop(lent);
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if shared.panics.load(Ordering::Relaxed) > 0 => {
            panic!("a closure of the scope panicked")
        }
        Ok(r) => r,
    }
}
