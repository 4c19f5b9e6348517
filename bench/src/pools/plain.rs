//! Thread pools of crates.io that take closures.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Pool;

/// `threadpool::ThreadPool`.
pub(super) struct Threadpool(threadpool::ThreadPool);

impl Pool for Threadpool {
    fn start(threads: usize) -> Result<Self> {
        Ok(Self(threadpool::ThreadPool::new(threads)))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        self.0.execute(item);
    }
}

/// `rusty_pool::ThreadPool` of a fixed size.
pub(super) struct RustyPool(rusty_pool::ThreadPool);

impl Pool for RustyPool {
    fn start(threads: usize) -> Result<Self> {
        Ok(Self(rusty_pool::ThreadPool::new(
            threads,
            threads,
            Duration::from_secs(60),
        )))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        self.0.execute(item);
    }
}

/// `rayon::ThreadPool::spawn`. Waiting by a flag and a parked thread, as for the other pools.
pub(super) struct Rayon(rayon::ThreadPool);

impl Pool for Rayon {
    fn start(threads: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .context("building the pool")?;
        Ok(Self(pool))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        self.0.spawn(item);
    }
}
