//! Closures that borrow from the stack of the one who waits for them.

use crate::completion::Completion;
use crate::error::JoinError;
use crate::error::{QueueError, TrySpawnError};
use crate::task::JoinHandle;
use crate::workqueue::{Place, Workqueue};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

/// From [`Workqueue::scope`]: spawns closures that may borrow what outlives the scope.
pub struct Scope<'scope, 'env: 'scope> {
    wq: Workqueue,
    shared: Arc<Shared>,
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

struct Shared {
    /// Closures not over yet, and one for the scope itself.
    open: AtomicUsize,
    over: Arc<Completion>,
    panicked: AtomicBool,
}

/// Counts a closure out when it is over, however that came about: run, panicked, cancelled, refused.
struct Ticket(Arc<Shared>);

impl Drop for Ticket {
    fn drop(&mut self) {
        // Ordering: AcqRel: everything the closures did happens before the scope ends.
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.over.complete();
        }
    }
}

/// Waits for a closure of a [`Scope`]. Dropping it detaches from the handle; the scope still waits for the closure.
#[must_use = "the scope waits all the same; say so with `drop`"]
pub struct ScopedHandle<'scope, T> {
    handle: JoinHandle<T>,
    shared: Arc<Shared>,
    _scope: PhantomData<&'scope ()>,
}

impl<T> ScopedHandle<'_, T> {
    /// Waits for the result; see [`JoinHandle::join`]. A panic reported here is not raised again at the end of the scope.
    ///
    /// # Errors
    /// As for [`JoinHandle::join`].
    pub fn join(self) -> Result<T, JoinError> {
        let r = self.handle.join();
        if matches!(&r, Err(e) if e.is_panic()) {
            self.shared.panicked.store(false, Ordering::Relaxed);
        }
        r
    }

    /// Whether the result is there.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// See [`JoinHandle::cancel`].
    pub fn cancel(&self) -> bool {
        self.handle.cancel()
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Queues a closure; see [`Workqueue::spawn`].
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.spawn_at(f, Place::Here)
    }

    /// Queues a closure to the pool that `cpu` leads to.
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
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket(Arc::clone(&self.shared));
        let shared = Arc::clone(&self.shared);
        let run = move || {
            // Dropped last, after `f` and everything it captured.
            let ticket = ticket;
            match catch_unwind(AssertUnwindSafe(f)) {
                Ok(v) => v,
                Err(payload) => {
                    ticket.0.panicked.store(true, Ordering::Relaxed);
                    resume_unwind(payload)
                }
            }
        };
        // SAFETY: the scope does not end before every ticket is gone, and a ticket is dropped after its closure. The result
        // may outlive the closure inside the cell, but T: 'scope and the handle cannot leave the scope; a detached handle's
        // result is dropped by the queue's side before ... see `run`, which waits for the tickets of results too.
        let handle = match unsafe { self.wq.spawn_at(run, place) } {
            Ok(handle) => handle,
            Err(TrySpawnError { error, func }) => {
                drop(func);
                JoinHandle::refused(error)
            }
        };
        ScopedHandle { handle, shared, _scope: PhantomData }
    }
}

pub(crate) fn run<'env, F, R>(wq: &Workqueue, f: F) -> R
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
{
    let shared = Arc::new(Shared {
        open: AtomicUsize::new(1),
        over: Completion::new(),
        panicked: AtomicBool::new(false),
    });
    let scope = Scope { wq: wq.clone(), shared: Arc::clone(&shared), _scope: PhantomData, _env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    drop(Ticket(Arc::clone(&shared)));
    // Whatever happened, no borrow may end before the closures are over.
    while wq.inner().rt.wait(&shared.over, || "a scope".to_owned()).is_err() {
        std::thread::yield_now();
    }
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if shared.panicked.load(Ordering::Relaxed) => panic!("a closure of the scope panicked"),
        Ok(r) => r,
    }
}

#[allow(dead_code, reason = "documents what a refused scoped closure resolves to")]
type RefusedAs = QueueError;
