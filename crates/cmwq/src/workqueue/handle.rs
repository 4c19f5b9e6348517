//! The public handle of a workqueue.

use super::room::Waiting;
use super::{Attrs, AttrsChange, Place, Stats, WorkqueueBuilder, WqInner};
use crate::delayed::DelayedWork;
use crate::error::{AttrsError, JoinError, QueueError, TrySpawnError, WaitError};
use crate::scope::Scope;
use crate::task::{JoinHandle, new_detached, new_task, take_back, unmake};
use crate::work::Work;
use cmwq_policy::word::Word;
use cmwq_topology::AffinityScope;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Which pools a workqueue uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkqueueKind {
    /// Each CPU's own pool.
    PerCpu,
    /// The pool of the issuing CPU's pod.
    Unbound,
    /// One pool, one item at a time, in queueing order.
    Ordered,
}

/// What became of a reusable item that was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queued {
    /// It will run once more from now.
    New,
    /// It was pending already and will run once: what the caller did before is seen by that run.
    AlreadyPending,
}

/// A workqueue: a named queue of work items with its own limits, priority and placement.
///
/// Handles are cheap to clone. When the last one is dropped, the queue refuses new items, cancels its armed delayed work,
/// runs what is queued, and then goes away, without the dropping thread waiting; [`destroy`](Workqueue::destroy) waits.
/// (The kernel leaks a busy queue.)
///
/// ```
/// let wq = cmwq::Workqueue::builder("ingest").max_active(16).build()?;
/// let sum = wq.spawn(|| (1..=10).sum::<u32>());
/// assert_eq!(sum.join()?, 55);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Workqueue {
    handle: Arc<Handle>,
}

struct Handle(Arc<WqInner>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl std::fmt::Debug for Workqueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner().fmt(f)
    }
}

impl Workqueue {
    /// Starts the settings of a new queue. Names need not be unique; 31 bytes are kept.
    pub fn builder(name: impl Into<String>) -> WorkqueueBuilder {
        WorkqueueBuilder::new(name)
    }

    pub(crate) fn new(inner: Arc<WqInner>) -> Workqueue {
        Workqueue {
            handle: Arc::new(Handle(inner)),
        }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<WqInner> {
        &self.handle.0
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.inner().name()
    }

    /// Which pools it uses.
    pub fn kind(&self) -> WorkqueueKind {
        self.inner().config.kind
    }

    // ---- one-shot items ----

    /// Queues a closure. Never fails and never blocks: if the queue does not accept it, the handle resolves to
    /// [`JoinError::Refused`] and the closure has been dropped. One allocation. May be called from anywhere.
    ///
    /// Dropping the handle detaches: the closure still runs.
    ///
    /// The closure and what it captured are dropped on the worker as the call ends, before the handle resolves; if it is
    /// cancelled, on the cancelling thread. The result is dropped with the handle, or on the worker if that is gone.
    #[inline]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        match self.try_spawn(f) {
            Ok(handle) => handle,
            Err(e) => JoinHandle::refused(e.error),
        }
    }

    /// As [`spawn`](Self::spawn), but a closure that is not accepted comes back.
    ///
    /// # Errors
    /// [`QueueError::Full`], [`QueueError::Draining`], [`QueueError::Closed`], [`QueueError::Forked`], each with the closure.
    #[inline]
    pub fn try_spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, TrySpawnError<F>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // SAFETY: closure and result are 'static.
        unsafe { self.spawn_at(f, Place::Here) }
    }

    /// Queues a closure that nobody waits for: as [`try_spawn`](Self::try_spawn) with the handle dropped, but cheaper (a
    /// smaller allocation, no state to keep for a handle). Never blocks, may be called from anywhere.
    ///
    /// A panic of the closure is counted and given to the runtime's panic hook
    /// ([`on_panic`](crate::RuntimeBuilder::on_panic)). The closure and what it captured are dropped on the worker as the call ends.
    ///
    /// # Errors
    /// As for `try_spawn`, with the closure.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU32, Ordering};
    /// static SEEN: AtomicU32 = AtomicU32::new(0);
    /// let wq = cmwq::Workqueue::builder("events").build()?;
    /// for _ in 0..100 {
    ///     wq.spawn_detached(|| {
    ///         SEEN.fetch_add(1, Ordering::Relaxed);
    ///     })?;
    /// }
    /// wq.flush()?;
    /// assert_eq!(SEEN.load(Ordering::Relaxed), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn spawn_detached<F>(&self, f: F) -> Result<(), TrySpawnError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        let item = new_detached(f);
        let Err(error) = self
            .inner()
            .queue_owned(item, Word::IN_TRANSIT, Place::Here)
        else {
            return Ok(());
        };
        // SAFETY: made above and not queued.
        let func = unsafe { take_back(item) };
        Err(TrySpawnError { error, func })
    }

    /// As [`try_spawn`](Self::try_spawn), to the pool that `cpu` leads to.
    ///
    /// # Errors
    /// As for `try_spawn`, and [`QueueError::NoSuchCpu`].
    pub fn try_spawn_on<F, T>(&self, cpu: usize, f: F) -> Result<JoinHandle<T>, TrySpawnError<F>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        match self.inner().check_cpu(cpu) {
            // SAFETY: closure and result are 'static.
            Ok(()) => unsafe { self.spawn_at(f, Place::Cpu(cpu)) },
            Err(error) => Err(TrySpawnError { error, func: f }),
        }
    }

    /// # Safety
    /// If `f` or `T` borrow anything, the caller makes sure that the item is over before the borrow ends.
    #[inline]
    pub(crate) unsafe fn spawn_at<F, T>(
        &self,
        f: F,
        place: Place,
    ) -> Result<JoinHandle<T>, TrySpawnError<F>>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let (item, task) = new_task(f);
        match self.inner().queue_owned(item, Word::IN_TRANSIT, place) {
            Ok(()) => Ok(JoinHandle::queued(task, self.inner().hands_on())),
            Err(error) => {
                // SAFETY: the pair of `new_task`, and the item was not queued.
                let func = unsafe { unmake(item, task) };
                Err(TrySpawnError { error, func })
            }
        }
    }

    /// Queues a closure once there is room (`max_pending`): the future resolves to its handle. The closure is queued when the
    /// future is polled, in the order in which waiting futures were first polled, as far as no one else takes the room.
    /// Dropping the future drops the closure; the others that wait lose nothing by it. Never blocks.
    ///
    /// If the queue does not accept it for another reason, the handle resolves to [`JoinError::Refused`].
    pub fn spawn_when_ready<F, T>(
        &self,
        f: F,
    ) -> impl Future<Output = JoinHandle<T>> + Send + use<F, T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let mut waiting = Waiting::new(self.clone());
        let mut func = Some(f);
        std::future::poll_fn(move |cx| {
            loop {
                let Some(f) = func.take() else {
                    panic!("polled again after it was ready")
                };
                match waiting.wq.try_spawn(f) {
                    Ok(handle) => {
                        waiting.leave();
                        return Poll::Ready(handle);
                    }
                    Err(TrySpawnError {
                        error: QueueError::Full { .. },
                        func: back,
                    }) => {
                        func = Some(back);
                        if waiting.line_up(cx.waker()) {
                            return Poll::Pending;
                        }
                    }
                    Err(e) => return Poll::Ready(JoinHandle::refused(e.error)),
                }
            }
        })
    }

    /// Runs `f` with a [`Scope`] whose closures may borrow from the caller's stack, and returns when all of them are over. Blocks.
    /// From an item of this very queue it lends the item's permit to the closures meanwhile; if the queue is ordered, see
    /// [`Scope::spawn`].
    ///
    /// # Panics
    /// If `f` panics, or if a closure panicked whose handle was not joined: after all are over.
    pub fn scope<'env, F, R>(&self, f: F) -> R
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    {
        crate::scope::run(self, f)
    }

    // ---- reusable items ----

    /// Queues a reusable item. Never blocks, allocates nothing.
    ///
    /// If it was pending already, it runs once for both: everything the caller did before is seen by that run. While the item
    /// runs for this queue it is queued behind itself on the worker that runs it: it never runs concurrently with itself, as
    /// long as it is queued on one workqueue at a time (kernel rule: a second queue loses the guarantee).
    ///
    /// # Errors
    /// [`QueueError::Disabled`], [`QueueError::Full`], [`QueueError::Draining`], [`QueueError::Closed`],
    /// [`QueueError::Forked`]. The item is untouched. (The kernel drops an item queued on a draining queue and says `true`.)
    pub fn queue(&self, work: &Work) -> Result<Queued, QueueError> {
        work.queue_on(self.inner(), Place::Here)
    }

    /// As [`queue`](Self::queue), to the pool that `cpu` leads to. If the CPU is offline, the item runs elsewhere.
    ///
    /// # Errors
    /// As for `queue`, and [`QueueError::NoSuchCpu`].
    pub fn queue_on(&self, cpu: usize, work: &Work) -> Result<Queued, QueueError> {
        self.inner().check_cpu(cpu)?;
        work.queue_on(self.inner(), Place::Cpu(cpu))
    }

    /// As [`queue`](Self::queue), near a NUMA node: the calling CPU if it belongs to the node, else the node's first usable
    /// CPU, else as `queue`.
    ///
    /// # Errors
    /// As for `queue`, [`QueueError::WrongKind`] unless the queue is unbound, and [`QueueError::NoSuchNode`].
    pub fn queue_node(&self, node: usize, work: &Work) -> Result<Queued, QueueError> {
        let place = self.inner().place_on_node(node)?;
        work.queue_on(self.inner(), place)
    }

    /// Queues the item after `delay`; zero: at once, without a timer. [`Queued::AlreadyPending`] if it is armed or queued: its
    /// time is not changed, see [`mod_delayed`](Self::mod_delayed). At most a millisecond, or 1.6 % of the delay, late
    /// before queueing; never early.
    ///
    /// # Errors
    /// As for [`queue`](Self::queue).
    pub fn queue_delayed(&self, work: &DelayedWork, delay: Duration) -> Result<Queued, QueueError> {
        work.queue_delayed(self.inner(), delay)
    }

    /// Sets the item's time anew, whether or not it was pending. Says which: [`Queued::AlreadyPending`] if it was armed or
    /// queued (`mod_delayed_work` in the kernel returns this in the opposite sense of its other calls).
    ///
    /// # Errors
    /// As for [`queue`](Self::queue); the item then keeps its old time.
    pub fn mod_delayed(&self, work: &DelayedWork, delay: Duration) -> Result<Queued, QueueError> {
        work.mod_delayed(self.inner(), delay)
    }

    // ---- waiting ----

    /// Waits until every item queued before the call is done. What is queued later does not delay it, and any number of
    /// threads may flush at once. Blocks. O(pools used by the queue). A frozen queue is waited for until it thaws.
    ///
    /// # Errors
    /// [`WaitError::OwnQueue`] from an item of this queue (the kernel deadlocks), [`WaitError::Forked`].
    pub fn flush(&self) -> Result<(), WaitError> {
        self.inner().flush()
    }

    /// Waits until the queue is empty; meanwhile only running items of the queue may queue on it, others are refused with
    /// [`QueueError::Draining`]. Cancels armed delayed work of the queue and says so through the item. Blocks; for ever if an
    /// item requeues itself for ever.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    pub fn drain(&self) -> Result<(), WaitError> {
        self.inner().drain()
    }

    /// Drains the queue, closes it for all handles, and returns once nothing of it is left. Blocks.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush); the queue is then still open.
    pub fn destroy(self) -> Result<(), WaitError> {
        self.inner().destroy()
    }

    /// Refuses new items from now on, for all handles; what is queued still runs. Does not block.
    pub fn close(&self) {
        self.inner().close();
    }

    /// Runs `f` once on every usable CPU, through this queue, and waits for all. Blocks. O(CPUs). Per-CPU queues run each call on its CPU;
    /// others in the pool that the CPU leads to.
    ///
    /// # Errors
    /// The first [`JoinError`] that occurred; all calls are over then.
    pub fn run_on_each_cpu<F>(&self, f: F) -> Result<(), JoinError>
    where
        F: Fn(usize) + Send + Sync,
    {
        crate::scope::run(self, |s| {
            let f = &f;
            let cpus: Vec<usize> = self.inner().rt.machine.load().usable.iter().collect();
            let handles: Vec<_> = cpus
                .into_iter()
                .map(|cpu| s.spawn_on(cpu, move || f(cpu)))
                .collect();
            let mut first = Ok(());
            for h in handles {
                let r = h.join();
                if first.is_ok() {
                    first = r;
                }
            }
            first
        })
    }

    // ---- settings ----

    /// Sets `max_active`, clamped to 1..=2048; returns what is in force. O(pools used by the queue). Raised: held-back items start at once, in order.
    /// Lowered: what is active stays so. `min_active` is lowered with it and stays there.
    ///
    /// # Errors
    /// [`AttrsError::WrongKind`] for an ordered queue, [`AttrsError::Forked`].
    pub fn set_max_active(&self, n: u32) -> Result<u32, AttrsError> {
        self.inner().set_max_active(n)
    }

    /// Sets `min_active`, clamped to 0..=`max_active`; returns what is in force.
    ///
    /// # Errors
    /// [`AttrsError::WrongKind`] unless the queue is unbound, [`AttrsError::Forked`].
    pub fn set_min_active(&self, n: u32) -> Result<u32, AttrsError> {
        self.inner().set_min_active(n)
    }

    /// The limits in force: `(max_active, min_active)`.
    pub fn limits(&self) -> (u32, u32) {
        let state = self.inner().lock();
        (state.max_active, state.min_active)
    }

    /// Applies attributes while items flow: everything or nothing. Queued items stay where they are and still run; new ones
    /// go to the new pools. An ordered queue keeps its order across the change. Does not wait for anything. O(CPUs).
    ///
    /// # Errors
    /// [`AttrsError`]; nothing has changed.
    pub fn apply_attrs(&self, attrs: Attrs) -> Result<AttrsChange, AttrsError> {
        self.inner().apply_attrs(attrs)
    }

    /// The attributes as they were set.
    pub fn attrs(&self) -> Attrs {
        self.inner().lock().attrs.clone()
    }

    /// The affinity scope in force: that of the attributes, with `Default` resolved.
    pub fn effective_scope(&self) -> AffinityScope {
        match self.attrs().scope {
            AffinityScope::Default => self.inner().rt.machine.load().default_scope,
            s => s,
        }
    }

    // ---- looking ----

    /// Whether items issued here would be held back by `max_active` now. Advisory: old when it returns.
    pub fn congested(&self) -> bool {
        self.inner().is_congested()
    }

    /// The queue's numbers. Takes each of its pools' locks for a moment, one at a time. All zero in a forked child.
    pub fn stats(&self) -> Stats {
        self.inner().stats()
    }

    /// Items that wait to be started, if `max_pending` is set; else 0.
    pub fn pending(&self) -> usize {
        self.inner().pending.load(Ordering::Relaxed)
    }
}

impl WqInner {
    /// Whether threads that are no workers may run items while they wait.
    #[inline]
    fn hands_on(&self) -> bool {
        self.config.inline_wait || self.rt.manual.is_some()
    }

    fn check_cpu(&self, cpu: usize) -> Result<(), QueueError> {
        let machine = self.rt.machine.load();
        if machine.topology.possible().contains(cpu) {
            return Ok(());
        }
        Err(QueueError::NoSuchCpu {
            cpu,
            possible: machine.topology.possible().to_string(),
        })
    }

    fn place_on_node(&self, node: usize) -> Result<Place, QueueError> {
        if self.config.kind == WorkqueueKind::PerCpu {
            return Err(QueueError::WrongKind {
                wq: self.name().clone(),
                expected: "an unbound workqueue",
            });
        }
        let machine = self.rt.machine.load();
        let Some((_, cpus)) = machine.nodes.iter().find(|n| n.0 == node) else {
            return Err(QueueError::NoSuchNode { node });
        };
        let here = self.rt.here();
        if cpus.contains(here) {
            return Ok(Place::Here);
        }
        Ok(cpus
            .first_common(&machine.usable)
            .map_or(Place::Here, Place::Cpu))
    }

    fn is_congested(&self) -> bool {
        if self.rt.fork.is_stale() {
            return false;
        }
        let table = self.table.load();
        let here = self.rt.here();
        table
            .index(here)
            .and_then(|i| table.links[i].get())
            .is_some_and(|link| {
                link.pool.inspect(|inner| {
                    link.id()
                        .is_some_and(|id| inner.policy.pwq(id).inactive_len() > 0)
                })
            })
    }
}
