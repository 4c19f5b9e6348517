//! Executors, given an item as a future that is ready at once, and the pools for blocking calls beside them.

use std::thread;

use anyhow::{Context, Result};
use futures_lite::future;

use super::Pool;

fn runtime(threads: usize, blocking: Option<usize>) -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads);
    if let Some(most) = blocking {
        builder.max_blocking_threads(most);
    }
    builder.build().context("building the runtime")
}

/// `tokio::spawn`.
pub(super) struct Tokio(tokio::runtime::Runtime);

impl Pool for Tokio {
    fn start(threads: usize) -> Result<Self> {
        Ok(Self(runtime(threads, None)?))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        drop(self.0.spawn(async move { item() }));
    }
}

/// `tokio::task::spawn_blocking` with its default limit.
pub(super) struct TokioBlocking(tokio::runtime::Runtime);

impl Pool for TokioBlocking {
    fn start(threads: usize) -> Result<Self> {
        Ok(Self(runtime(threads, None)?))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        drop(self.0.spawn_blocking(item));
    }
}

/// The same, limited to the number of CPUs.
pub(super) struct TokioBlockingCapped(tokio::runtime::Runtime);

impl Pool for TokioBlockingCapped {
    fn start(threads: usize) -> Result<Self> {
        Ok(Self(runtime(threads, Some(threads))?))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        drop(self.0.spawn_blocking(item));
    }
}

/// `async_executor::Executor` run by one thread a CPU.
pub(super) struct AsyncExecutor(&'static async_executor::Executor<'static>);

impl Pool for AsyncExecutor {
    fn start(threads: usize) -> Result<Self> {
        let executor: &'static async_executor::Executor<'static> = Box::leak(Box::default());
        for i in 0..threads {
            let work = || future::block_on(executor.run(future::pending::<()>()));
            thread::Builder::new()
                .name(format!("executor-{i}"))
                .spawn(work)
                .context("starting a worker")?;
        }
        Ok(Self(executor))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        self.0.spawn(async move { item() }).detach();
    }
}

/// `blocking::unblock`.
pub(super) struct Blocking;

impl Pool for Blocking {
    fn start(_threads: usize) -> Result<Self> {
        Ok(Self)
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        blocking::unblock(item).detach();
    }
}
