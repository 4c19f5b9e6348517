//! One door to atomics, locks, `Arc` and threads, so that protocols can be model-checked.
//!
//! | build | behind the door |
//! |---|---|
//! | normal | `std` |
//! | `--cfg loom` | `loom`: every interleaving and every value that a weak load may return, for small models |
//! | `--cfg shuttle` | `shuttle`: random schedules, sequentially consistent, for large models |
//! | `--cfg tsan` | `std` with a mutex that the thread sanitizer understands |
//!
//! A protocol that is to be modelled takes its primitives from here and its sleeping from [`crate::sys::futex`] or
//! [`crate::sys::parker`], which have stand-ins in both models. Code that never runs in a model (reading `/proc`, clocks,
//! perf rings) uses `std` directly, because a loom type cannot live in a `static` and panics outside a model.
//!
//! Run the models with
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p cmwq --lib loom_` and
//! `RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test -p cmwq --lib shuttle_`.
#![allow(
    dead_code,
    unused_imports,
    reason = "which of these are used differs between std, loom and shuttle builds"
)]

#[cfg(loom)]
use loom as imp;
#[cfg(shuttle)]
use shuttle as imp;
#[cfg(not(any(loom, shuttle)))]
use std as imp;

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// Atomics of the build's model.
pub(crate) mod atomic {
    pub(crate) use super::imp::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        fence,
    };
}

pub(crate) use imp::sync::Arc;
pub(crate) use imp::thread;
#[cfg(not(loom))]
pub(crate) use imp::thread_local;

/// loom's knows no `const` initial values.
#[cfg(loom)]
macro_rules! modelled_thread_local {
    ($($(#[$a:meta])* static $name:ident: $t:ty = const { $e:expr };)*) => {
        loom::thread_local! { $($(#[$a])* static $name: $t = $e;)* }
    };
}
#[cfg(loom)]
pub(crate) use modelled_thread_local as thread_local;

/// The build's locks as `std` offers them. Where one is held across anything that takes another lock, wakes or queues, it must
/// come from here, or a model's scheduler deadlocks on it.
pub(crate) mod sync {
    #[cfg(not(tsan))]
    pub(crate) use super::imp::sync::{Mutex, MutexGuard};
    #[cfg(tsan)]
    pub(crate) use super::tsan::{Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}

/// As [`sync`], for locks under which no other lock is taken and that may lie in a `static`: real ones in a model, too.
pub(crate) mod leaf {
    #[cfg(tsan)]
    pub(crate) use super::tsan::{Mutex, MutexGuard, OnceLock};
    pub(crate) use std::sync::PoisonError;
    #[cfg(not(tsan))]
    pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock};
}

#[cfg(tsan)]
mod tsan;

/// A cell whose accesses a model checks for races.
#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell whose accesses a model checks for races.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with the place; whoever calls answers for its being the only one who does, now.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// The processor hint inside a spin loop; in a model it lets another thread run.
pub(crate) fn spin_loop() {
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
    #[cfg(any(loom, shuttle))]
    thread::yield_now();
}

/// A mutex without poisoning: a panic is the affair of the item that panicked, and state under our locks is never left
/// half changed across a call into user code. Blocks; not to be held while running user code or making a system call.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// Holds a [`Mutex`]; unlocks when dropped.
pub(crate) struct MutexGuard<'a, T>(sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    /// A free mutex around `value`.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// A free mutex around `value`.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Takes the lock, waiting as long as it takes.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// [`Self::lock`] for locks that are held for microseconds: tries for about ten of them (at 50 ns a hint) before it sleeps. Sleeping
    /// and being woken costs ten and more, and leaves a CPU idle meanwhile.
    #[inline]
    pub(crate) fn lock_busily(&self) -> MutexGuard<'_, T> {
        #[cfg(not(any(loom, shuttle, tsan)))]
        if let Some(guard) = self.try_for_long() {
            return guard;
        }
        self.lock()
    }

    #[cfg(not(any(loom, shuttle, tsan)))]
    #[inline]
    fn try_for_long(&self) -> Option<MutexGuard<'_, T>> {
        const ROUNDS: u32 = 10;
        self.try_lock().or_else(|| {
            (0..ROUNDS).find_map(|round| {
                (0..1u32 << round.min(5)).for_each(|_| spin_loop());
                self.try_lock()
            })
        })
    }

    /// Takes the lock if it is free now.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard(guard)),
            Err(std::sync::TryLockError::Poisoned(p)) => Some(MutexGuard(p.into_inner())),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The value, when nobody else can hold the lock.
    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A condition variable for [`Mutex`], for models. Wake-ups may be spurious: wait in a loop.
#[cfg(any(loom, shuttle))]
#[derive(Debug, Default)]
pub(crate) struct Condvar(imp::sync::Condvar);

#[cfg(any(loom, shuttle))]
impl Condvar {
    /// A condition variable without waiters.
    pub(crate) fn new() -> Self {
        Self(imp::sync::Condvar::new())
    }

    /// Gives the lock up, sleeps until notified, takes the lock again.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard(self.0.wait(guard.0).unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes one waiter.
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
