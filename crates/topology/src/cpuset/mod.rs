//! [`CpuSet`]: a set of CPU numbers.

mod list;
mod mask;
mod ops;

#[cfg(test)]
mod tests;

pub use list::ListDisplay;
pub use mask::MaskDisplay;

use std::fmt;

/// A set of CPU numbers of any width up to [`CpuSet::MAX_CPUS`].
///
/// The storage is canonical (equal sets are equal in memory, whatever built them), so `Eq` and
/// `Hash` mean set equality. Words outside the lowest and the highest member are not stored: a
/// set of eight neighbours costs one word even at CPU 8000 of a large machine.
///
/// `Ord` is the order of the sets read as binary numbers: `{0} < {1} < {0,1} < {2}`.
/// [`Display`](fmt::Display) is the kernel's list form (`0-3,8`), [`CpuSet::mask`] its mask form.
///
/// Nothing here blocks or makes a system call. Algebra is O(words), `contains` is O(1).
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// Index of the first stored word. Zero when the set is empty.
    base: usize,
    /// Neither the first nor the last word is ever zero.
    words: Vec<u64>,
}

const BITS: usize = u64::BITS as usize;

/// A text that is not a CPU list or mask: where, and what was expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseCpuSetError {
    /// Byte offset into the text at which reading stopped.
    pub offset: usize,
    /// What would have been accepted there.
    pub expected: &'static str,
    /// What stands there: one character, or `None` at the end of the text.
    pub found: Option<char>,
}

impl ParseCpuSetError {
    fn at(text: &str, offset: usize, expected: &'static str) -> Self {
        let found = text.get(offset..).and_then(|rest| rest.chars().next());
        Self {
            offset,
            expected,
            found,
        }
    }
}

impl fmt::Display for ParseCpuSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: expected {}, ", self.offset, self.expected)?;
        match self.found {
            Some(c) => write!(f, "found {c:?}"),
            None => write!(f, "found the end of the text"),
        }
    }
}

impl std::error::Error for ParseCpuSetError {}

impl CpuSet {
    /// CPU numbers run from 0 to `MAX_CPUS - 1`. Linux can be built for at most 8192 CPUs today;
    /// the bound is eight times that, and keeps memory small whatever a text or a file claims.
    pub const MAX_CPUS: usize = 65536;

    /// The empty set. Does not allocate.
    pub const fn new() -> Self {
        Self {
            base: 0,
            words: Vec::new(),
        }
    }

    /// The set of one CPU.
    ///
    /// # Panics
    /// If `cpu >= MAX_CPUS`.
    pub fn of(cpu: usize) -> Self {
        let mut set = Self::new();
        set.insert(cpu);
        set
    }

    /// The CPUs `0..n`.
    ///
    /// # Panics
    /// If `n > MAX_CPUS`.
    pub fn first_n(n: usize) -> Self {
        let mut set = Self::new();
        if n > 0 {
            set.insert_range(0, n - 1);
        }
        set
    }

    /// Adds `cpu`; true if it was not in the set.
    ///
    /// # Panics
    /// If `cpu >= MAX_CPUS`.
    pub fn insert(&mut self, cpu: usize) -> bool {
        assert!(cpu < Self::MAX_CPUS, "CPU {cpu} is not below MAX_CPUS");
        let (word, bit) = (cpu / BITS, 1u64 << (cpu % BITS));
        self.cover(word, word);
        let slot = &mut self.words[word - self.base];
        let new = *slot & bit == 0;
        *slot |= bit;
        new
    }

    /// Adds every CPU of `first..=last`; nothing if `first > last`.
    ///
    /// # Panics
    /// If `last >= MAX_CPUS`.
    pub fn insert_range(&mut self, first: usize, last: usize) {
        assert!(last < Self::MAX_CPUS, "CPU {last} is not below MAX_CPUS");
        if first > last {
            return;
        }
        let (fw, lw) = (first / BITS, last / BITS);
        self.cover(fw, lw);
        for word in fw..=lw {
            let mut bits = u64::MAX;
            if word == fw {
                bits &= u64::MAX << (first % BITS);
            }
            if word == lw {
                bits &= u64::MAX >> (BITS - 1 - last % BITS);
            }
            self.words[word - self.base] |= bits;
        }
    }

    /// Removes `cpu`; true if it was in the set.
    pub fn remove(&mut self, cpu: usize) -> bool {
        if !self.contains(cpu) {
            return false;
        }
        self.words[cpu / BITS - self.base] &= !(1 << (cpu % BITS));
        self.trim();
        true
    }

    /// Empties the set, keeping its memory.
    pub fn clear(&mut self) {
        self.base = 0;
        self.words.clear();
    }

    /// Is `cpu` in the set? False for every number from `MAX_CPUS` on.
    #[inline]
    pub fn contains(&self, cpu: usize) -> bool {
        self.word(cpu / BITS) >> (cpu % BITS) & 1 == 1
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Has the set no CPU?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest CPU.
    #[inline]
    pub fn first(&self) -> Option<usize> {
        let word = self.words.first()?;
        Some(self.base * BITS + word.trailing_zeros() as usize)
    }

    /// The highest CPU.
    #[inline]
    pub fn last(&self) -> Option<usize> {
        let word = self.words.last()?;
        let top = BITS - 1 - word.leading_zeros() as usize;
        Some((self.base + self.words.len() - 1) * BITS + top)
    }

    /// The lowest CPU that is at least `from`.
    pub fn next(&self, from: usize) -> Option<usize> {
        let start = (from / BITS).max(self.base);
        for index in start..self.base + self.words.len() {
            let mut word = self.words[index - self.base];
            if index == from / BITS {
                word &= u64::MAX << (from % BITS);
            }
            if word != 0 {
                return Some(index * BITS + word.trailing_zeros() as usize);
            }
        }
        None
    }

    /// The lowest CPU that is at least `from`, else the lowest of all: the step of a round-robin
    /// cursor. `None` only for the empty set.
    pub fn next_wrapping(&self, from: usize) -> Option<usize> {
        self.next(from).or_else(|| self.first())
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            set: self,
            index: 0,
            word: self.words.first().copied().unwrap_or(0),
        }
    }

    /// The maximal runs of neighbouring CPUs, ascending, as `(first, last)`.
    pub fn ranges(&self) -> Ranges<'_> {
        Ranges { set: self, from: 0 }
    }

    /// The list form: `0-3,8,10-11`; the empty set is the empty text.
    pub fn list(&self) -> ListDisplay<'_> {
        ListDisplay(self)
    }

    /// The mask form, as in the kernel's `*_cpus` and `cpumap` files: 32-bit groups in hex,
    /// highest first, joined by commas: `ff,00000000`. The empty set is `0`.
    pub fn mask(&self) -> MaskDisplay<'_> {
        MaskDisplay { set: self, bits: 0 }
    }

    /// Reads the kernel's list form: numbers, ranges `a-b` and strides `a-b:used/group`, joined
    /// by commas. Blanks may surround each part; an empty text is the empty set. Numbers are
    /// decimal. `used` CPUs of every `group` are taken, counted from `a`.
    ///
    /// # Errors
    /// Where the text stops being a list: anything else, `a > b`, `used > group`, a zero in a
    /// stride, a number that is not below [`MAX_CPUS`](Self::MAX_CPUS).
    pub fn parse_list(text: &str) -> Result<Self, ParseCpuSetError> {
        list::parse(text)
    }

    /// Reads the mask form: groups of one to eight hex digits, highest first, joined by commas,
    /// with blanks allowed around the whole. A group short of eight digits has leading zeros.
    /// An empty text is an error.
    ///
    /// # Errors
    /// Where the text stops being a mask, a group of more than eight digits, or a bit that is
    /// not below [`MAX_CPUS`](Self::MAX_CPUS).
    pub fn parse_mask(text: &str) -> Result<Self, ParseCpuSetError> {
        mask::parse(text)
    }

    /// Bytes of heap memory.
    pub(crate) fn memory(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        index
            .checked_sub(self.base)
            .and_then(|i| self.words.get(i))
            .copied()
            .unwrap_or(0)
    }

    /// Makes the words `first..=last` addressable; the caller then makes the outer ones non-zero.
    fn cover(&mut self, first: usize, last: usize) {
        if self.words.is_empty() {
            self.base = first;
            self.words.resize(last - first + 1, 0);
            return;
        }
        if first < self.base {
            let missing = self.base - first;
            self.words.splice(0..0, std::iter::repeat_n(0, missing));
            self.base = first;
        }
        let end = self.base + self.words.len();
        if last >= end {
            self.words.resize(last - self.base + 1, 0);
        }
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        let zeros = self.words.iter().take_while(|w| **w == 0).count();
        self.words.drain(..zeros);
        self.base = if self.words.is_empty() {
            0
        } else {
            self.base + zeros
        };
    }
}

/// The CPUs of a set in ascending order. Made by [`CpuSet::iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    set: &'a CpuSet,
    index: usize,
    word: u64,
}

impl Iterator for Iter<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.word == 0 {
            self.index += 1;
            self.word = *self.set.words.get(self.index)?;
        }
        let bit = self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        Some((self.set.base + self.index) * BITS + bit)
    }
}

/// Runs of neighbouring CPUs. Made by [`CpuSet::ranges`].
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    set: &'a CpuSet,
    from: usize,
}

impl Iterator for Ranges<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        let first = self.set.next(self.from)?;
        let mut word = first / BITS;
        let mut gap = !self.set.word(word) & (u64::MAX << (first % BITS));
        while gap == 0 {
            word += 1;
            gap = !self.set.word(word);
        }
        let end = word * BITS + gap.trailing_zeros() as usize;
        self.from = end;
        Some((first, end - 1))
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = usize;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl FromIterator<usize> for CpuSet {
    /// # Panics
    /// If a number is not below [`CpuSet::MAX_CPUS`].
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<usize> for CpuSet {
    /// # Panics
    /// If a number is not below [`CpuSet::MAX_CPUS`].
    fn extend<I: IntoIterator<Item = usize>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl<const N: usize> From<[usize; N]> for CpuSet {
    /// # Panics
    /// If a number is not below [`CpuSet::MAX_CPUS`].
    fn from(cpus: [usize; N]) -> Self {
        cpus.into_iter().collect()
    }
}

impl std::str::FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// Reads the list form; see [`CpuSet::parse_list`].
    fn from_str(text: &str) -> Result<Self, ParseCpuSetError> {
        Self::parse_list(text)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list().fmt(f)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.list())
    }
}

impl Ord for CpuSet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let top = |set: &Self| set.base + set.words.len();
        top(self).cmp(&top(other)).then_with(|| {
            let low = self.base.min(other.base);
            (low..top(self))
                .rev()
                .map(|i| self.word(i).cmp(&other.word(i)))
                .find(|order| order.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        })
    }
}

impl PartialOrd for CpuSet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
