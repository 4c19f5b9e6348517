//! Memory of item cells.
//!
//! A cell is nearly always made by one thread and freed by another, which is the slow way of every general allocator: the
//! memory has to find its way back to the thread that allocates. Measured with glibc 2.36, one outside thread queueing empty
//! items: 83-120 ns of the issuer's 330 ns and 40-50 ns of the worker's went into that. So freed cells travel in lots of
//! [`LOT`]: a thread frees into its own [`Magazine`] and allocates from it; a full one goes to a [`Depot`], where a thread whose
//! magazines are empty fetches it (Bonwick and Adams, "Magazines and Vmem", USENIX 2001).
//!
//! Guarantees:
//! - M1: a block is in one place: in use, in one magazine, or given back to the global allocator.
//! - M2: no thread waits for another one: a depot whose lock is taken, or that is full or empty, means the global allocator for
//!   this one block.
//! - M3: what is kept is bounded: two magazines a thread and class, [`KEPT`] full ones a depot; in all at most
//!   440 KiB a depot of [`CPUS`] CPUs, 26 KiB a thread. A thread that ends gives its part back.
//!
//! Blocks are not kept apart by NUMA node: a thread takes lots from the depot of the CPUs around the one it runs on, and threads
//! put them where they run. A cell is written by its issuer before the worker reads it, so its lines move in any case.

use crate::shim::leaf::Mutex;
use std::alloc::{Layout, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// Blocks in a magazine: a magazine has 512 bytes.
const LOT: usize = 63;
/// Full magazines that a depot keeps of each class.
const KEPT: usize = 32;
/// CPUs that share a depot: about what shares a last-level cache.
const CPUS: usize = 8;
/// Depots; machines with more than 1024 CPUs share them further.
const DEPOTS: usize = 128;
/// Sizes of blocks. glibc's chunks of them have 64 and 128 bytes; other allocators round up to those.
const CLASSES: [usize; 2] = [56, 120];
const ALIGN: usize = 8;

/// Whether blocks are kept at all. Not where a tool is to see each cell come and go.
const KEEPS: bool = cfg!(not(any(loom, shuttle, asan, miri)));

/// The class of a type; none if the global allocator serves it.
const fn class_of<T>() -> Option<usize> {
    if !KEEPS || align_of::<T>() > ALIGN {
        return None;
    }
    let mut class = 0;
    while class < CLASSES.len() {
        if size_of::<T>() <= CLASSES[class] {
            return Some(class);
        }
        class += 1;
    }
    None
}

const fn layout(class: usize) -> Layout {
    match Layout::from_size_align(CLASSES[class], ALIGN) {
        Ok(l) => l,
        Err(_) => unreachable!(),
    }
}

/// As `Box::leak(Box::new(value))`. To be freed by [`unbox`] only.
///
/// Does not block, apart from what the global allocator does. Ends the process as `Box` does if there is no memory.
#[inline]
pub(super) fn boxed<T>(value: T) -> NonNull<T> {
    let Some(class) = class_of::<T>() else {
        return NonNull::from(Box::leak(Box::new(value)));
    };
    let place = take(class).cast::<T>();
    // SAFETY: the block is ours, and large and aligned enough for its class's types.
    unsafe { place.write(value) };
    place
}

/// Takes the value out and frees its memory.
///
/// # Safety
/// `place` is from [`boxed::<T>`](boxed), its value is there, and nobody uses it afterwards.
#[inline]
pub(super) unsafe fn unbox<T>(place: NonNull<T>) -> T {
    let Some(class) = class_of::<T>() else {
        // SAFETY: then it is from a `Box`, and the caller owns it.
        return *unsafe { Box::from_raw(place.as_ptr()) };
    };
    // SAFETY: the caller owns the value, and does not use the place again.
    let value = unsafe { place.read() };
    give(class, place.cast());
    value
}

/// Frees the memory of a value without dropping that.
///
/// # Safety
/// As for [`unbox`], but the value may be gone in part.
#[inline]
pub(super) unsafe fn free<T>(place: NonNull<T>) {
    match class_of::<T>() {
        Some(class) => give(class, place.cast()),
        // SAFETY: then it is from a `Box`, and the caller owns it.
        None => drop(unsafe { Box::from_raw(place.as_ptr().cast::<std::mem::MaybeUninit<T>>()) }),
    }
}

/// Free blocks of one class.
struct Magazine {
    len: usize,
    blocks: [Option<NonNull<u8>>; LOT],
}

// SAFETY: it owns its blocks; who has the magazine has them.
unsafe impl Send for Magazine {}

impl Magazine {
    fn new() -> Box<Magazine> {
        Box::new(Magazine {
            len: 0,
            blocks: [None; LOT],
        })
    }

    #[inline]
    fn pop(&mut self) -> Option<NonNull<u8>> {
        self.len = self.len.checked_sub(1)?;
        self.blocks[self.len].take()
    }

    #[inline]
    fn push(&mut self, block: NonNull<u8>) -> Result<(), NonNull<u8>> {
        let Some(place) = self.blocks.get_mut(self.len) else {
            return Err(block);
        };
        *place = Some(block);
        self.len += 1;
        Ok(())
    }

    fn free_all(&mut self, class: usize) {
        while let Some(block) = self.pop() {
            give_back(class, block);
        }
    }
}

/// A thread's magazines of one class. Two, so that a thread that allocates and frees by turns at the edge of one does not go to
/// the depot each time.
struct Rack {
    loaded: Box<Magazine>,
    other: Box<Magazine>,
    /// For how many blocks more the depot is not asked, since it had nothing, or no room, a moment ago.
    discouraged: u32,
}

struct Racks([Option<Rack>; CLASSES.len()]);

impl Drop for Racks {
    fn drop(&mut self) {
        for (class, rack) in self.0.iter_mut().enumerate() {
            let Some(rack) = rack.take() else { continue };
            for mut m in [rack.loaded, rack.other] {
                m.free_all(class);
            }
        }
    }
}

/// Full and empty magazines of one class.
#[allow(clippy::vec_box, reason = "they move between threads by their address")]
struct Exchange {
    full: Vec<Box<Magazine>>,
    empty: Vec<Box<Magazine>>,
}

/// What the threads of neighbouring CPUs exchange.
#[repr(align(128))]
struct Depot([Mutex<Exchange>; CLASSES.len()]);

static DEPOTS_OF_CPUS: [Depot; DEPOTS] = [const {
    Depot(
        [const {
            Mutex::new(Exchange {
                full: Vec::new(),
                empty: Vec::new(),
            })
        }; CLASSES.len()],
    )
}; DEPOTS];

/// The class's exchange near the calling thread, if nobody is at it.
fn with_exchange<R>(class: usize, f: impl FnOnce(&mut Exchange) -> Option<R>) -> Option<R> {
    let cpu = crate::sys::cpu::current_cpu().unwrap_or(0) as usize;
    let near = &DEPOTS_OF_CPUS[cpu / CPUS % DEPOTS].0[class];
    // A poisoned lock is possible only if pushing ran out of memory, which ends the process.
    f(&mut *near.try_lock().ok()?)
}

thread_local! {
    static RACKS: RefCell<Racks> = const { RefCell::new(Racks([const { None }; CLASSES.len()])) };
}

/// What `f` finds in the calling thread's rack of the class. None in the last moments of a thread, and inside a global allocator
/// that itself queues items.
#[inline]
fn with_rack<R>(class: usize, f: impl FnOnce(&mut Rack) -> Option<R>) -> Option<R> {
    let with = |r: &RefCell<Racks>| {
        let racks = &mut r.try_borrow_mut().ok()?.0;
        f(racks[class].get_or_insert_with(Rack::new))
    };
    RACKS.try_with(with).ok().flatten()
}

#[inline]
fn take(class: usize) -> NonNull<u8> {
    let kept = with_rack(class, |rack| {
        rack.loaded.pop().or_else(|| rack.reload(class))
    });
    kept.unwrap_or_else(|| allocate(class))
}

#[inline]
fn give(class: usize, block: NonNull<u8>) {
    let mut left = Some(block);
    with_rack(class, |rack| {
        let block = left.take()?;
        let Err(block) = rack.loaded.push(block) else {
            return Some(());
        };
        left = rack.unload(class, block);
        Some(())
    });
    if let Some(block) = left {
        give_back(class, block);
    }
}

impl Rack {
    #[cold]
    fn new() -> Rack {
        Rack {
            loaded: Magazine::new(),
            other: Magazine::new(),
            discouraged: 0,
        }
    }

    /// The depot's answer; none as well for the next [`LOT`] blocks after it had none.
    fn ask<R>(&mut self, f: impl FnOnce(&mut Rack) -> Option<R>) -> Option<R> {
        if self.discouraged > 0 {
            self.discouraged -= 1;
            return None;
        }
        let answer = f(self);
        if answer.is_none() {
            self.discouraged = LOT as u32;
        }
        answer
    }

    /// The loaded magazine is empty: the other one, or a full one from the depot.
    #[cold]
    fn reload(&mut self, class: usize) -> Option<NonNull<u8>> {
        if self.other.len == 0 {
            // What is left over is dropped when the lock is free again.
            let _left = self.ask(|rack| {
                with_exchange(class, |e| {
                    let empty = std::mem::replace(&mut rack.other, e.full.pop()?);
                    if e.empty.len() >= KEPT {
                        return Some(Some(empty));
                    }
                    e.empty.push(empty);
                    Some(None)
                })
            });
        }
        std::mem::swap(&mut self.loaded, &mut self.other);
        self.loaded.pop()
    }

    /// The loaded magazine is full: the other one, or an empty one from the depot for it. Returns the block if neither is to be
    /// had.
    #[cold]
    fn unload(&mut self, class: usize, block: NonNull<u8>) -> Option<NonNull<u8>> {
        if self.other.len == LOT {
            self.ask(|rack| {
                with_exchange(class, |e| {
                    if e.full.len() >= KEPT {
                        return None;
                    }
                    let empty = e.empty.pop().unwrap_or_else(Magazine::new);
                    e.full.push(std::mem::replace(&mut rack.other, empty));
                    Some(())
                })
            });
        }
        std::mem::swap(&mut self.loaded, &mut self.other);
        self.loaded.push(block).err()
    }
}

/// A block from the global allocator.
#[cold]
fn allocate(class: usize) -> NonNull<u8> {
    let layout = layout(class);
    // SAFETY: the size is not zero.
    let block = unsafe { std::alloc::alloc(layout) };
    NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout))
}

/// A block back to the global allocator.
#[cold]
fn give_back(class: usize, block: NonNull<u8>) {
    // SAFETY: blocks are made by `allocate` with this layout, and who has one owns it (M1).
    unsafe { std::alloc::dealloc(block.as_ptr(), layout(class)) };
}

#[cfg(all(test, not(any(loom, shuttle, asan, miri))))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::mpsc::channel;

    #[test]
    fn each_type_has_the_smallest_class_that_holds_it() {
        assert_eq!(class_of::<[u64; 1]>(), Some(0));
        assert_eq!(class_of::<[u64; 7]>(), Some(0));
        assert_eq!(class_of::<[u64; 8]>(), Some(1));
        assert_eq!(class_of::<[u64; 15]>(), Some(1));
        assert_eq!(class_of::<[u64; 16]>(), None);
        assert_eq!(class_of::<u128>(), None, "aligned to 16");
    }

    #[test]
    fn values_come_back_from_every_class_and_from_none() {
        fn check<T: PartialEq + std::fmt::Debug + Copy>(value: T) {
            for _ in 0..3 * LOT {
                let place = boxed(value);
                // SAFETY: made above, once.
                assert_eq!(unsafe { unbox(place) }, value);
                // SAFETY: made here.
                unsafe { free(boxed(value)) };
            }
        }
        check([1_u64; 3]);
        check([2_u64; 12]);
        check([3_u64; 40]);
        check(4_u128);
    }

    /// Blocks wander: two threads allocate, two free, and the depot is full and empty by turns.
    #[test]
    fn a_block_is_in_one_place_at_a_time() {
        const EACH: u64 = 40_000;
        let (send, receive) = channel::<Vec<usize>>();
        let receive = std::sync::Mutex::new(receive);
        std::thread::scope(|s| {
            for maker in 0..2 {
                let send = send.clone();
                s.spawn(move || {
                    for lot in 0..EACH / 200 {
                        let places = (0..200)
                            .map(|i| boxed([maker, lot * 200 + i, 7, 7, 7]).as_ptr() as usize)
                            .collect();
                        send.send(places).unwrap();
                    }
                });
            }
            drop(send);
            let freers: Vec<_> = (0..2)
                .map(|_| {
                    s.spawn(|| {
                        let mut seen = Vec::new();
                        loop {
                            let next = receive.lock().unwrap().recv();
                            let Ok(places) = next else { return seen };
                            for place in places {
                                let place = NonNull::new(place as *mut [u64; 5]).unwrap();
                                // SAFETY: from `boxed` of the makers, each received once.
                                let value = unsafe { unbox(place) };
                                assert_eq!(value[2..], [7, 7, 7]);
                                seen.push((value[0], value[1]));
                            }
                        }
                    })
                })
                .collect();
            let seen: Vec<_> = freers.into_iter().flat_map(|f| f.join().unwrap()).collect();
            let distinct: HashSet<_> = seen.iter().copied().collect();
            assert_eq!((seen.len(), distinct.len()), (80_000, 80_000));
        });
    }

    #[test]
    fn a_thread_keeps_two_magazines_and_a_depot_so_many() {
        let places: Vec<_> = (0..LOT * (KEPT * 2 + 10)).map(|i| boxed([i; 12])).collect();
        for p in places {
            // SAFETY: made above.
            unsafe { free(p) };
        }
        with_rack(1, |rack| {
            assert!(rack.loaded.len <= LOT && rack.other.len <= LOT);
            Some(())
        })
        .expect("it has freed");
        for depot in &DEPOTS_OF_CPUS {
            let exchange = depot.0[1].lock().unwrap();
            assert!(exchange.full.len() <= KEPT && exchange.empty.len() <= KEPT);
            assert!(exchange.full.iter().all(|m| m.len == LOT));
        }
    }

    #[test]
    fn a_depot_that_somebody_uses_is_not_waited_for() {
        let held: Vec<_> = DEPOTS_OF_CPUS
            .iter()
            .map(|d| d.0[0].lock().unwrap())
            .collect();
        // In a thread of its own, which ends: what it has left over goes back as well.
        std::thread::spawn(|| {
            let places: Vec<_> = (0..5 * LOT).map(|i| boxed([i; 2])).collect();
            for p in places {
                // SAFETY: made above.
                unsafe { free(p) };
            }
        })
        .join()
        .unwrap();
        drop(held);
    }
}
