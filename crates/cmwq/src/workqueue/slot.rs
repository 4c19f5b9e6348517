//! An active-limit slot of the runtime: the policy's slot under a lock, and the pwqs that lease from it.

use super::PwqLink;
use crate::pool::Todo;
use crate::shim::Mutex;
use crate::shim::atomic::{AtomicU64, Ordering};
use cmwq_policy::pool::PwqTag;
use cmwq_policy::slot::{Contention, Slot, SlotDriver};
use std::sync::Arc;

/// Values of the published word that are no tag, which is an address.
const NOBODY: u64 = 0;
const MANY: u64 = 1;

/// The permits of one queue on one node.
pub(crate) struct SlotShared {
    state: Mutex<State>,
    /// [`Slot::contention`], readable without the lock. Set before pwqs are swept, so a pool's lock holder that was not swept
    /// yet reads it as set, or is swept afterwards (policy invariant S3).
    contention: AtomicU64,
}

struct State {
    slot: Slot,
    links: Vec<Arc<PwqLink>>,
}

struct Notes(Vec<(PwqTag, Option<(u32, u32)>)>);

impl SlotDriver for Notes {
    fn grant(&mut self, pwq: PwqTag, n: u32, keep: u32) {
        self.0.push((pwq, Some((n, keep))));
    }

    fn sweep(&mut self, pwq: PwqTag) {
        self.0.push((pwq, None));
    }
}

impl SlotShared {
    pub(crate) fn new(max: u32) -> SlotShared {
        SlotShared {
            state: Mutex::new(State {
                slot: Slot::new(max),
                links: Vec::new(),
            }),
            contention: AtomicU64::new(0),
        }
    }

    /// Whether others than this pwq want permits.
    #[inline]
    pub(crate) fn is_contended(&self, pwq: PwqTag) -> bool {
        // Ordering: Acquire pairs with the Release in `with_notes`; the pool's lock orders this read against a sweep.
        match self.contention.load(Ordering::Acquire) {
            NOBODY => Contention::Nobody,
            MANY => Contention::Many,
            tag => Contention::One(tag),
        }
        .for_pwq(pwq)
    }

    /// Permits handed out, and the limit.
    pub(crate) fn usage(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.slot.leased(), state.slot.max())
    }

    pub(crate) fn join(&self, link: &Arc<PwqLink>) {
        let mut state = self.state.lock();
        state.slot.join(link.tag());
        state.links.push(Arc::clone(link));
    }

    /// The pwq is unlinked from its pool and held `limit` permits.
    pub(crate) fn leave(&self, link: &Arc<PwqLink>, limit: u32, todo: &mut Vec<Todo>) {
        self.with_notes(todo, |slot, notes| slot.leave(link.tag(), limit, notes));
        self.state.lock().links.retain(|l| !Arc::ptr_eq(l, link));
    }

    /// The pwq wants permits.
    pub(crate) fn ask(&self, link: &PwqLink, todo: &mut Vec<Todo>) {
        self.with_notes(todo, |slot, notes| slot.ask(link.tag(), notes));
    }

    /// Permits come back.
    pub(crate) fn give_back(&self, n: u32, todo: &mut Vec<Todo>) {
        self.with_notes(todo, |slot, notes| slot.give_back(n, notes));
    }

    /// The limit changes.
    pub(crate) fn set_max(&self, max: u32, todo: &mut Vec<Todo>) {
        self.with_notes(todo, |slot, notes| slot.set_max(max, notes));
    }

    fn with_notes(&self, todo: &mut Vec<Todo>, f: impl FnOnce(&mut Slot, &mut Notes)) {
        let mut notes = Notes(Vec::new());
        let mut state = self.state.lock();
        f(&mut state.slot, &mut notes);
        let word = match state.slot.contention() {
            Contention::Nobody => NOBODY,
            Contention::Many => MANY,
            Contention::One(tag) => tag,
        };
        // Ordering: Release pairs with the Acquire of `is_contended`.
        self.contention.store(word, Ordering::Release);
        for (tag, grant) in notes.0 {
            let Some(link) = state.links.iter().find(|l| l.tag() == tag) else {
                continue;
            };
            let link = Arc::clone(link);
            todo.push(match grant {
                Some((n, keep)) => Todo::Grant(link, n, keep),
                None => Todo::Sweep(link),
            });
        }
    }
}
