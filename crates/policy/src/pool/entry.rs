//! An item's entry in a pool.

use super::{PwqId, Time, WorkerId};

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Held back by its pwq's limit, in the pwq's inactive list.
    Inactive,
    /// On the pool's worklist.
    Worklist,
    /// On a worker's private list: that worker runs the same item now, or is to run this one next.
    Private(WorkerId),
    /// In a worker's batch: running, or about to be claimed.
    Taken(WorkerId),
    /// Run by a thread that waits for it, outside any batch.
    Inline,
}

/// One queued or running item.
#[derive(Debug, Clone)]
pub struct Entry<T> {
    /// The item.
    pub item: T,
    /// The pwq it was queued through.
    pub pwq: PwqId,
    /// Where it is.
    pub place: Place,
    /// The flush colour it was stamped with.
    pub colour: u8,
    /// It can be queued once only: it never collides with itself and may lie in a batch.
    pub oneshot: bool,
    /// When it was queued.
    pub queued_at: Time,
    /// When it became active; meaningless before.
    pub active_at: Time,
    /// It was offered to other pods.
    pub(super) offered: bool,
    /// The CPU that queued it.
    pub issuer_cpu: u32,
    /// Its permit is lent: it runs, but waits for others of its queue and does not count as active meanwhile.
    pub lent: bool,
    /// Head of the chain of those who wait for this instance.
    pub(super) barriers: u32,
}
