//! Buffers for request data, kept for reuse near the CPU that let them go.
//!
//! A buffer is zeroed once, when it is allocated, and later holds what its last user left; every user fills all of it
//! before it leaves the process.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use crossbeam_utils::CachePadded;

/// Smallest buffer: a page.
const MIN: usize = 4096;
/// Shards of the pool, picked by CPU.
const SHARDS: usize = 16;
/// Bytes that one shard keeps. More is given back to the allocator, so an idle server holds 32 MiB of buffers at most.
const KEEP: usize = 2 << 20;

#[derive(Default)]
struct Shard {
    /// One list a power of two, from [`MIN`] up.
    lists: Vec<Vec<Vec<u8>>>,
    kept: usize,
}

/// The pool of one server.
pub(crate) struct BufferPool {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
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
        Arc::new(BufferPool {
            shards: (0..SHARDS)
                .map(|_| CachePadded::new(Mutex::default()))
                .collect(),
        })
    }

    fn shard(&self) -> &Mutex<Shard> {
        &self.shards[rustix::thread::sched_getcpu() % SHARDS]
    }

    fn class(len: usize) -> (usize, usize) {
        let size = len.next_power_of_two().max(MIN);
        ((size / MIN).trailing_zeros() as usize, size)
    }

    /// A buffer of `len` bytes with any content.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let (class, size) = Self::class(len);
        let kept = {
            let mut shard = self.shard().lock().unwrap_or_else(|e| e.into_inner());
            let kept = shard.lists.get_mut(class).and_then(Vec::pop);
            if kept.is_some() {
                shard.kept -= size;
            }
            kept
        };
        Buffer {
            data: kept.unwrap_or_else(|| vec![0; size]),
            len,
            pool: Arc::clone(self),
        }
    }

    fn give_back(&self, data: Vec<u8>) {
        let (class, size) = Self::class(data.len());
        let mut shard = self.shard().lock().unwrap_or_else(|e| e.into_inner());
        if shard.kept + size > KEEP {
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
        let many: Vec<Buffer> = (0..200).map(|_| pool.take(131_072)).collect();
        drop(many);
        for shard in &pool.shards {
            let shard = shard.lock().unwrap();
            let held: usize = shard.lists.iter().flatten().map(Vec::len).sum();
            assert_eq!(held, shard.kept);
            assert!(held <= KEEP);
        }
    }
}
