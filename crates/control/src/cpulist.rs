//! A set of CPUs as it travels: the kernel's list form in a string.

use std::fmt;

use cmwq_topology::CpuSet;

/// A set of CPUs in the kernel's list form (`0-3,8`), ascending, without overlaps; the empty set is the empty string.
///
/// This is a field type for snapshots: built once from a [`CpuSet`], printed and compared; [`to_set`](CpuList::to_set) gives
/// the type to compute with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct CpuList(String);

impl CpuList {
    /// Builds the list from CPU numbers in any order, duplicates allowed.
    ///
    /// # Panics
    /// If a number is not below [`CpuSet::MAX_CPUS`].
    pub fn from_cpus(cpus: impl IntoIterator<Item = u32>) -> Self {
        CpuList::from(&cpus.into_iter().map(|cpu| cpu as usize).collect::<CpuSet>())
    }

    /// The list form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether no CPU is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The set. A text that is no list (a peer may send anything) gives the empty set.
    pub fn to_set(&self) -> CpuSet {
        CpuSet::parse_list(&self.0).unwrap_or_default()
    }

    /// The CPU numbers, ascending.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + use<> {
        self.to_set()
            .iter()
            .map(|cpu| cpu as u32)
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// How many CPUs are in it.
    pub fn count(&self) -> usize {
        self.to_set().len()
    }
}

impl From<&CpuSet> for CpuList {
    fn from(set: &CpuSet) -> Self {
        CpuList(set.to_string())
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_and_from_sets() {
        let list = CpuList::from_cpus([9, 3, 1, 2, 2, 0]);
        assert_eq!(list.as_str(), "0-3,9");
        assert_eq!(CpuList::from(&list.to_set()), list);
        assert_eq!(list.cpus().collect::<Vec<_>>(), [0, 1, 2, 3, 9]);
        assert_eq!((list.count(), CpuList::default().count()), (5, 0));
    }

    #[test]
    fn garbage_from_a_peer_is_empty_not_fatal() {
        for garbage in ["x", "5-1", "99999999999", "0-99999999"] {
            assert!(CpuList(garbage.into()).to_set().is_empty(), "{garbage}");
        }
    }
}
