//! The way of an item into a pool.

use super::{PwqLink, WorkqueueKind, WqInner};
use crate::control::probe;
use crate::current;
use crate::error::QueueError;
use crate::issuer;
use crate::item::ItemPtr;
use crate::pool::{link_of, pool_by_id};
use cmwq_policy::pool::{Enqueue, Refused, Time};
use cmwq_policy::word::{NO_POOL, Word};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where an item should go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Near the calling thread.
    Here,
    /// To this CPU's pool.
    Cpu(usize),
}

enum Attempt {
    Queued,
    /// The pwq was replaced: look again.
    Retry,
    Draining,
    Closed,
}

impl WqInner {
    /// Makes room for one more pending item.
    #[inline]
    pub(crate) fn reserve_room(&self) -> Result<(), QueueError> {
        let max = self.config.max_pending;
        if max == 0 {
            return Ok(());
        }
        // Ordering: Acquire pairs with the Release of `left_pending`.
        self.pending
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| {
                (n < max).then_some(n + 1)
            })
            .map(|_| ())
            .map_err(|_| self.full())
    }

    /// Whether there is room for one more pending item now.
    pub(crate) fn check_room(&self) -> Result<(), QueueError> {
        let max = self.config.max_pending;
        if max != 0 && self.pending.load(Ordering::Relaxed) >= max {
            return Err(self.full());
        }
        Ok(())
    }

    #[cold]
    fn full(&self) -> QueueError {
        if self.is_closed() {
            return self.closed();
        }
        self.refuse(QueueError::Full {
            wq: self.name().clone(),
            max_pending: self.config.max_pending,
        })
    }

    #[cold]
    pub(crate) fn refuse(&self, e: QueueError) -> QueueError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        e
    }

    /// Queues an item that the caller owns (its word is in transit and was `before`). On success the queue holds the caller's
    /// reference to it; else the item is untouched, still in transit.
    #[inline]
    pub(crate) fn queue_owned(
        self: &Arc<Self>,
        item: ItemPtr,
        before: Word,
        place: Place,
    ) -> Result<(), QueueError> {
        if self.rt.fork.is_stale() {
            return Err(self.refuse(QueueError::Forked));
        }
        self.reserve_room()?;
        let result = self.queue_reserved(item, before, place);
        if result.is_err() {
            self.left_pending();
        }
        result
    }

    /// As [`Self::queue_owned`], whether or not there is room: for an item that was accepted before.
    pub(crate) fn queue_forced(
        self: &Arc<Self>,
        item: ItemPtr,
        before: Word,
        place: Place,
    ) -> Result<(), QueueError> {
        if self.rt.fork.is_stale() {
            return Err(self.refuse(QueueError::Forked));
        }
        if self.config.max_pending != 0 {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
        let result = self.queue_reserved(item, before, place);
        if result.is_err() {
            self.left_pending();
        }
        result
    }

    /// Queues an item for which room was reserved; on failure the room is the caller's to give back.
    pub(crate) fn queue_reserved(
        self: &Arc<Self>,
        item: ItemPtr,
        before: Word,
        place: Place,
    ) -> Result<(), QueueError> {
        let here = self.rt.here();
        let (target, req_cpu) = match place {
            Place::Here if self.rt.force_rr.load(Ordering::Relaxed) => (self.in_turn(here), None),
            Place::Here => (here, None),
            Place::Cpu(cpu) => (cpu, Some(cpu)),
        };
        // SAFETY: the caller owns the item, which once queued may be gone.
        let named = unsafe { probe::name(item) };
        if before.pool() != NO_POOL {
            match self.redirect(item, before.pool(), here) {
                Some(Attempt::Queued) => {
                    if let Some(named) = named {
                        probe::queue_work(named, self, req_cpu, before.pool());
                    }
                    return Ok(());
                }
                Some(Attempt::Draining) => {
                    return Err(self.refuse(QueueError::Draining {
                        wq: self.name().clone(),
                    }));
                }
                Some(Attempt::Closed) => return Err(self.closed()),
                Some(Attempt::Retry) | None => {}
            }
        }
        // SAFETY: the caller owns the item.
        let oneshot = unsafe { item.header() }.is_oneshot();
        let now = self.rt.time.now();
        loop {
            let table = self.table.load();
            let Some(i) = table.index(target) else {
                return Err(self.closed());
            };
            let attempt = match table.links[i].get() {
                Some(link) => {
                    // SAFETY: we own the item, and the table, which we hold, keeps the pwq linked.
                    if oneshot && unsafe { link.pool.submit(item, link, here as u32, now) } {
                        Attempt::Queued
                    } else {
                        self.enqueue(link, item, here, now, true)
                    }
                }
                None => match self.make_link(&table, i)? {
                    Some(link) => self.enqueue(&link, item, here, now, true),
                    None => Attempt::Retry,
                },
            };
            match attempt {
                Attempt::Queued => {
                    if let Some(named) = named {
                        let pool = table.links[i].get().map_or(0, |link| link.pool.id);
                        probe::queue_work(named, self, req_cpu, pool);
                    }
                    return Ok(());
                }
                Attempt::Retry => crate::shim::spin_loop(),
                Attempt::Closed => return Err(self.closed()),
                Attempt::Draining => {
                    return Err(self.refuse(QueueError::Draining {
                        wq: self.name().clone(),
                    }));
                }
            }
        }
    }

    /// Which CPU's pool is next while round robin is forced (an ordered queue has one pool only).
    #[cold]
    fn in_turn(&self, here: usize) -> usize {
        match self.config.kind {
            WorkqueueKind::PerCpu => here,
            _ => self.rt.next_in_turn().unwrap_or(here),
        }
    }

    #[cold]
    fn closed(&self) -> QueueError {
        self.refuse(QueueError::Closed {
            wq: self.name().clone(),
        })
    }

    /// Rule 2.2 (a): an item that runs for this queue in its last pool is queued there again, whatever pool the caller's CPU
    /// leads to. Not so in ordered queues, where order implies it and the newest pwq has to be taken (kernel: 6.11).
    #[cold]
    fn redirect(self: &Arc<Self>, item: ItemPtr, last: u32, here: usize) -> Option<Attempt> {
        let pool = pool_by_id(last);
        let link = pool.inspect(|inner| {
            let (_, _, pwq) = inner.policy.running(item)?;
            inner.links[pwq as usize].clone()
        })?;
        if self.is_ordered() || !Arc::ptr_eq(&link.wq, self) {
            // SAFETY: the caller owns the item.
            unsafe { item.strayed(last) };
            return None;
        }
        if self.is_closed() {
            return Some(Attempt::Closed);
        }
        Some(self.enqueue(&link, item, here, self.rt.time.now(), false))
    }

    /// One attempt; `current` says that a retiring pwq will not do.
    #[inline]
    fn enqueue(
        self: &Arc<Self>,
        link: &PwqLink,
        item: ItemPtr,
        here: usize,
        now: Time,
        current: bool,
    ) -> Attempt {
        let pool = link.pool;
        // Who runs an item of this queue may queue even while it drains.
        pool.with(|p, drv| {
            let Some(id) = link.id() else {
                return Attempt::Retry;
            };
            let pwq = p.pwq(id);
            if current && pwq.is_retiring() {
                return Attempt::Retry;
            }
            if !current {
                // Only if it still runs there.
                // SAFETY: the pwq of a running entry is linked, and the pool's lock is held.
                let still = p
                    .running(item)
                    .is_some_and(|r| std::ptr::eq(unsafe { link_of(p.pwq(r.2).tag) }, link));
                if !still {
                    return Attempt::Retry;
                }
            }
            let chained = pwq.is_draining() && current::runs_item_of(self);
            // SAFETY: the caller owns the item.
            let header = unsafe { item.header() };
            let q = Enqueue {
                item,
                pwq: id,
                oneshot: header.is_oneshot(),
                chained,
                issuer_cpu: here as u32,
            };
            pool.visited(now);
            // Workers' own items are not worth the question: their issuer goes on with its batch.
            if let Some(way) = p.way_to_wake(|| !current::is_running() && issuer::is_sleepy()) {
                drv.wake_by(way, here as u32, now);
            }
            match p.enqueue(q, now, drv) {
                Ok(entry) => {
                    header.set_linked(pool.id, entry);
                    Attempt::Queued
                }
                Err(Refused::Draining) => Attempt::Draining,
            }
        })
    }
}
