//! Pools by number. An item's word names a pool by its number, long after the item left it perhaps, so a pool's memory is never
//! given back, only used again.

#[cfg(all(test, shuttle))]
pub(crate) use modelled::reset;
#[cfg(any(loom, shuttle))]
pub(crate) use modelled::{give_back, pool_by_id, unused_pool};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use real::{give_back, pool_by_id, unused_pool};

#[cfg(not(any(loom, shuttle)))]
mod real {
    use crate::pool::RtPool;
    use crate::shim::leaf::OnceLock;
    use crate::shim::leaf::{Mutex, MutexGuard, PoisonError};

    const SEGMENT: usize = 64;
    const SEGMENTS: usize = (cmwq_policy::word::NO_POOL as usize).div_ceil(SEGMENT);

    static TABLE: [OnceLock<Box<[RtPool]>>; SEGMENTS] = [const { OnceLock::new() }; SEGMENTS];
    static FREE: Mutex<FreeList> = Mutex::new(FreeList {
        free: Vec::new(),
        next: 0,
    });

    struct FreeList {
        free: Vec<u32>,
        next: u32,
    }

    fn free_list() -> MutexGuard<'static, FreeList> {
        FREE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool of that number. O(1), no lock.
    #[inline]
    pub(crate) fn pool_by_id(id: u32) -> &'static RtPool {
        let i = id as usize;
        &TABLE[i / SEGMENT]
            .get()
            .expect("pools are numbered as they are made")[i % SEGMENT]
    }

    /// A pool that nobody uses; [`RtPool::set_up`] comes next.
    pub(crate) fn unused_pool() -> &'static RtPool {
        let mut list = free_list();
        let id = list.free.pop().unwrap_or_else(|| {
            let id = list.next;
            assert!(
                id < cmwq_policy::word::NO_POOL,
                "more than a million worker pools at once"
            );
            list.next += 1;
            id
        });
        drop(list);
        let segment = id as usize / SEGMENT;
        TABLE[segment].get_or_init(|| {
            let base = (segment * SEGMENT) as u32;
            (0..SEGMENT as u32).map(|i| RtPool::new(base + i)).collect()
        });
        pool_by_id(id)
    }

    /// The pool was torn down: it may be used again.
    pub(crate) fn give_back(pool: &RtPool) {
        free_list().free.push(pool.id);
    }
}

/// A model makes everything anew in each execution, and its threads share one thread of the system.
#[cfg(any(loom, shuttle))]
mod modelled {
    use crate::pool::RtPool;
    use std::cell::RefCell;

    std::thread_local! {
        static TABLE: RefCell<(Vec<&'static RtPool>, Vec<u32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
    }

    pub(crate) fn pool_by_id(id: u32) -> &'static RtPool {
        TABLE.with(|t| t.borrow().0[id as usize])
    }

    pub(crate) fn unused_pool() -> &'static RtPool {
        TABLE.with(|t| {
            let (pools, free) = &mut *t.borrow_mut();
            let id = free.pop().unwrap_or_else(|| {
                pools.push(Box::leak(Box::new(RtPool::new(pools.len() as u32))));
                pools.len() as u32 - 1
            });
            pools[id as usize]
        })
    }

    pub(crate) fn give_back(pool: &RtPool) {
        TABLE.with(|t| t.borrow_mut().1.push(pool.id));
    }

    #[cfg(all(test, shuttle))]
    /// At the beginning of an execution. The pools of the one before are leaked.
    pub(crate) fn reset() {
        TABLE.with(|t| *t.borrow_mut() = (Vec::new(), Vec::new()));
    }
}
