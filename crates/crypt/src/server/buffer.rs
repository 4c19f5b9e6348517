//! Buffers for request data, kept for reuse near the CPU that let them go.
//!
//! A buffer is zeroed once, when it is allocated, and later holds what its last user left; every user fills all of it
//! before it leaves the process.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, TryLockError};

use crossbeam_utils::CachePadded;

/// Smallest buffer: a page.
const MIN: usize = 4096;
/// Most shards of the pool, picked by CPU.
const MAX_SHARDS: usize = 16;
/// Bytes that all shards keep together, each its share: sixteen clients with 64 requests of 32 KiB in flight. More is given
/// back to the allocator, so an idle server holds that much at most.
const KEEP: usize = 32 << 20;

#[derive(Default)]
struct Shard {
    /// One list a power of two, from [`MIN`] up.
    lists: Vec<Vec<Vec<u8>>>,
    kept: usize,
}

/// The pool of one server.
pub(crate) struct BufferPool {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Bytes that one shard keeps.
    keep: usize,
}

/// A buffer of the wanted length; returns to its pool when dropped.
pub(crate) struct Buffer {
    /// Its length is a power of two, at least `len`.
    data: Vec<u8>,
    len: usize,
    pool: Arc<BufferPool>,
}

impl BufferPool {
    pub(crate) fn new() -> Arc<BufferPool> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shards = cpus.min(MAX_SHARDS);
        Arc::new(BufferPool {
            shards: (0..shards)
                .map(|_| CachePadded::new(Mutex::default()))
                .collect(),
            keep: KEEP / shards,
        })
    }

    fn class(len: usize) -> (usize, usize) {
        let size = len.next_power_of_two().max(MIN);
        ((size / MIN).trailing_zeros() as usize, size)
    }

    /// A kept buffer of the class: of this CPU, or of another whose shard nobody uses at this moment. Readers take buffers
    /// and workers let them go, often on other CPUs, so that a CPU's own shard may be empty while the others are full.
    fn take_kept(&self, class: usize, size: usize) -> Option<Vec<u8>> {
        let take = |shard: &mut Shard| {
            let kept = shard.lists.get_mut(class)?.pop()?;
            shard.kept -= size;
            Some(kept)
        };
        let n = self.shards.len();
        let own = rustix::thread::sched_getcpu() % n;
        let mine = take(&mut self.shards[own].lock().unwrap_or_else(|e| e.into_inner()));
        mine.or_else(|| {
            (1..n).find_map(|far| {
                let mut other = match self.shards[(own + far) % n].try_lock() {
                    Ok(guard) => guard,
                    Err(TryLockError::Poisoned(e)) => e.into_inner(),
                    Err(TryLockError::WouldBlock) => return None,
                };
                take(&mut other)
            })
        })
    }

    /// A buffer of `len` bytes with any content.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let (class, size) = Self::class(len);
        Buffer {
            data: self.take_kept(class, size).unwrap_or_else(|| vec![0; size]),
            len,
            pool: Arc::clone(self),
        }
    }

    fn give_back(&self, data: Vec<u8>) {
        let (class, size) = Self::class(data.len());
        let own = rustix::thread::sched_getcpu() % self.shards.len();
        let mut shard = self.shards[own].lock().unwrap_or_else(|e| e.into_inner());
        if shard.kept + size > self.keep {
            return;
        }
        shard.kept += size;
        if shard.lists.len() <= class {
            shard.lists.resize_with(class + 1, Vec::new);
        }
        shard.lists[class].push(data);
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_what_is_kept() {
        let pool = BufferPool::new();
        for len in [1, 512, 4096, 4097, 32_768, 131_072, 1 << 20] {
            let b = pool.take(len);
            assert_eq!(b.len(), len);
        }
        let many: Vec<Buffer> = (0..2 * KEEP / 131_072)
            .map(|_| pool.take(131_072))
            .collect();
        drop(many);
        for shard in &pool.shards {
            let shard = shard.lock().unwrap();
            let held: usize = shard.lists.iter().flatten().map(Vec::len).sum();
            assert_eq!(held, shard.kept);
            assert!(held <= pool.keep);
        }
        // Whatever CPU this thread is on now, and whichever shards hold them: kept ones are used before new ones are made.
        let held = || -> usize { pool.shards.iter().map(|s| s.lock().unwrap().kept).sum() };
        let before = held();
        let again: Vec<Buffer> = (0..before / 131_072).map(|_| pool.take(131_072)).collect();
        assert!(held() < 2 << 20, "{} of {before} left", held());
        drop(again);
        assert!(pool.keep * pool.shards.len() <= KEEP);
    }
}
