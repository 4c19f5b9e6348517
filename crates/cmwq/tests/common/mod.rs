//! What the tests share: runtimes, gates, a watchdog, a minimal executor, child processes.
#![allow(dead_code, reason = "each test binary uses its own part")]

use cmwq::{Runtime, RuntimeBuilder, Topology};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a machine that is ten times overbooked.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A runtime on this machine.
pub(crate) fn runtime() -> Runtime {
    Runtime::builder().build().unwrap()
}

/// A runtime on a made-up machine: `cpus` CPUs in as many nodes and caches as asked for.
pub(crate) fn synthetic(spec: &str) -> RuntimeBuilder {
    Runtime::builder().topology(Topology::synthetic(spec).expect("a valid description"))
}

/// Runs `f` on a thread of its own and gives its result; a hang is a failure with a name.
pub(crate) fn within<R: Send + 'static>(what: &str, f: impl FnOnce() -> R + Send + 'static) -> R {
    let (tx, rx) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(what.chars().take(15).collect())
        .spawn(move || drop(tx.send(f())))
        .unwrap();
    match rx.recv_timeout(PATIENCE) {
        Ok(r) => {
            thread.join().unwrap();
            r
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs: {what}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => unreachable!("the sender lives as long as the thread"),
        },
    }
}

/// Waits until `f` holds; fails if it does not come to that.
pub(crate) fn eventually(what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < PATIENCE, "never happens: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Shut until opened; items wait at it, announced as blocking.
#[derive(Default)]
pub(crate) struct Gate {
    open: AtomicBool,
    waiting: AtomicUsize,
    sleepers: Lock<Vec<Thread>>,
}

impl Gate {
    pub(crate) fn new() -> Arc<Gate> {
        Arc::default()
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        for sleeper in self.sleepers.lock().unwrap().drain(..) {
            sleeper.unpark();
        }
    }

    /// Waits at the gate as a thread that blocks and says so.
    pub(crate) fn pass(&self) {
        cmwq::blocking(|| self.pass_silently());
    }

    /// Waits at the gate without telling the pool.
    pub(crate) fn pass_silently(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        self.sleepers.lock().unwrap().push(std::thread::current());
        while !self.open.load(Ordering::SeqCst) {
            assert!(began.elapsed() < PATIENCE, "nobody opened the gate");
            std::thread::park_timeout(PATIENCE);
        }
    }

    /// How many came to the gate so far.
    pub(crate) fn arrived(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Waits until `n` have come.
    pub(crate) fn await_arrivals(&self, n: usize) {
        eventually("items come to the gate", || self.arrived() >= n);
    }
}

#[cfg(tsan)]
#[allow(unused_imports, reason = "as above")]
pub(crate) use lock::Lock;
/// A mutex that the thread sanitizer understands, without sleeping; `std`'s where that does not matter.
#[cfg(not(tsan))]
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use std::sync::Mutex as Lock;

#[cfg(tsan)]
mod lock {
    use std::cell::UnsafeCell;
    use std::sync::LockResult;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    pub(crate) struct Lock<T>(AtomicBool, UnsafeCell<T>);
    // SAFETY: one holder at a time.
    unsafe impl<T: Send> Sync for Lock<T> {}
    pub(crate) struct Held<'a, T>(&'a Lock<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock(AtomicBool::new(false), UnsafeCell::new(value))
        }

        pub(crate) fn lock(&self) -> LockResult<Held<'_, T>> {
            while self.0.swap(true, Ordering::Acquire) {
                std::thread::yield_now();
            }
            Ok(Held(self))
        }
    }

    impl<T> std::ops::Deref for Held<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            // SAFETY: held.
            unsafe { &*self.0.1.get() }
        }
    }

    impl<T> std::ops::DerefMut for Held<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: held.
            unsafe { &mut *self.0.1.get() }
        }
    }

    impl<T> Drop for Held<'_, T> {
        fn drop(&mut self) {
            self.0.0.store(false, Ordering::Release);
        }
    }
}

/// Opens the gate when dropped, so that a failing assertion does not turn into a hang.
pub(crate) struct Opener<'a>(pub(crate) &'a Gate);

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A waker that unparks a thread and counts.
pub(crate) struct CountingWaker {
    pub(crate) wakes: AtomicUsize,
    thread: std::thread::Thread,
}

impl CountingWaker {
    pub(crate) fn new() -> Arc<CountingWaker> {
        Arc::new(CountingWaker {
            wakes: AtomicUsize::new(0),
            thread: std::thread::current(),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// The smallest executor: one future, one thread. Never polls without having been woken, so a lost wake-up hangs.
pub(crate) fn block_on<F: Future>(f: F) -> F::Output {
    let mut f = pin!(f);
    let own = CountingWaker::new();
    let waker = Waker::from(Arc::clone(&own));
    let mut cx = Context::from_waker(&waker);
    let start = Instant::now();
    loop {
        let seen = own.count();
        if let Poll::Ready(r) = f.as_mut().poll(&mut cx) {
            return r;
        }
        while own.count() == seen {
            assert!(start.elapsed() < PATIENCE, "a future was never woken");
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }
}

/// Polls once.
pub(crate) fn poll_once<F: Future + ?Sized>(f: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    f.poll(&mut Context::from_waker(waker))
}

/// Runs the named test of this binary again in a child process, with `CMWQ_CHILD` set.
pub(crate) fn in_child(test: &str) -> std::process::Output {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("CMWQ_CHILD", "1")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the child process of {test} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Whether this is the child of [`in_child`].
pub(crate) fn is_child() -> bool {
    std::env::var_os("CMWQ_CHILD").is_some()
}

/// How many threads of this process have names that begin so.
pub(crate) fn threads_named(prefix: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

/// How long the calling thread was ready to run and did not, since it began; zero where the kernel does not say.
pub(crate) fn waited_for_a_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split_whitespace().nth(1).and_then(|s| s.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// A number that grows, for counting in closures.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn new() -> Count {
        Count::default()
    }

    pub(crate) fn up(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Panics when dropped, once.
pub(crate) struct BadDrop(pub(crate) &'static str);

impl Drop for BadDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("drop of {}", self.0);
        }
    }
}
