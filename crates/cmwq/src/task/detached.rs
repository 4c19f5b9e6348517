//! The cell of a one-shot item that nobody waits for: the item's header and its closure, nothing else.
//!
//! The queue's side is its only owner, from queueing until it has run or was discarded; then the cell is freed. It is not
//! freed before the closure has returned: the running thread may still look at the header.

use super::cell::drop_quietly;
use super::memory;
use crate::item::{Dropped, Header, ItemPtr, VTable, never_strays, type_name_of};
use crate::shim::UnsafeCell;
use cmwq_policy::word::Word;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[repr(C)]
struct Cell<F> {
    header: Header,
    func: UnsafeCell<ManuallyDrop<F>>,
}

struct Kind<F>(PhantomData<F>);

impl<F: FnOnce() + Send> Kind<F> {
    const VTABLE: VTable = VTable {
        run: Self::run,
        discard: Self::discard,
        name: type_name_of::<F>,
        strayed: never_strays,
        oneshot: true,
        fixed_name: Some(std::any::type_name::<F>),
        task: None,
    };

    unsafe fn run(item: ItemPtr) {
        let cell = item.as_ptr().cast::<Cell<F>>();
        // SAFETY: the queue's side holds the cell (contract of `VTable::run`).
        let place = unsafe { &cell.as_ref().func };
        // SAFETY: the cell's only owner takes the closure, once: a one-shot item runs or is discarded, once.
        let func = place.with_mut(|f| unsafe { ManuallyDrop::take(&mut *f) });
        if let Err(payload) = catch_unwind(AssertUnwindSafe(func)) {
            crate::current::count_panic();
            crate::runtime::report_panic(std::any::type_name::<F>(), payload);
        }
        // SAFETY: the owner is through with it; the closure was taken out.
        unsafe { memory::free(cell) };
    }

    unsafe fn discard(item: ItemPtr, _: Dropped) {
        // SAFETY: as in `run`: the owner, once.
        let func = unsafe { take_back(item) };
        // A panic in the drop glue of captured values must not reach the canceller or a worker.
        drop_quietly::<F>(func);
    }
}

/// Makes the item for the queue.
pub(crate) fn new_detached<F: FnOnce() + Send>(f: F) -> ItemPtr {
    let cell = memory::boxed(Cell {
        header: Header::new(Word::IN_TRANSIT, &Kind::<F>::VTABLE),
        func: UnsafeCell::new(ManuallyDrop::new(f)),
    });
    ItemPtr::new(cell.cast())
}

/// Takes the closure back out and frees the cell.
///
/// # Safety
/// The item is one of `new_detached::<F>`; the caller owns it and does not use it again.
pub(crate) unsafe fn take_back<F>(item: ItemPtr) -> F {
    // SAFETY: made by `new_detached`, and the caller owns it.
    let cell = unsafe { memory::unbox(item.as_ptr().cast::<Cell<F>>()) };
    ManuallyDrop::into_inner(cell.func.into_inner())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_closure_and_two_words() {
        let (a, b) = (1u64, 2u64);
        let f = move || assert_eq!(a + 1, b);
        fn size<F>(_: &F) -> usize {
            std::mem::size_of::<Cell<F>>()
        }
        assert_eq!(size(&f), 16 + 16);
    }
}
