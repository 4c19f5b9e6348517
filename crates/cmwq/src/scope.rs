//! Closures that borrow from the stack of the one who waits for them.
//!
//! Invariant S1: no borrow ends before every closure of the scope is over *and* every result was dropped or taken. Each
//! closure and its handle share a [`Packet`] with the result; the scope counts packets, and a packet counts itself out when it
//! is dropped, after its result.

use crate::completion::Completion;
use crate::error::{JoinError, TrySpawnError};
use crate::task::JoinHandle;
use crate::workqueue::{Place, Workqueue};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// From [`Workqueue::scope`]: spawns closures that may borrow what outlives the scope.
pub struct Scope<'scope, 'env: 'scope> {
    wq: Workqueue,
    shared: Arc<Shared>,
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

struct Shared {
    /// Packets that exist, and one for the scope itself.
    open: AtomicUsize,
    over: Arc<Completion>,
    /// Panics that no handle has reported.
    panics: AtomicUsize,
}

impl Shared {
    fn count_out(&self) {
        // Ordering: AcqRel: everything the closures did happens before the scope ends.
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.over.complete();
        }
    }
}

struct Packet<T> {
    result: Mutex<Option<T>>,
    shared: Arc<Shared>,
}

impl<T> Drop for Packet<T> {
    fn drop(&mut self) {
        let result = self
            .result
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if catch_unwind(AssertUnwindSafe(move || drop(result))).is_err() {
            self.shared.panics.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.count_out();
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
    /// Waits for the result; see [`JoinHandle::join`]. A panic reported here is not raised again at the end of the scope.
    ///
    /// # Errors
    /// As for [`JoinHandle::join`].
    pub fn join(self) -> Result<T, JoinError> {
        match self.handle.join() {
            Ok(()) => {
                let value = self
                    .packet
                    .result
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                Ok(value.expect("a closure that returned has left its result"))
            }
            Err(e) => {
                if e.is_panic() {
                    self.packet.shared.panics.fetch_sub(1, Ordering::Relaxed);
                }
                Err(e)
            }
        }
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
    /// Queues a closure; see [`Workqueue::spawn`].
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
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        let packet = Arc::new(Packet {
            result: Mutex::new(None),
            shared: Arc::clone(&self.shared),
        });
        let theirs = Arc::clone(&packet);
        let run = move || {
            match catch_unwind(AssertUnwindSafe(f)) {
                Ok(value) => {
                    *theirs.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value)
                }
                Err(payload) => {
                    theirs.shared.panics.fetch_add(1, Ordering::Relaxed);
                    drop(theirs);
                    resume_unwind(payload)
                }
            };
        };
        // SAFETY: the item holds a packet until its closure is over or dropped, the result lies in a packet, and `run` does
        // not return before every packet is gone (S1).
        let handle = match unsafe { self.wq.spawn_at(run, place) } {
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
    shared.count_out();
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
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if shared.panics.load(Ordering::Relaxed) > 0 => {
            panic!("a closure of the scope panicked")
        }
        Ok(r) => r,
    }
}
