//! The cell of a one-shot item.
//!
//! One allocation holds the item's header, a state word, the waker of an awaiting task, and first the closure, then its
//! result. Two parties share it: the *queue's side* (whoever will run or discard it) and the *handle*. Protocol:
//!
//! - C1: only the queue's side touches `stage` until COMPLETE is set; only the handle does afterwards.
//! - C2: COMPLETE is set once, by the queue's side, as its last access to the cell, unless HANDLE was gone: then it frees.
//! - C3: HANDLE is cleared once, by the handle, as its last access, unless COMPLETE was set: then it frees. So exactly one of
//!   the two frees the cell.
//! - C4: a waiter that set SLEEPER before COMPLETE came is woken by the one who sets COMPLETE; a waker stored before COMPLETE
//!   came is called (the bit WAKER says that there is one; COMPLETE is set only in a state without WAKER).

use super::memory;
use crate::error::{JoinError, quietly};
use crate::item::{Dropped, Header, ItemPtr, VTable, never_strays, type_name_of};
use crate::shim::UnsafeCell;
use crate::shim::atomic::{AtomicPtr, Ordering};
use crate::sys::futex::{Futex, Timeout, Wait};
use cmwq_policy::word::Word;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::task::{Context, Poll, Waker};

const COMPLETE: u32 = 1;
const HANDLE: u32 = 2;
const SLEEPER: u32 = 4;
const WAKER: u32 = 8;

enum Stage<F, T> {
    Closure(F),
    Running,
    Value(T),
    /// Boxed, so that a small closure makes a small cell.
    Failed(Box<JoinError>),
    Taken,
}

/// The part that does not depend on the types.
#[repr(C)]
pub(crate) struct Shared {
    header: Header,
    state: Futex,
    /// The waker of the task that awaits the result, or null. Whoever takes the pointer out owns it.
    waker: AtomicPtr<Waker>,
}

impl Shared {
    /// Exchanges the waker.
    fn swap_waker(&self, new: Option<Box<Waker>>) -> Option<Box<Waker>> {
        let new = new.map_or(ptr::null_mut(), Box::into_raw);
        // Ordering: AcqRel: the waker's contents go with its address.
        let old = self.waker.swap(new, Ordering::AcqRel);
        // SAFETY: it came from `Box::into_raw` above, and who takes it out owns it.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }

    fn ops(&self) -> &'static Ops {
        let ops = self.header.vtable().task;
        ops.expect("the item of a task has a task's table")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(self.swap_waker(None));
    }
}

/// What only one-shot items can do.
pub(crate) struct Ops {
    /// Moves the result out (to `*mut Result<T, JoinError>`). Only the handle, after COMPLETE.
    take: unsafe fn(NonNull<Shared>, *mut ()),
    free: unsafe fn(NonNull<Shared>),
}

#[repr(C)]
struct Cell<F, T> {
    shared: Shared,
    stage: UnsafeCell<Stage<F, T>>,
}

struct Kind<F, T>(PhantomData<(F, T)>);

impl<F, T> Kind<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    const VTABLE: VTable = VTable {
        run: Self::run,
        discard: Self::discard,
        name: type_name_of::<F>,
        strayed: never_strays,
        oneshot: true,
        fixed_name: Some(std::any::type_name::<F>),
        task: Some(&Self::OPS),
    };
    const OPS: Ops = Ops {
        take: Self::take,
        free: Self::free,
    };

    unsafe fn run(item: ItemPtr) {
        let cell = item.as_ptr().cast::<Cell<F, T>>();
        // SAFETY: the queue's side holds the cell (contract of `VTable::run`).
        let stage = unsafe { &cell.as_ref().stage };
        // SAFETY: until COMPLETE the queue's side alone touches `stage` (C1).
        let Stage::Closure(f) = stage.with_mut(|s| unsafe { s.replace(Stage::Running) }) else {
            unreachable!("a one-shot item runs once")
        };
        let outcome = match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => Stage::Value(value),
            Err(payload) => {
                crate::current::count_panic();
                // Ordering: none needed: a handle that goes away later just drops the payload unseen.
                // SAFETY: the queue's side holds the cell.
                let watched = unsafe { cell.as_ref() }
                    .shared
                    .state
                    .word()
                    .load(Ordering::Relaxed)
                    & HANDLE
                    != 0;
                if watched {
                    Stage::Failed(Box::new(JoinError::panicked(
                        payload,
                        std::any::type_name::<F>(),
                    )))
                } else {
                    crate::runtime::report_panic(std::any::type_name::<F>(), payload);
                    Stage::Taken
                }
            }
        };
        // SAFETY: as above.
        stage.with_mut(|s| unsafe { s.replace(outcome) });
        // SAFETY: the queue's side, for the last time.
        unsafe { complete(cell.cast()) };
    }

    unsafe fn discard(item: ItemPtr, why: Dropped) {
        let cell = item.as_ptr().cast::<Cell<F, T>>();
        let error = match why {
            Dropped::Cancelled => JoinError::cancelled(std::any::type_name::<F>()),
        };
        // SAFETY: as in `run`.
        let stage = unsafe { &cell.as_ref().stage };
        let failed = Stage::Failed(Box::new(error));
        // SAFETY: as in `run`.
        let closure = stage.with_mut(|s| unsafe { s.replace(failed) });
        // A panic in the drop glue of captured values must not reach the canceller or a worker.
        drop_quietly(closure);
        // SAFETY: as in `run`.
        unsafe { complete(cell.cast()) };
    }

    unsafe fn take(cell: NonNull<Shared>, out: *mut ()) {
        let cell = cell.cast::<Cell<F, T>>();
        // SAFETY: the handle holds the cell.
        let stage = unsafe { &cell.as_ref().stage };
        // SAFETY: after COMPLETE the handle alone touches `stage` (C1).
        let taken = stage.with_mut(|s| unsafe { s.replace(Stage::Taken) });
        let result: Result<T, JoinError> = match taken {
            Stage::Value(v) => Ok(v),
            Stage::Failed(e) => Err(*e),
            Stage::Taken => {
                panic!("the result was taken before: a finished JoinHandle was polled again")
            }
            Stage::Closure(_) | Stage::Running => unreachable!("COMPLETE comes after the result"),
        };
        // SAFETY: the caller passes the address of an uninitialised `Result<T, JoinError>`.
        unsafe { out.cast::<Result<T, JoinError>>().write(result) };
    }

    unsafe fn free(cell: NonNull<Shared>) {
        // SAFETY: exactly one party frees (C3); the cell was made by `new_task`.
        let Cell { shared, stage } = unsafe { memory::unbox(cell.cast::<Cell<F, T>>()) };
        drop_quietly(shared);
        drop_quietly(stage.into_inner());
    }
}

/// Drops a value; a panic of its drop glue ends here (the panic hook has reported it).
pub(super) fn drop_quietly<V>(v: V) {
    quietly(move || drop(v));
}

/// Sets COMPLETE and wakes, or frees.
///
/// # Safety
/// Called once, by the queue's side, after the result is in place; the caller does not touch the cell again.
unsafe fn complete(cell: NonNull<Shared>) {
    // SAFETY: alive until COMPLETE is set below; nothing of it is used afterwards.
    let shared = unsafe { cell.as_ref() };
    let state = shared.state.word();
    let wake_address = shared.state.waker();
    let free = shared.ops().free;
    let mut waker: Option<Box<Waker>> = None;
    // Ordering: Acquire pairs with the Release of `fetch_or(WAKER)`: the waker is in its place.
    let mut seen = state.load(Ordering::Acquire);
    loop {
        if seen & WAKER != 0 {
            // The bit goes first: a waker that is stored after we took the place's content sets it again.
            // Ordering: AcqRel: as above, and the handle that sets it again does so after this.
            seen = state.fetch_and(!WAKER, Ordering::AcqRel) & !WAKER;
            if let Some(newer) = shared.swap_waker(None) {
                drop_quietly(waker.replace(newer));
            }
            continue;
        }
        // Ordering: Release publishes the result to the handle (C1); Acquire: if HANDLE is gone, its last access happened
        // before we free.
        match state.compare_exchange_weak(
            seen,
            seen | COMPLETE,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => break,
            Err(now) => seen = now,
        }
    }
    if seen & HANDLE == 0 {
        // SAFETY: the handle is gone, so we free (C3).
        unsafe { free(cell) };
        drop_quietly(waker);
        return;
    }
    if seen & SLEEPER != 0 {
        wake_address.wake(u32::MAX);
    }
    if let Some(w) = waker {
        // A waker is foreign code; it must not take a worker down.
        quietly(move || w.wake());
    }
}

/// Makes a task: the item for the queue, and the handle's reference.
pub(crate) fn new_task<F, T>(f: F) -> (ItemPtr, TaskRef<T>)
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let cell = memory::boxed(Cell::<F, T> {
        shared: Shared {
            header: Header::new(Word::IN_TRANSIT, &Kind::<F, T>::VTABLE),
            state: Futex::new(HANDLE),
            waker: AtomicPtr::new(ptr::null_mut()),
        },
        stage: UnsafeCell::new(Stage::Closure(f)),
    });
    let shared = cell.cast::<Shared>();
    (
        ItemPtr::new(shared.cast()),
        TaskRef {
            shared,
            _result: PhantomData,
        },
    )
}

/// Takes the closure back out of a task that was never queued and frees the cell.
///
/// # Safety
/// `item` and `task` are the pair that `new_task::<F, T>` returned, and the item was not queued.
pub(crate) unsafe fn unmake<F, T>(item: ItemPtr, task: TaskRef<T>) -> F
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let cell = item.as_ptr().cast::<Cell<F, T>>();
    std::mem::forget(task);
    // SAFETY: nobody else knows the cell.
    let cell = unsafe { memory::unbox(cell) };
    match cell.stage.into_inner() {
        Stage::Closure(f) => f,
        _ => unreachable!("it was not queued"),
    }
}

/// The handle's reference to a task.
pub(crate) struct TaskRef<T> {
    shared: NonNull<Shared>,
    _result: PhantomData<fn() -> T>,
}

// SAFETY: the result moves to the thread that takes it, hence T: Send; everything else in `Shared` is Sync.
unsafe impl<T: Send> Send for TaskRef<T> {}
// SAFETY: `&TaskRef` only reads the state and stores wakers under a lock; taking the result needs `&mut`.
unsafe impl<T: Send> Sync for TaskRef<T> {}

impl<T> TaskRef<T> {
    fn shared(&self) -> &Shared {
        // SAFETY: HANDLE is set as long as `self` lives, so the cell is not freed (C2, C3).
        unsafe { self.shared.as_ref() }
    }

    /// The item.
    pub(crate) fn item(&self) -> ItemPtr {
        ItemPtr::new(self.shared.cast())
    }

    /// The item's header.
    pub(crate) fn header(&self) -> &Header {
        &self.shared().header
    }

    /// Whether the result is there.
    pub(crate) fn is_complete(&self) -> bool {
        // Ordering: Acquire pairs with the Release of COMPLETE.
        self.shared().state.word().load(Ordering::Acquire) & COMPLETE != 0
    }

    /// Sleeps until the result is there, at most until the timeout. True if it is.
    pub(crate) fn wait(&self, timeout: Timeout) -> bool {
        let state = self.shared().state.word();
        // Ordering: Acquire, here and below, pairs with the Release of COMPLETE.
        let mut seen = state.load(Ordering::Acquire);
        loop {
            if seen & COMPLETE != 0 {
                return true;
            }
            if seen & SLEEPER == 0 {
                // Ordering: Acquire, as above.
                match state.compare_exchange_weak(
                    seen,
                    seen | SLEEPER,
                    Ordering::Acquire,
                    Ordering::Acquire,
                ) {
                    Ok(_) => seen |= SLEEPER,
                    Err(now) => {
                        seen = now;
                        continue;
                    }
                }
            }
            if self.shared().state.wait(seen, timeout) == Wait::TimedOut {
                return self.is_complete();
            }
            // Ordering: Acquire, as above.
            seen = state.load(Ordering::Acquire);
        }
    }

    /// Takes the result.
    ///
    /// # Panics
    /// If it was taken before.
    pub(crate) fn take(&mut self) -> Result<T, JoinError> {
        assert!(self.is_complete(), "the result is not there yet");
        let mut out = std::mem::MaybeUninit::<Result<T, JoinError>>::uninit();
        // SAFETY: COMPLETE is set, we are the handle; `out` has the type that this task's `take` writes.
        unsafe {
            (self.shared().ops().take)(self.shared, out.as_mut_ptr().cast());
            out.assume_init()
        }
    }

    /// For `Future::poll`.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        if !self.is_complete() {
            let state = self.shared().state.word();
            let waker = Box::new(cx.waker().clone());
            drop(self.shared().swap_waker(Some(waker)));
            // Ordering: Release publishes the waker to `complete`; Acquire pairs with COMPLETE.
            if state.fetch_or(WAKER, Ordering::AcqRel) & COMPLETE == 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(self.take())
    }
}

impl<T> Drop for TaskRef<T> {
    fn drop(&mut self) {
        let free = self.shared().ops().free;
        // Ordering: AcqRel: our accesses happen before the other side frees; if it has completed, its accesses happened
        // before we free.
        let before = self
            .shared()
            .state
            .word()
            .fetch_and(!HANDLE, Ordering::AcqRel);
        if before & COMPLETE != 0 {
            // SAFETY: the queue's side is through, so we free (C3).
            unsafe { free(self.shared) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_small_closure_makes_a_cell_of_a_small_size_class() {
        // glibc keeps chunks of up to 128 bytes, header included, in bins that need no merging.
        let f = || 7u64;
        fn size<F: FnOnce() -> T, T>(_: &F) -> usize {
            std::mem::size_of::<Cell<F, T>>()
        }
        assert!(size(&f) <= 56, "{} bytes", size(&f));
    }
}
