//! Locks that the thread sanitizer sees through. The standard library comes compiled without instrumentation, so what orders
//! two holders of a contended `std` mutex is invisible to it, and it would report every access under one as a race.
//!
//! The same goes for the cell that is written once. Only for `--cfg tsan`: it lets others run instead of sleeping.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LockResult, TryLockError, TryLockResult};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T: ?Sized> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one holder at a time, as with any mutex.
unsafe impl<T: Send + ?Sized> Sync for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send + ?Sized> Send for Mutex<T> {}

pub(crate) struct MutexGuard<'a, T>(&'a Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // Ordering: Acquire pairs with the Release of the guard's drop.
        while self.locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(MutexGuard(self))
    }

    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        // Ordering: Acquire, as above.
        if self.locked.swap(true, Ordering::Acquire) {
            return Err(TryLockError::WouldBlock);
        }
        Ok(MutexGuard(self))
    }

    pub(crate) fn into_inner(self) -> LockResult<T> {
        Ok(self.value.into_inner())
    }

    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        Ok(self.value.get_mut())
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // Ordering: Release pairs with the Acquire of `lock`.
        self.0.locked.store(false, Ordering::Release);
    }
}

/// A cell that is written once.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    ready: AtomicBool,
    writing: Mutex<()>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: written once under the lock, before `ready` is set; only read after.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for OnceLock<T> {}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        let clone = Self::new();
        if let Some(v) = self.get() {
            clone.get_or_init(|| v.clone());
        }
        clone
    }
}

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> Self {
        Self {
            ready: AtomicBool::new(false),
            writing: Mutex::new(()),
            value: UnsafeCell::new(None),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        // Ordering: Acquire pairs with the Release of `get_or_init`.
        if !self.ready.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: not written any more.
        unsafe { (*self.value.get()).as_ref() }
    }

    pub(crate) fn get_or_init(&self, f: impl FnOnce() -> T) -> &T {
        if let Some(v) = self.get() {
            return v;
        }
        let _writing = self.writing.lock();
        if self.get().is_none() {
            let v = f();
            // SAFETY: the lock is held and nobody reads before `ready`.
            unsafe { *self.value.get() = Some(v) };
            // Ordering: Release pairs with the Acquire of `get`.
            self.ready.store(true, Ordering::Release);
        }
        self.get().expect("written just now")
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("called once"));
        value.map_or(Ok(()), Err)
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        *self.ready.get_mut() = false;
        self.value.get_mut().take()
    }
}
