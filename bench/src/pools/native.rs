//! oneTBB and libdispatch through the shims under `native/`, where `build.rs` found them.

#![cfg_attr(
    not(any(onetbb, libdispatch)),
    allow(dead_code, reason = "neither library is installed")
)]

use std::ffi::c_void;

/// Runs and frees the boxed closure behind `item`.
///
/// # Safety
/// `item` is a `Box<F>` turned into a pointer, not used anywhere else.
unsafe extern "C" fn run<F: FnOnce()>(item: *mut c_void) {
    // SAFETY: by this function's contract the box is ours.
    let item = unsafe { Box::from_raw(item.cast::<F>()) };
    item();
}

/// A boxed closure as the pair that the shims take.
fn erase<F: FnOnce() + Send + 'static>(
    item: F,
) -> (unsafe extern "C" fn(*mut c_void), *mut c_void) {
    (run::<F>, Box::into_raw(Box::new(item)).cast())
}

#[cfg(onetbb)]
pub(super) use onetbb::OneTbb;

#[cfg(onetbb)]
mod onetbb {
    use std::ffi::{c_int, c_uint, c_void};

    use anyhow::Result;

    use super::erase;
    use crate::pools::Pool;

    unsafe extern "C" {
        fn bench_onetbb_new(threads: c_uint) -> *mut c_void;
        fn bench_onetbb_submit(
            pool: *mut c_void,
            run: unsafe extern "C" fn(*mut c_void),
            item: *mut c_void,
        ) -> c_int;
    }

    /// A task arena.
    pub(crate) struct OneTbb(*mut c_void);

    // SAFETY: a task arena may be used from any thread.
    unsafe impl Send for OneTbb {}
    // SAFETY: enqueueing to an arena from several threads at once is permitted.
    unsafe impl Sync for OneTbb {}

    impl Pool for OneTbb {
        fn start(threads: usize) -> Result<Self> {
            // SAFETY: takes a number, gives an owned pointer or null; never freed, as the process ends with the pool.
            let pool = unsafe { bench_onetbb_new(c_uint::try_from(threads)?) };
            anyhow::ensure!(!pool.is_null(), "oneTBB could not make an arena");
            Ok(Self(pool))
        }

        fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
            let (run, item) = erase(item);
            // SAFETY: the pool is live; `run` frees `item` and is called exactly once for it.
            let rc = unsafe { bench_onetbb_submit(self.0, run, item) };
            assert_eq!(rc, 0, "oneTBB refused an item");
        }
    }
}

#[cfg(libdispatch)]
pub(super) use libdispatch::LibDispatch;

#[cfg(libdispatch)]
mod libdispatch {
    use std::ffi::c_void;

    use anyhow::Result;

    use super::erase;
    use crate::pools::Pool;

    unsafe extern "C" {
        fn bench_libdispatch_submit(run: unsafe extern "C" fn(*mut c_void), item: *mut c_void);
    }

    /// The global concurrent queue of default priority.
    pub(crate) struct LibDispatch;

    impl Pool for LibDispatch {
        fn start(_threads: usize) -> Result<Self> {
            Ok(Self)
        }

        fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
            let (run, item) = erase(item);
            // SAFETY: `run` frees `item` and is called exactly once for it.
            unsafe { bench_libdispatch_submit(run, item) };
        }
    }
}
