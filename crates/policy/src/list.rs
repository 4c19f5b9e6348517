//! An arena of entries and doubly linked lists through it.
//!
//! Entries are named by small integers, so that an item's word can hold where its entry lies, removal from the middle
//! costs O(1), and nothing is allocated once the arena has grown to the load. An entry is in at most one list.

/// "No entry": the end of a list, or no entry at all.
pub const NIL: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Node<E> {
    prev: u32,
    next: u32,
    value: Option<E>,
}

/// Storage for the entries of any number of lists.
#[derive(Debug, Clone)]
pub struct Arena<E> {
    nodes: Vec<Node<E>>,
    free: u32,
    len: usize,
}

/// The two ends and the length of one list; its links live in the [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        List {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }
}

impl List {
    /// The first entry, or [`NIL`].
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// The last entry, or [`NIL`].
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// How many entries the list holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the list holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

impl<E> Default for Arena<E> {
    fn default() -> Self {
        Arena {
            nodes: Vec::new(),
            free: NIL,
            len: 0,
        }
    }
}

impl<E> Arena<E> {
    /// Stores `value` outside any list and returns its id. O(1), allocates only when every slot is taken.
    #[inline]
    pub fn insert(&mut self, value: E) -> u32 {
        self.len += 1;
        if self.free != NIL {
            let id = self.free;
            let node = &mut self.nodes[id as usize];
            self.free = node.next;
            *node = Node {
                prev: NIL,
                next: NIL,
                value: Some(value),
            };
            return id;
        }
        let id = self.nodes.len() as u32;
        assert!(id != NIL, "an arena holds at most 2^32 - 1 entries");
        self.nodes.push(Node {
            prev: NIL,
            next: NIL,
            value: Some(value),
        });
        id
    }

    /// Takes the entry out of the arena. It must not be in a list any more.
    ///
    /// # Panics
    /// If there is no such entry.
    #[inline]
    pub fn remove(&mut self, id: u32) -> E {
        let node = &mut self.nodes[id as usize];
        let value = node.value.take().expect("entry is live");
        node.next = self.free;
        self.free = id;
        self.len -= 1;
        value
    }

    /// The entry, if it is live.
    #[inline]
    pub fn get(&self, id: u32) -> Option<&E> {
        self.nodes.get(id as usize).and_then(|n| n.value.as_ref())
    }

    /// The entry, if it is live.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut E> {
        self.nodes
            .get_mut(id as usize)
            .and_then(|n| n.value.as_mut())
    }

    /// How many entries are live.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no entry is live.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All live entries with their ids, in no meaningful order. O(capacity).
    pub fn iter(&self) -> impl Iterator<Item = (u32, &E)> {
        self.nodes
            .iter()
            .enumerate()
            .filter_map(|(i, n)| n.value.as_ref().map(|v| (i as u32, v)))
    }

    /// All live entries with their ids, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut E)> {
        self.nodes
            .iter_mut()
            .enumerate()
            .filter_map(|(i, n)| n.value.as_mut().map(|v| (i as u32, v)))
    }

    /// The entry behind `id` in its list, or [`NIL`].
    #[inline]
    pub fn next(&self, id: u32) -> u32 {
        self.nodes[id as usize].next
    }

    /// The ids in `list`, first to last.
    pub fn ids<'a>(&'a self, list: &List) -> impl Iterator<Item = u32> + 'a {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let id = at;
            if id == NIL {
                return None;
            }
            at = self.nodes[id as usize].next;
            Some(id)
        })
    }

    /// Links `id` at the end of `list`.
    #[inline]
    pub fn push_back(&mut self, list: &mut List, id: u32) {
        let tail = list.tail;
        {
            let node = &mut self.nodes[id as usize];
            node.prev = tail;
            node.next = NIL;
        }
        if tail == NIL {
            list.head = id;
        } else {
            self.nodes[tail as usize].next = id;
        }
        list.tail = id;
        list.len += 1;
    }

    /// Links `id` at the front of `list`.
    #[inline]
    pub fn push_front(&mut self, list: &mut List, id: u32) {
        let head = list.head;
        {
            let node = &mut self.nodes[id as usize];
            node.next = head;
            node.prev = NIL;
        }
        if head == NIL {
            list.tail = id;
        } else {
            self.nodes[head as usize].prev = id;
        }
        list.head = id;
        list.len += 1;
    }

    /// Unlinks `id` from `list`; the entry stays in the arena.
    #[inline]
    pub fn unlink(&mut self, list: &mut List, id: u32) {
        let (prev, next) = {
            let node = &mut self.nodes[id as usize];
            let links = (node.prev, node.next);
            node.prev = NIL;
            node.next = NIL;
            links
        };
        if prev == NIL {
            debug_assert_eq!(list.head, id, "entry is in this list");
            list.head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next == NIL {
            debug_assert_eq!(list.tail, id, "entry is in this list");
            list.tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
        list.len -= 1;
    }

    /// Unlinks and returns the first entry of `list`, or [`NIL`].
    #[inline]
    pub fn pop_front(&mut self, list: &mut List) -> u32 {
        let id = list.head;
        if id != NIL {
            self.unlink(list, id);
        }
        id
    }
}

impl<E> std::ops::Index<u32> for Arena<E> {
    type Output = E;
    #[inline]
    fn index(&self, id: u32) -> &E {
        self.nodes[id as usize]
            .value
            .as_ref()
            .expect("entry is live")
    }
}

impl<E> std::ops::IndexMut<u32> for Arena<E> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut E {
        self.nodes[id as usize]
            .value
            .as_mut()
            .expect("entry is live")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Clone)]
    enum Op {
        Back(u8),
        Front(u8),
        Pop,
        RemoveAt(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            any::<u8>().prop_map(Op::Back),
            any::<u8>().prop_map(Op::Front),
            Just(Op::Pop),
            any::<usize>().prop_map(Op::RemoveAt),
        ]
    }

    proptest! {
        #[test]
        fn a_list_equals_a_deque(ops in proptest::collection::vec(op(), 0..200)) {
            let mut arena = Arena::default();
            let mut list = List::default();
            let mut model: VecDeque<(u32, u8)> = VecDeque::new();
            for op in ops {
                match op {
                    Op::Back(v) => {
                        let id = arena.insert(v);
                        arena.push_back(&mut list, id);
                        model.push_back((id, v));
                    }
                    Op::Front(v) => {
                        let id = arena.insert(v);
                        arena.push_front(&mut list, id);
                        model.push_front((id, v));
                    }
                    Op::Pop => {
                        let id = arena.pop_front(&mut list);
                        prop_assert_eq!(model.pop_front().map(|m| m.0), (id != NIL).then_some(id));
                        if id != NIL {
                            arena.remove(id);
                        }
                    }
                    Op::RemoveAt(i) => {
                        if !model.is_empty() {
                            let (id, v) = model.remove(i % model.len()).unwrap();
                            arena.unlink(&mut list, id);
                            prop_assert_eq!(arena.remove(id), v);
                        }
                    }
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(arena.len(), model.len());
                let got: Vec<_> = arena.ids(&list).map(|id| (id, arena[id])).collect();
                prop_assert_eq!(got, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
