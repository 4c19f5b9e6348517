//! Tasks that wait for room in a queue with `max_pending`.
//!
//! - R1: each item that leaves the pending ones lets the longest waiting task know, if one waits. It is taken off the list
//!   with that; if others were faster it comes back to its old place.
//! - R2: a task that was told and goes away without having looked passes it on. So while there is room and somebody waits,
//!   somebody who was told is on its way.
//! - R3: a task is on the list at most once, however often it is polled.
//!
//! No task misses room that comes while it registers: registering looks at the count under the list's lock, and whoever
//! counts down takes that lock afterwards.

use super::{Workqueue, WqInner};
use crate::error::quietly;
use crate::shim::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// The list of tasks that wait for room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By ticket, smallest first.
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
}

impl Room {
    /// Tells the longest waiting task, if any.
    pub(super) fn tell_one(&self) {
        let told = self.state.lock().waiting.pop_front();
        if let Some((_, waker)) = told {
            // A waker is foreign code; it must not take a worker down.
            quietly(move || waker.wake());
        }
    }

    /// Tells all: the queue is closed.
    pub(super) fn tell_all(&self) {
        let all = std::mem::take(&mut self.state.lock().waiting);
        for (_, waker) in all {
            quietly(move || waker.wake());
        }
    }
}

/// One task's place in the list.
pub(super) struct Waiting {
    pub(super) wq: Workqueue,
    ticket: Option<u64>,
}

impl Waiting {
    pub(super) fn new(wq: Workqueue) -> Waiting {
        Waiting { wq, ticket: None }
    }

    /// Waits in line; false if there is room by now or the queue is closed.
    pub(super) fn line_up(&mut self, waker: &Waker) -> bool {
        let wq = self.wq.inner();
        let waker = waker.clone();
        let mut state = wq.room.state.lock();
        // Ordering: Acquire pairs with the Release of `left_pending`, which takes the list's lock after counting down.
        if wq.pending.load(Ordering::Acquire) < wq.config.max_pending || wq.is_closed() {
            return false;
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            state.tickets += 1;
            state.tickets
        });
        let replaced = match state.waiting.binary_search_by_key(&ticket, |w| w.0) {
            Ok(i) => Some(std::mem::replace(&mut state.waiting[i].1, waker)),
            Err(i) => {
                state.waiting.insert(i, (ticket, waker));
                None
            }
        };
        drop(state);
        drop(replaced);
        true
    }

    /// The task is through: it has what it waited for, or never will.
    pub(super) fn leave(&mut self) -> Left {
        let Some(ticket) = self.ticket.take() else {
            return Left::NeverWaited;
        };
        let mut state = self.wq.inner().room.state.lock();
        match state.waiting.binary_search_by_key(&ticket, |w| w.0) {
            Ok(i) => {
                let own = state.waiting.remove(i);
                drop(state);
                drop(own);
                Left::Waiting
            }
            Err(_) => Left::Told,
        }
    }
}

/// How a task left the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    NeverWaited,
    /// It was still in line.
    Waiting,
    /// It had been told that there is room.
    Told,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.leave() == Left::Told {
            self.wq.inner().pass_room_on();
        }
    }
}

impl WqInner {
    /// R2: a task that was told of room will not use it.
    fn pass_room_on(&self) {
        self.room.tell_one();
    }

    /// An item does not wait any more: started or taken out.
    #[inline]
    pub(crate) fn left_pending(&self) {
        if self.config.max_pending == 0 {
            return;
        }
        // Ordering: Release pairs with the Acquire of `reserve_room` and `line_up`.
        self.pending.fetch_sub(1, Ordering::Release);
        self.room.tell_one();
    }
}
