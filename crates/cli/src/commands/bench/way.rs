//! Runs closures in one [`Setting`].

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
use cmwq::{CpuSet, Runtime, Workqueue};

use super::host::Host;
use super::setting::Setting;

/// A setting in force. Dropping it ends its threads.
pub(crate) enum Way {
    Queue(Runtime, Workqueue),
    Thread,
    Pools(Pools),
}

impl Way {
    /// Puts the setting in force, with a runtime of its own.
    pub(crate) fn start(setting: Setting, host: &Host) -> anyhow::Result<Way> {
        Ok(match setting {
            Setting::Thread => Way::Thread,
            Setting::Pool => Way::Pools(Pools::shared(host.cpus())?),
            Setting::PoolPerCpu => Way::Pools(Pools::per_cpu(&host.usable, false)?),
            Setting::PoolPerCpuHigh => Way::Pools(Pools::per_cpu(&host.usable, true)?),
            _ => {
                let runtime = host.runtime()?;
                let builder = setting.builder(&runtime).context("not a workqueue")?;
                let wq = builder.build().context("workqueue")?;
                // The runtime's own threads are made now and here, as those of the pools are, and not by a pinned issuer.
                wq.spawn(|| ()).join()?;
                Way::Queue(runtime, wq)
            }
        })
    }

    /// Has `f` run, without waiting for it.
    pub(crate) fn submit(&self, f: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        match self {
            Way::Queue(_, wq) => match wq.try_spawn(f) {
                Ok(_detached) => Ok(()),
                Err(refused) => Err(anyhow!("the workqueue refused an item: {}", refused.error)),
            },
            Way::Thread => std::thread::Builder::new()
                .spawn(f)
                .map(drop)
                .context("a thread for a request"),
            Way::Pools(pools) => {
                pools.submit(Box::new(f));
                Ok(())
            }
        }
    }

    /// Has `f` run and waits for it, in the way that is natural for each.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        match self {
            Way::Queue(_, wq) => Ok(wq.spawn(f).join()?),
            Way::Thread => std::thread::Builder::new()
                .spawn(f)
                .context("a thread for a request")?
                .join()
                .map_err(|_| anyhow!("a request panicked")),
            Way::Pools(pools) => {
                let (sender, receiver) = std::sync::mpsc::sync_channel(1);
                pools.submit(Box::new(move || {
                    // A receiver that is gone has failed already and says so.
                    let _ = sender.send(f());
                }));
                receiver.recv().map_err(|_| anyhow!("a request panicked"))
            }
        }
    }

    /// Ends it, waiting for what is queued.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        if let Way::Queue(runtime, wq) = self {
            drop(wq);
            runtime.shutdown()?;
        }
        Ok(())
    }
}

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                // A panicking task has dropped what it held, which its issuer notices; the others still want a thread.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
                state = self.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.wake.wait(state).unwrap_or_else(|e| e.into_inner());
                state.idle -= 1;
            }
        }
    }
}

/// Threads that take closures from one queue, or each from its own: the plain ways.
pub(crate) struct Pools {
    queues: Vec<Arc<Queue>>,
    /// The queue of each CPU; empty for a single one.
    of_cpu: Vec<usize>,
    threads: Vec<JoinHandle<()>>,
}

impl Pools {
    fn shared(threads: usize) -> anyhow::Result<Pools> {
        let mut pools = Pools::empty();
        pools.queues.push(Arc::default());
        for _ in 0..threads {
            pools.thread(0, None, false)?;
        }
        Ok(pools)
    }

    fn per_cpu(cpus: &CpuSet, high: bool) -> anyhow::Result<Pools> {
        let mut pools = Pools::empty();
        pools.of_cpu = vec![0; cpus.last().map_or(1, |last| last + 1)];
        for (n, cpu) in cpus.iter().enumerate() {
            pools.queues.push(Arc::default());
            pools.of_cpu[cpu] = n;
            pools.thread(n, Some(cpu), high)?;
        }
        Ok(pools)
    }

    fn empty() -> Pools {
        Pools {
            queues: Vec::new(),
            of_cpu: Vec::new(),
            threads: Vec::new(),
        }
    }

    fn thread(&mut self, queue: usize, cpu: Option<usize>, high: bool) -> anyhow::Result<()> {
        let queue = Arc::clone(&self.queues[queue]);
        let (sender, pinned) = std::sync::mpsc::sync_channel(1);
        let run = move || {
            let outcome = cpu.map_or(Ok(()), pin);
            if high {
                // Where it is not permitted the threads are ordinary ones, as for any program without the privilege.
                let _ = rustix::process::setpriority_process(None, -20);
            }
            let failed = outcome.is_err();
            // The starter waits for this; it cannot be gone.
            let _ = sender.send(outcome);
            if !failed {
                queue.work();
            }
        };
        let thread = std::thread::Builder::new()
            .name("pool".into())
            .spawn(run)
            .context("a thread of a pool")?;
        self.threads.push(thread);
        pinned.recv().context("a thread of a pool")?
    }

    fn submit(&self, task: Task) {
        let n = match self.of_cpu.is_empty() {
            true => 0,
            false => self.of_cpu.get(current_cpu()).copied().unwrap_or(0),
        };
        let queue = &self.queues[n];
        let mut state = queue.lock();
        state.tasks.push_back(task);
        let idle = state.idle > 0;
        drop(state);
        if idle {
            queue.wake.notify_one();
        }
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.lock().closed = true;
            queue.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // Its tasks' panics are caught, so it has none of its own to tell.
            let _ = thread.join();
        }
    }
}

/// The CPU that the calling thread is on.
pub(crate) fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// Binds the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    anyhow::ensure!(
        cpu < rustix::thread::CpuSet::MAX_CPU,
        "CPU {cpu} is beyond what a thread can be bound to here"
    );
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("binding to CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_way_runs_each_task_once_and_returns_results() {
        let host = Host::new(None).unwrap();
        for setting in Setting::TABLE {
            let way = Way::start(setting, &host).unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            for _ in 0..200 {
                let count = Arc::clone(&count);
                way.submit(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
            }
            assert_eq!(way.run(|| 6 * 7).unwrap(), 42, "{setting}");
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while count.load(Ordering::Relaxed) < 200 && std::time::Instant::now() < deadline {
                std::thread::yield_now();
            }
            way.end().unwrap();
            assert_eq!(count.load(Ordering::Relaxed), 200, "{setting}");
        }
    }

    #[test]
    fn requests_run_with_the_nice_of_their_issuer_in_every_way() {
        let run = || {
            let own = crate::commands::bench::setting::own_nice();
            let host = Host::new(None).unwrap();
            for setting in Setting::TABLE {
                let way = Way::start(setting, &host).unwrap();
                let nice = way.run(crate::commands::bench::setting::own_nice).unwrap();
                assert_eq!(nice, own, "{setting}");
                way.end().unwrap();
            }
        };
        run();
        // Nicer, which is always permitted; on a thread of its own, which takes that with it.
        let nicer = std::thread::spawn(move || {
            let own = crate::commands::bench::setting::own_nice();
            rustix::process::setpriority_process(None, (own + 3).min(19)).unwrap();
            run();
        });
        nicer.join().unwrap();
    }

    #[test]
    fn a_panicking_request_is_an_error_and_the_next_one_runs() {
        let host = Host::new(None).unwrap();
        for setting in [Setting::Default, Setting::Thread, Setting::Pool] {
            let way = Way::start(setting, &host).unwrap();
            assert!(way.run(|| panic!("on purpose")).is_err(), "{setting}");
            assert_eq!(way.run(|| 1).unwrap(), 1, "{setting}");
            way.end().unwrap();
        }
    }
}
