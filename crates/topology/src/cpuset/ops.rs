//! Set algebra of [`CpuSet`]: named methods, and the operators `& | - ^` by reference and in place.

use super::{BITS, CpuSet};

impl CpuSet {
    /// Is every CPU of `self` in `other`? The empty set is a subset of every set.
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.words
            .iter()
            .enumerate()
            .all(|(i, w)| w & !other.word(self.base + i) == 0)
    }

    /// Is every CPU of `other` in `self`?
    pub fn is_superset(&self, other: &CpuSet) -> bool {
        other.is_subset(self)
    }

    /// Have the two sets a CPU in common?
    pub fn intersects(&self, other: &CpuSet) -> bool {
        self.words
            .iter()
            .enumerate()
            .any(|(i, w)| w & other.word(self.base + i) != 0)
    }

    /// Have the two sets no CPU in common?
    pub fn is_disjoint(&self, other: &CpuSet) -> bool {
        !self.intersects(other)
    }

    /// The CPUs in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        let low = self.base.max(other.base);
        let high = self.end().min(other.end());
        Self::from_words(low, (low..high).map(|i| self.word(i) & other.word(i)))
    }

    /// The CPUs in either set.
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        let (low, high) = self.span_with(other);
        Self::from_words(low, (low..high).map(|i| self.word(i) | other.word(i)))
    }

    /// The CPUs of `self` that are not in `other`.
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        let range = self.base..self.end();
        Self::from_words(self.base, range.map(|i| self.word(i) & !other.word(i)))
    }

    /// The CPUs in exactly one of the two sets.
    pub fn symmetric_difference(&self, other: &CpuSet) -> CpuSet {
        let (low, high) = self.span_with(other);
        Self::from_words(low, (low..high).map(|i| self.word(i) ^ other.word(i)))
    }

    /// Number of CPUs in both sets, without building their intersection.
    pub fn intersection_len(&self, other: &CpuSet) -> usize {
        self.words
            .iter()
            .enumerate()
            .map(|(i, w)| (w & other.word(self.base + i)).count_ones() as usize)
            .sum()
    }

    /// The lowest CPU in both sets, without building their intersection.
    pub fn first_common(&self, other: &CpuSet) -> Option<usize> {
        let range = self.base.max(other.base)..self.end().min(other.end());
        range
            .map(|i| (i, self.word(i) & other.word(i)))
            .find(|(_, w)| *w != 0)
            .map(|(i, w)| i * BITS + w.trailing_zeros() as usize)
    }

    fn end(&self) -> usize {
        self.base + self.words.len()
    }

    fn span_with(&self, other: &CpuSet) -> (usize, usize) {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => (other.base, other.end()),
            (_, true) => (self.base, self.end()),
            _ => (self.base.min(other.base), self.end().max(other.end())),
        }
    }

    pub(super) fn from_words(base: usize, words: impl Iterator<Item = u64>) -> CpuSet {
        let mut set = CpuSet {
            base,
            words: words.collect(),
        };
        set.trim();
        set
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $named:ident) => {
        impl std::ops::$trait<&CpuSet> for &CpuSet {
            type Output = CpuSet;

            fn $method(self, other: &CpuSet) -> CpuSet {
                self.$named(other)
            }
        }
    };
}

operator!(BitAnd, bitand, intersection);
operator!(BitOr, bitor, union);
operator!(Sub, sub, difference);
operator!(BitXor, bitxor, symmetric_difference);

impl std::ops::BitAndAssign<&CpuSet> for CpuSet {
    fn bitand_assign(&mut self, other: &CpuSet) {
        for (i, word) in (self.base..).zip(&mut self.words) {
            *word &= other.word(i);
        }
        self.trim();
    }
}

impl std::ops::SubAssign<&CpuSet> for CpuSet {
    fn sub_assign(&mut self, other: &CpuSet) {
        for (i, word) in (self.base..).zip(&mut self.words) {
            *word &= !other.word(i);
        }
        self.trim();
    }
}

/// Costs the words of `other`, however large `self` is, unless `self` has to grow.
impl std::ops::BitOrAssign<&CpuSet> for CpuSet {
    fn bitor_assign(&mut self, other: &CpuSet) {
        if other.is_empty() {
            return;
        }
        self.cover(other.base, other.end() - 1);
        let from = other.base - self.base;
        for (word, more) in self.words[from..].iter_mut().zip(&other.words) {
            *word |= more;
        }
    }
}

impl std::ops::BitXorAssign<&CpuSet> for CpuSet {
    fn bitxor_assign(&mut self, other: &CpuSet) {
        if other.is_empty() {
            return;
        }
        self.cover(other.base, other.end() - 1);
        let from = other.base - self.base;
        for (word, more) in self.words[from..].iter_mut().zip(&other.words) {
            *word ^= more;
        }
        self.trim();
    }
}
