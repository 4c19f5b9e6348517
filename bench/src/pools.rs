//! The pools and the trait they share.

mod asynchronous;
mod channels;
mod managed;
mod native;
mod plain;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;

/// A pool of threads that runs closures. Pools are never taken down here: each lives in a process that ends.
pub trait Pool: Send + Sync + Sized + 'static {
    /// Starts a pool. `threads` is the number of CPUs to use; a pool that grows by itself may ignore it.
    ///
    /// # Errors
    /// When the pool cannot be made.
    fn start(threads: usize) -> Result<Self>;

    /// Queues an item and returns at once. Called from outside and from items.
    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F);

    /// Queues an item and waits for its end: by the pool's own handle where its users would, else by a flag and a parked thread.
    fn run_one<F: FnOnce() + Send + 'static>(&self, item: F) {
        let done = Arc::new((AtomicBool::new(false), thread::current()));
        let signal = Arc::clone(&done);
        self.spawn(move || {
            item();
            // Ordering: Release, pairs with the Acquire below: what the item wrote is seen by the waiter.
            signal.0.store(true, Ordering::Release);
            signal.1.unpark();
        });
        // Ordering: Acquire, pairs with the Release above.
        while !done.0.load(Ordering::Acquire) {
            thread::park();
        }
    }

    /// Runs `block`, which is about to wait; a pool with a call for that uses it.
    fn block<R>(block: impl FnOnce() -> R) -> R {
        block()
    }
}

/// Something to do with a pool of whatever type.
pub trait Visitor {
    /// What comes out.
    type Out;
    /// Called with the pool's type.
    fn visit<P: Pool>(self) -> Self::Out;
}

/// A pool by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Name in tables and on the command line.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// The crate that it comes from; empty for what is written here or found on the system.
    pub package: &'static str,
    /// Why it cannot run in this build, if so.
    pub missing: Option<&'static str>,
    /// Ours or somebody else's: peers are what "best peer" chooses from.
    pub peer: bool,
}

const fn peer(name: &'static str, about: &'static str, package: &'static str) -> Entry {
    Entry {
        name,
        about,
        package,
        missing: None,
        peer: true,
    }
}

const fn found(entry: Entry, present: bool) -> Entry {
    Entry {
        missing: if present { None } else { Some("not installed") },
        ..entry
    }
}

const fn ours(name: &'static str, about: &'static str) -> Entry {
    Entry {
        name,
        about,
        package: "cmwq",
        missing: None,
        peer: false,
    }
}

/// All pools, in the order of the tables.
pub const ALL: &[Entry] = &[
    ours("cmwq", "unbound workqueue, statistics on"),
    ours("cmwq-nostats", "the same, without histograms"),
    ours(
        "cmwq-handle",
        "the same, each item with a handle that is dropped",
    ),
    ours(
        "cmwq-inline",
        "the same, a waiting thread may run the awaited item itself",
    ),
    ours("cmwq-said", "the same, items say that they block"),
    peer(
        "crossbeam",
        "boxed closures over one crossbeam-channel",
        "crossbeam-channel",
    ),
    peer(
        "std-mpsc",
        "boxed closures over std mpsc behind a mutex",
        "",
    ),
    peer("threadpool", "crate threadpool", "threadpool"),
    peer("rusty_pool", "crate rusty_pool, fixed size", "rusty_pool"),
    peer("rayon", "crate rayon, ThreadPool::spawn", "rayon"),
    peer(
        "tokio",
        "crate tokio, spawn on the multi-thread runtime",
        "tokio",
    ),
    peer(
        "tokio-blocking",
        "crate tokio, spawn_blocking, default limit of 512 threads",
        "tokio",
    ),
    peer(
        "tokio-blocking-2",
        "crate tokio, spawn_blocking, limited to the CPUs",
        "tokio",
    ),
    peer(
        "async-executor",
        "crate async-executor, one thread a CPU",
        "async-executor",
    ),
    peer(
        "blocking",
        "crate blocking, default limit of 500 threads",
        "blocking",
    ),
    found(
        peer("onetbb", "oneTBB, task_arena::enqueue", ""),
        cfg!(onetbb),
    ),
    found(
        peer("libdispatch", "libdispatch, global concurrent queue", ""),
        cfg!(libdispatch),
    ),
];

impl Entry {
    /// Version of its crate in this build, from the lock file; `None` for what is no crate.
    pub fn version(&self) -> Option<&'static str> {
        const LOCK: &str = include_str!("../../Cargo.lock");
        let wanted = format!("name = \"{}\"", self.package);
        let mut lines = LOCK.lines().skip_while(|line| **line != wanted).skip(1);
        lines
            .next()?
            .strip_prefix("version = \"")?
            .strip_suffix('"')
    }
}

/// The entry of this name.
pub fn entry(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|e| e.name == name)
}

/// Calls the visitor with the type of the named pool.
///
/// # Errors
/// An unknown name, or a pool that this build lacks.
pub fn visit<V: Visitor>(name: &str, visitor: V) -> Result<V::Out> {
    Ok(match name {
        "crossbeam" => visitor.visit::<channels::Crossbeam>(),
        "std-mpsc" => visitor.visit::<channels::StdMpsc>(),
        "threadpool" => visitor.visit::<plain::Threadpool>(),
        "rusty_pool" => visitor.visit::<plain::RustyPool>(),
        "rayon" => visitor.visit::<plain::Rayon>(),
        "tokio" => visitor.visit::<asynchronous::Tokio>(),
        "tokio-blocking" => visitor.visit::<asynchronous::TokioBlocking>(),
        "tokio-blocking-2" => visitor.visit::<asynchronous::TokioBlockingCapped>(),
        "async-executor" => visitor.visit::<asynchronous::AsyncExecutor>(),
        "blocking" => visitor.visit::<asynchronous::Blocking>(),
        #[cfg(onetbb)]
        "onetbb" => visitor.visit::<native::OneTbb>(),
        #[cfg(libdispatch)]
        "libdispatch" => visitor.visit::<native::LibDispatch>(),
        "cmwq" => visitor.visit::<managed::Cmwq>(),
        "cmwq-handle" => visitor.visit::<managed::CmwqHandle>(),
        "cmwq-nostats" => visitor.visit::<managed::CmwqNoStats>(),
        "cmwq-inline" => visitor.visit::<managed::CmwqInline>(),
        "cmwq-said" => visitor.visit::<managed::CmwqSaid>(),
        other => match entry(other) {
            Some(Entry {
                missing: Some(why), ..
            }) => anyhow::bail!("{other}: {why}"),
            _ => anyhow::bail!("no pool {other:?}; `--list` names them"),
        },
    })
}

#[cfg(test)]
mod tests;
