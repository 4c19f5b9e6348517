//! Where timers live: a vector with a free list. An id names a place and how often the place was used, so an old id finds
//! nothing.

/// Names a timer of one wheel until it fires or is cancelled. Another wheel gives it no meaning.
///
/// An id of a timer that is gone stays invalid until its place has been used 2^32 more times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

/// No entry.
pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(super) struct Entry<T> {
    /// `None`: the place is free.
    pub(super) payload: Option<T>,
    /// When it fires.
    pub(super) tick: u64,
    /// Neighbours in its list; the free list uses `next` only.
    pub(super) prev: u32,
    pub(super) next: u32,
    generation: u32,
    /// The list that it is in.
    pub(super) list: u16,
}

#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    live: u32,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NIL,
            live: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.live as usize
    }

    /// # Panics
    /// With 2^32 - 1 timers, which is 160 GiB of them.
    pub(super) fn insert(&mut self, tick: u64, payload: T) -> u32 {
        self.live += 1;
        if self.free != NIL {
            let index = self.free;
            let e = &mut self.entries[index as usize];
            self.free = e.next;
            (e.payload, e.tick) = (Some(payload), tick);
            return index;
        }
        let index = self.entries.len() as u32;
        assert!(index != NIL, "2^32 - 1 timers in one wheel");
        self.entries.push(Entry {
            payload: Some(payload),
            tick,
            prev: NIL,
            next: NIL,
            generation: 0,
            list: 0,
        });
        index
    }

    /// Gives the place free; ids of it are invalid from now on.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let free = self.free;
        let e = &mut self.entries[index as usize];
        let payload = e.payload.take()?;
        e.generation = e.generation.wrapping_add(1);
        (e.prev, e.next) = (NIL, free);
        self.free = index;
        self.live -= 1;
        Some(payload)
    }

    pub(super) fn id(&self, index: u32) -> TimerId {
        TimerId {
            index,
            generation: self.entries[index as usize].generation,
        }
    }

    /// The place of a timer that is still there.
    pub(super) fn find(&self, id: TimerId) -> Option<u32> {
        let e = self.entries.get(id.index as usize)?;
        (e.generation == id.generation && e.payload.is_some()).then_some(id.index)
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> &Entry<T> {
        &self.entries[index as usize]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> &mut Entry<T> {
        &mut self.entries[index as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Entry<T>)> {
        (0..)
            .zip(&self.entries)
            .filter(|(_, e)| e.payload.is_some())
    }
}
