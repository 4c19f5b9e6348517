//! The event queue: by time, then by order of insertion, so that equal times have one order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in virtual time.
#[derive(Debug, Clone)]
pub(crate) struct Events<E> {
    heap: BinaryHeap<Reverse<(u64, u64, Wrap<E>)>>,
    seq: u64,
}

/// Never compared: the sequence number is unique.
#[derive(Debug, Clone, Copy)]
struct Wrap<E>(E);

impl<E> PartialEq for Wrap<E> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<E> Eq for Wrap<E> {}
impl<E> PartialOrd for Wrap<E> {
    fn partial_cmp(&self, o: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(o))
    }
}
impl<E> Ord for Wrap<E> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Events {
            heap: BinaryHeap::new(),
            seq: 0,
        }
    }
}

impl<E> Events<E> {
    #[inline]
    pub(crate) fn push(&mut self, at: u64, e: E) {
        self.seq += 1;
        self.heap.push(Reverse((at, self.seq, Wrap(e))));
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse((t, _, Wrap(e)))| (t, e))
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((t, _, _))| *t)
    }
}
