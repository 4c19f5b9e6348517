//! A mutex that the thread sanitizer sees through. The standard library comes compiled without instrumentation, so what orders
//! two holders of a contended `std` mutex is invisible to it, and it would report every access under one as a race.
//!
//! Only for `--cfg tsan`: it lets others run instead of sleeping.

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
